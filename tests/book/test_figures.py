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

FIGURES = sorted(path.stem for path in VIZ.glob("*.py") if path.stem != "still")
FIRST = {  # an attribute of each
    "attention-mask": "queries",
    "block-pool": "blocks",
    "engine-thread": "step",
    "kv-cache": "slots",
    "prefix-cache": "blocks",
    "roofline": "batch",
    "sampler": "prompt",
    "scheduler-timeline": "prompts",
}


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_draws_itself_without_complaint(
    browser: Browser, tmp_path: Path, figure: str, width: int
) -> None:
    element = element_of(figure)
    shown = show(browser, tmp_path, f"<{element}>still</{element}>", width)
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
    shown = show(browser, tmp_path, f"<{element}></{element}>")
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
    ],
)
def test_an_attribute_that_makes_no_sense_is_named(
    browser: Browser, tmp_path: Path, element: str, sentence: str
) -> None:
    shown = show(browser, tmp_path, f"{element}</{element[1:].split()[0]}>")
    assert sentence in shown.figure.locator("[role=alert]").inner_text()


@pytest.mark.parametrize("figure", FIGURES)
def test_the_still_is_the_figure_s_own_drawing(figure: str) -> None:
    program = [sys.executable, str(VIZ / f"{figure}.py")]
    still = subprocess.run(program, input="{}", capture_output=True, text=True, check=True).stdout
    assert ET.fromstring(still).tag == "{http://www.w3.org/2000/svg}svg"
    assert "aria-label" in still
    refused = subprocess.run(program, input=json.dumps({FIRST[figure]: "x"}), capture_output=True, text=True)
    assert (refused.returncode, FIRST[figure] in refused.stderr) == (1, True)
