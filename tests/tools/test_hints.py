"""The hints of every task, and the command that shows one more each time."""

import ast
import builtins
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import mlx.core as mx
import pytest

from scripts.course import ROOT, Day, Task, load_course
from scripts.learn import hint
from scripts.learn.kept import kept
from scripts.setup import load_toml
from scripts.sources.c_source import split
from scripts.sources.files import is_python, source_files
from scripts.sources.render import render
from tests.support.commands import run

REFERENCE = ROOT / "tiny_llm_ref"
TASKS = [(day, task) for day in load_course().days for task in day.tasks]
every_task = pytest.mark.parametrize(("day", "task"), TASKS, ids=[task.id for _, task in TASKS])
MOST_CHARACTERS = 100
ADDRESS = ["--week", "2", "--day", "7", "--task", "2"]


def hint_lines(day: Day, task: Task) -> list[str]:
    return [line for tier in hint.load_hints(day, task) for line in tier.splitlines()]


@cache
def reference_lines() -> frozenset[str]:
    """Lines of the reference that say something by themselves."""
    sources = (path.read_text(encoding="utf-8") for path in source_files(REFERENCE))
    lines = (line.strip() for source in sources for line in source.splitlines())
    return frozenset(line for line in lines if len(line) > 25)


@cache
def known_names() -> frozenset[str]:
    """What a hint may name: everything that the reference defines, uses, takes or reads from a file."""
    names = set(dir(builtins))
    for path in source_files(REFERENCE):
        if not is_python(path):
            names.update(*(chunk.words for chunk in split(path.read_text(encoding="utf-8"))))
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Name):
                names.add(node.id)
            elif isinstance(node, ast.Attribute):
                names.add(node.attr)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.alias):
                names.add(node.name)
            elif isinstance(node, ast.arg | ast.keyword):
                names.add(node.arg or "")
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.add(node.value)
    return frozenset(names)


def has_call(line: str) -> bool:
    """Whether a line is Python that computes something, on its own or as the head of a block."""
    for source in (line, f"{line} pass"):
        try:
            tree = ast.parse(source)
        except SyntaxError:
            continue
        statements = [node for node in tree.body if not isinstance(node, ast.Expr)]
        return any(isinstance(node, ast.Call) for each in statements for node in ast.walk(each))
    return False


# The hints


def test_every_file_of_hints_is_a_day_of_the_course() -> None:
    days = {f"{day.stem}.toml" for day, _ in TASKS}
    assert {path.name for path in hint.HINTS.iterdir()} == days


@pytest.mark.parametrize("day", load_course().days, ids=lambda day: f"{day.week}.{day.day}")
def test_a_file_holds_each_task_once_and_in_order(day: Day) -> None:
    content = load_toml((hint.HINTS / f"{day.stem}.toml").read_text(encoding="utf-8"))
    assert [sorted(entry) for entry in content["hints"]] == [["task", "tiers"]] * len(day.tasks)
    assert [entry["task"] for entry in content["hints"]] == [task.number for task in day.tasks]


@every_task
def test_three_tiers_each_more_than_the_one_before(day: Day, task: Task) -> None:
    tiers = hint.load_hints(day, task)
    assert len(tiers) == 3
    sizes = [len(tier.split()) for tier in tiers]
    assert 8 < sizes[0] < sizes[1] < sizes[2], sizes
    assert len(tiers[0].splitlines()) <= 4
    assert all(tier == tier.strip() for tier in tiers)
    assert [line for line in hint_lines(day, task) if len(line) > MOST_CHARACTERS] == []


@every_task
def test_no_line_of_the_reference_and_no_code(day: Day, task: Task) -> None:
    lines = [line.strip() for line in hint_lines(day, task)]
    assert [line for line in lines if line in reference_lines()] == []
    assert [line for line in lines if has_call(line)] == []
    assert "```" not in "\n".join(lines)


@pytest.mark.parametrize(
    "line", ["x = mx.exp(y)", "return f(x)", "for i in range(3):", "if len(x) > 3:", "def f(x): return g(x)"]
)
def test_code_is_recognized(line: str) -> None:
    assert has_call(line)


@every_task
def test_names_of_mlx_exist(day: Day, task: Task) -> None:
    for name in re.findall(r"\bmx((?:\.\w+)+)", "\n".join(hint_lines(day, task))):
        found: object = mx
        for part in name[1:].split("."):
            assert hasattr(found, part), f"mx{name}"
            found = getattr(found, part)


@every_task
def test_names_in_backticks_exist(day: Day, task: Task) -> None:
    text = "\n".join(hint_lines(day, task))
    quoted = re.findall(r"`([^`\n]*)`", text)
    assert text.count("`") == 2 * len(quoted), "a backtick without its other half on the same line"
    names = [name for name in quoted if re.fullmatch(r"[A-Za-z_][\w.]*", name)]
    assert [name for name in names if not set(name.split(".")) <= known_names()] == []


@every_task
def test_private_names_are_those_that_the_starter_shows(day: Day, task: Task) -> None:
    private = re.findall(r"`(_[a-z]\w*)`", "\n".join(hint_lines(day, task)))
    if not private:
        return
    shown = "\n".join(render({other.id for _, other in TASKS} - {task.id}).values())
    assert [name for name in private if not re.search(rf"\b{name}\b", shown)] == []


