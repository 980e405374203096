"""The race of kernels: microseconds of each candidate by operation and number of rows, and who wins.

pdm run bench race --mine
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from kernel_runtime.contest import ROWS
from kernel_runtime.race import finished
from scripts.errors import usage_errors
from scripts.packages import import_package

Mine = Annotated[bool, typer.Option("--mine", help="Race tiny_llm, your own, as well as the reference.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Race again, in place of the table that is kept.")]
HEADS = {"given": "given", "mlx": "MLX's", "plain": "plain"}
ASIDE = "*"


@dataclass(frozen=True)
class Outcome:
    """What a race found.

    Attributes:
        operation: its name.
        verdicts: of each candidate: right, wrong or missing.
        times: seconds by candidate and number of rows, of those that are right and do not fail.
        winners: names by number of rows; none if no candidate is correct.
        admitted: who could win.
    """

    operation: str
    verdicts: Mapping[str, str]
    times: Mapping[str, Mapping[int, float]]
    winners: Mapping[int, str]
    admitted: list[str]


def main(mine: Mine = False, fresh: Fresh = False) -> None:
    """Print what each candidate takes for each operation, and which one models use on this machine.

    Models take the fastest of the course's kernel, MLX's own operation and the plain version, unless
    TINY_LLM_KERNELS says otherwise. The times are measured once and kept until a kernel changes.
    """
    os.environ["TINY_LLM_KERNELS"] = "race"
    with usage_errors():
        sides = ["yours", "reference"] if mine else ["reference"]
        outcomes = {side: list(race(side == "yours", fresh)) for side in sides}
    from benches.speed import machine  # after the package, which puts a fast BLAS in place

    print(", ".join(map(str, machine().values())))
    print_table(outcomes)


def race(is_mine: bool, is_fresh: bool) -> Iterator[Outcome]:
    """The outcome of each operation's race for a package, from the table that is kept or timed now."""
    package = import_package(is_mine)
    from accelerated import accelerate  # which stands on it

    table = replace(accelerate.own_table(), announce=lambda: None)  # the bar of progress does
    title, notes = f"racing {package.__name__}", Console(stderr=True)
    for contest in track(accelerate.all_contests(), title, console=notes, disable=not notes.is_terminal):
        verdicts = contest.verdicts()
        right = [name for name, verdict in verdicts.items() if verdict == "right"]
        times = finished(table.times(contest, right, is_fresh)) if right else {}
        admitted = [name for name in contest.admitted(contest.correct(verdicts)) if name in times]
        winners = contest.winners({name: times[name] for name in admitted}) if admitted else {}
        yield Outcome(contest.name, verdicts, times, winners, admitted)


def print_table(outcomes: Mapping[str, list[Outcome]]) -> None:
    """A line for each operation and number of rows: the course's kernel by each package, then the others."""
    first = next(iter(outcomes.values()))
    others = [name for name in HEADS if any(name in each.verdicts for each in first)]
    heads = [*outcomes, *(HEADS[name] for name in others), "of MLX's speed"]
    widths = [*(12 for _ in outcomes), *(10 for _ in others), 16]
    print("microseconds per call\n")
    print(f"{'operation':16}{'rows':>5}{in_columns(heads, widths)}  winner")
    for number, outcome in enumerate(first):
        for rows in ROWS:
            cells = [cell(each[number], "own", rows) for each in outcomes.values()]
            cells += [*(cell(outcome, name, rows) for name in others), share_of_mlx(outcome, rows)]
            winner = outcome.winners.get(rows, "-")
            print(f"{outcome.operation:16}{rows:>5}{in_columns(cells, widths)}  {winner}")
    if any(set(each.times) - set(each.admitted) for each in first if each.winners):
        print(f"\n{ASIDE} takes no part: a row's bits would depend on how many rows there are")


def in_columns(texts: Iterable[str], widths: Iterable[int]) -> str:
    """The texts at the right of columns of these widths."""
    return "".join(f"{text:>{width}}" for text, width in zip(texts, widths, strict=True))


def cell(outcome: Outcome, name: str, rows: int) -> str:
    """Microseconds, or why there are none."""
    if name not in outcome.verdicts:
        return "-"
    if name not in outcome.times:
        return {"missing": "unwritten", "wrong": "wrong", "right": "fails"}[outcome.verdicts[name]]
    mark = "" if name in outcome.admitted or not outcome.winners else ASIDE
    microseconds = 1e6 * outcome.times[name][rows]
    return f"{microseconds:.1f}{mark}" if microseconds < 1000 else f"{microseconds:,.0f}{mark}"


def share_of_mlx(outcome: Outcome, rows: int) -> str:
    """How fast the course's kernel is, MLX's operation being 1."""
    course = [outcome.times[name][rows] for name in ("given", "own") if name in outcome.times]
    mlx = outcome.times.get("mlx")
    return f"{mlx[rows] / course[0]:.2f}" if course and mlx else "-"
