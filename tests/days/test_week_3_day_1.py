"""Week 3, day 1: one token budget."""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from collections.abc import Sequence as Items
from dataclasses import FrozenInstanceError
from functools import partial
from random import Random
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.batching import (
    SAMPLED,
    check_released,
    ends_within,
    length,
    peak_bytes,
    small_model,
)
from tests.support.budget import (
    FewBlocks,
    Row,
    SpyPolicy,
    Timeline,
    advance,
    answers_of,
    budget_of,
    rows_of,
    run,
    sequence_of,
    serve_on_paper,
)
from tests.support.check import check_close, check_equal, check_value_error, normal
from tests.support.counting import check_calls, count_calls
from tests.support.fakes import FakeModel, FakeTokenizer, ModelFailureError, continuation, prompt_of
from tests.support.sampling import drawn_alone
from tiny_llm import (
    CostModel,
    DenseRunner,
    Engine,
    EngineStep,
    Fcfs,
    GenerationResult,
    SamplingParams,
    ScheduledTokens,
    Scheduler,
    SchedulerConfig,
    SchedulerOutput,
    Sequence,
    SimulatedRequest,
    Simulator,
    TinyKvFullCache,
    UnlimitedBlocks,
    fit_cost_model,
    make_sampler,
    num_prefill_steps,
    num_prefill_steps_of_two,
    scaled_dot_product_attention_grouped,
    simple_generate_with_kv_cache,
)
from tiny_llm.engine.dense_runner import RowKvCaches
from tiny_llm.engine.sampling_batch import SamplingBatch
from tiny_llm.scheduling.scheduler import next_tokens
from tiny_llm.simulation.cost_model import context_of

tokenizer = FakeTokenizer()
endless = FakeTokenizer(eos_token_ids=[])


# Task 1: a sequence catches up


def test_task_1_a_new_sequence_has_its_prompt_and_nothing_computed() -> None:
    sequence = Sequence(7, [11, 12, 13], priority=2)
    seen = (sequence.id, sequence.token_ids, sequence.num_prompt_tokens, sequence.num_computed_tokens)
    check_equal(seen, (7, [11, 12, 13], 3, 0), "id, token_ids, num_prompt_tokens and num_computed_tokens")
    others = (sequence.priority, sequence.arrival, sequence.generated_ids)
    check_equal(others, (2, 0, []), "priority, arrival and generated_ids")
    mistakes = {"the tokens of both: each sequence needs a list of its own": [11, 12, 13, 21]}
    check_equal(Sequence(8, [21]).token_ids, [21], "token_ids of the next sequence", mistakes)
    check_equal(Sequence(7, [11]).priority, 0, "priority, unless given")


@pytest.mark.parametrize(("computed", "behind"), [(0, 5), (2, 3), (4, 1), (5, 0)])
def test_task_1_how_far_a_prompt_is_behind(computed: int, behind: int) -> None:
    sequence = Sequence(0, prompt_of(5))
    sequence.num_computed_tokens = computed
    seen = (sequence.num_tokens, sequence.num_uncomputed_tokens, sequence.is_prefilling)
    what = f"num_tokens, num_uncomputed_tokens and is_prefilling with {computed} of 5 computed"
    check_equal(seen, (5, behind, computed < 5), what)


def test_task_1_a_generated_token_is_one_to_catch_up_with() -> None:
    sequence = Sequence(0, prompt_of(5))
    sequence.num_computed_tokens = 5
    sequence.token_ids += [31, 32]
    seen = (sequence.num_tokens, sequence.num_prompt_tokens, sequence.num_uncomputed_tokens)
    mistakes = {
        "the prompt alone, without what was generated": (5, 5, 0),
        "the prompt grown with it": (7, 7, 2),
    }
    check_equal(seen, (7, 5, 2), "num_tokens, num_prompt_tokens and num_uncomputed_tokens", mistakes)
    check_equal(sequence.generated_ids, [31, 32], "generated_ids")
    check_equal(sequence.is_prefilling, False, "is_prefilling once the prompt is computed")


def test_task_1_what_is_computed_again_is_a_prompt_first() -> None:
    sequence = Sequence(0, prompt_of(5))
    sequence.token_ids += [31, 32]
    seen = (sequence.num_uncomputed_tokens, sequence.is_prefilling, sequence.generated_ids)
    check_equal(seen, (7, True, [31, 32]), "behind, is_prefilling and generated_ids with nothing computed")


def test_task_1_the_prompt_is_copied() -> None:
    prompt = [11, 12, 13]
    first, second = Sequence(0, prompt), Sequence(1, prompt)
    first.token_ids.append(99)
    mistakes = {"one list for all: copy the one that is given": ([11, 12, 13, 99],) * 2}
    what = "the list given, and another sequence's tokens, once a sequence has a token more"
    check_equal((prompt, second.token_ids), ([11, 12, 13],) * 2, what, mistakes)


@pytest.mark.parametrize(
    "prompt", [[3, 4], (3, 4), range(3, 5), iter([3, 4])], ids=["list", "tuple", "range", "iterator"]
)
def test_task_1_a_prompt_is_any_iterable_of_ids(prompt: Any) -> None:
    check_equal(Sequence(0, prompt).token_ids, [3, 4], "token_ids")


def test_task_1_the_most_tokens_it_may_come_to_have() -> None:
    sequences = [Sequence(0, prompt_of(5)), Sequence(1, prompt_of(5), max_num_tokens=9)]
    check_equal([each.max_num_tokens for each in sequences], [5, 9], "max_num_tokens, not given and given")
    check_equal([each.num_preemptions for each in sequences], [0, 0], "num_preemptions")
    for most in (4, 0):
        with check_value_error(id=2, num_prompt_tokens=5, max_num_tokens=most):
            Sequence(2, prompt_of(5), max_num_tokens=most)


def test_task_1_an_empty_prompt_is_an_error() -> None:
    for nothing in ([], iter(())):
        with check_value_error(id=17):
            Sequence(17, nothing)


# Task 2: what one sequence gets


@pytest.mark.parametrize(
    ("num_tokens", "computed", "limit", "expected"),
    [
        (7, 0, 3, (0, 3, False)),
        (7, 6, 3, (6, 1, True)),
        (7, 4, 3, (4, 3, True)),
        (7, 0, 7, (0, 7, True)),
        (7, 0, 6, (0, 6, False)),
        (7, 0, 99, (0, 7, True)),
        (1, 0, 1, (0, 1, True)),
        (7, 5, 1, (5, 1, False)),
    ],
)
def test_task_2_the_next_tokens_of_a_prompt(
    num_tokens: int, computed: int, limit: int, expected: tuple[int, int, bool]
) -> None:
    sequence = Sequence(4, prompt_of(num_tokens))
    entry = next_tokens(sequence, computed, limit)
    start, count, _ = expected
    check_equal(entry.sequence is sequence, True, "the entry is the sequence's")
    what = f"start, num_tokens and is_final with {computed} of {num_tokens} computed and at most {limit}"
    mistakes = {
        "sampling in mid-prefill: final although tokens of it stay uncomputed": (start, count, True),
        "never final": (start, count, False),
        "more tokens than the limit": (start, num_tokens - computed, True),
    }
    check_equal((entry.start, entry.num_tokens, entry.is_final), expected, what, mistakes)
    check_equal(entry.token_ids, prompt_of(num_tokens)[start : start + count], "tokens to compute")


def test_task_2_a_decode_is_one_token() -> None:
    sequence = sequence_of(0, 5, computed=5, generated=[31])
    entry = next_tokens(sequence, 5, 64)
    check_equal(entry, ScheduledTokens(sequence, 5, 1, True), "entry of a sequence that decodes")
    check_equal((entry.token_ids, entry.is_prefill), ([31], False), "its tokens, and is_prefill")


def test_task_2_generated_tokens_are_computed_again_like_a_prompt() -> None:
    sequence = sequence_of(0, 5, computed=0, generated=[31, 32])
    expected = [(0, 4, False), (4, 3, True)]
    entries = [next_tokens(sequence, 0, 4), next_tokens(sequence, 4, 4)]
    found = [(entry.start, entry.num_tokens, entry.is_final) for entry in entries]
    check_equal(found, expected, "start, num_tokens and is_final of both entries")
    one_is_missing = next_tokens(sequence, 0, 6)
    mistakes = {"sampling once the prompt is computed, before what was generated is": True}
    check_equal(one_is_missing.is_final, False, "is_final with 6 of 7 tokens, 5 of them the prompt", mistakes)


def test_task_2_nothing_of_the_sequence_changes() -> None:
    sequence = sequence_of(0, 5, computed=2)
    next_tokens(sequence, 2, 64)
    check_equal((sequence.num_computed_tokens, sequence.num_tokens), (2, 5), "tokens computed, and tokens")


def scheduler_with(
    lengths: Items[int],
    budget: int = 64,
    max_num_seqs: int = 4,
    blocks: FewBlocks | None = None,
    policy: SpyPolicy | None = None,
    **limits: Any,
) -> Scheduler:
    """A scheduler to which prompts of these lengths were added, with ids from 0."""
    scheduler = Scheduler(SchedulerConfig(budget, max_num_seqs, **limits), blocks, policy)
    for id, num_tokens in enumerate(lengths):
        scheduler.add(sequence_of(id, num_tokens))
    return scheduler


def run_by_hand(scheduler: Scheduler, sequence: Sequence) -> None:
    """Let a waiting sequence run, as task 3 does."""
    scheduler.policy.remove(sequence)
    scheduler.running.append(sequence)


def started(*lengths: int) -> tuple[Scheduler, SchedulerOutput]:
    """A scheduler whose prompts all run, and a step of four tokens at most of each."""
    scheduler = scheduler_with(lengths)
    for sequence in scheduler.sequences.values():
        run_by_hand(scheduler, sequence)
    return scheduler, SchedulerOutput(tuple(next_tokens(each, 0, 4) for each in scheduler.running))


def progress_of(scheduler: Scheduler) -> list[tuple[int, list[int]]]:
    return [(each.num_computed_tokens, each.generated_ids) for each in scheduler.running]


def check_no_sequences(scheduler: Scheduler) -> None:
    __tracebackhide__ = True
    seen = (scheduler.has_work, scheduler.running, len(scheduler.policy))
    check_equal(seen, (False, [], 0), "has_work, running, and number waiting")


def test_task_2_who_is_added_waits_in_order() -> None:
    scheduler = Scheduler(SchedulerConfig())
    check_no_sequences(scheduler)
    sequences = [sequence_of(id, 3) for id in (7, 2, 5)]
    for sequence in sequences:
        scheduler.add(sequence)
    check_equal([sequence.arrival for sequence in sequences], [0, 1, 2], "arrival of each")
    check_equal((scheduler.has_work, len(scheduler.policy)), (True, 3), "has_work, and number waiting")
    check_equal(scheduler.policy.first() is sequences[0], True, "the first to arrive is first")
    check_equal((scheduler.running, list(scheduler.sequences)), ([], [7, 2, 5]), "running, and all ids")


