"""Week 3, day 6: speculative decoding."""

from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Items
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.batching import ends_within, length
from tests.support.budget import SpyPolicy, answers_of, run
from tests.support.check import check_close, check_equal, check_value_error
from tests.support.engines import drafting_engine
from tests.support.fakes import EOS, VOCAB_SIZE, FakeModel, FakeTokenizer, continuation, prompt_of
from tests.support.oracles import expected_kept, softmax
from tests.support.pages import check_counts
from tiny_llm import (
    BlockManager,
    CostModel,
    DraftModel,
    Engine,
    EngineStep,
    LookupDrafter,
    PrefixCachingBlockManager,
    PromptLookup,
    SamplingParams,
    ScheduledTokens,
    Scheduler,
    SchedulerConfig,
    SchedulerOutput,
    Sequence,
)
from tiny_llm.engine.sampling_batch import SamplingBatch
from tiny_llm.speculation.adaptive_drafter import AdaptiveDrafter
from tiny_llm.speculation.draft_cost import DraftCost
from tiny_llm.speculation.draft_length import Acceptance, best_num_drafts
from tiny_llm.speculation.drafter import Drafts
from tiny_llm.speculation.rejection import probabilities, reject
from tiny_llm.speculation.verification import rows_to_keep, rows_to_verify

endless = FakeTokenizer(eos_token_ids=[])


# Task 1: look up what came next


def index_of(tokens: Items[int], min_n: int = 2, max_n: int = 4) -> PromptLookup:
    index = PromptLookup(min_n, max_n)
    index.extend(tokens)
    return index


def looked_up(tokens: Items[int], num_drafts: int, min_n: int, max_n: int) -> list[int]:
    """The drafts, by comparing the end of the sequence with every place in it."""
    for n in range(min(max_n, len(tokens)), min_n - 1, -1):
        for place in range(len(tokens) - 1, n - 1, -1):
            if tokens[place - n : place] == tokens[-n:]:
                drafts = list(tokens)
                for i in range(num_drafts):
                    drafts.append(drafts[place + i])
                return drafts[len(tokens) :]
    return []


def test_task_1_the_index_has_the_follower_of_each_latest_occurrence() -> None:
    index = index_of([5, 6, 5, 6, 7], 1, 2)
    expected = {(5,): 3, (6,): 4, (5, 6): 4, (6, 5): 3}
    mistakes = {
        "of the first occurrence": {(5,): 1, (5, 6): 2, (6,): 2, (6, 5): 3},
        "the end of the sequence has a follower": expected | {(7,): 5, (6, 7): 5},
    }
    check_equal(index.follower, expected, "position of the token after each n-gram of 5 6 5 6 7", mistakes)


def test_task_1_what_followed_the_same_tokens_is_proposed() -> None:
    found = index_of([3, 7, 8, 5, 9, 7, 8]).propose(3)
    mistakes = {
        "the match itself is proposed again": [7, 8, 5],
        "one token too far": [9, 7, 8],
        "the end of the sequence found as its own match": [],
    }
    check_equal(found, [5, 9, 7], "drafts after 3 7 8 5 9 7 8", mistakes)


def test_task_1_the_longest_match_wins() -> None:
    tokens = [1, 2, 3, 40, 6, 2, 3, 50, 1, 2, 3]
    mistakes = {"the follower of the shortest match": [50]}
    check_equal(index_of(tokens).propose(1), [40], f"draft after {tokens}", mistakes)


def test_task_1_of_equal_matches_the_latest_wins() -> None:
    tokens = [2, 3, 40, 2, 3, 50, 9, 2, 3]
    check_equal(
        index_of(tokens).propose(1), [50], f"draft after {tokens}", {"the follower of the earliest": [40]}
    )


def test_task_1_nothing_is_proposed_without_a_match() -> None:
    for tokens in ([], [4], [4, 5, 6, 7], [4, 5, 4], [4, 5, 6, 5, 4]):
        check_equal(index_of(tokens).propose(3), [], f"drafts after {tokens}, by 2 to 4 tokens")
    check_equal(index_of([4, 5, 4], 1, 1).propose(0), [], "drafts when none are asked for")


def test_task_1_a_repetition_goes_on_beyond_the_end() -> None:
    tokens = [9, 1, 2, 3, 1, 2, 3]
    mistakes = {
        "it ends where the sequence ends": [1, 2, 3],
        "the last token is repeated": [1, 2, 3, 3, 3, 3, 3],
        "it starts again at the beginning": [1, 2, 3, 9, 1, 2, 3],
    }
    check_equal(index_of(tokens).propose(7), [1, 2, 3, 1, 2, 3, 1], f"7 drafts after {tokens}", mistakes)
    check_equal(index_of([6, 6, 6], 1, 3).propose(3), [6, 6, 6], "3 drafts after 6 6 6")


def test_task_1_proposing_changes_nothing() -> None:
    index = index_of([1, 2, 3, 1, 2])
    proposals = [index.propose(5), index.propose(5)]
    check_equal(proposals[0], proposals[1], "the second of two equal calls")
    proposals[0].append(99)
    check_equal(index.token_ids, [1, 2, 3, 1, 2], "token_ids afterwards")


@pytest.mark.parametrize(("min_n", "max_n"), [(0, 2), (3, 2), (-1, 4)])
def test_task_1_lengths_that_make_no_sense_are_refused(min_n: int, max_n: int) -> None:
    with check_value_error(min_n=min_n, max_n=max_n):
        PromptLookup(min_n, max_n)


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 3), max_size=40),
    st.integers(0, 9),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(1, 9),
)
def test_task_1_the_index_finds_what_a_search_finds(
    tokens: list[int], num_drafts: int, min_n: int, more: int, piece: int
) -> None:
    index = PromptLookup(min_n, min_n + more)
    for start in range(0, len(tokens), piece):
        index.extend(tokens[start : start + piece])
    expected = looked_up(tokens, num_drafts, min_n, min_n + more)
    what = f"{num_drafts} drafts after {tokens}, by {min_n} to {min_n + more} tokens"
    check_equal(index.propose(num_drafts), expected, what)
    check_equal(index.token_ids, tokens, f"token_ids after pieces of {piece}")


def test_task_1_a_token_costs_the_same_however_long_the_text_is() -> None:
    index, random = PromptLookup(), np.random.default_rng(1)
    with ends_within(10):
        for token in random.integers(0, 50_000, 20_000).tolist():
            index.extend([token])
            index.propose(3)


# Task 2: room for drafts


def growing(blocks: BlockManager, computed: int, most: int = 40, id: int = 0) -> Sequence:
    """An admitted sequence that decodes: so many tokens are computed, and one is not."""
    sequence = Sequence(id, prompt_of(computed, id), max_num_tokens=most)
    assert blocks.allocate(sequence, computed), "the sequence was not admitted"
    sequence.num_computed_tokens = computed
    sequence.token_ids.append(1)
    assert blocks.allocate(sequence, 1), "there was no block for a token"
    return sequence


@pytest.mark.parametrize(
    ("num_blocks", "computed", "expected"), [(8, 5, 26), (2, 5, 2), (2, 6, 1), (2, 7, 0), (3, 8, 3)]
)
def test_task_2_the_last_block_and_the_free_ones_have_room(
    num_blocks: int, computed: int, expected: int
) -> None:
    blocks = BlockManager(num_blocks, 4, overcommit=True)
    sequence = growing(blocks, computed, num_blocks * 4)
    room = blocks.room_for_drafts(sequence, 1)
    own = len(blocks.tables[0].block_ids) * 4
    mistakes = {
        "the rest of the last block is left out": (num_blocks * 4) - own,
        "the step's own token is left out": expected + 1,
        "the free blocks are left out": own - computed - 1,
    }
    what = f"drafts that fit after {computed} + 1 tokens, in {num_blocks} blocks of 4"
    check_equal(room, expected, what, {name: n for name, n in mistakes.items() if n != expected})


