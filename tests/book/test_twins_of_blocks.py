"""The twin of the block pool gives, reserves and takes back what the block manager does."""

import random

import pytest
from py_mini_racer import MiniRacer

from tests.book.twins import NUM_CASES, twin_fixture
from tiny_llm import BlockManager, Sequence, slot_mapping

pytestmark = pytest.mark.sampled(3, "book/viz/", "tiny_llm_ref/scheduling/")
pool = twin_fixture("block-pool")


def call(pool: MiniRacer, function: str, *arguments: int) -> bool:
    """Change the pool of the twin; False, and no change, if there is no room."""
    words = ", ".join(map(str, arguments))
    pool.eval(f"after = TinyTwins.blockPool.{function}(pool, {words})")
    return bool(pool.eval("if (after !== null) pool = after; after !== null"))


def test_sequences_that_join_grow_and_leave(pool: MiniRacer) -> None:
    rng = random.Random(12)
    for _ in range(NUM_CASES // 4):
        num_blocks, block_size = rng.randint(1, 12), rng.randint(1, 5)
        blocks = BlockManager(num_blocks, block_size)
        running: list[Sequence] = []
        pool.eval(f"var after, pool = TinyTwins.blockPool.make({num_blocks}, {block_size})")
        for id in range(14):
            action = rng.choice(["admit", *["append", "append", "release"] * bool(running)])
            if action == "admit":
                length, more = rng.randint(1, 12), rng.randint(0, 9)
                sequence = Sequence(id, range(length), max_num_tokens=length + more)
                is_met = blocks.allocate(sequence, length)
                assert call(pool, "admit", id, length, length + more) == is_met
                if is_met:
                    sequence.num_computed_tokens = length
                    running.append(sequence)
            elif action == "append":
                sequence, count = rng.choice(running), rng.randint(1, 6)
                is_met = blocks.allocate(sequence, count)
                assert call(pool, "append", sequence.id, count) == is_met
                sequence.num_computed_tokens += count * is_met
            else:
                sequence = running.pop(rng.randrange(len(running)))
                blocks.free(sequence)
                assert call(pool, "release", sequence.id)
            check_same(pool, blocks, running, rng)


def check_same(pool: MiniRacer, blocks: BlockManager, running: list[Sequence], rng: random.Random) -> None:
    found = pool.execute("pool")
    assert len(found["free"]) == blocks.num_free_blocks
    assert pool.eval("TinyTwins.blockPool.numReserved(pool)") == blocks.num_reserved
    tables = {each["id"]: (each["blocks"], each["reserved"]) for each in found["tables"]}
    assert tables == {id: (table.block_ids, table.num_reserved) for id, table in blocks.tables.items()}
    for sequence in running:
        start = rng.randint(0, sequence.num_computed_tokens)
        count = rng.randint(0, sequence.num_computed_tokens - start)
        expected = slot_mapping(
            blocks.tables[sequence.id].block_ids, blocks.block_size, start, count
        ).tolist()
        assert pool.call("TinyTwins.blockPool.slotMapping", found, sequence.id, start, count) == expected
