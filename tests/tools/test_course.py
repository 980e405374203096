"""The map, the layers of the reference and its public face are what they say they are."""

import ast
import importlib
import re
from graphlib import TopologicalSorter
from pathlib import Path
from types import ModuleType

import pytest

import tiny_llm
from scripts.course import ROOT, Day, load_course
from scripts.sources.files import find_symbol, is_python, module_name, read_reference, source_files
from scripts.sources.render import starter_of
from scripts.sources.symbols import KINDS, definition_of, split

COURSE = load_course()
REFERENCE = ROOT / "tiny_llm_ref"
# Bottom to top: the packages of the repository, and which others each may import.
PACKAGES = {
    "kernel_runtime": (),
    "tiny_llm_ref": ("kernel_runtime",),
    "accelerated": ("kernel_runtime", "tiny_llm"),
    "http_server": ("kernel_runtime", "tiny_llm"),
    "scripts": ("kernel_runtime", "tiny_llm", "accelerated", "http_server"),
    "benches": ("kernel_runtime", "tiny_llm", "accelerated", "scripts"),
    "tests/support": ("kernel_runtime", "tiny_llm", "accelerated", "http_server", "scripts"),
    "scripts/author": (
        "kernel_runtime",
        "tiny_llm",
        "accelerated",
        "http_server",
        "scripts",
        "benches",
        "tests.support",
    ),
}
NEED_BOTH_PACKAGES = {"scripts/compare/library.py", "scripts/run/run_log.py"}
IMPORTED_LATE = {("tiny_llm_ref.__init__", "accelerated.pretrained")}  # when `load` is asked for
# Bottom to top: a module imports only from rooms before its own, or from its own without a circle.
ROWS = (
    "ops",
    "scheduling",
    "kernels",
    "model",
    "generation",
    "batching",
    "paging",
    "structured",
    "engine",
    "simulation",
    "speculation",
    "ranks",
    "server",
    "exercises",
)
MAY_BE_IMPORTED_BY_THE_SCHEDULER = {
    "kernel_runtime.limits",
    "bisect",
    "collections",
    "collections.abc",
    "dataclasses",
    "functools",
    "hashlib",
    "heapq",
    "typing",
    "weakref",
}
DAY_IDS = [f"{day.week}.{day.day}" for day in COURSE.days]


def imported_modules(path: Path) -> set[str]:
    """Modules that a file imports, each by its full name."""
    folders = path.relative_to(ROOT).parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = folders[: len(folders) - node.level + 1] if node.level else ()
            if node.module:
                found.add(".".join([*start, node.module]))
            else:
                found |= {".".join([*start, alias.name]) for alias in node.names}
    return found


