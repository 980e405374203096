"""What counts on a day: all that could change what its tests say, and no more of the package than that."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.course import ROOT, load_course
from scripts.learn import influences
from scripts.learn.influences import FILES, FOLDERS, Influences, common_digest
from scripts.sources.files import Sources, read_reference, write
from scripts.sources.render import render

COURSE = load_course()
DAY = COURSE.day(1, 1)
COUNTED = [
    "course/course.toml",
    "kernel_runtime/emulator/metal.h",
    "models/qwen3-kjv-4m/model.safetensors",
    "pdm.lock",
    "pyproject.toml",
    "scripts/sources/files.py",
    "tests/__init__.py",
    "tests/conftest.py",
    "tests/days/test_week_1_day_1.py",
    "tests/support/check.py",
    "tiny_llm_ref/ops/basics.py",
]


@pytest.fixture(scope="module")
def starter() -> Sources:
    return render(())


def changed(sources: Sources, path: str, end: str) -> Sources:
    """The package with lines added to a file."""
    return {**sources, Path(path): sources[Path(path)] + end}


@pytest.mark.parametrize("name", COUNTED)
def test_every_file_of_tests_and_tools_counts(name: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    for each in COUNTED:
        write({Path(each): "before"}, root)
    before = common_digest(root)
    assert common_digest(root) == before
    (root / name).write_text("after")
    assert common_digest(root) != before
    (root / name).unlink()
    assert common_digest(root) != before


@pytest.mark.parametrize("name", ["TINY_LLM_THREADS", "MLX_ENABLE_TF32", "CXX", "PYTEST_ADDOPTS"])
def test_switches_count(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    influences.machine.cache_clear()
    before = influences.machine()
    monkeypatch.setenv(name, "3")
    influences.machine.cache_clear()
    assert influences.machine() != before
    influences.machine.cache_clear()


@pytest.mark.parametrize(
    ("path", "end", "forgotten", "kept"),
    [
        ("ops/basics.py", "\n", [(1, 1), (1, 4), (3, 5)], [(1, 7)]),
        (
            "serving/scheduler.py",
            "\n\ndef mine() -> int:\n    return 3\n",
            [(3, 1), (3, 5)],
            [(1, 1), (2, 7)],
        ),
        ("serving/scheduler.py", "\nmine()\n", [(1, 1), (2, 7), (3, 5)], []),
        ("serving/scheduler.py", "\nNUMBER = mine()\n", [(1, 1), (2, 7), (3, 5)], []),
        ("serving/scheduler.py", "\nmx.softmax = None\n", [(1, 1), (2, 7)], []),
        ("kernels/cpu/dequantize.cpp", "\n", [(2, 3), (2, 5)], [(1, 1), (1, 7)]),
        ("__init__.py", "\n", [(1, 1), (1, 7), (3, 5)], []),
    ],
)
def test_a_day_is_forgotten_with_a_file_that_counts(
    path: str, end: str, forgotten: list[tuple[int, int]], kept: list[tuple[int, int]], starter: Sources
) -> None:
    before, after = Influences(starter), Influences(changed(starter, path, end))
    for where in forgotten:
        assert before.digest(COURSE.day(*where)) != after.digest(COURSE.day(*where)), where
    for where in kept:
        assert before.digest(COURSE.day(*where)) == after.digest(COURSE.day(*where)), where


@pytest.mark.parametrize(
    "lines",
    [
        "from ..serving.scheduler import Scheduler\n",
        "from tiny_llm.serving import scheduler\n",
        "from ..serving import (\n    scheduler,\n)\n",
        "from .. import Scheduler\n",
        "from .. import serving\n",
        "import tiny_llm\n",
        "import tiny_llm.ops.norm\n",
        "import tiny_llm.serving.scheduler as other\n",
        "def f():\n    from tiny_llm import Scheduler\n",
        "import importlib\n",
        "def f():\n    return __import__('tiny_llm.serving.scheduler')\n",
        "import sys\n\ndef f():\n    return sys.modules\n",
    ],
)
def test_what_a_module_may_reach_counts(lines: str, starter: Sources) -> None:
    files = Influences(changed(starter, "ops/basics.py", f"\n{lines}")).files(DAY)
    assert "tiny_llm/serving/scheduler.py" in files
    assert "tiny_llm/serving/scheduler.py" not in Influences(starter).files(DAY)


def test_what_runs_at_import_counts_with_all_that_it_imports(starter: Sources) -> None:
    files = Influences(
        changed(starter, "serving/scheduler.py", "\nfrom .priority import mine\n\nmine()\n")
    ).files(DAY)
    assert "tiny_llm/serving/priority.py" in files
    assert "tiny_llm/serving/priority.py" not in Influences(starter).files(DAY)


SPY = """
import json, sys, threading
import pytest
from scripts.course import ROOT
opened, called = set(), set()
sys.addaudithook(lambda event, args: opened.add(str(args[0])) if event == "open" else None)
def profile(frame, event, arg):
    if event == "call" and frame.f_code.co_flags & 2:
        called.add(frame.f_code.co_filename)
threading.setprofile(profile)
sys.setprofile(profile)
code = pytest.main([*sys.argv[2:], "--ref", "-p", "no:xdist"])
sys.setprofile(None)
json.dump([int(code), sorted(opened), sorted(called)], open(sys.argv[1], "w"))
"""


def test_what_a_day_opens_and_calls_counts(tmp_path: Path) -> None:
    day = COURSE.day(1, 4)
    command = [sys.executable, "-c", SPY, str(tmp_path / "spied"), str(day.test_file)]
    subprocess.run(command, cwd=ROOT, capture_output=True, timeout=300)
    code, opened, called = json.loads((tmp_path / "spied").read_text())
    assert code == 0
    counted = Influences(read_reference()).files(day)
    package = {
        path.replace(str(ROOT), "").removeprefix("/tiny_llm_ref/")
        for path in called
        if "/tiny_llm_ref/" in path
    }
    assert package
    assert {f"tiny_llm/{path}" for path in package} <= counted
    sources = {re.sub(r"__pycache__/(\w+)\..*", r"\1.py", path) for path in opened}
    files = {Path(path).relative_to(ROOT).as_posix() for path in sources if path.startswith(f"{ROOT}/")}
    project = {
        path for path in files if re.match(r"(tests|scripts|course|kernel_runtime|models|benches)/", path)
    }
    assert {"tests/conftest.py", "tests/support/check.py", "scripts/packages.py"} <= project
    assert {path for path in project if not path.startswith((*FOLDERS, *FILES))} == set()
