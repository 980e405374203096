"""Run the commands and the code of chapters and keep what they print."""

import sys
from pathlib import Path

from scripts.book.build import SUMMARY, render_pages
from scripts.book.folders import Folders
from scripts.book.outputs import Mode, Outputs, read_parts, write_parts
from scripts.book.problems import ChapterError, Problem, Problems
from scripts.book.records import Record, load_records, record, record_file, save_records
from scripts.book.shown import Shown, all_commands
from scripts.chart import draw
from scripts.hardware.quiet import Watch, judge, looked


def keep_outputs(folders: Folders) -> list[Problem]:
    """Keep what fences print and scripts of figures draw; outputs of those that are gone go too."""
    outputs = Outputs(folders, Mode.KEEP)
    problems = [problem for problem in render_pages(outputs, is_partial=True)[1] if not problem.is_missing]
    for file, part in outputs.unused() if not problems else ():
        write_parts(file, {name: kept for name, kept in read_parts(file).items() if name != part})
    return problems


def record_pages(
    folders: Folders, chapters: list[str], before: str = "", matching: str = ""
) -> list[Problem]:
    """Record the commands of the chapters named, or of all.

    Args:
        folders: of the book.
        chapters: such as week-2/day-7; all if it is empty.
        before: commands with a record older than this day, too; none if it is empty.
        matching: only commands that hold these words.

    Raises:
        ValueError: there is no such chapter.
    """
    present = {
        file.relative_to(folders.src).with_suffix("").as_posix(): file
        for file in sorted(folders.src.rglob("*.md"))
        if file.name != SUMMARY
    }
    for name in chapters:
        if name not in present:
            raise ValueError(f"there is no chapter {name!r}: choose one of {', '.join(present)}")
    pages = [present[name] for name in chapters or present]
    return [problem for page in pages for problem in record_page(folders, page, before, matching)]


def record_page(folders: Folders, file: Path, before: str, matching: str) -> list[Problem]:
    """Record the commands of one page, in its order; records of commands it no longer shows go."""
    problems = Problems(folders.name(file))
    try:
        commands = all_commands(file.read_text(encoding="utf-8"))
    except ChapterError as error:
        problems.add_error(0, error)
        return problems.found
    target = record_file(folders.records, file.relative_to(folders.src))
    known = load_records(target)
    for shown in commands:
        old = known.get(shown.command)
        if matching not in shown.command or (old and old.date >= before):
            continue
        took = f" ({old.seconds:.0f} s the last time)" if old and old.seconds is not None else ""
        print(f"{problems.file}: {shown.command}{took}", file=sys.stderr)
        try:
            known[shown.command] = record_quietly(shown)
        except ValueError as error:
            problems.add(shown.line, str(error))
        save_records(target, [known[each.command] for each in commands if each.command in known])
    save_records(target, [known[each.command] for each in commands if each.command in known])
    write_page_charts(folders, file)
    return problems.found


def write_page_charts(folders: Folders, file: Path) -> None:
    """The charts of a page that the README shows too, which knows no colours of a page: light and dark."""
    known = load_records(record_file(folders.records, file.relative_to(folders.src)))
    for shown in all_commands(file.read_text(encoding="utf-8")):
        name, record = shown.options.get("chart"), known.get(shown.command)
        if name and record and record.chart:
            folders.charts.mkdir(exist_ok=True)
            for colours in ("light", "dark"):
                svg = draw(record.chart, colours, is_moving=True)
                (folders.charts / f"{name}-{colours}.svg").write_text(svg, encoding="utf-8")


def record_quietly(shown: Shown) -> Record:
    """Record a command while nothing else computes.

    Raises:
        ValueError: something else does, or the command ends with an exit code that its fence does not show.
    """
    judge(looked(), records=True)
    watch = Watch()
    made = record(shown.command)
    judge(watch.others(), records=True)
    if (made.exit_code != 0) != ("fails" in shown.options):
        last = made.output.split("\n")[-1]
        raise ChapterError(
            f"`{shown.command}` ends with exit code {made.exit_code}, the old record stays: {last}"
        )
    for assertion in shown.assertions:
        try:
            assertion.check(made.output)
        except ChapterError as error:
            raise ChapterError(
                f"{error}; the old record stays, this is the new one:\n{made.output}"
            ) from None
    return made
