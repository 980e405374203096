"""The figures of the book in a browser: their numbers, the keyboard, themes, widths and accessibility."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_core_python.sync_playwright import Axe
from figure_pages import VIZ, Shown, open_browser, show
from playwright.sync_api import Browser
from reference_runs import play

FIGURES = sorted(path.stem for path in VIZ.glob("*.py") if path.stem != "still")
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


def integers(text: str) -> list[int]:
    return [int(found) for found in re.findall(r"\d+", text)]


@pytest.mark.parametrize("theme", ["light", "navy", "rust"])
@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_draws_itself_without_complaint(
    browser: Browser, tmp_path: Path, figure: str, width: int, theme: str
) -> None:
    shown = show(browser, tmp_path, f"<{figure}>still</{figure}>", width, theme)
    assert shown.complaints == []
    assert all(url.startswith("file://") for url in shown.requests)
    assert shown.figure.locator(".viz-canvas svg").count() >= 1
    assert "still" not in shown.figure.inner_text().split()
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
    for details in shown.figure.locator("details > summary").all():
        details.click()
    found = Axe().run(shown.page)["violations"]
    assert [(each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in SERIOUS] == []
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
    shown.page.close()


def timeline_numbers(shown: Shown, settings: dict) -> None:
    """The summary and the table of a timeline say what the reference does."""
    whole = {**settings, "chunk": max(settings["prompts"])}
    chunked, whole = play(settings), play(whole)
    expected = [settings["chunk"]]
    for run in (chunked, whole):
        gaps = [gap for gap in run["gap"] if gap is not None]
        expected += [
            run["numSteps"],
            int(run["calls"][-1]["end"]),
            int(max(gaps)),
            run["gap"].index(max(gaps)),
        ]
    assert integers(shown.summary) == expected
    number = {None: "–"}
    for i, row in enumerate(shown.rows()):
        felt = [run[key][i] for key in ("ttft", "gap") for run in (chunked, whole)]
        prefills = [call for call in chunked["calls"] if call["phase"] == "prefill"]
        chunks = sum(request == i for call in prefills for request, _ in call["tokens"])
        numbers = [i, settings["prompts"][i], settings["outputs"][i], chunks, *felt]
        assert row == [number.get(each, f"{each:g}" if each is not None else "") for each in numbers]


def test_timeline_says_what_the_reference_does(browser: Browser, tmp_path: Path) -> None:
    element = (
        '<scheduler-timeline prompts="12 30 150" outputs="9 12" arrivals="0 0 3" chunk="16" call-cost="8">'
    )
    shown = show(browser, tmp_path, f"{element}</scheduler-timeline>")
    settings = {
        "prompts": [12, 30, 150],
        "outputs": [9, 12, 12],
        "arrivals": [0, 0, 3],
        "chunk": 16,
        "batch": 4,
        "callCost": 8,
    }
    timeline_numbers(shown, settings)
    shown.slide("chunk", "ArrowRight", "ArrowRight")
    settings["chunk"] = 64
    timeline_numbers(shown, settings)
    settings["batch"] = int(shown.slide("batch", "Home"))
    timeline_numbers(shown, settings)
    settings["callCost"] = int(shown.slide("call-cost", "Home"))
    assert (settings["batch"], settings["callCost"]) == (1, 0)
    timeline_numbers(shown, settings)
    shown.page.locator("details summary").focus()
    shown.page.keyboard.press("Enter")
    for key, name in (("prompts", "prompt"), ("outputs", "output"), ("arrivals", "arrival")):
        settings[key][1] = int(shown.slide(f"{name}-1", "ArrowRight", "ArrowRight", "ArrowRight"))
        timeline_numbers(shown, settings)
    assert (settings["prompts"][1], settings["outputs"][1], settings["arrivals"][1]) == (33, 15, 3)
    assert shown.complaints == []
