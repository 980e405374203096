"""Catch-up beside a learner's own code: nothing of theirs changes, and nothing that comes is unused."""

import difflib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.course import Task, load_course
from scripts.learn.catch_up import catch_up
from scripts.learn.reset import reset
from scripts.sources.chunks import HOLE_STATEMENT, Chunk, join
from scripts.sources.files import Sources, is_python, read_reference, write
from scripts.sources.fill import OTHER_NAME, local
from scripts.sources.patch import fill
from scripts.sources.render import render
from scripts.sources.symbols import holes_of, split, words_of
from scripts.sources.tokens import canonical

COURSE = load_course()
TASKS = [task for day in COURSE.days for task in day.tasks]
ALL_TASKS = {task.id for task in TASKS}


@pytest.fixture(scope="module")
def starter() -> Sources:
    return render(())


def defined(path: Path, source: str) -> set[str]:
    """Every name that a source binds at its top or in a class."""
    return {name for chunk in split(path, source) for name in chunk.names}


def solved_otherwise(sources: Sources, but: Task) -> Sources:
    """A package whose other tasks have bodies of the learner's, in a format of their own, without helpers."""
    own = f"week {but.id[0]} day {but.id[2]} task {but.number}:"
    result = {}
    for path, source in sources.items():
        mine = "return  None   # mine" if is_python(path) else "return  {};   // mine"
        texts = {hole[0] for hole in HOLE_STATEMENT.finditer(source) if own not in hole[0]}
        result[path] = HOLE_STATEMENT.sub(lambda hole: mine if hole[0] in texts else hole[0], source)  # noqa: B023
    return result


def is_kept(path: Path, before: str, after: str) -> bool:
    """Whether all lines but those of holes and imports are still there, in their order."""
    chunks = [chunk for chunk in split(path, before) if chunk.kind != "import"]
    lines = [line for line in HOLE_STATEMENT.sub("HOLE", join(chunks)).splitlines(True) if "HOLE" not in line]
    blocks = difflib.SequenceMatcher(
        None, lines, after.splitlines(True), autojunk=False
    ).get_matching_blocks()
    return sum(block.size for block in blocks) == len(lines)


def test_what_comes_is_used_and_what_was_there_stays(starter: Sources) -> None:
    for task in TASKS[::3]:  # all of them take half a minute
        before = solved_otherwise(starter, task)
        after = catch_up(before, COURSE, {task.id})
        assert any(before[path] != after[path] for path in before), task.id
        for path in (path for path in before if before[path] != after[path]):
            assert not holes_of(path, after[path])
            assert is_kept(path, before[path], after[path]), (task.id, path)
            for name in defined(path, after[path]) - defined(path, before[path]):
                rest = [chunk for chunk in split(path, after[path]) if name not in chunk.names]
                assert local(name) in words_of(path, join(rest)), (task.id, path, name)


# Beside helpers of the same names


@pytest.fixture(scope="module")
def own_names(starter: Sources) -> dict[Path, set[str]]:
    """All that the reference has and the starter lacks, of half the files in Python, which take long."""
    reference = read_reference()
    chosen = [path for i, path in enumerate(sorted(starter)) if i % 2 or not is_python(path)]
    found = {path: defined(path, reference[path]) - defined(path, starter[path]) for path in chosen}
    return {path: names for path, names in found.items() if names}


@pytest.fixture(scope="module")
def own_helpers(starter: Sources, own_names: dict[Path, set[str]]) -> Sources:
    """A starter in which each of these names is something of the learner's."""
    return {path: with_own(path, source, own_names.get(path, set())) for path, source in starter.items()}


@pytest.fixture(scope="module")
def beside_own(own_helpers: Sources) -> Sources:
    """The same filled in turns, so that what came under another name before is met again."""
    sources = own_helpers
    for week in (1, 2, 3, 4):
        sources = catch_up(sources, COURSE, {task.id for task in TASKS if task.id[0] == str(week)})
    return sources


def with_own(path: Path, source: str, names: set[str]) -> str:
    """A source with a meaning of the learner's for each of these names."""
    chunks: list[Chunk] = []
    for chunk in split(path, source):
        for name in sorted(names) if chunk.kind == "close" else ():
            if name.startswith(f"{chunk.names[0]}."):
                chunks.append(Chunk("\n\n\n", f"    {name.split('.')[1]}  =  'mine'\n", "plain"))
        chunks.append(chunk)
    form = "{}  =  'mine'\n" if is_python(path) else "struct {} {{char  mine[3];}}; // mine\n"
    definitions = [form.format(name) for name in sorted(names) if "." not in name]
    return join(chunks) + "\n\n" * bool(definitions) + "".join(definitions)


