"""The drawing of the engine in the book: which parts are lit, where they lead, and that their names fit."""

import json
import re

import pytest
from playwright.sync_api import Browser

from scripts.book.execute import run_python
from scripts.book.folders import Folders
from scripts.book.problems import ChapterError
from scripts.course import ROOT, load_course
from scripts.engine_drawing import parts_by_day
from tests.book.figure_pages import new_page

COURSE = load_course()
WEEKS = sorted({day.week for day in COURSE.days})
NARROW, WIDE = 390, 1400
PAGES = {None: "welcome.html"} | {week: f"week-{week}/index.html" for week in WEEKS}
each_week = pytest.mark.parametrize("week", PAGES)


def figure(**attributes: str) -> str:
    return run_python([str(ROOT / "book" / "figures" / "engine.py")], json.dumps(attributes), 0)


def state(of_part: int, week: int | None) -> str:
    if week is None or of_part < week:
        return "lit"
    return "now" if of_part == week else "later"


@each_week
def test_both_drawings_have_each_day_as_its_week_has_it(week: int | None) -> None:
    drawn = figure() if week is None else figure(week=str(week))
    wide, tall = drawn.split("<svg")[1:]
    for drawing in (wide, tall):
        found = re.findall(r'<a class="(\w+)" href="((?:\.\./)?)week-(\d)/day-(\d)\.html">', drawing)
        assert {(day[2], day[3]): day[:2] for day in found} == {
            (str(day.week), str(day.day)): (state(day.week, week), "" if week is None else "../")
            for day in COURSE.days
        }
        assert len(found) == len(COURSE.days)


def test_a_week_that_is_not_there_is_refused() -> None:
    with pytest.raises(ChapterError, match="there is no week 9"):
        figure(week="9")


@each_week
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_a_page_shows_the_drawing_that_fits_and_names_fit_their_parts(
    browser: Browser, week: int | None, width: int
) -> None:
    page = new_page(browser, width)
    page.goto((Folders().build / PAGES[week]).as_uri())
    page.evaluate("document.fonts.ready.then(() => true)")
    shown = page.locator("svg.engine:visible")
    assert shown.count() == 1
    assert shown.get_attribute("class") == ("engine tall" if width == NARROW else "engine wide")
    assert shown.evaluate("svg => svg.getBoundingClientRect().right <= innerWidth")
    size = shown.locator("a text").first.evaluate("text => text.getBoundingClientRect().height")
    assert size >= 11
    parts = shown.locator("a")
    assert parts.count() == len(parts_by_day(COURSE))
    too_wide = parts.evaluate_all(
        """parts => parts.filter(part => {
            const box = part.querySelector("rect").getBoundingClientRect();
            return [...part.querySelectorAll("text")].some(text => {
                const own = text.getBoundingClientRect();
                return own.right > box.right - 2 || own.bottom > box.bottom || own.top < box.top;
            });
        }).map(part => part.textContent)"""
    )
    assert too_wide == []
