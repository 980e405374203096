"""Any schedule with a prefix cache, its events step by step, and what must hold of them.

Replaying the events of a cache gives what the cache holds, after each step and however many events were
missed.
"""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from http_server.kv_event_log import EventBatch, EventLog
from tests.support.schedules import (
    EITHER,
    FLOATS,
    MAX_SEQ_LEN,
    POOLS,
    QUANTIZED,
    EngineSchedule,
    IdTokenizer,
    engine_schedules,
    model_for,
)
from tests.support.server_engines import failing
from tiny_llm import Engine, PrefixCachingBlockManager, SchedulerOutput
from tiny_llm.scheduling.block_hashes import Prefix
from tiny_llm.scheduling.cache_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheContents,
    CacheEvent,
    CacheEvents,
)
from tiny_llm.scheduling.cache_salts import Salt
from tiny_llm.scheduling.content_hashes import ContentHashes, short_hash
from tiny_llm.scheduling.observed_cache import CacheObserver, observe
from tiny_llm.server.recovery import RecoveringEngine

Observe = Callable[[PrefixCachingBlockManager, CacheObserver], None]


@dataclass(frozen=True)
class EventSchedule:
    """What the law is tried on.

    Attributes:
        schedule: requests, limits, aborts and a pool with a prefix cache.
        salts: of the requests in turn.
        failing_steps: numbers of steps that fail.
        buffer_steps: how many batches the publisher keeps.
        missed: numbers of batches that the subscriber does not get, and asks for when the next one comes.
        joins_at: the batch before which the subscriber comes.
    """

    schedule: EngineSchedule
    salts: tuple[str | None, ...]
    failing_steps: frozenset[int]
    buffer_steps: int
    missed: frozenset[int]
    joins_at: int


@st.composite
def event_schedules(draw: st.DrawFn) -> EventSchedule:
    schedule: EngineSchedule = draw(engine_schedules(POOLS["shared"], is_adjusted=st.just(False)))
    bits = draw(QUANTIZED) if draw(EITHER) else draw(FLOATS)
    steps = st.frozensets(st.integers(0, 25), max_size=8)
    return EventSchedule(
        replace(schedule, kv_bits=bits),
        draw(st.lists(st.none() | st.sampled_from("ab"), min_size=1, max_size=3).map(tuple)),
        draw(st.frozensets(st.integers(0, 12), max_size=2)),
        draw(st.integers(0, 8)),
        draw(steps),
        draw(st.integers(0, 12)),
    )


def blocks_of(engine: Engine) -> PrefixCachingBlockManager:
    blocks = engine.scheduler.blocks
    assert isinstance(blocks, PrefixCachingBlockManager)
    return blocks


def run(
    drawn: EventSchedule, kind: Callable[..., Engine], events: CacheEvents, watch: Observe = observe
) -> Iterator[tuple[PrefixCachingBlockManager, list[CacheEvent]]]:
    """Serve the requests. Yield the blocks and the step's events after each step, failed ones included."""
    schedule, num_calls = drawn.schedule, 0

    def should_fail(output: SchedulerOutput) -> bool:
        nonlocal num_calls
        num_calls += 1
        return num_calls - 1 in drawn.failing_steps

    def make_engine() -> Engine:
        blocks = schedule.make_blocks()
        assert isinstance(blocks, PrefixCachingBlockManager)
        watch(blocks, events)
        engine = kind(
            model_for(schedule.quantized, schedule.is_sparse),
            IdTokenizer(),
            schedule.config,
            MAX_SEQ_LEN,
            blocks,
            schedule.taste.make(),
            clock=lambda: 0.0,
            kv_bits=schedule.kv_bits,
        )
        return failing(engine, should_fail)

    pending = sorted(schedule.arrivals, key=lambda arrival: arrival.after_step)
    with RecoveringEngine(make_engine) as engine:
        yield blocks_of(engine.engine), events.take()
        for step in range(2000):
            while pending and pending[0].after_step <= step:
                arrival = pending.pop(0)
                salt = drawn.salts[len(pending) % len(drawn.salts)]
                params = replace(arrival.params, cache_salt=salt)
                engine.add_request(arrival.prompt, params, arrival.priority)
            for abort in schedule.aborts:
                if abort.step == step and engine.requests:
                    engine.abort(sorted(engine.requests)[abort.which % len(engine.requests)])
            if engine.has_unfinished_requests:
                engine.step()
            yield blocks_of(engine.engine), events.take()
            if not pending and not engine.has_unfinished_requests:
                return
    raise AssertionError("the requests do not end")


def held(blocks: PrefixCachingBlockManager) -> dict[int, BlockStored]:
    """What a subscriber should know: each prefix that is found, with all tokens before it hashed anew."""
    return {event.block_hash: event for event in map(event_of, blocks.block_of)}


def event_of(prefix: Prefix) -> BlockStored:
    hashes, parent = ContentHashes("0"), prefix.parent
    salt = parent.salt if isinstance(parent, Salt) else None
    before = None if parent is None or salt is not None else short_hash(hashes.of(parent))
    return BlockStored(short_hash(hashes.of(prefix)), before, prefix.token_ids, salt)


def check_follows(contents: CacheContents, events: Items[CacheEvent]) -> None:
    """Apply events, each of which must change something."""
    for event in events:
        if isinstance(event, BlockStored):
            assert event.block_hash not in contents.blocks, "a block is stored twice"
        elif isinstance(event, BlockRemoved):
            assert event.block_hash in contents.blocks, "a block is removed that is not there"
        else:
            assert isinstance(event, AllBlocksCleared)
        contents.apply([event])


@dataclass
class Subscriber:
    """One that asks the publisher for what it has missed, once it gets a later batch."""

    log: EventLog
    contents: CacheContents
    next_number: int = 0

    def receive(self, batch: EventBatch) -> None:
        if batch.number > self.next_number:
            self.ask()
        elif batch.number == self.next_number:
            self.apply(batch)

    def ask(self) -> None:
        for batch in self.log.since(self.next_number):
            assert batch.number >= self.next_number
            self.apply(batch)

    def apply(self, batch: EventBatch) -> None:
        self.contents.apply(batch.events)
        self.next_number = batch.number + 1


def check_law(
    drawn: EventSchedule,
    kind: Callable[..., Engine],
    watch: Observe = observe,
    make_events: Callable[[], CacheEvents] = CacheEvents,
) -> None:
    """Fail unless two subscribers know what the cache holds: one that gets all, and one that does not."""
    contents, log, number = CacheContents(), EventLog(drawn.buffer_steps), 0
    late = Subscriber(log, CacheContents())
    for blocks, events in run(drawn, kind, make_events(), watch):
        check_follows(contents, events)
        assert contents.blocks == held(blocks), "replaying the events gives something else"
        if events:
            batch = EventBatch(number, 0.0, events)
            log.add(batch)
            if number >= drawn.joins_at and number not in drawn.missed:
                late.receive(batch)
                assert late.contents.blocks == contents.blocks, "a late subscriber knows something else"
            number += 1
    late.ask()
    assert late.contents.blocks == contents.blocks, "a late subscriber knows something else"
    check_order(contents)


def check_order(contents: CacheContents) -> None:
    """In the sum of all events, each block comes after the one before it, if that is in the cache."""
    first, *stored = contents.as_events()
    assert first == AllBlocksCleared()
    seen: set[int] = set()
    for event in stored:
        assert isinstance(event, BlockStored)
        parent = event.parent_block_hash
        assert parent in seen or parent not in contents.blocks
        seen.add(event.block_hash)
    assert seen == contents.blocks.keys()