def test_task_2_what_is_reserved_for_others_has_no_room() -> None:
    blocks = BlockManager(9, 4)
    first, second = growing(blocks, 5, 16), growing(blocks, 5, 20, id=1)
    # First holds 2 of its 4 blocks, second 2 of its 5: all 9 are promised.
    rooms = (blocks.room_for_drafts(first, 1), blocks.room_for_drafts(second, 1))
    mistakes = {
        "every free block is counted, the reserved ones of others too": (22, 22),
        "the sequence's own reservation is not counted": (2, 2),
    }
    check_equal(rooms, (10, 14), "drafts that fit for each of two sequences", mistakes)


def test_task_2_no_contents_are_given_up_for_a_draft() -> None:
    blocks = PrefixCachingBlockManager(6, 4, overcommit=True)
    old = Sequence(9, prompt_of(17, 9), max_num_tokens=18)
    assert blocks.allocate(old, 17)
    old.num_computed_tokens = 17
    blocks.free(old)
    sequence = growing(blocks, 5, 24)
    check_equal(blocks.num_cached_blocks, 4, "cached blocks, to begin with")
    mistakes = {"cached blocks are counted: a draft would evict them": 18}
    check_equal(
        blocks.room_for_drafts(sequence, 1), 2, "drafts that fit if all other blocks are cached", mistakes
    )


def test_task_2_cached_blocks_may_keep_what_is_reserved_for_others() -> None:
    blocks = PrefixCachingBlockManager(9, 4)
    old = Sequence(9, prompt_of(17, 9), max_num_tokens=18)
    assert blocks.allocate(old, 17)
    old.num_computed_tokens = 17
    blocks.free(old)
    growing(blocks, 5, 16, id=1)
    sequence = growing(blocks, 5, 8)
    seen = (blocks.num_free_blocks, blocks.num_cached_blocks, blocks.num_reserved)
    check_equal(seen, (1, 4, 2), "free, cached and reserved blocks, to begin with")
    mistakes = {
        "what is reserved for the other is taken from the free blocks": 2,
        "cached blocks are counted: a draft would evict them": 14,
    }
    what = "drafts that fit if the cached blocks suffice for what is reserved for another sequence"
    check_equal(blocks.room_for_drafts(sequence, 1), 6, what, mistakes)


def test_task_2_room_is_room_that_allocate_finds() -> None:
    for num_blocks in range(3, 9):
        blocks = BlockManager(num_blocks, 3, overcommit=True)
        sequence = growing(blocks, 4, num_blocks * 3)
        growing(blocks, 2, 3, id=1)
        room = blocks.room_for_drafts(sequence, 1)
        check_equal(blocks.allocate(sequence, 1 + room), True, f"room for 1 token and {room} drafts")
        check_equal(blocks.room_for_drafts(sequence, 1), room, "room after it was taken")
        check_counts(blocks)


@pytest.mark.parametrize("overcommit", [False, True])
@pytest.mark.parametrize(("accepted", "num_left"), [(0, 2), (1, 2), (2, 2), (3, 3), (6, 3)])
def test_task_2_blocks_of_rejected_drafts_are_given_back(
    overcommit: bool, accepted: int, num_left: int
) -> None:
    blocks = BlockManager(9, 4, overcommit)
    sequence = growing(blocks, 5, 36)
    before = (blocks.num_free_blocks, blocks.num_reserved)
    assert blocks.allocate(sequence, 1 + 8)  # four blocks
    sequence.num_computed_tokens += 1 + accepted
    blocks.shrink(sequence)
    table = blocks.tables[0]
    check_equal(len(table.block_ids), num_left, f"blocks of the table for {6 + accepted} computed tokens")
    more = num_left - 2
    expected = (before[0] - more, before[1] - (0 if overcommit else more))
    mistakes = {
        "the blocks are lost: in no table and not free": (before[0] - 2, expected[1]),
        "the reservation is not restored": (expected[0], before[1] - 2),
        "reserved although the pool overcommits": (expected[0], before[1] + 4 - num_left),
    }
    seen = (blocks.num_free_blocks, blocks.num_reserved)
    check_equal(
        seen, expected, "free blocks, and reserved", {n: m for n, m in mistakes.items() if m != expected}
    )
    check_equal(table.num_reserved, blocks.num_reserved, "num_reserved of the table")
    check_counts(blocks)
    blocks.free(sequence)
    check_equal((blocks.num_free_blocks, blocks.num_reserved), (9, 0), "free and reserved at the end")


def test_task_2_shrinking_what_has_no_drafts_changes_nothing() -> None:
    blocks = PrefixCachingBlockManager(9, 4)
    sequence = growing(blocks, 8, 36)
    sequence.num_computed_tokens += 1
    before = (list(blocks.tables[0].block_ids), blocks.num_free_blocks, blocks.num_reserved)
    blocks.shrink(sequence)
    after = (list(blocks.tables[0].block_ids), blocks.num_free_blocks, blocks.num_reserved)
    check_equal(after, before, "blocks of the table, free and reserved")


# Task 3: what the budget leaves


def decoding(
    blocks: BlockManager, prompts: Items[int] = (6,), most: int = 26, budget: int = 8, max_num_seqs: int = 3
) -> tuple[Scheduler, list[Sequence]]:
    """A scheduler whose sequences have just sampled a first token each."""
    scheduler = Scheduler(SchedulerConfig(budget, max_num_seqs), blocks)
    sequences = [Sequence(id, prompt_of(size, id), max_num_tokens=most) for id, size in enumerate(prompts)]
    for sequence in sequences:
        scheduler.add(sequence)
    while any(sequence.is_prefilling for sequence in sequences):
        output = scheduler.schedule()
        scheduler.complete(output, dict.fromkeys(output.final_ids, 1))
    return scheduler, sequences


@pytest.mark.parametrize(
    ("wanted", "most", "num_blocks", "granted", "why"),
    [
        (3, 26, 9, 3, "all of them fit"),
        (9, 26, 9, 7, "the budget is 8"),
        (9, 10, 9, 2, "it may have 10 tokens, has 7, and one is sampled after the drafts"),
        (9, 8, 9, 0, "one token more is all it may get"),
        (9, 12, 3, 4, "it may have 12 tokens"),
        (0, 26, 9, 0, "none are wanted"),
    ],
)
def test_task_3_a_draft_gets_what_is_left(
    wanted: int, most: int, num_blocks: int, granted: int, why: str
) -> None:
    scheduler, (sequence,) = decoding(BlockManager(num_blocks, 4), most=most)
    found = scheduler.grant_drafts(scheduler.schedule(), {0: wanted})
    mistakes: dict[str, Any] = {
        "no place is kept for the token after the drafts": {0: granted + 1},
        "nothing at all, if not everything fits": {},
        "a sequence without drafts has an entry": {0: 0},
        "more than fits": {0: wanted},
    }
    expected = {0: granted} if granted else {}
    mistakes = {name: found for name, found in mistakes.items() if found != expected}
    check_equal(found, expected, f"drafts granted of {wanted} wanted; {why}", mistakes)
    check_equal(sequence.num_computed_tokens, 6, "num_computed_tokens, before anything is computed")


def test_task_3_the_blocks_for_granted_drafts_are_there() -> None:
    blocks = BlockManager(9, 4)
    scheduler, _ = decoding(blocks)
    scheduler.grant_drafts(scheduler.schedule(), {0: 6})
    mistakes = {"no blocks were allocated": 2}
    check_equal(
        len(blocks.tables[0].block_ids), 4, "blocks for 6 computed tokens, 1 new and 6 drafts", mistakes
    )


def test_task_3_all_drafts_of_a_step_share_what_is_left() -> None:
    scheduler, _ = decoding(BlockManager(40, 4), (3, 3, 3))
    found = scheduler.grant_drafts(scheduler.schedule(), {0: 3, 1: 9, 2: 9})
    mistakes = {"each gets all that is left": {0: 3, 1: 5, 2: 5}, "all are cut alike": {0: 1, 1: 1, 2: 1}}
    check_equal(found, {0: 3, 1: 2}, "drafts granted in a budget of 8, three tokens used", mistakes)


def test_task_3_who_wants_none_need_not_say_so() -> None:
    scheduler, _ = decoding(BlockManager(40, 4), (3, 3, 3))
    found = scheduler.grant_drafts(scheduler.schedule(), {1: 3})
    check_equal(found, {1: 3}, "drafts granted where only the second of three wants any")


