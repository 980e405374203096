"""Which tests are repeated as on a machine with a GPU."""

from collections import Counter
from pathlib import Path

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
