"""Every page of the built book in a browser: no complaint, no request outside, keyboard, themes, widths, axe.

A page is loaded once, on a phone in the dark, and its tests share it; then it gets wide and light.

Needs the book in book/build/ (`pdm run book build`).
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from scripts.book.folders import Folders
from scripts.chart import FONT
from tests.book.figure_pages import new_page, serious_faults
from tests.book.page_faults import TWO_FRAMES, covered_notes, other_fonts, too_wide, without_hint

BUILD = Folders().build
PAGES = sorted(
    file.relative_to(BUILD).as_posix() for file in BUILD.rglob("*.html") if file.name != "toc.html"
)
NARROW, WIDE = 390, 1400
THEMES = {"light": "light", "dark": "navy"}
SCHEMES = {NARROW: "dark", WIDE: "light"}
FOCUSABLE = ".viz a[href], button, input, select, summary, [tabindex='0']"  # other links are always reached


@dataclass
class Opened:
    """A page, what it complained of, and what it asked for that is no file."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


def open_page(browser: Browser, file: Path, width: int, scheme: str = "light") -> Opened:
    page = new_page(browser, width, scheme)
    opened = Opened(page)
    page.on("console", lambda message: opened.complaints.append(message.text))
    page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    page.on("requestfailed", lambda request: opened.complaints.append(f"not loaded: {request.url}"))
    page.on("request", lambda request: opened.requests.append(request.url))
    page.goto(file.as_uri(), wait_until="load")
    page.evaluate("document.fonts.ready.then(() => true)")
    return opened


@pytest.fixture(scope="module")
def loaded() -> dict[str, Opened]:
    """The page that was opened last, by its name."""
    return {}


@pytest.fixture(scope="module")
def opened(browser: Browser, request: pytest.FixtureRequest, loaded: dict[str, Opened]) -> Opened:
    """A page of the book in a width and its theme."""
    name, width = request.param
    if name in loaded:
        widen(loaded[name].page)
    else:
        for other in loaded.values():
            other.page.close()
        loaded.clear()
        loaded[name] = open_page(browser, BUILD / name, width, SCHEMES[width])
    return loaded[name]


def widen(page: Page) -> None:
    """Make a narrow page as it is where there is room: with the table of contents beside it, and light."""
    page.set_viewport_size({"width": WIDE, "height": 900})
    page.evaluate(
        """() => {
            const toggle = document.getElementById("mdbook-sidebar-toggle");
            if (!toggle) return; // a page that mdBook has not made
            document.querySelector(".page-wrapper").style.transition = "none";
            toggle.click();
        }"""
    )
    check_theme(page, SCHEMES[WIDE])
    page.evaluate(TWO_FRAMES)


def each_page(*widths: int) -> pytest.MarkDecorator:
    """The tests of a page that is loaded with these widths."""
    cases = []
    for name in PAGES:
        source = f"book/src/{name.removesuffix('.html')}.md"
        mark = pytest.mark.sampled(3, source, "book/theme/", "book/viz/", "scripts/book/")
        cases += [pytest.param((name, width), id=f"{name}-{width}", marks=mark) for width in widths]
    return pytest.mark.parametrize("opened", cases, indirect=True)


def set_details(page: Page, is_open: bool) -> None:
    page.evaluate(
        "open => document.querySelectorAll('main details').forEach(each => { each.open = open; })", is_open
    )


def check_theme(page: Page, scheme: str) -> None:
    """The page has the theme that the reader's machine asks for, with the colours of its code."""
    page.emulate_media(color_scheme=scheme)
    page.locator(f"html.{THEMES[scheme]}").wait_for(state="attached")
    page.wait_for_function(  # a style sheet that was switched on is loaded only then
        "[...document.querySelectorAll('link[rel=stylesheet]')].every(each => each.disabled || each.sheet)"
    )


def test_the_book_is_built() -> None:
    sources = {file.relative_to(Folders().src).as_posix() for file in Folders().src.rglob("*.md")}
    wanted = {name.replace(".md", ".html") for name in sources - {"SUMMARY.md"}}
    assert wanted <= set(PAGES), "run `pdm run book build` first"


@each_page(NARROW, WIDE)
def test_a_page_renders_without_fault(opened: Opened) -> None:
    page = opened.page
    assert page.locator("main .katex-error").count() == 0
    assert "{{#" not in page.locator("main").inner_text()
    for is_open in (False, True):
        set_details(page, is_open)
        assert too_wide(page) == []
        assert without_hint(page) == []
        if page.viewport_size["width"] == WIDE:
            assert covered_notes(page) == []
            assert other_fonts(page) == []
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith(("file://", "data:"))] == []


@each_page(NARROW)
def test_drawings_are_legible_on_a_phone(opened: Opened) -> None:
    sizes = opened.page.evaluate(
        """() => [...document.querySelectorAll(".drawing svg text")].map(text => {
            const { a, b } = text.getScreenCTM();
            return parseFloat(getComputedStyle(text).fontSize) * Math.hypot(a, b);
        })"""
    )
    assert min(sizes, default=9) >= 9


@each_page(NARROW, WIDE)
def test_a_page_can_be_read_in_both_themes(opened: Opened) -> None:
    own, other = ("dark", "light") if opened.page.viewport_size["width"] == NARROW else ("light", "dark")
    check_theme(opened.page, own)
    set_details(opened.page, is_open=True)
    assert serious_faults(opened.page) == []
    check_theme(opened.page, other)
    assert opened.complaints == []