def test_task_3_a_prompt_in_chunks_gets_none() -> None:
    scheduler, _ = decoding(BlockManager(40, 4), (3,))
    scheduler.add(Sequence(1, prompt_of(20, 1), max_num_tokens=40))
    scheduler.config = SchedulerConfig(12, 3, 5)
    output = scheduler.schedule()
    check_equal([entry.is_final for entry in output.entries], [True, False], "final entries")
    mistakes = {"drafts after a chunk, whose next tokens are known": {0: 2, 1: 2}}
    check_equal(scheduler.grant_drafts(output, {0: 2, 1: 2}), {0: 2}, "drafts granted", mistakes)


def test_task_3_nothing_gives_way_to_a_draft() -> None:
    blocks = BlockManager(4, 4, overcommit=True)
    scheduler, sequences = decoding(blocks, (6, 6), most=16, budget=16)
    found = scheduler.grant_drafts(scheduler.schedule(), {0: 5, 1: 5})
    mistakes: dict[str, Any] = {
        "blocks taken from the other sequence": {0: 5},
        "blocks taken from each other in turn": {0: 5, 1: 5},
    }
    check_equal(found, {0: 1, 1: 1}, "drafts granted when no block is free", mistakes)
    check_equal([each.num_preemptions for each in sequences], [0, 0], "preemptions")
    check_equal(len(scheduler.running), 2, "running sequences")


def test_task_3_drafts_take_the_room_that_others_left() -> None:
    blocks = BlockManager(5, 4, overcommit=True)
    scheduler, _ = decoding(blocks, (6, 6), most=20, budget=12)
    found = scheduler.grant_drafts(scheduler.schedule(), {0: 5, 1: 5})
    mistakes = {"the last free block granted twice": {0: 5, 1: 5}}
    check_equal(found, {0: 5, 1: 1}, "drafts granted when one block is free", mistakes)


def test_task_3_the_policy_limits_drafts_too() -> None:
    policy = SpyPolicy()
    scheduler = Scheduler(SchedulerConfig(16, 2), BlockManager(9, 4), policy)
    scheduler.add(Sequence(0, prompt_of(3), max_num_tokens=20))
    output = scheduler.schedule()
    scheduler.complete(output, {0: 1})
    policy.budget = 4
    found = scheduler.grant_drafts(scheduler.schedule(), {0: 9})
    mistakes = {"the limit of the config, not of the policy": {0: 9}}
    check_equal(found, {0: 3}, "drafts granted when the policy allows 4 tokens", mistakes)


@pytest.mark.parametrize(
    ("tokens", "computed", "num_blocks"), [([8], 7, 2), ([8, 9], 8, 2), ([8, 9, 3], 9, 3), ([8] * 7, 13, 4)]
)
def test_task_3_accepted_tokens_are_computed_but_for_the_last(
    tokens: list[int], computed: int, num_blocks: int
) -> None:
    blocks = BlockManager(9, 4)
    scheduler, (sequence,) = decoding(blocks)
    output = scheduler.schedule()
    scheduler.grant_drafts(output, {0: 6})
    scheduler.complete_drafted(output, {0: tokens})
    check_equal(sequence.token_ids[6:], [1, *tokens], "tokens of the answer")
    mistakes = {
        "the last token, which was only sampled, counts as computed": computed + 1,
        "accepted drafts don't count as computed": 7,
        "rejected drafts count as computed": 13,
    }
    mistakes = {name: wrong for name, wrong in mistakes.items() if wrong != computed}
    check_equal(
        sequence.num_computed_tokens, computed, f"computed tokens after {len(tokens)} new ones", mistakes
    )
    leak = {"the blocks of rejected drafts are kept": 4} if num_blocks != 4 else {}
    check_equal(len(blocks.tables[0].block_ids), num_blocks, "blocks of the table", leak)
    scheduler.remove(0)
    check_equal((blocks.num_free_blocks, blocks.num_reserved), (9, 0), "free and reserved at the end")


def test_task_3_a_chunk_is_completed_without_tokens() -> None:
    scheduler, (first,) = decoding(BlockManager(40, 4), (3,))
    scheduler.add(late := Sequence(1, prompt_of(20, 1), max_num_tokens=40))
    output = scheduler.schedule()
    scheduler.complete_drafted(output, {0: [4, 5]})
    seen = (first.token_ids[3:], late.num_computed_tokens, late.num_tokens)
    check_equal(seen, ([1, 4, 5], 7, 20), "tokens of the first; computed and tokens of the chunk's sequence")


def test_task_3_a_sequence_removed_in_mid_step_is_skipped() -> None:
    blocks = BlockManager(40, 4)
    scheduler, (first, second) = decoding(blocks, (3, 3))
    output = scheduler.schedule()
    scheduler.grant_drafts(output, {0: 2, 1: 2})
    scheduler.remove(0)
    scheduler.complete_drafted(output, {0: [4, 5], 1: [6, 7]})
    seen = (first.token_ids[3:], second.token_ids[3:], sorted(blocks.tables))
    check_equal(
        seen, ([1], [1, 6, 7], [1]), "tokens of the removed one and of the other, and ids with blocks"
    )


def test_task_3_an_id_that_is_used_again_in_mid_step_means_another_sequence() -> None:
    blocks = BlockManager(40, 4)
    scheduler, (old, other) = decoding(blocks, (3, 3))
    output = scheduler.schedule()
    scheduler.grant_drafts(output, {0: 2, 1: 2})
    scheduler.remove(0)
    scheduler.add(new := Sequence(0, prompt_of(5, 7), max_num_tokens=20))
    scheduler.complete_drafted(output, {0: [4, 5], 1: [6, 7]})
    seen = (old.token_ids[3:], new.token_ids[5:], new.num_computed_tokens, other.token_ids[3:])
    mistakes = {"the new one gets the tokens of the removed one": ([1], [5], 1, [1, 6, 7])}
    what = "tokens gained by the removed one and the new one, computed by the new one, gained by the other"
    check_equal(seen, ([1], [], 0, [1, 6, 7]), what, mistakes)


def test_task_3_a_step_is_completed_only_once() -> None:
    scheduler, _ = decoding(BlockManager(40, 4), (3, 3))
    output = scheduler.schedule()
    with check_value_error(what="completing with tokens of one sequence of two"):
        scheduler.complete_drafted(output, {0: [4, 5]})
    scheduler.complete_drafted(output, {0: [4, 5], 1: [6]})
    with check_value_error(what="completing twice"):
        scheduler.complete_drafted(output, {0: [4, 5], 1: [6]})


def test_task_3_only_verified_tokens_are_found_again() -> None:
    blocks = PrefixCachingBlockManager(9, 4)
    scheduler, (sequence,) = decoding(blocks, (6,), most=30)
    output = scheduler.schedule()
    scheduler.grant_drafts(output, {0: 6})  # 13 tokens would be computed
    scheduler.complete_drafted(output, {0: [8, 9]})  # 8 are
    scheduler.remove(0)
    tokens = sequence.token_ids
    check_equal(len(tokens), 9, "tokens of the sequence")
    again = Sequence(1, [*tokens, 5, 5, 5, 5], max_num_tokens=20)
    mistakes = {"the block of rejected drafts is found": 12, "accepted drafts are not found": 4}
    check_equal(blocks.find_prefix(again), 8, "tokens that a prompt with the same start finds", mistakes)


# Task 4: verify


def entries_to_verify() -> list[ScheduledTokens]:
    """A chunk, a decode with two drafts, one without, and the end of a prompt with one draft."""
    sequences = [Sequence(id, [5] * 9) for id in range(4)]
    return [
        ScheduledTokens(sequences[0], 0, 4, False),
        ScheduledTokens(sequences[1], 8, 3, True, (1, 2)),
        ScheduledTokens(sequences[2], 8, 1, True),
        ScheduledTokens(sequences[3], 6, 4, True, (1,)),
    ]


