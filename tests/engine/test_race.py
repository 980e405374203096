"""Candidates race: correct ones alone, timed once per machine, the fastest used where bits may differ."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import mlx.core as mx
import pytest

import accelerated
from accelerated import accelerate, attention_contests, contests, race_inputs
from accelerated.integer_matmul import integer_matmul
from kernel_runtime import native, race, self_check
from kernel_runtime.contest import CHUNK, MARGIN, ROWS, Contest, Run, row_class
from kernel_runtime.native import BuildError
from kernel_runtime.race import Table, choose, race_table
from tests.support import commands
from tests.support.bits import check_bits
from tests.support.check import normal
from tests.support.cpu_kernels import use_device
from tests.support.ragged import Shape, draw
from tiny_llm import kernels

F32 = mx.float32


class Race:
    """A contest whose candidates are their names, and a clock that only their calls move."""

    def __init__(self, **speeds: float | Mapping[int, float]) -> None:
        self.speeds = speeds
        self.now = 0.0
        self.num_calls = self.num_chained = 0
        self.outputs: dict[str, mx.array | Exception] = {name: mx.ones(3) for name in speeds}
        self.contest = Contest[str](
            name="test",
            kernel="test_kernel",
            candidates={name: name for name in speeds},
            fallback="fallback",
            sample=lambda name: self.output(name),
            expected=lambda: mx.ones(3),
            start=lambda name: lambda rows: self.start(name, rows),
            by_rows=lambda winners: "/".join(winners.values()),
        )

    def output(self, name: str) -> mx.array:
        """The small output by which a candidate is judged."""
        output = self.outputs[name]
        if isinstance(output, Exception):
            raise output
        return output

    def start(self, name: str, rows: int) -> Run:
        """A call that takes as long as it is told to."""
        speed = self.speeds[name]
        seconds = speed if isinstance(speed, float) else speed[rows]

        first = last = mx.ones(1)

        def call(x: mx.array) -> mx.array:
            nonlocal last
            assert x is first or x is last
            self.num_chained += x is not first
            self.now += seconds
            self.num_calls += 1
            last = x + 1
            return last

        return call, first

    def table(self, path: Path | None = None) -> Table:
        """A table that is timed by this clock."""
        return Table(path, lambda: self.now)

    def winner(self, path: Path | None = None, **changes: object) -> str:
        """What a model is made of."""
        return choose(replace(self.contest, **changes), self.table(path))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def on_gpu_in_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each number of rows may have a winner of its own."""
    use_device(mx.gpu, monkeypatch)
    monkeypatch.setenv("TINY_LLM_KERNELS", "race")
    monkeypatch.delenv("TINY_LLM_INVARIANT", raising=False)


def by_rows(*seconds: float) -> dict[int, float]:
    return dict(zip(ROWS, seconds, strict=True))


def test_the_fastest_is_used_for_each_number_of_rows() -> None:
    own, mlx, plain = by_rows(1e-3, 1e-3, 5e-3, 9e-3), by_rows(2e-3, 9e-3, 1e-3, 5e-3), by_rows(8, 8, 8, 1e-3)
    assert Race(own=own, mlx=mlx, plain=plain).winner() == "own/own/mlx/plain"


def test_one_winner_for_all_rows_where_they_must_not_differ() -> None:
    slow_in_chunks, slow_in_decodes = by_rows(1.0, 1.0, 1.0, 20.0), by_rows(3.0, 3.0, 3.0, 1.0)
    assert (
        Race(own=slow_in_chunks, mlx=slow_in_decodes).winner(by_rows=None) == "own"
    )  # 27 / 20 times as slow
    hardly_slower = by_rows(1.0, 1.0, 1.0, 30.0)  # a mean ratio of 0.974
    assert Race(own=hardly_slower, mlx=slow_in_decodes).winner(by_rows=None) == "own"
    slower_in_chunks = by_rows(1.0, 1.0, 1.0, 40.0)
    assert Race(own=slower_in_chunks, mlx=slow_in_decodes).winner(by_rows=None) == "mlx"


