"""The map, the layers of the reference and its public face are what they say they are."""

import ast
import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

import tiny_llm
from scripts.course import ROOT, Day, load_course
from scripts.languages import source_of
from scripts.render import is_python, module_name, source_files
from scripts.render_c import has_function

COURSE = load_course()
REFERENCE = ROOT / "tiny_llm_ref"
# Bottom to top: a module imports only from rows before its own, or from its own row without a circle.
# A folder is one module here: what is in it may import the rest of it.
ROWS = [
    {
        "basics",
        "attention",
        "flash_attention",
        "paged_attention",
        "paged_check",
        "positional_encoding",
        "layer_norm",
        "packing",
        "quantize",
        "native",
        "device",
        "kernels",
    },
    {"kv_cache"},
    {
        "mlp",
        "accelerate",
        "fused_parts",
        "embedding",
        "config",
        "config_check",
        "checkpoint",
        "qwen3",
        "loader",
        "packed_loader",
        "pretrained",
        "roofline",
    },
    {"sampler", "generate"},
    {"closable", "answer", "request", "batch", "chunked_prefill", "chunk_policy", "prefill_metrics"},
    {"serving"},
]
# Bottom to top within the engine; those of the first row see numbers alone: no model, no clock, no I/O.
ROWS_OF_SERVING = [
    {
        "sequence",
        "scheduled",
        "policy",
        "priority",
        "blocks",
        "block_manager",
        "prefix",
        "prefix_cache",
        "scheduler",
    },
    {"closed_forms", "cost_model", "latency_target", "simulator", "metrics"},
    {"paged_kv_cache", "forward_batch", "runner", "model_runner", "engine_request", "engine"},
]
MAY_BE_IMPORTED_BY_THE_SCHEDULER = {
    "bisect",
    "collections",
    "collections.abc",
    "dataclasses",
    "functools",
    "heapq",
    "typing",
    "weakref",
}
DAY_IDS = [f"{day.week}.{day.day}" for day in COURSE.days]


def imported_modules(path: Path) -> set[str]:
    """Modules of the package that a file imports, by `from .module import name` or `from . import module`."""
    nodes = ast.walk(ast.parse((REFERENCE / path).read_text(encoding="utf-8")))
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level:
            folders = path.parts[: len(path.parts) - node.level]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found |= {(folders or tuple(name.split(".")))[0] for name in names}
    return found


def test_every_module_has_a_row() -> None:
    modules = {path.relative_to(REFERENCE).with_suffix("").parts[0] for path in source_files(REFERENCE)}
    assert set().union(*ROWS) == modules - {"__init__"}


def test_imports_are_found_in_folders_too() -> None:
    assert imported_modules(Path("kernels/cpu_kernel.py")) == {"native"}
    assert {"native", "attention"} <= imported_modules(Path("__init__.py"))


@pytest.mark.parametrize("module", sorted(set().union(*ROWS)))
def test_modules_import_only_from_rows_below(module: str) -> None:
    (row,) = (number for number, names in enumerate(ROWS) if module in names)
    allowed = set().union(*ROWS[: row + 1])
    paths = [path.relative_to(REFERENCE) for path in REFERENCE.rglob("*.py")]
    for path in paths:
        if path.with_suffix("").parts[0] == module:
            assert imported_modules(path) <= allowed, path


def test_every_module_of_serving_has_a_row() -> None:
    modules = {path.stem for path in (REFERENCE / "serving").glob("*.py")}
    assert set().union(*ROWS_OF_SERVING) == modules - {"__init__"}


@pytest.mark.parametrize("module", sorted(set().union(*ROWS_OF_SERVING)))
def test_modules_of_serving_import_only_from_rows_below(module: str) -> None:
    (row,) = (number for number, names in enumerate(ROWS_OF_SERVING) if module in names)
    allowed = set().union(*ROWS_OF_SERVING[: row + 1])
    for node in ast.walk(ast.parse((REFERENCE / "serving" / f"{module}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            assert node.module in allowed, f"{module} imports {node.module}"


@pytest.mark.parametrize("module", sorted(ROWS_OF_SERVING[0]))
def test_the_scheduler_imports_no_model_no_clock_and_no_io(module: str) -> None:
    for node in ast.walk(ast.parse((REFERENCE / "serving" / f"{module}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= MAY_BE_IMPORTED_BY_THE_SCHEDULER
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module in MAY_BE_IMPORTED_BY_THE_SCHEDULER
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 1
            assert node.module in ROWS_OF_SERVING[0]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"open", "print", "input", "__import__"}


def test_all_lists_every_public_name_once() -> None:
    imported = {
        name
        for name, value in vars(tiny_llm).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert sorted(tiny_llm.__all__) == sorted(imported)


@pytest.mark.parametrize("day", COURSE.days, ids=DAY_IDS)
def test_symbols_of_the_map_exist(day: Day) -> None:
    for task in day.tasks:
        for symbol in task.symbols:
            path, dotted = source_of(symbol, REFERENCE)
            if not is_python(path):
                assert has_function((REFERENCE / path).read_text(encoding="utf-8"), dotted), symbol
                continue
            found = importlib.import_module(f"tiny_llm.{module_name(path)}")
            for name in dotted.split("."):
                found = getattr(found, name)


@pytest.mark.parametrize("day", COURSE.days, ids=DAY_IDS)
def test_every_task_has_tests_and_every_test_a_task(day: Day) -> None:
    source = day.test_file.read_text(encoding="utf-8")
    names = re.findall(r"^def (test_\w+)", source, flags=re.MULTILINE)
    numbers = [re.match(r"test_task_(\d+)_", name) for name in names]
    assert all(numbers), [name for name, number in zip(names, numbers, strict=True) if not number]
    assert {int(number[1]) for number in numbers if number} == {task.number for task in day.tasks}
