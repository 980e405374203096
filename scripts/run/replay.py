"""Recorded runs, shown again one above the other on one clock, at a speed at which eyes can follow."""

import time
from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from scripts.errors import signals_postponed
from scripts.run.run_report import (
    AnyRecorder,
    Runs,
    in_ms,
    marks,
    seconds_of,
    timeline_cells,
    timeline_scale,
)

REPLAY_SECONDS = 10.0
NOTICED_SECONDS = 0.5  # a pause on the screen that eyes notice
SECONDS_BETWEEN_PICTURES = 0.04
LINES_AROUND = 4  # two above the runs, two below


@dataclass(frozen=True)
class Replay:
    """Runs that have ended, on one clock.

    Args:
        title: what is served, and by whom.
        runs: of the same prompts.
        decode: the text of tokens.
        slowdown: how many seconds the screen takes for one of the runs.
    """

    title: str
    runs: Runs
    decode: Callable[[list[int]], str]
    slowdown: float

    @property
    def seconds(self) -> float:
        """How long the longest run took."""
        return max(map(seconds_of, self.runs.values()))

    def picture(self, at: float, console: Console, height: int | None = None) -> Group:
        """What had happened `at` seconds after each run began; at most `height` lines, if given."""
        text = Text(f"{self.title}\n{at:.3f} s of {self.seconds:.3f} s, {speed(self.slowdown)}")
        lines = [text, *(self._run(name, at, console, height) for name in self.runs)]
        lines.append(timeline_scale(console, self.seconds, row_width(console)))
        for line in lines:
            line.no_wrap, line.overflow = True, "crop"
        return Group(*lines)

    def _run(self, name: str, at: float, console: Console, height: int | None) -> Text:
        """The name of a run above its requests, as many as fit."""
        recorder = self.runs[name]
        num_rows = len(recorder.requests)
        if height is not None and (LINES_AROUND + len(self.runs) * (1 + num_rows)) > height:
            num_rows = max(1, (height - LINES_AROUND) // len(self.runs) - 2)
        rows = [self._row(recorder, index, at, console) for index in range(num_rows)]
        if hidden := len(recorder.requests) - num_rows:
            rows.append(Text(f"    and {hidden} more", style="dim"))
        return Text("\n").join([Text(name, style="bold"), *rows])

    def _row(self, recorder: AnyRecorder, index: int, at: float, console: Console) -> Text:
        """The timeline of a request so far, and the end of its text."""
        width = row_width(console)
        cells = timeline_cells(recorder.events, index, self.seconds, width, until=at)
        told = self.told(recorder, index, at, console.width - width - 6)
        return Text.assemble((f"{index:>3} ", "bold"), marks(cells, console), "  ", told)

    def told(self, recorder: AnyRecorder, index: int, at: float, width: int) -> Text:
        """What the user of a request sees: whether it waits, the end of its text, a pause one notices."""
        times, request = recorder.times[index], recorder.requests[index]
        num_tokens = bisect(times.tokens, at)
        if not num_tokens:
            if times.scheduled is None or times.scheduled > at:
                return Text("waits", style="dim")
            return Text(f"reads {len(recorder.prompts[index])} tokens", style="cyan")
        pause = at - times.tokens[num_tokens - 1]
        is_noticed = num_tokens < len(times.tokens) and pause * self.slowdown > NOTICED_SECONDS
        stopped = f"  no token for {in_ms(pause)}" if is_noticed else ""
        text = self.decode(request.token_ids[:num_tokens])
        return Text.assemble(last_part(text, width - len(stopped)), (stopped, "bold red"))


def row_width(console: Console) -> int:
    """Cells of a timeline that has a text beside it."""
    return max(10, (console.width - 6) // 2)


def last_part(text: str, width: int) -> str:
    """The end of a text on one line, at most `width` characters."""
    line = " ".join(text.split()).rstrip("\N{REPLACEMENT CHARACTER}")  # the rest of a character is to come
    return line if len(line) <= width else "…" + line[-max(width - 1, 1) :]


def slowdown_of(seconds: float) -> float:
    """How many times slower to show `seconds` so that it takes about ten; two digits, to be said exactly."""
    if not seconds:
        return 1.0
    factor = REPLAY_SECONDS / seconds
    return float(f"{factor:.2g}") if factor >= 1 else 1 / float(f"{1 / factor:.2g}")


def speed(slowdown: float) -> str:
    """A slow-down in words."""
    if slowdown == 1:
        return "at the speed of the run"
    if slowdown < 1:
        return f"sped up {1 / slowdown:,.10g} times"
    return f"slowed down {slowdown:,.10g} times"


def play(
    replay: Replay,
    console: Console,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Show the runs from beginning to end, and leave the last picture; Ctrl-C leaves none.

    Args:
        clock: seconds, from any start.
        sleep: waits for some of them.
    """
    with Live(console=console, auto_refresh=False, transient=True) as live:
        start = clock()
        while (at := (clock() - start) / replay.slowdown) < replay.seconds:
            picture = replay.picture(at, console, console.height)
            with signals_postponed():  # rich would write it once more at the end, and clear it once
                live.update(picture, refresh=True)
            sleep(SECONDS_BETWEEN_PICTURES)
    console.print(replay.picture(replay.seconds, console))
