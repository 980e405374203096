"""Week 3, day 5: under pressure."""

from collections.abc import Callable
from collections.abc import Sequence as Items
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.batching import check_released, ends_within, length
from tests.support.budget import FewBlocks, SpyPolicy, Timeline, advance, answers_of, rows_of, run
from tests.support.check import check_equal, check_value_error
from tests.support.fakes import (
    VOCAB_SIZE,
    FakeModel,
    FakeTokenizer,
    ModelFailureError,
    continuation,
    prompt_of,
)
from tiny_llm import (
    BlockManager,
    CostModel,
    Engine,
    Fcfs,
    LatencyTarget,
    PrefixCachingBlockManager,
    Priority,
    ScheduledTokens,
    Scheduler,
    SchedulerConfig,
    SchedulerOutput,
    Sequence,
    SimulatedRequest,
    Simulator,
    UnlimitedBlocks,
    fit_cost_model,
)
from tiny_llm.scheduling.blocks import Blocks
from tiny_llm.simulation.cost_model import context_of
from tiny_llm.simulation.latency_target import Demand

endless = FakeTokenizer(eos_token_ids=[])


# Task 1: make room


def crowded(
    blocks: BlockManager, jobs: Items[tuple[int, int]], budget: int = 64, max_num_seqs: int = 4, **limits: int
) -> Scheduler:
    """A scheduler to which requests were added, by prompt and answer, with ids from 0."""
    scheduler = Scheduler(SchedulerConfig(budget, max_num_seqs, **limits), blocks)
    for id, (num_tokens, num_outputs) in enumerate(jobs):
        scheduler.add(Sequence(id, prompt_of(num_tokens, id), max_num_tokens=num_tokens + num_outputs))
    return scheduler


def serve(scheduler: Scheduler, jobs: Items[tuple[int, int]], max_steps: int | None = None) -> Timeline:
    return advance(scheduler, [num_outputs for _, num_outputs in jobs], max_steps)


def preemptions_of(scheduler: Scheduler, jobs: Items[tuple[int, int]]) -> list[int]:
    """How often each was preempted when all have ended."""
    sequences = list(scheduler.sequences.values())
    serve(scheduler, jobs)
    return [sequence.num_preemptions for sequence in sequences]


def of_fake_blocks(capacity: int, held: Items[int], is_reversed: bool = False) -> tuple[Scheduler, FewBlocks]:
    """A scheduler whose sequences 0, 1, … run and hold so many tokens each."""
    blocks = FewBlocks(capacity)
    scheduler = Scheduler(SchedulerConfig(64, 8), blocks, SpyPolicy(is_reversed))
    for id, num_tokens in enumerate(held):
        scheduler.add(Sequence(id, prompt_of(6, id)))
        sequence = scheduler.sequences[id]
        scheduler.policy.remove(sequence)
        sequence.num_computed_tokens = num_tokens
        blocks.allocate(sequence, num_tokens)
    scheduler.running = sorted(scheduler.sequences.values(), key=scheduler.policy.rank)
    return scheduler, blocks


@pytest.mark.parametrize(("needed", "left"), [(1, [0, 1, 2]), (2, [0, 1, 2]), (3, [0, 1]), (6, [0])])
def test_task_1_no_more_give_way_than_it_takes(needed: int, left: list[int]) -> None:
    scheduler, blocks = of_fake_blocks(8, [2, 2, 2, 2])
    first = scheduler.running[0]
    is_made = scheduler.make_room(ScheduledTokens(first, 2, needed, False))
    check_equal(is_made, True, "whether there is room")
    mistakes = {"the first preempted": [3 - id for id in reversed(left)], "all behind it preempted": [0]}
    who = [each.id for each in scheduler.running]
    check_equal(who, left, f"running ids when {needed} tokens need room", mistakes if left != [0] else {})
    check_equal(blocks.held[0], 2 + needed, "tokens held by the sequence that needed room")
    check_equal(sorted(blocks.held), left, "ids that hold something")


def test_task_1_sequences_behind_it_give_way_and_none_before_it() -> None:
    scheduler, blocks = of_fake_blocks(8, [2, 2, 2, 2])
    entry = ScheduledTokens(scheduler.running[2], 2, 1, False)
    check_equal(scheduler.make_room(entry), True, "whether there is room for the third of four")
    check_equal([each.id for each in scheduler.running], [0, 1, 2], "ids of the running sequences")
    check_equal(
        scheduler.make_room(ScheduledTokens(scheduler.running[2], 3, 9, False)), False, "for nine more"
    )
    check_equal([each.id for each in scheduler.running], [0, 1], "running ids when no room could be made")
    check_equal(blocks.held, {0: 2, 1: 2}, "tokens held by id")


def test_task_1_the_policy_gets_who_gave_way_when_all_is_counted() -> None:
    scheduler, blocks = of_fake_blocks(8, [2, 2, 2, 2])
    seen: list[tuple[bool, bool, int, int]] = []

    def add(sequence: Sequence) -> None:
        is_out = sequence not in scheduler.running, sequence.id not in blocks.held
        seen.append((*is_out, sequence.num_computed_tokens, sequence.num_preemptions))

    scheduler.policy.add = add  # type: ignore[method-assign]
    scheduler.make_room(ScheduledTokens(scheduler.running[0], 2, 1, False))
    what = "out of running, without blocks, tokens computed and preemptions of what policy.add gets"
    check_equal(seen, [(True, True, 0, 1)], what)


def test_task_1_who_gave_way_keeps_its_priority_and_its_arrival() -> None:
    scheduler, _ = of_fake_blocks(8, [2, 2, 2, 2])
    last = scheduler.running[-1]
    last.priority = 2
    scheduler.make_room(ScheduledTokens(scheduler.running[0], 2, 1, False))
    mistakes = {"it is the most urgent from then on": (0, 3), "it arrives again": (2, 4)}
    check_equal((last.priority, last.arrival), (2, 3), "priority and arrival of what gave way", mistakes)


TWO_THAT_GROW = [(4, 4), (4, 3)]


def test_task_1_the_last_to_come_gives_way_with_all_that_it_held() -> None:
    blocks = BlockManager(4, 2, overcommit=True)
    scheduler = crowded(blocks, TWO_THAT_GROW)
    timeline = serve(scheduler, TWO_THAT_GROW, max_steps=2)
    expected = [[(0, 0, 4, True), (1, 0, 4, True)], [(0, 4, 1, True)]]
    mistakes: dict[str, Any] = {
        "nothing preempted: the sequence that lacks a block is left out": [expected[0], []],
        "the first to come preempted": [expected[0], [(1, 4, 1, True)]],
    }
    check_equal(timeline, expected, "(id, start, num_tokens, is_final) of each step", mistakes)
    seen = ([each.id for each in scheduler.running], len(scheduler.policy), sorted(blocks.tables))
    check_equal(seen, ([0], 1, [0]), "running ids, how many wait, ids that hold blocks")
    counts = [
        (each.num_computed_tokens, each.num_tokens, each.num_preemptions)
        for each in (scheduler.sequences[1], scheduler.sequences[0])
    ]
    mistakes = {
        "what was computed is still counted": [(4, 5, 1), (5, 6, 0)],
        "the sampled token is lost": [(0, 4, 1), (5, 6, 0)],
    }
    what = "tokens computed, tokens and preemptions of the preempted sequence, and of the other"
    check_equal(counts, [(0, 5, 1), (5, 6, 0)], what, mistakes)
    check_equal((blocks.num_used_blocks, blocks.num_reserved), (3, 0), "blocks in use, and reserved")