def test_task_4_a_token_is_sampled_after_each_draft_and_before_the_first() -> None:
    rows = rows_to_verify(entries_to_verify(), np.array([0, 4, 7, 8, 12], dtype=np.int32))
    mistakes = {
        "after the drafts alone": [5, 6, 11],
        "the last row of each entry": [6, 7, 11],
        "all rows of final entries": [4, 5, 6, 7, 8, 9, 10, 11],
        "the chunk is sampled too": [3, 4, 5, 6, 7, 10, 11],
        "the first rows of each entry": [4, 5, 6, 7, 8, 9],
        "nothing after the last draft": [4, 5, 7, 10],
    }
    check_equal(rows.tolist(), [4, 5, 6, 7, 10, 11], "rows after which a token is sampled", mistakes)


def test_task_4_without_drafts_it_is_the_last_row_of_each_final_entry() -> None:
    entries = [entry._replace(num_tokens=2, draft_ids=()) for entry in entries_to_verify()]
    rows = rows_to_verify(entries, np.array([0, 2, 4, 6, 8], dtype=np.int32))
    check_equal(rows.tolist(), [3, 5, 7], "rows after which a token is sampled")
    check_equal(rows.dtype.kind, "i", "kind of the rows' type")
    chunk = rows_to_verify(entries[:1], np.array([0, 2], dtype=np.int32))
    check_equal(
        (chunk.tolist(), chunk.dtype.kind), ([], "i"), "rows of a step with a chunk alone, and their kind"
    )


@pytest.mark.parametrize(
    ("is_accepted", "expected"),
    [
        ([False] * 6, {1: [0], 2: [3], 3: [4]}),
        ([True, False, False, False, False, False], {1: [0, 1], 2: [3], 3: [4]}),
        ([True, True, False, False, True, False], {1: [0, 1, 2], 2: [3], 3: [4, 5]}),
        ([False, True, False, False, True, False], {1: [0], 2: [3], 3: [4, 5]}),
        ([True] * 6, {1: [0, 1, 2], 2: [3], 3: [4, 5]}),
    ],
)
def test_task_4_an_answer_gets_its_accepted_drafts_and_one_token_more(
    is_accepted: list[bool], expected: dict[int, list[int]]
) -> None:
    final = entries_to_verify()[1:]
    rows = {id: list(each) for id, each in rows_to_keep(final, is_accepted).items()}
    mistakes = {
        "the token after the accepted drafts is left out": {id: each[:-1] for id, each in expected.items()},
        "what comes after a rejected draft is kept": {1: [0, 1], 2: [3], 3: [4, 5]},
        "rejected drafts are kept": {1: [0, 1, 2], 2: [3], 3: [4, 5]},
    }
    mistakes = {name: wrong for name, wrong in mistakes.items() if wrong != expected}
    what = f"samples of each sequence; accepted are {[i for i, each in enumerate(is_accepted) if each]}"
    check_equal(rows, expected, what, mistakes)


@settings(max_examples=100)
@given(st.lists(st.lists(st.booleans(), max_size=5), max_size=6))
def test_task_4_each_answer_gets_a_prefix_of_its_own_rows(drafts: list[list[bool]]) -> None:
    final = [
        ScheduledTokens(Sequence(id, [5]), 0, 1 + len(each), True, (3,) * len(each))
        for id, each in enumerate(drafts)
    ]
    rows = rows_to_keep(final, [value for each in drafts for value in (*each, True)])
    start, expected = 0, {}
    for id, each in enumerate(drafts):
        count = [*each, False].index(False)
        expected[id] = list(range(start, start + count + 1))
        start += len(each) + 1
    check_equal({id: list(each) for id, each in rows.items()}, expected, f"samples kept of {drafts}")


# Task 5: a step with drafts


class Oracle:
    """Knows what the fake model will say, and drafts that; or something else where `mistakes_at` says so.

    Args:
        num_drafts: that it wants for each sequence.
        mistakes_at: lengths of a sequence at which its next token is drafted wrongly.
    """

    def __init__(self, num_drafts: int = 3, mistakes_at: Items[int] = ()) -> None:
        self.num_drafts = num_drafts
        self.mistakes_at = mistakes_at
        self.asked: list[list[int]] = []
        self.calls: list[tuple[list[int], dict[int, int]]] = []
        self.released: list[int] = []
        self.is_closed = False
        self.rests_from = 1000
        self.asked_to_rest: list[int] = []

    def rests(self, sequences: Items[Sequence]) -> bool:
        self.asked_to_rest.append(len(sequences))
        return len(self.asked_to_rest) > self.rests_from

    def wanted(self, entries: Items[ScheduledTokens]) -> dict[int, int]:
        self.asked.append([entry.sequence.id for entry in entries])
        return {entry.sequence.id: self.num_drafts for entry in entries}

    def propose(
        self, output: SchedulerOutput, granted: Mapping[int, int], params: Mapping[int, SamplingParams]
    ) -> Drafts:
        self.calls.append(([entry.sequence.id for entry in output.entries], dict(granted)))
        sequences = {entry.sequence.id: entry.sequence for entry in output.entries}
        return Drafts({id: self._draft(sequences[id].token_ids, number) for id, number in granted.items()})

    def release(self, sequence_id: int) -> None:
        self.released.append(sequence_id)

    def close(self) -> None:
        self.is_closed = True

    def _draft(self, tokens: Items[int], number: int) -> list[int]:
        drafts = continuation(tokens, number)
        for place in range(number):
            if len(tokens) + place in self.mistakes_at:
                drafts[place] = 1 + drafts[place] % (VOCAB_SIZE - 1)
        return drafts


def speculative_engine(drafter: Any, budget: int = 16, tokenizer: Any = endless, **options: Any) -> Engine:
    """An engine of fakes with two places."""
    blocks = options.pop("blocks", None) or BlockManager(40, 4)
    model = options.pop("model", None) or FakeModel()
    config = SchedulerConfig(budget, 2)
    return drafting_engine(model, tokenizer, config, 64, blocks, drafter=drafter, **options)


def streamed(steps: Items[EngineStep]) -> dict[int, list[int]]:
    """The tokens of each answer as a reader of the steps sees them."""
    seen: dict[int, list[int]] = {}
    for step in steps:
        for id, token in step.sampled.items():
            seen.setdefault(id, []).extend([*step.accepted.get(id, ()), token])
    return seen


def test_task_5_right_drafts_save_steps() -> None:
    oracle = Oracle(3)
    model = FakeModel()
    engine = speculative_engine(oracle, model=model)
    engine.add_request(prompt_of(5), length(12))
    steps = run(engine)
    check_equal(answers_of(steps), {0: continuation(prompt_of(5), 12)}, "tokens of the answer")
    mistakes = {"drafts are not used": 12, "drafts only after a first token": 4}
    check_equal(len(steps), 3, "steps for 12 tokens, with 3 right drafts each", mistakes)
    check_equal(len(model.calls), 3, "calls of the model")
    check_equal(
        streamed(steps), {0: continuation(prompt_of(5), 12)}, "sampled and accepted tokens of the steps"
    )
    check_equal([len(step.accepted[0]) for step in steps], [3, 3, 3], "tokens accepted in each step")


def test_task_5_a_wrong_draft_ends_a_step_and_costs_no_token() -> None:
    engine = speculative_engine(Oracle(3, mistakes_at=[6, 8, 12]))
    engine.add_request(prompt_of(5), length(10))
    steps = run(engine)
    check_equal(answers_of(steps), {0: continuation(prompt_of(5), 10)}, "tokens of the answer")
    new = [1 + len(step.accepted.get(0, ())) for step in steps]
    check_equal(new, [2, 2, 4, 2], "new tokens of each step; the drafts at lengths 6, 8 and 12 are wrong")
    check_equal(engine.scheduler.blocks.num_used_blocks, 0, "blocks in use at the end")  # type: ignore[attr-defined]


def test_task_5_the_step_shows_its_drafts() -> None:
    engine = speculative_engine(Oracle(3, mistakes_at=[6]))
    engine.add_request(prompt_of(5), length(10))
    (entry,) = engine.step().scheduled.entries
    mistakes: dict[str, Any] = {"the step without its drafts": (5, 0)}
    check_equal(
        (entry.num_tokens, len(entry.draft_ids)), (8, 3), "tokens of the entry, drafts of it", mistakes
    )


