"""Wrong solutions are carried over to another version of the reference."""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.bank.edits import make_edit
from scripts.bank.matching import find_matches
from scripts.bank.numbers import course_at, number_now
from scripts.bank.rebase import Rebase, entry_text, package_at, rebase_file, rebase_survivors
from scripts.course import COURSE, load_course
from scripts.sources.files import write
from tests.support.shelves import FILE, KERNEL, SOURCE, package_of

DAYS = load_course().days
EDIT = {"task": 1, "name": "name", "misconception": "A belief."}


def carried(old: str, new: str, fields: Mapping[str, str], file: Path = FILE) -> dict[str, str]:
    way = Rebase(package_of(old), package_of(new, file))
    return {name: value for name, value in way({**EDIT, **fields}).items() if name not in EDIT}


PUT = {"symbol": "Shelf.put", "find": "range(count)", "replace": "range(1)"}
TEXT = {
    "file": str(FILE),
    "find": "in range(count):\n            self",
    "replace": "in range(1):\n            self",
}
LINE = {"symbol": "Shelf.put", "find": "for place in range(count):", "replace": "for place in range(1):"}
APPEND = "self.books.append((book, place))"


def test_the_report_that_an_entry_is_like_is_carried_over() -> None:
    fields = {"seen_in": "https://github.com/a/b/issues/1", **TEXT}
    assert carried(SOURCE, SOURCE, fields)["seen_in"] == fields["seen_in"]


@pytest.mark.parametrize(("fields", "after"), [(PUT, PUT), (TEXT, LINE)])
def test_an_edit_is_carried_over_whatever_its_form(fields: Mapping[str, str], after: dict[str, str]) -> None:
    assert carried(SOURCE, SOURCE, fields) == after
    assert carried(SOURCE, SOURCE.replace("% (LIMIT - 1)", "// 2"), fields) == after
    renamed = {**after, "find": after["find"].replace("count", "times")}
    assert carried(SOURCE, SOURCE.replace("count", "times"), fields) == renamed
    assert carried(SOURCE, SOURCE, fields, Path("other.py")) == after


def test_an_edit_beside_a_change_is_merged() -> None:
    fields = {
        "symbol": "Shelf.put",
        "find": f"for place in range(count):\n    {APPEND}",
        "replace": "first(book)",
    }
    with pytest.raises(ValueError, match=r"it conflicts with what became of store\.shelf\.Shelf\.put"):
        carried(SOURCE, SOURCE.replace("range(count)", "range(0, count)"), fields)
    changed = SOURCE.replace("(book, place)", "(place, book)")
    wide = {
        "symbol": "Shelf.put",
        "find": f"range(count):\n    {APPEND}",
        "replace": f"range(1):\n    {APPEND}",
    }
    assert carried(SOURCE, changed, wide) == LINE


def test_a_renamed_or_moved_symbol_is_found_by_its_likeness() -> None:
    assert carried(SOURCE, SOURCE.replace("put", "store"), PUT) == {**PUT, "symbol": "Shelf.store"}
    assert carried(SOURCE, SOURCE.replace("Shelf", "Rack"), TEXT) == {**LINE, "symbol": "Rack.put"}


def test_a_renamed_helper_is_renamed_in_the_replacement() -> None:
    source = SOURCE + "\n\ndef last(books: list[str]) -> str:\n    return first(books[::-1])\n"
    fields = {"symbol": "last", "find": "books[::-1]", "replace": "[first(books)]"}
    assert carried(source, source.replace("first", "head"), fields)["replace"] == "[head(books)]"


