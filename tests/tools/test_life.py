"""No request takes a longer way than the record says, which the book shows."""

import copy
import json
from pathlib import Path

import pytest

from scripts.author.record_life import FILE, growth, trace_life
from scripts.book.life import Life, life_table, read_life
from scripts.book.problems import ChapterError
from scripts.sources.functions import count_code, function_at, functions_of

SOURCE = '''"""A module."""

import functools


class Outer:
    """A class."""

    @functools.cache
    def method(self) -> list[int]:
        """Return two numbers.

        They are small.
        """

        def inner() -> int:
            # one line of code
            return 1

        return [inner(), (lambda: 2)()]


async def other() -> None: ...
'''


@pytest.fixture
def recorded() -> Life:
    return read_life(FILE)


def test_the_way_is_no_longer_than_recorded(recorded: Life) -> None:
    life = trace_life()
    assert growth(recorded, life) == ""
    for name, way in life.items():  # or this test could not fail
        files = {stop["file"] for stop in recorded[name]}
        assert len(way) > 0.8 * len(files), f"the trace of the {name} has lost most of its files"


def test_growth_is_named(recorded: Life) -> None:
    life = copy.deepcopy(recorded)
    life["request"][3]["functions"].append("detour")
    life["step"].append({"file": "server/detour.py", "threads": ["engine"], "functions": ["far", "wide"]})
    message = growth(recorded, life)
    assert f"{life['request'][3]['file']}: detour (of the request)" in message
    assert "server/detour.py: far, wide (of the step)" in message
    assert growth(life, recorded) == ""


def test_the_step_is_a_part_of_the_request(recorded: Life) -> None:
    assert growth({"step": recorded["request"]}, {"step": recorded["step"]}) == ""
    assert "Engine.step" in recorded["step"][0]["functions"]
    assert all(stop["threads"] == ["engine"] for stop in recorded["step"])
    assert any(stop["file"].endswith(".cpp") for stop in recorded["step"]), "no kernel was launched"


def test_a_function_of_each_line(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(SOURCE)
    assert [each.name for each in functions_of(file)] == ["Outer.method", "Outer.method.inner", "other"]
    of_line = {text: function_at(file, number) for number, text in enumerate(SOURCE.split("\n"), 1)}
    assert of_line["    @functools.cache"] == "Outer.method"
    assert of_line["            return 1"] == "Outer.method.inner"
    assert of_line["        return [inner(), (lambda: 2)()]"] == "Outer.method"
    assert of_line["import functools"] is None
    assert count_code(file, ["Outer.method.inner"]) == 2
    assert count_code(file, ["Outer.method", "Outer.method.inner"]) == 5  # what lies within counts once


def test_the_table_has_the_totals_of_the_record(recorded: Life) -> None:
    for name, way in recorded.items():
        table = life_table(FILE, name)
        num_functions = sum(len(stop["functions"]) for stop in way)
        assert table.startswith(f"**{len(way)} files, {num_functions} functions, ")
        assert table.count("<details>") == len(way)
        assert all(f"<code>{stop['file']}</code>" in table for stop in way)


def test_what_no_longer_exists_is_refused(recorded: Life, tmp_path: Path) -> None:
    file = tmp_path / "life.json"
    with pytest.raises(ChapterError, match=r"no record life\.json"):
        life_table(file, "step")
    file.write_text(json.dumps(recorded))
    with pytest.raises(ChapterError, match="choose one of request, step"):
        life_table(file, "detour")
    recorded["step"][0]["functions"].append("gone")
    recorded["step"][1]["file"] = "gone.py"
    file.write_text(json.dumps(recorded))
    with pytest.raises(ChapterError, match=r"gone of .*, gone\.py: record it again"):
        life_table(file, "step")