def test_task_5_the_budget_holds_with_drafts() -> None:
    oracle = Oracle(9)
    engine = speculative_engine(oracle, budget=8)
    for id in range(2):
        engine.add_request(prompt_of(5, id), length(9))
    steps = run(engine)
    check_equal(max(step.scheduled.num_tokens for step in steps), 8, "tokens of the largest step")
    check_equal(streamed(steps), {id: continuation(prompt_of(5, id), 9) for id in range(2)}, "tokens")
    expected = [([0, 1], {}), ([0, 1], {0: 5})]
    check_equal(oracle.calls[:2], expected, "ids of the first two steps, and the drafts they grant")
    mistakes = {"the chunk of a prompt is asked about too": [[0, 1], [0, 1]]}
    check_equal(oracle.asked[:2], [[0], [0, 1]], "ids that the drafter is asked about", mistakes)
    check_equal(dict(steps[0].accepted), {}, "accepted drafts of the first step")


def test_task_5_the_policy_learns_of_drafts() -> None:
    policy, now = SpyPolicy(), [5.0]

    class Slow(FakeModel):
        def hidden_states(self, *args: Any) -> mx.array:
            now[0] += 2
            return super().hidden_states(*args)

    engine = speculative_engine(Oracle(3), policy=policy, model=Slow(), clock=lambda: now[0])
    engine.add_request(prompt_of(5), length(4))
    run(engine)
    mistakes = {"the drafts are left out: they cost time too": [[(0, 0, 5, True)]]}
    check_equal([rows for rows, _ in policy.recorded], [[(0, 0, 8, True)]], "rows that record got", mistakes)
    check_equal([seconds for _, seconds in policy.recorded], [2.0], "seconds that record got")


def test_task_5_an_answer_that_ends_in_mid_draft_gives_all_back() -> None:
    for tokenizer, model, params in (
        (FakeTokenizer(), FakeModel(eos_at_length=8), SamplingParams()),
        (endless, None, length(3)),
        (endless, None, SamplingParams(stop=(endless.decode(continuation(prompt_of(5), 3)[1:]),))),
    ):
        blocks, oracle = PrefixCachingBlockManager(40, 4), Oracle(6)
        engine = speculative_engine(oracle, tokenizer=tokenizer, model=model, blocks=blocks)
        engine.add_request(prompt_of(5), params)
        steps = run(engine)
        check_equal(answers_of(steps), {0: continuation(prompt_of(5), 3)}, "tokens of the answer")
        expected = [*continuation(prompt_of(5), 3), *([EOS] if model else [])]
        right = continuation(prompt_of(5), 7)
        mistakes = {
            "all tokens after the end are handed on": {0: right},
            "a token after the end is handed on": {0: [*right[:2], right[6]]},
        }
        check_equal(streamed(steps), {0: expected}, "sampled and accepted tokens", mistakes)
        check_equal((blocks.num_used_blocks, blocks.num_reserved), (0, 0), "blocks in use and reserved")
        check_equal(oracle.released, [0], "ids that the drafter was told to forget")
        check_equal(engine.requests, {}, "requests that are left")


def test_task_5_the_scheduler_is_told_of_no_token_after_the_end() -> None:
    engine = speculative_engine(Oracle(3))
    engine.add_request(prompt_of(5), length(9))
    computed = engine.execution.compute(engine.requests)
    engine.execution.complete(computed, {0: computed.token_ids[0][:2]})
    sequence = engine.scheduler.sequences[0]
    seen = (sequence.token_ids[5:], sequence.num_computed_tokens)
    mistakes = {"all tokens of the step": (continuation(prompt_of(5), 4), 8)}
    what = "tokens and computed tokens of a sequence whose answer takes two of a step's four"
    check_equal(seen, (continuation(prompt_of(5), 2), 6), what, mistakes)


def test_task_5_log_probabilities_of_all_tokens() -> None:
    answers = []
    for num_drafts in (0, 4):
        engine = speculative_engine(Oracle(num_drafts, mistakes_at=[7, 11]))
        engine.add_request(prompt_of(5), SamplingParams(max_tokens=9, logprobs=2))
        steps = run(engine)
        (result,) = (result for step in steps for result in step.finished)
        answers.append([round(each.logprob, 4) for each in result.logprobs])
        last = [steps[i].logprobs[0].logprob for i in range(len(steps))]
        check_equal(round(last[-1], 4), answers[-1][-1], "log-probability of the last sampled token")
    check_equal(answers[1], answers[0], "log-probabilities with drafts, and without")


def test_task_5_a_step_has_the_log_probability_of_its_last_token() -> None:
    engine = speculative_engine(Oracle(6))
    stop = endless.decode(continuation(prompt_of(5), 3)[1:])
    engine.add_request(prompt_of(5), SamplingParams(logprobs=2, stop=(stop,)))
    step = engine.step()
    (result,) = step.finished
    check_equal(len(result.logprobs), 3, "log-probabilities of an answer that ends in mid-draft")
    check_equal(step.logprobs[0], result.logprobs[-1], "log-probability in the step: that of the last token")


def test_task_5_sampled_requests_get_the_tokens_they_get_without_drafts() -> None:
    params = [
        SamplingParams(1.2, seed=3, max_tokens=15),
        SamplingParams(0.7, top_p=0.9, seed=4, max_tokens=9),
    ]
    answers = []
    for num_drafts in (0, 3):
        engine = speculative_engine(Oracle(num_drafts))
        for id, each in enumerate(params):
            engine.add_request(prompt_of(5, id), each)
        answers.append(answers_of(run(engine)))
    check_equal(answers[1], answers[0], "tokens with drafts, and without")


def test_task_5_lookup_finds_what_the_prompt_contains() -> None:
    prompt = prompt_of(5)
    quoted = [*prompt, *continuation(prompt, 12), 60, *prompt]
    lookup = LookupDrafter(4)
    plain, drafted = (speculative_engine(drafter, budget=40) for drafter in (LookupDrafter(0), lookup))
    for engine in (plain, drafted):
        engine.add_request(quoted, length(8))
        engine.add_request([4, 9] * 6, length(8))
    check_equal(answers_of(run(drafted)), answers_of(run(plain)), "tokens with lookup, and without")
    check_equal(lookup.indexes, {}, "indexes that the drafter still has")


def test_task_5_a_step_within_a_step_is_refused() -> None:
    class Impatient(Oracle):
        def rests(self, sequences: Items[Sequence]) -> bool:
            return False

        def wanted(self, entries: Items[ScheduledTokens]) -> dict[int, int]:
            with check_value_error(what="a step within a step"):
                engine.step()
            return super().wanted(entries)

    engine = speculative_engine(Impatient())
    engine.add_request(prompt_of(5), length(4))
    check_equal(answers_of(run(engine)), {0: continuation(prompt_of(5), 4)}, "tokens")


def test_task_5_an_error_closes_the_drafter_too() -> None:
    oracle = Oracle()
    engine = speculative_engine(oracle, model=FakeModel(fail_at=1))
    engine.add_request(prompt_of(5), length(9))
    with pytest.raises(Exception, match="told to fail"):
        run(engine)
    check_equal((engine.is_closed, oracle.is_closed), (True, True), "engine closed, drafter closed")
    with check_value_error(what="a step after that"):
        engine.step()