def test_task_1_blocks_that_it_had_computed_stay_known() -> None:
    blocks = PrefixCachingBlockManager(4, 2, overcommit=True)
    scheduler = crowded(blocks, TWO_THAT_GROW)
    serve(scheduler, TWO_THAT_GROW, max_steps=2)
    found = blocks.find_prefix(scheduler.sequences[1])
    mistakes = {"its count is reset before it gives back its blocks": 0}
    check_equal(found, 2, "sampled tokens of the preempted sequence that are left", mistakes)


def test_task_1_who_gave_way_is_computed_again_with_what_it_had_sampled() -> None:
    scheduler = crowded(BlockManager(4, 2, overcommit=True), TWO_THAT_GROW)
    timeline = serve(scheduler, TWO_THAT_GROW)
    rows = [row for step in timeline for row in step if row[0] == 1]
    check_equal(
        rows,
        [(1, 0, 4, True), (1, 0, 5, True), (1, 5, 1, True)],
        "what is computed of the preempted sequence",
    )


def test_task_1_who_is_last_itself_steps_back() -> None:
    jobs = [(3, 2), (2, 2), (1, 1)]
    scheduler = crowded(BlockManager(3, 2, overcommit=True), jobs[:2])
    timeline = serve(scheduler, jobs, max_steps=2)
    expected = [[(0, 0, 3, True), (1, 0, 2, True)], [(0, 3, 1, True)]]
    check_equal(timeline, expected, "(id, start, num_tokens, is_final) of each step")
    seen = ([each.id for each in scheduler.running], len(scheduler.policy))
    check_equal(seen, ([], 1), "running ids, and how many wait, once the first has ended")


def test_task_1_the_last_is_the_last_in_rank() -> None:
    scheduler, _ = of_fake_blocks(6, [2, 2, 2], is_reversed=True)
    scheduler.make_room(ScheduledTokens(scheduler.sequences[2], 2, 1, False))
    check_equal([each.id for each in scheduler.running], [2, 1], "running ids, the last to come ranked first")


def test_task_1_who_gave_way_comes_back_in_its_order_and_ahead_of_who_came_later() -> None:
    jobs = [(4, 9), (4, 4), (4, 4), (2, 1)]
    scheduler = crowded(BlockManager(7, 2, overcommit=True), jobs, max_num_seqs=3)
    let_in = [row[0] for step in serve(scheduler, jobs)[1:] for row in step if row[1] == 0]
    check_equal(let_in, [1, 2, 3], "ids in the order in which they are let in after the first step")


def test_task_1_nothing_gives_way_while_there_is_room() -> None:
    jobs = [(4, 5), (4, 3), (7, 2)]
    roomy = crowded(BlockManager(12, 2, overcommit=True), jobs)
    check_equal(preemptions_of(roomy, jobs), [0] * 3, "preemptions")
    reserved = crowded(BlockManager(5, 2), jobs)
    check_equal(preemptions_of(reserved, jobs), [0] * 3, "preemptions where all is reserved at admission")


class NextChunkAlone(BlockManager):
    """Admission that looks at the next chunk and not at the prompt."""

    def num_tokens_to_reserve(self, sequence: Sequence) -> int:
        return 0


LONG_PROMPTS = [(20, 1), (20, 1), (20, 1)]


def test_task_1_long_prompts_do_not_evict_each_other_for_ever() -> None:
    careless, careful = (
        crowded(kind(12, 2, overcommit=True), LONG_PROMPTS, 8, long_prefill_token_threshold=4)
        for kind in (NextChunkAlone, BlockManager)
    )
    assert sum(preemptions_of(careless, LONG_PROMPTS)) > 3, "the pool is not small enough to show it"
    found = preemptions_of(careful, LONG_PROMPTS)
    check_equal(found, [0] * 3, "preemptions of prompts that were let in whole")


def test_task_1_sequences_that_are_resumed_count_against_max_num_seqs() -> None:
    jobs = [(4, 9), (4, 9), (4, 9), (4, 9), (4, 9)]
    scheduler = crowded(BlockManager(9, 2, overcommit=True), jobs, max_num_seqs=3)
    timeline = serve(scheduler, jobs)
    assert any(row[1] == 0 and row[2] > 4 for step in timeline for row in step), "no sequence was resumed"
    check_equal(max(len(step) for step in timeline), 3, "most sequences of a step")


def test_task_1_partial_prefills_stay_capped_when_prompts_are_computed_again() -> None:
    jobs = [(6, 9), (6, 9), (6, 9), (6, 9)]
    limits = {"long_prefill_token_threshold": 3, "max_num_partial_prefills": 1}
    scheduler = crowded(BlockManager(14, 2, overcommit=True), jobs, 16, **limits)
    timeline = serve(scheduler, jobs)
    assert any(row[1] == 0 for step in timeline[8:] for row in step), "no sequence was computed again"
    partial = [sum(not row[3] for row in step) for step in timeline]
    check_equal(max(partial), 1, "most sequences that a step leaves in mid-prefill")


def test_task_1_a_prompt_that_was_begun_goes_on_or_gives_all_back() -> None:
    jobs = [(2, 9), (13, 5), (2, 9), (9, 4)]
    scheduler = crowded(BlockManager(11, 2, overcommit=True), jobs, budget=5, max_num_seqs=4)
    rows: dict[int, tuple[int, int]] = {}
    for number, step in enumerate(serve(scheduler, jobs)):
        for id, start, num_tokens, _ in step:
            before = rows.get(id, (number - 1, 0))
            is_next = before == (number - 1, start)
            assert is_next or start == 0, f"step {number}: sequence {id} goes on at {start} after {before}"
            rows[id] = (number, start + num_tokens)


def test_task_1_a_prefix_is_found_again_after_a_preemption() -> None:
    jobs = [(6, 5), (6, 3)]
    blocks = PrefixCachingBlockManager(7, 2, overcommit=True)
    timeline = serve(crowded(blocks, jobs), jobs)
    starts = [row[1] for step in timeline[2:] for row in step if row[0] == 1 and row[2] > 1]
    what = "its first blocks are not computed a second time"
    check_equal([start > 0 for start in starts], [True], what)
    check_equal(blocks.num_used_blocks, 0, "blocks in use when all have ended")


def paged_engine(blocks: BlockManager, budget: int = 12, max_num_seqs: int = 4, **options: Any) -> Engine:
    config = SchedulerConfig(budget, max_num_seqs, options.pop("threshold", None))
    return Engine(options.pop("model", FakeModel()), endless, config, 64, blocks, options.pop("policy", None))


