"""The links of the built pages lead to pages and headings that are there; nothing loads from outside."""

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from scripts.book.problems import Problem

LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "audio": "src"}


@dataclass
class Html(HTMLParser):
    """What a page links to, loads and can be linked to by."""

    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    main_depth: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag says."""
        values = {name: value or "" for name, value in attrs}
        if "id" in values:
            self.ids.append(values["id"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in LOADS and LOADS[tag] in values:
            self.loads.append(values[LOADS[tag]])


def read_pages(folder: Path) -> dict[Path, Html]:
    """The pages below a folder, by their paths there."""
    pages = {}
    for file in sorted(folder.rglob("*.html")):
        page = Html()
        page.feed(file.read_text(encoding="utf-8"))
        pages[file.relative_to(folder)] = page
    return pages


def check_links(
    folder: Path, sources: dict[Path, str], names: dict[Path, str], planned: Collection[Path] = ()
) -> list[Problem]:
    """What is wrong with the links of the built pages.

    Args:
        folder: of the built book.
        sources: the Markdown of each page by its path, to find the line of a link.
        names: how messages name each page.
        planned: pages that may be missing yet.
    """
    pages = read_pages(folder)
    problems = []
    for path, page in pages.items():
        source = path.with_suffix(".md")
        if source not in sources:
            continue
        for link in dict.fromkeys(page.links):
            if text := fault_of_link(link, path, pages, folder):
                is_missing = normal(path.parent / urlsplit(link).path).with_suffix(".md") in planned
                problems.append(Problem(names[source], line_of(link, sources[source]), text, is_missing))
        for address in dict.fromkeys(page.loads):
            if text := fault_of_load(address, path, folder):
                problems.append(Problem(names[source], line_of(address, sources[source]), text))
        twice = {name for name in page.ids if page.ids.count(name) > 1}
        problems += [Problem(names[source], 0, f"two parts have the id {name!r}") for name in sorted(twice)]
    return problems


def fault_of_link(link: str, path: Path, pages: dict[Path, Html], folder: Path) -> str:
    """What is wrong with a link of a page; nothing if it is right or leads outside."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return "" if parts.scheme in ("https", "mailto") else f"the link {link} is not https"
    target = normal(path.parent / unquote(parts.path)) if parts.path else path
    if target not in pages:
        return "" if (folder / target).is_file() else f"the link {link} leads to no page"
    if parts.fragment and unquote(parts.fragment) not in pages[target].ids:
        return f"the link {link} leads to no heading: {target.with_suffix('.md')} has no #{parts.fragment}"
    return ""


def fault_of_load(address: str, path: Path, folder: Path) -> str:
    """What is wrong with something that a page loads."""
    parts = urlsplit(address)
    if parts.scheme == "data":
        return ""
    if parts.scheme or parts.netloc:
        return f"the page loads {address} from outside"
    target = normal(path.parent / unquote(parts.path))
    return "" if (folder / target).is_file() else f"the page loads {address}, which is not there"


def normal(path: Path) -> Path:
    """The path without `..`."""
    return Path(os.path.normpath(path))


def line_of(link: str, source: str) -> int:
    """The line of a page's Markdown that holds a link; 0 if the page does not write it like that."""
    as_written = {link, link.replace(".html", ".md")}
    for number, line in enumerate(source.split("\n"), start=1):
        if any(f"({each})" in line or f"({each} " in line or f": {each}" in line for each in as_written):
            return number
    return 0