@pytest.mark.parametrize(("seconds", "winner"), [(1 - MARGIN + 0.01, "own"), (1 - MARGIN - 0.01, "mlx")])
def test_the_courses_kernel_stays_unless_another_is_clearly_faster(seconds: float, winner: str) -> None:
    assert Race(own=1.0, mlx=seconds).winner() == winner
    assert Race(own=1e-4, mlx=1e-4 * seconds, plain=1e-4).winner() == winner


def test_what_else_the_machine_does_decides_nothing() -> None:
    entrants = Race(own=2e-3, mlx=1e-3)
    ticks = iter(range(10**6))

    def clock() -> float:
        """Every third look comes half a second late, at any candidate."""
        entrants.now += 0.5 * (next(ticks) % 3 == 0)
        return entrants.now

    assert choose(entrants.contest, Table(None, clock)) == "mlx"


def test_without_a_race_the_first_correct_candidate_wins() -> None:
    entrants = Race(own=2e-3, mlx=1e-3)
    assert entrants.winner(start=None) == "own"
    entrants.outputs["own"] = mx.zeros(3)
    assert entrants.winner(start=None) == "mlx"
    assert entrants.num_calls == 0


def test_what_is_no_kernel_is_used_in_every_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINY_LLM_KERNELS", "off")
    entrants = Race(own=2e-3)
    assert entrants.winner(start=None) == "fallback"
    assert entrants.winner(start=None, is_kernel=False) == "own"
    entrants.outputs["own"] = NotImplementedError("not written yet")
    assert entrants.winner(start=None, is_kernel=False) == "fallback"


def test_a_slow_start_loses_no_race() -> None:
    entrants = Race(own=2e-3, mlx=1e-3)
    looks = iter(range(10**6))

    def clock() -> float:
        """The first two calls of mlx, of each number of rows, end late."""
        entrants.now += 1.2e-3 * (next(looks) % 48 in (3, 7))
        return entrants.now

    assert choose(entrants.contest, Table(None, clock)) == "mlx"


def test_each_call_computes_on_what_the_call_before_computed() -> None:
    entrants = Race(own=1e-5, mlx=1e-5)
    entrants.winner()
    assert entrants.num_chained > entrants.num_calls / 2


def test_each_number_of_rows_belongs_to_the_nearest_that_is_timed() -> None:
    rows = {1: 1, 2: 1, 3: 8, 22: 8, 23: 64, 128: 64, 129: 256, 4000: 256}
    assert {count: row_class(count) for count in rows} == rows


def test_who_is_far_behind_is_not_called_often() -> None:
    entrants = Race(own=1e-5, mlx=1.0)
    assert entrants.winner() == "own"
    assert entrants.now < 20 * len(ROWS)


# --- who takes part -----------------------------------------------------------------------------------------

FASTEST_FIRST = {"own": 1e-3, "mlx": 2e-3, "plain": 3e-3}


@pytest.mark.parametrize("problem", [mx.zeros(3), mx.ones(2), BuildError("no compiler"), TypeError("a slip")])
@pytest.mark.parametrize(("broken", "winner", "num_lines"), [("own", "mlx", 1), ("mlx", "own", 0)])
def test_a_candidate_that_is_not_correct_takes_no_part(
    broken: str,
    winner: str,
    num_lines: int,
    problem: mx.array | Exception,
    capsys: pytest.CaptureFixture[str],
) -> None:
    entrants = Race(**{**FASTEST_FIRST, broken: 1e-6})
    entrants.outputs[broken] = problem
    self_check._notice_once.cache_clear()
    race.announce.cache_clear()
    race.announce()
    capsys.readouterr()
    assert entrants.winner() == winner
    assert len(capsys.readouterr().err.splitlines()) == num_lines


