"""Figures: custom elements with a still inside, or stills alone."""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from scripts.book.execute import run_python
from scripts.book.folders import Folders
from scripts.book.outputs import Outputs
from scripts.book.problems import ChapterError
from scripts.chart import draw
from scripts.course import ROOT

READABLE = (".py", ".js", ".json", ".toml")
SHARED = ("common", "still")  # stems of the files that figures to play with load, each whatever its name
COMMANDS = re.compile(r"^from ((?:benches|scripts)\.[\w.]+) import", re.M)
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*$")
PHONE = 600  # a wider chart is scrolled on a phone


@dataclass(frozen=True)
class Figure:
    """What a word `{{#figure NAME attr=value | sentence}}` says."""

    name: str
    attributes: dict[str, str]
    sentence: str


def parse_figure(rest: str) -> Figure:
    """The parts of the word; ChapterError if it is not written like that."""
    before, bar, sentence = rest.partition("|")
    try:
        words = shlex.split(before)
    except ValueError as error:
        raise ChapterError(f"the attributes of a figure cannot be read: {error}") from None
    if not words or not NAME.match(words[0]):
        raise ChapterError("a figure needs a name of small letters: {{#figure NAME attr=value | sentence}}")
    if not bar or not sentence.strip():
        raise ChapterError(f"the figure {words[0]} needs a sentence after a bar that says what to see")
    for word in words[1:]:
        if not re.match(r"[a-z][a-z0-9-]*=", word):
            raise ChapterError(f"{word!r} is no attribute of a figure: write name=value")
    attributes = {name: value for name, _, value in (word.partition("=") for word in words[1:])}
    return Figure(words[0], attributes, " ".join(sentence.split()))


def figure_block(figure: Figure, sentence: str, outputs: Outputs, page: Path) -> str:
    """The figure with its caption, which is Markdown already rendered where it needs to be.

    Args:
        figure: which, with its attributes.
        sentence: the caption.
        outputs: those of the book.
        page: where it stands.
    """
    viz = outputs.folders.book / "viz"
    script = viz / f"{figure.name}.js"
    if script.is_file():
        attributes = "".join(f' {name}="{escape(value)}"' for name, value in figure.attributes.items())
        still = drawn(viz / "still.py", figure, outputs, page) if (viz / "still.py").is_file() else ""
        element = element_of(figure.name)
        inside = f"<{element}{attributes}>{still}</{element}>"
    else:
        inside = still_figure(figure, outputs, page)
    inside = f'<div class="drawing">{inside}</div>'
    return f'<figure id="figure-{figure.name}">{inside}\n<figcaption>\n\n{sentence}\n\n</figcaption></figure>'


def chart_block(chart: Mapping[str, Any]) -> str:
    """The chart of a record, in the colours of the page."""
    drawing = as_inline(draw(chart, "page"), chart["title"])
    wide = " wide" if chart.get("width", 0) > PHONE else ""
    return f'<figure><div class="drawing{wide}">{drawing}</div></figure>'


def element_of(name: str) -> str:
    """The custom element of a figure; the name of one must have a hyphen."""
    return name if "-" in name else f"viz-{name}"


def still_figure(figure: Figure, outputs: Outputs, page: Path) -> str:
    """A drawing of figures/; ChapterError if there is none."""
    drawing = outputs.folders.book / "figures" / f"{figure.name}.svg"
    if drawing.is_file():
        if figure.attributes:
            raise ChapterError(f"the figure {figure.name} is a still one: it takes no attributes")
        return as_inline(drawing.read_text(encoding="utf-8"), figure.name)
    program = drawing.with_suffix(".py")
    if program.is_file():
        return drawn(program, figure, outputs, page)
    raise ChapterError(f"there is no figure {figure.name} in book/viz or book/figures", is_missing=True)


def drawn(program: Path, figure: Figure, outputs: Outputs, page: Path) -> str:
    """The SVG that a script prints for these attributes; ChapterError if another one is kept."""
    text = json.dumps(figure.attributes)
    code = [text, *(file.read_text(encoding="utf-8") for file in sources_of(program, figure.name))]
    part = " ".join(["figure", figure.name, *map("=".join, figure.attributes.items())])
    reads = ["figure", *(file.read_text(encoding="utf-8") for file in commands_of(program))]
    (svg,), faults = outputs.get(
        page, part, code, reads, lambda: [run_python([str(program), figure.name], text, 0)]
    )
    if faults:
        raise ChapterError(f"the figure {figure.name}: {faults[0]}")
    return as_inline(svg, figure.name)


def sources_of(program: Path, figure: str) -> list[Path]:
    """A script and what it may read beside itself: its figure's script, what all figures share, and data."""
    files = [file for file in sorted(program.parent.rglob("*")) if file.suffix in READABLE]
    own = (figure, *SHARED)
    return [program, *(file for file in files if file.parent != program.parent or file.stem in own)]


def commands_of(program: Path) -> list[Path]:
    """The modules of benches/ and scripts/ that a script imports, directly or not."""
    found: list[Path] = [program]
    for file in found:  # which grows meanwhile
        for name in COMMANDS.findall(file.read_text(encoding="utf-8")):
            module = ROOT.joinpath(*name.split(".")).with_suffix(".py")
            found += [module] if module.is_file() and module not in found else []
    return found[1:]


def as_inline(svg: str, name: str) -> str:
    """An SVG on one line; ChapterError if it says nothing to those who cannot see."""
    start = svg.find("<svg")
    if start < 0:
        raise ChapterError(f"the figure {name} is no SVG")
    if "<title" not in svg and "aria-label" not in svg:
        raise ChapterError(f"the figure {name} has no <title>: say in it what is drawn")
    return re.sub(r"\s*\n\s*", " ", svg[start:].strip())


def scripts_of(names: list[str], folders: Folders, to_root: str) -> str:
    """The style and the scripts that the elements of a page need, as book/viz/README.md orders them."""
    viz = folders.book / "viz"
    elements = [name for name in dict.fromkeys(names) if (viz / f"{name}.js").is_file()]
    if not elements:
        return ""
    files = [viz / "common.js", *sorted((viz / "twins").glob("*.js"))]
    for folder in ("data", "parts"):
        files += [file for name in elements for file in sorted((viz / folder).glob(f"{name}*.js"))]
    files += [viz / f"{name}.js" for name in elements]
    sources = [file.relative_to(folders.book).as_posix() for file in files if file.is_file()]
    tags = "".join(f'<script src="{to_root}{source}"></script>' for source in sources)
    style = f'<link rel="stylesheet" href="{to_root}viz/viz.css">' if (viz / "viz.css").is_file() else ""
    return f'\n\n<div class="scripts">{style}{tags}</div>\n'
