"""Which tests are repeated as on a machine with a GPU."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from scripts.course import ROOT
from tests.platforms.gpu_default import ENVIRONMENT
from tests.platforms.repeat_on_gpu import cover, places_by_test


def test_each_place_is_reached_so_many_times_or_as_often_as_any_test_does() -> None:
    reached = {f"test {number}": {f"place {number % 7}", f"place {number % 5}"} for number in range(40)}
    reached["rare"] = {"a place that one test reaches", "place 0"}
    chosen = cover(reached, 3)
    times = Counter(place for test in chosen for place in reached[test])
    assert times.pop("a place that one test reaches") == 1
    assert min(times.values()) >= 3
    assert len(times) == 7
    assert len(chosen) < len(reached) / 2


def test_small_tests_come_first() -> None:
    assert cover({"large": {"a", "b", "c"}, "small": {"a"}}, 1) == ["small", "large"]
    assert cover({"large": {"a", "b"}, "small": {"a"}, "other": {"b"}}, 1) == ["other", "small"]


def test_places_are_read_by_test(tmp_path: Path) -> None:
    file = tmp_path / "asked.txt"
    file.write_text("a.py:1 < b.py:2\ttest_x[1\t2]\na.py:1 < b.py:2\ttest_y\nc.py:3\ttest_y\n")
    assert places_by_test(file) == {
        "test_x[1\t2]": {"a.py:1 < b.py:2"},
        "test_y": {"a.py:1 < b.py:2", "c.py:3"},
    }


def test_places_are_noted_although_the_cpu_is_chosen(tmp_path: Path) -> None:
    """As on a Mac, whose default device would be the GPU otherwise."""
    file = tmp_path / "asked.txt"
    environment = {"ASKED_FOR_DEVICE": str(file), "TINY_LLM_DEVICE": "cpu", **ENVIRONMENT}
    test = "tests/days/test_week_3_day_3.py::test_task_4_the_attention_that_is_given"
    command = [sys.executable, "-m", "pytest", "-q", "--ref", test]
    result = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout
    assert list(places_by_test(file)) == [test]
