"""The museum: every exhibit shows its bug, and the command says what a user, a test and the report say."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.bank.entries import THREAD, load_bank, read_entry
from scripts.course import ROOT, load_course
from scripts.museum.__main__ import shown
from scripts.museum.broken import broken_copy, broken_reference, without_shared
from scripts.museum.exhibits import EXHIBITS, Exhibit, find_exhibit
from scripts.sources.files import Sources, read_reference
from tests.support.commands import process_kept, run, run_apart

pytestmark = pytest.mark.sampled(3, "scripts/museum/", "course/wrong/", "book/src/museum.md")

NAMES = [exhibit.name for exhibit in EXHIBITS]
PAGE = ROOT / "book" / "src" / "museum.md"


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    with process_kept():
        yield


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=NAMES)
def test_an_exhibit_shows_something_else_than_the_engine_without_its_bug(exhibit: Exhibit) -> None:
    assert shown(exhibit, without_shared(broken_reference(exhibit.solution))) != exhibit.scene()


def test_a_learner_s_package_is_broken_in_the_same_way(starter: Sources) -> None:
    exhibit = find_exhibit("zeros")
    expected = shown(exhibit, without_shared(broken_reference(exhibit.solution)))
    for own in (starter, read_reference()):
        assert shown(exhibit, broken_copy(exhibit.solution, own)) == expected


def test_what_a_learner_wrote_elsewhere_stays_in_the_copy(starter: Sources) -> None:
    path = Path("ops/norm.py")
    own = {**read_reference(), path: read_reference()[path] + "\nMINE = 1\n"}
    copy = broken_copy(find_exhibit("pairs").solution, own)
    assert copy[path] == own[path]


def test_a_package_that_the_bug_does_not_fit_is_one_sentence() -> None:
    sources = {**read_reference(), Path("__init__.py"): ""}
    with pytest.raises(ValueError, match=r"doesn't fit your package \(ImportError: .*--ref"):
        shown(find_exhibit("zeros"), sources)


# --- the command -------------------------------------------------------------------------------------------


def test_without_a_name_all_are_listed() -> None:
    result = run("scripts.museum")
    assert result.returncode == 0
    assert re.findall(r"^  (\S+) +\S", result.stdout, re.M) == NAMES


def test_a_name_shows_what_a_user_reports_and_no_answer() -> None:
    result = run("scripts.museum", "burst", "--ref")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f'"{find_exhibit("burst").report}"\n')
    assert result.stdout.count("tokenized, then queued") == 5
    assert "github" not in result.stdout
    assert "Give up? pdm run museum burst --reveal" in result.stdout


def test_a_revealed_one_shows_fault_report_and_test() -> None:
    result = run_apart("scripts.museum", "burst", "--reveal")
    assert result.returncode == 0, result.stderr
    assert "  -    self.num_reqs += num_reqs\n  +    pass\n" in result.stdout
    assert "https://github.com/vllm-project/vllm/issues/58192" in result.stdout
    assert re.search(r"week 3 day 7 task 5 catch it:\n  test_task_5_\w+\n    \S", result.stdout)


@pytest.mark.parametrize(
    ("day", "sentence"),
    [("w1d4", "pass: look elsewhere"), ("w1d7", r"fails?, \d+ pass\. The first says:\n  test_task_3_")],
)
def test_the_tests_of_a_day_say_whether_it_is_there(day: str, sentence: str) -> None:
    result = run_apart("scripts.museum", "seed", "--ref", "--day", day)
    assert result.returncode == 0, result.stderr
    assert re.search(sentence, result.stdout), result.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["pair"], "there is no exhibit 'pair': did you mean pairs?"),
        (["xyz"], "there is no exhibit 'xyz': `pdm run museum` lists them"),
        (["zeros", "--ref", "--day", "3.4"], "--day '3.4' names no day: write it as w2d1"),
    ],
)
def test_what_is_not_there_is_one_sentence(arguments: list[str], sentence: str) -> None:
    result = run("scripts.museum", *arguments)
    assert (result.returncode, result.stdout, result.stderr) == (2, "", f"error: {sentence}\n")


# --- links -------------------------------------------------------------------------------------------------


def test_every_exhibit_has_a_report_and_a_place_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert re.findall(r"^\{\{#exhibit (\S+)\}\}$", text, re.M) == NAMES
    for exhibit in EXHIBITS:
        assert THREAD.fullmatch(exhibit.solution.seen_in)


def test_every_report_that_the_bank_names_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    exhibits = {exhibit.solution_id for exhibit in EXHIBITS}
    for solution in load_bank(load_course().days):
        assert not solution.seen_in or solution.id in exhibits or solution.seen_in in text, solution.id


def test_a_report_is_a_thread_on_github() -> None:
    entry = {"task": 1, "name": "n", "misconception": "M.", "symbol": "linear", "find": "x", "replace": "y"}
    day = load_course().days[0]
    link = "https://github.com/vllm-project/vllm/issues/51226"
    assert read_entry(day, {**entry, "seen_in": link}).seen_in == link
    for wrong in (link + "/", link.replace("https", "http"), "vllm #51226"):
        with pytest.raises(ValueError, match=r"`seen_in` is .*: give the link of a thread"):
            read_entry(day, {**entry, "seen_in": wrong})
