"""Week 4 day 4: many machines."""

from collections.abc import Iterator
from collections.abc import Sequence as Items

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.check import check_equal, fail
from tests.support.prefixes import live, manager, next_token
from tiny_llm import (
    BlockManager,
    CacheAware,
    CacheContents,
    CacheEvents,
    CostModel,
    Fleet,
    LeastLoaded,
    Link,
    LoadReport,
    ModelConfig,
    PrefixCachingBlockManager,
    ReplicaView,
    RoundRobin,
    Scheduler,
    SchedulerConfig,
    Sequence,
    Simulator,
    converse,
    handover_bytes,
    handover_delay,
    least_bandwidth,
    num_known_blocks,
)
from tiny_llm.scheduling.block_hashes import Prefix
from tiny_llm.scheduling.cache_events import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent
from tiny_llm.scheduling.content_hashes import ContentHashes, short_hash
from tiny_llm.scheduling.observed_cache import observe

law = {"deadline": None, "suppress_health_check": list(HealthCheck)}
CLEARED = AllBlocksCleared()


def prefixes_of(tokens: Items[int], block_size: int = 2) -> list[Prefix]:
    """Prefixes of the full blocks of a prompt; their hash in this process is not looked at here."""
    found: list[Prefix] = []
    for start in range(0, len(tokens) - block_size + 1, block_size):
        found.append(Prefix(found[-1] if found else None, tuple(tokens[start : start + block_size]), 0))
    return found


def event_of(prefix: Prefix) -> BlockStored:
    """What a block's event says, hashed anew."""
    hashes, parent = ContentHashes("0"), prefix.parent
    before = None if parent is None else short_hash(hashes.of(parent))
    return BlockStored(short_hash(hashes.of(prefix)), before, prefix.token_ids)


FIRST, SECOND, THIRD = prefixes_of([5, 6, 7, 8, 9, 10])
STORED = [event_of(prefix) for prefix in (FIRST, SECOND, THIRD)]
GONE = [BlockRemoved(event.block_hash) for event in STORED]


def held(blocks: PrefixCachingBlockManager) -> dict[int, BlockStored]:
    """What whoever follows a cache should know."""
    return {event.block_hash: event for event in map(event_of, blocks.block_of)}


# --- task 1: what the cache did -----------------------------------------------------------------------------


def test_task_1_events_in_their_order() -> None:
    events = CacheEvents()
    check_equal(events.take(), [], "events before anything has happened")
    events.stored(FIRST, 7)
    events.removed(FIRST, 7)
    events.stored(FIRST, 3)
    events.stored(SECOND, 7)
    check_equal(events.take(), [STORED[0], GONE[0], STORED[0], STORED[1]], "events of a step")


def test_task_1_a_block_is_told_by_its_content() -> None:
    one, other = CacheEvents(), CacheEvents()
    for events, block in ((one, 0), (other, 4)):
        events.stored(THIRD, block)
        events.removed(THIRD, block)
    found = one.take()
    check_equal(found, [STORED[2], GONE[2]], "events of the third block of a prompt")
    check_equal(found, other.take(), "events of the same content in another block")


def test_task_1_each_event_is_taken_once() -> None:
    events = CacheEvents()
    events.stored(FIRST, 0)
    first = events.take()
    check_equal(events.take(), [], "events since the last call of take")
    events.stored(SECOND, 1)
    check_equal(first, [STORED[0]], "what the first take returned, after another event has come")
    check_equal(events.take(), [STORED[1]], "events after the first take")


def test_task_1_a_new_cache_makes_earlier_events_void() -> None:
    events = CacheEvents()
    events.stored(FIRST, 0)
    events.removed(FIRST, 0)
    events.cleared()
    events.stored(SECOND, 1)
    check_equal(events.take(), [CLEARED, STORED[1]], "events of a step in which the cache was replaced")
    events.cleared()
    events.cleared()
    check_equal(events.take(), [CLEARED], "events of a cache that was cleared twice")


def replayed(known: dict[int, BlockStored], events: Items[CacheEvent]) -> dict[int, BlockStored]:
    """What is known after further events. Each must change something, and `known` stays as it is."""
    known = dict(known)
    for event in events:
        if isinstance(event, BlockStored):
            check_equal(event.block_hash in known, False, "whether a block was stored that is there already")
            known[event.block_hash] = event
        elif isinstance(event, BlockRemoved):
            check_equal(event.block_hash in known, True, "whether a block was there that was removed")
            del known[event.block_hash]
        else:
            known.clear()
    return known