def test_task_2_an_id_twice_is_an_error() -> None:
    scheduler = scheduler_with([3, 4])
    for _ in range(2):
        with check_value_error(id=1):
            scheduler.add(sequence_of(1, 9))
    seen = (len(scheduler.policy), scheduler.sequences[1].num_tokens)
    check_equal(seen, (2, 4), "waiting, and the first's")
    scheduler.remove(1)
    scheduler.add(sequence_of(1, 9))
    check_equal(len(scheduler.policy), 2, "number waiting after an id was used again")
    check_equal(scheduler.sequences[1].arrival, 2, "arrival of the third, when the second has left")


def test_task_2_a_sequence_that_was_computed_elsewhere_is_an_error() -> None:
    scheduler = scheduler_with([])
    with check_value_error(id=13, num_computed_tokens=2):
        scheduler.add(sequence_of(13, 5, computed=2))
    check_no_sequences(scheduler)


def test_task_2_a_sequence_that_can_never_run_is_refused_and_not_left_waiting() -> None:
    scheduler = Scheduler(SchedulerConfig(), blocks=FewBlocks(capacity=6))
    with check_value_error():
        scheduler.add(sequence_of(0, 7))
    check_no_sequences(scheduler)
    scheduler.add(sequence_of(1, 6))
    check_equal((len(scheduler.policy), scheduler.sequences[1].arrival), (1, 0), "waiting, and its arrival")


def test_task_2_complete_moves_the_counts_and_appends_what_was_sampled() -> None:
    scheduler, output = started(7, 3)
    scheduler.complete(output, {1: 55})
    mistakes = {
        "the token given to the wrong sequence": [(4, [55]), (3, [])],
        "the token lost": [(4, []), (3, [])],
    }
    what = "num_computed_tokens and generated_ids of both"
    check_equal(progress_of(scheduler), [(4, []), (3, [55])], what, mistakes)


@pytest.mark.parametrize("sampled", [{}, {0: 5}, {0: 5, 1: 6}, {1: 6, 2: 7}], ids=str)
def test_task_2_tokens_for_other_sequences_than_the_final_ones_are_an_error(sampled: dict[int, int]) -> None:
    scheduler, output = started(7, 3)
    with check_value_error(**{"output.final_ids": [1], "sampled": sorted(sampled)}):
        scheduler.complete(output, sampled)
    check_equal(progress_of(scheduler), [(0, [])] * 2, "computed and generated after the error")


def test_task_2_a_step_is_completed_once() -> None:
    scheduler, output = started(3, 7)
    scheduler.complete(output, {0: 55})
    with check_value_error():
        scheduler.complete(output, {0: 56})
    check_equal(progress_of(scheduler), [(3, [55]), (4, [])], "computed and generated after the error")


def test_task_2_an_error_at_the_second_entry_completes_nothing() -> None:
    scheduler, output = started(3, 7)
    scheduler.running[1].num_computed_tokens = 4  # as if its part of the step was completed before
    with check_value_error(id=1, num_computed_tokens=4):
        scheduler.complete(output, {0: 55})
    check_equal(progress_of(scheduler), [(0, []), (4, [])], "computed and generated after the error")


def test_task_2_who_was_removed_is_passed_over_though_its_id_came_again() -> None:
    scheduler, output = started(3, 7)
    old, new = scheduler.sequences[0], sequence_of(0, 5)
    scheduler.remove(0)
    scheduler.add(new)
    scheduler.complete(output, {0: 55})
    found = [(each.num_computed_tokens, each.generated_ids) for each in (old, new)]
    what = "computed and generated of the sequence removed in mid-step, and of one added with its id"
    check_equal(found, [(0, []), (0, [])], what)


def test_task_2_what_was_removed_in_the_meantime_is_passed_over() -> None:
    scheduler, output = started(3, 2)
    removed = scheduler.running[0]
    scheduler.remove(0)
    scheduler.complete(output, {0: 55, 1: 56})
    check_equal((removed.num_computed_tokens, removed.generated_ids), (0, []), "the one that was removed")
    check_equal(progress_of(scheduler), [(2, [56])], "the other one")


@pytest.mark.parametrize("runs", [False, True])
def test_task_2_remove_forgets_who_waits_and_who_runs(runs: bool) -> None:
    blocks = FewBlocks(capacity=99)
    scheduler = Scheduler(SchedulerConfig(), blocks)
    for id in range(3):
        scheduler.add(sequence_of(id, 4))
    sequence = scheduler.sequences[1]
    if runs:
        run_by_hand(scheduler, sequence)
        blocks.allocate(sequence, 4)
    scheduler.remove(1)
    seen = (list(scheduler.sequences), scheduler.running, len(scheduler.policy), blocks.held)
    check_equal(seen, ([0, 2], [], 2, {}), "ids, running, number waiting, and tokens held by id")
    with check_value_error(id=1):
        scheduler.remove(1)


def test_task_2_the_last_to_leave_leaves_nothing() -> None:
    scheduler = scheduler_with([3])
    scheduler.remove(0)
    check_no_sequences(scheduler)


# Task 3: one budget


def output_of(*parts: tuple[Sequence, int]) -> SchedulerOutput:
    """A step that computes so many tokens of each sequence."""
    entries = []
    for sequence, num_tokens in parts:
        start = sequence.num_computed_tokens
        is_final = start + num_tokens == sequence.num_tokens
        entries.append(ScheduledTokens(sequence, start, num_tokens, is_final))
    return SchedulerOutput(tuple(entries))


def test_task_3_a_lone_prompt_is_computed_in_pieces_of_the_budget() -> None:
    scheduler = scheduler_with([11], budget=4)
    timeline = advance(scheduler, [3])
    expected = [
        [(0, 0, 4, False)],
        [(0, 4, 4, False)],
        [(0, 8, 3, True)],
        [(0, 11, 1, True)],
        [(0, 12, 1, True)],
    ]
    check_equal(timeline, expected, "(id, start, num_tokens, is_final) of each step")


def test_task_3_a_tail_of_three_fits_where_three_are_left() -> None:
    scheduler = scheduler_with([4, 3, 9], budget=7, long_prefill_token_threshold=4)
    output = scheduler.schedule()
    mistakes = {"a whole threshold of budget asked for, even for a shorter rest": [(0, 0, 4, True)]}
    check_equal(rows_of(output), [(0, 0, 4, True), (1, 0, 3, True)], "first step", mistakes)


def test_task_3_every_running_sequence_gets_a_token_in_every_step() -> None:
    scheduler = scheduler_with([2, 40, 3], budget=8, max_num_seqs=3, long_prefill_token_threshold=3)
    advance(scheduler, [99, 99, 99], max_steps=1)
    check_equal(
        [each.id for each in scheduler.running], [0, 1, 2], "ids of the running sequences after a step"
    )
    scheduler.config = SchedulerConfig(8, 3)
    timeline = advance(scheduler, [99, 99, 99], max_steps=2)
    expected = [
        [(0, 2, 1, True), (1, 3, 6, False), (2, 3, 1, True)],
        [(0, 3, 1, True), (1, 9, 6, False), (2, 4, 1, True)],
    ]
    starving = [[(0, 2, 1, True), (1, 3, 7, False)], [(0, 3, 1, True), (1, 10, 7, False)]]
    mistakes = {"a prompt takes all that is left, and the sequence behind it gets nothing": starving}
    check_equal(timeline, expected, "(id, start, num_tokens, is_final) of each step", mistakes)


def test_task_3_never_more_than_max_num_seqs_run_prefills_counted() -> None:
    scheduler = scheduler_with([30] * 7, budget=20, max_num_seqs=4, long_prefill_token_threshold=3)
    seen = []
    for _ in range(12):
        output = scheduler.schedule()
        seen.append(len(output.entries))
        scheduler.complete(output, {entry.sequence.id: 1 for entry in output.final})
    check_equal(seen, [4] * 12, "sequences in each step", {"more sequences run than allowed": [7] * 12})


def test_task_3_the_threshold_bounds_one_prompt_and_not_the_step() -> None:
    scheduler = scheduler_with([10, 3, 9], budget=12, long_prefill_token_threshold=4)
    timeline = advance(scheduler, [1, 1, 1])
    expected = [
        [(0, 0, 4, False), (1, 0, 3, True), (2, 0, 4, False)],
        [(0, 4, 4, False), (2, 4, 4, False)],
        [(0, 8, 2, True), (2, 8, 1, True)],
    ]
    mistakes = {
        "the threshold taken for the whole step": [[(0, 0, 4, False)], [(0, 4, 4, False)], [(0, 8, 2, True)]],
        "the threshold applied only when a sequence is let in, and not to its later chunks": [
            expected[0],
            [(0, 4, 6, True), (2, 4, 5, True)],
        ],
    }
    check_equal(timeline, expected, "(id, start, num_tokens, is_final) of each step", mistakes)


def test_task_3_partial_prefills_are_counted() -> None:
    limits = {"long_prefill_token_threshold": 4, "max_num_partial_prefills": 2}
    first = rows_of(scheduler_with([9, 9, 9, 2], budget=30, **limits).schedule())
    expected, whole = [(0, 0, 4, False), (1, 0, 4, False)], (3, 0, 2, True)
    mistakes = {
        "partial prefills never counted": [*expected, (2, 0, 4, False), whole],
        "a later one let pass": [*expected, whole],
    }
    check_equal(first, expected, "first step", mistakes)


def test_task_3_partial_prefills_under_way_count_too() -> None:
    limits = {"long_prefill_token_threshold": 4, "max_num_partial_prefills": 1}
    timeline = advance(scheduler_with([9, 9, 3], budget=30, **limits), [1, 1, 1])
    expected = [
        [(0, 0, 4, False)],
        [(0, 4, 4, False)],
        [(0, 8, 1, True), (1, 0, 4, False), (2, 0, 3, True)],
        [(1, 4, 4, False)],
        [(1, 8, 1, True)],
    ]
    mistakes = {
        "only those that begin in the step are counted": [
            [(0, 0, 4, False)],
            [(0, 4, 4, False), (1, 0, 4, False), (2, 0, 3, True)],
            [(0, 8, 1, True), (1, 4, 4, False)],
            [(1, 8, 1, True)],
        ]
    }
    check_equal(timeline, expected, "(id, start, num_tokens, is_final) of each step", mistakes)


def test_task_3_what_is_computed_again_is_partial_until_it_has_caught_up() -> None:
    limits = {"long_prefill_token_threshold": 4, "max_num_partial_prefills": 1}
    scheduler = scheduler_with([3, 9], budget=30, **limits)
    scheduler.sequences[0].token_ids += range(6)  # as if it had lost what was computed
    mistakes = {"a partial prefill until the prompt alone is computed": [(0, 0, 4, False), (1, 0, 4, False)]}
    check_equal(
        rows_of(scheduler.schedule()), [(0, 0, 4, False)], "first step, 3 of 9 tokens the prompt", mistakes
    )