@settings(max_examples=10, deadline=None)
@given(
    jobs=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12)), min_size=1, max_size=5),
    num_drafts=st.integers(0, 6),
    mistakes_at=st.sets(st.integers(1, 32), max_size=12),
    budget=st.integers(2, 20),
    num_spare=st.integers(0, 9),
    overcommit=st.booleans(),
    is_shared=st.booleans(),
)
def test_task_5_each_request_gets_what_it_gets_alone(
    jobs: list[tuple[int, int]],
    num_drafts: int,
    mistakes_at: set[int],
    budget: int,
    num_spare: int,
    overcommit: bool,
    is_shared: bool,
) -> None:
    num_blocks = max(-(-sum(job) // 3) for job in jobs) + num_spare
    kind = PrefixCachingBlockManager if is_shared else BlockManager
    blocks = kind(num_blocks, 3, overcommit)
    engine = speculative_engine(Oracle(num_drafts, sorted(mistakes_at)), budget=budget, blocks=blocks)
    for id, (size, amount) in enumerate(jobs):
        engine.add_request(prompt_of(size, id % 2), length(amount))
    steps = []
    while engine.has_unfinished_requests:
        steps.append(engine.step())
        check_counts(blocks)
        assert len(steps) < 500, "the engine does not end"
    expected = {id: continuation(prompt_of(size, id % 2), amount) for id, (size, amount) in enumerate(jobs)}
    check_equal(answers_of(steps), expected, "tokens of each request")
    check_equal(streamed(steps), expected, "sampled and accepted tokens of each request")
    check_equal(
        (blocks.num_used_blocks, blocks.num_reserved), (0, 0), "blocks in use and reserved at the end"
    )
    assert max(step.scheduled.num_tokens for step in steps) <= budget


def test_task_5_a_drafter_that_rests_is_asked_for_no_drafts() -> None:
    oracle = Oracle(3)
    oracle.rests_from = 2
    engine = speculative_engine(oracle)
    for length_of_prompt, most in ((5, 30), (4, 25)):
        engine.add_request(prompt_of(length_of_prompt), length(most))
    steps = run(engine)
    expected = {0: continuation(prompt_of(5), 30), 1: continuation(prompt_of(4), 25)}
    check_equal(answers_of(steps), expected, "tokens")
    mistakes = {"a drafter that rests is asked all the same": len(steps)}
    check_equal(len(oracle.calls), 2, "steps with drafts, before the drafter rests", mistakes)
    check_equal(oracle.asked_to_rest[:3], [0, 2, 2], "running sequences, as `rests` was told before a step")
    check_equal(sorted(oracle.released), [0, 1], "released ids")


# Task 6: accept at random


def rows_of_params(*params: SamplingParams) -> SamplingBatch:
    return SamplingBatch(params, np.zeros(len(params), np.uint64))


def cuts() -> tuple[SamplingParams, ...]:
    """Each kind of cut, none, greedy, and the model's own distribution."""
    return (
        SamplingParams(0.7),
        SamplingParams(1.6, top_k=3),
        SamplingParams(1.4, top_p=0.7),
        SamplingParams(0.5, min_p=0.1),
        SamplingParams(),
        SamplingParams(1.0),
    )


def expected_probabilities(logits: Any, is_cut: bool = True, is_tempered: bool = True) -> Any:
    rows = []
    for row, each in zip(np.array(logits, np.float64), cuts(), strict=True):
        logprobs = row - np.log(np.exp(row).sum())
        kept = expected_kept(logprobs, each.top_p, each.top_k, each.min_p)
        if each.temperature == 0:
            rows.append(np.eye(len(row))[row.argmax()])
        else:
            cut = np.where(kept, logprobs, -np.inf) if is_cut else logprobs
            rows.append(softmax(cut / (each.temperature if is_tempered else 1)))
    return np.stack(rows)


def test_task_6_a_row_has_the_distribution_that_its_token_is_drawn_from() -> None:
    logits = np.random.default_rng(3).normal(size=(len(cuts()), 13)).astype(np.float32) * 2
    mistakes = {
        "without the cuts": expected_probabilities(logits, is_cut=False),
        "without the temperature": expected_probabilities(logits, is_tempered=False),
    }
    found = probabilities(mx.array(logits), rows_of_params(*cuts()))
    expected = expected_probabilities(logits)
    check_close(found, expected, "probabilities of six rows, each with other parameters", 1e-5, mistakes)
    check_equal(found.dtype, mx.float32, "type")
    check_close(mx.sum(found, axis=-1), np.ones(len(cuts())), "sum of each row")


def test_task_6_half_precision_is_computed_in_full() -> None:
    logits = mx.array(np.random.default_rng(4).normal(size=(1, 500)) * 2).astype(mx.bfloat16)
    found = probabilities(logits, rows_of_params(SamplingParams(0.7)))
    expected = softmax(np.array(logits.astype(mx.float32))[0].astype(np.float64) / 0.7)
    check_close(found, expected[None], "probabilities of bfloat16 logits", 1e-5)


def test_task_6_a_greedy_row_is_certain_even_of_a_tie() -> None:
    found = probabilities(mx.array([[1.0, 3.0, 3.0, 0.0]]), rows_of_params(SamplingParams()))
    check_equal(
        found.tolist(), [[0.0, 1.0, 0.0, 0.0]], "probabilities of a greedy row whose best two are equal"
    )


def test_task_6_a_draft_is_accepted_as_often_as_p_over_q() -> None:
    p = mx.array([[0.1, 0.6, 0.3]] * 4)
    q = mx.array([[0.5, 0.2, 0.3]] * 4)
    drafts = mx.array([0, 0, 1, 2])
    accepted, _ = reject(p, q, drafts, mx.array([0.19, 0.21, 0.99, 0.99]), mx.array([0.5] * 4))
    mistakes = {
        "accepted with probability p": [False, False, False, False],
        "accepted with probability q": [True, True, False, False],
        "accepted with probability q/p": [True, True, False, True],
    }
    what = "whether drafts with p/q = 0.2, 0.2, 3 and 1 are accepted, by numbers 0.19, 0.21, 0.99, 0.99"
    check_equal(accepted.tolist(), [True, False, True, True], what, mistakes)


def test_task_6_a_draft_that_cannot_be_is_never_accepted() -> None:
    p, q = mx.array([[0.0, 1.0]]), mx.array([[0.5, 0.5]])
    accepted, token_ids = reject(p, q, mx.array([0]), mx.array([0.0]), mx.array([0.3]))
    what = "whether a draft that the model can't sample is accepted by the number 0, and its replacement"
    check_equal((accepted.tolist(), token_ids.tolist()), ([False], [1]), what, {"accepted": ([True], [1])})


def test_task_6_the_replacement_is_what_q_has_too_little_of() -> None:
    p, q = mx.array([[0.1, 0.5, 0.2, 0.2]] * 3), mx.array([[0.6, 0.1, 0.0, 0.3]] * 3)
    drawing = mx.array([0.0, 0.65, 0.7])  # max(p - q, 0) is 0, 0.4, 0.2, 0: up to 2/3, and beyond
    _, token_ids = reject(p, q, mx.array([0, 0, 3]), mx.array([0.9] * 3), drawing)
    mistakes = {"drawn from p": [0, 2, 2], "drawn from |p - q|": [0, 1, 1], "by the other number": [2, 2, 2]}
    check_equal(token_ids.tolist(), [1, 1, 2], "replacements by numbers 0, 0.65 and 0.7", mistakes)


def drafted() -> tuple[SamplingParams, ...]:
    return (SamplingParams(0.7, top_p=0.9), SamplingParams(1.3, top_k=4), SamplingParams(1.0))


@pytest.mark.parametrize("kind", ["spread", "certain"])
@pytest.mark.parametrize("row", range(3))
def test_task_6_the_tokens_are_distributed_like_p(row: int, kind: str) -> None:
    random, V, R = np.random.default_rng(10 + row), 6, 60_000
    targets = probabilities(mx.array(random.normal(size=(3, V)) * 1.5), rows_of_params(*drafted()))
    p = np.array(targets[row], np.float64)
    q = softmax(random.normal(size=V)) if kind == "spread" else np.eye(V)[p.argmax()]
    drafts = mx.array(random.choice(V, size=R, p=q))
    uniform = mx.array(random.random(size=(2, R)), mx.float32)
    many = (mx.broadcast_to(mx.array(x, mx.float32), (R, V)) for x in (p, q))
    accepted, replaced = reject(*many, drafts, uniform[0], uniform[1])
    counts = Counter(np.array(mx.where(accepted, drafts, replaced)).tolist())
    expected = {token: R * p[token] for token in range(V)}
    chi_square = sum((counts[t] - n) ** 2 / n for t, n in expected.items() if n > 0)
    assert not any(counts[t] for t, n in expected.items() if n == 0), "a token that the cuts drop was sampled"
    assert chi_square < 25, (
        f"60,000 drafts from {np.round(q, 2).tolist()} should give tokens like {np.round(p, 2).tolist()}, "
        f"got {[round(counts[t] / R, 2) for t in range(V)]}"
    )


def test_task_6_the_arguments_are_unchanged() -> None:
    p, q = mx.array([[0.1, 0.9]]), mx.array([[0.8, 0.2]])
    reject(p, q, mx.array([0]), mx.array([0.5]), mx.array([0.5]))
    check_close(p, np.array([[0.1, 0.9]]), "p afterwards")
    check_close(q, np.array([[0.8, 0.2]]), "q afterwards")


# Task 7: a draft model


def drafting(blocks: BlockManager, num_drafts: int = 3, model: FakeModel | None = None) -> DraftModel:
    return DraftModel(model or FakeModel(), blocks, num_drafts)


@pytest.mark.parametrize("num_stored", [0, 6, 9, 11])
def test_task_7_what_is_not_stored_is_missing(num_stored: int) -> None:
    drafter, sequence = drafting(BlockManager(40, 4)), Sequence(0, prompt_of(11), max_num_tokens=40)
    found = drafter.missing(ScheduledTokens(sequence, 9, 2, True), num_stored, True)
    start = min(num_stored, 9)
    mistakes: dict[str, Any] = {
        "one stored token too few counts": (start - 1, 11),
        "only the step's own tokens are missing": (9, 11),
        "nothing is left to draw a draft after": (11, 11),
        "all is computed again": (0, 11),
    }
    mistakes = {name: wrong for name, wrong in mistakes.items() if wrong != (start, 11)}
    what = f"first and last token to compute, with {num_stored} stored and tokens 9 and 10 in the step"
    check_equal((found.start, found.end), (start, 11), what, mistakes)
    check_equal(found.is_final, True, "whether a draft follows")


def test_task_7_a_decode_without_drafts_waits_and_a_chunk_does_not() -> None:
    drafter = drafting(BlockManager(40, 4))
    sequence = Sequence(0, prompt_of(9), max_num_tokens=40)
    chunk = drafter.missing(ScheduledTokens(sequence, 4, 3, False), 4, False)
    check_equal((chunk.start, chunk.num_tokens, chunk.is_final), (4, 3, False), "what is missing of a chunk")
    last = drafter.missing(ScheduledTokens(sequence, 4, 5, True), 4, False)
    check_equal(
        (last.start, last.num_tokens, last.is_final), (4, 5, False), "of a prompt's end without drafts"
    )
    sequence.token_ids.append(1)
    decode = drafter.missing(ScheduledTokens(sequence, 9, 1, True), 4, False)
    check_equal(decode.num_tokens, 0, "tokens missing of a decode without drafts", {"it doesn't wait": 6})
    caught_up = drafter.missing(ScheduledTokens(sequence, 9, 1, True), 4, True)
    mistakes = {"what waited is never computed": (9, 1)}
    check_equal(
        (caught_up.start, caught_up.num_tokens), (4, 6), "what is missing once drafts follow", mistakes
    )


def step_of(blocks: BlockManager, *lengths: int) -> SchedulerOutput:
    """Whole prompts with room for drafts."""
    entries = []
    for id, size in enumerate(lengths):
        sequence = Sequence(id, prompt_of(size, id), max_num_tokens=size + 9)
        assert blocks.allocate(sequence, size + 8)
        entries.append(ScheduledTokens(sequence, 0, size, True))
    return SchedulerOutput(tuple(entries))


def greedy(output: SchedulerOutput) -> dict[int, SamplingParams]:
    return dict.fromkeys(output.final_ids, SamplingParams(seed=1))


def test_task_7_the_drafts_of_all_are_drawn_together() -> None:
    blocks, model = BlockManager(40, 4), FakeModel()
    drafter = drafting(blocks, 3, model)
    output = step_of(blocks, 5, 7, 6)
    drafts = drafter.propose(output, {0: 3, 2: 1}, greedy(output))
    expected = {0: continuation(prompt_of(5), 3), 2: continuation(prompt_of(6, 2), 1)}
    mistakes = {"only the first draft of each": {id: each[:1] for id, each in expected.items()}}
    check_equal({id: list(each) for id, each in drafts.token_ids.items()}, expected, "drafts", mistakes)
    sizes = [len(call.tokens) for call in model.calls]
    mistakes = {
        "the last draft is computed too": [18, 1, 1, 1],
        "the prompt without drafts is left out": [11, 1, 1],
        "one sequence after the other": [5, 1, 1, 7, 6],
    }
    check_equal(sizes, [18, 1, 1], "tokens of each pass: three prompts, then one draft, then one", mistakes)
    check_equal(dict(drafts.probs), {}, "distributions of greedy drafts")


def test_task_7_nothing_is_computed_if_nothing_is_missing() -> None:
    blocks, model = BlockManager(40, 4), FakeModel()
    drafter = drafting(blocks, 3, model)
    sequence = growing(blocks, 4)
    drafts = drafter.propose(
        SchedulerOutput((ScheduledTokens(sequence, 4, 1, True),)), {}, {0: SamplingParams()}
    )
    check_equal((dict(drafts.token_ids), len(model.calls)), ({}, 0), "drafts, and calls of the model")


def test_task_7_each_draft_has_the_distribution_it_was_drawn_from() -> None:
    blocks = BlockManager(40, 4)
    drafter = drafting(blocks)
    output = step_of(blocks, 5, 7)
    params = {0: SamplingParams(1.3, top_k=20, seed=4), 1: SamplingParams(seed=1)}
    drafts = drafter.propose(output, {0: 3, 1: 2}, params)
    check_equal(sorted(drafts.probs), [0], "ids with distributions: those that sample")
    check_equal(drafts.probs[0].shape, (3, VOCAB_SIZE), "shape of the distributions")
    tokens = [*prompt_of(5), *drafts.token_ids[0]]
    logits = FakeModel()(mx.array([tokens[:-1]]))[0, -3:]
    expected = probabilities(logits, rows_of_params(*[params[0]] * 3))
    check_close(drafts.probs[0], expected, "the distribution of each draft")
    drawn = mx.take_along_axis(drafts.probs[0], mx.array(drafts.token_ids[0])[:, None], axis=-1)
    assert bool(mx.all(drawn > 0).item()), "a draft has probability 0 in its own distribution"


def served(
    num_drafts: int, jobs: Items[tuple[int, int]], budget: int = 24, kind: type[BlockManager] = BlockManager
) -> tuple[list[EngineStep], FakeModel]:
    """The steps of an engine whose model drafts for itself, and that draft model."""
    blocks, small = kind(40, 4), FakeModel()
    engine = speculative_engine(DraftModel(small, blocks, num_drafts), budget, blocks=blocks)
    for id, (size, amount) in enumerate(jobs):
        engine.add_request(prompt_of(size, id), length(amount))
    return run(engine), small


@pytest.mark.parametrize("kind", [BlockManager, PrefixCachingBlockManager])
def test_task_7_a_model_that_drafts_for_itself_is_always_right(kind: type[BlockManager]) -> None:
    jobs = [(5, 12), (9, 16), (11, 8)]
    steps, small = served(3, jobs, kind=kind)
    expected = {id: continuation(prompt_of(size, id), amount) for id, (size, amount) in enumerate(jobs)}
    check_equal(answers_of(steps), expected, "tokens of each request")
    rejected = [
        (number, entry.sequence.id)
        for number, step in enumerate(steps)
        for entry in step.scheduled.final
        if len(step.accepted.get(entry.sequence.id, ())) < len(entry.draft_ids)
    ]
    check_equal(rejected, [], "steps and ids with rejected drafts, which come from wrong keys and values")
    computed = sum(len(call.tokens) for call in small.calls)
    # Each token once, but for the last two of an answer: the last is only sampled, the one before it a draft.
    most = sum(size + amount for size, amount in jobs)
    assert computed <= most, (
        f"the draft model computed {computed} tokens, and there are {most}: it computes some again"
    )


def test_task_7_a_sequence_that_comes_back_from_a_preemption_drafts_rightly() -> None:
    blocks, small = PrefixCachingBlockManager(9, 3, overcommit=True), FakeModel()
    engine = speculative_engine(DraftModel(small, blocks, 2), 20, blocks=blocks)
    jobs = [(7, 12), (8, 12)]
    for id, (size, amount) in enumerate(jobs):
        engine.add_request(prompt_of(size, id), length(amount))
    sequences = list(engine.scheduler.sequences.values())
    steps = run(engine)
    assert any(each.num_preemptions for each in sequences), "the pool is large enough for both"
    expected = {id: continuation(prompt_of(size, id), amount) for id, (size, amount) in enumerate(jobs)}
    check_equal(answers_of(steps), expected, "tokens of each request")
    accepted = sum(len(each) for step in steps for each in step.accepted.values())
    drafted = sum(len(entry.draft_ids) for step in steps for entry in step.scheduled.entries)
    check_equal(accepted, drafted, "accepted drafts, of all")


@pytest.mark.parametrize("num_drafts", [0, 1, 5])
def test_task_7_another_model_changes_no_token(num_drafts: int) -> None:
    blocks = BlockManager(40, 4)
    worse = FakeModel(eos_at_length=13)  # wrong there, and right elsewhere
    engine = speculative_engine(DraftModel(worse, blocks, num_drafts), 24, blocks=blocks)
    jobs = [(5, 12), (9, 12)]
    for id, (size, amount) in enumerate(jobs):
        engine.add_request(prompt_of(size, id), length(amount))
    steps = run(engine)
    expected = {id: continuation(prompt_of(size, id), amount) for id, (size, amount) in enumerate(jobs)}
    check_equal(answers_of(steps), expected, "tokens of each request")


# Task 8: how many drafts


def test_task_8_rates_move_towards_what_happened() -> None:
    acceptance = Acceptance([0.5, 0.5, 0.5])
    acceptance.record(3, 1)
    mistakes = {
        "what was not tried counts as rejected": [0.55, 0.45, 0.45],
        "the rejected draft is not counted": [0.55, 0.5, 0.5],
        "all drafts count as accepted or rejected together": [0.53, 0.53, 0.53],
    }
    found = [round(rate, 6) for rate in acceptance.rates]
    check_equal(found, [0.55, 0.45, 0.5], "rates after 1 of 3 drafts was accepted, from 0.5 each", mistakes)
    acceptance.record(2, 2)
    found = [round(rate, 6) for rate in acceptance.rates]
    check_equal(
        found, [0.595, 0.505, 0.5], "rates after 2 of 2 more", {"a third is counted": [0.595, 0.505, 0.45]}
    )
    acceptance.record(0, 0)
    check_equal([round(rate, 6) for rate in acceptance.rates], found, "rates after a step without drafts")


def test_task_8_a_draft_survives_only_with_all_before_it() -> None:
    acceptance = Acceptance([0.8, 0.5, 0.5])
    mistakes = {"the rate of each alone": [0.8, 0.5, 0.5]}
    check_equal(
        [round(p, 6) for p in acceptance.survival],
        [0.8, 0.4, 0.2],
        "survival for rates 0.8, 0.5, 0.5",
        mistakes,
    )
    check_equal(acceptance.rates, [0.8, 0.5, 0.5], "rates afterwards")
    check_equal(Acceptance([]).survival, [], "survival without positions")


def test_task_8_two_sequences_share_no_rates() -> None:
    rates = [0.5, 0.5]
    first, second = Acceptance(rates), Acceptance(rates)
    first.record(2, 2)
    check_equal(
        (second.rates, rates), ([0.5, 0.5], [0.5, 0.5]), "rates of the other, and the list they came from"
    )


def best_by_trying(
    survival: dict[int, list[float]], step_seconds: float, row_seconds: float, pass_seconds: float
) -> float:
    """The most tokens per second of all choices."""
    best = 0.0
    for lengths in product(*(range(len(each) + 1) for each in survival.values())):
        tokens = len(survival) + sum(
            sum(each[:length]) for each, length in zip(survival.values(), lengths, strict=True)
        )
        seconds = step_seconds + sum(lengths) * row_seconds + max(lengths) * pass_seconds
        best = max(best, tokens / seconds)
    return best


@pytest.mark.parametrize(
    ("row_seconds", "expected"), [(0.0, [3, 3]), (0.1, [3, 1]), (0.2, [2, 0]), (0.3, [1, 0]), (0.5, [0, 0])]
)
def test_task_8_drafts_are_chosen_across_sequences(row_seconds: float, expected: list[int]) -> None:
    survival = {0: [0.9, 0.6, 0.5], 1: [0.4, 0.2, 0.1]}
    found = best_num_drafts(survival, 1.0, row_seconds)
    mistakes = {"as many as there are": [3, 3], "one for each": [1, 1], "drafts although none pays": [1, 0]}
    mistakes = {name: wrong for name, wrong in mistakes.items() if wrong != expected}
    what = f"drafts of two sequences if a step takes 1 s and a row {row_seconds} s"
    check_equal([found[0], found[1]], expected, what, mistakes)


@pytest.mark.parametrize(("pass_seconds", "expected"), [(0.0, 3), (0.3, 2), (0.5, 1), (1.0, 0)])
def test_task_8_a_pass_computes_the_drafts_of_all(pass_seconds: float, expected: int) -> None:
    survival = {id: [0.7, 0.5, 0.3] for id in range(4)}
    found = best_num_drafts(survival, 1.0, 0.01, pass_seconds)
    mistakes = {"passes cost nothing": dict.fromkeys(range(4), 3)} if expected != 3 else {}
    what = f"drafts of four sequences if a step takes 1 s and a pass of the draft model {pass_seconds} s"
    check_equal(found, dict.fromkeys(range(4), expected), what, mistakes)


def test_task_8_a_step_without_sequences_has_no_drafts() -> None:
    check_equal(best_num_drafts({}, 1.0, 0.01, 0.1), {}, "drafts")
    check_equal(best_num_drafts({3: []}, 1.0, 0.01), {3: 0}, "drafts of a sequence for which none were found")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(st.floats(0.01, 1), max_size=3), min_size=1, max_size=3),
    st.floats(0, 1.5),
    st.sampled_from([0.0, 0.05, 0.4]),
)
def test_task_8_no_other_choice_yields_more(
    rates: list[list[float]], row_seconds: float, pass_seconds: float
) -> None:
    survival = {id: Acceptance(each).survival for id, each in enumerate(rates)}
    chosen = best_num_drafts(survival, 1.0, row_seconds, pass_seconds)
    tokens = len(survival) + sum(sum(each[: chosen[id]]) for id, each in survival.items())
    seconds = 1.0 + sum(chosen.values()) * row_seconds + max(chosen.values()) * pass_seconds
    best = best_by_trying(survival, 1.0, row_seconds, pass_seconds)
    assert tokens / seconds >= best * (1 - 1e-9), (
        f"{chosen} drafts yield {tokens / seconds:.4f} tokens per second, another choice yields {best:.4f}; "
        f"survival {survival}, a row {row_seconds} s, a pass {pass_seconds} s"
    )


def test_task_8_where_drafts_are_never_right_hardly_any_are_computed() -> None:
    def drafts_of(cost: DraftCost, mistakes_at: Items[int]) -> list[int]:
        oracle = Oracle(4, mistakes_at)
        engine = speculative_engine(AdaptiveDrafter(oracle, cost), 40)
        engine.add_request(prompt_of(5), length(40))
        steps = run(engine)
        check_equal(answers_of(steps), {0: continuation(prompt_of(5), 40)}, "tokens")
        return [len(entry.draft_ids) for step in steps for entry in step.scheduled.final]

    cheap, dear = DraftCost({1: CostModel(1.0, 0.01)}), DraftCost({1: CostModel(0.0, 1.0)})
    assert max(drafts_of(cheap, ())) == 4, "right drafts in nearly free rows should be computed"
    wrong = drafts_of(cheap, range(64))
    assert sum(wrong[-10:]) < sum(wrong[:10]), f"drafts that are always wrong are still computed: {wrong}"
    later = sum(drafts_of(dear, range(64))[1:])  # beside the prompt's tokens, a few more are cheap
    check_equal(later, 0, "drafts of the decodes, where a row costs as much as a step")
