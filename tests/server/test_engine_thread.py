"""The engine's thread: commands in, one report out per step, and no array leaves it."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import mlx.core as mx
import pytest

from tests.support.fakes import FakeModel, continuation, prompt_of
from tests.support.schedules import IdTokenizer, random_qwen3
from tests.support.server_engines import ENGINES, SECONDS, GatedModel, failing, make_engine
from tiny_llm import Engine, SamplingParams
from tiny_llm.server import thread_end
from tiny_llm.server.engine_thread import EngineThread, end_streams
from tiny_llm.server.mailbox import Increment, Loaded, Report, StepReport, Stopped
from tiny_llm.server.thread_law import check_plain


class Watched:
    """An engine's thread and its reports."""

    def __init__(self, make: Callable[[], Engine]) -> None:
        self.reports: SimpleQueue[Report] = SimpleQueue()
        self.thread = EngineThread(make, self.post)
        self.all: list[Report] = []

    def post(self, report: Report) -> None:
        assert threading.current_thread().name == "engine"
        check_plain(report)
        self.reports.put(report)

    def next(self) -> Report:
        self.all.append(self.reports.get(timeout=SECONDS))
        return self.all[-1]

    def until_ended(self, *tickets: int) -> dict[int, list[Increment]]:
        """Increments of all tickets until these have ended, were refused or failed."""
        increments: dict[int, list[Increment]] = {}
        open_tickets = set(tickets)
        while open_tickets:
            report = self.next()
            assert isinstance(report, StepReport), report
            for each in report.increments:
                increments.setdefault(each.ticket, []).append(each)
                open_tickets -= {each.ticket} if each.finish_reason else set()
            open_tickets -= set(report.refused) | set(report.failed)
        return increments


@contextmanager
def watched(make: Callable[[], Engine] = make_engine) -> Iterator[Watched]:
    it = Watched(make)
    it.thread.start()
    try:
        yield it
    finally:
        it.thread.stop()
        assert it.thread.join(SECONDS)


def tokens_of(increments: list[Increment]) -> list[int]:
    return [token for each in increments for token in each.token_ids]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_destructors_of_an_ended_thread_have_run() -> None:
    for _ in range(5):
        with watched() as engine:
            engine.next()
            native_id = engine.thread._thread.native_id
        assert not Path(f"/proc/self/task/{native_id}").exists()


def test_requests_get_the_tokens_they_get_alone() -> None:
    with watched() as engine:
        loaded = engine.next()
        assert loaded == Loaded(vocab_size=61, max_seq_len=40, num_blocks=30, block_size=4)
        for ticket in range(6):
            engine.thread.submit(
                ticket + 100, tuple(prompt_of(4 + ticket, ticket)), SamplingParams(max_tokens=5)
            )
        increments = engine.until_ended(*range(100, 106))
    for ticket in range(6):
        mine = increments[ticket + 100]
        assert tokens_of(mine) == continuation(prompt_of(4 + ticket, ticket), 5)
        assert [each.finish_reason for each in mine] == [None] * 4 + ["length"]
        assert "".join(each.text for each in mine) == "".join(chr(64 + token) for token in tokens_of(mine))
    started = {ticket: number for report in engine.all[1:] for ticket, number in report.started.items()}
    assert started == dict.fromkeys(range(100, 106), 0)


def test_there_is_one_report_per_step() -> None:
    model = FakeModel()
    with watched(lambda: make_engine(model=model)) as engine:
        engine.next()
        for ticket in range(3):
            engine.thread.submit(ticket, tuple(prompt_of(4, ticket)), SamplingParams(max_tokens=6))
        engine.until_ended(0, 1, 2)
    assert len(engine.all) - 1 == len(model.calls)
    assert engine.reports.get_nowait() == Stopped()
    assert engine.reports.empty()


def test_commands_return_during_a_step_and_a_drop_comes_before_the_next() -> None:
    model = GatedModel()
    with watched(lambda: make_engine(model=model)) as engine:
        engine.next()
        engine.thread.submit(0, tuple(prompt_of(4)), SamplingParams(max_tokens=9))
        engine.thread.submit(1, tuple(prompt_of(4, 1)), SamplingParams(max_tokens=2))
        assert model.is_waiting.acquire(timeout=SECONDS)
        engine.thread.abort(0)
        engine.thread.abort(77)
        engine.thread.submit(2, tuple(prompt_of(3)), SamplingParams(max_tokens=1))
        model.gate.release(20)
        increments = engine.until_ended(1, 2)
        assert len(increments.get(0, [])) <= 1
        assert engine.all[-1].stats.num_used_blocks == 0


@pytest.mark.parametrize(
    ("prompt", "params", "reason"),
    [
        ((), SamplingParams(), "empty"),
        ((99,), SamplingParams(), "99"),
        (tuple(prompt_of(41)), SamplingParams(), "41"),
        ((1,), SamplingParams(stop_token_ids=[99]), "stop_token_ids"),
    ],
)
def test_a_refused_request_is_reported_and_the_next_one_runs(
    prompt: tuple[int, ...], params: SamplingParams, reason: str
) -> None:
    with watched() as engine:
        engine.next()
        engine.thread.submit(0, prompt, params)
        report = engine.next()
        assert isinstance(report, StepReport)
        assert reason in report.refused[0]
        engine.thread.submit(1, (1, 2), SamplingParams(max_tokens=1))
        assert tokens_of(engine.until_ended(1)[1]) == continuation((1, 2), 1)


