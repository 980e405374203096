"""The demo's runs shown again: what is drawn at which time, and how long it takes."""

import io
import re
import signal
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from scripts.errors import usage_errors
from scripts.run.recorder import Recorder
from scripts.run.replay import REPLAY_SECONDS, Replay, play, slowdown_of, speed
from scripts.run.run_options import RunOptions
from scripts.run.run_report import final_report
from tests.support.fakes import FakeModel, FakeTokenizer, continuation, prompt_of
from tiny_llm import BatchGenerator, SamplingParams

PROMPTS = (4, 31)
DECODE = FakeTokenizer().decode


class Clock:
    """Stands still but for what is added to it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let ten times as long pass, so that a replay has fewer pictures."""
        self.now += 10 * seconds


class PacedModel(FakeModel):
    """Takes 1 ms for a call and 1 ms for each token."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def __call__(self, tokens: Any, *arguments: Any, **named: Any) -> Any:
        self.clock.now += (1 + tokens.size) / 1000
        return super().__call__(tokens, *arguments, **named)


def recorded(
    chunk: int, prompts: tuple[int, ...] = PROMPTS, max_tokens: int = 12, stretched: float = 1.0
) -> Recorder:
    """A run of prompts of these lengths, of which two are served at once; its time may be stretched."""
    clock = Clock()
    generator = BatchGenerator(PacedModel(clock), FakeTokenizer(), 2, chunk, 4096)
    recorder = Recorder(generator, lambda: stretched * clock.now)
    with generator:
        for length in prompts:
            recorder.submit(prompt_of(length), SamplingParams(max_tokens=max_tokens))
        while recorder.has_work:
            recorder.step()
    return recorder


def replay_of(slowdown: float, **runs: Recorder) -> Replay:
    return Replay("a title", {name.replace("_", " "): run for name, run in runs.items()}, DECODE, slowdown)


def shown(renderable: Any, width: int = 80) -> str:
    """What a terminal shows of it."""
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


def picture(replay: Replay, at: float, width: int = 60, height: int | None = None) -> list[str]:
    """The lines of a picture."""
    console = Console(width=width, file=io.StringIO())
    return [line.rstrip() for line in shown(replay.picture(at, console, height), width).splitlines()]


def test_a_picture_shows_who_waits_reads_writes_and_stands_still() -> None:
    whole, chunks = recorded(4096), recorded(8)
    replay = replay_of(100.0, whole_prompts=whole, chunks_of_8=chunks)
    # 5 ms for the first prompt; then 32 for the other, or 9 for a part of it; then 2 for a second token
    assert [round(event.end, 3) for event in whole.events[:3]] == [0.005, 0.037, 0.039]
    assert [round(event.end, 3) for event in chunks.events[:4]] == [0.005, 0.014, 0.016, 0.025]
    assert picture(replay, 0.002) == [
        "a title",
        "0.002 s of 0.077 s, slowed down 100 times",
        "whole prompts",
        "  0 █                            reads 4 tokens",
        "  1                              waits",
        "chunks of 8",
        "  0 █                            reads 4 tokens",
        "  1                              waits",
        "    0 s                  0.08 s",
        "    █ prefill   • decode",
    ]
    answers = [DECODE(continuation(prompt_of(length), 12)) for length in PROMPTS]
    assert picture(replay, 0.030)[3:8] == [
        f"  0 ██                           {answers[0][0]}  no token for 25 ms",
        "  1  ██████████                  reads 31 tokens",
        "chunks of 8",
        f"  0 ██  ••  ••                   {answers[0][:3]}",
        "  1  ██████████                  reads 31 tokens",
    ]
    at_end = picture(replay, replay.seconds)
    assert at_end[1] == "0.077 s of 0.077 s, slowed down 100 times"
    for lines in (at_end[3:5], at_end[6:8]):
        assert [line.split()[-1] for line in lines] == answers


@pytest.mark.parametrize("slowdown", [15.0, 1.0])
def test_a_pause_that_eyes_would_miss_is_not_called_one(slowdown: float) -> None:
    whole = recorded(4096)  # pauses for 34 ms
    assert "no token" not in shown(replay_of(slowdown, whole=whole).picture(0.037, Console(width=80)))
    assert "no token for 32 ms" in shown(replay_of(16.0, whole=whole).picture(0.037, Console(width=80)))


def test_a_picture_of_more_requests_than_lines_says_how_many_are_left_out() -> None:
    replay = replay_of(1.0, whole=recorded(4096, (3,) * 9), chunks=recorded(2, (3,) * 9))
    cut, all_lines = picture(replay, 0.0, height=16), picture(replay, 0.0)
    assert (len(cut), len(all_lines)) == (16, 24)
    assert cut[6:8] == ["  3                              waits", "    and 5 more"]
    assert picture(replay, 0.0, height=24) == all_lines
    assert len(picture(replay, 0.0, height=3)) == 10, "one request of each run at least"


def test_one_request_that_ends_with_its_first_token() -> None:
    replay = replay_of(1000.0, whole=recorded(4096, (3,), max_tokens=1))
    assert picture(replay, replay.seconds) == [
        "a title",
        "0.004 s of 0.004 s, slowed down 1,000 times",
        "whole",
        f"  0 {'█' * 27}  {DECODE(continuation(prompt_of(3), 1))}",
        "    0 s                  0.00 s",
        "    █ prefill   • decode",
    ]
    assert "no token" not in shown(replay.picture(1.0, Console(width=80)))


@pytest.mark.parametrize("stretched", [0.01, 1.0, 7.3, 250.0, 1e4])
def test_a_replay_takes_about_ten_seconds_and_says_how_much_slower_it_is(stretched: float) -> None:
    runs = {"whole": recorded(4096, stretched=stretched), "chunks": recorded(8, stretched=stretched)}
    seconds = max(run.events[-1].end for run in runs.values())
    clock, terminal = Clock(), io.StringIO()
    console = Console(file=terminal, force_terminal=True, width=80, height=24, color_system=None)
    play(replay_of(slowdown_of(seconds), **runs), console, clock, clock.sleep)
    assert clock.now == pytest.approx(REPLAY_SECONDS, abs=1.0)
    (said,) = set(re.findall(r"s, (slowed down|sped up) ([\d.,]+) times", terminal.getvalue()))
    factor = float(said[1].replace(",", ""))
    used = factor if said[0] == "slowed down" else 1 / factor
    assert clock.now == pytest.approx(seconds * used, abs=0.5), "as slow as it says"
    assert f"{seconds:.3f} s of {seconds:.3f} s" in terminal.getvalue().rpartition("a title")[2]


def test_in_real_time_it_takes_as_long_as_it_took() -> None:
    clock, run = Clock(), recorded(8, stretched=60)
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=24)
    play(replay_of(1.0, chunks=run), console, clock, clock.sleep)
    assert clock.now == pytest.approx(run.events[-1].end, abs=0.5)


class Interrupted(io.StringIO):
    """A terminal that gets a Ctrl-C as soon as it shows some words."""

    is_pressed = False

    def write(self, text: str) -> int:
        length = super().write(text)
        if "a title" in text and not self.is_pressed:
            self.is_pressed = True
            signal.raise_signal(signal.SIGINT)
        return length


def test_a_picture_that_ctrl_c_interrupts_is_drawn_in_one_place() -> None:
    clock, terminal = Clock(), Interrupted()
    console = Console(file=terminal, force_terminal=True, width=80, height=24)
    with pytest.raises(SystemExit), usage_errors():
        play(replay_of(1.0, chunks=recorded(8, stretched=60)), console, clock, clock.sleep)
    assert terminal.getvalue().count("a title") == 2  # the last time in the same place, to be cleared


@pytest.mark.parametrize(
    ("slowdown", "words"),
    [
        (1.0, "at the speed of the run"),
        (slowdown_of(0.331), "slowed down 30 times"),
        (slowdown_of(4.1), "slowed down 2.4 times"),
        (slowdown_of(10.1), "at the speed of the run"),
        (slowdown_of(31.4), "sped up 3.1 times"),
        (slowdown_of(0.0012), "slowed down 8,300 times"),
        (slowdown_of(0.0), "at the speed of the run"),
    ],
)
def test_a_slow_down_in_words(slowdown: float, words: str) -> None:
    assert speed(slowdown) == words


def test_the_report_has_two_runs_side_by_side_and_their_timelines_on_one_scale() -> None:
    runs = {"whole prompts": recorded(4096), "chunks of 8": recorded(8)}
    console = Console(width=80, file=io.StringIO())
    lines = [line.rstrip() for line in shown(final_report(runs, console)).splitlines()]
    assert [" ".join(line.split()) for line in lines[:4]] == [
        "TTFT TTFT ITL p50 ITL p50 longest longest",
        "request prompt output whole chunks whole chunks whole chunks",
        "0 4 12 5 ms 5 ms 3 ms 3 ms 34 ms 11 ms",
        "1 31 12 37 ms 46 ms 3 ms 3 ms 5 ms 5 ms",
    ]
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.endswith((*runs, "longest 34 ms", "longest 11 ms"))] == [
        "whole prompts",
        "gap between tokens: p99 28 ms, longest 34 ms",
        "chunks of 8",
        "gap between tokens: p99 11 ms, longest 11 ms",
    ]
    assert sum("█" in line for line in lines) == 5, "two rows for each run, and what the mark means"
    assert "█" not in shown(final_report(runs, console, has_timelines=False))


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, ["whole prompts", "chunks of 64"]),
        ({"mine": True, "max_tokens": 3, "temperature": 1.0, "seed": 5}, ["whole prompts", "chunks of 64"]),
        ({"no_chunking": True}, ["whole prompts"]),
        ({"prefill_step": 16}, ["chunks of 16"]),
        ({"batch_size": 2}, ["chunks of 64"]),
        ({"rounds": 2}, ["chunks of 64"]),
        ({"engine": "serving", "budget": 32}, ["32 tokens a step"]),
        ({"engine": "serving", "no_chunking": True}, ["whole prompts"]),
    ],
)
def test_an_option_that_says_how_to_serve_is_shown_alone(changes: dict[str, Any], names: list[str]) -> None:
    options = RunOptions(**changes)
    assert [each.name for each in options.variants] == names
    assert options.variants[-1] == options
    assert replace(options.variants[0], no_chunking=options.no_chunking) == options
