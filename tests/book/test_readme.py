"""The README's pictures: the run moves as it was recorded, the server's page is there, and all is short."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from playwright.sync_api import Browser

from scripts.author import record_page
from scripts.book.folders import Folders
from scripts.book.records import load_records
from scripts.chart import HELD_SECONDS, RUN_LEFT, SWEEP_SECONDS, draw
from scripts.course import ROOT
from tests.book.figure_pages import new_page
from tests.support.commands import run_apart

README = (ROOT / "README.md").read_text(encoding="utf-8")
CHART = load_records(Folders().records / "setup.json")["pdm run demo"].chart
SVG = "{http://www.w3.org/2000/svg}"
MOST_BYTES = {".svg": 120_000, ".webp": 150_000}


def test_it_has_two_screens() -> None:
    assert len(re.sub(r"<[^>]*>", "", README).split()) <= 900


def test_every_picture_is_there_small_and_described() -> None:
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"', README)
    for name in pictures:
        assert (ROOT / name).stat().st_size <= MOST_BYTES[Path(name).suffix], name
    descriptions = re.findall(r'<img alt="([^"]+)"', README)
    assert len(descriptions) == README.count("<img") >= 3
    assert min(map(len, descriptions)) > 60


def numbers(text: str | None) -> list[float]:
    return [float(each) for each in (text or "").split(";")]


def test_the_run_is_uncovered_when_it_happened() -> None:
    assert CHART is not None
    root = ElementTree.fromstring(draw(CHART, "light", is_moving=True))
    (animation,) = root.findall(f".//{SVG}clipPath/{SVG}rect/{SVG}animate")
    widths, shares = numbers(animation.get("values")), numbers(animation.get("keyTimes"))
    assert animation.get("dur") == f"{SWEEP_SECONDS + HELD_SECONDS}s"

    def shown_at(x: float) -> float:
        """Seconds of the picture until the edge comes to a place."""
        return (x - RUN_LEFT) / (widths[1] - widths[0]) * shares[1] * (SWEEP_SECONDS + HELD_SECONDS)

    slower = SWEEP_SECONDS / CHART["seconds"]
    found = root.findall(f".//{SVG}g[@class='marks']")
    assert len(found) == len(CHART["run"])
    for row, marks in zip(CHART["run"], found, strict=True):
        dots = [shown_at(float(dot.get("cx", 0))) for dot in marks.iter(f"{SVG}circle")]
        assert dots == pytest.approx([slower * moment for moment in row["tokens"]], abs=0.01)
        boxes = [shown_at(float(box.get("x", 0))) for box in marks.iter(f"{SVG}rect")]
        assert boxes == pytest.approx([slower * start for start, _ in row["chunks"]], abs=0.01)
    assert f"slowed down {slower:.0f} times" in "".join(root.itertext())


def test_nothing_moves_in_the_book() -> None:
    assert CHART is not None
    assert "animate" not in draw(CHART, "page")
    assert "animate" not in draw({"title": "a", "bars": {}}, is_moving=True)


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_a_reader_who_wants_less_motion_sees_the_whole_run(browser: Browser, motion: str) -> None:
    page = new_page(browser, 820)
    page.emulate_media(reduced_motion=motion)
    page.goto((ROOT / "book" / "charts" / "run-light.svg").as_uri())
    clip = page.evaluate("getComputedStyle(document.querySelector('.marks')).clipPath")
    assert (clip == "none") == (motion == "reduce")
    display = page.evaluate("getComputedStyle(document.querySelector('.now')).display")
    assert (display == "none") == (motion == "reduce")


def test_the_page_of_the_server_is_recorded_again(tmp_path: Path) -> None:
    result = run_apart("scripts.author", "record-page", "--out", str(tmp_path))
    assert result.returncode == 0, result.stderr
    for scheme in record_page.SCHEMES:
        content = (tmp_path / f"page-{scheme}.webp").read_bytes()
        assert (
            size_of(content)
            == (2400, 1360)
            == size_of((ROOT / f"book/pictures/page-{scheme}.webp").read_bytes())
        )


def size_of(webp: bytes) -> tuple[int, int]:
    """Width and height of a picture, as the header of the extended format has them."""
    assert webp[:4] + webp[8:16] == b"RIFFWEBPVP8X"
    width, height = (int.from_bytes(webp[i : i + 3], "little") for i in (24, 27))
    return width + 1, height + 1
