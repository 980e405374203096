"""Optional tasks: left out until they are begun or asked for, and a choice of GPU that is made once."""

import os
import sys
from pathlib import Path

import pytest

from scripts.course import Gpu, load_course
from scripts.learn import optional
from scripts.learn.catch_up import task_ids_up_to
from scripts.learn.optional import choose_gpu, chosen_gpu, left_out
from scripts.learn.test import what_is_next
from scripts.sources.files import Sources, read_reference, write
from scripts.sources.render import render
from tests.support.commands import run, run_apart, use_own_memory

pytestmark = pytest.mark.sampled(3, "scripts/learn/", "course/course.toml")
COURSE = load_course()
TASKS = {task.id: task for day in COURSE.days for task in day.tasks}
DAY = ["--week", "1", "--day", "2"]
LONGER = Path("ops/positional_encoding.py")


@pytest.fixture(autouse=True)
def _nothing_is_chosen(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    use_own_memory(tmp_path_factory.mktemp("memory") / "cache", monkeypatch)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(optional.shutil, "which", lambda name: None)


@pytest.fixture(scope="module")
def core() -> Sources:
    """A package with the core alone."""
    return render({name for name, task in TASKS.items() if task.is_core("none")})


def begun(core: Sources) -> Sources:
    """The same with one function of task 1.2.4 written, wrongly."""
    hole = 'raise NotImplementedError("week 1 day 2 task 4: LinearScaling.frequencies is not written yet")'
    assert core[LONGER].count(hole) == 1
    return {**core, LONGER: core[LONGER].replace(hole, "return 3 * frequencies")}


def test_the_choice_is_kept_and_before_it_the_machine_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_gpu() == "none"
    monkeypatch.setattr(optional.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    assert chosen_gpu() == "cuda"
    choose_gpu("metal")
    assert chosen_gpu() == "metal"
    with pytest.raises(ValueError, match="'rocm' is no GPU of the course: choose metal, cuda or none"):
        choose_gpu("rocm")
    assert chosen_gpu() == "metal"


def test_on_a_mac_metal_is_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert chosen_gpu() == "metal"
    with pytest.raises(ValueError, match=r"on a Mac .*: choose metal"):
        choose_gpu("none")


@pytest.mark.parametrize(
    ("gpu", "kernels"),
    [
        ("none", set()),
        ("metal", {"2.3.4", "2.5.2", "3.3.6", "4.1.6"}),
        ("cuda", {"2.3.5", "2.5.3", "3.3.7", "4.1.7"}),
    ],
)
def test_the_kernels_of_the_chosen_gpu_are_core(gpu: Gpu, kernels: set[str]) -> None:
    last = COURSE.days[-1]
    ids = task_ids_up_to(COURSE, f"w{last.week}d{last.day}", gpu)
    assert {name for name in ids if TASKS[name].gpu} == kernels
    assert {name.rpartition(".")[0] for name in ids} == {name.rpartition(".")[0] for name in TASKS}


def test_what_is_begun_is_not_left_out(core: Sources) -> None:
    all_optional = {name for name, task in TASKS.items() if not task.is_core("none")}
    assert left_out(core, "none") == all_optional
    assert left_out(begun(core), "none") == all_optional - {"1.2.4"}
    assert left_out(read_reference(), "none") == set()
    assert left_out(core, "cuda") == all_optional - {"2.3.5", "2.5.3", "3.3.7", "4.1.7"}


def test_next_is_a_core_task() -> None:
    assert what_is_next(COURSE, 1, 2, 3, "none")[0].startswith("next: week 1 day 3 task 1")
    assert what_is_next(COURSE, 2, 3, 3, "cuda")[0].startswith("next: week 2 day 3 task 5")
    assert what_is_next(COURSE, 2, 3, 3, "none")[0].startswith("next: week 2 day 3 task 6")


def outcome_of(sources: Sources, folder: Path, *options: str) -> tuple[int, str]:
    """Exit code and output of the tests of a package, as `pdm run test` starts them."""
    write(sources, folder / "tiny_llm")
    pythonpath = f"pythonpath={folder} {os.getcwd()}"
    result = run_apart("pytest", "-o", pythonpath, "--gpu", "none", *options)
    return result.returncode, result.stdout


def test_tests_of_what_is_left_out_are_skipped_with_a_line(core: Sources, tmp_path: Path) -> None:
    day_2, day_5 = (str(COURSE.day(1, number).test_file) for number in (2, 5))
    code, output = outcome_of(core, tmp_path, day_2, day_5, "-k", "task_4 or task_1")
    assert code == 0, output
    assert output.count("optional") == 1
    assert "that need an optional task: week 1 day 2 task 4: Longer contexts (pdm run test" in output
    code, output = outcome_of(core, tmp_path, day_2, "--task", "4")
    assert code == 1
    assert "is not written yet" in output
    assert outcome_of(begun(core), tmp_path, day_2)[0] == 1


def test_progress_counts_the_core_and_a_day_is_done_when_its_core_is(core: Sources, tmp_path: Path) -> None:
    package = tmp_path / "tiny_llm"
    write(core, package)
    arguments = ["scripts.learn.progress", *DAY, "--package", str(package)]
    for _ in range(2):  # anew, and remembered
        result = run_apart(*arguments)
        assert "Rotary positions  done\n" in result.stdout, result.stdout + result.stderr
        assert "○ 4. Longer contexts: optional\n" in result.stdout
        assert result.stdout.endswith("\n3 of 3 core tasks solved, 0 of 1 optional ones\n")
    write(begun(core), package)
    result = run_apart(*arguments)
    assert "✗ 4. Longer contexts (optional): failing" in result.stdout
    assert "next: week 1 day 2 task 4" in result.stdout


def test_the_search_passes_over_what_is_left_out_unless_asked(core: Sources, tmp_path: Path) -> None:
    package = tmp_path / "tiny_llm"
    write(core, package)
    search = ["scripts.learn.search", *DAY, "--package", str(package)]
    assert run_apart(*search).stdout.splitlines()[-1] == '{"found": null}'
    assert run_apart(*search, "--task", "4").stdout == '{"found": "1.2.4"}\n'
    write(begun(core), package)
    assert run_apart(*search).stdout.splitlines()[-1] == '{"found": "1.2.4"}'


def test_catch_up_fills_the_core_and_all_if_asked(tmp_path: Path) -> None:
    package = tmp_path / "tiny_llm"
    write(render(()), package)
    arguments = ["scripts.learn.catch_up", "--to", "w1d2", "--package", str(package), "--yes"]
    assert run(*arguments).returncode == 0
    source = (package / LONGER).read_text(encoding="utf-8")
    assert "week 1 day 2 task 4:" in source
    assert "week 1 day 2 task 3:" not in source
    assert run(*arguments).stdout.startswith(
        "nothing to fill: every core function up to w1d2 is already written"
    )
    assert run(*arguments, "--all").returncode == 0
    assert "is not written yet" not in (package / LONGER).read_text(encoding="utf-8")
