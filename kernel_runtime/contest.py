"""An operation that races: its candidates, which of them are correct, and which may win."""

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, cast

import mlx.core as mx

from .native import is_invariant, notice
from .self_check import CLOSE, MLX, Verdict, judge

CHUNK = 256
ROWS = (1, 8, 64, CHUNK)
"""Numbers of rows that are timed, each for the shapes around it."""
MOST_ROWS = (2, 22, 128)
"""Most rows of each class but the last: about as many times one class as the next is of them."""
MARGIN = 0.05
"""By how much another candidate must beat the first: less may be noise."""
COURSE = frozenset(("own", "given"))

Part = TypeVar("Part")
Made = TypeVar("Made")
Function = TypeVar("Function", bound=Callable[..., Any])
Run = tuple[Callable[[mx.array], mx.array], mx.array]
"""A call that is ready, and its first input."""
Times = Mapping[str, Mapping[int, float]]
"""Seconds of a call, by candidate and number of rows."""


@dataclass(frozen=True)
class Contest(Generic[Part]):
    """An operation and the candidates that may compute it.

    Args:
        name: of the operation.
        kernel: name of the course's kernel, as notices say it.
        candidates: the parts that a model may be made of: "own", "given", "mlx" and "plain", as far as they
            exist; what is given with the course takes the place of "own" once that works.
        fallback: the part of a model without kernels.
        sample: a small output of a candidate.
        expected: the same output by MLX's own operations.
        start: makes a candidate ready, as a function of an array of one shape and type for so many rows, and
            the first such array. The output of each call is the input of the next, as in a model. None for
            an operation without a race: the first correct candidate wins.
        by_rows: one part of those for each number of rows; None if one must compute all of them.
        keeps_bits: the candidates whose output for a row is the same to the last bit among any other rows.
        close: largest error, relative to the largest entry.
        dtype: the type in which candidates are judged and timed: that of the model.
        is_kernel: whether TINY_LLM_KERNELS decides; otherwise what is written and correct is always used.
        stand_in: what notices call the operation that is used instead of the course's.
    """

    name: str
    kernel: str
    candidates: Mapping[str, Part]
    fallback: Part
    sample: Callable[[Part], mx.array]
    expected: Callable[[], mx.array]
    start: Callable[[Part], Callable[[int], Run]] | None = None
    by_rows: Callable[[Mapping[int, Part]], Part] | None = None
    keeps_bits: Collection[str] = ("own",)
    close: float = CLOSE
    dtype: mx.Dtype = mx.float32
    is_kernel: bool = True
    stand_in: str = MLX

    @property
    def key(self) -> str:
        """Of the operation in the table of times."""
        return f"{self.name} in {self.dtype}"

    def judge(self, name: str) -> Verdict:
        """Whether a candidate is correct; a notice says so if one of the course's is not."""
        part = self.candidates[name]
        kernel = getattr(part, "__name__", name) if name == "given" else self.kernel
        compute = partial(self.sample, part)
        return judge(kernel, compute, self.expected, self.close, name in COURSE, self.stand_in)

    def without_failing(self, names: Iterable[str], make: Callable[[str], Made]) -> dict[str, Made]:
        """What is made for each candidate; one for which that raises an error loses, and a notice tells."""
        made = {}
        for name in names:
            try:
                made[name] = make(name)
            except Exception as error:  # a GPU lacks something, or its compiler refuses a source
                reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
                notice(f"the candidate {name!r} for {self.key} fails and is not used: {reason}")
        return made

    def verdicts(self) -> dict[str, Verdict]:
        """Whether each candidate is correct."""
        return {name: self.judge(name) for name in self.candidates}

    def correct(self, verdicts: Mapping[str, Verdict]) -> list[str]:
        """The candidates that are correct; none until the course's kernel is written."""
        own = verdicts.get("own")
        right = [name for name, verdict in verdicts.items() if verdict == "right"]
        return [] if own == "missing" else [name for name in right if name != "given" or own == "right"]

    def admitted(self, correct: Collection[str]) -> list[str]:
        """Those of the correct candidates that may win: all, or those that keep a row's bits."""
        return [name for name in correct if name in self.keeps_bits or not must_keep_bits(correct)]

    def winners(self, times: Times) -> dict[int, str]:
        """The fastest candidate for each number of rows, one and the same wherever they must not differ."""
        if self.by_rows is None or must_keep_bits(times):
            return dict.fromkeys(ROWS, fastest(times, ROWS))
        return {rows: fastest(times, [rows]) for rows in ROWS}

    def part(self, winners: Mapping[int, str]) -> Part:
        """What a model is made of if these win."""
        parts = {rows: self.candidates[name] for rows, name in winners.items()}
        if self.by_rows is None or len(set(parts.values())) == 1:
            return parts[CHUNK]
        return self.by_rows(parts)


def must_keep_bits(candidates: Collection[str]) -> bool:
    """Whether a row's bits may not depend on the number of rows.

    TINY_LLM_INVARIANT asks for that; on a CPU, the course's kernels promise it.
    """
    has_kernel = not COURSE.isdisjoint(candidates)
    return is_invariant() or (has_kernel and mx.default_device() != mx.gpu)


def fastest(times: Times, rows: Sequence[int]) -> str:
    """The candidate with the lowest mean ratio to the first; that one unless the other wins by MARGIN."""
    first = next(iter(times))

    def ratio(name: str) -> float:
        return math.prod(times[name][count] / times[first][count] for count in rows) ** (1 / len(rows))

    best = min(times, key=ratio)
    return best if ratio(best) < 1 - MARGIN else first


def switch(functions: Mapping[int, Function], rows_of: Callable[..., int]) -> Function:
    """A function that calls the one for its number of rows."""

    def call(*args: Any, **named: Any) -> Any:
        return functions[row_class(rows_of(*args))](*args, **named)

    return cast(Function, call)


def row_class(rows: int) -> int:
    """Which of ROWS stands for a number of rows."""
    return ROWS[bisect_left(MOST_ROWS, rows)]