def modules_of(folder: str) -> dict[str, set[str]]:
    """The modules in a folder, and those of the repository that each imports."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    return {
        module_name(path.relative_to(ROOT)): set(filter(is_module, imported_modules(path))) for path in paths
    }


def is_module(name: str) -> bool:
    return ROOT.joinpath(*name.split(".")).with_suffix(".py").is_file()


@pytest.mark.parametrize(("folder", "allowed"), PACKAGES.items())
def test_packages_import_only_what_is_below_them(folder: str, allowed: tuple[str, ...]) -> None:
    for module, imported in modules_of(folder).items():
        if folder == "scripts" and module.startswith("scripts.author."):
            continue  # a row of its own
        above = {name for name in imported if not name.startswith((folder.replace("/", "."), *allowed))}
        above -= {name for importer, name in IMPORTED_LATE if importer == module}
        if folder != "scripts/author":
            above |= {name for name in imported if name.startswith("scripts.author.")}
        assert not above, module


def test_everything_outside_says_tiny_llm_whichever_package_that_is() -> None:
    folders = ("accelerated", "http_server", "scripts", "benches", "tests")
    paths = {
        path.relative_to(ROOT).as_posix(): path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
    }
    tops = {name: {each.split(".")[0] for each in imported_modules(path)} for name, path in paths.items()}
    assert {name for name, found in tops.items() if "tiny_llm_ref" in found} == NEED_BOTH_PACKAGES


def test_no_modules_import_each_other_in_a_circle() -> None:
    folders = ("kernel_runtime", "tiny_llm_ref", "accelerated", "http_server", "scripts", "benches", "tests")
    graph = {name: imported for folder in folders for name, imported in modules_of(folder).items()}
    assert len(graph) > 300
    TopologicalSorter(graph).prepare()  # which raises CycleError


def test_every_folder_has_a_row() -> None:
    modules = {path.relative_to(REFERENCE).with_suffix("").parts[0] for path in source_files(REFERENCE)}
    assert {*ROWS} == modules - {"__init__"}


def test_imports_are_found_in_full() -> None:
    found = imported_modules(REFERENCE / "engine" / "engine.py")
    assert {"time", "kernel_runtime.closable", "tiny_llm_ref.model.qwen3"} <= found
    assert {"tiny_llm_ref.scheduling.scheduler", "tiny_llm_ref.scheduling.policy"} <= found


@pytest.mark.parametrize("folder", ROWS)
def test_modules_import_only_from_rows_below(folder: str) -> None:
    allowed = {*ROWS[: ROWS.index(folder) + 1]}
    for path in (REFERENCE / folder).rglob("*.py"):
        names = [name.split(".") for name in imported_modules(path)]
        assert {name[1] for name in names if name[0] == "tiny_llm_ref"} <= allowed, path


@pytest.mark.parametrize("path", sorted((REFERENCE / "scheduling").glob("*.py")), ids=lambda path: path.stem)
def test_the_scheduler_imports_no_model_no_clock_and_no_io(path: Path) -> None:
    imported = imported_modules(path)
    ours = {name for name in imported if name.startswith("tiny_llm_ref.scheduling.")}
    assert imported - ours <= MAY_BE_IMPORTED_BY_THE_SCHEDULER
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"open", "print", "input", "__import__"}


def test_all_lists_every_public_name_once() -> None:
    imported = {
        name
        for name, value in vars(tiny_llm).items()
        if not name.startswith("_") and name != "TYPE_CHECKING" and not isinstance(value, ModuleType)
    }
    assert sorted(tiny_llm.__all__) == sorted({*imported, "load"})
    assert callable(tiny_llm.load)


@pytest.mark.parametrize("day", COURSE.days, ids=DAY_IDS)
def test_symbols_of_the_map_exist(day: Day) -> None:
    for task in day.tasks:
        for symbol in task.symbols:
            path, dotted = find_symbol(symbol, REFERENCE)
            if not is_python(path):
                assert definition_of(path, (REFERENCE / path).read_text(encoding="utf-8"), dotted), symbol
                continue
            found = importlib.import_module(f"tiny_llm.{module_name(path)}")
            for name in dotted.split("."):
                found = getattr(found, name)


def test_what_is_mentioned_is_in_the_starter() -> None:
    reference, starter = read_reference(), starter_of(COURSE)
    gone = {path: defined(path, reference[path]) - defined(path, starter[path]) for path in reference}
    in_code = {path: set(re.findall(r"\w+", source)) for path, source in starter.items()}
    assert {path: names & in_code[path] for path, names in gone.items() if names & in_code[path]} == {}
    missing = set().union(*gone.values()).difference(*in_code.values())
    for path in ROOT.glob("book/src/**/*.md"):
        quoted = " ".join(re.findall(r"`([^`\n]+)`", path.read_text(encoding="utf-8")))
        assert missing & set(re.findall(r"\w+", quoted)) == set(), path
    for path in ROOT.glob("course/hints/*.toml"):  # which may suggest a helper
        words = set(re.findall(r"\b[A-Z_\d]+\b", path.read_text(encoding="utf-8")))
        assert missing & words == set(), path


def defined(path: Path, source: str) -> set[str]:
    """What a source defines, without the classes in front."""
    return {
        name.rpartition(".")[2]
        for chunk in split(path, source)
        if chunk.kind in KINDS
        for name in chunk.names
    }


@pytest.mark.parametrize("day", COURSE.days, ids=DAY_IDS)
def test_every_task_has_tests_and_every_test_a_task(day: Day) -> None:
    source = day.test_file.read_text(encoding="utf-8")
    names = re.findall(r"^def (test_\w+)", source, flags=re.MULTILINE)
    numbers = [re.match(r"test_task_(\d+)_", name) for name in names]
    assert all(numbers), [name for name, number in zip(names, numbers, strict=True) if not number]
    assert {int(number[1]) for number in numbers if number} == {task.number for task in day.tasks}


@pytest.mark.parametrize("day", load_course().days, ids=lambda day: f"{day.week}.{day.day}")
def test_a_day_keeps_to_its_budget_of_lines(day: Day) -> None:
    files = [
        day.test_file,
        *(file for kind in ("wrong", "hints") for file in (ROOT / "course" / kind).glob(f"{day.stem}.*")),
    ]
    assert len(files) == 3
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files) <= 3000