@settings(max_examples=20)
@given(
    jobs=st.lists(st.tuples(st.integers(1, 24), st.integers(1, 9)), min_size=1, max_size=7),
    block_size=st.integers(1, 5),
    num_spare=st.integers(0, 12),
    is_shared=st.booleans(),
    budget=st.integers(5, 24),
    threshold=st.none() | st.integers(1, 9),
)
def test_task_1_each_request_gets_what_it_gets_alone(
    jobs: list[tuple[int, int]],
    block_size: int,
    num_spare: int,
    is_shared: bool,
    budget: int,
    threshold: int | None,
) -> None:
    num_blocks = max(-(-sum(job) // block_size) for job in jobs) + num_spare
    kind = PrefixCachingBlockManager if is_shared else BlockManager
    blocks = kind(num_blocks, block_size, overcommit=True)
    engine = paged_engine(blocks, budget, threshold=threshold)
    for id, (size, amount) in enumerate(jobs):
        engine.add_request(prompt_of(size, id % 2), length(amount))
    steps = run(engine)
    expected = {id: continuation(prompt_of(size, id % 2), amount) for id, (size, amount) in enumerate(jobs)}
    check_equal(answers_of(steps), expected, "tokens of each request")
    assert max(len(step.scheduled.entries) for step in steps) <= 4
    check_equal(
        (blocks.num_used_blocks, blocks.num_reserved), (0, 0), "blocks in use and reserved at the end"
    )


# Task 2: priorities that age


def waiting(id: int, arrival: int, priority: int = 0) -> Sequence:
    sequence = Sequence(id, prompt_of(3, id), priority)
    sequence.arrival = arrival
    return sequence


def drained(policy: Priority) -> list[int]:
    """The ids in the order in which they are next."""
    ids = []
    while (sequence := policy.first()) is not None:
        ids.append(sequence.id)
        policy.remove(sequence)
    return ids


def test_task_2_the_more_urgent_is_first_and_then_the_earlier() -> None:
    policy = Priority(patience=10)
    for id, priority in enumerate((1, 0, 2, 1, 0)):
        policy.add(waiting(id, id, priority))
    mistakes = {
        "the largest priority first": [2, 0, 3, 1, 4],
        "first come, first served": [0, 1, 2, 3, 4],
        "the last to come first within a class": [4, 1, 3, 0, 2],
    }
    check_equal(drained(policy), [1, 4, 0, 3, 2], "ids in the order of the policy", mistakes)


def test_task_2_waiting_sequences_age() -> None:
    policy = Priority(patience=3)
    for id, priority in enumerate((2, 0, 0, 1, 0, 0, 0, 0)):
        policy.add(waiting(id, id, priority))
    mistakes = {"without aging: classes one after the other": [1, 2, 4, 5, 6, 7, 3, 0]}
    check_equal(drained(policy), [1, 2, 4, 5, 0, 3, 6, 7], "ids, with a patience of 3", mistakes)


def test_task_2_equal_ranks_go_by_arrival() -> None:
    policy = Priority(patience=2)
    for id, (arrival, priority) in enumerate([(4, 0), (0, 2), (2, 1)]):
        policy.add(waiting(9 - id, arrival, priority))
    check_equal(drained(policy), [8, 7, 9], "ids of three of rank 4, that arrived at 4, 0 and 2")


@pytest.mark.parametrize(("patience", "priority"), [(3, 0), (3, 1), (3, 4), (1, 5), (16, 2)])
def test_task_2_none_is_overtaken_by_more_later_ones_than_the_bound(patience: int, priority: int) -> None:
    policy = Priority(patience)
    policy.add(waiting(0, 0, priority))
    for id in range(1, 200):
        policy.add(waiting(id, id))
    place = drained(policy).index(0)
    what = (
        f"later arrivals before one of priority {priority}, all of them most urgent, with patience {patience}"
    )
    check_equal(place, max(0, patience * priority - 1), what)


def test_task_2_another_of_the_same_id_and_rank_stands_in_its_own_place() -> None:
    policy = Priority(patience=2)
    old = waiting(7, 0, 2)
    for sequence in (old, waiting(8, 5, 9), waiting(9, 6, 9)):
        policy.add(sequence)
    policy.remove(old)
    policy.add(waiting(1, 2, 1))
    policy.add(waiting(7, 4, 0))
    mistakes = {"the place of the one that left": [7, 1, 8, 9]}
    check_equal(drained(policy), [1, 7, 8, 9], "ids, two of rank 4, and one id used twice", mistakes)


def test_task_2_the_rank_is_arrival_plus_patience_for_each_class() -> None:
    policy = Priority(patience=7)
    ranks = [policy.rank(waiting(0, *each)) for each in ((3, 0), (3, 2), (0, 1))]
    check_equal(ranks, [3, 17, 7], "ranks of (arrival, priority) (3, 0), (3, 2) and (0, 1), patience 7")


def test_task_2_the_budget_is_the_limit() -> None:
    policy = Priority()
    policy.record(SchedulerOutput(()), 1.0)
    check_equal(policy.token_budget([], 37), 37, "budget")
    check_equal(policy.rank(waiting(0, 3, 1)), 3 + 16, "rank of a class 1, with the patience of the default")


def test_task_2_a_negative_patience_is_an_error() -> None:
    Priority(0)
    with check_value_error(patience=-1):
        Priority(-1)


def counted(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def method(self: Any, other: Any) -> bool:
        Compared.num_comparisons += 1
        return compare(int(self), other)

    return method


class Compared(int):
    """Counts how often it, or a sum of it, is compared."""

    num_comparisons = 0
    __hash__ = int.__hash__
    __lt__, __le__, __eq__ = counted(int.__lt__), counted(int.__le__), counted(int.__eq__)
    __gt__, __ge__, __ne__ = counted(int.__gt__), counted(int.__ge__), counted(int.__ne__)

    def __add__(self, other: int) -> "Compared":
        return Compared(int(self) + int(other))

    __radd__ = __add__


@pytest.mark.parametrize("place", ["front", "middle"])
def test_task_2_who_waits_is_not_searched(place: str) -> None:
    policy = Priority()
    sequences = [waiting(Compared(id), Compared(id), id % 5) for id in range(4000)]
    for sequence in sequences:
        policy.add(sequence)
    Compared.num_comparisons = 0
    for sequence in sequences[2000:2010]:
        leaver = sequence if place == "middle" else policy.first()
        assert leaver is not None
        policy.remove(leaver)
    found = Compared.num_comparisons
    what = f"to take out 10 from the {place} of 4000 that wait"
    assert found <= 2000, f"ids, arrivals and ranks were compared {found} times {what}"


def test_task_2_the_removed_leave_nothing_behind() -> None:
    policy = Priority()
    policy.add(waiting(0, 0, 0))  # the others never come to the top
    sizes = []
    for id in range(1, 2001):
        policy.add(leaver := waiting(id, id, 3))
        policy.remove(leaver)
        if id in (20, 2000):
            sizes.append(len(repr(vars(policy))))
    assert sizes[1] <= 2 * sizes[0] + 200, (
        f"after 2000 sequences that came and left behind one that waits, the policy holds {sizes[1]} "
        f"characters of places, and {sizes[0]} after 20: it keeps what was removed"
    )


@settings(max_examples=200)
@given(st.integers(0, 6), st.lists(st.tuples(st.sampled_from("aaarf"), st.integers(0, 4)), max_size=60))
def test_task_2_it_is_a_sorted_list_on_paper(patience: int, actions: list[tuple[str, int]]) -> None:
    policy, paper, gone, arrivals = Priority(patience), [], [], count()
    for action, number in actions:
        if action == "a":
            paper.append(waiting(next(arrivals), 0, number))
            paper[-1].arrival = paper[-1].id
            policy.add(paper[-1])
        elif action == "r" and paper:
            gone.append(paper.pop(number % len(paper)))
            policy.remove(gone[-1])
        elif action == "f" and gone:
            paper.append(gone.pop())
            policy.add(paper[-1])
        best = min(
            paper, key=lambda each: (each.arrival + patience * each.priority, each.arrival), default=None
        )
        check_equal(policy.first(), best, f"first of {len(paper)} that wait")
        check_equal(len(policy), len(paper), "number waiting")


def test_task_2_the_urgent_are_let_in_first_and_give_way_last() -> None:
    scheduler = Scheduler(SchedulerConfig(64, 3), BlockManager(6, 2, overcommit=True), Priority(patience=10))
    for id, priority in enumerate((2, 0, 1)):
        scheduler.add(Sequence(id, prompt_of(3, id), priority, 9))
    timeline = advance(scheduler, [5, 5, 5], max_steps=3)
    expected = [
        [(1, 0, 3, True), (2, 0, 3, True), (0, 0, 3, True)],
        [(1, 3, 1, True), (2, 3, 1, True), (0, 3, 1, True)],
        [(1, 4, 1, True), (2, 4, 1, True)],
    ]
    check_equal(timeline, expected, "steps: the least urgent came first, is let in last and gives way first")


# Task 3: costs from steps


def step_of(num_tokens: int, start: int = 0) -> SchedulerOutput:
    """A step that computes so many tokens of one sequence."""
    sequence = Sequence(0, [1] * (start + num_tokens))
    return SchedulerOutput((ScheduledTokens(sequence, start, num_tokens, True),))


def varied(num_steps: int) -> list[SchedulerOutput]:
    """So many steps of different sizes."""
    return [step_of(1 + 7 * i % 41, 13 * i % 97) for i in range(num_steps)]


def seconds_of(output: SchedulerOutput, scale: float = 1.0) -> float:
    """A machine of 4 ms a step, 0.1 ms a token and 0.1 µs a key."""
    return scale * (4e-3 + 1e-4 * output.num_tokens + 1e-7 * context_of(output))


def learned(
    num_steps: int, scale: Callable[[int], float] = lambda step: 1.0, **options: Any
) -> LatencyTarget:
    """A policy that has seen so many steps of that machine, the k-th of them scale(k) times as long."""
    policy = LatencyTarget(options.pop("order", Fcfs()), options.pop("target_ms", 10.0), **options)
    for step, output in enumerate(varied(num_steps)):
        policy.record(output, seconds_of(output, scale(step)))
    return policy


def check_costs(policy: LatencyTarget, scale: float, what: str) -> None:
    __tracebackhide__ = True
    assert policy.cost is not None, f"{what}: no costs are known"
    found = costs_of(policy.cost)
    assert np.allclose(found, np.array([4e-3, 1e-4, 1e-7]) * scale, rtol=1e-4), f"{what}: {policy.cost}"


def costs_of(cost: CostModel) -> tuple[float, float, float]:
    return cost.per_step, cost.per_token, cost.per_context


def test_task_3_costs_are_known_after_sixteen_steps() -> None:
    check_equal(learned(15).cost, None, "costs after 15 steps")
    check_costs(learned(16), 1.0, "costs after 16 steps")


def test_task_3_steps_without_entries_do_not_count() -> None:
    policy = learned(15)
    for _ in range(40):
        policy.record(SchedulerOutput(()), 0.7)
    check_equal((policy.cost, policy.factor), (None, 1.0), "costs and factor after 40 empty steps")
    last = varied(16)[15]
    policy.record(last, seconds_of(last))
    check_costs(policy, 1.0, "costs after one step more")


def test_task_3_a_step_that_took_no_time_counts() -> None:
    policy = learned(16)
    policy.record(varied(17)[16], 0.0)
    found = (len(policy.steps), len(policy.ratios), policy.ratios[-1] if policy.ratios else None)
    check_equal(found, (17, 1, 0.0), "steps, ratios and the last ratio, after 16 steps and one of 0 s")


def test_task_3_steps_that_take_no_time_are_no_error() -> None:
    policy = learned(16 + 64, scale=lambda step: 0.0 if step < 16 else 1.0)
    check_costs(policy, 1.0, "costs when the 64 steps behind 16 of 0 s have taken their time")


def test_task_3_costs_are_fitted_to_the_last_steps_alone() -> None:
    policy = learned(64 + 63, lambda step: 1.0 if step < 64 else 2.0)
    assert policy.cost is not None
    assert policy.cost != fit_cost_model(policy.steps), "fitted every 16 steps: 127 is not one of them"
    policy = learned(64 + 64, lambda step: 1.0 if step < 64 else 2.0)
    check_costs(policy, 2.0, "costs when the 64 last steps took twice as long")
    policy = learned(16 + 32, lambda step: 1.0 if step < 16 else 3.0, window=32)
    check_costs(policy, 3.0, "costs with a window of 32, when the 32 last steps took three times as long")


@pytest.mark.parametrize("num_steps", [48, 64, 128])
def test_task_3_costs_are_fitted_to_all_steps_of_the_window(num_steps: int) -> None:
    def scale(step: int) -> float:
        return 1 + step * step % 11 / 20

    measured = [(output, seconds_of(output, scale(step))) for step, output in enumerate(varied(num_steps))]
    cost = learned(num_steps, scale).cost
    expected, newest = fit_cost_model(measured[-64:]), fit_cost_model(measured[-16:])
    assert cost is not None, f"no costs are known after {num_steps} steps"
    hint = " That is a fit to the newest 16 alone." if cost == newest else ""
    assert np.allclose(costs_of(cost), costs_of(expected), rtol=1e-6), (
        f"costs after {num_steps} steps in a window of 64: expected {expected}, got {cost}.{hint}"
    )


FACTORS: dict[str, tuple[int, dict[int, float], int, float, float]] = {
    # how many steps, how many times as long some of them take, the window, and the factor, from and to
    "nothing was predicted": (16, {}, 64, 1, 1),
    "no step takes any time": (40, dict.fromkeys(range(40), 0.0), 64, 1, 1),
    "each step costs what was predicted": (100, {}, 64, 1 - 1e-6, 1 + 1e-6),
    "one step of three times its prediction": (17, {16: 3.0}, 64, 2.999, 3.001),
    "one step of half its prediction": (17, {16: 0.5}, 64, 0.499, 0.501),
    "one slow step in 150": (166, {20: 50.0}, 16, 0.5, 1.5),
    "two slow steps in 150": (166, {100: 50.0, 150: 50.0}, 16, 5, 50),
    "slow steps among the last 256": (250, dict.fromkeys(range(20, 25), 9.0), 16, 2, 10),
    "slow steps before the last 256": (300, dict.fromkeys(range(20, 25), 9.0), 16, 0.8, 1.2),
}


@pytest.mark.parametrize("name", FACTORS)
def test_task_3_the_factor_is_what_99_of_100_steps_took_beyond_their_prediction(name: str) -> None:
    num_steps, scales, window, least, most = FACTORS[name]
    factor = learned(num_steps, lambda step: scales.get(step, 1.0), window=window).factor
    assert least <= factor <= most, f"{name}: expected a factor from {least:g} to {most:g}, got {factor}"


def test_task_3_the_order_is_told_too() -> None:
    spy = SpyPolicy()
    learned(3, order=spy).record(SchedulerOutput(()), 0.5)
    seconds = [seconds for _, seconds in spy.recorded]
    check_equal(seconds, [*map(seconds_of, varied(3)), 0.5], "seconds that the order's record was given")


# Task 4: what a larger step would take


def running(id: int, num_computed: int, missing: int) -> Sequence:
    sequence = Sequence(id, prompt_of(num_computed + missing, id))
    sequence.num_computed_tokens = num_computed
    return sequence


def test_task_4_what_is_asked_of_a_step() -> None:
    demand = Demand.of([running(0, 9, 1), running(1, 4, 6), running(2, 0, 3), running(3, 20, 1)])
    what = "num_running, context and prefills of two that decode and two that lack 6 and 3 tokens"
    mistakes = {
        "the token that each has anyway counted again": Demand(4, 10 + 5 + 1 + 21, ((5, 6), (1, 3))),
        "keys before the token, without the token itself": Demand(4, 9 + 4 + 0 + 20, ((5, 5), (1, 2))),
    }
    check_equal(demand, Demand(4, 10 + 5 + 1 + 21, ((5, 5), (1, 2))), what, mistakes)


def test_task_4_nothing_runs() -> None:
    demand = Demand.of([])
    check_equal(demand, Demand(0, 0, ()), "num_running, context and prefills with nothing running")
    found = [demand.context_of(n) for n in (1, 2, 5)]
    check_equal(found, [1, 3, 15], "context of a prompt that begins")


@pytest.mark.parametrize(
    ("num_tokens", "context"), [(2, 15), (3, 21), (4, 28), (5, 29), (7, 29 + 2 + 3), (9, 29 + 2 + 3 + 4 + 5)]
)
def test_task_4_the_context_of_a_larger_step(num_tokens: int, context: int) -> None:
    demand = Demand.of([running(0, 9, 1), running(1, 4, 3)])
    mistakes = {"as if each token looked at itself alone": num_tokens}
    what = f"context of {num_tokens} tokens beside one that decodes and one that lacks 3"
    check_equal(demand.context_of(num_tokens), context, what, mistakes)


@settings(max_examples=190)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30)), max_size=6),
    st.integers(1, 60),
    st.integers(1, 5),
)
def test_task_4_it_is_the_context_of_the_scheduler_s_step(
    states: list[tuple[int, int]], budget: int, num_waiting: int
) -> None:
    most = len(states) + (num_waiting if budget >= num_waiting else 1)
    scheduler = Scheduler(SchedulerConfig(budget + len(states), most))
    scheduler.running = [running(id, *state) for id, state in enumerate(states)]
    demand = Demand.of(scheduler.running)
    for id in range(num_waiting):
        scheduler.add(Sequence(100 + id, prompt_of(99 if num_waiting == 1 else 7)))
    output = scheduler.schedule()
    predicted, found = demand.context_of(output.num_tokens), context_of(output)
    if num_waiting == 1:
        check_equal(predicted, found, "context of the step that the scheduler makes")
    else:
        assert predicted >= found, f"{predicted} keys are predicted, the step looks at {found}"


