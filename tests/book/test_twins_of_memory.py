"""The twins of cache, sampler and roofline compute what the reference computes."""

import random
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from py_mini_racer import MiniRacer

from kernel_runtime.checkpoint import read_json
from scripts.course import ROOT
from tests.book.reference_runs import tensors_of
from tests.book.twins import NUM_CASES, twin_fixture
from tiny_llm import BatchingKvCache, ModelConfig, TinyKvFullCache
from tiny_llm.generation.sampler import keep_likely
from tiny_llm.model.roofline import bandwidth_limit, cache_bytes_per_token, decode_bytes_per_token

pytestmark = pytest.mark.sampled(3, "book/viz/", "tiny_llm_ref/model/", "tiny_llm_ref/generation/")
kv_cache = twin_fixture("kv-cache")


def single(length: int, heads: int, dim: int, dtype: mx.Dtype) -> TinyKvFullCache:
    """One layer's cache of one request."""
    cache = TinyKvFullCache()
    entries = mx.zeros((1, heads, length, dim), dtype)
    cache.update_and_fetch(entries, entries)
    return cache


def bytes_of(cache: BatchingKvCache) -> int:
    return sum(array.nbytes for array in cache.state)


def test_slots_that_fill_and_empty(kv_cache: MiniRacer) -> None:
    rng = random.Random(7)
    for _ in range(NUM_CASES):
        num_slots, heads, dim = rng.randint(1, 5), rng.randint(1, 2), rng.randint(1, 3)
        dtype = rng.choice([mx.float16, mx.float32])
        cache = BatchingKvCache(num_slots)
        kv_cache.eval(f"cache = TinyTwins.kvCache.make({num_slots})")
        hidden: list = []
        for _ in range(6):
            active = cache.active_slots
            free = [slot for slot in range(num_slots) if slot not in active]
            assert kv_cache.eval("TinyTwins.kvCache.firstFree(cache)") == (free[0] if free else None)
            action = rng.choice(["add"] * bool(free) + ["remove", "decode", "decode"] * bool(active))
            if action == "add":
                slot, length = rng.choice(free), rng.choice([rng.randint(1, 20), rng.randint(1, 140)])
                cache.add_request(single(length, heads, dim, dtype), slot)
                kv_cache.eval(f"cache = TinyTwins.kvCache.add(cache, {slot}, {length})")
            elif action == "remove":
                slot = rng.choice(active)
                cache.remove_request(slot)
                kv_cache.eval(f"cache = TinyTwins.kvCache.remove(cache, {slot})")
            else:
                entries = mx.zeros((len(active), heads, 1, dim), dtype)
                *_, mask = cache.update_and_fetch(entries, entries)
                kv_cache.eval("cache = TinyTwins.kvCache.decode(cache)")
                hidden = (np.array(mask.astype(mx.float32))[:, 0, 0] != 0).tolist()
                assert kv_cache.execute("TinyTwins.kvCache.hidden(cache)") == hidden
            found = kv_cache.execute("cache")
            assert [row["slot"] for row in found["rows"]] == cache.active_slots
            assert [row["length"] for row in found["rows"]] == cache.offset
            per_token = kv_cache.call("TinyTwins.kvCache.bytesPerToken", 1, heads, dim, 8 * dtype.size)
            assert kv_cache.eval("TinyTwins.kvCache.numPlaces(cache)") * per_token == bytes_of(cache)


def test_bytes_that_a_token_leaves(kv_cache: MiniRacer) -> None:
    rng = random.Random(8)
    shipped = ModelConfig.from_dict(read_json(ROOT / "models" / "qwen3-kjv-4m" / "config.json"))
    for _ in range(NUM_CASES):
        heads = rng.randint(1, 16)
        config = replace(
            shipped,
            num_hidden_layers=rng.randint(1, 64),
            num_attention_heads=heads * rng.randint(1, 4),
            num_key_value_heads=heads,
            head_dim=2 * rng.randint(1, 128),
        )
        dtype = rng.choice([mx.float16, mx.float32])
        shape = (config.num_hidden_layers, heads, config.head_dim, 8 * dtype.size)
        expected = cache_bytes_per_token(config, dtype)
        assert kv_cache.call("TinyTwins.kvCache.bytesPerToken", *shape) == expected


sampler = twin_fixture("sampler")


def drawn_with(logprobs: np.ndarray, temp: float, top_p: float, top_k: int, min_p: float) -> np.ndarray:
    """The probability of each token as the reference's sampler draws it."""
    kept = keep_likely(mx.array(logprobs[None]), top_p, top_k or None, min_p) / temp
    return np.array(mx.softmax(kept, axis=-1))[0]


