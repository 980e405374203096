"""The map, the layers of the reference and its public face are what they say they are."""

import ast
import importlib
import re
from pathlib import Path

import pytest

import tiny_llm
from scripts.course import ROOT, Day, load_course

COURSE = load_course()
REFERENCE = ROOT / "tiny_llm_ref"
# Bottom to top: a module imports only from rows before its own, or from its own row without a circle.
ROWS = [
    {"basics", "attention", "positional_encoding", "layer_norm"},
    {"kv_cache"},
    {"mlp", "embedding", "config", "checkpoint", "qwen3", "loader"},
    {"sampler", "generate"},
    {"request", "batch", "chunked_prefill", "chunk_policy", "prefill_metrics"},
]
DAY_IDS = [f"{day.week}.{day.day}" for day in COURSE.days]


def imported_modules(source: Path) -> set[str]:
    """Modules of the package that a file imports, by `from .module import name`."""
    nodes = ast.walk(ast.parse(source.read_text(encoding="utf-8")))
    return {
        node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module
    }


def test_every_module_has_a_row() -> None:
    modules = {path.stem for path in REFERENCE.glob("*.py")} - {"__init__"}
    assert set().union(*ROWS) == modules


@pytest.mark.parametrize("module", sorted(set().union(*ROWS)))
def test_modules_import_only_from_rows_below(module: str) -> None:
    (row,) = (number for number, names in enumerate(ROWS) if module in names)
    allowed = set().union(*ROWS[: row + 1])
    assert imported_modules(REFERENCE / f"{module}.py") <= allowed


def test_all_lists_every_public_name_once() -> None:
    imported = {name for name in vars(tiny_llm) if not name.startswith("_")}
    modules = {path.stem for path in REFERENCE.glob("*.py")}
    assert sorted(tiny_llm.__all__) == sorted(imported - modules - {"attention"})


@pytest.mark.parametrize("day", COURSE.days, ids=DAY_IDS)
def test_symbols_of_the_map_exist(day: Day) -> None:
    for task in day.tasks:
        for symbol in task.symbols:
            module, *path = symbol.split(".")
            found = importlib.import_module(f"tiny_llm.{module}")
            for name in path:
                found = getattr(found, name)


@pytest.mark.parametrize("day", COURSE.days, ids=DAY_IDS)
def test_every_task_has_tests_and_every_test_a_task(day: Day) -> None:
    source = day.test_file.read_text(encoding="utf-8")
    names = re.findall(r"^def (test_\w+)", source, flags=re.MULTILINE)
    numbers = [re.match(r"test_task_(\d+)_", name) for name in names]
    assert all(numbers), [name for name, number in zip(names, numbers, strict=True) if not number]
    assert {int(number[1]) for number in numbers if number} == {task.number for task in day.tasks}