def steps_of(data: st.DataObject) -> Iterator[tuple[PrefixCachingBlockManager, list[CacheEvent]]]:
    """Any schedule on paper, with its blocks and its events after each step.

    Prompts share beginnings and blocks run out. Requests are dropped, sequences give way, steps fail, and now
    and then the whole cache is lost or replaced.
    """
    events = CacheEvents()
    watched = data.draw(st.integers(2, 14), "number of blocks"), data.draw(st.integers(1, 3), "block size")

    def begin() -> Scheduler:
        blocks = PrefixCachingBlockManager(*watched, overcommit=True)
        observe(blocks, events)
        return Scheduler(SchedulerConfig(7, 3), blocks)

    scheduler, most = begin(), watched[0] * watched[1]
    happenings = st.sampled_from(["add", "step", "step", "step", "fail", "drop", "forget", "replace"])
    prompts = st.lists(st.integers(0, 1), min_size=1, max_size=12)
    for number, what in enumerate(data.draw(st.lists(happenings, min_size=5, max_size=40), "what happens")):
        blocks = scheduler.blocks
        assert isinstance(blocks, PrefixCachingBlockManager)
        if what == "add":
            prompt = data.draw(prompts, "prompt")[: most - 1] or [0]
            if most > 1:
                scheduler.add(Sequence(number, prompt, max_num_tokens=min(most, len(prompt) + 3)))
        elif what == "drop" and scheduler.sequences:
            scheduler.remove(data.draw(st.sampled_from(sorted(scheduler.sequences)), "dropped"))
        elif what == "forget":
            blocks.forget_contents()
        elif what == "replace":
            scheduler = begin()
            blocks = scheduler.blocks  # type: ignore[assignment]
        elif what in ("step", "fail"):
            output = scheduler.schedule()
            if what == "fail":
                for entry in output.entries:
                    scheduler.remove(entry.sequence.id)
            tokens = {each.sequence.id: next_token(each.sequence.token_ids) for each in output.final}
            scheduler.complete(output, tokens)
            for entry in output.final:
                sequence = entry.sequence
                if sequence.id in scheduler.sequences and sequence.num_tokens == sequence.max_num_tokens:
                    scheduler.remove(sequence.id)
        yield blocks, events.take()


@settings(max_examples=60, **law)
@given(data=st.data())
def test_task_1_any_schedule(data: st.DataObject) -> None:
    known: dict[int, BlockStored] = {}
    for blocks, events in steps_of(data):
        known = replayed(known, events)
        check_equal(known, held(blocks), "blocks that the events tell of, after a step")


# --- task 2: seen from far away -----------------------------------------------------------------------------


def contents_of(events: Items[CacheEvent]) -> CacheContents:
    contents = CacheContents()
    contents.apply(events)
    return contents


def test_task_2_each_kind_of_event() -> None:
    contents = CacheContents()
    contents.apply([])
    check_equal(contents.blocks, {}, "blocks before any event")
    contents.apply(iter([STORED[0], STORED[1]]))
    expected = {event.block_hash: event for event in STORED[:2]}
    check_equal(contents.blocks, expected, "blocks after two were stored")
    contents.apply([GONE[0]])
    check_equal(list(contents.blocks), [STORED[1].block_hash], "blocks after the first was removed")
    contents.apply([CLEARED, STORED[2]])
    check_equal(list(contents.blocks), [STORED[2].block_hash], "blocks after all were cleared and one stored")
    contents.apply([CLEARED])
    check_equal(contents.blocks, {}, "blocks after all were cleared")


def test_task_2_events_out_of_nowhere() -> None:
    contents = contents_of([GONE[2], STORED[0], STORED[0]])
    check_equal(contents.blocks, {STORED[0].block_hash: STORED[0]}, "blocks of one who joined in the middle")


def test_task_2_the_sum_of_all_events() -> None:
    check_equal(CacheContents().as_events(), [CLEARED], "events that lead to an empty cache")
    contents = contents_of(STORED)
    check_equal(contents.as_events(), [CLEARED, *STORED], "events that lead to three blocks")
    check_equal(len(contents.blocks), 3, "blocks that are left after as_events")


def test_task_2_a_block_comes_after_the_one_before_it() -> None:
    contents = contents_of([STORED[2], STORED[1], STORED[0]])
    check_equal(contents.as_events(), [CLEARED, *STORED], "events of blocks that were stored last to first")
    lonely = contents_of([STORED[2], STORED[0]])
    found = lonely.as_events()
    check_equal(found[:1], [CLEARED], "the first event")
    check_equal(set(found[1:]), {STORED[0], STORED[2]}, "events of two blocks with a gap between them")


