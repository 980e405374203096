"""The inputs of `pdm run compare` for keys and values on pages: week 3, day 2."""

from itertools import product
from types import ModuleType
from typing import TYPE_CHECKING

import mlx.core as mx

from scripts.compare_cases import case
from scripts.compare_trees import Tree

if TYPE_CHECKING:
    from tiny_llm_ref import BlockManager, PagedKvCache, PagedKvPool, Sequence


def answers_of(blocks: "BlockManager") -> list[Tree]:
    """Tables, promises and free blocks."""
    tables = [
        [id, list(table.block_ids), table.num_stored_tokens, table.num_promised]
        for id, table in sorted(blocks.tables.items())
    ]
    return [tables, list(blocks.ref_counts), blocks.num_promised, blocks.num_free_blocks]


@case("serving.block_manager.BlockManager.num_blocks_for")
def counted_blocks(tiny: ModuleType) -> Tree:
    """800 numbers of tokens."""
    return [tiny.BlockManager(9, size).num_blocks_for(n) for size, n in product((1, 3, 16, 64), range(200))]


@case("serving.block_manager.BlockManager.check_fits")
def fitting(tiny: ModuleType) -> Tree:
    """200 sequences."""
    blocks = tiny.BlockManager(7, 4)
    seen: list[Tree] = []
    for most in range(1, 201):
        try:
            blocks.check_fits(tiny.Sequence(most, [1], max_num_tokens=most))
        except ValueError:
            continue
        seen.append(most)
    return seen


@case("serving.paged_kv_cache.slot_mapping")
def mapped(tiny: ModuleType) -> Tree:
    """7 blocks, 500 pieces."""
    table = [5, 2, 11, 3, 0, 8, 6]
    grid = product(range(0, 50, 2), range(20))
    return [tiny.slot_mapping(table, 10, start, length).tolist() for start, length in grid]


@case("serving.paged_kv_cache.slot_mapping")
def mapped_long(tiny: ModuleType) -> Tree:
    """500,000 tokens."""
    slots = tiny.slot_mapping(list(range(40_000))[::-1], 16, 77, 500_000)
    return [int(slots.sum()), slots[::9973].tolist()]


@case("serving.block_manager.BlockManager.grow")
@case("serving.block_manager.BlockManager.allocate")
@case("serving.block_manager.BlockManager.free")
@case("serving.block_manager.BlockManager.admit")
def lived(tiny: ModuleType) -> Tree:
    """300 that come and go."""
    blocks: BlockManager = tiny.BlockManager(24, 4)
    running: list[Sequence] = []
    seen: list[Tree] = []
    for i in range(300):
        new: Sequence = tiny.Sequence(i, range(1 + 7 * i % 23), max_num_tokens=30)
        for sequence in [*running, new]:
            num_tokens = min(5, sequence.max_num_tokens - sequence.num_computed_tokens)
            is_met = blocks.allocate(sequence, num_tokens)
            sequence.num_computed_tokens += num_tokens * is_met
            seen.append(is_met)
        running += [new] * bool(seen[-1])
        for sequence in [each for each in running if each.num_computed_tokens > 11 * each.id % 30]:
            running.remove(sequence)
            blocks.free(sequence)
        seen.append(answers_of(blocks))
    return seen


@case("serving.paged_kv_cache.PagedKvPool.write")
@case("serving.paged_kv_cache.PagedKvPool.fetch")
def written(tiny: ModuleType) -> Tree:
    """40 writes, 4 layers."""
    pool: PagedKvPool = tiny.PagedKvPool(4, 64, 16)
    for i in range(40):
        slots = mx.arange(8) * 97 % 1024 + i % 5
        pool.write(i % 4, entries(8, seed=2 * i), entries(8, seed=2 * i + 1), slots)
        mx.eval(pool.state)
    return [list(pool.fetch(layer, mx.arange(0, 1024, 3))) for layer in range(4)]


@case("serving.paged_kv_cache.PagedKvPool.blocks")
def blocks_of(tiny: ModuleType) -> Tree:
    """One layer by block."""
    pool: PagedKvPool = tiny.PagedKvPool(1, 12, 8)
    pool.write(0, entries(96, seed=1), entries(96, seed=2), mx.arange(96))
    return list(pool.blocks(0))


@case("serving.paged_kv_cache.PagedKvCache")
def paged(tiny: ModuleType) -> Tree:
    """Prompt, 30 decodes."""
    pool: PagedKvPool = tiny.PagedKvPool(1, 64, 16)
    cache: PagedKvCache = tiny.PagedKvCache(pool, 0, [9, 2, 40, 7, 63, 11])
    seen: list[Tree] = []
    for i, length in enumerate([60] + [1] * 30):
        key, value = (x.swapaxes(0, 1)[None] for x in (entries(length, 2 * i), entries(length, 2 * i + 1)))
        keys, values, offset, _ = cache.update_and_fetch(key, value)
        mx.eval(keys, values)
        seen.append([offset, keys[0, :, ::13], values[0, 1]])
    return seen


def entries(length: int, seed: int) -> mx.array:
    """Keys or values [length, 2, 32]."""
    return mx.random.normal((length, 2, 32), key=mx.random.key(seed))
