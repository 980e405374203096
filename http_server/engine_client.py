"""The engine as the event loop sees it: requests are submitted, and their increments come in."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Literal

from tiny_llm.engine.engine import Engine
from tiny_llm.generation.sampler import SamplingParams
from tiny_llm.model.optional import once_written
from tiny_llm.server.admission import Admission, RemainingWork, Reservation, seconds_until_room
from tiny_llm.server.engine_thread import EngineThread
from tiny_llm.server.mailbox import Increment, Loaded, Report, StepReport, Stopped
from tiny_llm.simulation.cost_model import CostModel

from .config import ServerConfig
from .errors import ApiError
from .feed import Feed
from .idle_thread import IdleThread
from .prometheus_metrics import PrometheusMetrics
from .record import RequestRecord

State = Literal["loading", "ready", "draining", "stopped"]
NUM_SEEDS = 2**64


@dataclass
class Running:
    """An answer that the engine works on.

    Attributes:
        index: of the answer within its HTTP request.
        queue: where its increments go, each with its index; shared by the answers of an HTTP request.
        params: how it is sampled.
        record: what has happened to it.
        reservation: its slot.
    """

    index: int
    queue: "asyncio.Queue[tuple[int, Increment | ApiError]]"
    params: SamplingParams
    record: RequestRecord
    reservation: Reservation


class EngineClient:
    """Start and stop the engine's thread, number requests, and pass on what its reports say.

    All methods belong to the event loop, except for `_post`.

    Args:
        make_engine: as for `EngineThread`.
        config: the settings of the server.
        after_step: called in the engine's thread after each step. It must return at once.

    Attributes:
        state: "ready" if requests can be submitted.
        loaded: what the engine is like; None while it is loading.
        error: why the engine's thread ended, if nobody asked it to.
        stopped: set when the thread has ended.
    """

    def __init__(
        self,
        make_engine: Callable[[], Engine],
        config: ServerConfig,
        after_step: Callable[[], None] | None = None,
    ) -> None:
        self.config = config
        self._after_step = after_step
        self.metrics = PrometheusMetrics(config.model_names[0])
        self.feed = Feed(config)
        self.admission = Admission(config.max_num_reqs, config.max_num_queued_tokens, self.seconds_until_room)
        self.state: State = "loading"
        self.loaded: Loaded | None = None
        self.error: str | None = None
        self.ready = asyncio.Event()
        self.stopped = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._thread: EngineThread
        if config.kept is None:
            self._thread = EngineThread(make_engine, self._post)
        else:
            self._thread = IdleThread(make_engine, self._post, config.kept.when_idle)
            self.metrics.watch(config.kept.files)
        self._running: dict[int, Running] = {}
        self._tickets = count()
        self._cost: CostModel | None = None
        self._estimate = (-math.inf, 1.0)  # when it was made, and the seconds
        self._thread.start()

    @property
    def max_model_len(self) -> int:
        """Largest number of tokens in a request."""
        return 0 if self.loaded is None else self.loaded.max_seq_len

    @property
    def vocab_size(self) -> int:
        """V; 0 while the engine is loading."""
        return 0 if self.loaded is None else self.loaded.vocab_size

    def check_ready(self) -> None:
        """Raise ApiError with status 503 unless requests can be submitted."""
        if self.state != "ready":
            reason = "has failed" if self.state == "stopped" and self.error else f"is {self.state}"
            raise ApiError(503, f"the server {reason}: try again later", code=self.state, retry_after=1)

    def submit(self, running: Running, prompt_ids: tuple[int, ...], priority: int) -> int:
        """Submit a request, and return its ticket."""
        ticket = next(self._tickets)
        self._running[ticket] = running
        self._thread.submit(ticket, prompt_ids, running.params, priority)
        return ticket

    def records(self, most: int) -> Iterator[tuple[int, RequestRecord]]:
        """The oldest unfinished requests, by ticket."""
        return ((ticket, running.record) for ticket, running in islice(self._running.items(), most))

    def abort(self, ticket: int) -> None:
        """Drop a request, unless it has ended."""
        if ticket in self._running:
            self._thread.abort(ticket)
            self._end(ticket, "abort")

    def begin_draining(self) -> None:
        """Take no more requests. Those there are go on."""
        if self.state in ("loading", "ready"):
            self.state = "draining"
            self.feed.changed()

    def cut_off(self) -> int:
        """Abort all requests; their clients get an error. Return how many there were."""
        tickets = list(self._running)
        for ticket in tickets:
            self._thread.abort(ticket)
            self._fail(ticket, stopped_early())
        return len(tickets)

    async def stop(self) -> None:
        """Drop all requests, and wait until the thread has freed everything and ended."""
        self.begin_draining()
        self._thread.stop()
        await self.stopped.wait()
        self._thread.join()

    def seconds_until_room(self) -> float:
        """Predict when a request will end; at most a second ago, since a refusal must cost little."""
        now = time.perf_counter()
        if now - self._estimate[0] > 1:
            self._estimate = now, self._simulate_until_room()
        return self._estimate[1]

    def _simulate_until_room(self) -> float:
        """Simulate from the steps measured so far; 1 before any were, or without `seconds_until_room`."""
        if self._cost is None:
            return 1.0
        work = [
            RemainingWork(
                0 if each.record.first_token else each.record.num_prompt_tokens,
                self._most_tokens(each) - each.record.num_tokens,
            )
            for each in self._running.values()
        ]
        seconds = once_written(seconds_until_room)(self.config.scheduler, self._cost, work)
        return 1.0 if seconds is None else seconds

    def _most_tokens(self, running: Running) -> int:
        room = self.max_model_len - running.record.num_prompt_tokens
        return room if running.params.max_tokens is None else min(room, running.params.max_tokens)

    def _post(self, report: Report) -> None:
        """Take a report to the event loop. Called in the engine's thread."""
        self._loop.call_soon_threadsafe(self._receive, report)
        if self._after_step is not None:
            self._after_step()

    def _receive(self, report: Report) -> None:
        if isinstance(report, StepReport):
            self._receive_step(report)
        elif isinstance(report, Loaded):
            self.loaded = report
            self.metrics.loaded(report)
            if self.state == "loading":
                self.state = "ready"
            self.feed.loaded(report)
            self.ready.set()
        else:
            self._receive_stopped(report)

    def _receive_step(self, report: StepReport) -> None:
        """Pass on what a step did; it may mention requests that were aborted meanwhile."""
        now = time.perf_counter()
        self.metrics.step(report)
        self.feed.step(report, now)
        self._cost = report.cost or self._cost
        for ticket, num_cached in report.started.items():
            if ticket in self._running:
                record = self._running[ticket].record
                record.started = max(record.arrival, now - report.seconds)
                record.num_cached_tokens = num_cached
        for ticket, (num_drafts, num_accepted) in report.drafts.items():
            if ticket in self._running:
                self._running[ticket].record.drafts.add(num_drafts, num_accepted)
        for increment in report.increments:
            self._receive_increment(increment, now)
        for ticket, reason in report.refused.items():
            self._fail(ticket, ApiError(400, reason))
        for ticket, reason in report.failed.items():
            self._fail(
                ticket, ApiError(500, f"the step of this request failed: {reason}", code="step_failed")
            )
        if not self._running:
            self.metrics.idle()

    def _receive_increment(self, increment: Increment, now: float) -> None:
        running = self._running.get(increment.ticket)
        if running is None:
            return
        record = running.record
        record.num_tokens += len(increment.token_ids)
        if record.first_token is None:
            record.first_token = now
            self.metrics.ttft.observe(now - record.arrival)
            self.metrics.prompt_tokens.inc(record.num_prompt_tokens)
            running.reservation.tokens_computed(record.num_prompt_tokens)
        else:
            self.metrics.itl.observe(now - record.last_token)
        record.last_token = now
        if increment.finish_reason == "error":
            self._fail(increment.ticket, dead_end(record.num_tokens))
            return
        running.queue.put_nowait((running.index, increment))
        if increment.finish_reason is not None:
            self._end(increment.ticket, increment.finish_reason)

    def _receive_stopped(self, report: Stopped) -> None:
        self.state, self.error = "stopped", report.error
        self.ready.set()
        self.stopped.set()
        for ticket in list(self._running):
            self._fail(ticket, stopped_early())

    def _fail(self, ticket: int, error: ApiError) -> None:
        running = self._running.get(ticket)
        if running is not None:
            running.queue.put_nowait((running.index, error))
            self._end(ticket, "error")

    def _end(self, ticket: int, outcome: str) -> None:
        running = self._running.pop(ticket)
        running.record.ended = time.perf_counter()
        running.record.outcome = outcome
        running.record.log_line()
        self.metrics.ended(running.record)
        self.feed.ended(ticket, running.record)
        running.reservation.release_one()
        if not self._running:
            self.metrics.idle()


def dead_end(num_tokens: int) -> ApiError:
    """The error of an answer whose grammar cannot be kept to its end."""
    return ApiError(
        400,
        f"the grammar allows nothing after the {num_tokens} tokens of this answer, which is not complete: "
        "look for parts of it that contradict each other",
        code="grammar_dead_end",
    )


def stopped_early() -> ApiError:
    """The error of an answer that the end of the server cuts off."""
    return ApiError(503, "the server stopped before the answer ended", code="stopped")
