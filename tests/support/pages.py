"""What the tests of the pages share: a block manager as plain values, and sequences run on a pool."""

from collections.abc import Sequence as Items

import mlx.core as mx
import pytest

from tests.support.check import check_close, check_equal
from tests.support.fakes import FakeModel, prompt_of
from tiny_llm import BlockManager, PagedKvCache, PagedKvPool, Qwen3Model, Sequence, TinyKvCache
from tiny_llm.ops.attention import Mask
from tiny_llm.scheduling.block_manager import BlockTable

State = tuple[dict[int, tuple[list[int], int, int]], list[int], int, int]


def sequence_of(id: int, length: int, most: int | None = None, computed: int = 0) -> Sequence:
    """A sequence of that many tokens, which may come to have `most`."""
    sequence = Sequence(id, prompt_of(length, id), max_num_tokens=most)
    sequence.num_computed_tokens = computed
    return sequence


def hold_by_hand(
    blocks: BlockManager, sequence: Sequence, num_blocks: int, num_reserved: int = 0
) -> BlockTable:
    """Give a sequence blocks and a reservation, as task 3 does."""
    held = [blocks.take() for _ in range(num_blocks)]
    for block in held:
        blocks.hold(block)
    table = BlockTable(held, 0, num_reserved)
    blocks.tables[sequence.id] = table
    blocks.num_reserved += num_reserved
    return table


class SharingBlocks(BlockManager):
    """Says of every new sequence that the blocks in `shared` hold its first tokens."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.shared: list[int] = []

    def find_shared_blocks(self, sequence: Sequence) -> list[int]:
        return self.shared


class SpyBlocks(BlockManager):
    """Notes what is asked for: the id, whether it is an admission, and the answer."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.asked: list[tuple[int, bool, bool]] = []

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        is_admission = sequence.id not in self.tables
        is_met = super().allocate(sequence, num_tokens)
        self.asked.append((sequence.id, is_admission, is_met))
        check_counts(self)
        return is_met


def state_of(blocks: BlockManager) -> State:
    """Tables, reference counts, reserved blocks and those that nobody holds, copied."""
    tables = {
        id: (list(table.block_ids), table.num_stored_tokens, table.num_reserved)
        for id, table in blocks.tables.items()
    }
    return tables, list(blocks.ref_counts), blocks.num_reserved, blocks.num_available_blocks


def check_counts(blocks: BlockManager) -> None:
    """Fail unless every block is free or counted once for each table it is in, and reservations are kept."""
    __tracebackhide__ = True
    held = [block for table in blocks.tables.values() for block in table.block_ids]
    counts = [held.count(block) for block in range(blocks.num_blocks)]
    check_equal(blocks.ref_counts, counts, "ref_counts of each block, against the tables that it is in")
    check_equal(blocks.num_available_blocks, counts.count(0), "num_available_blocks, against the tables")
    num_used = blocks.num_blocks - counts.count(0)
    check_equal(blocks.num_used_blocks, num_used, "num_used_blocks, against the tables")
    reserved = sum(table.num_reserved for table in blocks.tables.values())
    check_equal(blocks.num_reserved, reserved, "num_reserved, against the tables")
    if not 0 <= reserved <= blocks.num_available_blocks:
        pytest.fail(f"{reserved} blocks are reserved and {blocks.num_available_blocks} are held by nobody")


def check_all_free(blocks: BlockManager) -> None:
    """Fail if anybody holds or has reserved anything."""
    __tracebackhide__ = True
    everything = ({}, [0] * blocks.num_blocks, 0, blocks.num_blocks)
    check_equal(state_of(blocks), everything, "tables, ref_counts, reserved and free blocks at the end")


def caches_of(pool: PagedKvPool, block_ids: Items[int], offset: int = 0) -> list[PagedKvCache]:
    """A sequence's cache of each layer."""
    return [PagedKvCache(pool, layer, block_ids, offset) for layer in range(pool.num_layers)]


def append(
    cache: TinyKvCache, key: mx.array, value: mx.array, mask: Mask = None
) -> tuple[mx.array, mx.array, Mask]:
    """Append tokens by `attend`; return what the attention function gets: keys, values and mask."""
    __tracebackhide__ = True
    seen: list[tuple[mx.array, mx.array, Mask]] = []

    def attention(
        query: mx.array, key: mx.array, value: mx.array, scale: float | None = None, mask: Mask = None
    ) -> mx.array:
        seen.append((key, value, mask))
        return query + 7

    output = cache.attend(key, key, value, attention, mask)
    check_equal(len(seen), 1, "calls of the attention function")
    check_close(output, key + 7, "what attend returns: the result of the attention function", tolerance=0)
    return seen[0]


def compute(
    model: Qwen3Model | FakeModel,
    blocks: BlockManager,
    pool: PagedKvPool,
    sequence: Sequence,
    num_tokens: int,
) -> mx.array:
    """The logits [1, num_tokens, V] of a sequence's next tokens, computed on its blocks."""
    start = sequence.num_computed_tokens
    if not blocks.allocate(sequence, num_tokens):
        pytest.fail(f"there is no room for {num_tokens} tokens of sequence {sequence.id}")
    caches = caches_of(pool, blocks.tables[sequence.id].block_ids, start)
    logits = model(mx.array([sequence.token_ids[start : start + num_tokens]]), start, caches)
    mx.eval(logits, pool.state)
    sequence.num_computed_tokens += num_tokens
    return logits


def generate(
    model: FakeModel,
    blocks: BlockManager,
    pool: PagedKvPool,
    sequence: Sequence,
    num_outputs: int,
    chunk: int,
) -> list[int]:
    """The likeliest tokens of the fake model, prompt and answer computed on the sequence's blocks."""
    while len(sequence.generated_ids) < num_outputs:
        num_tokens = min(chunk, sequence.num_uncomputed_tokens)
        logits = compute(model, blocks, pool, sequence, num_tokens)
        if sequence.num_uncomputed_tokens == 0:
            sequence.token_ids.append(int(mx.argmax(logits[0, -1]).item()))
    return sequence.generated_ids