def test_solutions_beside_own_helpers_are_the_reference_with_other_names(
    own_names: dict[Path, set[str]], own_helpers: Sources, beside_own: Sources, tmp_path: Path
) -> None:
    assert sum(map(len, own_names.values())) > 100
    reference = read_reference()
    for path, names in own_names.items():
        assert is_kept(path, own_helpers[path], beside_own[path]), path
        ours = join([chunk for chunk in split(path, beside_own[path]) if not names & set(chunk.names)])
        renamed = {OTHER_NAME.sub("", word) for word in words_of(path, ours) if OTHER_NAME.search(word)}
        assert renamed == {local(name) for name in names}, path
        again = re.sub(r"\b(\w+) as \1\b", r"\1", OTHER_NAME.sub("", ours))
        assert canonical(again, is_python(path)) == canonical(reference[path], is_python(path)), path
    assert all(beside_own[path] == reference[path] for path in reference.keys() - own_names.keys())
    write(beside_own, tmp_path)
    ruff = [sys.executable, "-m", "ruff", "check", "--no-cache", "--isolated", "--select", "F"]
    result = subprocess.run([*ruff, str(tmp_path)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_reset_takes_what_came_under_other_names(own_helpers: Sources, beside_own: Sources) -> None:
    assert reset(beside_own, COURSE, ALL_TASKS) == own_helpers


# Single rules

HOLE = 'raise NotImplementedError("week 1 day 1 task 1: f is not written yet")'
STARTER = """class A:
    def f(self) -> int:
        return 3


class B:
    def f(self) -> int:
        HOLE
"""
REFERENCE = """from dataclasses import replace
from math import pi

LIMIT = 2 + pi


class A:
    def f(self) -> int:
        return self._check(3)

    def _check(self, x: int) -> int:
        return x


class B:
    def f(self) -> int:
        return self._check("a".replace("a", "b"))

    def _check(self, x: str) -> int:
        return _size(x)


def _size(x: str) -> int:
    return len(x) + LIMIT


def g() -> object:
    return replace(A())
"""


@pytest.mark.parametrize(
    ("mine", "expected", "unexpected"),
    [
        ("", ["self._check(", "_size(x)", "+ LIMIT\n"], ["import replace", "_ref", "_REF"]),
        ("LIMIT = 2+pi  # mine", ["+ LIMIT\n"], ["LIMIT = 2 + pi", "_REF"]),
        ("LIMIT = 3", ["+ LIMIT_REF\n", "\nLIMIT_REF = 2 + pi\n"], []),
        ("LIMIT_REF, LIMIT = 3, 3", ["\nLIMIT_REF2 = 2 + pi\n"], []),
        ("if True:\n    from mine import pi", ["import pi as pi_ref", "\nLIMIT = 2 + pi_ref\n"], []),
        ("def _size(x: str) -> int:\n    return len(x)+LIMIT\nLIMIT=2+pi", ["_size(x)"], ["_size_ref"]),
        # The same text means something else where what it uses does.
        ("def _size(x: str) -> int:\n    return len(x)+LIMIT\nLIMIT=4", ["_size_ref(x)", "+ LIMIT_REF"], []),
        ("def size(a: B) -> int:\n    return len(a._check)", ["self._check_ref(", "def _check_ref("], []),
        # A call of what nothing defines means the reference's helper.
        ("def size(a: B) -> int:\n    return a._check('b')", ["self._check(", "def _check("], ["_ref"]),
        ("def mine() -> int:\n    return _size('b') + LIMIT", ["_size(x)", "+ LIMIT\n"], ["_ref", "_REF"]),
        ("def mine(_size=len) -> int:\n    return _size('b')", ["_size_ref(x)", "+ LIMIT\n"], ["LIMIT_REF"]),
        ("def mine(a):\n    a._check = len\n    return a._check('b')", ["self._check_ref("], []),
        ("class C:\n    def _check(self):\n        return self._check()", ["self._check_ref("], []),
    ],
)
def test_a_helper_comes_unless_it_is_there(mine: str, expected: list[str], unexpected: list[str]) -> None:
    path = Path("m.py")
    starter = {path: STARTER.replace("HOLE", HOLE)}
    before = {path: f"{starter[path]}\n\n{mine}\n"}
    (after,) = fill(before, starter, {path: REFERENCE}, [(path, "B.f")]).values()
    assert is_kept(path, before[path], after)
    assert STARTER.partition("class B")[0] in after  # its reference has a method _check as well
    assert all(text in after for text in expected), after
    assert not any(text in after for text in unexpected), after


@pytest.mark.parametrize(
    ("tasks", "own_take"),
    [({"1.5.6"}, ""), ({"2.2.4"}, "self._tensors.pop(name)")],
    ids=["take", "take_packed"],
)
def test_a_method_of_the_learners_gets_the_helper_that_it_calls(
    tasks: set[str], own_take: str, starter: Sources
) -> None:
    """Both methods of the reference's loader call `_pop_packed`; here a learner wrote one or both."""
    path = Path("model/loader.py")
    own_bodies = {"take_packed": "QuantizedWeights(*self._pop_packed(layer))", "take": own_take}
    source = starter[path]
    for hole in list(HOLE_STATEMENT.finditer(source)):
        name = hole[5].rpartition(".")[2]
        if own_bodies.get(name):
            source = source.replace(hole[0], f"return {own_bodies[name]}")
    before = {**starter, path: source}
    after = catch_up(before, COURSE, tasks)[path]
    assert is_kept(path, source, after)
    assert "return QuantizedWeights(*self._pop_packed(layer))" in after
    assert after.count("def _pop_packed(") == after.count("def _pop(") == 1
    assert "_ref" not in after


def test_a_method_comes_under_another_name_where_another_file_has_one_so_named() -> None:
    path, other = Path("m.py"), Path("other.py")
    starter = {path: STARTER.replace("HOLE", HOLE), other: ""}
    before = starter | {other: "class C(B):\n    _check = None\n"}
    after = fill(before, starter, {path: REFERENCE, other: ""}, [(path, "B.f")])
    assert after[other] == before[other]
    assert "return self._check_ref(" in after[path]
    assert "def _check_ref(" in after[path]