def test_task_2_branches_and_long_chains() -> None:
    trunk, hashes = prefixes_of(range(1200), 1), ContentHashes("0")
    branches = [event_of(prefixes_of([0, 1, 2, other], 1)[-1]) for other in (77, 88)]
    stored = [
        BlockStored(
            short_hash(hashes.of(prefix)),
            None if prefix.parent is None else short_hash(hashes.of(prefix.parent)),
            prefix.token_ids,
        )
        for prefix in trunk
    ]
    contents = contents_of([*branches, *reversed(stored)])
    found = contents.as_events()
    check_equal(len(found), 1203, "events of 1,202 blocks, and one that clears")
    seen: set[int | None] = {None}
    for event in found[1:]:
        if isinstance(event, BlockStored) and event.parent_block_hash not in seen:
            fail(f"the block with tokens {event.token_ids} comes before its parent")
        seen.add(getattr(event, "block_hash", None))


@settings(max_examples=40, **law)
@given(data=st.data())
def test_task_2_whoever_joins_late_knows_the_same(data: st.DataObject) -> None:
    """Two follow: one from the start, and one that misses any steps and then asks for the sum."""
    first, late, misses = CacheContents(), contents_of([STORED[1]]), True
    for blocks, events in steps_of(data):
        first.apply(events)
        check_equal(first.blocks, held(blocks), "blocks of one who follows from the start")
        if data.draw(st.booleans(), "missed"):
            misses = True
        elif misses:
            late.apply(first.as_events())
            misses = False
        else:
            late.apply(events)
        if not misses:
            check_equal(late.blocks, held(blocks), "blocks of one who missed steps and asked for the sum")


# --- task 3: how busy, how full -----------------------------------------------------------------------------


def report_of(scheduler: Scheduler) -> tuple[int, int, float]:
    report = LoadReport.of(scheduler)
    return report.num_running, report.num_waiting, round(report.kv_usage, 9)


def test_task_3_who_runs_and_who_waits() -> None:
    scheduler = Scheduler(SchedulerConfig(8, 2), BlockManager(20, 4))
    check_equal(report_of(scheduler), (0, 0, 0.0), "running, waiting and usage of an idle scheduler")
    for number in range(5):
        scheduler.add(Sequence(number, [1] * 4, max_num_tokens=8))
    check_equal(report_of(scheduler), (0, 5, 0.0), "running, waiting and usage before the first step")
    output = scheduler.schedule()
    scheduler.complete(output, {entry.sequence.id: 1 for entry in output.final})
    check_equal(report_of(scheduler), (2, 3, 0.1), "running, waiting and usage after a step for two")
    scheduler.remove(1)
    scheduler.remove(4)
    check_equal(report_of(scheduler), (1, 2, 0.05), "running, waiting and usage after two have left")


def test_task_3_a_sequence_that_gave_way_waits() -> None:
    scheduler = Scheduler(SchedulerConfig(8, 2), BlockManager(4, 2, overcommit=True))
    for number in range(2):
        scheduler.add(Sequence(number, [1] * 3, max_num_tokens=8))
    for _ in range(3):
        output = scheduler.schedule()
        scheduler.complete(output, {entry.sequence.id: 1 for entry in output.final})
    found = LoadReport.of(scheduler)
    check_equal((found.num_running, found.num_waiting), (1, 1), "running and waiting after a preemption")


def test_task_3_cached_blocks_are_free_for_the_asking() -> None:
    blocks = manager(8, 3)
    blocks.free(live(blocks, range(13)))
    check_equal(blocks.num_cached_blocks, 4, "cached blocks")
    scheduler = Scheduler(SchedulerConfig(8, 2), blocks)
    check_equal(LoadReport.of(scheduler).kv_usage, 0.0, "usage of a pool that no sequence uses")
    live(blocks, range(5), 1)
    live(blocks, range(4), 2)
    check_equal(LoadReport.of(scheduler).kv_usage, 3 / 8, "usage while two sequences hold 3 of 8 blocks")


def test_task_3_no_pool() -> None:
    scheduler = Scheduler(SchedulerConfig(8, 2))
    scheduler.add(Sequence(0, [1]))
    scheduler.schedule()
    check_equal(report_of(scheduler), (1, 0, 0.0), "running, waiting and usage without a pool")