def test_distribution_that_a_sampler_draws_from(sampler: MiniRacer) -> None:
    rng = random.Random(9)
    numbers = np.random.default_rng(9)
    for _ in range(NUM_CASES):
        logits = (numbers.normal(size=rng.randint(2, 97)) * rng.choice([0.5, 2, 5])).astype(np.float32)
        logprobs = logits - np.logaddexp.reduce(logits)
        temp = rng.choice([0.05, 0.7, 1.0, round(rng.uniform(0.1, 2), 2)])
        top_p = rng.choice([0, 1, round(rng.random(), 3)])
        top_k = rng.choice([0, rng.randint(1, 100)])
        min_p = rng.choice([0, round(rng.random(), 3)])
        case = (temp, top_p, top_k, min_p)
        found = sampler.call("TinyTwins.sampler.probabilities", logprobs.tolist(), *case)
        expected = drawn_with(logprobs, *case)
        np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=str(case))
        greedy = sampler.call("TinyTwins.sampler.probabilities", logprobs.tolist(), 0, top_p, top_k, min_p)
        assert np.flatnonzero(greedy).tolist() == [int(np.argmax(logprobs))]


def test_cuts_are_named(sampler: MiniRacer) -> None:
    numbers = np.random.default_rng(10)
    for _ in range(NUM_CASES):
        logprobs = numbers.normal(size=23).astype(np.float32)
        logprobs -= np.logaddexp.reduce(logprobs)
        cuts = sampler.call("TinyTwins.sampler.cuts", logprobs.tolist(), 0.7, 11, 0.2)
        for name, arguments in (("top-p", (0.7, None, 0)), ("top-k", (0, 11, 0)), ("min-p", (0, None, 0.2))):
            kept = np.isfinite(np.array(keep_likely(mx.array(logprobs[None]), *arguments))[0])
            assert [name not in each for each in cuts] == kept.tolist()


roofline = twin_fixture("roofline")


def random_config(rng: random.Random) -> ModelConfig:
    heads = rng.randint(1, 4)
    return replace(
        ModelConfig.from_dict(read_json(ROOT / "models" / "qwen3-kjv-4m" / "config.json")),
        hidden_size=64 * rng.randint(1, 5),
        num_hidden_layers=rng.randint(1, 3),
        num_attention_heads=heads * rng.randint(1, 4),
        num_key_value_heads=heads,
        head_dim=64,
        intermediate_size=64 * rng.randint(1, 7),
        vocab_size=rng.randint(2, 5000),
        qk_norm=rng.random() < 0.5,
    )


def test_bytes_and_operations_of_a_step(roofline: MiniRacer) -> None:
    rng = random.Random(11)
    for _ in range(NUM_CASES):
        config, bits = random_config(rng), rng.choice([32, 16, 8, 4])
        batch, context, chunk = rng.randint(1, 64), rng.randint(0, 5000), rng.randint(1, 700)
        shape = shape_of(config)
        tensors = tensors_of(config, bits)
        weight_bytes = decode_bytes_per_token(config, tensors)
        token_bytes = cache_bytes_per_token(config, mx.float32 if bits == 32 else mx.float16)
        plain = tensors_of(config, 32)
        head = 2 * plain["model.embed_tokens.weight"].size
        layers = 2 * sum(tensor.size for tensor in plain.values() if tensor.ndim == 2) - head
        pair = 4 * config.num_hidden_layers * config.num_attention_heads * config.head_dim
        decode = roofline.call("TinyTwins.roofline.decode", shape, bits, batch, context)
        assert decode == {
            "tokens": batch,
            "operations": batch * (layers + head + pair * (context + 1)),
            "bytes": weight_bytes + batch * context * token_bytes,
        }
        prefill = roofline.call("TinyTwins.roofline.prefill", shape, bits, chunk, context)
        assert prefill == {
            "tokens": chunk,
            "operations": chunk * layers + head + pair * sum(context + i + 1 for i in range(chunk)),
            "bytes": weight_bytes + context * token_bytes,
        }
        bandwidth = rng.uniform(1e9, 1e12)
        placed = roofline.call("TinyTwins.roofline.place", decode, bandwidth, 1e30)
        limit = bandwidth_limit(bandwidth, weight_bytes, batch, context * token_bytes)
        assert placed["tokensPerSecond"] == pytest.approx(limit)
        assert placed["isMemoryBound"]
        bound = roofline.call("TinyTwins.roofline.place", decode, 1e30, 1e12)
        assert bound["seconds"] == pytest.approx(decode["operations"] / 1e12)
        assert not bound["isMemoryBound"]


def shape_of(config: ModelConfig) -> dict:
    """A configuration in the words of the twin."""
    return {
        "hidden": config.hidden_size,
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "kvHeads": config.num_key_value_heads,
        "headDim": config.head_dim,
        "intermediate": config.intermediate_size,
        "vocab": config.vocab_size,
        "qkNorm": config.qk_norm,
    }
