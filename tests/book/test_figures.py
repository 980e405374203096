"""The figures of the book in a browser: keyboard, themes, widths, accessibility, attributes and stills."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from scripts.book.figures import element_of
from tests.book.figure_pages import COLOURS, VIZ, serious_faults, show

pytestmark = pytest.mark.sampled(3, "book/viz/", "book/theme/", "scripts/book/")
FIGURES = {  # with an attribute of each
    "attention-mask": "queries",
    "block-pool": "blocks",
    "engine-thread": "step",
    "kv-cache": "slots",
    "prefix-cache": "blocks",
    "roofline": "batch",
    "sampler": "prompt",
    "scheduler-timeline": "prompts",
}


def test_every_figure_is_tested() -> None:
    others = {"common", "still", "run-timeline"}
    assert {path.stem for path in VIZ.glob("*.js")} == {*FIGURES, *others}


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_draws_itself_without_complaint(
    browser: Browser, tmp_path: Path, figure: str, width: int
) -> None:
    element = element_of(figure)
    shown = show(browser, tmp_path, f"<{element}>still</{element}>", width, is_open=False)
    assert shown.figure.locator(".viz-canvas svg").count() >= 1
    assert "still" not in shown.figure.inner_text().split()
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
    for details in shown.figure.locator("details > summary").all():
        details.click()
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
    for theme in COLOURS:
        shown.page.evaluate("theme => { document.documentElement.className = theme; }", theme)
        assert serious_faults(shown.page) == [], theme
    assert shown.complaints == []
    assert all(url.startswith("file://") for url in shown.requests)


@pytest.mark.parametrize("figure", FIGURES)
def test_every_control_is_reached_by_tab_and_shows_it(browser: Browser, tmp_path: Path, figure: str) -> None:
    element = element_of(figure)
    shown = show(browser, tmp_path, f"<{element}></{element}>", is_open=False)
    for summary in shown.figure.locator("details > summary").all():
        summary.focus()
        shown.page.keyboard.press("Enter")
    controls = "input:enabled, select:enabled, button:enabled, summary"
    wanted = sum(each.is_visible() for each in shown.figure.locator(controls).all())
    shown.page.evaluate("document.activeElement.blur(), document.querySelector('h1').focus()")
    reached = set()
    for _ in range(wanted + 3):  # the regions that scroll are reached too
        shown.page.keyboard.press("Tab")
        place = shown.page.evaluate(
            """controls => {
                const active = document.activeElement;
                const outline = getComputedStyle(active).outlineStyle;
                const all = [...document.querySelectorAll("*")];
                return active.matches(controls) ? [all.indexOf(active), outline] : null;
            }""",
            controls,
        )
        if place:
            assert place[1] != "none"
            reached.add(place[0])
    assert len(reached) == wanted


@pytest.mark.parametrize("figure", FIGURES)
def test_one_control_is_in_sight_and_all_others_are_behind_more(
    browser: Browser, tmp_path: Path, figure: str
) -> None:
    element = element_of(figure)
    shown = show(browser, tmp_path, f"<{element}></{element}>", 390, is_open=False)
    controls = shown.figure.locator("input, select, button")
    assert sum(each.is_visible() for each in controls.all()) == 1
    assert shown.figure.locator(".viz-first").locator("input, select, button").is_visible()
    shown.figure.locator("summary", has_text="More").focus()
    shown.page.keyboard.press("Enter")
    assert sum(each.is_visible() for each in controls.all()) > 2


def test_a_table_that_is_cut_off_has_a_shadow(browser: Browser, tmp_path: Path) -> None:
    shown = show(browser, tmp_path, "<scheduler-timeline></scheduler-timeline>", 1400)
    has_shadow = """wanted => {
        const { boxShadow } = getComputedStyle(document.querySelector(".viz-scroll"));
        return (boxShadow !== "none") === wanted;
    }"""
    shown.page.wait_for_function(has_shadow, arg=False)
    shown.page.set_viewport_size({"width": 300, "height": 900})
    shown.page.wait_for_function(has_shadow, arg=True)


@pytest.mark.parametrize(
    ("element", "name"),
    [
        ('<scheduler-timeline first="call-cost">', "call-cost"),
        ('<scheduler-timeline loop="engine">', "budget"),
        ('<attention-mask first="mask">', "mask"),
        ('<attention-mask show="heads">', "head"),
        ('<kv-cache first="join">', "join"),
        ('<viz-roofline first="bits">', "bits"),
    ],
)
def test_the_chapter_chooses_the_control_in_sight(
    browser: Browser, tmp_path: Path, element: str, name: str
) -> None:
    shown = show(browser, tmp_path, f"{element}</{element[1:-1].split()[0]}>", is_open=False)
    assert shown.control(name).is_visible()
    assert shown.figure.locator("input:visible, select:visible, button:visible").count() == 1


def test_one_button_does_one_action_after_another(browser: Browser, tmp_path: Path) -> None:
    element = '<block-pool blocks="8" prompts="5 3" join="6" answer="2" first="leave-0 joins decode">'
    shown = show(browser, tmp_path, f"{element}</block-pool>", is_open=False)
    lead = shown.figure.locator(".viz-first button")
    lead.focus()

    def press() -> tuple[str, str]:
        shown.page.keyboard.press("Enter")
        return shown.figure.locator(".viz-event").inner_text().split(":")[0], lead.inner_text()

    assert lead.inner_text() == "Sequence 0 leaves"
    assert press() == ("Sequence 0 left", "A prompt of 6 joins")
    assert press() == ("Sequence 2 was admitted", "Decode a token")
    assert press() == ("No new block was needed.", "Decode a token")
    assert press() == ("Sequence 1 took block 3.", "Start again")  # neither of the two may have more
    assert press() == ("", "Sequence 0 leaves")
    assert shown.page.evaluate("document.activeElement.parentElement.className") == "viz-first"
    shown.figure.locator("summary", has_text="More").click()
    shown.control("leave-0").click()
    assert lead.inner_text() == "A prompt of 6 joins"  # what was done behind "More" is not offered again
    assert shown.complaints == []


@pytest.mark.parametrize(
    ("element", "sentence"),
    [
        ('<attention-mask queries="5" keys="4">', "keys must be an integer from 5 to 24, not 4"),
        ('<attention-mask heads="6" kv-heads="4">', "4 does not divide 6"),
        ('<attention-mask mask="diagonal">', "mask is one of right, off-by-one, peek, left, none"),
        ('<scheduler-timeline prompts="12 x">', "prompts must be integers from 1 to 4096, not 12 x"),
        ('<block-pool prompts="1 2 3 4 5 6 7">', "prompts are more than 6"),
        ('<block-pool block-size="9">', "block-size must be an integer from 1 to 8, not 9"),
        ('<kv-cache slots="1" lengths="4 5">', "lengths are more than the 1 slot"),
        ('<prefix-cache prompts="a//b">', "prompts must be texts of 1 to 24 characters with / between them"),
        ('<viz-roofline bandwidth="-1">', "bandwidth must be a number"),
        ('<viz-sampler temperature="9">', "temperature must be a number from 0 to 2, not 9"),
        ('<viz-sampler first="bars">', "first is one of prompt, temperature, top-k, top-p, min-p, not bars"),
        ('<scheduler-timeline first="budget">', "first is one of loop, axis, chunk, batch, call-cost, not"),
        ('<kv-cache first="leave-2 leave-3">', "leave-0, leave-1, leave-2, restart, not leave-3"),
        ('<engine-thread first="step">', "first is one of fault, gone, not step"),
        ('<engine-thread first="fault gone">', "first is one of fault, gone, not fault gone"),
    ],
)
def test_an_attribute_that_makes_no_sense_is_named(
    browser: Browser, tmp_path: Path, element: str, sentence: str
) -> None:
    shown = show(browser, tmp_path, f"{element}</{element[1:].split()[0]}>")
    assert sentence in shown.figure.locator("[role=alert]").inner_text()


@pytest.mark.parametrize("figure", FIGURES)
def test_the_still_is_the_figure_s_own_drawing(figure: str) -> None:
    program = [sys.executable, str(VIZ / "still.py"), figure]
    still = subprocess.run(program, input="{}", capture_output=True, text=True, check=True).stdout
    assert ET.fromstring(still).tag == "{http://www.w3.org/2000/svg}svg"
    assert "aria-label" in still
    refused = subprocess.run(
        program, input=json.dumps({FIGURES[figure]: "x"}), capture_output=True, text=True
    )
    assert (refused.returncode, FIGURES[figure] in refused.stderr) == (1, True)
