"""Week 3, day 2: paged keys and values."""

import sys
from collections.abc import Callable
from collections.abc import Sequence as Items
from functools import partial
from types import FrameType
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.attentions import Boundary, at_every_boundary, check_boundary
from tests.support.batching import keys_and_values, peak_bytes, small_model
from tests.support.causes import NOT_TO_BE_READ
from tests.support.check import check_close, check_equal, check_value_error, normal
from tests.support.fakes import FakeModel, ModelFailureError, continuation, prompt_of
from tests.support.pages import (
    SharingBlocks,
    SpyBlocks,
    append,
    caches_of,
    check_all_free,
    check_counts,
    compute,
    generate,
    hold_by_hand,
    sequence_of,
    state_of,
)
from tests.support.state import is_of_package
from tiny_llm import (
    BlockManager,
    CostModel,
    PagedKvCache,
    PagedKvPool,
    SchedulerConfig,
    Sequence,
    SimulatedRequest,
    Simulator,
    TinyKvFullCache,
)
from tiny_llm.ops.attention import Mask, scaled_dot_product_attention_grouped
from tiny_llm.paging.paged_kv_cache import slot_mapping

H, D = 2, 5


# Task 1: blocks and slots


@pytest.mark.parametrize(
    ("num_tokens", "expected"), [(0, 0), (1, 1), (6, 1), (7, 1), (8, 2), (14, 2), (15, 3), (700, 100)]
)
def test_task_1_blocks_that_tokens_fill(num_tokens: int, expected: int) -> None:
    mistakes = {"full blocks alone": num_tokens // 7, "one block too many": num_tokens // 7 + 1}
    found = BlockManager(3, 7).num_blocks_for(num_tokens)
    check_equal(found, expected, f"blocks of 7 for {num_tokens} tokens", mistakes)


def test_task_1_a_block_of_one_token() -> None:
    check_equal(BlockManager(3, 1).num_blocks_for(5), 5, "blocks of 1 for 5 tokens")


@pytest.mark.parametrize(("length", "most"), [(3, 13), (12, 13), (13, 13), (1, 16)])
def test_task_1_what_can_never_run_is_refused(length: int, most: int) -> None:
    with check_value_error(id=29, max_num_tokens=most, num_blocks=3):
        BlockManager(3, 4).check_fits(sequence_of(29, length, most))


@pytest.mark.parametrize(("length", "most"), [(1, 1), (3, 12), (12, 12), (9, 11)])
def test_task_1_what_fits_alone_is_taken(length: int, most: int) -> None:
    blocks = BlockManager(3, 4)
    hold_by_hand(blocks, sequence_of(5, 4), 3)
    blocks.check_fits(sequence_of(29, length, most))


@pytest.mark.parametrize(
    ("start", "num_tokens", "expected"),
    [
        (0, 3, [15, 16, 17]),
        (0, 1, [15]),
        (2, 2, [17, 6]),
        (1, 7, [16, 17, 6, 7, 8, 12, 13]),
        (3, 3, [6, 7, 8]),
        (8, 1, [14]),
        (0, 9, [15, 16, 17, 6, 7, 8, 12, 13, 14]),
        (4, 0, []),
    ],
)
def test_task_1_the_slots_of_tokens(start: int, num_tokens: int, expected: list[int]) -> None:
    found = slot_mapping([5, 2, 4], 3, start, num_tokens)
    positions = list(range(start, start + num_tokens))
    mistakes = {
        "the positions themselves: the table is not used": positions,
        "where each block starts, without the place in it": [
            3 * [5, 2, 4][position // 3] for position in positions
        ],
        "the slots from the first token on": [15, 16, 17, 6, 7, 8, 12, 13, 14][:num_tokens],
    }
    what = f"slots of {num_tokens} tokens from {start} on, in blocks 5, 2, 4 of 3"
    check_equal(found.tolist(), expected, what, mistakes)


def test_task_1_slots_are_whole_numbers_that_a_graph_can_take() -> None:
    check_equal(slot_mapping([5, 2], 3, 0, 4).dtype, np.dtype(np.int32), "dtype of the slots")


@pytest.mark.parametrize(
    ("start", "num_tokens"), [(0, 10), (9, 1), (4, 6), (-1, 3), (2, -1), (-1, 0), (10, 0)]
)
def test_task_1_tokens_without_a_slot_are_refused(start: int, num_tokens: int) -> None:
    with check_value_error(start=start, end=start + num_tokens, **{"len(block_ids)": 3}):
        slot_mapping([5, 2, 4], 3, start, num_tokens)


def test_task_1_no_block_has_no_slot() -> None:
    check_equal(slot_mapping([], 3, 0, 0).tolist(), [], "slots of no token without a block")
    with check_value_error(start=0, end=1, **{"len(block_ids)": 0}):
        slot_mapping([], 3, 0, 1)


def num_instructions(compute: Callable[[], object]) -> int:
    """How many instructions of the package's Python a computation takes; what NumPy does is one."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode" and is_of_package(frame.f_globals.get("__name__", ""))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        compute()
    finally:
        sys.settrace(before)
    return count


def test_task_1_slots_are_not_looked_up_token_by_token() -> None:
    table = list(range(400))[::-1]
    few, many = (num_instructions(lambda n=n: slot_mapping(table, 16, 0, n)) for n in (64, 6400))
    if many > 2 * few:
        pytest.fail(
            f"the slots of 64 tokens take {few} instructions of Python, those of 6,400 take {many}: "
            "work on all positions at once, as arrays"
        )


# Task 2: growing and giving back


def test_task_2_growing_appends_blocks_that_are_in_no_table() -> None:
    blocks = BlockManager(7, 3)
    first, second = (hold_by_hand(blocks, sequence_of(id, 3), 1) for id in (0, 1))
    blocks.grow(first, 2)
    blocks.grow(second, 1)
    blocks.grow(first, 0)
    blocks.grow(first, -1)
    check_counts(blocks)
    check_equal([len(each.block_ids) for each in (first, second)], [3, 2], "blocks of both tables")
    held = first.block_ids + second.block_ids
    check_equal(len(set(held)), 5, "different blocks in both tables")


def test_task_2_growing_leaves_what_is_there_in_place() -> None:
    blocks = BlockManager(7, 3)
    table = hold_by_hand(blocks, sequence_of(0, 3), 2)
    before = list(table.block_ids)
    same_list = table.block_ids
    blocks.grow(table, 2)
    check_equal(table.block_ids[:2], before, "the first two blocks of a table that grew by two")
    check_equal(table.block_ids is same_list, True, "the table's own list grew")


def test_task_2_growing_uses_up_the_reservation() -> None:
    blocks = BlockManager(11, 3)
    first, second = (
        hold_by_hand(blocks, sequence_of(0, 3), 1, 3),
        hold_by_hand(blocks, sequence_of(1, 3), 1, 2),
    )
    blocks.grow(first, 2)
    seen = (first.num_reserved, second.num_reserved, blocks.num_reserved)
    mistakes = {
        "the reservation still open for blocks that were given": (3, 2, 5),
        "the table's reservation used up, the manager's not": (1, 2, 5),
    }
    check_equal(seen, (1, 2, 3), "reserved for both and in all after two blocks", mistakes)
    blocks.grow(first, 2)
    seen = (first.num_reserved, second.num_reserved, blocks.num_reserved)
    check_equal(seen, (0, 2, 2), "reserved for both and in all after two more, one of them beyond")
    check_counts(blocks)


def test_task_2_a_running_sequence_gets_blocks_when_it_needs_them() -> None:
    blocks = BlockManager(9, 4)
    sequence = sequence_of(3, 21)
    table = hold_by_hand(blocks, sequence, 1)
    seen = []
    for computed, num_tokens in ((0, 3), (3, 1), (4, 1), (5, 6), (11, 6), (17, 1), (18, 2), (20, 1)):
        sequence.num_computed_tokens = computed
        check_equal(blocks.allocate(sequence, num_tokens), True, f"allocate {num_tokens} behind {computed}")
        seen.append(len(table.block_ids))
    mistakes = {"blocks for the new tokens alone, wherever they start": [1, 2, 3, 5, 7, 8, 9, 10]}
    check_equal(seen, [1, 1, 2, 3, 5, 5, 5, 6], "blocks after each call", mistakes)
    check_counts(blocks)


def test_task_2_room_is_behind_what_is_computed_and_not_behind_what_is_there() -> None:
    blocks = BlockManager(9, 4)
    sequence = sequence_of(3, 30, computed=4)
    table = hold_by_hand(blocks, sequence, 1)
    check_equal(blocks.allocate(sequence, 5), True, "allocate 5 behind 4 computed of 30")
    mistakes = {"room behind all 30 tokens": 9, "room for the 5 alone": 2}
    check_equal(len(table.block_ids), 3, "blocks after it", mistakes)


@pytest.mark.parametrize("num_tokens", [9, 13, 1000])
def test_task_2_without_room_nothing_changes(num_tokens: int) -> None:
    blocks = BlockManager(7, 4)
    sequence = sequence_of(3, 1100, computed=8)
    hold_by_hand(blocks, sequence, 2)
    hold_by_hand(blocks, sequence_of(4, 9), 3)
    before = state_of(blocks)
    check_equal(blocks.allocate(sequence, num_tokens), False, f"allocate {num_tokens} with two blocks free")
    what = "tables, ref_counts, reserved and free blocks after a refusal"
    check_equal(state_of(blocks), before, what)
    check_equal(blocks.allocate(sequence, 8), True, "allocate 8, which is both blocks")
    check_equal(blocks.num_free_blocks, 0, "free blocks then")


def test_task_2_what_is_reserved_for_others_is_not_given_away() -> None:
    blocks = BlockManager(7, 4)
    first, second = sequence_of(0, 50, computed=4), sequence_of(1, 50, computed=4)
    hold_by_hand(blocks, first, 1, num_reserved=3)
    hold_by_hand(blocks, second, 1)
    before = state_of(blocks)
    mistakes = {"giving away what was reserved for another": True}
    given = blocks.allocate(second, 12)
    check_equal(given, False, "3 blocks for one without a reservation: 5 free, 3 reserved", mistakes)
    check_equal(state_of(blocks), before, "the state after it")
    check_equal(blocks.allocate(second, 8), True, "2 blocks for it")
    check_equal(blocks.allocate(first, 12), True, "3 blocks for the one they were reserved for")
    check_counts(blocks)
    check_equal((blocks.num_reserved, blocks.num_free_blocks), (0, 0), "reserved and free blocks at the end")


def test_task_2_a_reservation_and_what_is_free_beside_it() -> None:
    blocks = BlockManager(7, 4)
    sequence = sequence_of(0, 50, computed=4)
    hold_by_hand(blocks, sequence, 1, num_reserved=3)
    check_equal(blocks.allocate(sequence, 24), True, "all 6 free blocks, 3 of them reserved for it")
    check_equal((blocks.num_reserved, blocks.num_free_blocks), (0, 0), "reserved and free blocks")


def test_task_2_fewer_tokens_than_there_is_room_for() -> None:
    blocks = BlockManager(7, 4)
    sequence = sequence_of(0, 50, computed=2)
    hold_by_hand(blocks, sequence, 3, num_reserved=2)
    before = state_of(blocks)
    for num_tokens in (0, 1, 5):
        check_equal(
            blocks.allocate(sequence, num_tokens), True, f"allocate {num_tokens} behind 2, in 3 blocks"
        )
    check_equal(state_of(blocks), before, "the state after it")


def test_task_2_without_a_table_the_answer_is_that_of_admit(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks, sequence = BlockManager(7, 4), sequence_of(0, 50)
    monkeypatch.setattr(blocks, "admit", lambda sequence, num_tokens: f"admit {num_tokens}")
    answers = [blocks.allocate(sequence, num_tokens) for num_tokens in (3, 0)]
    check_equal(answers, ["admit 3", "admit 0"], "answers for 3 and 0 tokens of a sequence without a table")


def test_task_2_a_negative_number_of_tokens_is_an_error() -> None:
    blocks = BlockManager(7, 4)
    for id, num_blocks in ((0, 3), (1, 0)):
        sequence = sequence_of(id, 50, computed=2)
        if num_blocks:
            hold_by_hand(blocks, sequence, num_blocks)
        before = state_of(blocks)
        with check_value_error(num_tokens=-1):
            blocks.allocate(sequence, -1)
        check_equal(state_of(blocks), before, "the state after the error")


def test_task_2_who_leaves_gives_back_blocks_and_reservation() -> None:
    blocks = BlockManager(11, 4)
    sequences = [sequence_of(id, 5) for id in range(3)]
    tables = [hold_by_hand(blocks, each, 2 + each.id, num_reserved=each.id) for each in sequences]
    kept = [list(tables[0].block_ids), list(tables[2].block_ids)]
    blocks.free(sequences[1])
    check_equal(sorted(blocks.tables), [0, 2], "ids in tables")
    check_equal([tables[0].block_ids, tables[2].block_ids], kept, "blocks of the others")
    check_equal((blocks.num_free_blocks, blocks.num_reserved), (5, 2), "free and reserved blocks")
    check_counts(blocks)
    for sequence in (sequences[2], sequences[0]):
        blocks.free(sequence)
    check_all_free(blocks)


def test_task_2_freeing_twice_is_an_error() -> None:
    blocks = BlockManager(7, 4)
    sequence, other = sequence_of(23, 5), sequence_of(29, 5)
    hold_by_hand(blocks, sequence, 2)
    hold_by_hand(blocks, other, 1)
    blocks.free(sequence)
    before = state_of(blocks)
    for _ in range(2):
        with check_value_error(id=23):
            blocks.free(sequence)
    check_equal(state_of(blocks), before, "the state after the error")


def test_task_2_a_block_is_free_when_the_last_who_holds_it_leaves() -> None:
    blocks = BlockManager(7, 4)
    sequences = [sequence_of(id, 9) for id in range(3)]
    tables = [hold_by_hand(blocks, each, 1) for each in sequences]
    shared = blocks.take()
    for table in tables:
        blocks.hold(shared)
        table.block_ids.insert(0, shared)
    seen = []
    for sequence in sequences:
        seen.append((blocks.ref_counts[shared], blocks.num_free_blocks))
        blocks.free(sequence)
    mistakes = {
        "a block that others hold put back": [(3, 3), (2, 5), (1, 7)],
        "a count of 1 taken for free": [(3, 3), (2, 4), (1, 6)],
    }
    check_equal(seen, [(3, 3), (2, 4), (1, 5)], "references of the shared block, and free blocks", mistakes)
    check_all_free(blocks)


def test_task_2_the_last_block_of_a_table_is_put_back_first() -> None:
    class Listening(BlockManager):
        def __init__(self) -> None:
            super().__init__(7, 4)
            self.back: list[int] = []

        def put_back(self, block: int) -> None:
            self.back.append(block)
            super().put_back(block)

    blocks = Listening()
    sequence = sequence_of(0, 9)
    held = list(hold_by_hand(blocks, sequence, 3).block_ids)
    blocks.free(sequence)
    check_equal(blocks.back, held[::-1], "blocks in the order in which they were put back")


# Task 3: admission


def test_task_3_a_new_sequence_gets_blocks_for_its_first_chunk() -> None:
    blocks = BlockManager(11, 4)
    check_equal(blocks.admit(sequence_of(13, 17), 6), True, "admit 6 of 17 tokens to an empty pool")
    check_equal(list(blocks.tables), [13], "ids in tables")
    table = blocks.tables[13]
    mistakes = {"blocks for the whole prompt at once": 5, "full blocks alone": 1}
    check_equal(len(table.block_ids), 2, "blocks of its table", mistakes)
    check_equal(table.num_stored_tokens, 0, "num_stored_tokens, as nothing is shared")
    check_counts(blocks)


@pytest.mark.parametrize(("chunk", "reserved"), [(1, 6), (4, 6), (5, 5), (17, 2), (25, 0)])
def test_task_3_all_that_it_may_come_to_need_is_reserved(chunk: int, reserved: int) -> None:
    blocks = BlockManager(11, 4)
    blocks.allocate(sequence_of(0, 17, most=25), chunk)
    held = blocks.num_blocks_for(chunk)
    seen = (len(blocks.tables[0].block_ids), blocks.tables[0].num_reserved, blocks.num_reserved)
    mistakes = {
        "nothing reserved": (held, 0, 0),
        "the prompt reserved and no answer": (held, 5 - held, 5 - held),
        "what it holds reserved once more": (held, 7, 7),
        "a reservation that the manager does not count": (held, reserved, 0),
    }
    what = f"blocks, reserved for it and in all, for {chunk} of 17 tokens that may become 25"
    check_equal(seen, (held, reserved, reserved), what, mistakes)
    check_counts(blocks)


def test_task_3_who_is_not_there_is_admitted_by_allocate() -> None:
    blocks = BlockManager(11, 4)
    sequence = sequence_of(0, 17, most=25)
    seen = []
    for num_tokens in (7, 7, 3, 1, 7):
        check_equal(blocks.allocate(sequence, num_tokens), True, f"allocate {num_tokens}")
        sequence.num_computed_tokens += num_tokens
        seen.append((len(blocks.tables[0].block_ids), blocks.num_reserved))
    expected = [(2, 5), (4, 3), (5, 2), (5, 2), (7, 0)]
    check_equal(seen, expected, "blocks, and reserved blocks, after each call")


def test_task_3_without_room_for_the_reservation_nothing_changes() -> None:
    blocks = BlockManager(11, 4)
    blocks.admit(sequence_of(0, 17, most=25), 6)
    before = state_of(blocks)
    mistakes = {"looking at the free blocks alone, or at the chunk alone": True}
    admitted = blocks.admit(sequence_of(1, 3, most=17), 3)
    check_equal(admitted, False, "admit one of 5 blocks: 9 free, 5 of them reserved", mistakes)
    check_equal(state_of(blocks), before, "tables, ref_counts, reserved and free blocks after a refusal")
    check_equal(blocks.admit(sequence_of(1, 3, most=16), 3), True, "admit one of 4 blocks")
    check_equal((blocks.num_free_blocks, blocks.num_reserved), (8, 8), "free and reserved blocks")
    check_equal(blocks.admit(sequence_of(2, 1), 1), False, "admit one of 1 block: all are reserved")
    check_counts(blocks)


def test_task_3_who_was_refused_is_admitted_later() -> None:
    blocks = BlockManager(5, 4)
    first, second = sequence_of(0, 9), sequence_of(1, 11)
    check_equal(blocks.admit(first, 9), True, "the first")
    check_equal(blocks.admit(second, 11), False, "the second beside it")
    blocks.free(first)
    check_equal(blocks.admit(second, 11), True, "the second once the first has left")
    check_equal(sorted(blocks.tables), [1], "ids in tables")


def test_task_3_a_step_may_need_more_than_the_reservation() -> None:
    blocks = BlockManager(5, 4)
    check_equal(blocks.admit(sequence_of(0, 3, most=4), 9), True, "9 tokens of one that may have 4")
    check_equal((len(blocks.tables[0].block_ids), blocks.num_reserved), (3, 0), "its blocks, and reserved")
    before = state_of(blocks)
    check_equal(blocks.admit(sequence_of(1, 3, most=4), 9), False, "the same beside it, with 2 blocks free")
    check_equal(state_of(blocks), before, "the state after it")


def test_task_3_shared_blocks_come_first_and_are_held_by_both() -> None:
    blocks = SharingBlocks(11, 4)
    blocks.admit(sequence_of(0, 11), 11)
    owned = blocks.tables[0].block_ids
    blocks.shared = owned[:2]
    check_equal(blocks.admit(sequence_of(1, 14, most=21), 6), True, "admit 6 behind 8 shared tokens")
    table = blocks.tables[1]
    check_equal(table.block_ids[:2], owned[:2], "the first two blocks of the second")
    seen = (len(table.block_ids), table.num_reserved, table.num_stored_tokens)
    mistakes = {
        "the tokens laid from the start on, as if nothing were shared": (2, 4, 8),
        "new blocks for what is shared as well": (6, 2, 8),
        "shared blocks reserved once more": (4, 4, 8),
    }
    check_equal(seen, (4, 2, 8), "its blocks, reserved blocks and num_stored_tokens", mistakes)
    check_equal([blocks.ref_counts[block] for block in owned], [2, 2, 1], "references of the first's blocks")
    check_counts(blocks)
    blocks.free(sequence_of(0, 11))
    check_equal(blocks.num_free_blocks, 11 - 4, "free blocks when the first has left")
    check_counts(blocks)


def test_task_3_all_tokens_shared_but_the_last_is_computed() -> None:
    blocks = SharingBlocks(11, 4)
    blocks.admit(sequence_of(0, 8), 8)
    blocks.shared = list(blocks.tables[0].block_ids)
    sequence = sequence_of(1, 8)
    check_equal(blocks.find_prefix(sequence), 7, "find_prefix of a prompt that is shared whole")
    check_equal(blocks.admit(sequence, 1), True, "admit its last token")
    seen = (blocks.tables[1].block_ids, blocks.tables[1].num_stored_tokens, blocks.num_reserved)
    check_equal(seen, (blocks.shared, 8, 0), "its blocks, num_stored_tokens, and reserved blocks")
    check_counts(blocks)


def test_task_3_tables_are_lists_of_their_own() -> None:
    blocks = SharingBlocks(11, 4)
    for id in (0, 1):
        blocks.admit(sequence_of(id, 9), 9)
        check_equal(blocks.shared, [], "the list that find_shared_blocks returned")
    check_counts(blocks)
    blocks.shared = blocks.tables[0].block_ids
    blocks.admit(sequence_of(2, 14), 1)
    mistakes = {"the blocks of the new one, appended to the other's own list": 4}
    check_equal(len(blocks.tables[0].block_ids), 3, "blocks of the sequence that shares", mistakes)


def test_task_3_a_refusal_holds_no_shared_block() -> None:
    blocks = SharingBlocks(5, 4)
    blocks.admit(sequence_of(0, 11), 11)
    blocks.shared = list(blocks.tables[0].block_ids)
    before = state_of(blocks)
    check_equal(blocks.admit(sequence_of(1, 14, most=21), 1), False, "3 blocks beside 3 shared, 2 are free")
    check_equal(state_of(blocks), before, "tables, ref_counts, reserved and free blocks after a refusal")


def test_task_3_a_shared_block_in_no_table_is_one_of_the_free_ones() -> None:
    class Keeping(SharingBlocks):
        """Counts blocks that it keeps among the free ones."""

        @property
        def num_available_blocks(self) -> int:
            return super().num_available_blocks + sum(self.ref_counts[block] == 0 for block in self.shared)

    blocks = Keeping(5, 4)
    blocks.shared = [blocks.take(), blocks.take()]
    check_equal(blocks.admit(sequence_of(0, 9, most=21), 1), False, "4 blocks beside 2 kept, 3 are free")
    check_counts(blocks)
    check_equal(blocks.admit(sequence_of(0, 9, most=20), 1), True, "3 blocks beside 2 kept, 3 are free")
    check_counts(blocks)


@pytest.mark.parametrize(("length", "most", "expected"), [(5, 40, (1, 1)), (8, 9, (1, 1)), (9, 40, (1, 2))])
def test_task_3_overcommitting_reserves_what_is_there(
    length: int, most: int, expected: tuple[int, int]
) -> None:
    blocks = BlockManager(7, 4, overcommit=True)
    check_equal(
        blocks.admit(sequence_of(0, length, most), 3), True, f"{length} tokens that may become {most}"
    )
    seen = (len(blocks.tables[0].block_ids), blocks.num_reserved)
    check_equal(seen, expected, "its blocks and its reservation")


def test_task_3_a_watermark_is_left_alone_unless_no_sequence_is_admitted() -> None:
    blocks = BlockManager(10, 4, watermark=0.39)
    check_equal(blocks.admit(sequence_of(0, 20), 20), True, "5 blocks, with 3 of 10 to be left")
    check_equal(blocks.admit(sequence_of(1, 9), 9), False, "3 more, with 5 free")
    check_equal(blocks.admit(sequence_of(1, 8), 8), True, "2 more, with 5 free")
    for id in (0, 1):
        blocks.free(sequence_of(id, 20))
    check_equal(blocks.admit(sequence_of(2, 40), 40), True, "all 10, when no sequence is admitted")


@pytest.mark.parametrize(
    "wrong", [{"num_blocks": 0}, {"num_blocks": -1}, {"block_size": 0}, {"block_size": -2}], ids=str
)
def test_task_3_a_pool_of_nothing_is_an_error(wrong: dict[str, int]) -> None:
    sizes = {"num_blocks": 3, "block_size": 4, **wrong}
    with check_value_error(**wrong):
        BlockManager(**sizes)
    with check_value_error(**wrong):
        PagedKvPool(2, **sizes)
    check_equal(BlockManager(1, 1).admit(sequence_of(0, 1), 1), True, "a token in a pool of one block of one")


@pytest.mark.parametrize("watermark", [-0.1, 1.0, 3])
def test_task_3_a_watermark_that_is_no_share_is_an_error(watermark: float) -> None:
    with check_value_error(watermark=watermark):
        BlockManager(3, 4, watermark=watermark)
    blocks = BlockManager(3, 4, watermark=0.99)
    check_equal(blocks.admit(sequence_of(0, 1), 1), True, "a token in an empty pool, whatever the watermark")


def simulated(blocks: BlockManager, requests: Items[SimulatedRequest], **limits: Any) -> Simulator:
    """The scheduler with these blocks, until every request has its tokens."""
    simulator = Simulator(SchedulerConfig(**limits), CostModel(1.0, 0.0), blocks)
    for request in requests:
        simulator.add(request)
    while simulator.scheduler.has_work:
        if len(simulator.steps) == 500:
            pytest.fail("there is still work after 500 steps")
        simulator.step()
    return simulator


def entries_of(simulator: Simulator) -> list[list[tuple[int, int, int]]]:
    """(id, start, num_tokens) of each entry of each step."""
    return [
        [(entry.sequence.id, entry.start, entry.num_tokens) for entry in step.output.entries]
        for step in simulator.steps
    ]


def request_of(length: int, num_outputs: int, most: int | None = None) -> SimulatedRequest:
    return SimulatedRequest(tuple(prompt_of(length)), num_outputs, max_tokens=most)


def test_task_3_a_sequence_without_blocks_waits_and_none_overtakes() -> None:
    blocks = SpyBlocks(4, 4)
    requests = [request_of(5, 3), request_of(9, 2), request_of(2, 1)]
    simulator = simulated(blocks, requests, max_num_batched_tokens=32, max_num_seqs=3)
    expected = [
        [(0, 0, 5)],
        [(0, 5, 1)],
        [(0, 6, 1)],
        [(1, 0, 9), (2, 0, 2)],
        [(1, 9, 1)],
    ]
    at_once = [[(0, 0, 5), (1, 0, 9), (2, 0, 2)], [(0, 5, 1), (1, 9, 1)], [(0, 6, 1)]]
    mistakes = {"all admitted at once, without blocks for their answers": at_once}
    check_equal(entries_of(simulator), expected, "(id, start, num_tokens) of each step", mistakes)
    check_all_free(blocks)


def test_task_3_a_reservation_for_the_longest_answer_makes_others_wait() -> None:
    requests = [request_of(5, 1, most=11), request_of(5, 1, most=11)]
    limits = {"max_num_batched_tokens": 32, "max_num_seqs": 3}
    seen = [len(simulated(BlockManager(num_blocks, 4), requests, **limits).steps) for num_blocks in (7, 8)]
    check_equal(seen, [2, 1], "steps with 7 blocks and with 8, for two that may need 4 and end early")


@settings(max_examples=60, deadline=None)
@given(
    jobs=st.lists(
        st.tuples(st.integers(1, 30), st.integers(1, 12), st.integers(0, 9)), min_size=1, max_size=9
    ),
    block_size=st.integers(1, 7),
    num_spare=st.integers(0, 12),
    budget=st.integers(4, 40),
    max_num_seqs=st.integers(1, 4),
)
def test_task_3_who_runs_is_never_refused(
    jobs: list[tuple[int, int, int]], block_size: int, num_spare: int, budget: int, max_num_seqs: int
) -> None:
    longest = max(length + outputs + more for length, outputs, more in jobs)
    blocks = SpyBlocks(-(-longest // block_size) + num_spare, block_size)
    requests = [request_of(length, outputs, outputs + more) for length, outputs, more in jobs]
    simulated(blocks, requests, max_num_batched_tokens=budget, max_num_seqs=max_num_seqs)
    refused = [id for id, is_admission, is_met in blocks.asked if not is_met and not is_admission]
    check_equal(refused, [], "sequences refused while they ran")
    check_all_free(blocks)
    admitted = [id for id, is_admission, is_met in blocks.asked if is_met and is_admission]
    check_equal(admitted, list(range(len(jobs))), "sequences in the order of their admission")


def test_task_3_abort_after_every_step_leaves_nothing() -> None:
    requests = [request_of(11, 3, 5), request_of(2, 7), request_of(13, 2, 9), request_of(3, 3)]
    limits = SchedulerConfig(8, 3)
    for id in range(len(requests)):
        for num_steps in range(14):
            blocks = SpyBlocks(7, 4)
            simulator = Simulator(limits, CostModel(1.0, 0.0), blocks)
            for request in requests:
                simulator.add(request)
            for _ in range(num_steps):
                if simulator.scheduler.has_work:
                    simulator.step()
            if id in simulator.scheduler.sequences:
                simulator.scheduler.remove(id)
            check_counts(blocks)
            check_equal(
                id in blocks.tables, False, f"request {id} holds blocks, aborted after {num_steps} steps"
            )
            while simulator.scheduler.has_work:
                simulator.step()
            check_all_free(blocks)


def test_task_3_a_step_that_fails_leaves_nothing_behind() -> None:
    for fail_at in range(9):
        blocks = SpyBlocks(7, 4)
        simulator = Simulator(SchedulerConfig(8, 3), CostModel(1.0, 0.0), blocks)
        for request in (request_of(11, 3, 5), request_of(2, 4), request_of(13, 2, 9)):
            simulator.add(request)
        for _ in range(fail_at):
            simulator.step()
        simulator.scheduler.schedule()  # and the model fails
        check_counts(blocks)
        for id in list(simulator.scheduler.sequences):
            simulator.scheduler.remove(id)
        check_all_free(blocks)


class PaperBlocks:
    """Whether there is room, by counting blocks: an account of each sequence, and nothing else."""

    def __init__(self, num_blocks: int, block_size: int, overcommit: bool) -> None:
        self.num_blocks, self.block_size, self.overcommit = num_blocks, block_size, overcommit
        self.held: dict[int, int] = {}
        self.claimed: dict[int, int] = {}  # held or reserved

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        wanted = -(-(sequence.num_computed_tokens + num_tokens) // self.block_size)
        if sequence.id not in self.held:
            lasting = sequence.num_tokens if self.overcommit else sequence.max_num_tokens
            claim = max(wanted, -(-lasting // self.block_size))
        else:
            claim = max(wanted, self.claimed[sequence.id])
        others = sum(claimed for id, claimed in self.claimed.items() if id != sequence.id)
        if claim + others > self.num_blocks:
            return False
        self.claimed[sequence.id] = claim
        self.held[sequence.id] = max(wanted, self.held.get(sequence.id, 0))
        return True

    def free(self, sequence: Sequence) -> None:
        del self.held[sequence.id], self.claimed[sequence.id]


def check_room_is_held(blocks: BlockManager, sequence: Sequence) -> None:
    """Fail unless to ask for all that there is room for changes nothing."""
    __tracebackhide__ = True
    before = state_of(blocks)
    room = len(blocks.tables[sequence.id].block_ids) * blocks.block_size
    num_more = room - sequence.num_computed_tokens
    what = f"room for {num_more} tokens more, in blocks that it has"
    check_equal(blocks.allocate(sequence, num_more), True, what)
    check_equal(state_of(blocks), before, "the state after it asked for room that it has")


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_task_3_any_order_of_growing_and_leaving(data: st.DataObject) -> None:
    num_blocks, block_size = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 5))
    overcommit = data.draw(st.booleans())
    blocks = BlockManager(num_blocks, block_size, overcommit)
    paper = PaperBlocks(num_blocks, block_size, overcommit)
    sequences: dict[int, Sequence] = {}
    for _ in range(data.draw(st.integers(1, 25))):
        id = data.draw(st.integers(0, 4))
        if id not in sequences:
            length = data.draw(st.integers(1, 20))
            sequences[id] = sequence_of(id, length, length + data.draw(st.integers(0, 20)))
        sequence = sequences[id]
        before = state_of(blocks)
        if id in blocks.tables and data.draw(st.integers(0, 3)) == 0:
            blocks.free(sequence)
            paper.free(sequence)
            del sequences[id]
        else:
            num_tokens = data.draw(st.integers(0, 25))
            is_met = blocks.allocate(sequence, num_tokens)
            check_equal(is_met, paper.allocate(sequence, num_tokens), f"room for {num_tokens} tokens more")
            if is_met:
                sequence.num_computed_tokens += num_tokens
                check_room_is_held(blocks, sequence)
            else:
                check_equal(state_of(blocks), before, "the state after a refusal")
        check_counts(blocks)
        held = {id: len(table.block_ids) for id, table in blocks.tables.items()}
        check_equal(held, paper.held, "blocks held by each")
        for id, (block_ids, *_) in before[0].items():
            if id in blocks.tables:
                check_equal(blocks.tables[id].block_ids[: len(block_ids)], block_ids, "blocks held before")
    for id in list(blocks.tables):
        blocks.free(sequences[id])
    check_all_free(blocks)


# Task 4: the pool


def tokens_of(T: int, seed: int, dtype: mx.Dtype = mx.float32) -> tuple[mx.array, mx.array]:
    """Keys and values [T, H, D] that have nothing in common."""
    return normal(T, H, D, seed=2 * seed, dtype=dtype), normal(T, H, D, seed=2 * seed + 1, dtype=dtype)


def test_task_4_what_is_written_is_fetched() -> None:
    pool = PagedKvPool(2, 7, 3)
    key, value = tokens_of(4, seed=1)
    pool.write(1, key, value, mx.array([19, 2, 7, 8]))
    for slots, rows in (([19, 2, 7, 8], [0, 1, 2, 3]), ([8, 19], [3, 0]), ([7], [2])):
        keys, values = pool.fetch(1, mx.array(slots))
        mistakes = {"the values": value[mx.array(rows)]}
        check_close(keys, key[mx.array(rows)], f"keys of the slots {slots}", 0, mistakes)
        check_close(values, value[mx.array(rows)], f"values of the slots {slots}", 0)


def test_task_4_slots_of_any_shape_are_fetched() -> None:
    pool = PagedKvPool(1, 7, 3)
    key, value = tokens_of(4, seed=1)
    pool.write(0, key, value, mx.array([19, 2, 7, 8]))
    keys, values = pool.fetch(0, mx.array([[7, 8, 2], [2, 2, 19]]))
    rows = mx.array([[2, 3, 1], [1, 1, 0]])
    check_close(keys, key[rows], "keys of slots [2, 3]", 0)
    check_close(values, value[rows], "values of slots [2, 3]", 0)


def test_task_4_a_write_leaves_everything_else() -> None:
    pool = PagedKvPool(3, 5, 3)
    first, second, third = tokens_of(3, 1), tokens_of(2, 2), tokens_of(3, 3)
    pool.write(0, *first, mx.array([0, 5, 14]))
    pool.write(2, *third, mx.array([0, 5, 14]))
    pool.write(0, *second, mx.array([6, 5]))
    for held, new, index in zip(
        pool.fetch(0, mx.array([0, 14, 6, 5])), zip(first, second, strict=True), (0, 1), strict=True
    ):
        expected = mx.concatenate([new[0][0:1], new[0][2:3], new[1]])
        check_close(held, expected, f"{('keys', 'values')[index]} of layer 0 after a second write", 0)
    for held, new in zip(pool.fetch(2, mx.array([0, 5, 14])), third, strict=True):
        check_close(held, new, "what layer 2 holds", 0)


def test_task_4_what_store_rows_returns_is_kept() -> None:
    def store_in_a_copy(held: mx.array, slots: mx.array, new: mx.array) -> mx.array:
        copy = held + 0
        copy[slots] = new
        return copy

    pool = PagedKvPool(1, 5, 3, store_in_a_copy)
    first, second = tokens_of(2, 1), tokens_of(1, 2)
    pool.write(0, *first, mx.array([4, 9]))
    pool.write(0, *second, mx.array([9]))
    for held, old, new, name in zip(
        pool.fetch(0, mx.array([4, 9])), first, second, ("keys", "values"), strict=True
    ):
        mistakes = {"the arrays as they were: keep those that `store_rows` returns": mx.zeros_like(old)}
        check_close(held, mx.concatenate([old[:1], new]), f"{name} of slots 4 and 9", 0, mistakes)


def test_task_4_a_layer_s_arrays_are_made_once_and_have_a_null_slot() -> None:
    pool = PagedKvPool(2, 5, 3)
    check_equal(pool.state, [], "arrays before anything is written")
    pool.write(1, *tokens_of(2, 1, mx.float16), mx.array([4, 3]))
    shapes = [(x.shape, x.dtype) for x in pool.state]
    mistakes = {"arrays without a block for the null slot": [((15, H, D), mx.float16)] * 2}
    check_equal(
        shapes, [((18, H, D), mx.float16)] * 2, "shape and type of the arrays after a write", mistakes
    )
    pool.write(1, *tokens_of(1, 2, mx.float16), mx.array([pool.null_slot]))
    check_equal(
        [x.shape for x in pool.state], [(18, H, D)] * 2, "their shapes after a write to the null slot"
    )
    check_equal(float(mx.abs(pool.fetch(1, mx.arange(3))[0]).max().item()), 0.0, "what no one wrote to")


def test_task_4_the_null_slot_takes_many_at_once() -> None:
    pool = PagedKvPool(1, 5, 3)
    key, value = tokens_of(4, 1)
    pool.write(0, key, value, mx.array([pool.null_slot, 3, pool.null_slot, 4]))
    keys, values = pool.fetch(0, mx.array([3, 4]))
    check_close(keys, key[1::2], "keys beside those of the null slot", 0)
    check_close(values, value[1::2], "values beside those of the null slot", 0)


def test_task_4_heads_of_keys_and_values_may_differ_in_size() -> None:
    pool = PagedKvPool(1, 5, 3)
    key, value = normal(2, H, 7, seed=1), normal(2, H, 3, seed=2, dtype=mx.float16)
    pool.write(0, key, value, mx.array([4, 3]))
    keys, values = pool.blocks(0)
    check_equal((keys.shape, values.shape), ((6, 3, H, 7), (6, 3, H, 3)), "shapes of the blocks")
    check_equal((keys.dtype, values.dtype), (mx.float32, mx.float16), "types of the blocks")
    check_close(pool.fetch(0, mx.array([4, 3]))[1], value, "values", 0)


def test_task_4_blocks_are_slots_in_rows_of_a_block() -> None:
    pool = PagedKvPool(1, 5, 3)
    key, value = tokens_of(4, seed=1)
    pool.write(0, key, value, mx.array([7, 3, 14, 5]))
    keys, values = pool.blocks(0)
    check_equal([keys.shape, values.shape], [(6, 3, H, D)] * 2, "shapes of keys and values by block")
    for block, place, row in ((2, 1, 0), (1, 0, 1), (4, 2, 2), (1, 2, 3)):
        check_close(keys[block, place], key[row], f"key in place {place} of block {block}", 0)
        check_close(values[block, place], value[row], f"value in place {place} of block {block}", 0)


@pytest.mark.parametrize("read", ["blocks", "fetch"])
def test_task_4_a_layer_without_tokens_is_an_error(read: str) -> None:
    pool = PagedKvPool(3, 5, 3)
    pool.write(0, *tokens_of(2, 1), mx.array([4, 3]))
    arguments = [mx.array([4])] if read == "fetch" else []
    with check_value_error(layer=1, what=f"{read} of layer 1 before a write"):
        getattr(pool, read)(1, *arguments)
    for layer in (-1, 3):
        with check_value_error(layer=layer, what=f"{read} of layer {layer} of 3"):
            getattr(pool, read)(layer, *arguments)


Change = Callable[[mx.array, mx.array, mx.array], tuple[mx.array, mx.array, mx.array]]
MISFITS: dict[str, tuple[Change, dict[str, Any]]] = {
    "a batch axis": (lambda key, value, slots: (key[None], value[None], slots), {"key": (1, 2, 2, 5)}),
    "a value of fewer tokens": (lambda key, value, slots: (key, value[:1], slots), {"value": (1, 2, 5)}),
    "a value of fewer heads": (lambda key, value, slots: (key, value[:, :1], slots), {"value": (2, 1, 5)}),
    "a value without heads": (lambda key, value, slots: (key, value[:, :, 0], slots), {"value": (2, 2)}),
    "a slot too few": (lambda key, value, slots: (key, value, slots[:1]), {"slots": (1,)}),
    "slots in two axes": (lambda key, value, slots: (key, value, slots[:, None]), {"slots": (2, 1)}),
    "slots that are no numbers": (
        lambda key, value, slots: (key, value, slots > 3),
        {"slots.dtype": mx.bool_},
    ),
    "slots that are fractions": (
        lambda key, value, slots: (key, value, slots / 2),
        {"slots.dtype": mx.float32},
    ),
}
LATER: dict[str, tuple[Change, dict[str, Any]]] = {
    "fewer heads": (
        lambda key, value, slots: (key[:, :1], value[:, :1], slots),
        {"key": (2, 1, 5)},
    ),
    "a shorter key": (lambda key, value, slots: (key[..., :3], value, slots), {"key": (2, 2, 3)}),
    "a shorter value": (lambda key, value, slots: (key, value[..., :3], slots), {"value": (2, 2, 3)}),
    "a key of another type": (
        lambda key, value, slots: (key.astype(mx.float16), value, slots),
        {"key.dtype": mx.float16},
    ),
    "a value of another type": (
        lambda key, value, slots: (key, value.astype(mx.bfloat16), slots),
        {"value.dtype": mx.bfloat16},
    ),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_task_4_what_does_not_fit_together_makes_no_arrays(misfit: str) -> None:
    pool = PagedKvPool(2, 5, 3)
    change, shown = MISFITS[misfit]
    with check_value_error(**shown, what=f"the first write, with {misfit}"):
        pool.write(0, *change(*tokens_of(2, 2), mx.array([4, 3])))
    check_equal(pool.state, [], "arrays after the error")


@pytest.mark.parametrize("misfit", [*MISFITS, *LATER])
def test_task_4_what_does_not_fit_is_refused_and_nothing_is_written(misfit: str) -> None:
    pool, held, slots = PagedKvPool(2, 5, 3), tokens_of(2, 1), mx.array([4, 3])
    pool.write(0, *held, slots)
    change, shown = {**MISFITS, **LATER}[misfit]
    with check_value_error(**shown, what=f"a second write, with {misfit}"):
        pool.write(0, *change(*tokens_of(2, 2), slots))
    for found, expected in zip(pool.fetch(0, slots), held, strict=True):
        check_close(found, expected, "what the slots hold after the error", 0)


@pytest.mark.parametrize("layer", [-1, 2, 17])
def test_task_4_a_layer_that_is_not_there_is_an_error(layer: int) -> None:
    pool = PagedKvPool(2, 5, 3)
    with check_value_error(layer=layer):
        pool.write(layer, *tokens_of(2, 1), mx.array([4, 3]))
    check_equal(pool.state, [], "arrays after the error")


def test_task_4_a_pool_that_was_released_is_as_new() -> None:
    pool = PagedKvPool(2, 5, 3)
    pool.write(0, *tokens_of(2, 1), mx.array([4, 3]))
    pool.release()
    check_equal(pool.state, [], "arrays after release")
    key, value = normal(2, 3, 7, seed=3), normal(2, 3, 7, seed=4)
    pool.write(0, key, value, mx.array([4, 3]))
    check_close(pool.fetch(0, mx.array([4, 3]))[0], key, "keys of another shape after release", 0)


BIG = (1, 255, 16, 4, 64)  # layers, blocks, block size, heads, dimensions
BYTES = 4 * 256 * 16 * 4 * 64  # of the keys


def big_pool() -> PagedKvPool:
    """A pool of 4 MB of keys that was written to."""
    pool = PagedKvPool(*BIG[:3])
    entries = normal(1, *BIG[3:], seed=1)
    pool.write(0, entries, entries, mx.array([0]))
    mx.eval(pool.state)
    return pool


def test_task_4_a_write_copies_the_tokens_and_not_the_pool() -> None:
    key, value = normal(5, *BIG[3:], seed=1), normal(5, *BIG[3:], seed=2)
    slots = mx.array([7, 4000, 19, 2, 1023])
    mx.eval(key, value, slots)

    def write() -> None:
        pool = PagedKvPool(*BIG[:3])
        for _ in range(3):
            pool.write(0, key, value, slots)
            mx.eval(pool.state)

    peak = peak_bytes(write)
    if peak >= 2.25 * BYTES:
        pytest.fail(
            f"three writes of 5 tokens to a pool of {2 * BYTES:,} bytes needed {peak:,} bytes: "
            "write in place, and keep nothing else that was made of the arrays"
        )


def test_task_4_a_fetch_copies_the_slots_and_not_the_pool() -> None:
    pool = big_pool()
    peak = peak_bytes(lambda: mx.eval(pool.fetch(0, mx.array([7, 4000, 19]))))
    if peak >= BYTES / 4:
        pytest.fail(f"fetching 3 slots of a pool of {2 * BYTES:,} bytes took {peak:,} bytes more")


def test_task_4_blocks_are_no_copy() -> None:
    pool = big_pool()
    peak = peak_bytes(lambda: mx.eval(pool.blocks(0)))
    if peak >= BYTES / 4:
        pytest.fail(f"the blocks of a pool of {2 * BYTES:,} bytes took {peak:,} bytes more: reshape them")


# Task 5: one sequence in blocks


def test_task_5_pages_give_what_the_dense_cache_gives() -> None:
    pool, table = PagedKvPool(2, 7, 3), [4, 0, 6, 2]
    paged, dense = PagedKvCache(pool, 1, table), TinyKvFullCache()
    for seed, L in enumerate((4, 1, 1, 5)):
        pair = keys_and_values(L, seed)
        found = append(paged, *pair)
        keys, values, offset, _ = dense.update_and_fetch(*pair)
        mistakes = {"the new tokens alone": pair[0], "the values": values}
        check_close(found[0], keys, f"keys after {offset} tokens", 0, mistakes)
        check_close(found[1], values, f"values after {offset} tokens", 0)
        check_equal(paged.offset, offset, "offset of the cache")


@pytest.mark.parametrize("mask", [None, "causal", mx.zeros((2, 3))], ids=["none", "causal", "array"])
def test_task_5_the_attention_gets_the_mask_as_it_came(mask: Any) -> None:
    cache = PagedKvCache(PagedKvPool(1, 2, 3), 0, [1])
    *_, found = append(cache, *keys_and_values(2, 1), mask)
    check_equal(found is mask, True, "the mask is the one that was given")


def test_task_5_a_word_that_is_no_mask_is_refused_and_nothing_is_stored() -> None:
    cache = PagedKvCache(PagedKvPool(1, 2, 3), 0, [1])
    mask: Any = "Causal"
    with check_value_error(mask="Causal"):
        append(cache, *keys_and_values(2, 1), mask)
    check_equal((cache.offset, cache.state), (0, []), "offset and state after the error")


def test_task_5_each_query_gets_what_it_gets_from_the_dense_cache() -> None:
    paged, dense = PagedKvCache(PagedKvPool(1, 7, 3), 0, [4, 0, 6, 2]), TinyKvFullCache()
    for seed, L in enumerate((4, 1, 5)):
        query, pair = keys_and_values(L, seed + 50, H=2 * H)[0], keys_and_values(L, seed)
        found, expected = (
            each.attend(query, *pair, scaled_dot_product_attention_grouped, "causal")
            for each in (paged, dense)
        )
        check_close(found, expected, f"what {L} queries get, {dense.offset} tokens stored", 1e-6)


def by_paged_caches(
    query: mx.array, key: mx.array, value: mx.array, scale: float | None = None, mask: Mask = None
) -> mx.array:
    """Attention in which each row has a paged cache, its queries the newest tokens."""
    (B, _, L, _), S = query.shape, key.shape[2]
    if isinstance(mask, mx.array):
        mask = mx.broadcast_to(mask, (*query.shape[:3], S))
    attention, outputs = partial(scaled_dot_product_attention_grouped, scale=scale), []
    for row in range(B):
        cache = PagedKvCache(PagedKvPool(1, 7, 3), 0, [4, 0, 6, 2])
        own_query, own_key, own_value = (x[row : row + 1] for x in (query, key, value))
        if S > L:
            earlier = own_key[:, :, : S - L]
            cache.attend(earlier, earlier, own_value[:, :, : S - L], attention)
        own_mask = mask[row : row + 1] if isinstance(mask, mx.array) else mask
        newest = own_key[:, :, S - L :], own_value[:, :, S - L :]
        outputs.append(cache.attend(own_query, *newest, attention, own_mask))
    return mx.concatenate(outputs)


@at_every_boundary
def test_task_5_boundaries_of_attention(boundary: Boundary) -> None:
    check_boundary(by_paged_caches, boundary)


def test_task_5_tokens_lie_in_the_slots_of_its_blocks() -> None:
    pool = PagedKvPool(2, 7, 3)
    cache = PagedKvCache(pool, 1, [4, 0])
    key, value = keys_and_values(5, 1)
    append(cache, key[:, :, :2], value[:, :, :2])
    append(cache, key[:, :, 2:], value[:, :, 2:])
    keys, values = pool.fetch(1, mx.array([12, 13, 14, 0, 1]))
    check_close(keys, key[0].swapaxes(0, 1), "keys in the slots 12, 13, 14, 0, 1", 0)
    check_close(values, value[0].swapaxes(0, 1), "values in the slots 12, 13, 14, 0, 1", 0)


def test_task_5_a_cache_that_starts_behind_stored_tokens() -> None:
    pool, pair = PagedKvPool(1, 7, 3), keys_and_values(7, 1)
    append(PagedKvCache(pool, 0, [4, 0]), *(x[:, :, :5] for x in pair))
    later = PagedKvCache(pool, 0, [4, 0, 2], offset=5)
    keys, values, _ = append(later, *(x[:, :, 5:] for x in pair))
    check_close(keys, pair[0], "keys of 5 stored tokens and 2 new ones", 0)
    check_close(values, pair[1], "values of 5 stored tokens and 2 new ones", 0)
    check_equal(later.offset, 7, "offset after them")


def test_task_5_the_list_of_blocks_grows_while_the_cache_is_in_use() -> None:
    pool, table = PagedKvPool(1, 7, 3), list[int]()
    caches = [PagedKvCache(pool, 0, table), PagedKvCache(pool, 0, list[int]())]
    mistakes = {"a list of its own: `or` takes an empty list for nothing, and a copy does not grow": False}
    check_equal(caches[0].block_ids is table, True, "block_ids is the very list that was given", mistakes)
    pair = keys_and_values(7, 1)
    with check_value_error(start=0, end=2, what="a token with no block in the table"):
        append(caches[0], *(x[:, :, :2] for x in pair))
    table.append(5)
    append(caches[0], *(x[:, :, :2] for x in pair))
    table += [1, 3]
    keys, *_ = append(caches[0], *(x[:, :, 2:] for x in pair))
    check_close(keys, pair[0], "keys in blocks that were appended to the list", 0)
    check_equal(len(caches[1].block_ids), 0, "blocks of a cache with another empty list")


@pytest.mark.parametrize("L", [3, 4, 100])
def test_task_5_tokens_without_room_are_refused_and_nothing_is_written(L: int) -> None:
    pool = PagedKvPool(1, 3, 3)
    cache, dense = PagedKvCache(pool, 0, [2]), TinyKvFullCache()
    first = keys_and_values(1, 1)
    append(cache, *first)
    dense.update_and_fetch(*first)
    with check_value_error(start=1, end=1 + L, what=f"{L} tokens behind 1, in a block of 3"):
        append(cache, *keys_and_values(L, 2))
    check_equal(cache.offset, 1, "offset after the error")
    second = keys_and_values(2, 3)
    check_close(append(cache, *second)[0], dense.update_and_fetch(*second)[0], "keys after it", 0)


@pytest.mark.parametrize("id", [-1, 3, 50_000_000])
def test_task_5_a_block_that_the_pool_has_not_is_refused(id: int) -> None:
    cache = PagedKvCache(PagedKvPool(1, 3, 3), 0, [2, id])
    with check_value_error(block_id=id, what=f"a sequence with blocks 2 and {id} of a pool of 3"):
        append(cache, *keys_and_values(4, 1))
    check_equal((cache.offset, cache.state), (0, []), "offset and state after the error")


def test_task_5_the_next_token_goes_where_the_others_end() -> None:
    cache = PagedKvCache(PagedKvPool(1, 3, 3), 0, [2, 0])
    ends = [cache.offset]
    append(cache, *keys_and_values(4, 1))
    check_equal([*ends, cache.offset], [0, 4], "offset before 4 tokens and after them")


MISFIT_PAIRS: dict[str, Callable[[mx.array, mx.array], tuple[mx.array, mx.array]]] = {
    "two rows": lambda key, value: (mx.concatenate([key] * 2), mx.concatenate([value] * 2)),
    "no batch axis": lambda key, value: (key[0], value[0]),
    "a value of fewer tokens": lambda key, value: (key, value[:, :, :1]),
    "a value of two rows": lambda key, value: (key, mx.concatenate([value] * 2)),
    "fewer heads": lambda key, value: (key[:, :1], value[:, :1]),
    "a shorter key": lambda key, value: (key[..., :3], value),
    "a value of another type": lambda key, value: (key, value.astype(mx.float16)),
}


@pytest.mark.parametrize("misfit", MISFIT_PAIRS)
def test_task_5_what_does_not_fit_is_refused_and_nothing_changes(misfit: str) -> None:
    pool = PagedKvPool(1, 3, 3)
    cache, first = PagedKvCache(pool, 0, [2, 0]), keys_and_values(2, 1)
    append(cache, *first)
    with check_value_error(what=f"attend with {misfit}"):
        append(cache, *MISFIT_PAIRS[misfit](*keys_and_values(2, 2)))
    check_equal(cache.offset, 2, "offset after the error")
    keys, *_ = append(cache, *keys_and_values(1, 3))
    check_close(keys[:, :, :2], first[0], "keys stored before the error", 0)
    check_equal(cache.offset, 3, "offset after the next token")


def test_task_5_releasing_one_sequence_leaves_the_others() -> None:
    pool = PagedKvPool(1, 7, 3)
    first, second = PagedKvCache(pool, 0, [4]), PagedKvCache(pool, 0, [1])
    pair = keys_and_values(2, 2)
    append(first, *keys_and_values(2, 1))
    append(second, *pair)
    first.release()
    check_equal((first.offset, second.offset), (0, 2), "offsets after the first was released")
    keys, *_ = append(second, *keys_and_values(1, 3))
    check_close(keys[:, :, :2], pair[0], "keys of the second", 0)
    keys, *_ = append(first, *keys_and_values(1, 4))
    check_close(keys, keys_and_values(1, 4)[0], "keys of the first, used again", 0)


def test_task_5_the_state_is_the_pool_s() -> None:
    pool = PagedKvPool(2, 7, 3)
    cache = PagedKvCache(pool, 1, [4])
    check_equal(cache.state, [], "state before anything is stored")
    append(cache, *keys_and_values(2, 1))
    check_equal([x.shape for x in cache.state], [x.shape for x in pool.state], "shapes of the state")
    check_equal(len(cache.state), 2, "arrays of one layer")


def test_task_5_a_decode_copies_no_pool() -> None:
    pool = big_pool()
    cache = PagedKvCache(pool, 0, [3, 200])
    pairs = [keys_and_values(1, seed, H=BIG[3], D=BIG[4]) for seed in range(20)]
    mx.eval(pairs)

    def decode() -> None:
        for pair in pairs:
            mx.eval(append(cache, *pair)[:2], cache.state)

    peak = peak_bytes(decode)
    if peak >= BYTES / 4:
        pytest.fail(f"20 decodes on a pool of {2 * BYTES:,} bytes took {peak:,} bytes more")


@pytest.mark.parametrize("chunk", [1, 4, 7, 23])
def test_task_5_the_model_on_pages_gives_the_same_logits(chunk: int) -> None:
    model = small_model()
    blocks = BlockManager(11, 4)
    pool = PagedKvPool(model.num_hidden_layers, 11, 4)
    sequences = [sequence_of(0, 23), sequence_of(1, 13)]
    found: list[list[mx.array]] = [[], []]
    while any(each.num_uncomputed_tokens for each in sequences):
        for sequence, logits in zip(sequences, found, strict=True):
            num_tokens = min(chunk, sequence.num_uncomputed_tokens)
            if num_tokens:
                logits.append(compute(model, blocks, pool, sequence, num_tokens))
    for sequence, logits in zip(sequences, found, strict=True):
        expected = model(mx.array([sequence.token_ids]))
        what = f"logits of {sequence.num_tokens} tokens in chunks of {chunk}"
        check_close(mx.concatenate(logits, axis=1), expected, what, 1e-5)


def test_task_5_not_a_number_of_a_former_holder_is_never_seen() -> None:
    model = small_model()
    blocks = BlockManager(6, 4)
    pool = PagedKvPool(model.num_hidden_layers, 6, 4)
    broken = sequence_of(0, 24)
    blocks.allocate(broken, 24)
    for cache in caches_of(pool, blocks.tables[0].block_ids):
        heads, dims = model_heads(model)
        nan = mx.full((1, heads, 24, dims), mx.array(NOT_TO_BE_READ))
        cache.attend(nan, nan, nan, lambda query, *_, **__: query)
    blocks.free(broken)
    sequence = sequence_of(1, 13)
    logits = [compute(model, blocks, pool, sequence, num_tokens) for num_tokens in (5, 1, 1, 6)]
    expected = model(mx.array([sequence.token_ids]))
    check_close(mx.concatenate(logits, axis=1), expected, "logits in blocks full of nan", 1e-5)


def model_heads(model: Any) -> tuple[int, int]:
    """Heads of keys and values of a model, and their dimensions."""
    cache = TinyKvFullCache()
    model(mx.array([[1]]), 0, [cache, *model.create_kv_cache()[1:]])
    _, heads, _, dims = cache.fetch()[0].shape
    return heads, dims


def test_task_5_sequences_that_come_and_go_get_what_they_get_alone() -> None:
    model, blocks, pool = FakeModel(), BlockManager(9, 3), PagedKvPool(2, 9, 3)
    for id, (length, outputs, chunk) in enumerate(((11, 5, 4), (2, 9, 2), (17, 3, 17), (5, 1, 1), (7, 7, 3))):
        sequence = sequence_of(id, length, length + outputs)
        found = generate(model, blocks, pool, sequence, outputs, chunk)
        check_equal(found, continuation(prompt_of(length, id), outputs), f"tokens of sequence {id}")
        blocks.free(sequence)
    check_all_free(blocks)


@pytest.mark.parametrize("fail_at", range(7))
def test_task_5_who_comes_after_a_failure_is_not_disturbed(fail_at: int) -> None:
    blocks, pool = BlockManager(6, 3), PagedKvPool(2, 6, 3)
    beside = sequence_of(1, 4, 9)
    generate(FakeModel(), blocks, pool, beside, 2, chunk=3)
    broken = sequence_of(0, 5, 9)
    with pytest.raises(ModelFailureError):
        generate(FakeModel(fail_at=fail_at), blocks, pool, broken, 5, chunk=2)
    check_counts(blocks)
    blocks.free(broken)
    after = sequence_of(2, 7, 9)
    check_equal(
        generate(FakeModel(), blocks, pool, after, 2, 4),
        continuation(prompt_of(7, 2), 2),
        "the answer of the request after it",
    )
    found = generate(FakeModel(), blocks, pool, beside, 5, chunk=1)
    check_equal(found, continuation(prompt_of(4, 1), 5), "the answer of the request beside it")
    for sequence in (after, beside):
        blocks.free(sequence)
    check_all_free(blocks)


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_task_5_any_mix_of_sequences_on_one_pool(data: st.DataObject) -> None:
    block_size, num_blocks = data.draw(st.integers(1, 4)), data.draw(st.integers(4, 12))
    blocks, pool = BlockManager(num_blocks, block_size), PagedKvPool(1, num_blocks, block_size)
    running: dict[int, tuple[Sequence, PagedKvCache, TinyKvFullCache]] = {}
    for seed in range(data.draw(st.integers(1, 14))):
        id, L = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 6))
        if id in running and data.draw(st.booleans()):
            blocks.free(running.pop(id)[0])
            continue
        sequence = running[id][0] if id in running else sequence_of(id, L, 2 * L)
        if not blocks.allocate(sequence, L):
            continue
        if id not in running:
            running[id] = (sequence, PagedKvCache(pool, 0, blocks.tables[id].block_ids), TinyKvFullCache())
        _, paged, dense = running[id]
        pair = keys_and_values(L, seed)
        found, expected = append(paged, *pair), dense.update_and_fetch(*pair)
        sequence.num_computed_tokens += L
        check_close(found[0], expected[0], f"keys of sequence {id} after {dense.offset} tokens", 0)
        check_close(found[1], expected[1], f"values of sequence {id} after {dense.offset} tokens", 0)
    for id, (_, paged, dense) in running.items():
        pair = keys_and_values(1, 99)
        if blocks.allocate(running[id][0], 1):
            found, expected = append(paged, *pair), dense.update_and_fetch(*pair)
            check_close(found[0], expected[0], f"keys of sequence {id} at the end", 0)