# The command

Ask = Callable[..., str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of the command, not made yet."""
    cache_folder = tmp_path / "cache"
    monkeypatch.setenv("TINY_LLM_CACHE", str(cache_folder))
    return cache_folder


@pytest.fixture
def ask(folder: Path) -> Ask:
    """Runs the command and returns what it printed."""

    def run_command(*options: str, address: list[str] = ADDRESS) -> str:
        result = run("scripts.learn.hint", *address, *options)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run_command


def tiers_in(output: str) -> list[int]:
    """Numbers of the hints shown; each must stand under its number, whole."""
    tiers = hint.load_hints(*next(pair for pair in TASKS if pair[1].id == "2.7.2"))
    numbers = [int(number) for number in re.findall(r"^Hint (\d) of 3$", output, flags=re.MULTILINE)]
    for number in numbers:
        assert f"Hint {number} of 3\n{tiers[number - 1]}\n" in output
    return numbers


def test_one_each_time_and_the_third_from_then_on(ask: Ask) -> None:
    outputs = [ask() for _ in range(5)]
    assert [tiers_in(output) for output in outputs] == [[1], [2], [3], [3], [3]]
    assert "You saw hint" not in outputs[0]
    assert "You saw hint 1 before: --again shows all." in outputs[1]
    assert "You saw hints 1 to 2 before: --again shows all." in outputs[2]


def test_heading_names_the_task_and_its_symbols_without_colours(ask: Ask) -> None:
    output = ask()
    assert output.splitlines()[:2] == [
        "Week 2 day 7 task 2: One chunk per call",
        "batching.request.Request.try_prefill",
    ]
    assert "\x1b" not in output


def test_all_shows_all_and_counts_as_seen(ask: Ask) -> None:
    assert tiers_in(ask("--all")) == [1, 2, 3]
    assert tiers_in(ask("--again")) == [1, 2, 3]


def test_again_shows_no_new_one(ask: Ask) -> None:
    assert tiers_in(ask("--again")) == []
    assert "No hint was shown yet." in ask("--again")
    ask()
    ask()
    assert [tiers_in(ask("--again")) for _ in range(3)] == [[1, 2]] * 3
    assert tiers_in(ask()) == [3]


def test_reset_forgets_this_task_alone(ask: Ask, folder: Path) -> None:
    other = ["--week", "1", "--day", "1", "--task", "3"]
    ask()
    ask()
    ask(address=other)
    assert "2.7.2 starts from its first hint again" in ask("--reset")
    assert json.loads(kept(hint.COUNTS_FOLDER).file.read_text()) == {"1.1.3": 1, "2.7.2": 0}
    assert tiers_in(ask()) == [1]


def test_another_clone_starts_from_the_first_hint(
    ask: Ask, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [tiers_in(ask()), tiers_in(ask())] == [[1], [2]]
    assert [path for path in folder.rglob("*") if path.is_file()] == [kept(hint.COUNTS_FOLDER).file]
    monkeypatch.setattr("scripts.learn.kept.ROOT", ROOT.parent / "another")
    assert tiers_in(ask()) == [1]


DAMAGED = [
    b"",
    b"{",
    b"[1, 2]",
    b"null",
    b"\xff\xfe\x00",
    b'{"2.7.2": "many"}',
    b'{"2.7.2": 7}',
    b"[" * 99999,
]


@pytest.mark.parametrize("content", DAMAGED, ids=lambda content: repr(content[:20]))
def test_a_damaged_file_starts_again(content: bytes, ask: Ask, folder: Path) -> None:
    kept(hint.COUNTS_FOLDER).file.parent.mkdir(parents=True)
    kept(hint.COUNTS_FOLDER).file.write_bytes(content)
    assert [tiers_in(ask()), tiers_in(ask())] == [[1], [2]]


def test_a_file_that_cannot_be_written_stops_nothing(ask: Ask, folder: Path) -> None:
    folder.write_text("a file where the folder should be")
    assert [tiers_in(ask()), tiers_in(ask())] == [[1], [1]]
    assert "cannot be written" in ask("--reset")
    assert tiers_in(ask("--all")) == [1, 2, 3]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--week", "9", "--day", "1", "--task", "1"], "there is no week 9"),
        (["--week", "1", "--day", "8", "--task", "1"], "week 1 has no day 8"),
        (["--week", "1", "--day", "1", "--task", "4"], "week 1 day 1 has tasks 1 to 3, not 4"),
        (["--week", "1", "--day", "1", "--task", "0"], "week 1 day 1 has tasks 1 to 3, not 0"),
        ([*ADDRESS, "--all", "--reset"], "exclude each other"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(options: list[str], sentence: str, folder: Path) -> None:
    result = run("scripts.learn.hint", *options)
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.strip().splitlines()
    assert sentence in line
    assert not folder.exists()


def test_a_task_without_hints_is_one_sentence(tmp_path: Path) -> None:
    day, task = TASKS[0]
    with pytest.raises(ValueError, match="week 1 day 1 task 1 has no hints yet"):
        hint.load_hints(day, task, tmp_path)
