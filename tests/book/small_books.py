"""Small books in folders of their own, and single pages."""

import shutil
from pathlib import Path

from scripts.book.folders import Folders
from scripts.book.outputs import Outputs
from scripts.book.page import Page
from scripts.book.records import Record, save_records
from scripts.course import ROOT, load_course

DAY = "week-2/day-7.md"


def folders_in(tmp_path: Path) -> Folders:
    """An empty book."""
    folders = Folders(tmp_path / "book")
    folders.src.mkdir(parents=True, exist_ok=True)
    return folders


def page_of(tmp_path: Path, text: str, path: str = DAY) -> Page:
    """A page of a book in a folder of its own, rendered; what it became is `page.rendered`."""
    page = Page(Path(path), text, Outputs(folders_in(tmp_path)))
    page.rendered = page.render()
    page.problems.found = sorted({*page.problems.found, *page.check()})
    return page


def faults_of(tmp_path: Path, text: str, path: str = DAY) -> list[tuple[int, str]]:
    """Line and sentence of each fault of a page."""
    return [(problem.line, problem.text) for problem in page_of(tmp_path, text, path).found]


def record_of(command: str, output: str, exit_code: int = 0) -> Record:
    """A record as if the command had printed that."""
    return Record(command, output, exit_code, "A machine, 2 cores", "Linux, Python 3.11, MLX 1", "2026-11-21")


def keep_records(folders: Folders, *records: Record, path: str = DAY) -> None:
    """Write the records of a page."""
    save_records(folders.records / Path(path).with_suffix(".json"), list(records))


def book_in(tmp_path: Path, pages: dict[str, str]) -> Folders:
    """A book that names every day and has these pages."""
    folders = folders_in(tmp_path)
    shutil.copy(ROOT / "book" / "book.toml", folders.book)
    shutil.copytree(ROOT / "book" / "theme", folders.book / "theme", dirs_exist_ok=True)
    names = [f"week-{day.week}/day-{day.day}.md" for day in load_course().days]
    lines = [f"- [{name}]({name})" for name in [*names, *(name for name in pages if name not in names)]]
    (folders.src / "SUMMARY.md").write_text("# Summary\n\n" + "\n".join(lines) + "\n", encoding="utf-8")
    for name, text in pages.items():
        (folders.src / name).parent.mkdir(parents=True, exist_ok=True)
        (folders.src / name).write_text(text, encoding="utf-8")
    return folders
