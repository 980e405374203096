"""Right solutions: written in other styles than the reference, and accepted."""

from collections import Counter
from pathlib import Path

from scripts.author.right import PER_WEEK
from scripts.bank.chosen import drawn_of_each_week
from scripts.bank.entries import RIGHT, load_bank, read_package
from scripts.bank.rebase import entry_text
from scripts.course import load_course
from tests.support.commands import run_apart

DAYS = load_course().days
LINEAR = {"task": 1, "style": "S.", "symbol": "linear", "find": "x @ w.T"}


def test_every_entry_can_be_run_and_differs_from_the_reference() -> None:
    bank, package = load_bank(DAYS, RIGHT), read_package()
    assert len({each.id for each in bank}) == len(bank)
    for each in bank:
        symbol = package.find(each.symbol)
        assert each.edit.code(symbol) != symbol.code, each.id
        assert each.run(package).name == each.id


def test_a_sample_has_some_of_each_week() -> None:
    bank = load_bank(DAYS, RIGHT)
    drawn = [drawn_of_each_week(bank, PER_WEEK, head) for head in "abc"]
    for each in drawn:
        assert Counter(one.day.week for one in each) == {day.week: PER_WEEK for day in DAYS}
    assert len({frozenset(one.id for one in each) for each in drawn}) == 3


def test_the_command_names_what_is_not_accepted_and_says_what_a_learner_reads(tmp_path: Path) -> None:
    """In a process of its own, since it forks."""
    entries = [
        {**LINEAR, "name": "harmless", "replace": "mx.matmul(x, mx.transpose(w))"},
        {**LINEAR, "name": "not-transposed", "replace": "x @ w"},
    ]
    text = "\n".join(f"[[right]]\n{entry_text(each)}" for each in entries)
    (tmp_path / "week_1_day_1.toml").write_text(text, encoding="utf-8")
    result = run_apart("scripts.author", "right", "--bank", str(tmp_path))
    first, message, *_, last = result.stdout.splitlines()
    assert first == "not accepted: 1.1.1 not-transposed"
    assert "linear" in message
    assert last == "1 of 2 right solutions of tiny_llm_ref accepted"
    assert result.returncode == 1