@pytest.mark.parametrize("factor", [1.0, 1.5])
@pytest.mark.parametrize("num_tokens", [2, 4, 9])
def test_task_4_a_prediction_in_milliseconds(num_tokens: int, factor: float) -> None:
    policy = learned(64)
    policy.factor = factor
    demand = Demand.of([running(0, 9, 1), running(1, 4, 3)])
    expected = factor * (4 + 0.1 * num_tokens + 1e-4 * demand.context_of(num_tokens))
    found = policy.predicted_ms(demand, num_tokens)
    what = f"{num_tokens} tokens, factor {factor}"
    assert abs(found - expected) < 1e-3, f"{what}: expected {expected:.4f} ms, got {found:.4f}"


def test_task_4_nothing_is_predicted_before_anything_is_known() -> None:
    check_equal(learned(15).predicted_ms(Demand.of([]), 50), 0.0, "prediction after 15 steps")


# Task 5: a budget from a target


@pytest.mark.parametrize("num_running", [0, 1, 5])
def test_task_5_a_cautious_start(num_running: int) -> None:
    policy = LatencyTarget(Fcfs(), 10.0, first_budget=7)
    sequences = [running(id, 4, 1) for id in range(num_running)]
    budgets = [policy.token_budget(sequences, limit) for limit in (1000, 9, 2)]
    least = max(1, num_running)
    expected = [least + 7, min(9, least + 7), max(2, least)]
    check_equal(budgets, expected, f"budgets with {num_running} running, limits 1000, 9 and 2")
    check_equal(policy.can_meet(sequences), True, "can_meet before anything is known")


