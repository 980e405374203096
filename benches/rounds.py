"""Measure sides in turns, as often as it takes until their medians are certain."""

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from math import comb
from statistics import median
from typing import Annotated, TypeAlias, TypeVar

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

T = TypeVar("T")
Name: TypeAlias = tuple[str, str, str]  # of what is measured, of the side, of the figure

CONFIDENCE = 0.95
PRECISION = 0.02  # half the width of the interval, as a share of the median
LEAST, MOST = 6, 100  # rounds; no interval of fewer values is certain enough
WIDEST_RECORDED = 0.1
ENOUGH_SECONDS = 60.0  # of one side, after which medians that can be recorded are certain enough
MOST_SECONDS = 90.0  # of one side, after which it is measured no more
PAUSE = 0.1  # seconds before a run: the threads of a BLAS spin for a while after its last product

Repeats = Annotated[
    int | None,
    typer.Option(
        min=1, help=f"Runs of each; unless given, until the medians are certain to {PRECISION:.0%}."
    ),
]


def itself(value: float) -> dict[str, float]:
    """The figures of a result that is a number."""
    return {"": value}


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The narrowest symmetric pair of values that holds the true median with 95% confidence.

    It assumes nothing of how the values are distributed: each is above the median as often as below, so how
    many are is a binomial number. None for fewer than 6 values, of which no pair is that certain.
    """
    ordered, n = sorted(values), len(values)
    rank, outside = 0, 0
    while outside + comb(n, rank) <= (1 - CONFIDENCE) / 2 * 2**n:
        outside += comb(n, rank)
        rank += 1
    return (ordered[rank - 1], ordered[n - rank]) if rank else None


def uncertainty(values: Sequence[float]) -> float | None:
    """Half the interval's width as a share of the median; None where there is no interval."""
    interval = median_interval(values)
    if interval is None:
        return None
    low, high = interval
    return (high - low) / 2 / abs(median(values)) if high > low else 0.0


def written(makers: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """What each makes, by name; a note tells which are left out, since their code is not written yet.

    Raises:
        NotImplementedError: none is written.
    """
    made, missing = {}, {}
    for name, make in makers.items():
        try:
            made[name] = make()
        except NotImplementedError as error:
            missing[name] = error
    if missing and not made:
        raise next(iter(missing.values()))
    for name, reason in missing.items():
        say(f"without {name}: {reason}")
    return made


@cache
def say(note: str) -> None:
    """Print it once, however often it is said."""
    print(note, file=sys.stderr)


@dataclass
class Rounds:
    """How often each side is measured, and how certain that made the medians.

    Args:
        repeats: a fixed number of runs; None repeats until the medians are certain to 2%, or to 10% after
            a minute of a side: six times at least, and at most a hundred times or for a minute and a half.
    """

    repeats: int | None = None
    series: dict[Name, list[float]] = field(default_factory=dict)

    def in_turns(
        self,
        sides: Iterable[str],
        run: Callable[[str, int], T],
        figures: Callable[[T], Mapping[str, float]],
        title: str = "",
    ) -> dict[str, list[T]]:
        """What `run(side, round)` returns, by side; round 0 warms up and is left out.

        The sides take turns, so that what else the machine does hits all of them. Each run begins after a
        pause, or the side before it would still keep a core busy. A side whose medians are certain is
        measured no more; one whose code is not written yet is left out.

        Args:
            sides: their names.
            run: one measurement of a side.
            figures: the numbers of a result whose medians count.
            title: of what is measured, where there are several such calls.
        """
        notes = Console(stderr=True)
        columns = SpinnerColumn(), TextColumn("{task.description}")
        with Progress(*columns, console=notes, disable=not notes.is_terminal, transient=True) as progress:
            task = progress.add_task(f"{title}, warming up")
            results: dict[str, list[T]] = {
                side: [] for side in written({side: partial(run, side, 0) for side in sides})
            }
            seconds, pending, turn = dict.fromkeys(results, 0.0), list(results), 1
            while pending:
                for side in pending:
                    progress.update(task, description=f"{title} {side}, round {turn}".strip())
                    time.sleep(PAUSE)
                    start = time.perf_counter()
                    result = run(side, turn)
                    seconds[side] += time.perf_counter() - start
                    results[side].append(result)
                    self.note(title, side, figures(result))
                turn += 1
                pending = [side for side in pending if self.needs_more(side, title, turn - 1, seconds[side])]
        return results

    def note(self, title: str, side: str, figures: Mapping[str, float]) -> None:
        """Add figures to their series."""
        for figure, value in figures.items():
            self.series.setdefault((title, side, figure), []).append(value)

    def needs_more(self, side: str, title: str, num_runs: int, seconds: float) -> bool:
        """Whether a side is to be measured once more."""
        if self.repeats is not None:
            return num_runs < self.repeats
        if num_runs < LEAST:
            return True
        if num_runs >= MOST or seconds >= MOST_SECONDS:
            return False
        enough = PRECISION if seconds <= ENOUGH_SECONDS else WIDEST_RECORDED
        widths = [uncertainty(values) for name, values in self.series.items() if name[:2] == (title, side)]
        return any(width is None or width > enough for width in widths)

    def summary(self) -> str:
        """How many runs there were, and how certain the medians are."""
        counts = [len(values) for values in self.series.values()]
        if not counts:
            return "nothing was repeated"
        runs = " to ".join(str(count) for count in sorted({min(counts), max(counts)}))
        widths = self.uncertainties()
        narrow = sum(width <= PRECISION for width in widths.values())
        plural = "s" * (max(counts) > 1)
        text = f"{runs} run{plural} in turns, {narrow} of {len(counts)} medians certain to {PRECISION:.0%}"
        if widths and narrow < len(widths):
            widest = max(widths, key=lambda name: widths[name])
            text += f", the least certain to {widths[widest]:.1%} ({described(widest)})"
        if len(widths) < len(counts):
            text += f", {len(counts) - len(widths)} of fewer than {LEAST} runs"
        return text

    def uncertainties(self) -> dict[Name, float]:
        """Of each series that has an interval."""
        found = {name: uncertainty(values) for name, values in self.series.items()}
        return {name: width for name, width in found.items() if width is not None}

    def refuse_uncertain(self) -> None:
        """ValueError if a median is too uncertain to be written down, or will be: it has fewer than 6 runs.

        The single run that `--repeats 1` asks for calls itself one, and is recorded.
        """
        if self.repeats == 1:
            return
        num_runs = min([len(values) for values in self.series.values()] or [self.repeats or LEAST])
        if num_runs < LEAST:
            raise ValueError(
                f"nothing was recorded: {num_runs} runs are too few for a median ({LEAST} at least are "
                "recorded). Leave --repeats out, or record a single run with --repeats 1"
            )
        for name, width in self.uncertainties().items():
            if width > WIDEST_RECORDED:
                raise ValueError(
                    f"nothing was recorded: the median of {described(name)} is certain to {width:.0%} only "
                    f"({WIDEST_RECORDED:.0%} at most is recorded). Find out what disturbs this machine, such "
                    "as other containers or heat, and run this again"
                )


def described(name: Name) -> str:
    """A series in words."""
    return ", ".join(part for part in name if part)