@pytest.mark.parametrize("rows", [None, ROWS[0], ROWS[-1]], ids=["at the start", "few rows", "many rows"])
@pytest.mark.parametrize(
    ("failing", "winner"), [("own", "mlx"), ("plain", "own"), ("own mlx plain", "fallback")]
)
def test_a_candidate_that_fails_while_it_is_timed_loses(
    failing: str, winner: str, rows: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entrants = Race(**FASTEST_FIRST)

    def start(name: str) -> Any:
        def run_of(num_rows: int) -> Run:
            if num_rows == rows and name in failing.split():
                raise RuntimeError("Failed to compile\nkernel: no bfloat16 before sm_80")
            return entrants.start(name, num_rows)

        if rows is None and name in failing.split():
            raise BuildError("no bfloat16 before sm_80")
        return run_of

    race.announce()
    for num_notices in (len(failing.split()), 0):  # the second time, the table knows
        capsys.readouterr()
        assert entrants.winner(tmp_path / "race.json", start=start) == winner
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == num_notices
        assert all("fails and is not used" in line and "before sm_80" in line for line in lines)


def test_until_the_kernel_is_written_there_is_no_race() -> None:
    entrants = Race(**FASTEST_FIRST)
    entrants.outputs["own"] = NotImplementedError("week 2 day 3 task 1")
    assert (entrants.winner(), entrants.num_calls) == ("fallback", 0)


@pytest.mark.parametrize(
    ("mode", "winner"),
    [
        ("own", "own"),
        ("mlx", "mlx"),
        ("off", "fallback"),
        ("0", "fallback"),
        ("RACE", "plain"),
        ("on", "plain"),
    ],
)
def test_the_variable_chooses(mode: str, winner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINY_LLM_KERNELS", mode)
    entrants = Race(own=3e-3, mlx=2e-3, plain=1e-3)
    assert entrants.winner() == winner
    assert (entrants.num_calls > 0) == (winner == "plain")
    entrants.outputs = dict.fromkeys(entrants.outputs, mx.zeros(3))
    assert entrants.winner() == "fallback"


@pytest.mark.parametrize(("mode", "invariant"), [("fast", "0"), ("mlx", "1")])
def test_a_choice_that_makes_no_sense_is_refused(
    mode: str, invariant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINY_LLM_KERNELS", mode)
    monkeypatch.setenv("TINY_LLM_INVARIANT", invariant)
    with pytest.raises(ValueError, match=f"TINY_LLM_KERNELS is '{mode}'.*unset"):
        Race(**FASTEST_FIRST).winner()
    result = commands.run_apart("scripts.learn.hint", "--help")
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert f"TINY_LLM_KERNELS is '{mode}'" in result.stderr


def test_what_is_given_computes_once_the_kernel_works(monkeypatch: pytest.MonkeyPatch) -> None:
    entrants = Race(own=1e-3, given=2e-3, mlx=3e-3)
    assert entrants.winner() == "own"
    monkeypatch.setenv("TINY_LLM_KERNELS", "own")
    assert entrants.winner() == "given"
    entrants.outputs["given"] = mx.zeros(3)
    assert entrants.winner() == "own"
    entrants = Race(own=3e-3, given=1e-3, mlx=2e-3)
    entrants.outputs["own"] = mx.zeros(3)
    monkeypatch.setenv("TINY_LLM_KERNELS", "race")
    assert entrants.winner() == "mlx"


@pytest.mark.parametrize(("device", "invariant"), [(mx.cpu, "0"), (mx.cpu, "1"), (mx.gpu, "1")])
def test_where_bits_are_promised_one_that_keeps_them_computes_all_rows(
    device: mx.DeviceType, invariant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_device(device, monkeypatch)
    monkeypatch.setenv("TINY_LLM_INVARIANT", invariant)
    entrants = Race(own=by_rows(2e-3, 2e-3, 4e-3, 4e-3), mlx=by_rows(1e-3, 1e-3, 8e-3, 8e-3), plain=1e-6)
    assert entrants.winner() == "own"
    assert entrants.num_calls == 0
    assert entrants.winner(keeps_bits=("own", "mlx")) == "own"
    entrants.speeds["mlx"] = by_rows(1e-3, 1e-3, 1e-3, 5e-3)
    assert entrants.winner(keeps_bits=("own", "mlx")) == "mlx"
    entrants.outputs["own"] = mx.zeros(3)
    if invariant == "1":  # nobody is left who keeps them
        assert entrants.winner() == "fallback"
    else:  # only the kernel promised them
        assert entrants.winner() == "plain"


# --- the table that is kept ---------------------------------------------------------------------------------


def test_a_race_is_run_once(tmp_path: Path) -> None:
    path = tmp_path / "race.json"
    assert Race(own=2e-3, mlx=1e-3).winner(path) == "mlx"
    later = Race(own=1e-3, mlx=2e-3)
    assert later.winner(path) == "mlx"
    assert later.num_calls == 0


def test_another_operation_or_candidate_races_again(tmp_path: Path) -> None:
    path = tmp_path / "race.json"
    assert Race(own=2e-3, mlx=1e-3).winner(path) == "mlx"
    other = Race(own=1e-3, mlx=2e-3)
    assert other.winner(path, name="another") == "own"
    assert Race(own=2e-3, mlx=1e-3, plain=1e-4).winner(path) == "plain"
    fewer = Race(own=1e-3, mlx=2e-3)
    assert (fewer.winner(path), fewer.num_calls) == ("mlx", 0)
    num_calls = other.num_calls
    assert (other.winner(path, name="another"), other.num_calls) == ("own", num_calls)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"test": {"own": 1}}', '{"test": {"own": {"1": 0.1}}}'])
def test_a_broken_table_is_made_anew(text: str, tmp_path: Path) -> None:
    path = tmp_path / "race.json"
    path.write_text(text)
    for num_races in (1, 0):
        entrants = Race(own=2e-3, mlx=1e-3)
        assert (entrants.winner(path), entrants.num_calls > 0) == ("mlx", num_races > 0)


def test_without_a_place_to_keep_it_each_process_races(tmp_path: Path) -> None:
    entrants = Race(own=2e-3, mlx=1e-3)
    for path in (None, tmp_path / "not a folder" / "race.json"):
        assert entrants.winner(path) == "mlx"
        assert entrants.winner(path) == "mlx"
    assert not list(tmp_path.iterdir())


def test_processes_that_race_at_once_agree(tmp_path: Path) -> None:
    """Of two at the same time the second waits for the first, and takes what that has found."""
    path, found = tmp_path / "race.json", []
    first, second = Race(own=2e-3, mlx=1e-3), Race(own=1e-3, mlx=2e-3)
    other = Thread(target=lambda: found.append(second.table(path).times(second.contest, ["own", "mlx"])))

    def begin(name: str, rows: int) -> Run:
        if other.ident is None:
            other.start()
            other.join(timeout=0.2)
        return first.start(name, rows)

    contest = replace(first.contest, start=lambda name: lambda rows: begin(name, rows))
    times = first.table(path).times(contest, ["own", "mlx"])
    other.join()
    assert (found, second.num_calls) == ([times], 0)


@pytest.mark.parametrize(
    "file", ["kernels/cpu/quantized_matmul_simd.cpp", "kernels/new.cpp", "accelerated/a.py"]
)
def test_a_kernel_that_changes_has_a_table_of_its_own(file: str, tmp_path: Path) -> None:
    folders = tmp_path / "kernels", tmp_path / "accelerated"
    for folder, package in zip(folders, (kernels, accelerated), strict=True):
        shutil.copytree(Path(package.__path__[0]), folder)
    before = race_table(*folders).path
    assert before == accelerate.own_table().path
    with (tmp_path / file).open("a") as source:
        source.write("\n")
    assert race_table(*folders).path != before


@pytest.mark.parametrize(
    "variable", ["TINY_LLM_THREADS=1", "TINY_LLM_BLAS=off", "TINY_LLM_INVARIANT=1", "CXX=nothing"]
)
def test_another_machine_has_a_table_of_its_own(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = accelerate.own_table().path
    native.find_compiler.cache_clear()
    native.machine_key.cache_clear()
    monkeypatch.setenv(*variable.split("="))
    changed = accelerate.own_table().path
    native.find_compiler.cache_clear()
    native.machine_key.cache_clear()
    assert changed != before


def test_another_type_races_again(tmp_path: Path) -> None:
    path = tmp_path / "race.json"
    assert Race(own=2e-3, mlx=1e-3).winner(path) == "mlx"
    other = Race(own=1e-3, mlx=2e-3)
    assert other.winner(path, dtype=mx.bfloat16) == "own"
    assert Race(own=1e-3, mlx=2e-3).winner(path) == "mlx"


# --- the contests of the package ----------------------------------------------------------------------------


def test_who_claims_to_keep_bits_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its outputs for 300 rows are those of the same rows in pieces."""
    use_device(mx.cpu, monkeypatch)
    for module in (contests, race_inputs):
        monkeypatch.setattr(module, "NUM_WEIGHTS", 1)
    for contest in (contests.norms(F32), contests.matmuls(F32), contests.mlps(integer_matmul, F32)):
        for name in contest.keeps_bits:
            call, _ = contest.start(contest.candidates[name])(CHUNK)
            x = normal(300, race_inputs.ON_CPU.dim, seed=1)
            for size in (1, 8, 65):
                pieces = [call(x[start : start + size]) for start in range(0, 300, size)]
                check_bits(
                    mx.concatenate(pieces), call(x), f"{contest.name} by {name}, {size} rows at a time"
                )


def test_rows_are_counted_by_what_an_operation_is_given() -> None:
    def tell(rows: int) -> Any:
        return lambda *args, **named: rows

    functions = {rows: tell(rows) for rows in ROWS}
    makers = {rows: lambda *args, own=rows: tell(own) for rows in ROWS}
    for call, by_shape in (
        (
            contests.norms(F32).by_rows(makers)(64, None, 1e-5),
            {(1, 1, 9): 1, (9, 1, 9): 8, (3, 90, 9): CHUNK},
        ),
        (contests.ropes(F32).by_rows(makers)(64, 10), {(1, 1, 7, 9): 1, (9, 1, 7, 9): 8, (1, 70, 7, 9): 64}),
        (contests.matmuls(F32).by_rows(functions), {(1, 1, 9): 1, (3, 3, 9): 8, (1, 300, 9): CHUNK}),
        (
            attention_contests.attentions(F32).by_rows(functions),
            {(1, 7, 1, 9): 1, (9, 7, 1, 9): 8, (1, 7, 2, 9): CHUNK},
        ),
    ):
        assert {shape: call(mx.zeros(shape)) for shape in by_shape} == by_shape
    attend = attention_contests.paged_attentions(F32).by_rows(functions)
    for queries, rows in (((1,), 1), ((1,) * 9, 8), ((2,), CHUNK), ((1, 5, 1), CHUNK)):
        assert attend(*draw(Shape(queries, (9,) * len(queries)), mx.float32, seed=1).arguments) == rows


@pytest.mark.parametrize("device", [mx.cpu, mx.gpu], ids=["cpu", "gpu"])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_every_candidate_is_right_in_the_type_of_the_model(
    dtype: mx.Dtype, device: mx.DeviceType, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_device(device, monkeypatch)
    monkeypatch.setenv("TINY_LLM_KERNELS", "own")  # so nothing is timed
    operations = accelerate.best_operations(dtype)
    for contest in (
        contests.norms(dtype),
        contests.ropes(dtype),
        contests.matmuls(dtype),
        contests.mlps(operations.matmul, dtype),
        attention_contests.attentions(dtype),
        attention_contests.paged_attentions(dtype),
        attention_contests.attention_layers(operations, dtype),
    ):
        assert set(contest.verdicts().values()) == {"right"}, contest.name
        for name, part in contest.candidates.items():
            call, first = contest.start(part)(ROWS[0])
            assert (first.dtype, call(first).dtype) == (dtype, dtype), f"{name} of {contest.name}"