def test_task_3_a_policy_that_is_empty_is_still_the_one_to_use() -> None:
    policy = Fcfs()
    scheduler = Scheduler(SchedulerConfig(), policy=policy)
    check_equal(scheduler.policy is policy, True, "whether the scheduler has the policy that it was given")
    scheduler.add(sequence_of(0, 3))
    check_equal(rows_of(scheduler.schedule()), [(0, 0, 3, True)], "first step")


def test_task_3_two_schedulers_share_nothing() -> None:
    first, second = Scheduler(SchedulerConfig()), Scheduler(SchedulerConfig())
    first.add(sequence_of(0, 3))
    check_no_sequences(second)
    first.schedule()
    check_equal(second.schedule(), SchedulerOutput(()), "a step of the other one")


def test_task_3_the_output_is_frozen_and_counts_itself() -> None:
    output = scheduler_with([5, 9], budget=8).schedule()
    final = [entry.sequence.id for entry in output.final]
    check_equal((output.num_tokens, final), (8, [0]), "tokens, and final")
    check_equal(type(output.entries), tuple, "type of the entries")
    with pytest.raises(FrozenInstanceError):
        output.entries = ()  # type: ignore[misc]
    with pytest.raises(AttributeError):
        output.entries[0].num_tokens = 3  # type: ignore[misc]


def test_task_3_schedule_counts_nothing_as_computed() -> None:
    scheduler = scheduler_with([5, 9], budget=8)
    scheduler.schedule()
    state = [(each.num_computed_tokens, each.num_tokens) for each in scheduler.running]
    check_equal(state, [(0, 5), (0, 9)], "tokens computed and tokens of those that run")


@pytest.mark.parametrize(("asked", "given"), [(5, 5), (1, 2), (0, 2), (-4, 2), (8, 8), (99, 8)])
def test_task_3_a_policy_may_ask_for_a_smaller_step(asked: int, given: int) -> None:
    policy = SpyPolicy()
    scheduler = scheduler_with([2, 30, 30], 8, 3, policy=policy)
    scheduler.complete(scheduler.schedule(), {0: 9})
    policy.budget = asked
    num_tokens = scheduler.schedule().num_tokens
    check_equal(num_tokens, given, f"tokens of a step of two that run where the policy asks for {asked}")
    check_equal(policy.asked[-1], ([0, 1], 8), "what the policy was told: running sequences, and the limit")


def test_task_3_who_was_removed_while_it_waited_may_come_again() -> None:
    scheduler = Scheduler(SchedulerConfig(8, 3))
    sequence = sequence_of(0, 3)
    scheduler.add(sequence)
    scheduler.remove(0)
    scheduler.add(sequence)
    advance(scheduler, [2])
    check_equal(sequence.num_tokens, 5, "tokens of a sequence that was removed and added once more")


class LookedUp(dict[int, Sequence]):
    """Notes when it is walked through."""

    num_walks = 0

    def __iter__(self) -> Iterator[int]:
        self.num_walks += 1
        return super().__iter__()

    def values(self) -> Any:
        self.num_walks += 1
        return super().values()

    def items(self) -> Any:
        self.num_walks += 1
        return super().items()


def test_task_3_who_waits_is_not_looked_through() -> None:
    policy = SpyPolicy()
    scheduler = Scheduler(SchedulerConfig(8, 3), policy=policy)
    for id in range(500):
        scheduler.add(sequence_of(id, 4))
    scheduler.sequences = LookedUp(scheduler.sequences)
    for _ in range(2):
        policy.num_first = 0
        output = scheduler.schedule()
        check_equal(scheduler.sequences.num_walks, 0, "how often a step walks through all that wait")
        scheduler.complete(output, {entry.sequence.id: 9 for entry in output.final})
        assert policy.num_first <= 4, f"the policy was asked {policy.num_first} times for its first"


def test_task_3_the_order_is_the_policy_s() -> None:
    scheduler = Scheduler(SchedulerConfig(6, 2), policy=SpyPolicy(is_reversed=True))
    for id in range(4):
        scheduler.add(sequence_of(id, 3))
    check_equal(rows_of(scheduler.schedule()), [(3, 0, 3, True), (2, 0, 3, True)], "first step")


def test_task_3_who_runs_stands_in_the_order_of_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler(SchedulerConfig(6, 3), policy=SpyPolicy(is_reversed=True))
    monkeypatch.setattr(scheduler, "let_in", lambda sequence: False)
    for id in range(3):
        scheduler.add(sequence_of(id, 3))
        scheduler.complete(scheduler.schedule(), dict.fromkeys(range(id + 1), 9))
    check_equal(
        [each.id for each in scheduler.running], [2, 1, 0], "running ids, the last to come ranked first"
    )
    check_equal([row[0] for row in rows_of(scheduler.schedule())], [2, 1, 0], "ids of a step")


