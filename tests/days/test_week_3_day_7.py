"""Week 3, day 7: the server."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from collections.abc import Sequence as Items
from contextlib import suppress
from queue import Empty
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.check import check_equal, check_value_error
from tests.support.fakes import FakeModel, FakeTokenizer, continuation, prompt_of
from tests.support.schedules import IdTokenizer, random_qwen3
from tests.support.server_engines import ENGINES, SECONDS, failing, make_engine
from tests.support.text_tokenizers import ByteTokenizer
from tiny_llm import (
    CostModel,
    Engine,
    SamplingParams,
    ScheduledTokens,
    SchedulerConfig,
    SchedulerOutput,
    Simulator,
)
from tiny_llm.batching.answer import TokenLogprobs
from tiny_llm.engine.engine_request import EngineRequest
from tiny_llm.server import engine_thread
from tiny_llm.server.admission import (
    Admission,
    QueueFullError,
    RemainingWork,
    Reservation,
    seconds_until_room,
)
from tiny_llm.server.capacity import highest_rate, poisson_arrivals
from tiny_llm.server.disconnects import ClientGoneError, unless_disconnected
from tiny_llm.server.engine_thread import EngineThread, LiveRequest
from tiny_llm.server.mailbox import (
    Abort,
    Command,
    Increment,
    Loaded,
    Report,
    StepReport,
    Stop,
    Stopped,
    Submit,
)
from tiny_llm.server.recovery import RecoveringEngine
from tiny_llm.server.text_increments import TextIncrements, cut_off, num_held_back
from tiny_llm.server.thread_law import check_plain, explained

# Task 1: text as it comes


def pieces_of(pieces: list[str], stop: tuple[str, ...]) -> list[str]:
    """What is sent for tokens whose texts are `pieces`; the last item is what `finish` sends."""
    increments = TextIncrements(FakeTokenizer(pieces), stop)
    return [*(increments.add(token) for token in range(len(pieces))), increments.finish()]


@pytest.mark.parametrize(
    ("text", "stop", "held"),
    [
        ("", ("ab",), 0),
        ("xyz", (), 0),
        ("xyz", ("abc",), 0),
        ("xya", ("abc",), 1),
        ("xab", ("abc",), 2),
        ("aab", ("abc", "bd"), 2),
        ("xab", ("bd", "abc"), 2),
        ("abcx", ("abc",), 4),
        ("xabcabc", ("abc",), 6),
        ("aaaa", ("aab",), 2),
    ],
)
def test_task_1_what_may_begin_a_stop_string_is_held_back(
    text: str, stop: tuple[str, ...], held: int
) -> None:
    longest = max(map(len, stop), default=1) - 1
    beginnings = [
        n
        for n in range(1, len(text) + 1)
        if any(len(each) > n and each.startswith(text[-n:]) for each in stop)
    ]
    mistakes = {
        "as many characters as a stop string has, less one, whatever they are": min(longest, len(text)),
        "nothing unless a stop string is complete": len(text) - len(cut_off(text, stop)),
        "only what may begin a stop string, but not a complete one": max(beginnings, default=0),
        "the shortest beginning of a stop string": min(beginnings, default=0),
    }
    what = f"characters of {text!r} to hold back for the stop strings {list(stop)}"
    check_equal(num_held_back(text, stop), held, what, {k: v for k, v in mistakes.items() if v != held})


@pytest.mark.parametrize(
    ("pieces", "stop", "sent", "mistakes"),
    [
        (["ab", "cd"], (), ["ab", "cd", ""], {}),
        (["ab", "cd"], ("xy",), ["ab", "cd", ""], {"the newest are always held back": ["a", "bc", "d"]}),
        (["ab", "cd", "e"], ("bcd",), ["a", "", "", ""], {"its beginning is sent": ["ab", "", "", ""]}),
        (["ab", "cx", "e"], ("bcd",), ["a", "bcx", "e", ""], {"what was held is lost": ["a", "cx", "e", ""]}),
        (["a", "a", "a", "b"], ("aab",), ["", "", "a", "", ""], {}),
        (["ab"], ("b",), ["a", ""], {"the stop string is sent": ["ab", ""]}),
        (["ab"], ("bc",), ["a", "b"], {"what is held back is never sent": ["a", ""]}),
        (["abab"], ("ba", "ab"), ["", ""], {"cut off at the first string of the list": ["a", ""]}),
        (["xab", "c"], ("abc", "b"), ["x", "", ""], {"a longer one may begin with a": ["xa", "", ""]}),
    ],
)  # fmt: skip
def test_task_1_no_part_of_a_stop_string_is_sent(
    pieces: list[str], stop: tuple[str, ...], sent: list[str], mistakes: dict[str, list[str]]
) -> None:
    what = f"texts sent for the tokens {pieces} and at the end, with stop strings {list(stop)}"
    check_equal(pieces_of(pieces, stop), sent, what, mistakes)


def test_task_1_a_character_of_many_tokens_is_sent_when_it_is_complete() -> None:
    increments = TextIncrements(ByteTokenizer(), ("!",))
    sent = [increments.add(token) for token in "é🙂x".encode()]
    mistakes = {"each token is decoded by itself": ["\ufffd"] * 6 + ["x"]}
    check_equal(sent, ["", "é", "", "", "", "🙂", "x"], "texts sent for the bytes of é🙂x", mistakes)


def test_task_1_a_character_that_never_gets_complete_is_sent_at_the_end() -> None:
    increments = TextIncrements(ByteTokenizer(), ("!",))
    sent = [increments.add(token) for token in "é".encode()[:1]]
    check_equal([*sent, increments.finish()], ["", "\ufffd"], "texts sent for half a character")


texts = st.text("ab", max_size=4)


@given(pieces=st.lists(texts, max_size=8), stop=st.lists(texts.filter(bool), max_size=3).map(tuple))
def test_task_1_the_pieces_add_up_and_none_comes_late(pieces: list[str], stop: tuple[str, ...]) -> None:
    sent = pieces_of(pieces, stop)
    what = f"of the tokens {pieces} with stop strings {list(stop)}"
    expected = cut_off("".join(pieces), stop)
    check_equal("".join(sent), expected, f"the whole text {what}")
    for number in range(len(pieces)):
        text, now = "".join(pieces[: number + 1]), "".join(sent[: number + 1])
        held = text[len(now) :]
        may_begin = any(string.startswith(held) for string in stop)
        is_due = held and not may_begin and not any(string in text for string in stop)
        check_equal(held if is_due else "", "", f"text {what} that is late after token {number}")


# Task 2: one report per step


def logprobs_of(number: int) -> list[TokenLogprobs]:
    return [TokenLogprobs(-0.5 - place, ()) for place in range(number)]


def live_request(pieces: list[str], stop: tuple[str, ...] = (), max_tokens: int = 9) -> LiveRequest:
    """A request of the fake engine with ticket 70 and log-probabilities, whose answer is empty."""
    tokenizer = FakeTokenizer(pieces, eos_token_ids=())
    engine = make_engine()
    engine.tokenizer = tokenizer
    id = engine.add_request([1, 2], SamplingParams(max_tokens=max_tokens, stop=stop, logprobs=0))
    request = engine.requests[id]
    return LiveRequest(70, request, TextIncrements(tokenizer, stop))


def test_task_2_an_increment_has_all_that_is_new() -> None:
    live = live_request(["ab", "c", "d", "e"])
    given = logprobs_of(4)
    increments = []
    for tokens in ([0], [1, 2], [3]):
        for token in tokens:
            live.request.accept(token, given[token])
        increments.append(live.increment())
    expected = [
        Increment(70, (0,), "ab", (given[0],)),
        Increment(70, (1, 2), "cd", (given[1], given[2])),
        Increment(70, (3,), "e", (given[3],)),
    ]
    parts = [(each.token_ids, each.text) for each in increments]
    mistakes = {
        "only the newest token": [((0,), "ab"), ((2,), "d"), ((3,), "e")],
        "the whole answer each time": [((0,), "ab"), ((0, 1, 2), "abcd"), ((0, 1, 2, 3), "abcde")],
    }
    what = "tokens and text of three increments, after 1, 3 and 4 tokens"
    check_equal(parts, [(each.token_ids, each.text) for each in expected], what, mistakes)
    numbers = [len(each.logprobs) for each in increments]
    check_equal(numbers, [1, 2, 1], "log-probabilities of each", {"from the start each time": [1, 3, 4]})
    check_equal(increments, expected, "the increments")


def test_task_2_nothing_new_is_an_empty_increment() -> None:
    live = live_request(["ab"])
    live.request.accept(0, logprobs_of(1)[0])
    live.increment()
    check_equal(live.increment(), Increment(70, (), ""), "an increment without new tokens")


@pytest.mark.parametrize(
    ("pieces", "stop", "max_tokens", "expected"),
    [
        (["ab", "c"], ("cd",), 2, Increment(70, (1,), "c", (), "length")),
        (["ab", "c", "d"], ("cd",), 9, Increment(70, (2,), "", (), "stop")),
    ],
)
def test_task_2_the_last_increment_has_the_text_that_was_held_back(
    pieces: list[str], stop: tuple[str, ...], max_tokens: int, expected: Increment
) -> None:
    live = live_request(pieces, stop, max_tokens)
    for token in range(len(pieces)):
        live.request.accept(token)
        last = live.increment()
    what = f"text and reason at the end of {pieces}, with the stop string {stop[0]!r}"
    mistakes = {"the text that was held back is lost": ("", "length")}
    check_equal((last.text, last.finish_reason), (expected.text, expected.finish_reason), what, mistakes)
    check_equal(last, expected, "the last increment")


def idle_thread(engine: Engine) -> tuple[EngineThread, RecoveringEngine]:
    """An engine's thread that is not started, so that the test calls its methods itself."""
    return EngineThread(lambda: engine, lambda report: None), RecoveringEngine(lambda: engine)


