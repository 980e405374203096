"""The learner's package: read, checked, and changed as a whole, after a diff, a question and a backup."""

import difflib
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from scripts.course import ROOT, Course, Day, Task
from scripts.sources.chunks import HOLE
from scripts.sources.files import Sources, Symbol, is_python, source_files, write
from scripts.sources.render import owned_functions
from scripts.sources.symbols import holes_of
from scripts.waiting import show_progress

PACKAGE = ROOT / "tiny_llm"
NOTHING_CHANGED_EXIT_CODE = 1
DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}

Package = Annotated[Path, typer.Option(help="The package's folder.", show_default="tiny_llm")]
Yes = Annotated[
    bool,
    typer.Option("--yes", "-y", help="Change the files without asking, and list them without the lines."),
]


def read_package(package: Path) -> Sources:
    """Sources of a package by their path within it, with their line ends as they are.

    Raises:
        ValueError: there is no such package, or a file is not UTF-8.
    """
    if not (package / "__init__.py").is_file():
        raise ValueError(
            f"there is no package in {shown(package)}: bring it back with `git checkout -- tiny_llm`"
        )
    sources = {}
    for file in source_files(package):
        try:
            sources[file.relative_to(package)] = file.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{shown(file)} is not UTF-8 at byte {error.start}: save it as UTF-8") from None
    return sources


def check_syntax(sources: Mapping[Path, str], package: Path) -> None:
    """Refuse sources in Python that it cannot read; those for a compiler are not looked at.

    Raises:
        ValueError: the first file, line and message.
    """
    for path, source in sources.items():
        if not is_python(path):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(source, str(path), "exec", dont_inherit=True)
        except SyntaxError as error:
            raise ValueError(f"{shown(package / path)}, line {error.lineno}: {error.msg}") from None
        except ValueError as error:  # a null byte
            raise ValueError(f"{shown(package / path)}: {error}") from None


def shown(path: Path) -> str:
    """A path as the learner knows it: from the repository if it lies in there."""
    path = path.absolute()
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def all_tasks(course: Course) -> list[tuple[Day, Task]]:
    """Every task with its day, in order."""
    return [(day, task) for day in course.days for task in day.tasks]


def tasks_with_holes(sources: Sources) -> set[str]:
    """Ids of the tasks with a function that is not written yet."""
    sentences = [sentence for path, source in sources.items() for sentence in holes_of(path, source).values()]
    return {".".join(match.groups()[:3]) for sentence in sentences if (match := HOLE.search(sentence))}


def functions_of_tasks(starter: Sources, course: Course, chosen: Collection[str]) -> list[Symbol]:
    """Source and dotted name of each function of the starter that these tasks ask for, by the tasks' ids."""
    return [
        (path, name)
        for path, source in starter.items()
        for name, task in owned_functions(path, source, course).items()
        if task.id in chosen
    ]


def change(package: Path, before: Sources, after: Sources, yes: bool) -> None:
    """Show the difference, ask, keep a backup and write: all of it or nothing.

    If there is no one to ask, the numbers of lines by file stand for the difference.

    Ends the process with exit code 1 if the answer is no.

    Raises:
        ValueError: the package would not import, or a file cannot be written.
    """
    changed = {path: source for path, source in after.items() if source != before[path]}
    check_syntax(changed, package)
    if yes:
        show_counts(package, before, changed)
    else:
        show_difference(package, before, changed)
    if not yes and not is_confirmed(f"Change {len(changed)} file{'s' * (len(changed) > 1)}?"):
        print("nothing was changed")
        sys.exit(NOTHING_CHANGED_EXIT_CODE)
    show_progress("importing the package")
    if reason := import_error(after):
        raise ValueError(f"tiny_llm would not import, so nothing was changed: {reason}")
    try:
        folder = back_up(package, changed)
        replace_files(package, before, changed)
    except OSError as error:
        raise ValueError(f"nothing was changed: {error}") from None
    print(f"{len(changed)} file{'s' * (len(changed) > 1)} changed; what was there is in {shown(folder)}")


def show_difference(package: Path, before: Sources, changed: Sources) -> None:
    """A unified diff, in colour in a terminal."""
    console = Console(highlight=False)
    for path, source in changed.items():
        for line in difference(f"{package.name}/{path}", before[path], source):
            style = "bold" if line.startswith(("---", "+++")) else DIFF_STYLES.get(line[:1], "")
            console.print(Text(line, style), soft_wrap=True)


def show_counts(package: Path, before: Sources, changed: Sources) -> None:
    """A line a file: how many lines come and go."""
    for path, source in changed.items():
        _, _, *lines = difference("", before[path], source)
        added, removed = (sum(line.startswith(sign) for line in lines) for sign in "+-")
        print(f"{package.name}/{path}: +{added} -{removed}")


def difference(name: str, before: str, after: str) -> list[str]:
    """The lines of a unified diff of one file."""
    return list(difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, lineterm=""))


def is_confirmed(question: str) -> bool:
    """Whether the answer is yes; no answer is no."""
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


def import_error(sources: Sources) -> str | None:
    """Why the package does not import, in Python's words; None if it does, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        write(sources, Path(folder) / "tiny_llm")
        result = subprocess.run(
            [sys.executable, "-B", "-c", "from tiny_llm import load"],  # and all that models are made of
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},  # for kernel_runtime and accelerated
            capture_output=True,
            text=True,
        )
    reasons = result.stderr.strip().splitlines() or ["Python gave no reason"]
    return reasons[-1] if result.returncode != 0 else None


def back_up(package: Path, changed: Collection[Path]) -> Path:
    """Copy the files that will be replaced into a dated folder beside the package."""
    parent = package.parent / f"{package.name}.backups"
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder, number = parent / stamp, 1
    while folder.exists():
        number += 1
        folder = parent / f"{stamp}_{number}"
    for path in changed:
        copy = folder / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((package / path).read_bytes())
    return folder


def replace_files(package: Path, before: Sources, changed: Sources) -> None:
    """Replace the files, each at once; whatever interrupts, all are put back.

    Raises:
        ValueError: a file changed since it was read, in an editor for example.
    """
    for path in changed:
        if (package / path).read_bytes() != before[path].encode():
            raise ValueError(f"{path} was saved meanwhile, so nothing was changed: run the command again")
    with tempfile.TemporaryDirectory(dir=package.parent, prefix=f".{package.name}-") as folder:
        write(changed, Path(folder))
        try:
            for path in changed:
                (Path(folder) / path).chmod((package / path).stat().st_mode & 0o777)
                os.replace(Path(folder) / path, package / path)
        except BaseException:
            write({path: before[path] for path in changed}, package)
            raise
