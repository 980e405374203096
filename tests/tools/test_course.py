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
from scripts.sources.files import find_symbol, is_python, module_name, source_files
from scripts.sources.symbols import definition_of

COURSE = load_course()
REFERENCE = ROOT / "tiny_llm_ref"
# Bottom to top: the packages of the repository, and which others each may import.
PACKAGES = {
    "kernel_runtime": (),
    "tiny_llm_ref": ("kernel_runtime",),
    "scripts": ("kernel_runtime", "tiny_llm"),
    "benches": ("kernel_runtime", "tiny_llm", "scripts"),
    "tests/support": ("kernel_runtime", "tiny_llm", "scripts"),
    "scripts/author": ("kernel_runtime", "tiny_llm", "scripts", "benches", "tests.support"),
}
# Bottom to top: a module imports only from folders before its own, or from its own without a circle.
ROWS = ("ops", "kernels", "model", "given", "generation", "batching", "serving")
# Bottom to top within the engine; those of the first row see only numbers: no model, no clock, no I/O.
ROWS_OF_SERVING = [
    {
        "sequence",
        "given.scheduler_output",
        "given.policy",
        "priority",
        "given.blocks",
        "block_manager",
        "block_hashes",
        "given.cache_salts",
        "prefix_cache",
        "scheduler",
    },
    {"closed_forms", "cost_model", "latency_target", "simulator", "given.serving_metrics"},
    {
        "paged_kv_cache",
        "given.pool",
        "forward_batch",
        "quantized_kv_pool",
        "quantized_batch",
        "given.best_quantized_attention",
        "given.token_counts",
        "structured.constraint",
        "structured.masks",
        "given.deep_stack",
        "given.json_formats",
        "given.json_whitespace",
        "given.grammars",
        "given.best_mask",
        "given.constraints",
        "given.adjusted_logits",
        "given.sampling_batch",
        "batch_sampler",
        "given.best_sampler",
        "dense_runner",
        "model_runner",
        "given.memory",
        "given.default_blocks",
        "given.engine_request",
        "engine",
        "given.execution",
        "in_turn",
        "given.overlapped",
    },
    {
        "speculation.prompt_lookup",
        "speculation.verification",
        "speculation.rejection",
        "speculation.draft_model",
        "speculation.draft_length",
        "speculation.with_drafts",
        "given.drafter",
        "given.lookup_drafter",
        "given.draft_blocks",
        "given.draft_runner",
        "given.adaptive_drafter",
        "given.draft_cost",
        "given.grammar_aware",
        "given.verifying_runner",
        "structured.grammar_drafter",
    },
    {
        "ranks.follower",
        "ranks.given.guarded",
        "ranks.given.run_rank",
        "ranks.given.warm_up",
        "ranks.leading_model",
        "ranks.message",
        "ranks.watchdog",
    },
    {  # of the server, without the web
        "server.admission",
        "server.capacity",
        "server.disconnects",
        "server.engine_thread",
        "server.given.engine_meter",
        "server.given.mailbox",
        "server.given.thread_end",
        "server.given.thread_law",
        "server.recovery",
        "server.text_increments",
    },
    {
        "server.given.access",
        "server.given.anthropic_chat",
        "server.given.anthropic_endpoint",
        "server.given.anthropic_events",
        "server.given.anthropic_fields",
        "server.given.app",
        "server.given.body",
        "server.given.call_formats",
        "server.given.chat",
        "server.given.completions",
        "server.given.control_tokens",
        "server.given.config",
        "server.given.conversation",
        "server.given.engine_client",
        "server.given.engine_factory",
        "server.given.errors",
        "server.given.event_stream",
        "server.given.feed",
        "server.given.fields",
        "server.given.ignored_fields",
        "server.given.job",
        "server.given.json_calls",
        "server.given.openapi",
        "server.given.page",
        "server.given.params",
        "server.given.pieces",
        "server.given.record",
        "server.given.response_endpoint",
        "server.given.response_events",
        "server.given.response_fields",
        "server.given.completion_objects",
        "server.given.run_server",
        "server.given.serve_completion",
        "server.given.server",
        "server.given.prometheus_metrics",
        "server.given.slow_heads",
        "server.given.speculation",
        "server.given.answer_format",
        "server.given.text_codec",
        "server.given.token_texts",
        "server.given.thoughts",
        "server.given.tokenize",
        "server.given.tool_calls",
        "server.given.xml_calls",
    },
]
PACKAGES_OF_SERVING = {
    "__init__",
    "given.__init__",
    "speculation.__init__",
    "structured.__init__",
    "ranks.__init__",
    "ranks.given.__init__",
    "server.__init__",
    "server.given.__init__",
}
MAY_BE_IMPORTED_BY_THE_SCHEDULER = {
    "kernel_runtime.limits",
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
        if folder != "scripts/author":
            above |= {name for name in imported if name.startswith("scripts.author.")}
        assert not above, module


def test_no_modules_import_each_other_in_a_circle() -> None:
    folders = ("kernel_runtime", "tiny_llm_ref", "scripts", "benches", "tests")
    graph = {name: imported for folder in folders for name, imported in modules_of(folder).items()}
    assert len(graph) > 300
    TopologicalSorter(graph).prepare()  # which raises CycleError


def test_every_folder_has_a_row() -> None:
    modules = {path.relative_to(REFERENCE).with_suffix("").parts[0] for path in source_files(REFERENCE)}
    assert {*ROWS} == modules - {"__init__"}


def test_imports_are_found_in_full() -> None:
    found = imported_modules(REFERENCE / "serving" / "engine.py")
    assert {"time", "kernel_runtime.closable", "tiny_llm_ref.model.qwen3"} <= found
    assert {"tiny_llm_ref.serving.scheduler", "tiny_llm_ref.serving.given.policy"} <= found


@pytest.mark.parametrize("folder", ROWS)
def test_modules_import_only_from_rows_below(folder: str) -> None:
    allowed = {*ROWS[: ROWS.index(folder) + 1]}
    for path in (REFERENCE / folder).rglob("*.py"):
        names = [name.split(".") for name in imported_modules(path)]
        assert {name[1] for name in names if name[0] == "tiny_llm_ref"} <= allowed, path


def modules_of_serving(names: set[str]) -> set[str]:
    """Those of some modules in full that lie in the engine, each by its name within it."""
    engine = "tiny_llm_ref.serving."
    return {name.removeprefix(engine) for name in names if name.startswith(engine)}


def test_every_module_of_serving_has_a_row() -> None:
    modules = {
        module_name(path.relative_to(REFERENCE / "serving")) for path in source_files(REFERENCE / "serving")
    }
    assert set().union(*ROWS_OF_SERVING) == modules - PACKAGES_OF_SERVING


@pytest.mark.parametrize("module", sorted(set().union(*ROWS_OF_SERVING)))
def test_modules_of_serving_import_only_from_rows_below(module: str) -> None:
    (row,) = (number for number, names in enumerate(ROWS_OF_SERVING) if module in names)
    assert modules_of_serving(imported_modules(file_of_serving(module))) <= set().union(
        *ROWS_OF_SERVING[: row + 1]
    )


def file_of_serving(module: str) -> Path:
    return REFERENCE.joinpath("serving", *module.split(".")).with_suffix(".py")


@pytest.mark.parametrize("module", sorted(ROWS_OF_SERVING[0]))
def test_the_scheduler_imports_no_model_no_clock_and_no_io(module: str) -> None:
    imported = imported_modules(file_of_serving(module))
    ours = {name for name in imported if name.startswith("tiny_llm_ref.")}
    assert imported - ours <= MAY_BE_IMPORTED_BY_THE_SCHEDULER
    assert len(modules_of_serving(ours) & ROWS_OF_SERVING[0]) == len(ours)
    for node in ast.walk(ast.parse(file_of_serving(module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
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
            path, dotted = find_symbol(symbol, REFERENCE)
            if not is_python(path):
                assert definition_of(path, (REFERENCE / path).read_text(encoding="utf-8"), dotted), symbol
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


@pytest.mark.parametrize("day", load_course().days, ids=lambda day: f"{day.week}.{day.day}")
def test_a_day_keeps_to_its_budget_of_lines(day: Day) -> None:
    files = [
        day.test_file,
        *(file for kind in ("wrong", "hints") for file in (ROOT / "course" / kind).glob(f"{day.stem}.*")),
    ]
    assert len(files) == 3
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files) <= 3000