def test_task_2_a_step_is_reported_by_tickets() -> None:
    thread, engine = idle_thread(make_engine())
    thread.add(engine, Submit(70, tuple(prompt_of(4)), SamplingParams(max_tokens=2)))
    thread.add(engine, Submit(80, tuple(prompt_of(6, 1)), SamplingParams(max_tokens=2)))
    reports = [thread.compute(engine) for _ in range(4)]
    seen = [{each.ticket: each.token_ids for each in report.increments} for report in reports]
    first, second = continuation(prompt_of(4), 2), continuation(prompt_of(6, 1), 2)
    expected = [
        {70: (first[0],)},
        {70: (first[1],), 80: (second[0],)},
        {80: (second[1],)},
        {},
    ]
    mistakes = {
        "by the engine's ids": [{id // 10 - 7: each for id, each in step.items()} for step in expected]
    }
    check_equal(seen, expected, "tokens that four steps report, by ticket", mistakes)
    check_equal([report.num_tokens for report in reports], [8, 3, 1, 0], "tokens that each step computed")
    reasons = [[each.finish_reason for each in report.increments] for report in reports]
    check_equal(reasons, [[None], ["length", None], ["length"], []], "why the answers ended")


def test_task_2_a_request_starts_once() -> None:
    thread, engine = idle_thread(make_engine())
    for ticket, length in ((70, 9), (80, 9), (90, 14)):
        thread.add(engine, Submit(ticket, tuple(prompt_of(length)), SamplingParams(max_tokens=2)))
    started = []
    while engine.has_unfinished_requests:
        started.append(dict(thread.compute(engine).started))
    every = {ticket: number for step in started for ticket, number in step.items()}
    mistakes = {"in every step that computes it": len(set(started[0])) + sum(map(len, started[1:]))}
    check_equal(sum(map(len, started)), 3, "how often requests are reported as started", mistakes)
    what = "cached tokens of three prompts that begin alike, by ticket"
    check_equal(
        every, {70: 0, 80: 8, 90: 8}, what, {"the tokens that the step computes": {70: 8, 80: 1, 90: 6}}
    )


def test_task_2_what_has_ended_is_forgotten_after_its_last_increment() -> None:
    thread, engine = idle_thread(make_engine())
    thread.add(engine, Submit(70, tuple(prompt_of(4)), SamplingParams(max_tokens=1)))
    thread.add(engine, Submit(80, tuple(prompt_of(2)), SamplingParams(max_tokens=2)))
    thread.compute(engine)
    check_equal(
        (list(thread.live), dict(thread.id_of)), ([1], {80: 1}), "live, and id_of, after one of two ended"
    )
    thread.compute(engine)
    check_equal((thread.live, thread.id_of), ({}, {}), "live, and id_of, after both ended")


def test_task_2_an_answer_without_a_new_token_ends_too() -> None:
    thread, engine = idle_thread(make_engine(model=FakeModel(eos_at_length=5)))
    thread.add(engine, Submit(70, tuple(prompt_of(4)), SamplingParams(max_tokens=9)))
    reports = [thread.compute(engine), thread.compute(engine)]
    seen = [each.finish_reason for report in reports for each in report.increments]
    check_equal(seen, [None, "stop"], "why the answer ended, in each step")


def test_task_2_failed_requests_are_reported_and_forgotten() -> None:
    thread, engine = idle_thread(make_engine())
    engine.make_engine = make_engine
    for ticket in (70, 80):
        thread.add(engine, Submit(ticket, tuple(prompt_of(3, ticket)), SamplingParams(max_tokens=3)))
    fault = engine_thread.ServedStep(failed={1: KeyError("a hole")}, is_failed=True)
    report = thread.report(fault)
    check_equal(
        dict(report.failed),
        {80: "KeyError: 'a hole'"},
        "failed, by ticket",
        {"by id": {1: "KeyError: 'a hole'"}},
    )
    check_equal(list(thread.live), [0], "live requests")


def test_task_2_an_answer_that_ended_before_its_step_failed_is_reported() -> None:
    thread, engine = idle_thread(make_engine())
    thread.add(engine, Submit(70, tuple(prompt_of(4)), SamplingParams(max_tokens=1)))
    request = engine.engine.requests[0]
    request.accept(continuation(prompt_of(4), 1)[0])
    report = thread.report(engine_thread.ServedStep(finished=(request,), is_failed=True))
    seen = [(each.ticket, each.finish_reason) for each in report.increments]
    what = "tickets and reasons of the increments, if an answer ended before the step failed"
    check_equal(seen, [(70, "length")], what, {"its client is never told": []})
    check_equal((thread.live, thread.id_of), ({}, {}), "live, and id_of, after that report")


def test_task_2_an_aborted_request_that_is_still_computed_is_left_out() -> None:
    thread, engine = idle_thread(ENGINES["overlapping"]())
    for ticket in (70, 80):
        thread.add(engine, Submit(ticket, tuple(prompt_of(3, ticket)), SamplingParams(max_tokens=5)))
    thread.compute(engine)
    thread.drop(engine, Abort(70))
    report = thread.compute(engine)
    check_equal(
        [each.ticket for each in report.increments], [80], "tickets that get tokens after 70 was aborted"
    )
    check_equal(report.num_tokens, 2, "tokens of the step, which the aborted request is still in")


def test_task_2_only_text_and_numbers_are_reported() -> None:
    thread, engine = idle_thread(make_engine())
    thread.add(engine, Submit(70, tuple(prompt_of(4)), SamplingParams(max_tokens=2, logprobs=2)))
    while engine.has_unfinished_requests:
        check_plain(thread.compute(engine))


# Task 3: a thread for the engine


class CommandsByScript:
    """Stands in for the queue: commands come in batches, each when the thread waits for one.

    Args:
        batches: the first one has arrived when the thread begins. If it waits after the last one, that is a
            mistake, and so is asking a hundred times in a row when there is nothing.
    """

    def __init__(self, *batches: Items[Command]) -> None:
        self.batches = [list(batch) for batch in batches]
        self.arrived: list[Command] = self.batches.pop(0) if self.batches else []
        self.num_waits = 0
        self.num_empty = 0

    def get(self, block: bool = True, timeout: float | None = None) -> Command:
        if not self.arrived:
            self.num_empty += 1
            if self.num_empty > 100:
                raise AssertionError("the thread asks for commands again and again: let it wait for one")
            if not block:
                raise Empty
            if not self.batches:
                raise AssertionError("the thread waits for a command although there is something to compute")
            self.num_waits += 1
            self.arrived = self.batches.pop(0)
        self.num_empty = 0
        return self.arrived.pop(0)

    def get_nowait(self) -> Command:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self.arrived

    def qsize(self) -> int:
        return len(self.arrived)

    def put(self, command: Command) -> None:
        self.arrived.append(command)


def submit(ticket: int, length: int = 4, max_tokens: int = 3) -> Submit:
    return Submit(ticket, tuple(prompt_of(length, ticket)), SamplingParams(max_tokens=max_tokens))


def scripted(engine: Engine, *batches: Items[Command]) -> tuple[EngineThread, RecoveringEngine, list[Report]]:
    """A thread that is not started, with scripted commands, and what it posts."""
    reports: list[Report] = []
    thread = EngineThread(lambda: engine, reports.append)
    thread.commands = CommandsByScript(*batches)  # type: ignore[assignment]
    return thread, RecoveringEngine(lambda: engine), reports


def test_task_3_all_commands_are_taken_between_two_steps() -> None:
    commands = [submit(1), submit(2), submit(3), Abort(2), Abort(77)]
    thread, engine, _ = scripted(make_engine(), commands)
    check_equal(thread.take_commands(engine), True, "whether to go on")
    mistakes = {"one command for each step": [1], "aborts are left out": [1, 2, 3]}
    check_equal(list(thread.id_of), [1, 3], "tickets in the engine after the commands", mistakes)


def test_task_3_commands_are_taken_while_requests_run() -> None:
    thread, engine, _ = scripted(make_engine(), [submit(1)])
    thread.take_commands(engine)
    check_equal(thread.take_commands(engine), True, "whether to go on, with a request and no command")
    thread.commands.put(submit(2))
    thread.take_commands(engine)
    check_equal(list(thread.id_of), [1, 2], "tickets in the engine")


def test_task_3_without_requests_it_waits_for_a_command() -> None:
    thread, engine, _ = scripted(make_engine(), [], [submit(1)])
    thread.take_commands(engine)
    check_equal(list(thread.id_of), [1], "tickets in the engine", {"it did not wait for a command": []})


@pytest.mark.parametrize("is_busy", [False, True])
def test_task_3_stop_ends_it(is_busy: bool) -> None:
    first = [submit(1)] if is_busy else []
    thread, engine, _ = scripted(make_engine(), [*first, Stop(), submit(2)])
    mistakes = {"it goes on until there is nothing to compute": True}
    check_equal(thread.take_commands(engine), False, "whether to go on after a Stop", mistakes)
    check_equal(2 in thread.id_of, False, "whether a command after the Stop was carried out")


def test_task_3_a_report_is_posted_per_step() -> None:
    model = FakeModel()
    thread, engine, reports = scripted(
        make_engine(model=model), [submit(1), submit(2)], [submit(3)], [Stop()]
    )
    thread.serve(engine)
    check_equal(len(reports), len(model.calls), "reports, compared with steps")
    tokens = {
        ticket: [
            token
            for report in reports
            for each in report.increments  # type: ignore[union-attr]
            if each.ticket == ticket
            for token in each.token_ids
        ]
        for ticket in (1, 2, 3)
    }
    check_equal(tokens, {id: continuation(prompt_of(4, id), 3) for id in (1, 2, 3)}, "tokens by ticket")


def test_task_3_a_refusal_is_posted_although_nothing_is_computed() -> None:
    thread, engine, reports = scripted(make_engine(), [Submit(5, (99,), SamplingParams())], [Stop()])
    thread.serve(engine)
    refused = [list(report.refused) for report in reports if isinstance(report, StepReport)]
    mistakes = {
        "nothing is reported before another request runs": [],
        "empty reports are posted, too": [[5], []],
    }
    check_equal(refused, [[5]], "tickets refused, by report", mistakes)


def run_to_end(
    make: Callable[[], Engine], *batches: Items[Command], is_to_fail: bool = False
) -> list[Report]:
    """Start a thread with scripted commands, wait until it has ended, and return what it posted.

    Args:
        is_to_fail: whether an error in the thread is no fault of the learner's.

    Raises:
        NotImplementedError: the thread met a function that is not written yet.
        pytest.fail.Exception: an error that nothing in the thread has caught, or one that it should not have.
    """
    reports: list[Report] = []
    escaped: list[BaseException | None] = []
    told: list[BaseException] = []

    def noted(error: BaseException) -> str:
        told.append(error)
        return explained(error)

    def post(report: Report) -> None:
        check_plain(report)
        reports.append(report)

    thread = EngineThread(make, post)
    thread.commands = CommandsByScript(*batches)  # type: ignore[assignment]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", lambda args: escaped.append(args.exc_value))
        patch.setattr(engine_thread, "explained", noted, raising=False)
        thread.start()
        assert thread.join(SECONDS), "the thread does not end"
    for error in [*escaped, *told]:
        if isinstance(error, NotImplementedError):
            raise error
        if error in escaped or not is_to_fail:
            what = "an error that `run` does not catch" if error in escaped else "an error"
            sentence = f"{what} ends the engine's thread: {type(error).__name__}: {error}".removesuffix(": ")
            raise pytest.fail.Exception(sentence) from error
    return reports


def test_task_3_the_thread_makes_the_engine_reports_it_and_ends() -> None:
    made: list[tuple[Engine, str]] = []

    def make() -> Engine:
        made.append((make_engine(), threading.current_thread().name))
        return made[-1][0]

    reports = run_to_end(make, [submit(1)], [Stop()])
    check_equal([name for _, name in made], ["engine"], "threads in which the engine was made")
    kinds = [type(report).__name__ for report in reports]
    check_equal(kinds, ["Loaded", *["StepReport"] * 3, "Stopped"], "reports")
    check_equal(reports[0], Loaded(vocab_size=61, max_seq_len=40, num_blocks=30, block_size=4), "the first")
    check_equal(reports[-1], Stopped(), "the last report")


def test_task_3_stop_frees_what_unfinished_requests_hold() -> None:
    engine = make_engine()
    run_to_end(lambda: engine, [submit(1), Stop()])
    check_equal(engine.is_closed, True, "whether the engine is closed", {"its pool is still held": False})


@pytest.mark.parametrize(
    "error", [ValueError("no such model"), KeyError("model"), SystemExit(3), KeyboardInterrupt()]
)
def test_task_3_the_last_report_tells_why_it_ended(error: BaseException) -> None:
    def make() -> Engine:
        raise error

    reports = run_to_end(make, [submit(1)], is_to_fail=True)
    kinds = [type(report).__name__ for report in reports]
    mistakes = {"those who wait are never told": []}
    check_equal(kinds, ["Stopped"], f"reports if {error!r} is raised while loading", mistakes)
    texts = {
        "no such model": "no such model",
        "'model'": "KeyError: 'model'",
        "3": "SystemExit: 3",
        "": "KeyboardInterrupt",
    }
    check_equal(reports[-1], Stopped(texts[str(error)]), "the last report")


def test_task_3_streams_end_after_the_engine_and_before_the_last_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, events = make_engine(), []
    end_streams, close = engine_thread.end_streams, engine.close

    def closed() -> None:
        events.append("the engine is closed")
        close()

    def ended() -> None:
        events.append("streams end")
        end_streams()

    monkeypatch.setattr(engine_thread, "end_streams", ended)
    engine.close = closed  # type: ignore[method-assign]
    thread = EngineThread(lambda: engine, lambda report: events.append(type(report).__name__))
    thread.commands = CommandsByScript([submit(1, max_tokens=1)], [Stop()])  # type: ignore[assignment]
    thread.start()
    assert thread.join(SECONDS), "the thread does not end"
    expected = ["Loaded", "StepReport", "the engine is closed", "streams end", "Stopped"]
    mistakes = {
        "the streams are left to the end of the process": [each for each in expected if each != "streams end"]
    }
    check_equal(events, expected, "what happens in the thread, in order", mistakes)


@pytest.mark.parametrize("is_loaded", [True, False], ids=["served", "not loaded"])
def test_task_3_stopped_is_posted_although_the_streams_end_with_an_error(
    monkeypatch: pytest.MonkeyPatch, is_loaded: bool
) -> None:
    def fail() -> None:
        mx.clear_streams()
        raise RuntimeError("the device is lost")

    def make() -> Engine:
        if not is_loaded:
            raise ValueError("no such model")
        return make_engine()

    monkeypatch.setattr(engine_thread, "end_streams", fail)
    reports = run_to_end(make, [Stop()], is_to_fail=True)
    expected = "RuntimeError: the device is lost" if is_loaded else "no such model"
    mistakes = {"those who wait are never told": ["Loaded"] if is_loaded else []}
    kinds = [type(report).__name__ for report in reports]
    check_equal(kinds, ["Loaded", "Stopped"] if is_loaded else ["Stopped"], "reports", mistakes)
    check_equal(reports[-1], Stopped(expected), "the last report, with the first error")


def test_task_3_a_model_of_another_thread_is_explained() -> None:
    model = random_qwen3()
    lazy = mx.random.normal((4, 4)) @ mx.random.normal((4, 4))

    def make() -> Engine:
        mx.eval(lazy)
        return Engine(model, IdTokenizer())

    last = run_to_end(make, [Stop()], is_to_fail=True)[-1]
    assert isinstance(last, Stopped)
    says = "let the engine's thread load the model" in str(last.error)
    check_equal(says, True, f"whether the last report explains the law of threads; it says: {last.error}")


# Task 4: a step that fails

JOBS = [(5, 6), (11, 4), (3, 9), (14, 5), (2, 7), (9, 1)]  # tokens of the prompt and of the answer
MAX_STEPS = 400


def expected_tokens() -> dict[int, list[int]]:
    return {id: continuation(prompt_of(length, id), number) for id, (length, number) in enumerate(JOBS)}


def serve(engine: RecoveringEngine) -> tuple[dict[int, EngineRequest], dict[int, Exception]]:
    """Run all jobs, the last two of them added later. Return finished and failed requests."""
    finished: dict[int, EngineRequest] = {}
    failed: dict[int, Exception] = {}
    jobs = [(prompt_of(length, seed), number) for seed, (length, number) in enumerate(JOBS)]
    for number_of_step in range(MAX_STEPS):
        while jobs and (len(jobs) > 2 or number_of_step >= 4):
            prompt, number = jobs.pop(0)
            engine.add_request(prompt, SamplingParams(max_tokens=number))
        if not engine.has_unfinished_requests:
            return finished, failed
        step = engine.step()
        finished |= {request.prompt_idx: request for request in step.finished}
        failed |= step.failed
    pytest.fail(f"the requests did not end within {MAX_STEPS} steps")


def check_nothing_held(engine: RecoveringEngine) -> None:
    blocks: Any = engine.engine.scheduler.blocks
    seen = (blocks.num_used_blocks, blocks.num_reserved, engine.held)
    check_equal(seen, (0, 0, {}), "used blocks, reserved blocks and held requests at the end")


def fails_at(engine: Engine, step: int) -> Engine:
    """Let one step of an engine fail, counted from 0."""
    num_calls = 0

    def should_fail(output: SchedulerOutput) -> bool:
        nonlocal num_calls
        num_calls += 1
        return num_calls == step + 1

    return failing(engine, should_fail)


def request_in(engine: Engine, length: int = 5, generated: int = 3, max_tokens: int = 6) -> EngineRequest:
    """A request of an engine with so many tokens of its answer, out of an engine that was closed then."""
    id = engine.add_request(prompt_of(length), SamplingParams(max_tokens=max_tokens))
    request = engine.requests[id]
    for _ in range(generated):
        engine.step()
    engine.close()
    return request


def test_task_4_a_restored_request_goes_on_where_it_was() -> None:
    request = request_in(make_engine())
    engine = make_engine()
    engine.restore(request)
    check_equal(list(engine.requests), [0], "ids of the new engine's requests")
    steps = [engine.step() for _ in range(3)]
    mistakes = {"its answer begins again": continuation(prompt_of(5), 3)}
    check_equal(request.token_ids, continuation(prompt_of(5), 6), "tokens of its answer", mistakes)
    sizes = [step.scheduled.num_tokens for step in steps]
    check_equal(
        sizes,
        [8, 1, 1],
        "tokens computed by each step",
        {"keys and values that are gone are used": [1, 1, 1]},
    )


def test_task_4_only_tokens_of_the_answer_are_restored() -> None:
    request = request_in(make_engine())
    request.sequence.token_ids.append(-1)  # sampled by the failed step, but not in the answer
    engine = make_engine()
    engine.restore(request)
    expected = [*prompt_of(5), *request.token_ids]
    mistakes = {"with the token of the failed step": [*expected, -1], "the prompt alone": prompt_of(5)}
    check_equal(request.sequence.token_ids, expected, "tokens of the sequence", mistakes)


def test_task_4_a_closed_engine_restores_nothing() -> None:
    request, engine = request_in(make_engine()), make_engine()
    engine.close()
    with check_value_error(what="restoring a request in a closed engine"):
        engine.restore(request)


def test_task_4_the_next_request_enters_when_the_one_before_has_a_token() -> None:
    engine = RecoveringEngine(make_engine)
    donor = make_engine()
    for seed in range(3):
        donor.add_request(prompt_of(3, seed), SamplingParams(max_tokens=9))
    engine.held = dict(donor.requests)
    engine.continue_trial()
    states = [(engine.on_trial, sorted(engine.engine.requests))]
    for sampled in ({}, {0: 5}, {0: 5}, {0: 5, 1: 6}, {2: 9}):
        engine.continue_trial(sampled)
        states.append((engine.on_trial, sorted(engine.engine.requests)))
    expected = [(0, [0]), (0, [0]), (1, [0, 1]), (1, [0, 1]), (2, [0, 1, 2]), (None, [0, 1, 2])]
    mistakes = {
        "one in each step, whether or not the one before has a token": [
            (0, [0]), (1, [0, 1]), (2, [0, 1, 2]), (None, [0, 1, 2]), (None, [0, 1, 2]), (None, [0, 1, 2])
        ],
        "all at once": [(0, [0, 1, 2])] * 6,
    }  # fmt: skip
    what = "the one on trial and those in the engine, before and after steps that sample (), 0, 0, 0 and 1, 2"
    check_equal(states, expected, what, mistakes)


def test_task_4_a_request_that_is_gone_is_no_longer_on_trial() -> None:
    engine = RecoveringEngine(make_engine)
    donor = make_engine()
    for seed in range(2):
        donor.add_request(prompt_of(3, seed), SamplingParams(max_tokens=9))
    engine.held = dict(donor.requests)
    engine.continue_trial()
    engine.abort(0)
    seen = (engine.on_trial, list(engine.engine.requests))
    check_equal(
        seen,
        (1, [1]),
        "the one on trial, and those in the engine, after an abort",
        {"the trial stops": (0, [])},
    )


@pytest.mark.parametrize("kind", ENGINES)
def test_task_4_a_fault_at_any_step_costs_no_request(kind: str) -> None:
    for step in range(MAX_STEPS):
        engine = RecoveringEngine(lambda: fails_at(ENGINES[kind](), -1))
        fails_at(engine.engine, step)
        finished, failed = serve(engine)
        what = f"of a run whose step {step} fails once, by id"
        check_equal(sorted(failed), [], f"requests that fail {what}", {"all that were in it": [0, 1, 2, 3]})
        tokens = {id: request.token_ids for id, request in sorted(finished.items())}
        check_equal(tokens, expected_tokens(), f"tokens {what}")
        check_nothing_held(engine)
        if engine.num_failed_steps == 0:
            return


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("poison", [0, 2, 5])
@pytest.mark.parametrize("num_generated", [0, 2])
def test_task_4_a_request_that_breaks_every_step_costs_only_itself(
    kind: str, poison: int, num_generated: int
) -> None:
    def should_fail(output: SchedulerOutput) -> bool:
        return any(breaks(entry) for entry in output.entries)

    def breaks(entry: ScheduledTokens) -> bool:
        return entry.sequence.id == poison and entry.end >= JOBS[poison][0] + num_generated

    engine = RecoveringEngine(lambda: failing(ENGINES[kind](), should_fail))
    finished, failed = serve(engine)
    expected = [poison] if JOBS[poison][1] > num_generated else []
    mistakes = {"all that were in the step": list(range(len(JOBS))), "the oldest": [0], "nobody": []}
    what = f"requests that fail if request {poison} breaks each step once it has {num_generated} tokens"
    check_equal(sorted(failed), expected, what, {k: v for k, v in mistakes.items() if v != expected})
    tokens = {id: request.token_ids for id, request in sorted(finished.items())}
    others = {id: each for id, each in expected_tokens().items() if id not in failed}
    check_equal(tokens, others, "tokens of the others, by id")
    check_nothing_held(engine)


def test_task_4_a_new_engine_begins_with_empty_caches() -> None:
    made: list[Engine] = []

    def make() -> Engine:
        made.append(make_engine(model=FakeModel(fail_at=None if made else 2)))
        return made[-1]

    engine = RecoveringEngine(make)
    request = engine.add_request(prompt_of(9), SamplingParams(max_tokens=3))
    for _ in range(MAX_STEPS):
        engine.step()
    check_equal(request.is_done, True, f"whether the request ended within {MAX_STEPS} steps")
    check_equal(len(made), 2, "engines made after one failed step")
    check_equal(made[0].is_closed, True, "whether the failed engine is closed")
    blocks: Any = engine.engine.scheduler.blocks
    check_equal(blocks.num_hit_tokens, 0, "tokens found in the prefix cache after a failed step")


def test_task_4_ids_go_on_in_the_new_engine() -> None:
    engines = [make_engine(), make_engine(model=FakeModel(fail_at=1))]
    engine = RecoveringEngine(engines.pop)
    engine.add_request(prompt_of(3, 0), SamplingParams(max_tokens=5))
    engine.add_request(prompt_of(3, 1), SamplingParams(max_tokens=5))
    assert any(engine.step().is_failed for _ in range(MAX_STEPS)), "no step failed"
    added = engine.add_request(prompt_of(3, 2), SamplingParams(max_tokens=5))
    check_equal(
        added.prompt_idx, 2, "id of a request that is added after a failed step", {"ids begin again": 0}
    )


def test_task_4_an_answer_that_ended_before_the_fault_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = RecoveringEngine(make_engine)
    first = engine.add_request(prompt_of(3, 0), SamplingParams(max_tokens=1))
    second = engine.add_request(prompt_of(3, 1), SamplingParams(max_tokens=1))

    def fail(*args: object) -> None:
        raise OSError

    monkeypatch.setattr(second, "accept", fail)
    step = engine.step()
    monkeypatch.undo()
    ids = [request.prompt_idx for request in step.finished]
    check_equal(ids, [0], "answers delivered by a step that fails after one ended", {"it is lost": []})
    check_equal(engine.step().finished == (second,), True, "whether the next step finishes the other one")
    check_equal(first.token_ids, continuation(prompt_of(3, 0), 1), "tokens of the first")


def test_task_4_a_request_that_ended_during_its_trial_has_not_failed() -> None:
    engine = RecoveringEngine(make_engine)
    first, second = (engine.add_request(prompt_of(3, id), SamplingParams(max_tokens=1)) for id in range(2))
    requests = dict(engine.engine.requests)
    first.accept(continuation(prompt_of(3, 0), 1)[0])
    engine.on_trial = 0
    step = engine.recover(requests, KeyError("fault"))
    seen = ([request.prompt_idx for request in step.finished], list(step.failed))
    what = "the finished and the failed, if the one on trial ended before the step failed"
    mistakes = {"it failed although its answer is complete": ([0], [0])}
    check_equal(seen, ([0], []), what, mistakes)
    check_equal(second.is_done, False, "whether the other one is done")


def test_task_4_those_held_before_stay_behind_those_that_ran() -> None:
    engine = RecoveringEngine(make_engine)
    for seed in range(4):
        engine.add_request(prompt_of(3, seed), SamplingParams(max_tokens=9))
    requests = dict(engine.engine.requests)
    engine.on_trial = 1
    engine.held = {id: requests.pop(id) for id in (2, 3)}
    for id in (2, 3):
        engine.engine.abort(id)
    step = engine.recover(requests, KeyError("fault"))
    seen = (list(step.failed), engine.on_trial, list(engine.held))
    mistakes = {
        "those that were held are lost": ([1], 0, []),
        "all that were in the step fail": ([0, 1], 2, [3]),
        "the oldest fails": ([0], 1, [2, 3]),
    }
    what = "the failed, the one on trial and the held, when the trial of 1 fails and 2 and 3 wait"
    check_equal(seen, ([1], 0, [2, 3]), what, mistakes)
    check_equal(step.is_failed, True, "is_failed")


# Task 5: a slot before the work


def full(reserve: Callable[[], object]) -> str | None:
    """The reason of the error that a call raises, or None if it raises none."""
    try:
        reserve()
    except QueueFullError as error:
        return error.reason
    return None


def test_task_5_slots_are_reserved_as_long_as_there_are_any() -> None:
    admission = Admission(3)
    first = admission.reserve(2)
    check_equal(isinstance(first, Reservation), True, "whether reserve returns a Reservation")
    check_equal(admission.num_reqs, 2, "num_reqs after 2 of 3 are reserved", {"a request counts as one": 1})
    reason = full(lambda: admission.reserve(2))
    check_equal(reason, "num_queued_reqs", "reason of the error when 2 more are reserved", {"none": None})
    check_equal(admission.num_reqs, 2, "num_reqs after a refusal", {"half of it is reserved": 3})
    check_equal(full(admission.reserve), None, "reason of the error when 1 more is reserved")
    check_equal(full(admission.reserve), "num_queued_reqs", "reason of the error when all are reserved")


def test_task_5_each_answer_releases_its_slot_once() -> None:
    admission = Admission(9)
    with admission.reserve(3) as reservation, admission.reserve(2):
        reservation.release_one()
        check_equal(admission.num_reqs, 4, "num_reqs after one of three answers has ended")
    mistakes = {"a slot is released twice": -1, "the others are never released": 2}
    check_equal(admission.num_reqs, 0, "num_reqs after both blocks", mistakes)


@pytest.mark.parametrize("has_error", [False, True])
def test_task_5_the_end_of_the_block_releases_everything(has_error: bool) -> None:
    admission = Admission(3, 100)
    try:
        with admission.reserve(2) as reservation:
            reservation.count_tokens(60)
            reservation.tokens_computed(20)
            if has_error:
                raise KeyError("of the block")
    except KeyError:
        check_equal(has_error, True, "whether an error was raised")
    else:
        check_equal(has_error, False, "whether the block swallowed its error")
    seen = (admission.num_reqs, admission.num_queued_tokens)
    check_equal(
        seen,
        (0, 0),
        "num_reqs and num_queued_tokens after the block",
        {"tokens stay counted": (0, 40), "computed ones are subtracted twice": (0, -20)},
    )


def test_task_5_ending_twice_releases_once() -> None:
    admission = Admission(5)
    other = admission.reserve(1)
    reservation = admission.reserve(2)
    for _ in range(2):
        reservation.__exit__(None, None, None)
    check_equal(admission.num_reqs, 1, "num_reqs after one of two reservations ended twice")
    other.__exit__(None, None, None)


def test_task_5_tokens_are_counted_until_they_are_computed() -> None:
    admission = Admission(9, 100)
    first, second = admission.reserve(), admission.reserve()
    first.count_tokens(70)
    reason = full(lambda: second.count_tokens(31))
    check_equal(reason, "num_queued_tokens", "reason of the error for 70 + 31 tokens of 100", {"none": None})
    seen = (admission.num_queued_tokens, admission.num_reqs)
    mistakes = {"the refused tokens are counted": (101, 2), "the slot is released": (70, 1)}
    check_equal(seen, (70, 2), "num_queued_tokens and num_reqs after the refusal", mistakes)
    check_equal(full(lambda: second.count_tokens(30)), None, "reason of the error for 70 + 30 tokens")
    first.tokens_computed(70)
    check_equal(admission.num_queued_tokens, 30, "num_queued_tokens after 70 were computed")
    first.__exit__(None, None, None)
    check_equal(
        admission.num_queued_tokens,
        30,
        "num_queued_tokens at the end of the first",
        {"subtracted twice": -40},
    )


def test_task_5_a_request_larger_than_the_limit_is_admitted_alone() -> None:
    admission = Admission(9, 100)
    first, second = admission.reserve(), admission.reserve()
    mistakes = {"it is refused forever": "num_queued_tokens"}
    check_equal(
        full(lambda: first.count_tokens(500)), None, "reason of the error for 500 tokens of 100", mistakes
    )
    check_equal(full(lambda: second.count_tokens(1)), "num_queued_tokens", "reason of the error for one more")
    first.tokens_computed(500)
    check_equal(full(lambda: second.count_tokens(1)), None, "reason of the error once the 500 are computed")


def test_task_5_tokens_may_be_counted_in_parts() -> None:
    admission = Admission(9, 100)
    other, reservation = admission.reserve(), admission.reserve()
    other.count_tokens(10)
    with reservation:
        reservation.count_tokens(20)
        reservation.count_tokens(30)
        check_equal(admission.num_queued_tokens, 60, "num_queued_tokens after 10, and 20 and 30 of another")
    mistakes = {"only those that were counted last are subtracted": 30}
    check_equal(
        admission.num_queued_tokens, 10, "num_queued_tokens after the block of the 20 and 30", mistakes
    )


def test_task_5_a_request_is_not_refused_for_its_own_tokens() -> None:
    admission = Admission(9, 100)
    reservation = admission.reserve()
    reservation.count_tokens(70)
    reason = full(lambda: reservation.count_tokens(70))
    mistakes = {"its own tokens count as those of others": "num_queued_tokens"}
    check_equal(reason, None, "reason of the error for 70 + 70 tokens of 100, all of one request", mistakes)


def test_task_5_without_a_limit_any_number_of_tokens_may_wait() -> None:
    admission = Admission(9)
    first, second = admission.reserve(), admission.reserve()
    first.count_tokens(10**6)
    check_equal(full(lambda: second.count_tokens(10**6)), None, "reason of the error without a limit")


def test_task_5_a_refusal_says_when_to_come_back() -> None:
    admission = Admission(1, 10, estimate_wait=lambda: 6.2)
    reservation = admission.reserve()
    errors = []
    reservation.count_tokens(8)
    for refused in (admission.reserve, lambda: Reservation(admission, 0).count_tokens(8)):
        with pytest.raises(QueueFullError) as error:
            refused()
        errors.append((error.value.reason, error.value.retry_after))
    expected = [("num_queued_reqs", 7), ("num_queued_tokens", 7)]
    check_equal(errors, expected, "reason and retry_after if room is expected in 6.2 s")


# Task 6: a client that has gone


def receiver(
    *messages: str,
) -> tuple[Callable[[], Awaitable[MutableMapping[str, Any]]], list[str]]:
    """Yields messages of a client, then waits forever; and what it has been asked for that was not taken."""
    left, events = list(messages), []

    async def receive() -> MutableMapping[str, Any]:
        if not events:
            events.append("watching")
        try:
            if not left:
                await asyncio.Event().wait()
            for _ in range(3):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            events.append("stopped watching")
            raise
        return {"type": left.pop(0)}

    return receive, events


async def work_of(num_turns: int, events: list[str]) -> str:
    """Work that takes some turns of the event loop, and one to clean up when it is cancelled."""
    try:
        for _ in range(num_turns):
            await asyncio.sleep(0)
        events.append("done")
    except asyncio.CancelledError:
        await asyncio.sleep(0)
        events.append("cleaned up")
        raise
    return "an answer"


def raced(work: Callable[[list[str]], Awaitable[object]], *messages: str) -> tuple[object, list[str]]:
    """The result or the error of `unless_disconnected`, and what happened before it returned."""
    receive, events = receiver(*messages)

    async def run() -> tuple[object, list[str]]:
        try:
            result = await unless_disconnected(receive, work(events))
        except (ClientGoneError, KeyError) as error:
            result = type(error).__name__
        return result, list(events)  # the end of the event loop cancels what is left

    return asyncio.run(run())


def test_task_6_work_that_ends_first_is_returned() -> None:
    result, events = raced(lambda events: work_of(5, events))
    check_equal(result, "an answer", "the result, of a client that stays")
    mistakes = {
        "nothing watches the connection": ["done"],
        "it still watches, and takes the next message": ["watching", "done"],
    }
    check_equal(
        events, ["watching", "done", "stopped watching"], "what happened before it returned", mistakes
    )


def test_task_6_work_that_is_done_at_once_is_returned() -> None:
    check_equal(raced(lambda events: work_of(0, events))[0], "an answer", "the result of work without a wait")


@pytest.mark.parametrize("messages", [["http.disconnect"], ["http.request", "http.disconnect"]])
def test_task_6_work_is_cancelled_when_the_client_goes(messages: list[str]) -> None:
    result, events = raced(lambda events: work_of(10_000, events), *messages)
    check_equal(result, "ClientGoneError", f"what came of {messages}", {"the work goes on": "an answer"})
    mistakes = {"it returns before the work has cleaned up": ["watching"], "the work goes on": ["done"]}
    check_equal(events, ["watching", "cleaned up"], "what happened before it returned", mistakes)


def test_task_6_work_that_is_done_is_returned_though_the_client_is_gone() -> None:
    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"}

    async def run() -> object:
        try:
            return await unless_disconnected(receive, work_of(0, []))
        except ClientGoneError as error:
            return type(error).__name__

    mistakes = {"the result is thrown away": "ClientGoneError"}
    what = "the result, if the work is done and the client goes in the same turn"
    check_equal(asyncio.run(run()), "an answer", what, mistakes)


def test_task_6_another_message_is_no_disconnect() -> None:
    result, _ = raced(lambda events: work_of(100, events), "http.request", "http.request")
    mistakes = {"any message counts as a disconnect": "ClientGoneError"}
    check_equal(result, "an answer", "the result, after two messages of a client that stays", mistakes)


def test_task_6_an_error_of_the_work_is_raised() -> None:
    async def fail(events: list[str]) -> None:
        await asyncio.sleep(0)
        raise KeyError("of the work")

    mistakes = {"it is taken for a disconnect": "ClientGoneError", "it is swallowed": None}
    result, events = raced(fail)
    check_equal(result, "KeyError", "what came of work that raises a KeyError", mistakes)
    check_equal(events, ["watching", "stopped watching"], "what happened before it was raised")


def test_task_6_being_cancelled_cancels_both() -> None:
    receive, events = receiver()

    async def run() -> list[str]:
        task = asyncio.ensure_future(unless_disconnected(receive, work_of(10_000, events)))
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return sorted(events[1:])

    check_equal(
        asyncio.run(run()), ["cleaned up", "stopped watching"], "what happened when the handler was cancelled"
    )


# Task 7: when to come back

COST = CostModel(per_step=0.01, per_token=0.001)


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a simulation fail that goes on and on."""
    step, left = Simulator.step, iter(range(MAX_STEPS))

    def counted(simulator: Simulator) -> Any:
        if next(left, None) is None:
            pytest.fail(f"the simulation goes on after {MAX_STEPS} steps, although there is room")
        return step(simulator)

    monkeypatch.setattr(Simulator, "step", counted)


@pytest.mark.parametrize(
    ("unfinished", "expected", "mistakes"),
    [
        ([], 0, {}),
        ([(0, 1)], 0.011, {}),
        ([(8, 1)], 0.018, {"prompts cost nothing": 0.011}),
        ([(12, 1)], 0.032, {"a prompt is one step": 0.022}),
        ([(0, 30), (0, 3)], 0.036, {"until all have ended": 0.333, "the first one": 30 * 0.012}),
        (
            [(0, 30), (0, 20), (0, 1)],
            0.24,
            {"all run at once": 0.013, "the shortest answer, which waits": 0.012},
        ),
        ([(20, 3), (4, 2)], 0.018 * 2 + 0.018 + 0.012, {}),
    ],
)
def test_task_7_there_is_room_when_the_first_request_ends(
    few_steps: None, unfinished: list[tuple[int, int]], expected: float, mistakes: dict[str, float]
) -> None:
    work = [RemainingWork(*each) for each in unfinished]
    found = seconds_until_room(SchedulerConfig(8, 2), COST, work)
    what = f"milliseconds until there is room, for prompts and answers of {unfinished} tokens"
    named = {name: round(seconds * 1000, 3) for name, seconds in mistakes.items()}
    check_equal(round(found * 1000, 3), round(expected * 1000, 3), what, named)


def test_task_7_the_order_is_that_of_arrival() -> None:
    work = [RemainingWork(0, 9), RemainingWork(0, 5), RemainingWork(0, 1)]
    found = seconds_until_room(SchedulerConfig(8, 1), COST, iter(work))
    mistakes = {"the shortest first": 0.011, "the last first": 0.011}
    check_equal(
        round(found, 4), 0.099, "seconds until there is room where one request runs at a time", mistakes
    )


# Task 8: the highest rate


def test_task_8_arrivals_do_not_wait_for_each_other() -> None:
    times = np.array(list(poisson_arrivals(rate=50, seconds=200, seed=1)))
    gaps = np.diff(times)
    check_equal(bool(times[0] >= 0 and times[-1] < 200), True, "whether all times are within 200 s")
    check_equal(bool((gaps > 0).all()), True, "whether the times ascend")
    check_equal(
        bool(abs(len(times) / 10_000 - 1) < 0.03), True, f"whether there are about 10,000; got {len(times)}"
    )
    spread = gaps.std() / gaps.mean()
    causes = "evenly spaced arrivals have 0, uniform gaps 0.58"
    check_equal(
        bool(abs(spread - 1) < 0.03),
        True,
        f"whether gaps vary as much as they last; got {spread:.2f}; {causes}",
    )
    again = np.array(list(poisson_arrivals(50, 200, 1)))
    check_equal(again.tolist() == times.tolist(), True, "whether the same seed gives the same times")
    other = next(iter(poisson_arrivals(50, 200, 2)))
    check_equal(other == times[0], False, "whether another seed gives the same first time")


class Runs:
    """A server that sustains a rate, and the rates at which it was run; none is run twice."""

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.tried: list[float] = []

    def meets(self, rate: float) -> bool:
        tried = self.shown
        check_equal(rate in self.tried, False, f"whether {rate:.3g} was tried before, as one of {tried}")
        check_equal(len(self.tried) < 200, True, f"whether the search ends; its last rates are {tried[-5:]}")
        self.tried.append(rate)
        return rate <= self.capacity

    @property
    def shown(self) -> list[float]:
        return [float(f"{rate:.3g}") for rate in self.tried]


@pytest.mark.parametrize("capacity", [0.5, 1, 3.3, 7, 99.9, 100, 400])
def test_task_8_the_highest_rate_that_meets_the_target_is_found(capacity: float) -> None:
    runs = Runs(capacity)
    found = highest_rate(runs.meets, 1, 100, precision=0.05)
    if capacity < 1:
        expected = (0, [1])
        check_equal((found, runs.tried), expected, "rate found, and rates tried, if `low` is too high")
        return
    if capacity >= 100:
        expected = (100, [1, 100])
        check_equal((found, runs.tried), expected, "rate found, and rates tried, if `high` is sustained")
        return
    check_equal(found <= capacity, True, f"whether the rate found, {found:.2f}, is at most {capacity}")
    check_equal(found >= capacity * 0.95, True, f"whether {found:.2f} is within 5 % of {capacity}")
    causes = (
        "the middle halves the difference, not the ratio; or the search stops later than `precision` says"
    )
    what = f"whether at most 9 rates are tried; got {len(runs.tried)}, {runs.shown}; {causes}"
    check_equal(len(runs.tried) <= 9, True, what)


@settings(max_examples=50)
@given(st.floats(0.2, 500), st.floats(0.02, 0.5))
def test_task_8_any_capacity_is_found(capacity: float, precision: float) -> None:
    found = highest_rate(Runs(capacity).meets, 0.5, 300, precision)
    least = 0 if capacity < 0.5 else min(capacity, 300) * (1 - precision)
    limits = f"from {least:.3g} to {min(capacity, 300):.3g}"
    what = f"whether {found:.3g} is {limits}, for a capacity of {capacity:.3g} and precision {precision:.2g}"
    check_equal(least <= found <= capacity, True, what)