def test_a_request_that_breaks_its_steps_is_reported() -> None:
    make = lambda: failing(make_engine(), lambda output: any(e.sequence.id == 0 for e in output.entries))  # noqa: E731
    with watched(make) as engine:
        engine.next()
        engine.thread.submit(5, (1, 2), SamplingParams(max_tokens=3))
        engine.thread.submit(6, (3, 4), SamplingParams(max_tokens=3))
        increments = engine.until_ended(5, 6)
        assert tokens_of(increments[6]) == continuation((3, 4), 3)
        failed = {ticket: text for report in engine.all[1:] for ticket, text in report.failed.items()}
        assert failed == {5: "StepFailureError: told to fail"}


def test_the_cached_tokens_of_a_prompt_are_reported() -> None:
    with watched() as engine:
        engine.next()
        for ticket in range(2):
            engine.thread.submit(ticket, tuple(prompt_of(9)), SamplingParams(max_tokens=1))
            engine.until_ended(ticket)
        started = {ticket: number for report in engine.all[1:] for ticket, number in report.started.items()}
        assert started == {0: 0, 1: 8}


def test_drafts_are_reported() -> None:
    with watched(ENGINES["speculative"]) as engine:
        engine.next()
        for ticket in (5, 6):
            engine.thread.submit(ticket, tuple(prompt_of(4, ticket)), SamplingParams(max_tokens=9))
        increments = engine.until_ended(5, 6)
    steps = [report for report in engine.all[1:] if isinstance(report, StepReport)]
    for ticket in (5, 6):
        assert tokens_of(increments[ticket]) == continuation(prompt_of(4, ticket), 9)
        counts = [report.drafts[ticket] for report in steps if ticket in report.drafts]
        num_accepted = sum(accepted for _, accepted in counts)
        assert num_accepted == 9 - len(increments[ticket]) > 0
        assert sum(drafts for drafts, _ in counts) > num_accepted


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_destructors_that_hang_are_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    monkeypatch.setattr(thread_end, "ENDING_SECONDS", 0.01)
    monkeypatch.setattr(thread_end.Path, "exists", lambda path: True)
    assert not thread_end.join_native(thread)
    assert not thread_end.join_native(thread, 0.01)


def test_streams_end_although_the_device_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []

    def synchronize() -> None:
        raise RuntimeError("[METAL] Command buffer execution failed: GPU Timeout Error")

    monkeypatch.setattr(mx, "synchronize", synchronize)
    monkeypatch.setattr(mx, "clear_streams", lambda: ended.append(True))
    with pytest.raises(RuntimeError, match="GPU Timeout"):
        end_streams()
    assert ended == [True]


@pytest.mark.parametrize("error", [ValueError("no such model"), SystemExit(3)])
def test_an_engine_that_cannot_be_made(error: BaseException) -> None:
    def make() -> Engine:
        raise error

    with watched(make) as engine:
        report = engine.next()
        assert isinstance(report, Stopped)
        assert str(error) in str(report.error)


def test_stop_frees_everything_and_says_so() -> None:
    made: list[Engine] = []

    def make() -> Engine:
        made.append(make_engine())
        return made[-1]

    with watched(make) as engine:
        engine.next()
        engine.thread.submit(0, tuple(prompt_of(4)), SamplingParams(max_tokens=30))
        engine.next()
        engine.thread.stop()
        while not isinstance(report := engine.next(), Stopped):
            pass
    assert report == Stopped()
    assert made[0].is_closed
    assert made[0].runner.pool.state == []  # type: ignore[attr-defined]


def test_a_model_loaded_in_another_thread_is_explained() -> None:
    model = random_qwen3()
    lazy = mx.random.normal((4, 4)) @ mx.random.normal((4, 4))

    def make() -> Engine:
        mx.eval(lazy)
        return Engine(model, IdTokenizer())

    with watched(make) as engine:
        report = engine.next()
        assert isinstance(report, Stopped)
        assert "let the engine's thread load the model" in str(report.error)


@pytest.mark.parametrize(
    ("report", "place"),
    [
        (StepReport(increments=([1],)), r"report\.increments\[0\]"),  # type: ignore[arg-type]
        (StepReport(started={1: mx.array(1)}), r"report\.started\[1\]"),  # type: ignore[dict-item]
        (StepReport(started={frozenset(): 1}), r"a key of report\.started"),  # type: ignore[dict-item]
        (Stopped(mx.array(1)), r"report\.error"),  # type: ignore[arg-type]
    ],
    ids=["list", "array", "key", "field"],
)
def test_what_may_not_leave_the_thread(report: Report, place: str) -> None:
    with pytest.raises(TypeError, match=f"^{place} .* only text and numbers may leave the thread"):
        check_plain(report)