@each_page(WIDE)
def test_drawings_are_lettered_in_the_fonts_of_the_page(opened: Opened) -> None:
    others = opened.page.evaluate(
        """() => {
            const fontOf = element => getComputedStyle(element).fontFamily;
            const code = document.querySelector("main").appendChild(document.createElement("code"));
            const own = [fontOf(document.body), fontOf(code)];
            code.remove();
            const found = [...document.querySelectorAll(".drawing *")].map(fontOf);
            return found.filter(font => !own.includes(font));
        }"""
    )
    assert others == []


def test_a_chart_that_is_a_file_names_the_font_of_the_pages(browser: Browser) -> None:
    page = open_page(browser, BUILD / "index.html", WIDE).page
    font = page.evaluate("getComputedStyle(document.body).fontFamily").replace('"', "'")
    assert f'font-family="{font}"' == FONT


@each_page(WIDE)
def test_the_keyboard_reaches_everything(opened: Opened) -> None:
    page = opened.page
    set_details(page, is_open=True)
    wanted = page.evaluate(
        """selector => {
            window.notReached = new Set();
            for (const link of document.querySelectorAll("main :not(.viz *) > a[href]")) link.tabIndex = -1;
            for (const element of document.querySelectorAll(selector)) {
                const box = element.getBoundingClientRect();
                const isShown = box.width > 0 && getComputedStyle(element).visibility === "visible";
                if (element.closest("main") && isShown && !element.disabled && element.tabIndex >= 0)
                    window.notReached.add(element);
            }
            document.addEventListener("focusin", event => window.notReached.delete(event.target));
            return window.notReached.size;
        }""",
        FOCUSABLE,
    )
    page.evaluate("document.querySelector('main').setAttribute('tabindex', '-1')")
    page.locator("main").focus()
    for _ in range(wanted + 20):
        page.keyboard.press("Tab")
    left = page.evaluate("Array.from(window.notReached, element => element.outerHTML.slice(0, 80))")
    assert left == []


def first_page_with(selector: str) -> Path | None:
    """The first page whose HTML holds a text."""
    return next(
        (BUILD / name for name in PAGES if selector in (BUILD / name).read_text(encoding="utf-8")), None
    )


def test_the_table_of_contents_opens_by_keyboard(browser: Browser) -> None:
    page = open_page(browser, BUILD / "index.html", NARROW).page
    toggle = page.locator("#mdbook-sidebar-toggle")
    assert toggle.get_attribute("aria-expanded") == "false"
    toggle.focus()
    page.keyboard.press("Enter")
    assert toggle.get_attribute("aria-expanded") == "true"


def test_an_answer_opens_by_keyboard(browser: Browser) -> None:
    file = first_page_with('class="question check"')
    assert file is not None
    page = open_page(browser, file, WIDE).page
    answer = page.locator(".question.check details").first
    assert not answer.locator("> :not(summary)").first.is_visible()
    answer.locator("summary").focus()
    page.keyboard.press("Enter")
    assert answer.locator("> :not(summary)").first.is_visible()


def test_folded_code_is_printed(browser: Browser) -> None:
    page = open_page(browser, BUILD / "week-1" / "day-1.html", WIDE).page
    code = page.locator("details.folded:not([open]) code").first
    is_visible = "element => element.checkVisibility({ contentVisibilityAuto: true })"
    assert not code.evaluate(is_visible)
    page.emulate_media(media="print")
    assert code.evaluate(is_visible)


def test_a_shadow_is_where_something_is_cut_off(browser: Browser) -> None:
    page = open_page(browser, BUILD / "week-1" / "day-1.html", NARROW).page
    output = page.locator("pre.columns").first
    shadows = []
    for place in ("0", "(element.scrollWidth - element.clientWidth) / 2", "element.scrollWidth"):
        output.evaluate(f"element => {{ element.scrollLeft = {place}; }}")
        page.evaluate(TWO_FRAMES)
        shadow = output.evaluate("element => getComputedStyle(element).boxShadow")
        shadows.append(
            ["left" if x > 0 else "right" for x in map(float, re.findall(r"(-?[\d.]+)px 0px", shadow)) if x]
        )
    assert shadows == [["right"], ["left", "right"], ["left"]]


def test_copying_gives_the_command_alone(browser: Browser) -> None:
    file = first_page_with('class="console"')
    assert file is not None
    page = open_page(browser, file, WIDE).page
    command = page.locator(".console pre.command").first
    assert page.locator("pre.output .clip-button").count() == 0
    page.evaluate(
        "document.addEventListener('copy', event => { window.copied = String(getSelection()); }, true)"
    )
    page.evaluate(
        """document.addEventListener("copy", () => {
            window.copied = document.activeElement.value || String(getSelection());
        }, true)"""
    )
    command.hover()
    command.locator(".clip-button").click()
    assert page.evaluate("window.copied") == command.locator("code").inner_text()
    assert command.locator("code").inner_text().startswith(("pdm run", "TINY_LLM"))


def test_arrow_keys_of_a_control_do_not_turn_the_page(browser: Browser) -> None:
    file = first_page_with("viz/common.js")
    assert file is not None
    page = open_page(browser, file, WIDE).page
    page.locator("main input[type=range]").first.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(200)
    assert page.url == file.as_uri()
    page.evaluate("document.activeElement.blur()")
    with page.expect_navigation():
        page.keyboard.press("ArrowRight")


def test_the_search_finds_a_word(browser: Browser) -> None:
    page = open_page(browser, BUILD / "index.html", WIDE).page
    page.keyboard.press("s")
    for word in ("softmax", "looking_back"):  # the second is only in folded code
        page.locator("#mdbook-searchbar").fill("")
        page.keyboard.type(word)
        page.locator("#mdbook-searchresults li", has_text=word).first.wait_for()
