"""What the page at / watches: steps, requests and the engine in numbers, ten times per second."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from time import perf_counter
from typing import Protocol

import msgspec
from sse_starlette import ServerSentEvent

from tiny_llm.server.mailbox import EngineStats, Loaded, Row, StepReport

from .config import ServerConfig
from .record import RequestRecord

INTERVAL = 0.1
MOST_STEPS, MOST_REQUESTS = 512, 64


class SeenStep(msgspec.Struct):
    """A step: when it began and ended in seconds, and what it computed for each request."""

    start: float
    end: float
    rows: tuple[Row, ...]


class SeenRequest(msgspec.Struct):
    """A request that is in the server, or that has ended since the event before; then it has an outcome."""

    ticket: int
    name: str
    arrival: float
    num_prompt_tokens: int
    num_cached_tokens: int
    num_tokens: int
    is_started: bool
    outcome: str | None


class Limits(msgspec.Struct):
    """What the server allows."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_prefill_only_tokens: int | None
    max_num_queued_reqs: int


class Totals(msgspec.Struct):
    """Counts since the server started."""

    num_hit_tokens: int = 0
    num_admitted_tokens: int = 0
    num_preemptions: int = 0
    num_failed_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


class FeedEvent(msgspec.Struct):
    """An event of the feed. `num_left_out` counts the steps that a reader was too slow to get."""

    now: float
    state: str
    limits: Limits
    num_blocks: int
    stats: EngineStats
    totals: Totals
    requests: list[SeenRequest]
    steps: list[SeenStep]
    num_left_out: int


class Watcher:
    """What one reader of the feed has not seen yet. However slow the reader is, this stays small."""

    def __init__(self) -> None:
        self.steps: deque[SeenStep] = deque(maxlen=MOST_STEPS)
        self.ended: deque[SeenRequest] = deque(maxlen=MOST_REQUESTS)
        self.num_left_out = 0
        self.is_behind = True

    def add(self, step: SeenStep) -> None:
        """Note a step, in place of the oldest one if the reader is slow."""
        self.num_left_out += len(self.steps) == MOST_STEPS
        self.steps.append(step)

    def take(self) -> tuple[list[SeenStep], list[SeenRequest], int]:
        """Return what is new: steps, requests that have ended, and how many steps were left out."""
        new = list(self.steps), list(self.ended), self.num_left_out
        self.steps.clear()
        self.ended.clear()
        self.num_left_out, self.is_behind = 0, False
        return new


class Feed:
    """Tell watchers what the engine does. Without watchers, it only counts. Used in the event loop only.

    Args:
        config: the settings of the server.

    Attributes:
        totals, stats, num_blocks: the newest numbers.
    """

    def __init__(self, config: ServerConfig) -> None:
        steps = config.scheduler
        self._limits = Limits(
            steps.max_num_seqs,
            steps.max_num_batched_tokens,
            steps.max_num_prefill_only_tokens,
            config.max_num_queued_reqs,
        )
        self.totals = Totals()
        self.stats = EngineStats()
        self.num_blocks = 0
        self._watchers: set[Watcher] = set()

    @property
    def num_watchers(self) -> int:
        """Number of readers that are connected."""
        return len(self._watchers)

    def loaded(self, loaded: Loaded) -> None:
        """Note the engine's pool."""
        self.num_blocks = loaded.num_blocks
        self.changed()

    def changed(self) -> None:
        """Let every watcher send an event."""
        for watcher in self._watchers:
            watcher.is_behind = True

    def step(self, report: StepReport, now: float) -> None:
        """Note a step that has just ended."""
        stats, totals = report.stats, self.totals
        self.stats = stats
        totals.num_hit_tokens += stats.num_hit_tokens
        totals.num_admitted_tokens += stats.num_admitted_tokens
        totals.num_preemptions += stats.num_preemptions
        totals.num_failed_steps += stats.num_failed_steps
        for num_drafts, num_accepted in report.drafts.values():
            totals.num_draft_tokens += num_drafts
            totals.num_accepted_tokens += num_accepted
        if self._watchers and report.rows:
            step = SeenStep(now - report.seconds, now, report.rows)
            for watcher in self._watchers:
                watcher.add(step)
        self.changed()

    def ended(self, ticket: int, record: RequestRecord) -> None:
        """Note a request that has ended."""
        for watcher in self._watchers:
            watcher.ended.append(seen(ticket, record, record.outcome))
        self.changed()

    async def events(self, live: "Live") -> AsyncIterator[ServerSentEvent]:
        """Yield an event now, and whenever something has changed, until the server drains.

        Args:
            live: the server's state and its unfinished requests.
        """
        watcher = Watcher()
        self._watchers.add(watcher)
        try:
            while True:
                is_last = live.state in ("draining", "stopped")
                if watcher.is_behind or is_last:
                    yield ServerSentEvent(self._event(watcher, live).decode(), sep="\n")
                if is_last:
                    return  # an open stream would keep the server from ending
                await asyncio.sleep(INTERVAL)
        finally:
            self._watchers.discard(watcher)

    def _event(self, watcher: Watcher, live: "Live") -> bytes:
        steps, ended, num_left_out = watcher.take()
        running = [seen(ticket, record) for ticket, record in live.records(MOST_REQUESTS)]
        return msgspec.json.encode(
            FeedEvent(
                perf_counter(),
                live.state,
                self._limits,
                self.num_blocks,
                self.stats,
                self.totals,
                ended + running,
                steps,
                num_left_out,
            )
        )


class Live(Protocol):
    """What the feed asks the engine's client for."""

    @property
    def state(self) -> str: ...

    def records(self, most: int) -> Iterable[tuple[int, RequestRecord]]: ...


def seen(ticket: int, record: RequestRecord, outcome: str | None = None) -> SeenRequest:
    """A request as the feed shows it."""
    return SeenRequest(
        ticket,
        record.name,
        record.arrival,
        record.num_prompt_tokens,
        record.num_cached_tokens,
        record.num_tokens,
        record.started is not None,
        outcome,
    )