@pytest.mark.parametrize(
    ("new", "fields", "sentence"),
    [
        ("def other():\n    pass\n", PUT, r"store\.shelf\.Shelf\.put is gone"),
        (SOURCE.replace("range(count)", "range(1)"), PUT, r"Shelf\.put is like that by now"),
        (SOURCE.replace("books", "items"), {**PUT, "replace": "self.books"}, "it uses books, which is gone"),
        (SOURCE, {**TEXT, "find": "gone"}, "its text occurs 0 times in store/shelf.py"),
        (SOURCE, {**TEXT, "replace": "in range(1:"}, "cannot be parsed"),
        (SOURCE, {**PUT, "replace": "range(cout)"}, "nothing defines cout"),
    ],
)
def test_what_needs_a_human_is_told(new: str, fields: Mapping[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        carried(SOURCE, new, fields)


def test_two_symbols_changed_at_once_need_a_human() -> None:
    fields = {"file": str(FILE), "find": "1)\n\n\ndef first", "replace": "2)\n\n\ndef last"}
    with pytest.raises(ValueError, match="it changes more than one symbol"):
        carried(SOURCE, SOURCE, fields)


def test_a_kernel_is_carried_over() -> None:
    file = Path("dot.cu")
    way = Rebase(package_of(KERNEL, file), package_of(KERNEL.replace("i < n", "i != n"), file))
    old = {**EDIT, "file": "dot.cu", "find": "sum = 0;", "replace": "sum = 1;"}
    assert way(old) == {**EDIT, "symbol": "dot.cu.dot", "find": "float sum = 0;", "replace": "float sum = 1;"}


def test_entries_that_need_a_human_stay_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "week_1_day_1.toml"
    texts = [entry_text({**EDIT, **fields}) for fields in (TEXT, {**PUT, "symbol": "gone"}, PUT)]
    file.write_text("# Head.\n\n" + "\n".join(f"[[wrong]]\n{text}" for text in texts), encoding="utf-8")
    left = rebase_file(file, DAYS[0], Rebase(package_of(SOURCE), package_of(SOURCE)), load_course())
    assert left == ["week_1_day_1.toml: 1.1.1 name: there is no symbol gone"]
    texts[0] = entry_text({**EDIT, **LINE})
    assert file.read_text() == "# Head.\n\n" + "\n".join(f"[[wrong]]\n{text}" for text in texts)


def test_an_entry_follows_its_task_to_another_number(tmp_path: Path) -> None:
    day, other = DAYS[0], DAYS[1].tasks[0]
    tasks = [replace(task, number=number) for number, task in enumerate((other, *day.tasks), 1)]
    tasks[1] = replace(tasks[1], title="Renamed")
    file = tmp_path / "week_1_day_1.toml"
    file.write_text(f"[[wrong]]\n{entry_text({**EDIT, **PUT})}")
    way = Rebase(package_of(SOURCE), package_of(SOURCE))
    assert rebase_file(file, replace(day, tasks=tuple(tasks)), way, load_course()) == []
    assert "task = 2" in file.read_text()
    assert number_now(replace(day, tasks=tuple(tasks)), 3, load_course()) == 4
    (line,) = rebase_file(file, replace(day, tasks=(other,)), way, load_course())
    assert line.endswith("'Scaled dot-product attention', which 0 tasks of the day look like now: choose one")


def test_survivors_follow_their_functions(tmp_path: Path) -> None:
    file = tmp_path / "survivors.toml"
    text = """# Head.

[[survivor]]
id = "Shelf.put: '1' with 1 to 2"
reason = "None shows it."

[[survivor]]
id = "first: 'books[0]' with 0 to 1"
reason = "No more than one."
"""
    file.write_text(text)
    way = Rebase(package_of(SOURCE), package_of(SOURCE.replace("put", "store").replace("first", "a_first")))
    assert rebase_survivors(file, way) == []
    names = re.findall(r'"(.*?):', file.read_text())
    assert names == ["Shelf.store", "a_first"]
    way = Rebase(package_of(SOURCE), package_of(SOURCE.partition("def first")[0]))
    file.write_text(text)
    (line,) = rebase_survivors(file, way)
    assert line.endswith("store.shelf.first is gone")
    assert file.read_text() == text


def test_the_reference_of_a_commit_is_read_by_git(tmp_path: Path) -> None:
    write({Path("tiny_llm_ref/shelf.py"): SOURCE, Path("tiny_llm_ref/notes.md"): "x"}, tmp_path)
    write({Path("kernel_runtime/launch.py"): "X = 1\n"}, tmp_path)
    for command in ("init -q", "add .", "-c user.name=a -c user.email=b commit -qm x"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    assert package_at("HEAD", tmp_path).sources == {
        Path("shelf.py"): SOURCE,
        Path("../kernel_runtime/launch.py"): "X = 1\n",
    }
    with pytest.raises(ValueError, match="'gone' is no commit with tiny_llm_ref"):
        package_at("gone", tmp_path)


def test_the_map_of_a_commit_is_read_by_git(tmp_path: Path) -> None:
    write({Path("course/course.toml"): (COURSE / "course.toml").read_text(encoding="utf-8")}, tmp_path)
    for command in ("init -q", "add .", "-c user.name=a -c user.email=b commit -qm x"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    assert course_at("HEAD", tmp_path) == load_course()
    with pytest.raises(ValueError, match=r"'gone' is no commit with course/course\.toml"):
        course_at("gone", tmp_path)


def test_the_smallest_edit_still_fits_when_all_variables_are_renamed() -> None:
    before = "def f(a, b):\n    c = a + b\n    d = a + c\n    return d"
    edit = make_edit(before, before.replace("d = a + c", "d = a - c"), is_python=True)
    renamed = re.sub(r"\b[abcd]\b", r"\g<0>_other", before)
    (match,) = find_matches(renamed, edit.find, edit.near, is_python=True)
    assert match.names
    assert make_edit("def f():\n    return 1", "def f():\n    g()\n    h()\n    return 2", True).body
