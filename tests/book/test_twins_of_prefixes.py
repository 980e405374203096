"""The twin of prefix caching shares, keeps and evicts what the reference does."""

import random
from typing import Any

import pytest
from py_mini_racer import MiniRacer

from tests.book.twins import twin_fixture
from tiny_llm import PrefixCachingBlockManager, Sequence

pytestmark = pytest.mark.sampled(3, "book/viz/", "tiny_llm_ref/scheduling/")

NUM_RUNS, NUM_EVENTS = 150, 25


prefix_cache = twin_fixture("prefix-cache")


def text_of(tokens: tuple[int, ...]) -> str:
    return "".join(map(chr, tokens))


def prefix_text(blocks: PrefixCachingBlockManager, block: int) -> str:
    """All tokens up to the end of a registered block."""
    text, prefix = "", blocks.prefix_of[block]
    while prefix is not None:
        text, prefix = text_of(prefix.token_ids) + text, prefix.parent
    return text


def check_same(found: dict[str, Any], blocks: PrefixCachingBlockManager, alive: dict[str, Sequence]) -> None:
    assert found["counts"] == blocks.ref_counts
    assert found["cached"] == list(blocks.cached_blocks)
    assert sorted(found["free"]) == [
        block
        for block in range(blocks.num_blocks)
        if not blocks.ref_counts[block] and block not in blocks.cached_blocks
    ]
    assert len(found["free"]) == blocks.num_free_blocks
    texts = {block: text for block, text in enumerate(found["prefixes"]) if text is not None}
    assert texts == {block: prefix_text(blocks, block) for block in blocks.prefix_of}
    assert (found["numHit"], found["numAdmitted"]) == (blocks.num_hit_tokens, blocks.num_admitted_tokens)
    tables = {name: table["blocks"] for name, table in found["tables"].items()}
    assert tables == {name: blocks.tables[sequence.id].block_ids for name, sequence in alive.items()}


def test_prompts_that_come_and_go(prefix_cache: MiniRacer) -> None:
    rng = random.Random(11)
    num_refused = num_evicted = num_shared = 0
    for _ in range(NUM_RUNS):
        num_blocks, block_size = rng.randint(1, 12), rng.randint(1, 4)
        blocks = PrefixCachingBlockManager(num_blocks, block_size)
        prefix_cache.eval(f"cache = TinyTwins.prefixCache.make({num_blocks}, {block_size})")
        alive: dict[str, Sequence] = {}
        for number in range(NUM_EVENTS):
            if alive and rng.random() < 0.4:
                name = rng.choice(sorted(alive))
                blocks.free(alive.pop(name))
                prefix_cache.eval(f"cache = TinyTwins.prefixCache.end(cache, '{name}')")
            else:
                name, text = f"r{number}", "".join(rng.choices("ab", k=rng.randint(1, 12)))
                sequence = Sequence(number, map(ord, text))
                start = blocks.find_prefix(sequence)
                was_cached = set(blocks.cached_blocks)
                is_admitted = blocks.allocate(sequence, sequence.num_tokens - start)
                prefix_cache.eval(f"result = TinyTwins.prefixCache.begin(cache, '{name}', '{text}')")
                prefix_cache.eval("cache = result.cache")
                result = prefix_cache.execute("result")
                assert result["isAdmitted"] == is_admitted
                assert result["numHit"] == start
                num_shared += len(result["shared"])
                num_refused += not is_admitted
                if is_admitted:
                    gone = was_cached - set(blocks.cached_blocks) - set(result["shared"])
                    assert set(result["evicted"]) == gone
                    num_evicted += len(gone)
                    sequence.num_computed_tokens = sequence.num_tokens
                    alive[name] = sequence
            check_same(prefix_cache.execute("cache"), blocks, alive)
            check_tree(prefix_cache.execute("TinyTwins.prefixCache.tree(cache)"), blocks)
    assert min(num_refused, num_evicted, num_shared) > 100


def check_tree(nodes: list[dict[str, Any]], blocks: PrefixCachingBlockManager) -> None:
    """Every block that holds something is drawn once, behind the block before it."""
    held = {block for block, count in enumerate(blocks.ref_counts) if count}
    assert sorted(node["block"] for node in nodes) == sorted(held | set(blocks.cached_blocks))
    order = list(blocks.cached_blocks)
    places = {(node["row"], node["depth"]) for node in nodes}
    assert len(places) == len(nodes)
    for node in nodes:
        block = node["block"]
        state = "held" if block in held else "cached"
        assert node["state"] == (state if block in blocks.prefix_of else "private")
        assert node["order"] == (order.index(block) + 1 if block in blocks.cached_blocks else 0)
        assert node["text"].endswith(node["own"])
        if node["parent"] is not None:
            assert nodes[node["parent"]]["text"] + node["own"] == node["text"]
