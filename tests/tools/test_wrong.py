"""Wrong solutions: tied to symbols, written whatever the formatting, and caught."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from scripts.author.sampled import is_taken
from scripts.author.states import OF_ALL_STATES, Starter
from scripts.author.wrong import catcher
from scripts.bank.chosen import changed_files, chosen, concerned
from scripts.bank.entries import BANK, Solution, load_bank, read_entry, undefined_names
from scripts.bank.rebase import entry_text
from scripts.course import ROOT, load_course
from scripts.sandbox import Outcome, Run
from scripts.sources.files import read_reference
from scripts.sources.symbols import Package
from tests.support.commands import run_apart
from tests.support.shelves import FILE, KERNEL, SOURCE, package_of

DAYS = load_course().days
LINEAR = {"task": 1, "misconception": "M.", "symbol": "linear", "find": "x @ w.T", "replace": "x @ w"}


def entry(symbol: str, find: str, replace: str, **others: str) -> Solution:
    return Solution(DAYS[0], 1, "name", symbol, "A belief.", find, replace, **others)


def wrong_code(source: str, symbol: str, find: str, replace: str, near: str = "") -> str:
    found = package_of(source).find(symbol)
    return entry(symbol, find, replace, near=near).edit.code(found)


# --- an entry and its symbol -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["Shelf", "Shelf.put", "first", "LIMIT", "shelf.first", "store.shelf.Shelf.put"]
)
def test_a_symbol_is_found_by_as_much_of_its_name_as_one_likes(name: str) -> None:
    symbol = package_of(SOURCE).find(name)
    assert symbol.key == f"store.shelf.{name.removeprefix('store.').removeprefix('shelf.')}"
    assert name.endswith(package_of(SOURCE).short_name(symbol))


@pytest.mark.parametrize("name", ["put", "helf.put", "gone", "Shelf.gone"])
def test_a_symbol_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"there is no symbol {name}"):
        package_of(SOURCE).find(name)


def test_of_two_symbols_the_module_tells_which() -> None:
    package = Package({FILE: SOURCE, Path("other.py"): SOURCE})
    with pytest.raises(ValueError, match=r"write store\.shelf\.first or other\.first"):
        package.find("first")
    assert package.find("other.first").path == Path("other.py")
    assert {package.short_name(symbol) for symbol in package.by_own_name["first"]} == {
        "shelf.first",
        "other.first",
    }


def test_a_kernel_is_told_by_its_file() -> None:
    package = Package({Path("metal/dot.metal"): KERNEL, Path("cuda/dot.cu"): KERNEL})
    assert package.find("dot.cu.dot").path == Path("cuda/dot.cu")
    assert package.short_name(package.find("dot.metal.dot")) == "dot.metal.dot"


@pytest.mark.parametrize(
    "find",
    [
        "len(self.books) % (LIMIT - 1)",
        "(len(self.books)\n    % (LIMIT - 1))  # why",
        "len(\n    self.books,\n) % (LIMIT - 1)",
        "return len(self.books) % (LIMIT-1)",
    ],
)
def test_formatting_makes_no_difference(find: str) -> None:
    replace = "return 0" if find.startswith("return") else "0"
    assert wrong_code(SOURCE, "Shelf.put", find, replace).splitlines()[-1] == "    return 0"


def test_docstrings_and_comments_stand_between_nothing() -> None:
    find = "def put(self, book: str, count: int=1) -> int:\n    for place in range(count):"
    replace = "def put(self, book: str, count: int=1) -> int:\n    for place in range(2):"
    assert "range(2)" in wrong_code(SOURCE, "Shelf.put", find, replace)


def test_lines_keep_their_indent() -> None:
    find = "self.books.append((book, place))"
    code = wrong_code(SOURCE, "Shelf.put", find, f"if place:\n    {find}")
    assert "        if place:\n            self.books.append((book, place))\n    return" in code


def test_a_block_is_not_the_same_lines_outside_of_it() -> None:
    find = "for place in range(count):\n    self.books.append((book, place))\n    return len(self.books)"
    with pytest.raises(ValueError, match="matches 0 times"):
        wrong_code(SOURCE, "Shelf.put", find, "pass")


def test_a_renamed_variable_is_found_and_renamed_in_the_replacement() -> None:
    renamed = SOURCE.replace("place", "i").replace("count", "times")
    code = wrong_code(renamed, "Shelf.put", "self.books.append((book, place))", "self.books.append(place)")
    assert "self.books.append(i)" in code
    code = wrong_code(renamed, "Shelf.put", "(book, place)", "(book, count)", near="range(count)")
    assert "self.books.append((book, times))" in code


@pytest.mark.parametrize(
    "find", ["shelf.append((book, place))", "append((place, place))", "(spot, book, place)"]
)
def test_only_a_variable_may_have_another_name_and_only_one(find: str) -> None:
    with pytest.raises(ValueError, match="matches 0 times"):
        wrong_code(SOURCE.replace("place", "i"), "Shelf.put", find, "None")


@pytest.mark.parametrize(("find", "near"), [("x - y", ""), ("x - 1", "y - 2")])
def test_two_variables_of_an_edit_are_never_one_of_the_code(find: str, near: str) -> None:
    source = "def f(a, b):\n    c = a - a\n    return (c - 1) * (c - 2)\n"
    with pytest.raises(ValueError, match="matches 0 times"):
        wrong_code(source, "f", find, "x", near)
    other = source.replace("a - a", "a - b").replace("c - 2", "b - 2")
    assert wrong_code(other, "f", find, "x + 3", near) != other


def test_an_edit_that_fits_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="matches 3 times"):
        wrong_code(SOURCE, "Shelf.put", "self", "None")


def test_keywords_of_arguments_are_no_variables() -> None:
    source = "def f(axis):\n    return g(axis=axis)\n"
    renamed = source.replace("axis)", "dim)")
    assert wrong_code(renamed, "f", "g(axis=axis)", "g(axis=-axis)").endswith("g(axis=-dim)")


def test_fields_of_a_string_are_code() -> None:
    source = "def f(name):\n    return f'{name}.weight'\n"
    renamed = source.replace("name", "key")
    assert "{key}.bias" in wrong_code(renamed, "f", 'f"{name}.weight"', 'f"{name}.bias"')


def test_kernels_are_edited_like_python() -> None:
    package = package_of(KERNEL.replace("sum", "total").replace("{\n", "\n{\n"), Path("dot.cu"))
    symbol = package.find("dot.cu.dot")
    code = entry(
        symbol.own_name, "float sum = 0; for (int i = 0;", "float sum = 1;\n#pragma unroll\nfor (int i = 0;"
    )
    assert "float total = 1;\n#pragma unroll\nfor (int i = 0;" in code.edit.code(symbol)


def test_a_body_is_the_whole_definition() -> None:
    symbol = package_of(SOURCE).find("first")
    changed = Solution(DAYS[0], 1, "n", "first", "m", body="def first(books):\n    return books[-1]")
    assert symbol.replaced(changed.edit.code(symbol)).endswith("def first(books):\n    return books[-1]\n")


@pytest.mark.parametrize(
    ("replace", "sentence"),
    [
        ("boks[0]", "nothing defines boks"),
        ("books[0", "never closed"),
        ("LIMITS[0]", "nothing defines LIMITS"),
    ],
)
def test_what_fails_for_another_reason_is_no_misconception(replace: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=rf"^1\.1\.1 name: .*{sentence}"):
        entry("first", "books[0]", replace).run(package_of(SOURCE))


def test_names_are_defined_by_scopes_modules_and_python() -> None:
    source = "import a.b as c\nX = [y for y in range(3)]\ndef f(z):\n    def g():\n        return z, c, X\n"
    assert undefined_names(FILE, source) == set()
    assert undefined_names(FILE, source.replace("return z", "return zz")) == {"zz"}
    assert undefined_names(FILE, source.replace("in range", "in ranges")) == {"ranges"}


@pytest.mark.parametrize(
    "fields",
    [{}, {"find": "a", "body": "b"}, {"find": "a", "file": "x.py"}, {"find": "a", "style": "It is right."}],
)
def test_an_entry_needs_one_form(fields: Mapping[str, str]) -> None:
    with pytest.raises(ValueError, match="name"):
        read_entry(DAYS[0], {"task": 1, "name": "name", "misconception": "M.", "symbol": "first", **fields})


def test_every_entry_of_the_bank_can_be_run() -> None:
    package = Package(read_reference())
    for each in load_bank(DAYS):
        assert each.run(package).name == each.id


def test_ids_are_unique_and_a_task_has_at_most_eight() -> None:
    ids = [each.id for each in load_bank(DAYS)]
    assert len(ids) == len(set(ids))
    assert {file.name for file in BANK.glob("week*")} == {f"{day.stem}.toml" for day in DAYS}
    tasks = [(each.day, each.task) for each in load_bank(DAYS)]
    assert max(map(tasks.count, tasks)) <= 8
    assert {task.id for day in DAYS for task in day.tasks} == {name.split()[0] for name in ids}


# --- caught ------------------------------------------------------------------------------------------------


def outcome(**failed: str) -> Outcome:
    return Outcome("x", failed={name.replace("__", "::"): message for name, message in failed.items()})


def test_what_fails_without_being_tested_is_not_caught() -> None:
    assert catcher(outcome()) is None
    assert catcher(outcome(file="it cannot be imported")) is None
    assert catcher(outcome(file__test_a="softmax is not written yet")) is None
    assert catcher(outcome(file__test_a="TimeoutError: still running after 100 s")) is None
    assert catcher(outcome(file__test_a="NameError: name 'x'", file__test_b="expected 1")) == "file::test_b"


def test_the_command_finds_the_tests_that_catch_and_tries_them_first(tmp_path: Path) -> None:
    """In a process of its own, since it forks."""
    entries = [{**LINEAR, "name": f"number-{i}"} for i in range(2)]
    entries.append({**LINEAR, "name": "harmless", "replace": "x @ w.T + 0"})
    text = "\n".join(f"[[wrong]]\n{entry_text(each)}" for each in entries)
    (tmp_path / "week_1_day_1.toml").write_text(text, encoding="utf-8")
    result = run_apart("scripts.author", "wrong", "--bank", str(tmp_path))
    assert result.stdout.splitlines() == [
        "not caught: 1.1.1 harmless",
        "2 of 3 wrong solutions of tiny_llm_ref caught",
    ]
    assert result.returncode == 1


def test_of_days_that_no_change_concerns_a_tenth_is_drawn() -> None:
    bank = load_bank(DAYS)
    drawn = {head: {each.id for each in chosen(bank, ["README.md"], head)} for head in "abc"}
    assert all(len(bank) / 20 < len(ids) < len(bank) / 5 for ids in drawn.values())
    assert len({*map(frozenset, drawn.values())}) == 3
    for file in ("pdm.lock", "tests/conftest.py", "tests/support/contracts.py"):
        assert chosen(bank, [file], "a") == bank


def test_of_states_as_well_but_all_if_the_course_or_how_it_is_rendered_changed() -> None:
    states = [Starter(str(number), day, Run(str(number), {}, [])) for number, day in enumerate(DAYS * 9)]
    assert len(chosen(states, ["README.md"], "a", OF_ALL_STATES)) < len(states) / 2
    for file in ("course/course.toml", "scripts/sources/render.py"):
        assert chosen(states, [file], "a", OF_ALL_STATES) == states


@pytest.mark.parametrize(
    ("changed", "day"),
    [
        ("course/wrong/week_2_day_3.toml", (2, 3)),
        ("course/messages/week_2_day_3.md", (2, 3)),
        ("tests/days/test_week_2_day_3.py", (2, 3)),
        ("tests/support/quantized.py", (2, 2)),
        ("tiny_llm_ref/model/loader.py", (1, 5)),
    ],
)
def test_a_change_concerns_the_days_whose_tests_reach_it(changed: str, day: tuple[int, int]) -> None:
    found = {(each.week, each.day) for each in concerned(DAYS, [changed])}
    assert day in found
    assert (1, 1) not in found


MARKED = """
import pytest

