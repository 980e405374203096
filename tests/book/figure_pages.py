"""Pages from file:// with a figure each, in a browser."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page

from scripts.course import ROOT

VIZ = ROOT / "book" / "viz"
COLOURS = {"light": ("#ffffff", "#000000"), "navy": ("#161923", "#bcbdd0"), "rust": ("#e1e1db", "#262625")}
SERIOUS = ("serious", "critical")
TIMEOUT = 10_000  # milliseconds


def scripts() -> list[Path]:
    """The scripts of all figures in the order that a page loads them."""
    shared = [path for folder in ("twins", "data", "parts") for path in sorted((VIZ / folder).glob("*.js"))]
    own = [path for path in sorted(VIZ.glob("*.js")) if path.name not in ("common.js", "still.js")]
    return [VIZ / "common.js", *shared, *own]


def page_text(element: str) -> str:
    """A page that holds one element and loads the figures as the book does."""
    colours = "\n".join(f".{name} {{ --bg: {bg}; --fg: {fg}; }}" for name, (bg, fg) in COLOURS.items())
    loads = "".join(f'<script src="{path.as_uri()}"></script>\n' for path in scripts())
    return f"""<!doctype html>
<html lang="en" class="light">
<meta charset="utf-8"><title>A figure</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="{(VIZ / "viz.css").as_uri()}">
<style>{colours}
body {{ background: var(--bg); color: var(--fg); max-width: 750px; margin: 0 auto; padding: 0 15px; }}</style>
<body><main><h1>A figure</h1>{element}</main>
{loads}"""


@dataclass
class Shown:
    """A figure in a page, what it complained of, and where it asked for anything but files."""

    page: Page
    figure: Locator
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def control(self, name: str) -> Locator:
        return self.figure.locator(f'[name="{name}"]')

    @property
    def summary(self) -> str:
        """The sentence with the numbers, without the commas in them."""
        return plain_numbers(self.figure.locator(".viz-summary").inner_text())

    def rows(self) -> list[list[str]]:
        """The cells of the table, row by row."""
        return [
            [plain_numbers(cell) for cell in row.locator("th, td").all_inner_texts()]
            for row in self.figure.locator("table tbody tr").all()
        ]

    def slide(self, name: str, *keys: str) -> float:
        """Work a slider by keys alone; the value that it then has."""
        control = self.control(name)
        control.focus()
        for key in keys:
            self.page.keyboard.press(key)
        return float(control.input_value())


def plain_numbers(text: str) -> str:
    """The text with 1,234 written as 1234."""
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)


def integers(text: str) -> list[int]:
    """The numbers in a sentence."""
    return [int(found) for found in re.findall(r"\d+", text)]


def new_page(browser: Browser, width: int, scheme: str = "light") -> Page:
    """A page of this width in the context that all share: what it has compiled serves the next page too."""
    page = browser.contexts[0].new_page()
    page.set_default_timeout(TIMEOUT)
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    return page


def show(browser: Browser, folder: Path, element: str, width: int = 1400, is_open: bool = True) -> Shown:
    """A page of its own with this element, as at first sight or with what is behind "More"."""
    file = folder / "page.html"
    file.write_text(page_text(element), encoding="utf-8")
    page = new_page(browser, width)
    shown = Shown(page, page.locator("main > :nth-child(2)"))
    page.on("console", lambda message: shown.complaints.append(message.text))
    page.on("pageerror", lambda error: shown.complaints.append(str(error)))
    page.on("request", lambda request: shown.requests.append(request.url))
    page.goto(file.as_uri())
    if is_open:
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    return shown


def serious_faults(page: Page) -> list[tuple[str, str]]:
    """What axe finds serious: the rule, and each place.

    Of the words of code, which are thousands, only the first of each colour on each ground is looked at, and
    of formulas, which have the colour of the text around them, nothing.
    """
    page.evaluate(
        """() => {
            const seen = new Set();
            for (const word of document.querySelectorAll("main pre span")) {
                const ground = getComputedStyle(word.closest("pre")).backgroundColor;
                const kind = `${getComputedStyle(word).color} on ${ground}`;
                word.toggleAttribute("data-again", seen.has(kind));
                seen.add(kind);
            }
        }"""
    )
    options = {"preload": False, "resultTypes": ["violations"]}  # no requests of its own
    context = {"include": [["html"]], "exclude": [["[data-again]"], [".katex"]]}
    return [
        (each["id"], node["html"])
        for each in Axe().run(page, context=context, options=options).response["violations"]
        if each["impact"] in SERIOUS
        for node in each["nodes"]
    ]