def three_decode() -> list[Sequence]:
    """Three that decode."""
    return [running(id, 10, 1) for id in range(3)]


@pytest.mark.parametrize("target_ms", [5.0, 6.0, 9.7, 4.5, 1.0, 0.1])
def test_task_5_the_largest_budget_under_the_target(target_ms: float) -> None:
    policy = learned(64, target_ms=target_ms)
    budget = policy.token_budget(three_decode(), 1000)
    demand = Demand.of(three_decode())
    brute = max((n for n in range(3, 83) if policy.predicted_ms(demand, n) <= target_ms), default=3)
    what = f"budget for a target of {target_ms} ms with three that decode"
    check_equal(budget, brute, what, {"one token more than fits": brute + 1, "one token less": brute - 1})
    if target_ms in (1.0, 0.1):
        check_equal(budget, 3, f"{what}: a token for each that runs, though it is too long")


def test_task_5_it_says_when_even_the_least_takes_too_long() -> None:
    found = [learned(64, target_ms=target).can_meet(three_decode()) for target in (3.0, 4.2, 4.5, 50.0)]
    check_equal(found, [False, False, True, True], "can_meet for targets of 3, 4.2, 4.5 and 50 ms")
    found = [learned(64, target_ms=target).can_meet([]) for target in (4.05, 4.15)]
    check_equal(found, [False, True], "can_meet with nothing running, for targets of 4.05 and 4.15 ms")
    budget = learned(64, target_ms=0.1).token_budget([], 1000)
    check_equal(budget, 1, "budget with nothing running, when nothing fits")


def test_task_5_the_limit_and_what_was_measured_bound_it() -> None:
    policy = learned(64, target_ms=1e6)
    largest = max(output.num_tokens for output in varied(64))
    found = [policy.token_budget(three_decode(), limit) for limit in (1000, 50, 2)]
    what = "budgets for a target that nothing reaches where three decode, limits 1000, 50 and 2"
    check_equal(found, [2 * largest, 50, 3], what)
    many = [running(id, 10, 1) for id in range(2 * largest + 9)]
    check_equal(policy.token_budget(many, 1000), len(many), "budget where more run than was ever measured")


def test_task_5_a_target_met_exactly_is_met() -> None:
    policy, demand, found = learned(64), Demand.of(three_decode()), []
    for budget in range(3, 80):
        policy.target_ms = policy.predicted_ms(demand, budget)
        found.append((policy.can_meet(three_decode()), policy.token_budget(three_decode(), 1000)))
    expected = [(True, budget) for budget in range(3, 80)]
    check_equal(found, expected, "can_meet and budget for targets that 3, 4, … tokens take exactly")


def test_task_5_it_is_found_by_halving() -> None:
    policy = learned(64, target_ms=1e9)
    policy.record(step_of(10**4), 100.0)
    asked: list[int] = []
    predicted = policy.predicted_ms
    policy.predicted_ms = lambda demand, num_tokens: asked.append(num_tokens) or predicted(demand, num_tokens)  # type: ignore[method-assign]
    policy.token_budget(three_decode(), 10**4)
    assert len(asked) <= 25, f"{len(asked)} budgets were predicted to choose one of ten thousand"


def test_task_5_prompts_under_way_count() -> None:
    policy = learned(64, target_ms=6.0)
    late = [running(0, 10, 1), running(1, 3000, 500)]
    early = [running(0, 10, 1), running(1, 0, 500)]
    budgets = [policy.token_budget(each, 1000) for each in (early, late)]
    assert budgets[0] > 2 * budgets[1], f"budgets {budgets} beside a prompt that begins, and one at 3,000"