def test_task_3_who_ranks_before_the_last_that_runs_is_let_in_first(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = SpyPolicy(is_reversed=True)
    scheduler = Scheduler(SchedulerConfig(6, 4), policy=policy)
    asked: list[int] = []

    def let_in(sequence: Sequence) -> bool:
        """As day 3.5 writes it, for one at most."""
        asked.append(sequence.id)
        if len(asked) == 1:
            policy.remove(sequence)
            scheduler.running.insert(0, sequence)
        return len(asked) == 1

    monkeypatch.setattr(scheduler, "let_in", let_in)
    scheduler.add(sequence_of(0, 3))
    scheduler.complete(scheduler.schedule(), {0: 9})
    check_equal(asked, [], "what let_in was asked while nothing ran")
    for id in range(1, 4):
        scheduler.add(sequence_of(id, 3))
    expected = [(3, 0, 3, True), (0, 3, 1, True), (2, 0, 2, False)]
    mistakes = {"let in only after all that run have entries": expected[1:2] + expected[:1] + expected[2:]}
    check_equal(rows_of(scheduler.schedule()), expected, "step in which let_in admits one of three", mistakes)
    check_equal(asked, [3, 2], "what let_in was asked, until it returned False")
    scheduler = scheduler_with([3], 6, 1)
    monkeypatch.setattr(scheduler, "let_in", let_in)
    scheduler.complete(scheduler.schedule(), {0: 9})
    scheduler.add(sequence_of(1, 3))
    scheduler.schedule()
    check_equal(len(asked), 2, "calls of let_in, after one that came later and is not urgent")


def test_task_3_blocks_are_asked_for_what_is_computed() -> None:
    blocks = FewBlocks(capacity=40)
    scheduler = scheduler_with([4, 9], 6, 3, blocks=blocks)
    advance(scheduler, [3, 1], max_steps=2)
    check_equal(blocks.held, {0: 5, 1: 7}, "tokens held by id after two steps")
    advance(scheduler, {0: 1, 1: 1})
    check_equal(blocks.held, {}, "tokens held when all have ended")


def test_task_3_without_room_none_is_admitted_and_none_overtakes() -> None:
    scheduler = scheduler_with([6, 7, 2], 20, 4, blocks=FewBlocks(capacity=10))
    check_equal(rows_of(scheduler.schedule()), [(0, 0, 6, True)], "first step")
    seen = (len(scheduler.policy), [each.id for each in scheduler.running])
    check_equal(seen, (2, [0]), "waiting, and running")
    check_equal(scheduler.sequences[1].num_computed_tokens, 0, "computed tokens of the waiting sequence")
    scheduler.remove(0)
    check_equal(rows_of(scheduler.schedule()), [(1, 0, 7, True), (2, 0, 2, True)], "step when there is room")


@pytest.mark.parametrize("is_made", [False, True])
def test_task_3_without_room_who_runs_asks_for_some(is_made: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = scheduler_with([4, 2], 20, 4, blocks=FewBlocks(capacity=7))
    asked: list[Row] = []

    def make_room(entry: ScheduledTokens) -> bool:
        asked.extend(rows_of(SchedulerOutput((entry,))))
        return is_made

    monkeypatch.setattr(scheduler, "make_room", make_room)
    scheduler.complete(scheduler.schedule(), {0: 9, 1: 9})
    check_equal(asked, [], "what make_room was asked while there was room")
    expected = [(0, 4, 1, True), (1, 2, 1, True)][: 1 + is_made]
    check_equal(rows_of(scheduler.schedule()), expected, "step with room for one token")
    check_equal(asked, [(1, 2, 1, True)], "what make_room was asked for")


@pytest.mark.parametrize(
    ("lengths", "budget", "expected"),
    [
        ([4, 2, 2], 20, [(0, 4, 1, True), (1, 2, 1, True)]),  # the last gives way to the first
        ([4, 3], 2, [(0, 4, 1, True), (1, 0, 1, False)]),  # the last one preempts itself and starts over
    ],
    ids=str,
)
def test_task_3_who_gives_way_has_no_entry_and_leaves_its_token(
    lengths: list[int], budget: int, expected: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks, policy = FewBlocks(capacity=sum(lengths) + len(lengths) // 3), SpyPolicy()
    scheduler = scheduler_with(lengths, 20, 4, blocks, policy)

    def make_room(entry: ScheduledTokens) -> bool:
        """As day 3.5 writes it."""
        last = scheduler.running.pop()
        blocks.free(last)
        last.num_computed_tokens = 0
        policy.add(last)
        return last is not entry.sequence and blocks.allocate(entry.sequence, entry.num_tokens)

    monkeypatch.setattr(scheduler, "make_room", make_room)
    scheduler.complete(scheduler.schedule(), dict.fromkeys(range(len(lengths)), 9))
    policy.budget = budget
    check_equal(rows_of(scheduler.schedule()), expected, "step in which the last of those that run gives way")


def test_task_3_who_is_not_let_in_holds_nothing() -> None:
    blocks = FewBlocks(capacity=99)
    limits = {"long_prefill_token_threshold": 4, "max_num_partial_prefills": 1}
    scheduler = scheduler_with([9, 2, 9], 30, 2, blocks=blocks, **limits)
    check_equal(rows_of(scheduler.schedule()), [(0, 0, 4, False), (1, 0, 2, True)], "first step")
    scheduler.complete(output_of((scheduler.running[0], 4), (scheduler.running[1], 2)), {1: 9})
    scheduler.remove(1)
    second = rows_of(scheduler.schedule())
    check_equal(second, [(0, 4, 4, False)], "second step, without a place for a partial")
    check_equal(blocks.held, {0: 8}, "tokens held by id")


def test_task_3_a_prefix_that_is_held_is_not_computed() -> None:
    asked, blocks = FewBlocks(capacity=40, prefix=3), FewBlocks(capacity=40, prefix=3)
    scheduler_with([9, 5], 8, 3, blocks=asked).schedule()
    mistakes = {"room for the prefix too": {0: 9, 1: 5}}
    check_equal(asked.held, {0: 6, 1: 2}, "tokens that room was asked for, by id", mistakes)
    scheduler = scheduler_with([9, 5], 8, 3, blocks=blocks)
    timeline = advance(scheduler, [1, 1])
    expected = [[(0, 3, 6, True), (1, 3, 2, True)]]
    check_equal(timeline, expected, "(id, start, num_tokens, is_final) of each step")


@pytest.mark.parametrize("limit", ["no room", "too many partial"])
def test_task_3_a_prefix_counts_when_its_sequence_is_let_in(limit: str) -> None:
    limits = {"long_prefill_token_threshold": 2, "max_num_partial_prefills": 1}
    blocks = FewBlocks(capacity=12 if limit == "no room" else 99, prefix=3)
    scheduler = scheduler_with([12, 12], 30, 4, blocks=blocks, **({} if limit == "no room" else limits))
    scheduler.schedule()
    check_equal([each.id for each in scheduler.running], [0], f"ids of the running sequences ({limit})")
    waiting = scheduler.sequences[1]
    what = f"num_computed_tokens of the waiting sequence ({limit}): it doesn't own the prefix yet"
    check_equal(waiting.num_computed_tokens, 0, what)


@pytest.mark.parametrize(
    "name",
    [
        "max_num_batched_tokens",
        "max_num_seqs",
        "long_prefill_token_threshold",
        "max_num_partial_prefills",
        "max_num_prefill_only_tokens",
    ],
)
@pytest.mark.parametrize("value", [0, -3])
def test_task_3_limits_below_one_are_an_error(name: str, value: int) -> None:
    limits = {"max_num_batched_tokens": 8, "max_num_seqs": 2}
    check_equal(rows_of(Scheduler(SchedulerConfig(**limits)).schedule()), [], "a step without sequences")
    with check_value_error(name=name, value=value):
        SchedulerConfig(**{**limits, name: value})


def test_task_3_a_budget_of_fewer_tokens_than_sequences_is_an_error() -> None:
    scheduler = scheduler_with([3, 3, 3], budget=3, max_num_seqs=3)
    check_equal(rows_of(scheduler.schedule()), [(0, 0, 3, True)], "first step with a budget of max_num_seqs")
    with check_value_error(max_num_batched_tokens=3, max_num_seqs=4):
        SchedulerConfig(3, 4)


def test_task_3_a_step_is_larger_while_no_stream_waits() -> None:
    scheduler = scheduler_with([20, 30, 2], budget=8, max_num_seqs=3, max_num_prefill_only_tokens=24)
    steps = [sum(row[2] for row in rows) for rows in advance(scheduler, [9, 9, 9], max_steps=3)]
    check_equal(steps, [24, 8, 8], "tokens of each step: 24 until sequence 0 has sampled, then 8")
    scheduler.running[0].num_computed_tokens = 0  # as after a preemption: its reader waits for the next token
    what = "tokens of a step while a sequence computes its prompt again after its first token"
    check_equal(scheduler.schedule().num_tokens, 8, what)
    with check_value_error(max_num_batched_tokens=8, max_num_prefill_only_tokens=7):
        SchedulerConfig(8, 3, max_num_prefill_only_tokens=7)


def test_task_3_who_comes_back_goes_ahead_of_who_came_later() -> None:
    scheduler = scheduler_with([2, 2, 2, 2], budget=8, max_num_seqs=2)
    scheduler.schedule()
    for sequence in reversed(scheduler.running):
        scheduler.policy.add(sequence)
    found = []
    while (sequence := scheduler.policy.first()) is not None:
        found.append(sequence.id)
        scheduler.policy.remove(sequence)
    check_equal(found, [0, 1, 2, 3], "ids in the order of the policy, after those that ran came back")


CONFIGS = st.builds(
    lambda seqs, extra, threshold, partial, more: SchedulerConfig(
        seqs + extra, seqs, threshold, partial, None if more is None else seqs + extra + more
    ),
    st.integers(1, 5),
    st.integers(0, 20),
    st.none() | st.integers(1, 9),
    st.none() | st.integers(1, 3),
    st.none() | st.integers(0, 20),
)
JOBS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 6), st.integers(0, 12)), max_size=8)


@settings(max_examples=140)
@given(CONFIGS, JOBS)
def test_task_3_every_step_is_that_of_the_scheduler_on_paper(
    config: SchedulerConfig, jobs: list[tuple[int, int, int]]
) -> None:
    expected = serve_on_paper(config, jobs)
    scheduler, timeline = Scheduler(config), Timeline()
    pending = sorted(range(len(jobs)), key=lambda id: jobs[id][2])
    while pending or scheduler.has_work:
        while pending and jobs[pending[0]][2] <= len(timeline):
            id = pending.pop(0)
            scheduler.add(sequence_of(id, jobs[id][0]))
        timeline += advance(scheduler, {id: job[1] for id, job in enumerate(jobs)}, max_steps=1) or [[]]
        assert len(timeline) <= 1000, "the schedule does not end"
    check_equal(list(timeline), expected, "(id, start, num_tokens, is_final) of each step")


@settings(max_examples=100)
@given(CONFIGS, JOBS, st.data())
def test_task_3_the_limits_hold_whatever_comes_and_goes(
    config: SchedulerConfig, jobs: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    scheduler = Scheduler(config)
    for id, (num_tokens, _, _) in enumerate(jobs):
        scheduler.add(sequence_of(id, num_tokens))
    for _ in range(200):
        running = list(scheduler.running)
        has_streams = any(each.generated_ids for each in running)
        output = scheduler.schedule()
        chunks = [entry.num_tokens for entry in output.entries]
        assert output.num_tokens <= budget_of(config, has_streams)
        assert len(scheduler.running) <= config.max_num_seqs
        assert [entry.sequence for entry in output.entries] == scheduler.running
        assert scheduler.running[: len(running)] == running
        assert min(chunks, default=1) >= 1
        assert max(chunks, default=1) <= (config.long_prefill_token_threshold or 99)
        if config.max_num_partial_prefills is not None:
            assert sum(not entry.is_final for entry in output.entries) <= config.max_num_partial_prefills
        for entry in output.entries:
            assert entry.is_final == (entry.end == entry.sequence.num_tokens)
        scheduler.complete(output, {entry.sequence.id: 9 for entry in output.final})
        for entry in output.final:
            if len(entry.sequence.generated_ids) == jobs[entry.sequence.id][1]:
                scheduler.remove(entry.sequence.id)
        if scheduler.has_work and data.draw(st.integers(0, 9)) == 0:
            scheduler.remove(data.draw(st.sampled_from(sorted(scheduler.sequences))))
        if not scheduler.has_work:
            return
    pytest.fail("there is still work after 200 steps")


# Task 4: on the model


def run_step(runner: DenseRunner, *parts: tuple[Sequence, int]) -> dict[int, int]:
    """Run a step and note in the sequences what it computed and sampled."""
    output = output_of(*parts)
    before = [(list(sequence.token_ids), sequence.num_computed_tokens) for sequence, _ in parts]
    sampled = runner.run(output, {sequence.id: SamplingParams() for sequence, _ in parts}).token_ids
    types = {type(token).__name__ for token in sampled.values()}
    check_equal(types - {"int"}, set(), "types of the sampled tokens other than int")
    after = [(sequence.token_ids, sequence.num_computed_tokens) for sequence, _ in parts]
    check_equal(after, before, "token_ids and num_computed_tokens after `run`, which changes neither")
    for entry in output.entries:
        entry.sequence.num_computed_tokens = entry.end
        if entry.is_final:
            entry.sequence.token_ids.append(sampled[entry.sequence.id])
    return sampled


def check_tokens(*sequences: Sequence) -> None:
    """Fail unless each has the tokens it gets alone."""
    __tracebackhide__ = True
    for each in sequences:
        expected = continuation(each.token_ids[: each.num_prompt_tokens], len(each.generated_ids))
        check_equal(each.generated_ids, expected, f"tokens of sequence {each.id}")


def caches_holding(*lengths: int) -> list[TinyKvFullCache]:
    """Caches of one row that hold so many tokens, other ones in each."""
    caches = [TinyKvFullCache() for _ in lengths]
    for seed, (cache, L) in enumerate(zip(caches, lengths, strict=True)):
        cache.update_and_fetch(normal(1, 2, L, 5, seed=seed), normal(1, 2, L, 5, seed=seed + 50))
    return caches


def new_tokens(num_rows: int, length: int) -> tuple[mx.array, mx.array, mx.array]:
    """A query of four heads, a key and a value of two."""
    return (
        normal(num_rows, 4, length, 5, seed=1),
        normal(num_rows, 2, length, 5, seed=2),
        normal(num_rows, 2, length, 5, seed=3),
    )


@pytest.mark.parametrize("length", [1, 3])
def test_task_4_each_row_attends_by_its_own_cache(length: int) -> None:
    attention = scaled_dot_product_attention_grouped
    caches, twins = caches_holding(7, 2, 11), caches_holding(7, 2, 11)
    query, key, value = new_tokens(3, length)
    rows = RowKvCaches(caches)
    found = rows.attend(query, key, value, attention, "causal")
    alone = [
        twin.attend(query[row : row + 1], key[row : row + 1], value[row : row + 1], attention, "causal")
        for row, twin in enumerate(twins)
    ]
    mistakes = {
        "the rows in another order": mx.concatenate(alone[::-1]),
        "every row by the first cache's keys": mx.concatenate([alone[0]] * 3),
    }
    check_close(found, mx.concatenate(alone), "what the rows get", 1e-6, mistakes)
    check_equal([cache.offset for cache in caches], [7 + length, 2 + length, 11 + length], "tokens cached")
    check_equal(rows.offset, [7 + length, 2 + length, 11 + length], "offset, a row each")
    check_equal(len(rows.state), 6, "arrays in the state of three rows: keys and values of each")
    rows.release()
    check_equal([cache.offset for cache in caches], [0, 0, 0], "tokens cached after release")


@pytest.mark.parametrize("mask", ["causal", None, "an array"], ids=str)
def test_task_4_a_row_attends_with_the_attention_and_the_mask_that_came(mask: Any) -> None:
    mask = mx.zeros((3, 1)) if mask == "an array" else mask
    seen = []

    def attention(
        query: mx.array, key: mx.array, value: mx.array, scale: Any = None, mask: Any = None
    ) -> Any:
        seen.append((query.shape[0], key.shape[2], value.shape[2], mask))
        return query

    query, key, value = new_tokens(3, 3)
    found = RowKvCaches(caches_holding(7, 2, 11)).attend(query, key, value, attention, mask)
    calls = [call[:3] for call in seen]
    mistakes = {
        "the keys of all rows padded to the longest": [(3, 14, 14)],
        "another attention than the one that came": [],
    }
    what = "rows, keys and values of each call of the attention that came"
    check_equal(calls, [(1, 10, 10), (1, 5, 5), (1, 14, 14)], what, mistakes)
    check_close(found, query, "what it returned, joined", 1e-6)
    check_equal([call[3] is mask for call in seen], [True] * 3, f"that each got the mask that came, {mask}")


class OwnWay(TinyKvFullCache):
    """A cache that attends in a way of its own, as those of later days do."""

    def attend(
        self, query: mx.array, key: mx.array, value: mx.array, attention: Any, mask: Any = None
    ) -> mx.array:
        return query + 7


def test_task_4_how_a_row_attends_is_its_cache_s_to_say() -> None:
    query, key, value = new_tokens(2, 1)
    attention = scaled_dot_product_attention_grouped
    found = RowKvCaches([OwnWay(), OwnWay()]).attend(query, key, value, attention, None)
    check_close(found, query + 7, "attention of rows that have caches with an `attend` of their own", 1e-6)


def test_task_4_a_step_leaves_nothing_that_makes_the_next_copy_the_cache() -> None:
    caches = [TinyKvFullCache()]

    def append(length: int) -> None:
        key = mx.ones((1, 2, length, 64))
        RowKvCaches(caches).attend(key, key, key, lambda query, *_, **__: query, "causal")
        mx.eval(caches[0].state)

    append(1500)
    append(1)
    held = sum(array.nbytes for array in caches[0].state)
    peak = peak_bytes(partial(append, 1))
    what = f"that a token more needs under half the cache's {held} bytes, and not {peak}: its arrays are held"
    check_equal(peak < held / 2, True, what)


@pytest.mark.parametrize("sizes", [(7,), (3, 4), (3, 3, 1), (1,) * 7], ids=str)
def test_task_4_chunks_of_a_prompt(sizes: tuple[int, ...]) -> None:
    model, sequence = FakeModel(), sequence_of(5, 7)
    runner = DenseRunner(model)
    sampled = [run_step(runner, (sequence, size)) for size in sizes]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    expected = [
        [(start, prompt_of(7, 5)[start : start + size])] for start, size in zip(starts, sizes, strict=True)
    ]
    mistakes = {"each chunk at offset 0": [[(0, tokens)] for ((_, tokens),) in expected]}
    check_equal(model.rows, expected, "offset and tokens of each model call", mistakes)
    first_token = continuation(prompt_of(7, 5), 1)[0]
    what = "tokens sampled in each step, by id"
    check_equal(sampled, [{}] * (len(sizes) - 1) + [{5: first_token}], what)


def test_task_4_logits_are_asked_for_only_where_a_token_is_sampled() -> None:
    model, sequence = FakeModel(), sequence_of(0, 7)
    runner = DenseRunner(model)
    for size in (3, 3, 1):
        run_step(runner, (sequence, size))
    kept = [call.logits_to_keep for call in model.calls]
    check_equal(kept, [0, 0, 1], "logits_to_keep of each chunk", {"logits asked for at every chunk": [1] * 3})


def test_task_4_the_sampler_is_called_once_for_the_final_entries_of_a_call() -> None:
    seen: list[tuple[tuple[int, ...], list[int]]] = []

    def sampler(logits: mx.array, batch: SamplingBatch) -> mx.array:
        seen.append((logits.shape, mx.argmax(logits, axis=-1).tolist()))
        return 20 + mx.arange(len(batch.params))

    sequences = [sequence_of(id, length) for id, length in enumerate((7, 4, 4, 4))]
    sampled = run_step(DenseRunner(FakeModel(), sampler), *((each, 4) for each in sequences))
    what = (
        "shape of the logits that the sampler gets and likeliest token of each row, for three final entries"
    )
    likeliest = [continuation(each.token_ids[:4], 1)[0] for each in sequences[1:]]
    check_equal(seen, [((3, 61), likeliest)], what)
    check_equal(sampled, {1: 20, 2: 21, 3: 22}, "what was sampled")


def test_task_4_a_step_without_entries() -> None:
    model = FakeModel()
    check_equal(
        DenseRunner(model).run(SchedulerOutput(()), {}).token_ids, {}, "what is sampled without entries"
    )
    check_equal(model.rows, [], "model calls without entries")


def test_task_4_final_entries_that_are_not_alike_in_turns() -> None:
    sequences = [sequence_of(id, length) for id, length in enumerate((3, 6, 3, 6))]
    expected = {each.id: continuation(each.token_ids, 1)[0] for each in sequences}
    found = run_step(DenseRunner(FakeModel()), *((each, each.num_tokens) for each in sequences))
    by_call = dict(enumerate(expected[id] for id in (0, 2, 1, 3)))
    mistakes = {"the tokens call by call, the ids in the order of the entries": by_call}
    check_equal(found, expected, "tokens sampled of entries with 3, 6, 3 and 6 tokens", mistakes)


def test_task_4_all_decodes_are_one_call() -> None:
    model = FakeModel()
    runner = DenseRunner(model)
    sequences = [sequence_of(id, length) for id, length in ((4, 7), (2, 3), (9, 5))]
    run_step(runner, *((each, each.num_tokens) for each in sequences))
    firsts = [each.generated_ids[0] for each in sequences]
    for _ in range(3):
        run_step(runner, *((each, 1) for each in sequences))
    check_equal([len(call) for call in model.rows], [1, 1, 1, 3, 3, 3], "rows of each model call")
    expected = sorted(
        (each.num_prompt_tokens, [token]) for each, token in zip(sequences, firsts, strict=True)
    )
    check_equal(model.rows[3], expected, "offset and tokens of each row of the first decode")
    check_tokens(*sequences)


def test_task_4_entries_that_are_alike_share_a_call() -> None:
    model = FakeModel()
    runner = DenseRunner(model)
    sequences = [sequence_of(id, length) for id, length in enumerate((4, 9, 12, 7))]
    for sizes in ((4, 3, 5, 3), (1, 6, 5, 3), (1, 1, 1, 1), (1, 1, 1)):
        run_step(runner, *zip(sequences, sizes, strict=False))
    found = sorted((call.logits_to_keep or 0, len(call.rows[0][1]), len(call.rows)) for call in model.calls)
    alike, second = (0, 3, 2), [(1, 1, 1), (1, 6, 1), (0, 5, 1), (0, 3, 1)]
    first = [(1, 4, 1), alike, (0, 5, 1)]  # two chunks of three, each in the middle of its prompt
    third = [(0, 1, 1), (1, 1, 3)]  # one token in the middle, and two that decode with the last of a prompt
    expected = [*first, *second, *third, (1, 1, 3)]
    apart = [(keep, size, 1) for keep, size, rows in expected for _ in range(rows)]
    mistakes = {
        "a call for each entry": sorted(apart),
        "a call for each entry of more than one token": sorted(
            [(0, 3, 1), (0, 3, 1), *(call for call in expected if call != alike)]
        ),
        "final entries and others in one call": sorted([*first, *second, (1, 1, 4), (1, 1, 3)]),
    }
    what = "(logits_to_keep, tokens of a row, rows) of all calls, sorted"
    check_equal(found, sorted(expected), what, mistakes)
    check_tokens(*sequences)


@pytest.mark.parametrize("leaver", [0, 1, 2])
def test_task_4_who_leaves_makes_room_for_the_next(leaver: int) -> None:
    runner = DenseRunner(FakeModel())
    sequences = {id: sequence_of(id, 3 + id) for id in range(3)}
    run_step(runner, *((each, each.num_tokens) for each in sequences.values()))
    run_step(runner, *((each, 1) for each in sequences.values()))
    runner.release(leaver)
    del sequences[leaver]
    check_equal(sorted(runner.caches), sorted(sequences), f"ids of `caches` once {leaver} is released")
    sequences[7] = sequence_of(7, 8)
    run_step(runner, *((each, each.num_uncomputed_tokens) for each in sequences.values()))
    for _ in range(2):
        run_step(runner, *((each, 1) for each in sequences.values()))
    check_tokens(*sequences.values())


def test_task_4_caches_are_kept_for_each_sequence() -> None:
    model = FakeModel()
    runner = DenseRunner(model)
    first, second = sequence_of(5, 5), sequence_of(3, 4)
    run_step(runner, (first, 2))
    run_step(runner, (first, 3), (second, 4))
    run_step(runner, (first, 1), (second, 1))
    offsets = {id: [layer.offset for layer in layers] for id, layers in runner.caches.items()}
    check_equal(offsets, {5: [6, 6], 3: [5, 5]}, "tokens in the caches of each sequence, by layer")
    check_equal(len(model.caches), 4, "caches that were made: one a layer for each of two sequences")


@pytest.mark.parametrize("stage", ["new", "in prefill", "prefilled", "decoding"])
def test_task_4_release_gives_everything_of_one_sequence_back(stage: str) -> None:
    model = FakeModel()
    runner, one, other = DenseRunner(model), sequence_of(0, 5), sequence_of(1, 4)
    steps = {"new": [], "in prefill": [3], "prefilled": [3, 2], "decoding": [3, 2, 1]}[stage]
    for size in steps:
        run_step(runner, (one, size))
    runner.release(0)
    runner.release(0)
    check_released(model.caches, "caches, two layers each, that still hold keys")
    check_equal(runner.caches, {}, "caches by sequence")
    run_step(runner, (other, 4))
    runner.release(0)
    run_step(runner, (other, 1))
    check_tokens(other)


def test_task_4_each_sequence_is_sampled_by_its_own_parameters() -> None:
    params = {id: SamplingParams(temperature=2.0, seed=7 + id) for id in range(3)}
    runner, sequences = DenseRunner(FakeModel()), [sequence_of(id, 3 + id) for id in range(3)]
    for _ in range(5):
        output = output_of(*((each, each.num_uncomputed_tokens) for each in sequences))
        sampled = runner.run(output, params).token_ids
        for each in sequences:
            each.num_computed_tokens = each.num_tokens
            each.token_ids.append(sampled[each.id])
    for each in sequences:
        expected = drawn_alone(prompt_of(3 + each.id, each.id), params[each.id], 5)
        check_equal(each.generated_ids, expected, f"tokens of sequence {each.id}, as alone")


def test_task_4_a_step_is_evaluated_before_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    # It returns before anything is computed: a runner that trusts in it has nothing evaluated.
    monkeypatch.setattr(mx, "async_eval", lambda *arrays: None)
    runner, sequences = DenseRunner(small_model()), [sequence_of(0, 40), sequence_of(1, 30)]
    for sizes in ((20, 10), (20, 20), (1, 1)):
        run_step(runner, *zip(sequences, sizes, strict=True))
        state = [layer.state for layers in runner.caches.values() for layer in layers]
        left = peak_bytes(partial(mx.eval, state))
        check_equal(left, 0, f"bytes still to compute after a step of {sizes} tokens")


def test_task_4_a_real_model_s_tokens_are_those_of_each_alone() -> None:
    runner, sequences = (
        DenseRunner(small_model()),
        [sequence_of(id, n) for id, n in enumerate((11, 3, 17))],
    )
    for sizes in ((4, 3, 5), (7, 1, 12), (1, 1, 1), (1, 1, 1)):
        run_step(runner, *zip(sequences, sizes, strict=True))
    for each in sequences:
        prompt = endless.decode(each.token_ids[: each.num_prompt_tokens])
        count = len(each.generated_ids)
        text = simple_generate_with_kv_cache(
            small_model(), endless, prompt, make_sampler(0), max_tokens=count
        )
        check_equal(endless.decode(each.generated_ids), text, f"text of sequence {each.id}")


# Task 5: the engine


def make_engine(budget: int = 6, max_num_seqs: int = 3, max_seq_len: int = 64, **options: Any) -> Engine:
    config = SchedulerConfig(budget, max_num_seqs, options.pop("threshold", None))
    return Engine(FakeModel(**options), tokenizer, config, max_seq_len, UnlimitedBlocks())


def check_engine_released(engine: Engine, model: FakeModel) -> None:
    """Fail unless the engine is closed and holds nothing."""
    __tracebackhide__ = True
    seen = (engine.is_closed, engine.has_unfinished_requests)
    check_equal(seen, (True, False), "is closed, has unfinished")
    check_released(model.caches, "caches, two layers each, that still hold keys")
    check_equal(engine.scheduler.has_work, False, "has_work of the scheduler")
    check_equal(engine.runner.caches, {}, "caches by sequence")


def test_task_5_a_lone_request_from_prompt_to_result() -> None:
    engine = make_engine(budget=3)
    check_equal(engine.has_unfinished_requests, False, "has unfinished requests, at first")
    check_equal(engine.add_request(prompt_of(7), length(3)), 0, "id of the first request")
    first, second, third = tokens = continuation(prompt_of(7), 3)
    steps = run(engine)
    prefill = [[(0, 0, 3, False)], [(0, 3, 3, False)], [(0, 6, 1, True)]]
    rows = [rows_of(step.scheduled) for step in steps]
    what = "(id, start, num_tokens, is_final) by step"
    check_equal(rows, [*prefill, [(0, 7, 1, True)], [(0, 8, 1, True)]], what)
    sampled = [dict(step.sampled) for step in steps]
    check_equal(sampled, [{}, {}, {0: first}, {0: second}, {0: third}], "sampled")
    result = GenerationResult(0, tokenizer.decode(tokens), tuple(tokens), "length")
    check_equal([step.finished for step in steps], [(), (), (), (), (result,)], "finished in each step")


def test_task_5_the_policy_is_told_what_each_step_took() -> None:
    times = itertools.count(step=5)

    class SlowPolicy(SpyPolicy):
        def token_budget(self, running: Collection[Sequence], limit: int) -> int:
            return limit if next(times) else 0

    policy = SlowPolicy()
    config, blocks, clock = SchedulerConfig(4, 2), UnlimitedBlocks(), lambda: next(times)
    engine = Engine(FakeModel(), endless, config, blocks=blocks, policy=policy, clock=clock)
    engine.add_request(prompt_of(6), SamplingParams(max_tokens=2))
    while engine.has_unfinished_requests:
        engine.step()
    expected = [([(0, 0, 4, False)], 10), ([(0, 4, 2, True)], 10), ([(0, 6, 1, True)], 10)]
    check_equal(policy.recorded, expected, "what record was given: the rows of each step, and its seconds")


def test_task_5_the_scheduler_knows_how_long_an_answer_may_get() -> None:
    engine = Engine(FakeModel(), endless, None, 20, UnlimitedBlocks())
    for params in (SamplingParams(max_tokens=3), SamplingParams(max_tokens=30), None):
        engine.add_request(prompt_of(6), params)
    found = [sequence.max_num_tokens for sequence in engine.scheduler.sequences.values()]
    check_equal(found, [9, 20, 20], "max_num_tokens of prompts of 6 with max_tokens 3, 30 and none")
    engine.add_request(prompt_of(6), priority=4)
    found = [sequence.priority for sequence in engine.scheduler.sequences.values()]
    check_equal(found, [0, 0, 0, 4], "priorities")


def test_task_5_ids_count_up_and_are_not_used_again() -> None:
    engine = make_engine()
    ids = [engine.add_request(prompt_of(3), length(1)) for _ in range(2)]
    run(engine)
    check_equal([*ids, engine.add_request(prompt_of(3))], [0, 1, 2], "ids")


def test_task_5_an_idle_engine_computes_nothing() -> None:
    engine = make_engine()
    step = engine.step()
    seen = (step.scheduled.entries, dict(step.sampled), step.finished, engine.runner.model.calls)
    check_equal(seen, ((), {}, (), []), "entries, sampled, finished, and model calls")


@pytest.mark.parametrize(("max_seq_len", "num_tokens"), [(7, 0), (8, 1), (12, 5)])
def test_task_5_max_seq_len_bounds_prompt_and_answer(max_seq_len: int, num_tokens: int) -> None:
    engine = make_engine(max_seq_len=max_seq_len)
    results = engine.generate([prompt_of(7), prompt_of(2)])
    expected = [continuation(prompt_of(7), num_tokens), continuation(prompt_of(2), max_seq_len - 2)]
    check_equal([list(result.token_ids) for result in results], expected, "tokens of each prompt")
    check_equal([result.finish_reason for result in results], ["length"] * 2, "why they are done")


def test_task_5_max_seq_len_may_be_a_single_token_and_no_less() -> None:
    (result,) = make_engine(max_seq_len=1).generate([prompt_of(1)])
    check_equal((result.token_ids, result.finish_reason), ((), "length"), "tokens and reason")
    with check_value_error(max_seq_len=0):
        make_engine(max_seq_len=0)


def test_task_5_max_seq_len_is_at_most_what_the_model_has_positions_for() -> None:
    most = FakeModel.config.max_position_embeddings
    (result,) = make_engine(max_seq_len=most).generate([prompt_of(3)], length(2))
    check_equal(list(result.token_ids), continuation(prompt_of(3), 2), "tokens of an engine at the limit")
    with check_value_error(max_seq_len=most + 1, max_position_embeddings=most):
        make_engine(max_seq_len=most + 1)


def test_task_5_text_prompts_stop_strings_and_no_prompts() -> None:
    whole = [tokenizer.decode(continuation(tokenizer.encode(text), 9)) for text in ("TINY", "LLM")]
    params = [length(3), SamplingParams(stop=(whole[1][4:6],))]
    found = [(each.text, each.finish_reason) for each in make_engine().generate(["TINY", "LLM"], params)]
    expected = [(whole[0][:3], "length"), (whole[1][: whole[1].index(whole[1][4:6])], "stop")]
    check_equal(found, expected, "text of each prompt, and why it is done")
    check_equal(make_engine().generate([]), [], "results of no prompts")


@pytest.mark.parametrize("container", [list, tuple])
@pytest.mark.parametrize("name", SAMPLED)
def test_task_5_params_for_each_prompt_or_for_all_give_what_they_give_alone(
    name: str, container: type[list[Any] | tuple[Any, ...]]
) -> None:
    params = [SamplingParams(**options) for options in SAMPLED[name]]
    prompts = [prompt_of(5), prompt_of(5), prompt_of(3)]
    engine = Engine(FakeModel(), endless, SchedulerConfig(5, 2), 64, UnlimitedBlocks())
    results = engine.generate(prompts, container(params) if len(params) == 3 else params[0])
    jobs = zip(prompts, params if len(params) == 3 else params * 3, strict=True)
    expected = [drawn_alone(prompt, each, each.max_tokens or 0) for prompt, each in jobs]
    check_equal([list(result.token_ids) for result in results], expected, "tokens of each prompt, as alone")


@pytest.mark.parametrize("budget", [3, 128])
def test_task_5_results_come_in_the_order_of_the_prompts(budget: int) -> None:
    prompts = [prompt_of(size, seed) for seed, size in enumerate((11, 3, 7, 1, 9, 4))]
    amounts = [9, 2, 6, 1, 3, 7]
    results = make_engine(budget).generate(prompts, [length(amount) for amount in amounts])
    answers = [continuation(prompt, amount) for prompt, amount in zip(prompts, amounts, strict=True)]
    expected = [GenerationResult(i, tokenizer.decode(a), tuple(a), "length") for i, a in enumerate(answers)]
    check_equal(results, expected, "results")


def test_task_5_generate_can_be_called_again() -> None:
    engine = make_engine()
    first = engine.generate([prompt_of(3)], length(2))
    second = engine.generate([prompt_of(4, 1), prompt_of(3)], length(2))
    mistakes = {"results of the first call in both: each call begins with an empty list": [0, 0, 1, 2]}
    check_equal(
        [result.prompt_idx for result in [*first, *second]], [0, 1, 2], "ids of the results", mistakes
    )
    tokens = list(second[0].token_ids)
    check_equal(tokens, continuation(prompt_of(4, 1), 2), "tokens of the second call's first")


def test_task_5_generate_takes_no_engine_that_serves_others() -> None:
    engine = make_engine()
    engine.add_request(prompt_of(3), length(2))
    with check_value_error(num_others=1):
        engine.generate([prompt_of(4)])
    check_equal(answers_of(run(engine)), {0: continuation(prompt_of(3), 2)}, "tokens of the other request")


@pytest.mark.parametrize("num_params", [0, 1])
def test_task_5_params_must_match_the_prompts(num_params: int) -> None:
    engine = make_engine()
    with check_value_error(**{"len(prompts)": 2, "len(params)": num_params}):
        engine.generate([prompt_of(5), prompt_of(3)], [length(4)] * num_params)
    seen = (engine.has_unfinished_requests, engine.runner.model.calls)
    check_equal(seen, (False, []), "unfinished, and model calls")


BAD_PROMPTS = {"too long": (prompt_of(12), {"num_tokens": 12, "max_seq_len": 11}), "empty": ([], {})}


@pytest.mark.parametrize("name", BAD_PROMPTS)
@pytest.mark.parametrize("position", [0, 1, 2])
def test_task_5_a_bad_prompt_among_others_is_an_error_at_once(name: str, position: int) -> None:
    prompt, values = BAD_PROMPTS[name]
    prompts = [prompt_of(5), prompt_of(3)]
    prompts.insert(position, prompt)
    engine = make_engine(max_seq_len=11)
    with check_value_error(keeps_all=False, **values):  # ids are not given twice
        engine.generate(prompts)
    seen = (engine.runner.model.calls, engine.has_unfinished_requests, engine.scheduler.has_work)
    check_equal(seen, ([], False, False), "model calls, unfinished requests, and work of the scheduler")
    (result,) = engine.generate([prompt_of(4)], length(2))
    check_equal(list(result.token_ids), continuation(prompt_of(4), 2), "tokens of a prompt after the error")


@pytest.mark.parametrize("name", BAD_PROMPTS)
def test_task_5_a_refused_prompt_does_not_harm_the_others(name: str) -> None:
    engine = make_engine(max_seq_len=11)
    engine.add_request(prompt_of(5), length(4))
    steps = [engine.step()]
    prompt, values = BAD_PROMPTS[name]
    with check_value_error(**values):
        engine.add_request(prompt)
    engine.add_request(prompt_of(4), length(3))
    expected = {0: continuation(prompt_of(5), 4), 1: continuation(prompt_of(4), 3)}
    check_equal(answers_of([*steps, *run(engine)]), expected, "tokens of each request that was accepted")


def test_task_5_a_request_that_the_blocks_refuse_is_not_there() -> None:
    engine = Engine(FakeModel(), tokenizer, SchedulerConfig(6, 3), 64, FewBlocks(capacity=5))
    with check_value_error():
        engine.add_request(prompt_of(9))
    seen = (engine.has_unfinished_requests, engine.requests)
    check_equal(seen, (False, {}), "has unfinished requests, and which, after the only one was refused")


def test_task_5_a_request_that_its_first_token_ends_takes_no_step_more() -> None:
    engine = make_engine(max_num_seqs=1, budget=3)
    for seed in range(3):
        engine.add_request(prompt_of(3, seed), length(1))
    check_equal(len(run(engine)), 3, "steps for three prompts of a step each")
    check_released(engine.runner.model.caches, "caches that still hold keys")


def test_task_5_what_ended_is_forgotten() -> None:
    engine = make_engine()
    engine.generate([prompt_of(3), prompt_of(9)], length(4))
    seen = (engine.requests, engine.scheduler.sequences, engine.scheduler.running, engine.runner.caches)
    check_equal(seen, ({}, {}, [], {}), "requests, sequences, running, and caches")


def test_task_5_an_answer_is_decoded_once_when_it_ends() -> None:
    tokenizer = FakeTokenizer()
    engine = Engine(FakeModel(), tokenizer, SchedulerConfig(6, 3), 64, UnlimitedBlocks())
    decode = {"decode": count_calls(tokenizer, "decode")}
    engine.add_request(prompt_of(4), length(5))
    for step in range(5):
        engine.step()
        check_calls(decode, int(step == 4), f"of the tokenizer in step {step} of 5, without stop strings")


STAGES = {"waiting": 0, "in prefill": 1, "prefilled": 3, "decoding": 5}


@pytest.mark.parametrize("stage", STAGES)
def test_task_5_abort_at_any_moment(stage: str) -> None:
    engine = make_engine(budget=4, max_num_seqs=2)
    engine.add_request(prompt_of(2, 1), length(12))
    engine.step()
    aborted = engine.add_request(prompt_of(9, 2), length(9))
    engine.add_request(prompt_of(5, 3), length(4))
    steps = [engine.step() for _ in range(STAGES[stage])]
    check_equal(engine.abort(aborted), True, "abort of a request that is there")
    check_equal(engine.abort(aborted), False, "abort of one that is not there any more")
    expected = {0: continuation(prompt_of(2, 1), 12), 2: continuation(prompt_of(5, 3), 4)}
    check_equal(answers_of([*steps, *run(engine)]), expected, "tokens of the others")
    check_released(engine.runner.model.caches, "caches that still hold keys")


def test_task_5_an_unknown_request_is_not_aborted() -> None:
    engine = make_engine()
    engine.add_request(prompt_of(3), length(1))
    run(engine)
    check_equal([engine.abort(0), engine.abort(7)], [False, False], "abort of one that is done, and of none")


@pytest.mark.parametrize("failure", [ModelFailureError, KeyboardInterrupt])
@pytest.mark.parametrize("fail_at", range(8))
def test_task_5_an_error_in_any_call_releases_everything(fail_at: int, failure: type[BaseException]) -> None:
    engine = make_engine(budget=4, max_num_seqs=2, fail_at=fail_at, failure=failure)
    for seed, size in enumerate((4, 8, 5)):
        engine.add_request(prompt_of(size, seed), length(9))
    with pytest.raises(failure):
        run(engine)
    check_engine_released(engine, engine.runner.model)
    calls: tuple[Callable[[], object], ...] = (
        engine.step,
        lambda: engine.add_request(prompt_of(3)),
        lambda: engine.abort(0),
        lambda: engine.generate([prompt_of(3)]),
    )
    for call in calls:
        with check_value_error():
            call()


def test_task_5_ctrl_c_between_two_steps_of_generate_releases_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, model = make_engine(budget=4), FakeModel()
    engine.runner.model = model
    step, num_steps = engine.step, itertools.count()

    def interrupted() -> EngineStep:
        if next(num_steps) == 2:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.generate([prompt_of(9), prompt_of(3)])
    check_engine_released(engine, model)


def test_task_5_the_end_of_a_with_block_releases_everything() -> None:
    with make_engine(budget=4) as engine:
        for seed in range(3):
            engine.add_request(prompt_of(4, seed), length(9))
        for _ in range(3):
            engine.step()
    check_engine_released(engine, engine.runner.model)


def test_task_5_two_engines_share_nothing() -> None:
    first, second = make_engine(), make_engine()
    first.add_request(prompt_of(3), length(1))
    check_equal(
        (second.has_unfinished_requests, second.requests), (False, {}), "requests of the other engine"
    )
    check_equal(len(second.step().scheduled.entries), 0, "entries of a step of the other engine")
    first.close()
    check_equal(len(second.generate([prompt_of(3)], length(2))), 1, "results of the other engine")


def test_task_5_a_real_model_answers_as_each_prompt_alone() -> None:
    prompts = [prompt_of(size, seed) for seed, size in enumerate((11, 3, 17, 6))]
    results = Engine(small_model(), endless, SchedulerConfig(5, 3)).generate(prompts, length(8))
    for prompt, result in zip(prompts, results, strict=True):
        text = simple_generate_with_kv_cache(
            small_model(), endless, tokenizer.decode(prompt), make_sampler(0), max_tokens=8
        )
        check_equal(result.text, text, f"text of the prompt of {len(prompt)} tokens")


@settings(max_examples=15)
@given(CONFIGS, JOBS, st.none() | st.integers(3, 15), st.data())
def test_task_5_each_request_gets_what_it_gets_alone(
    config: SchedulerConfig, jobs: list[tuple[int, int, int]], eos_at_length: int | None, data: st.DataObject
) -> None:
    engine = Engine(FakeModel(eos_at_length=eos_at_length), tokenizer, config, 64, UnlimitedBlocks())
    pending = sorted(jobs, key=lambda job: job[2])
    prompts: list[list[int]] = []
    results: dict[int, GenerationResult] = {}
    aborted: set[int] = set()
    for step in range(1000):
        while pending and pending[0][2] <= step:
            size, amount, _ = pending.pop(0)
            prompts.append(prompt_of(size, len(prompts)))
            engine.add_request(prompts[-1], length(amount))
        if engine.requests and data.draw(st.integers(0, 19)) == 0:
            aborted.add(data.draw(st.sampled_from(sorted(engine.requests))))
            engine.abort(max(aborted, key=lambda id: id in engine.requests))
        results |= {result.prompt_idx: result for result in engine.step().finished}
        if not pending and not engine.has_unfinished_requests:
            break
    amounts = [job[1] for job in sorted(jobs, key=lambda job: job[2])]
    check_equal(
        sorted([*results, *aborted]), list(range(len(jobs))), "requests that finished or were aborted"
    )
    for id, result in results.items():
        tokens = continuation(prompts[id], amounts[id])
        room = None if eos_at_length is None else eos_at_length - len(prompts[id])
        is_cut = room is not None and 0 <= room < amounts[id]
        expected = (tuple(tokens[:room]), "stop") if is_cut else (tuple(tokens), "length")
        check_equal((result.token_ids, result.finish_reason), expected, f"tokens and reason of request {id}")
    check_released(engine.runner.model.caches, "caches of the prompts that still hold keys")


# Task 6: the simulator


def requests_of(*jobs: tuple[int, int] | tuple[int, int, float]) -> list[SimulatedRequest]:
    """Requests by length of the prompt, tokens of the answer and time of arrival."""
    return [SimulatedRequest(tuple(prompt_of(length)), output, *rest) for length, output, *rest in jobs]


def serve(simulator: Simulator, requests: Iterable[SimulatedRequest]) -> None:
    """Run a simulator; fail if it does not end."""
    with ends_within():
        simulator.run(requests)


def test_task_6_the_context_of_a_step() -> None:
    decode = sequence_of(0, 5, computed=5, generated=[3])
    chunk, whole = sequence_of(1, 9, computed=4), sequence_of(2, 3)
    for parts, expected in (
        ([(decode, 1)], 6),
        ([(chunk, 3)], 5 + 6 + 7),
        ([(whole, 3)], 1 + 2 + 3),
        ([(decode, 1), (chunk, 3), (whole, 3)], 30),
        ([], 0),
    ):
        sizes = [(part[0].num_computed_tokens, part[1]) for part in parts]
        check_equal(context_of(output_of(*parts)), expected, f"context of (start, num_tokens) {sizes}")


def test_task_6_what_a_step_costs() -> None:
    cost = CostModel(per_step=1000.0, per_token=10.0, per_context=0.5)
    decode, chunk = sequence_of(0, 5, computed=5, generated=[3]), sequence_of(1, 9, computed=4)
    found = [cost.seconds(output_of(*parts)) for parts in ([(decode, 1)], [(decode, 1), (chunk, 3)], [])]
    check_equal(found, [1013.0, 1052.0, 0.0], "seconds of a decode, of a decode and a chunk, and of no entry")


@pytest.mark.parametrize("costs", [(-1.0, 1.0, 1.0), (1.0, -1.0, 1.0), (1.0, 1.0, float("nan"))], ids=str)
def test_task_6_costs_that_make_no_sense_are_an_error(costs: tuple[float, float, float]) -> None:
    step = output_of((sequence_of(0, 3), 3))
    assert CostModel(1.0, 1.0, 1.0).seconds(step) == 10
    with check_value_error():
        CostModel(*costs)


def measured(
    cost: tuple[float, float, float], sizes: Items[tuple[int, int]]
) -> list[tuple[SchedulerOutput, float]]:
    """Steps of one entry each, by (start, num_tokens), and what each took by hand."""
    steps = []
    for start, count in sizes:
        context = sum(range(start + 1, start + count + 1))
        sequence = sequence_of(0, start + count, computed=start)
        steps.append((output_of((sequence, count)), cost[0] + cost[1] * count + cost[2] * context))
    return steps


SIZES = [(0, 1), (0, 40), (30, 7), (100, 20), (64, 64), (200, 1), (5, 2)]


@pytest.mark.parametrize("sizes", [SIZES, [(0, 1), (0, 4), (30, 2)]], ids=["seven", "three"])
@pytest.mark.parametrize(
    "cost", [(0.004, 2e-5, 3e-8), (0.0, 1e-3, 0.0), (0.5, 0.0, 1e-4), (1e-3, 1e-6, 0.0)], ids=str
)
def test_task_6_exact_measures_give_the_costs_back(
    cost: tuple[float, float, float], sizes: list[tuple[int, int]]
) -> None:
    fitted = fit_cost_model(measured(cost, sizes))
    found = np.array([fitted.per_step, fitted.per_token, fitted.per_context]) / max(cost)
    expected = np.array(cost) / max(cost)
    assert np.allclose(found, expected, rtol=1e-6, atol=1e-10), f"fitted {fitted}, expected {cost}"


def test_task_6_noise_is_averaged_out() -> None:
    rng = np.random.default_rng(3)
    sizes = [(int(rng.integers(0, 300)), int(rng.integers(1, 128))) for _ in range(400)]
    steps = [
        (output, t * (1 + 0.05 * rng.standard_normal())) for output, t in measured((4e-3, 2e-5, 3e-8), sizes)
    ]
    fitted = fit_cost_model(steps)
    for name, value in (("per_step", 4e-3), ("per_token", 2e-5), ("per_context", 3e-8)):
        share = getattr(fitted, name) / value
        assert 0.85 < share < 1.15, f"{name} is {share:.2f} times what the steps were made with"


def test_task_6_no_cost_is_negative() -> None:
    steps = measured((0.010, 1e-4, 0.0), [(0, 1), (0, 2), (0, 4), (0, 8), (40, 2), (90, 2), (10, 16)])
    faster = [(output, t - 1e-6 * context_of(output)) for output, t in steps]
    fitted = fit_cost_model(faster)
    check_equal(fitted.per_context, 0.0, "per_context where a longer context made steps faster")
    assert min(fitted.per_token, fitted.per_step) > 0
    sizes = np.array([[1.0, output.num_tokens] for output, _ in faster])
    best = np.linalg.lstsq(sizes, np.array([t for _, t in faster]), rcond=None)[0]
    assert np.allclose([fitted.per_step, fitted.per_token], best), "the others are not the best without it"


def test_task_6_too_few_measures_are_an_error() -> None:
    steps = measured((1.0, 1.0, 1.0), SIZES[:2])
    with check_value_error(num_steps=2):
        fit_cost_model([*steps, (SchedulerOutput(()), 0.5)])


def test_task_6_a_step_takes_its_cost_and_moves_the_clock() -> None:
    simulator = Simulator(SchedulerConfig(6, 3), CostModel(10.0, 1.0))
    numbers = [simulator.add(request) for request in requests_of((4, 2), (9, 1))]
    check_equal(numbers, [0, 1], "numbers of the requests")
    steps = [simulator.step() for _ in range(3)]
    expected = [
        ([(0, 0, 4, True), (1, 0, 2, False)], 0.0, 16.0),
        ([(0, 4, 1, True), (1, 2, 5, False)], 16.0, 32.0),
        ([(1, 7, 2, True)], 32.0, 44.0),
    ]
    check_equal([(rows_of(step.output), step.start, step.end) for step in steps], expected, "steps, from, to")
    check_equal((simulator.steps, simulator.now), (steps, 44.0), "steps that are kept, and now")
    check_equal(simulator.scheduler.has_work, False, "has_work after the last token")
    mistakes = {"the start of the step instead of its end": [0.0, 32.0]}
    first_tokens = [simulator.metrics.ttft(number) for number in numbers]
    check_equal(first_tokens, [16.0, 44.0], "time to first token of each", mistakes)


def test_task_6_the_policy_is_told_what_each_step_takes() -> None:
    policy = SpyPolicy()
    simulator = Simulator(SchedulerConfig(4, 2), CostModel(10, 1), policy=policy)
    simulator.add(SimulatedRequest((7,) * 6, 2, max_tokens=3))
    for _ in range(3):
        simulator.step()
    check_equal(simulator.scheduler.has_work, False, "has_work after the last token")
    expected = [([(0, 0, 4, False)], 14), ([(0, 4, 2, True)], 12), ([(0, 6, 1, True)], 11)]
    check_equal(policy.recorded, expected, "what record was given: the rows of each step, and its seconds")


def test_task_6_first_tokens_and_gaps_are_predicted() -> None:
    simulator = Simulator(SchedulerConfig(6, 3), CostModel(10.0, 1.0))
    serve(simulator, requests_of((4, 3), (9, 2)))
    metrics = simulator.metrics
    mistakes = {"the start of the step instead of its end": [0.0, 32.0]}
    check_equal([metrics.ttft(id) for id in (0, 1)], [16.0, 45.0], "time to first token of each", mistakes)
    check_equal([metrics.gaps(id) for id in (0, 1)], [[16.0, 13.0], [11.0]], "gaps of each")
    check_equal((metrics.num_chunks, metrics.num_prefill_tokens), (4, 13), "chunks, and prompt tokens")


def test_task_6_who_arrives_joins_at_the_next_step() -> None:
    simulator = Simulator(SchedulerConfig(6, 3), CostModel(10.0, 1.0))
    serve(simulator, requests_of((4, 3), (2, 1, 5.0), (3, 1, 14.0), (2, 1, 25.5)))
    rows = [rows_of(step.output) for step in simulator.steps]
    expected = [
        [(0, 0, 4, True)],
        [(0, 4, 1, True), (1, 0, 2, True), (2, 0, 3, True)],
        [(0, 5, 1, True), (3, 0, 2, True)],
    ]
    check_equal(rows, expected, "(id, start, num_tokens, is_final) of each step")
    ttft = [simulator.metrics.ttft(id) for id in range(4)]
    check_equal(ttft, [14.0, 25.0, 16.0, 17.5], "time to first token, counted from the arrival")


@pytest.mark.parametrize(
    ("jobs", "steps", "ttft"),
    [
        (
            [(2, 1, 100.0), (3, 1, 7.0), (2, 1, 300.0)],
            [(7.0, 20.0), (100.0, 112.0), (300.0, 312.0)],
            [13.0, 12.0, 12.0],
        ),
        ([(4, 3), (2, 1, 1000.0)], [(0.0, 14.0), (14.0, 25.0), (25.0, 36.0), (1000.0, 1012.0)], [14.0, 12.0]),
    ],
    ids=["idle", "while a request is served"],
)
def test_task_6_an_idle_time_is_skipped_and_no_other(
    jobs: list[Any], steps: list[tuple[float, float]], ttft: list[float]
) -> None:
    simulator = Simulator(SchedulerConfig(6, 3), CostModel(10.0, 1.0))
    serve(simulator, requests_of(*jobs))
    check_equal([(step.start, step.end) for step in simulator.steps], steps, "start and end of each step")
    found = [simulator.metrics.ttft(id) for id in range(len(jobs))]
    check_equal(found, ttft, "TTFT, in order of arrival")


@pytest.mark.parametrize(
    "job", [((), 3, 0.0), ((1, 2), 0, 0.0), ((1, 2), 3, -1.0), ((1, 2), 3, float("nan"))], ids=str
)
def test_task_6_requests_that_make_no_sense_are_an_error(job: tuple[tuple[int, ...], int, float]) -> None:
    simulator = Simulator(SchedulerConfig(), CostModel(1.0, 1.0))
    serve(simulator, [SimulatedRequest((1,), 1)])
    with check_value_error():
        SimulatedRequest(*job)


def test_task_6_nothing_to_serve() -> None:
    simulator = Simulator(SchedulerConfig(), CostModel(1.0, 1.0))
    serve(simulator, [])
    seen = (simulator.step().output.entries, simulator.now)
    check_equal(seen, ((), 0.0), "entries of a step, and now, without requests")


@settings(max_examples=15)
@given(CONFIGS, JOBS)
def test_task_6_the_engine_s_schedule_is_the_simulator_s_step_for_step(
    config: SchedulerConfig, jobs: list[tuple[int, int, int]]
) -> None:
    simulator = Simulator(config, CostModel(1.0, 0.0))
    engine = Engine(FakeModel(), endless, config, 64, UnlimitedBlocks())
    pending = sorted(jobs, key=lambda job: job[2])
    for step in range(1000):
        while pending and pending[0][2] <= step:
            size, amount, _ = pending.pop(0)
            engine.add_request(prompt_of(size), length(amount))
            simulator.add(SimulatedRequest(tuple(prompt_of(size)), amount))
        simulated, computed = simulator.step().output, engine.step().scheduled
        check_equal(
            rows_of(simulated), rows_of(computed), f"step {step}: the simulator's against the engine's"
        )
        if not pending and not engine.has_unfinished_requests:
            break
    check_equal(simulator.scheduler.has_work, False, "has_work of the simulator's scheduler")


@given(st.integers(1, 60), st.none() | st.integers(1, 20), st.integers(1, 20))
def test_task_6_a_lone_prompt_takes_the_steps_of_the_formula(
    prompt_len: int, threshold: int | None, budget: int
) -> None:
    simulator = Simulator(SchedulerConfig(budget, 1, threshold), CostModel(1.0, 0.0))
    serve(simulator, [SimulatedRequest((1,) * prompt_len, 1)])
    expected = num_prefill_steps(prompt_len, threshold or 0, budget)
    check_equal(len(simulator.steps), expected, f"steps of {prompt_len} tokens, {threshold} and {budget}")


# Task 7: two prompts on paper


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((100, 60, 32, 64), (4, 2)),
        ((100, 60, 0, 64), (2, 3)),
        ((128, 60, 0, 64), (2, 3)),
        ((100, 200, 0, 64), (2, 5)),
        ((2, 1, 0, 2), (1, 2)),
        ((10, 10, 4, 6), (3, 4)),
        ((4, 12, 0, 4), (1, 4)),
        ((4, 12, 0, 4, 4), (1, 5)),
        ((4, 13, 3, 4, 99), (2, 5)),
    ],
)
def test_task_7_two_prompts_that_share_a_budget(
    arguments: tuple[int, ...], expected: tuple[int, int]
) -> None:
    what = f"steps until each is computed, for {arguments}"
    check_equal(num_prefill_steps_of_two(*arguments), expected, what)


