"""Benchmarks repeat until their medians are certain, and record on a quiet machine only."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from benches.rounds import LEAST, MOST, Rounds, itself, median_interval, uncertainty
from scripts.hardware import quiet
from scripts.hardware.quiet import ACCEPT_BUSY, RECORD, Watch, num_cores, own_seconds, used
from tests.support import commands

pytestmark = pytest.mark.sampled(3, "benches/")
SPIN = "while True: pass"
APART = f"""
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", {SPIN!r}], stdout=subprocess.DEVNULL).pid)
"""
BENCH = ("scheduler", "--running", "3", "--waiting", "0", "--steps", "7")


@pytest.mark.parametrize(
    ("num_values", "pair"), [(5, None), (6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (30, (10, 21))]
)
def test_the_interval_of_a_median_is_a_pair_of_the_values(
    num_values: int, pair: tuple[int, int] | None
) -> None:
    values = [float(n) for n in range(1, num_values + 1)]
    Random(0).shuffle(values)
    assert median_interval(values) == pair  # the ranks of a table for the sign test, at 95 %


def test_the_interval_holds_the_true_median_in_19_of_20_samples() -> None:
    random = Random(1)
    samples = [[random.expovariate(1.0) for _ in range(17)] for _ in range(2000)]
    intervals = [interval for each in samples if (interval := median_interval(each))]
    assert 0.94 <= sum(low <= 0.6931 <= high for low, high in intervals) / 2000 <= 0.97


def test_a_side_is_measured_until_its_median_is_certain() -> None:
    calls: list[tuple[str, int]] = []

    def run(side: str, turn: int) -> float:
        calls.append((side, turn))
        return {"steady": 5.0 + 0.1 * (turn % 2), "wild": 5.0 + 2 * (turn % 2)}[side]

    rounds = Rounds()
    results = rounds.in_turns(["steady", "wild"], run, itself, "work")
    assert [len(results[side]) for side in ("steady", "wild")] == [LEAST, MOST]
    assert calls[:4] == [("steady", 0), ("wild", 0), ("steady", 1), ("wild", 1)]
    assert results["wild"][:3] == [7.0, 5.0, 7.0], "the first round warms up"
    assert rounds.summary() == (
        "6 to 100 runs in turns, 1 of 2 medians certain to 2%, the least certain to 16.7% (work, wild)"
    )
    with pytest.raises(ValueError, match="the median of work, wild is certain to 17% only"):
        rounds.refuse_uncertain()


def test_every_figure_of_a_result_counts_and_a_number_of_runs_may_be_given() -> None:
    both = Rounds().in_turns(
        ["a"], lambda _, turn: turn, lambda turn: {"one": 1.0, "other": 5.0 + 2 * (turn % 2)}
    )
    assert len(both["a"]) == MOST
    fixed = Rounds(2)
    assert fixed.in_turns(["a"], lambda _, turn: float(turn), itself) == {"a": [1.0, 2.0]}
    assert fixed.summary() == "2 runs in turns, 0 of 1 medians certain to 2%, 1 of fewer than 6 runs"
    with pytest.raises(ValueError, match="2 runs are too few for a median"):
        fixed.refuse_uncertain()
    single = Rounds(1)
    single.in_turns(["a"], lambda _, turn: float(turn), itself)
    single.refuse_uncertain()  # it says itself that it is one


@pytest.mark.parametrize(
    ("least", "limit", "num_runs"),
    [(20.0, "ENOUGH_SECONDS", LEAST), (1.0, "ENOUGH_SECONDS", MOST), (1.0, "MOST_SECONDS", LEAST)],
)
def test_a_side_that_takes_long_ends_when_its_medians_can_be_recorded(
    least: float, limit: str, num_runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"benches.rounds.{limit}", 0.0)
    values = Rounds().in_turns(["a"], lambda _, turn: 2 * (turn % 2) + least, itself)["a"]
    assert len(values) == num_runs


def test_too_few_runs_are_refused_before_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ACCEPT_BUSY, raising=False)
    monkeypatch.setenv(RECORD, str(tmp_path / "measured.json"))
    refused = commands.run("benches", "matmul", "--repeats", "3")
    assert refused.returncode == 2
    assert "3 runs are too few for a median (6 at least are recorded)" in refused.stderr
    assert not refused.stdout


def test_values_that_are_equal_are_certain() -> None:
    assert uncertainty([0.0] * 6) == 0.0
    assert uncertainty([-2.0, -2.2, -1.8] * 2) == pytest.approx(0.1)


@pytest.fixture
def busy() -> Iterator[int]:
    """A process that computes and is no child of this one."""
    started = subprocess.run([sys.executable, "-c", APART], stdout=subprocess.PIPE, text=True, check=True)
    pid = int(started.stdout)
    yield pid
    os.kill(pid, signal.SIGKILL)


def test_what_others_use_is_seen_and_what_children_use_is_not(busy: int) -> None:
    with subprocess.Popen([sys.executable, "-c", SPIN]) as child:
        watch, own = Watch(), own_seconds()
        time.sleep(0.5)
        others, seen, of_children = watch.others(), {each.pid for each in used()}, own_seconds() - own
        child.kill()
    assert 0.1 / num_cores() < others.share <= 1.1
    assert others.busiest
    assert busy in seen
    assert child.pid not in seen
    assert os.getpid() not in seen
    assert of_children > 0.05


def test_a_busy_machine_is_not_recorded(busy: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ACCEPT_BUSY, raising=False)
    monkeypatch.setattr(quiet, "MOST_USED", 0.1 / num_cores())
    monkeypatch.setattr(quiet, "LOOK_SECONDS", 0.3)
    refused = commands.run("benches", *BENCH, "--output", str(tmp_path))
    assert refused.returncode == 2
    assert "nothing was recorded, since other processes used" in refused.stderr
    assert "the busiest" in refused.stderr
    assert not refused.stdout
    assert not list(tmp_path.iterdir())
    shown = commands.run("benches", *BENCH)
    assert shown.returncode == 0
    assert "warning: other processes used" in shown.stderr
    assert "BlockManager, Priority" in shown.stdout
    monkeypatch.setenv(ACCEPT_BUSY, "1")
    accepted = commands.run("benches", *BENCH, "--output", str(tmp_path))
    assert accepted.returncode == 0, accepted.stderr
    assert json.loads((tmp_path / "scheduler.json").read_text())["others"] in accepted.stdout
