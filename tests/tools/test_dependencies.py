"""What a day depends on: everything that can change the outcome of its tests, and little else."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.course import ROOT, load_course
from scripts.learn import dependencies
from scripts.learn.dependencies import FILES, FOLDERS, Dependencies, common_digest
from scripts.sources.files import Sources, read_reference, write
from scripts.sources.render import render

COURSE = load_course()
DAY = COURSE.day(1, 1)
COUNTED = [
    "accelerated/accelerate.py",
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
def test_a_day_depends_on_every_file_of_tests_and_tools(name: str, tmp_path: Path) -> None:
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
def test_a_day_depends_on_environment_variables(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_digest_changes(lambda: monkeypatch.setenv(name, "3"), tmp_path)


def test_a_day_depends_on_the_packages_that_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write({Path("METADATA"): "Name: new\nVersion: 1\n"}, tmp_path / "new-1.dist-info")
    check_digest_changes(lambda: monkeypatch.syspath_prepend(str(tmp_path)), tmp_path / "root")


def check_digest_changes(change: Callable[[], object], root: Path) -> None:
    """Fail if what every day depends on has the same digest after a change to the machine."""
    dependencies.machine.cache_clear()
    before = common_digest(root)
    change()
    dependencies.machine.cache_clear()
    assert common_digest(root) != before
    dependencies.machine.cache_clear()


@pytest.mark.parametrize(
    ("path", "end", "forgotten", "kept"),
    [
        ("ops/basics.py", "\n", [(1, 1), (1, 4), (3, 5)], [(1, 7)]),
        (
            "scheduling/scheduler.py",
            "\n\ndef mine() -> int:\n    return 3\n",
            [(3, 1), (3, 5)],
            [(1, 1), (2, 7)],
        ),
        ("scheduling/scheduler.py", "\nmine()\n", [(1, 1), (2, 7), (3, 5)], []),
        ("scheduling/scheduler.py", "\nNUMBER = mine()\n", [(1, 1), (2, 7), (3, 5)], []),
        ("scheduling/scheduler.py", "\nmx.softmax = None\n", [(1, 1), (2, 7)], []),
        ("scheduling/scheduler.py", "\nif True:\n    mine()\n", [(1, 1), (2, 7)], []),
        ("scheduling/scheduler.py", "\nclass Mine:\n    mine()\n", [(1, 1), (2, 7)], []),
        ("scheduling/scheduler.py", "\nA, B = 1, 2\n\n\nasync def mine() -> None: ...\n", [(3, 5)], [(1, 1)]),
        ("server/admission.py", "\nmine()\n", [(3, 7)], [(1, 1), (3, 5)]),
        ("kernels/cpu/dequantize.cpp", "\n", [(2, 3), (2, 5)], [(1, 1), (1, 7)]),
        ("engine/batch_sampler.py", "\n", [(1, 3), (3, 1)], [(1, 1), (1, 2)]),  # by way of accelerated
        ("__init__.py", "\n", [(1, 1), (1, 7), (3, 5)], []),
    ],
)
def test_a_change_is_seen_by_the_days_that_depend_on_it_alone(
    path: str, end: str, forgotten: list[tuple[int, int]], kept: list[tuple[int, int]], starter: Sources
) -> None:
    before, after = Dependencies(starter), Dependencies(changed(starter, path, end))
    for where in forgotten:
        assert before.digest(COURSE.day(*where)) != after.digest(COURSE.day(*where)), where
    for where in kept:
        assert before.digest(COURSE.day(*where)) == after.digest(COURSE.day(*where)), where


@pytest.mark.parametrize(
    "lines",
    [
        "from ..scheduling.scheduler import Scheduler\n",
        "from tiny_llm.scheduling import scheduler\n",
        "from ..serving import (\n    scheduler,\n)\n",
        "from .. import Scheduler\n",
        "from .. import serving\n",
        "import tiny_llm\n",
        "import tiny_llm.ops.norm\n",
        "import tiny_llm.scheduling.scheduler as other\n",
        "def f():\n    from tiny_llm import Scheduler\n",
        "import importlib\n",
        "def f():\n    return __import__('tiny_llm.scheduling.scheduler')\n",
        "import sys\n\ndef f():\n    return sys.modules\n",
    ],
)
def test_a_day_depends_on_whatever_a_module_may_import(lines: str, starter: Sources) -> None:
    files = Dependencies(changed(starter, "ops/basics.py", f"\n{lines}")).files(DAY)
    assert "tiny_llm/scheduling/scheduler.py" in files
    assert "tiny_llm/scheduling/scheduler.py" not in Dependencies(starter).files(DAY)


def test_a_day_depends_on_what_runs_at_import_and_on_its_imports(starter: Sources) -> None:
    files = Dependencies(
        changed(starter, "scheduling/scheduler.py", "\nfrom .priority import mine\n\nmine()\n")
    ).files(DAY)
    assert "tiny_llm/scheduling/priority.py" in files
    assert "tiny_llm/scheduling/priority.py" not in Dependencies(starter).files(DAY)


def test_a_day_depends_on_all_of_a_package_that_runs_code_in_its_init(starter: Sources) -> None:
    assert len(Dependencies(starter).files(DAY)) < len(starter)
    assert len(Dependencies(changed(starter, "__init__.py", "\nmine()\n")).files(DAY)) == len(starter)


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


def test_a_day_depends_on_every_file_that_its_tests_open_or_call(tmp_path: Path) -> None:
    day = COURSE.day(1, 4)
    command = [sys.executable, "-c", SPY, str(tmp_path / "spied"), str(day.test_file)]
    subprocess.run(command, cwd=ROOT, capture_output=True)
    code, opened, called = json.loads((tmp_path / "spied").read_text())
    assert code == 0
    counted = Dependencies(read_reference()).files(day)
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
    assert {"tests/conftest.py", "tests/support/check.py", "scripts/learn/crashes.py"} <= project
    assert {path for path in project if not path.startswith((*FOLDERS, *FILES))} == set()