@pytest.mark.parametrize("num_outputs", [1, 2, 4, 9])
def test_task_7_it_is_what_the_simulator_counts_in_small_cases(num_outputs: int) -> None:
    ranges = range(1, 9), range(1, 12), range(6), range(2, 8)
    corners = itertools.product(*((each[0], each[1], each[-1]) for each in ranges))
    others = Random(num_outputs).sample(list(itertools.product(*ranges)), 250)
    for first, second, threshold, budget in [*corners, *others]:
        simulator = Simulator(SchedulerConfig(budget, 2, threshold or None), CostModel(1.0, 0.0))
        prompts = ((1,) * first, num_outputs), ((1,) * second, 1)
        serve(simulator, [SimulatedRequest(*prompt) for prompt in prompts])
        counted = tuple(int(simulator.metrics.ttft(id) or 0) for id in (0, 1))
        arguments = (first, second, threshold, budget, num_outputs)
        found = num_prefill_steps_of_two(*arguments)
        check_equal(found, counted, f"steps until each is computed, for {arguments}")


def test_task_7_long_prompts_need_no_counting() -> None:
    with ends_within(5):
        both = num_prefill_steps_of_two(10**15, 10**15, 2, 3, 10**15)
        other = num_prefill_steps_of_two(1, 10**15, 2, 3)
    what = "tokens, with a threshold of 2 and a budget of 3"
    check_equal(both, (5 * 10**14, 75 * 10**13), f"steps for two prompts of 10**15 {what}")
    check_equal(other, (1, 5 * 10**14), f"steps for prompts of 1 and 10**15 {what}")


@pytest.mark.parametrize(
    ("name", "value"), [("first", 0), ("second", 0), ("num_outputs", 0), ("threshold", -1), ("budget", 1)]
)
def test_task_7_numbers_that_make_no_sense_are_an_error(name: str, value: int) -> None:
    numbers = {"first": 5, "second": 5, "threshold": 0, "budget": 8, "num_outputs": 1, name: value}
    with check_value_error(**{name: value}):
        num_prefill_steps_of_two(**numbers)