def test_task_5_a_tail_of_three_fits_where_the_target_leaves_three() -> None:
    policy = learned(64)
    policy.target_ms = policy.predicted_ms(Demand.of([running(0, 10, 1)]), 4) + 1e-6
    scheduler = Scheduler(SchedulerConfig(64, 4), policy=policy)
    scheduler.running = [running(0, 10, 1)]
    scheduler.sequences[0] = scheduler.running[0]
    scheduler.add(Sequence(1, prompt_of(3, 1)))
    rows, decode = rows_of(scheduler.schedule()), (0, 10, 1, True)
    mistakes = {"a rest smaller than a chunk is refused": [decode]}
    check_equal(rows, [decode, (1, 0, 3, True)], "step of four tokens", mistakes)


def test_task_5_every_running_sequence_has_a_token_whatever_the_target() -> None:
    scheduler = Scheduler(SchedulerConfig(64, 4), policy=learned(64, target_ms=0.01))
    scheduler.running = [running(0, 10, 1), running(1, 3, 40), running(2, 8, 1)]
    scheduler.sequences |= {each.id: each for each in scheduler.running}
    scheduler.add(Sequence(7, prompt_of(3, 7)))
    check_equal(
        rows_of(scheduler.schedule()), [(0, 10, 1, True), (1, 3, 1, False), (2, 8, 1, True)], "the least step"
    )


class NoisyMachine:
    """Costs of a step with noise, which a simulator takes for a cost model."""

    def __init__(self, scale: Callable[[int], float]) -> None:
        self.rng = np.random.default_rng(5)
        self.scale = scale
        self.num_steps = 0

    def seconds(self, output: SchedulerOutput) -> float:
        self.num_steps += 1
        noise = 1 + 0.04 * abs(float(self.rng.standard_normal()))
        return seconds_of(output, self.scale(self.num_steps) * noise) if output.entries else 0.0


def simulated(target_ms: float, scale: Callable[[int], float] = lambda step: 1.0) -> Simulator:
    """Long prompts all the time beside three that decode."""
    policy = LatencyTarget(Fcfs(), target_ms)
    simulator = Simulator(SchedulerConfig(512, 6), NoisyMachine(scale), policy=policy)  # type: ignore[arg-type]
    streams = [SimulatedRequest((1,), 1500) for _ in range(3)]
    prompts = [SimulatedRequest((1,) * 600, 1, arrival=0.01 * number) for number in range(200)]
    simulator.run([*streams, *prompts])
    return simulator


def share_over(simulator: Simulator, target_ms: float, first: int, last: int | None = None) -> float:
    """The share of steps first to last that take longer than the target."""
    steps = simulator.steps[first:last]
    return sum(step.end - step.start > target_ms / 1e3 for step in steps) / len(steps)


def test_task_5_99_of_100_steps_stay_under_the_target_and_use_it() -> None:
    simulator = simulated(15.0)
    over = share_over(simulator, 15.0, 64)
    assert over <= 0.02, f"{100 * over:.1f} of 100 steps took longer than the target"
    sizes = [step.output.num_tokens for step in simulator.steps[64:800]]
    assert np.mean(sizes) > 60, f"steps of {np.mean(sizes):.0f} tokens where about 90 fit under the target"
    gaps = sorted(gap for number in range(3) for gap in simulator.metrics.gaps(number)[64:])
    percentile = 1e3 * gaps[int(0.985 * len(gaps))]
    assert percentile <= 15.0, f"the gap between tokens is {percentile:.1f} ms, the target 15"


def test_task_5_a_machine_that_slows_down_is_noticed() -> None:
    simulator = simulated(15.0, lambda step: 1.0 if step < 300 else 1.6)
    over = 100 * share_over(simulator, 15.0, 300 + 80, 300 + 500)
    assert over <= 2, f"{over:.1f} of 100 steps took longer than the target, 80 steps after the change"


def test_task_5_whose_turn_it_is_the_order_says() -> None:
    policy = LatencyTarget(Priority(patience=10), 10.0)
    for id, priority in enumerate((1, 0)):
        policy.add(waiting(id, id, priority))
    first = policy.first()
    assert first is not None
    check_equal(
        (len(policy), first.id, policy.rank(waiting(5, 3, 2))), (2, 1, 23), "number waiting, first, a rank"
    )
    policy.remove(first)
    check_equal((len(policy), policy.can_meet([])), (1, True), "number waiting after one left, and can_meet")


@pytest.mark.parametrize(
    "arguments", [(0.0, 16, 64), (-3.0, 16, 64), (float("nan"), 16, 64), (5.0, 0, 64), (5.0, 16, 15)]
)
def test_task_5_settings_that_make_no_sense_are_an_error(arguments: tuple[float, int, int]) -> None:
    check_equal(LatencyTarget(Fcfs(), 5.0, 1, 16).token_budget([], 9), 2, "budget of the smallest settings")
    with check_value_error():
        LatencyTarget(Fcfs(), *arguments)


# Task 6: aborts in mid-step


class InterruptedModel(FakeModel):
    """Calls back in the middle of one of its calls."""

    def __init__(self, at_call: int, callback: Callable[[], object], **options: Any) -> None:
        super().__init__(**options)
        self.at_call, self.callback = at_call, callback

    def hidden_states(self, *args: Any, **kwargs: Any) -> Any:
        if len(self.calls) == self.at_call:
            self.callback()
        return super().hidden_states(*args, **kwargs)


KINDS: dict[str, Callable[[], Blocks]] = {
    "dense": UnlimitedBlocks,
    "blocks": lambda: BlockManager(40, 2),
    "shared blocks": lambda: PrefixCachingBlockManager(40, 2, overcommit=True),
}


def interrupted(kind: str, at_call: int, callback: Callable[[Engine], object], **options: Any) -> Engine:
    """An engine with three requests whose model calls back."""
    model = InterruptedModel(at_call, lambda: callback(engine), **options)
    engine = Engine(model, endless, SchedulerConfig(8, 3), 64, KINDS[kind]())
    for id, (size, amount) in enumerate(JOBS):
        engine.add_request(prompt_of(size, id), length(amount))
    return engine


JOBS = [(3, 6), (9, 5), (4, 7)]


def check_nothing_is_held(engine: Engine) -> None:
    __tracebackhide__ = True
    held = (engine.requests, engine.scheduler.sequences, engine.scheduler.running, engine.aborted_in_step)
    check_equal(held, ({}, {}, [], set()), "requests, sequences, running, and aborted_in_step")
    if isinstance(engine.scheduler.blocks, BlockManager):
        check_equal(engine.scheduler.blocks.num_used_blocks, 0, "blocks in use")
    else:
        check_released(engine.runner.model.caches, "caches that still hold keys")