@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", range(60))
def test_alike(number: int) -> None: ...

def test_that_is_not_marked() -> None: ...
"""
WITH_PLUGIN = [
    sys.executable,
    "-m",
    "pytest",
    "-p",
    "tests.conftest",
    "-p",
    "scripts.author.sampled",
    "--ref",
    "-v",
]


def test_of_tests_marked_as_sampled_a_part_is_run(tmp_path: Path) -> None:
    (tmp_path / "test_marked.py").write_text(MARKED)
    command = [*WITH_PLUGIN, "--since", "HEAD", str(tmp_path)]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    assert "test_that_is_not_marked PASSED" in output
    assert 10 < output.count("PASSED") < 51
    assert f"{61 - output.count('PASSED')} deselected" in output


def test_of_tests_marked_as_sampled_those_are_run_that_a_change_concerns(
    request: pytest.FixtureRequest,
) -> None:
    request.node.add_marker(pytest.mark.sampled(2**64, "scripts/compare/"))
    assert is_taken(request.node, {"README.md", "scripts/compare/costs.py"}, "")
    assert is_taken(request.node, {"tests/tools/test_wrong.py"}, "")
    assert not is_taken(request.node, {"scripts/run/demo.py", "tests/tools/test_rounds.py"}, "")


def test_a_commit_that_git_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="git diff --name-only no-such-commit -- failed: "):
        changed_files("no-such-commit")
    command = [*WITH_PLUGIN, "--since", "no-such-commit", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "no-such-commit -- failed: " in result.stderr


def test_a_folder_without_entries_is_refused(tmp_path: Path) -> None:
    result = run_apart("scripts.author", "wrong", "--bank", str(tmp_path), "--week", "1")
    assert result.returncode == 2
    assert result.stderr.endswith("has no entries: its files are called week_1_day_1.toml\n")
