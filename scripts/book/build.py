"""Build the book: every page rendered, checked and handed to mdBook, then the links of what it made."""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from scripts.book.folders import Folders
from scripts.book.links import check_links
from scripts.book.outputs import ADVICE, Mode, Outputs
from scripts.book.page import Page
from scripts.book.problems import Problem
from scripts.book.shape import missing_days, shape_of, summary_entries

SUMMARY = "SUMMARY.md"
NOT_COPIED = shutil.ignore_patterns("*.py", "*.md", "__pycache__")


@dataclass(frozen=True)
class Result:
    """The pages of a build and what is wrong with them; `notes` are faults that `--partial` allows."""

    pages: list[Page]
    problems: list[Problem]
    notes: list[Problem]


def build(outputs: Outputs, is_partial: bool = False, ready: Callable[[], None] | None = None) -> Result:
    """Build into the book's folder of pages, which stays as it was if anything is wrong.

    Args:
        outputs: of the book.
        is_partial: pages and records may be missing.
        ready: called as soon as there are pages to read, before what cannot change them is checked; without
            it, pages that are faulty in that are not shown either.
    """
    folders = outputs.folders
    pages, problems = render_pages(outputs, is_partial)

    def is_good() -> bool:
        return not refused(problems, is_partial)

    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "build"
        if is_good():
            stage(folders, pages, Path(folder))
            problems += run_mdbook(Path(folder))
        if ready and is_good():
            publish(made, folders.build)
            ready()
        problems += [problem for page, _ in pages for problem in page.check()]
        if is_good():
            problems += check_built(folders, pages, made)
        if not ready and is_good():
            publish(made, folders.build)
    problems = list(dict.fromkeys(problems))
    wrong = refused(problems, is_partial)
    notes = [problem for problem in problems if problem not in wrong]
    return Result([page for page, _ in pages], wrong, notes)


def publish(made: Path, target: Path) -> None:
    """Put pages in the place of those of the last build."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(made, target)


def refused(problems: list[Problem], is_partial: bool) -> list[Problem]:
    """The faults that stop a build."""
    return [problem for problem in problems if not (is_partial and problem.is_missing)]


def render_pages(outputs: Outputs, is_partial: bool) -> tuple[list[tuple[Page, str]], list[Problem]]:
    """Each page that SUMMARY.md names with its Markdown, and everything that is wrong."""
    folders = outputs.folders
    file = folders.src / SUMMARY
    if not file.is_file():
        return [], [Problem(folders.name(file), 0, "there is no such file")]
    summary = file.read_text(encoding="utf-8")
    pages, problems = [], missing_days(summary, folders.name(file))
    for line, title, path in shown_progress(summary_entries(summary)):
        if not (folders.src / path).is_file():
            text = f"the chapter {title!r} is not there: {path or 'no file is named'}"
            problems.append(Problem(folders.name(file), line, text, is_missing=True))
            continue
        page = Page(Path(path), (folders.src / path).read_text(encoding="utf-8"), outputs)
        pages.append((page, page.render()))
        problems += page.found
        if not is_partial:
            problems += shape_of(page)
    problems += unnamed_pages(folders, {path for _, _, path in summary_entries(summary)})
    if outputs.mode is Mode.COMPARE:
        problems += [
            Problem(folders.name(file), 0, f"no page has what {part!r} is the output of: {ADVICE}")
            for file, part in outputs.unused()
        ]
    return pages, problems


def shown_progress(entries: list[tuple[int, str, str]]) -> Iterator[tuple[int, str, str]]:
    """The entries, with a bar in a terminal that names the page whose code may be running."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(entries))
        for entry in entries:
            progress.update(task, description=entry[2])
            yield entry
            progress.advance(task)


def unnamed_pages(folders: Folders, named: set[str]) -> list[Problem]:
    """Files of src/ that are no page of the book."""
    present = {file.relative_to(folders.src).as_posix() for file in folders.src.rglob("*.md")} - {SUMMARY}
    return [
        Problem(folders.name(folders.src / path), 0, "SUMMARY.md does not name this page")
        for path in sorted(present - named)
    ]


def stage(folders: Folders, pages: list[tuple[Page, str]], folder: Path) -> None:
    """Lay out what mdBook reads: the rendered pages, the theme, the scripts of figures."""
    src = folder / "src"
    shutil.copytree(folders.src, src, ignore=NOT_COPIED)
    shutil.copytree(folders.book / "theme", folder / "theme")
    shutil.copy(folders.book / "book.toml", folder)
    if (folders.book / "viz").is_dir():
        shutil.copytree(folders.book / "viz", src / "viz", ignore=NOT_COPIED)
    fonts = Path("theme", "katex", "fonts")  # mdBook copies a style sheet, not what it refers to
    shutil.copytree(folders.book / fonts, src / fonts)
    for page, text in pages:
        (src / page.path).parent.mkdir(parents=True, exist_ok=True)
        (src / page.path).write_text(text, encoding="utf-8")
    present = {page.path.as_posix() for page, _ in pages}
    summary = (folders.src / SUMMARY).read_text(encoding="utf-8")
    (src / SUMMARY).write_text(drafts(summary, present), encoding="utf-8")


def drafts(summary: str, present: set[str]) -> str:
    """SUMMARY.md with no link where the page is not there, which mdBook shows as a draft."""
    return re.sub(
        r"\]\(([^)]*)\)",
        lambda match: match[0] if match[1].removeprefix("./") in present else "]()",
        summary,
    )


def run_mdbook(folder: Path) -> list[Problem]:
    """Let mdBook make the pages; any word of warning is a fault."""
    command = [
        str(Path(sys.executable).with_name("mdbook")),
        "build",
        "--dest-dir",
        str(folder / "build"),
        str(folder),
    ]
    result = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    lines = [line.strip() for line in (result.stdout + result.stderr).splitlines()]
    faults = [line for line in lines if re.search(r"\b(WARN|ERROR)\b", line)]
    if result.returncode != 0 and not faults:
        faults = [f"mdbook ended with exit code {result.returncode}"]
    return [Problem("book", 0, fault.replace(f"{folder}/", "")) for fault in faults]


def check_built(folders: Folders, pages: list[tuple[Page, str]], folder: Path) -> list[Problem]:
    """What is wrong with the links of the pages that mdBook made."""
    sources = {page.path: page.source for page, _ in pages}
    names = {page.path: page.problems.file for page, _ in pages}
    summary = (folders.src / SUMMARY).read_text(encoding="utf-8")
    planned = {Path(path) for _, _, path in summary_entries(summary)} - sources.keys()
    return check_links(folder, sources, names, planned)