def test_task_6_an_abort_in_mid_step_is_noted_and_nothing_released() -> None:
    engine = interrupted("blocks", 1, lambda engine: None)
    engine.step()
    with engine.mid_step():
        check_equal(engine.abort(0), True, "what abort returned")
        seen = (0 in engine.requests, 0 in engine.scheduler.blocks.tables, engine.aborted_in_step)
    mistakes = {"released at once, while its blocks are being written": (False, False, {0})}
    what = "whether it is there and holds blocks while the step is under way, and aborted_in_step"
    check_equal(seen, (True, True, {0}), what, mistakes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at_call", range(8))
@pytest.mark.parametrize("aborted", range(3))
def test_task_6_an_abort_in_mid_step_leaves_the_others_alone(kind: str, at_call: int, aborted: int) -> None:
    seen: list[bool] = []
    engine = interrupted(
        kind, at_call, lambda engine: seen.extend([engine.abort(aborted), engine.abort(aborted)])
    )
    answers = answers_of(run(engine))
    expected = {id: continuation(prompt_of(size, id), amount) for id, (size, amount) in enumerate(JOBS)}
    was_there = seen == [True, False]
    check_equal(seen, [was_there, False], "what abort returned, twice")
    if was_there:
        del expected[aborted]
    check_equal(answers, expected, "tokens of the others", {"the step is lost": {}})
    check_nothing_is_held(engine)


@pytest.mark.parametrize("kind", KINDS)
def test_task_6_nothing_of_it_is_in_the_step(kind: str) -> None:
    engine = interrupted(kind, 0, lambda engine: engine.abort(0))
    step = engine.step()
    what = "ids with a token, of a step in which the only one was aborted"
    check_equal(sorted(step.sampled), [], what, {"its token is still handed on": [0]})
    check_equal((sorted(engine.requests), engine.is_stepping), ([1, 2], False), "requests, and is_stepping")
    ids = [entry.sequence.id for entry in step.scheduled.entries]
    mistakes = {"its tokens taken out of what was computed": [1]}
    check_equal(ids, [0, 1], "ids in scheduled, which stays as it was", mistakes)


@pytest.mark.parametrize("kind", KINDS)
def test_task_6_an_abort_in_its_last_step_takes_its_result_along(kind: str) -> None:
    model = InterruptedModel(1, lambda: engine.abort(0))
    engine = Engine(model, endless, SchedulerConfig(8, 3), 64, KINDS[kind]())
    engine.add_request(prompt_of(3), length(2))
    steps = run(engine)
    mistakes = {"the result of an aborted request handed on": (2, {0: continuation(prompt_of(3), 2)})}
    check_equal((len(steps), answers_of(steps)), (2, {}), "steps, and results", mistakes)
    check_nothing_is_held(engine)


def test_task_6_a_step_is_not_changed_but_made_anew() -> None:
    engine = interrupted("blocks", 99, lambda engine: None)
    step = engine.step()
    engine.abort_in_step(0)
    left = engine.without_aborted(step)
    check_equal((sorted(step.sampled), sorted(left.sampled)), ([0], []), "ids with a token, before and after")


def test_task_6_all_can_be_aborted_at_once() -> None:
    engine = interrupted("blocks", 2, lambda engine: [engine.abort(id) for id in range(3)])
    steps = run(engine)
    what = "steps and results when all are aborted in the third"
    check_equal((len(steps), answers_of(steps)), (3, {}), what)
    check_nothing_is_held(engine)


def test_task_6_a_request_may_come_in_mid_step() -> None:
    engine = interrupted("blocks", 1, lambda engine: engine.add_request(prompt_of(5, 9), length(3)))
    tokens = answers_of(run(engine))[3]
    check_equal(tokens, continuation(prompt_of(5, 9), 3), "tokens of the request added in mid-step")


def test_task_6_an_abort_and_then_an_error_releases_everything() -> None:
    engine = interrupted("dense", 2, lambda engine: engine.abort(0), fail_at=2)
    with pytest.raises(ModelFailureError):
        run(engine)
    seen = (engine.is_closed, engine.is_stepping, engine.requests)
    check_equal(seen, (True, False, {}), "closed, stepping, requests")
    check_released(engine.runner.model.caches, "caches of the prompts that still hold keys")


def test_task_6_a_step_within_a_step_is_refused() -> None:
    refused: list[int] = []

    def callback(engine: Engine) -> None:
        with check_value_error(what="a step within a step"):
            engine.step()
        refused.append(1)

    run(interrupted("blocks", 1, callback))
    check_equal(refused, [1], "how often it was tried")


def test_task_6_an_abort_by_the_tokenizer_in_mid_step() -> None:
    class Deserter(FakeTokenizer):
        def decode(self, token_ids: Items[int]) -> str:
            engine.abort(1)
            return super().decode(token_ids)

    engine = Engine(FakeModel(), Deserter(eos_token_ids=[]), SchedulerConfig(8, 3), 64, UnlimitedBlocks())
    for id, (size, amount) in enumerate(JOBS):
        engine.add_request(prompt_of(size, id), length(amount))
    check_equal(sorted(answers_of(run(engine))), [0, 2], "ids of the results")
    check_nothing_is_held(engine)


REFUSED: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "negative id": ([3, -4, 5], {}, {"token_id": -4}),
    "beyond the vocabulary": ([3, VOCAB_SIZE], {}, {"token_id": VOCAB_SIZE}),
    "a fraction": ([3, 4.0], {}, {"token_id": 4.0}),
    "text among ids": ([3, "4"], {}, {"token_id": "4"}),
    "a truth value": ([True, 4], {}, {"token_id": True}),
    "nothing": ([], {}, {}),
    "too long": (prompt_of(65), {}, {"num_tokens": 65, "max_seq_len": 64}),
    "more than the pool": (prompt_of(30), {}, {}),
    "negative priority": ([3, 4], {"priority": -2}, {"priority": -2}),
    "a fraction as priority": ([3, 4], {"priority": 0.5}, {"priority": 0.5}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_task_6_what_cannot_be_served_is_refused_at_once_and_not_skipped(name: str) -> None:
    prompt, options, shown = REFUSED[name]
    engine = interrupted("blocks", 1, lambda engine: engine.abort(2))
    engine.scheduler.blocks = engine.runner.blocks = BlockManager(12, 2)
    engine.step()
    with check_value_error(**shown):
        engine.add_request(prompt, length(2), **options)
    check_equal(len(engine.requests), 3, "requests after one was refused")
    with ends_within():
        answers = answers_of(run(engine))
    check_equal(sorted(answers), [0, 1], "ids of the results: all but the aborted one")
    number = engine.add_request(prompt_of(3), length(2))
    check_equal(number, 3, "id of the next request: a refused one uses none up")


def test_task_6_the_edges_of_the_vocabulary_are_served() -> None:
    engine = interrupted("blocks", 0, lambda engine: engine.abort(0))
    id = engine.add_request([0, VOCAB_SIZE - 1], length(2), priority=7)
    check_equal(answers_of(run(engine))[id], continuation([0, VOCAB_SIZE - 1], 2), "tokens")


@pytest.mark.parametrize("order", ["fcfs", "priority", "target", "both"])
def test_task_6_the_whole_engine_under_pressure(order: str) -> None:
    orders: dict[str, Any] = {
        "fcfs": Fcfs(),
        "priority": Priority(2),
        "target": LatencyTarget(Fcfs(), 0.2, 1, 16),
        "both": LatencyTarget(Priority(2), 50.0),
    }
    blocks = PrefixCachingBlockManager(13, 3, overcommit=True, watermark=0.1)
    model = InterruptedModel(9, lambda: engine.abort(5))
    engine = paged_engine(blocks, 9, model=model, policy=orders[order], threshold=5)
    jobs = [(5 + 7 * id % 17, 3 + id % 5) for id in range(12)]
    for id, (size, amount) in enumerate(jobs):
        engine.add_request(prompt_of(size, id % 3), length(amount), priority=id % 4)
    answers = answers_of(run(engine))
    expected = {id: continuation(prompt_of(size, id % 3), amount) for id, (size, amount) in enumerate(jobs)}
    expected = {id: tokens for id, tokens in expected.items() if id in answers or id != 5}
    check_equal(answers, expected, "tokens of each request")
    check_nothing_is_held(engine)


# Task 7: urgent ones are let in


def served_with(
    jobs: Items[tuple[int, int, int, int]],
    config: SchedulerConfig,
    blocks: Blocks | None = None,
    patience: int = 16,
) -> tuple[dict[int, int], list[Sequence]]:
    """The step of each first token, of requests that come at a step with a priority, a prompt and an answer.

    Also their sequences, when all have ended. Fails if one that ranks before another gives way to it.
    """
    scheduler = Scheduler(config, blocks, Priority(patience))
    first_tokens: dict[int, int] = {}
    sequences = [
        Sequence(id, prompt_of(size, id), priority, size + amount)
        for id, (_, priority, size, amount) in enumerate(jobs)
    ]
    for step in range(5000):
        for sequence, (arrival, *_) in zip(sequences, jobs, strict=True):
            if arrival == step:
                scheduler.add(sequence)
        before = {each.id: each.num_preemptions for each in sequences}
        output = scheduler.schedule()
        ranks = [scheduler.policy.rank(each) for each in scheduler.running]
        gone = [each for each in sequences if each.num_preemptions > before[each.id]]
        for each in gone:
            check_equal(
                scheduler.policy.rank(each) >= max(ranks),
                True,
                f"in step {step}, that {each.id}, which gave way, ranks behind all that run",
            )
        scheduler.complete(output, {each.sequence.id: 5 for each in output.final})
        for entry in output.final:
            first_tokens.setdefault(entry.sequence.id, step)
            if entry.sequence.num_tokens == entry.sequence.max_num_tokens:
                scheduler.remove(entry.sequence.id)
        if not scheduler.has_work and step > max(job[0] for job in jobs):
            return first_tokens, sequences
    pytest.fail("there is still work after 5000 steps")


LONG_ANSWERS = [(0, 5, 4, 300)] * 2
POOLS_FOR_TWO: dict[str, Callable[[], Blocks]] = {
    "no blocks": UnlimitedBlocks,
    "reserved": lambda: BlockManager(76 * 2, 4),
    "overcommitted": lambda: BlockManager(76 * 2, 4, overcommit=True),
    "shared": lambda: PrefixCachingBlockManager(76 * 2, 4),
}


@pytest.mark.parametrize("pool", POOLS_FOR_TWO)
def test_task_7_an_urgent_request_takes_a_place(pool: str) -> None:
    config = SchedulerConfig(16, 2)
    jobs = [*LONG_ANSWERS, (10, 0, 6, 3)]
    first_tokens, sequences = served_with(jobs, config, POOLS_FOR_TWO[pool]())
    mistakes = {"an urgent request waits for a whole answer": 300}
    check_equal(first_tokens[2], 10, "step of its first token, all places taken by priority 5", mistakes)
    counts = [each.num_preemptions for each in sequences]
    check_equal(counts, [0, 1, 0], "how often each gave way", {"the first gave way": [1, 0, 0]})


def test_task_7_an_urgent_request_takes_room() -> None:
    config, blocks = SchedulerConfig(16, 8), BlockManager(40, 4)
    jobs = [(0, 5, 4, 56)] * 2 + [(10, 0, 6, 34)]  # 15 blocks each, and 10
    first_tokens, sequences = served_with(jobs, config, blocks)
    check_equal(first_tokens[2], 10, "step of its first token, while places are free and there is room")
    jobs[2] = (10, 0, 6, 38)
    first_tokens, sequences = served_with(jobs, config, BlockManager(40, 4))
    check_equal(first_tokens[2], 10, "step of its first token, while places are free and blocks are not")
    check_equal([each.num_preemptions for each in sequences], [0, 1, 0], "how often each gave way")


def test_task_7_none_that_ranks_before_gives_way() -> None:
    jobs = [(0, 0, 4, 56), (0, 5, 4, 56), (10, 0, 6, 98)]  # 15 blocks each, and 26 of 40
    first_tokens, sequences = served_with(jobs, SchedulerConfig(16, 8), BlockManager(40, 4))
    check_equal(first_tokens[2], 56, "step of its first token: that after the end of the first")
    check_equal([each.num_preemptions for each in sequences], [0, 1, 0], "how often each gave way")


def test_task_7_an_urgent_request_is_computed_before_a_long_prompt_under_way() -> None:
    jobs = [(0, 5, 400, 2), (1, 0, 6, 3)]
    first_tokens, sequences = served_with(jobs, SchedulerConfig(16, 8))
    mistakes = {"the whole prompt first": 25}
    check_equal(first_tokens[1], 1, "step of the first token of an urgent request that comes at 1", mistakes)
    check_equal([each.num_preemptions for each in sequences], [0, 0], "how often each gave way")


@pytest.mark.parametrize(("priority", "arrival"), [(5, 10), (4, 30), (0, 85)])
def test_task_7_who_does_not_rank_before_waits(priority: int, arrival: int) -> None:
    others = [(step, 9, 1, 1) for step in range(arrival - 2)]  # they let time pass, and end at once
    jobs = [(0, 5, 4, 300), *others, (arrival, priority, 4, 2)]
    first_tokens, sequences = served_with(jobs, SchedulerConfig(16, 1), patience=16 if priority else 0)
    check_equal(sequences[0].num_preemptions, 0, "how often the first one gave way")
    check_equal(first_tokens[len(jobs) - 1] >= 300, True, "that the last one waits for a whole answer")


def test_task_7_partial_prefills_have_their_limit() -> None:
    config = SchedulerConfig(16, 2, 4, 1)
    jobs = [(0, 5, 12, 9), (0, 5, 2, 9), (1, 0, 9, 2)]
    first_tokens, _ = served_with(jobs, config)
    check_equal(
        first_tokens[2], 5, "step of the first token of one with 9, in chunks of 4, after one with 12"
    )


def test_task_7_who_is_let_in_counts_what_is_found() -> None:
    blocks = PrefixCachingBlockManager(40, 4)
    scheduler = Scheduler(SchedulerConfig(16, 1), blocks, Priority())
    first, urgent = Sequence(0, prompt_of(8, 1), 5, 30), Sequence(1, [*prompt_of(8, 1), 3], 0, 12)
    scheduler.add(first)
    scheduler.complete(scheduler.schedule(), {0: 9})
    scheduler.add(urgent)
    check_equal(
        rows_of(scheduler.schedule()), [(1, 8, 1, True)], "step of one whose prompt is found but for 1"
    )
    seen = [each.id for each in scheduler.running], scheduler.policy.first(), len(scheduler.policy)
    check_equal(seen, ([1], first, 1), "ids that run, the first that waits, and how many wait")


@settings(max_examples=60)
@given(st.data())
def test_task_7_none_gives_way_more_often_than_the_bound(data: st.DataObject) -> None:
    patience = data.draw(st.integers(0, 6))
    job = st.tuples(st.integers(0, 40), st.integers(0, 3), st.integers(1, 12), st.integers(1, 20))
    jobs = sorted(data.draw(st.lists(job, min_size=1, max_size=14)))
    num_blocks = data.draw(st.integers(11, 30))
    kind = data.draw(st.sampled_from([BlockManager, PrefixCachingBlockManager]))
    overcommit = data.draw(st.booleans())
    config = SchedulerConfig(data.draw(st.integers(5, 20)), data.draw(st.integers(1, 5)))
    _, sequences = served_with(jobs, config, kind(num_blocks, 3, overcommit), patience)
    for each in sequences:
        rank = each.arrival + patience * each.priority
        before = [other for other in sequences if other.arrival + patience * other.priority < rank]
        later = sum(other.arrival > each.arrival for other in before)
        growth = 11 * (len(before) + 1) if overcommit else 0  # blocks of all that may grow before it
        what = f"how often {each.id} gave way, with {later} later ones that rank before it"
        assert each.num_preemptions <= later + growth, f"{what}: {each.num_preemptions}"
        assert later <= max(0, patience * each.priority - 1)