@pytest.mark.parametrize(
    ("hashes", "known", "expected"),
    [
        ([], {1}, 0),
        ([1, 2, 3], set(), 0),
        ([1, 2, 3], {1, 2, 3, 4}, 3),
        ([1, 2, 3], {2, 3}, 0),
        ([1, 2, 3, 4], {1, 3, 4}, 1),
        ([4, 3, 2], {2, 3, 4}, 3),
        ([1, 2], {1: "event", 2: "event"}, 2),
    ],
    ids=["no full block", "nothing known", "all", "the first is missing", "a gap", "any order", "a dict"],
)
def test_task_3_blocks_that_a_replica_knows(hashes: list[int], known: set[int], expected: int) -> None:
    check_equal(num_known_blocks(hashes, known), expected, f"known blocks of {hashes}, if {known} are")


# --- task 4: which replica ----------------------------------------------------------------------------------


def view(requests: int = 0, known: Items[int] = (), waiting: int = 0, kv_usage: float = 0.0) -> ReplicaView:
    return ReplicaView(LoadReport(requests, waiting, kv_usage), frozenset(known))


def test_task_4_one_after_the_other() -> None:
    router, replicas = RoundRobin(), [view(9, [1, 2]), view(), view()]
    chosen = [router.choose([1, 2], replicas) for _ in range(7)]
    check_equal(chosen, [0, 1, 2, 0, 1, 2, 0], "replicas in turn")
    check_equal(RoundRobin().choose([], replicas), 0, "the first choice of another router")


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        ([view(3), view(1), view(2)], 1),
        ([view(1, waiting=4), view(3), view(4)], 1),
        ([view(2), view(1), view(1)], 1),
        ([view(1, kv_usage=0.5), view(1, kv_usage=0.3), view(2, kv_usage=0.1)], 1),
        ([view(0, waiting=2, kv_usage=0.9), view(1, waiting=1, kv_usage=0.2)], 1),
        ([view(5)], 0),
    ],
    ids=["fewest", "waiting ones count", "the first of equals", "less full", "as many, less full", "one"],
)
def test_task_4_the_least_loaded(replicas: list[ReplicaView], expected: int) -> None:
    check_equal(LeastLoaded().choose([1, 2], replicas), expected, "the replica with the least to do")


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ((0, 0), False),
        ((0, 4), False),
        ((0, 5), True),
        ((5, 0), True),
        ((10, 15), False),
        ((10, 20), False),
        ((10, 21), True),
        ((9, 5, 3), True),
        ((7, 5, 4), False),
        ((50,), False),
    ],
)
def test_task_4_too_far_apart(loads: tuple[int, ...], expected: bool) -> None:
    """More than 4 requests apart, and more than twice as many."""
    router = CacheAware(balance_abs_threshold=4, balance_rel_threshold=2.0)
    found = router.is_unbalanced([view(load // 2, waiting=load - load // 2) for load in loads])
    check_equal(bool(found), expected, f"whether loads of {loads} are unbalanced, by 4 and a factor of 2")


PROMPT = [11, 12, 13, 14, 15]


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        ([view(1, PROMPT[:2]), view(3, PROMPT[:4]), view(0)], 1),
        ([view(2, PROMPT[:3]), view(1, PROMPT[:3]), view(0, PROMPT[:2])], 1),
        ([view(2, PROMPT[:2]), view(3), view(0)], 2),
        ([view(3, PROMPT[:3]), view(1, PROMPT[1:]), view(2, [99])], 0),
        ([view(8, PROMPT), view(3), view(2)], 2),
        ([view(8, PROMPT), view(4), view(5)], 0),
        ([view(2), view(3), view(1)], 2),
    ],
    ids=[
        "longest match",
        "least loaded of equal matches",
        "match at the threshold",
        "a gap",
        "unbalanced",
        "not unbalanced enough",
        "no match",
    ],
)
def test_task_4_cache_aware(replicas: list[ReplicaView], expected: int) -> None:
    router = CacheAware(cache_threshold=0.4, balance_abs_threshold=4, balance_rel_threshold=2.0)
    check_equal(router.choose(PROMPT, replicas), expected, "the replica for a prompt of 5 blocks")


def test_task_4_a_prompt_without_a_full_block() -> None:
    router = CacheAware(cache_threshold=0.0)
    check_equal(router.choose([], [view(2, PROMPT), view(1)]), 1, "the replica for a prompt of no full block")


def test_task_4_the_limits_of_the_router_count() -> None:
    replicas = [view(1, PROMPT[:1]), view(0)]
    for threshold, expected in ((0.19, 0), (0.2, 1), (0.5, 1)):
        found = CacheAware(cache_threshold=threshold).choose(PROMPT, replicas)
        check_equal(
            found, expected, f"the replica if one knows 1 of 5 blocks and the threshold is {threshold}"
        )


def fleet(
    router: RoundRobin | LeastLoaded | CacheAware, num_blocks: int, from_events: bool = True, number: int = 2
) -> Fleet:
    engines = [
        Simulator(SchedulerConfig(64, 8), CostModel(0.01, 0.001), PrefixCachingBlockManager(num_blocks, 4))
        for _ in range(number)
    ]
    return Fleet(engines, router, from_events)


@pytest.mark.parametrize("from_events", [True, False], ids=["events", "a guess"])
def test_task_4_conversations_stay_where_they_began(from_events: bool) -> None:
    """Then two caches find as much as one would."""
    users = converse(6, 4, 40, 8, 8, shared=False, pause=0.05, every=0.03)
    rates = []
    for router, number in ((RoundRobin(), 1), (CacheAware(), 2), (RoundRobin(), 2)):
        served = fleet(router, 300, from_events, number)
        served.run(users)
        rates.append(round(served.hit_rate, 6))
    check_equal(rates[1], rates[0], "share of tokens found in two caches, and in a single one")
    if not rates[1] > rates[2] + 0.1:
        fail(f"of all tokens, {rates[1]:.0%} are found by the cache, {rates[2]:.0%} in turns")


def test_task_4_one_introduction_for_all() -> None:
    users = converse(20, 1, 40, 8, 8, every=0.01)
    piled, spread = fleet(CacheAware(), 300), fleet(CacheAware(balance_abs_threshold=2), 300)
    for each in (piled, spread):
        each.run(users)
    check_equal(
        piled.choices, [0] * 20, "replicas of twenty requests with one introduction, 64 apart at most"
    )
    if not 7 <= spread.choices.count(0) <= 13:
        fail(
            f"with at most 2 requests of difference, replica 0 gets {spread.choices.count(0)} of 20 requests"
        )


# --- task 5: prefill here, decode there ---------------------------------------------------------------------

MODEL = ModelConfig("qwen3", 96, 5, 256, 6, 2, 16, 200, 1024)


def test_task_5_bytes() -> None:
    check_equal(handover_bytes(MODEL, 100), 100 * 2 * 5 * 2 * 16 * 2.0, "bytes of 100 tokens in 16 bits")
    found = handover_bytes(MODEL, 100, 64)
    check_equal(found, 36 * 2 * 5 * 2 * 16 * 2.0, "bytes of 100 tokens of which 64 are there")
    check_equal(handover_bytes(MODEL, 64, 64), 0.0, "bytes of tokens that are there")
    check_equal(
        handover_bytes(MODEL, 8, 0, 8.5), 8 * 2 * 5 * 2 * 16 * 8.5 / 8, "bytes of 8.5 bits per number"
    )


@pytest.mark.parametrize(
    ("num_bytes", "seconds", "link", "expected"),
    [
        (1e6, 0.5, Link(0.0, 1e8), 0.002),
        (1e6, 0.5, Link(0.01, 1e8), 0.012),
        (1e6, 0.5, Link(0.0, 2e6), 0.1),
        (1e6, 0.5, Link(0.0, 1e6), 0.6),
        (1e6, 0.5, Link(0.2, 1e8), 0.61),
        (1e6, 0.0, Link(0.0, 1e6), 1.0),
        (0.0, 0.5, Link(0.01, 1e6), 0.01),
    ],
    ids=["fast", "latency", "just fast enough", "slow", "slow by latency", "no prefill", "no bytes"],
)
def test_task_5_delay(num_bytes: float, seconds: float, link: Link, expected: float) -> None:
    found = handover_delay(MODEL, num_bytes, seconds, link)
    check_equal(round(found, 9), expected, f"seconds after a prefill of {seconds} s on 5 layers")


def test_task_5_layers_on_a_clock() -> None:
    """Against a list of when each layer is ready and sent."""
    for seconds, bandwidth, latency in ((0.4, 3e6, 0.01), (0.4, 3e5, 0.0), (0.2, 1e6, 0.03)):
        free = 0.0
        for layer in range(1, 6):
            free = max(free, layer * seconds / 5) + latency + 2e5 / 5 / bandwidth
        found = handover_delay(MODEL, 2e5, seconds, Link(latency, bandwidth))
        check_equal(round(found, 9), round(free - seconds, 9), "seconds after the prefill")


def test_task_5_a_link_that_keeps_up() -> None:
    check_equal(least_bandwidth(3e6, 0.25), 1.2e7, "bytes per second for 3 MB after each 0.25 s")
    num_bytes = handover_bytes(MODEL, 300)
    link = Link(0.0, least_bandwidth(num_bytes, 0.5))
    found = handover_delay(MODEL, num_bytes, 0.5, link)
    check_equal(round(found, 9), 0.1, "seconds after the prefill on a link that just keeps up, for 5 layers")
