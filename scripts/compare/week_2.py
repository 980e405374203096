"""The cases of `pdm run compare` for week 2; a whole run is in `batch`."""

import mlx.core as mx

from scripts.compare.differences import Tree
from scripts.compare.inputs import ByteTokenizer, normal, query_key_value, small_model, token_ids
from scripts.compare.library import Case, Library, gpu_cases
from scripts.compare.week_1 import generated

BITS = (4, 8, 3)


def cached(tiny: Library) -> Tree:
    """A prompt, 60 tokens one by one, some forgotten, and a chunk."""
    cache = tiny.TinyKvFullCache()
    for i, L in enumerate((67, *[1] * 60, 31)):
        key, value, offset, _ = cache.update_and_fetch(normal(1, 2, L, 64), normal(1, 2, L, 64, seed=1))
        mx.eval(key, value)
        if i == 30:
            cache.rewind(13)
    return {"key": key, "value": value, "offset": offset}


def packed(tiny: Library, *shape: int, bits: int = 4) -> Tree:
    """Normal-distributed weights as MLX packs them."""
    return tiny.QuantizedWeights(*mx.quantize(normal(*shape), group_size=64, bits=bits), 64, bits)


def product(tiny: Library, function: str, *num_rows: int, bits: int = 4) -> Tree:
    """Rows of 768 numbers times packed weights, by one of the functions that multiply them."""
    weights = packed(tiny, 1021, 768, bits=bits)
    return [getattr(tiny, function)(normal(rows, 768), weights) for rows in num_rows]


def attended(tiny: Library, function: str, queries: int, keys: int) -> Tree:
    """Causal attention, by one of the functions for it."""
    return getattr(tiny, function)(*query_key_value(queries, keys, 1, 6, H=2), mask="causal")


def gpu_product(tiny: Library, rows: int, target: Tree) -> Tree:
    """Some rows times packed weights."""
    return tiny.quantized_matmul_gpu(normal(rows, 128), packed(tiny, 37, 128), target)


def gpu_attention(tiny: Library, queries: int, target: Tree) -> Tree:
    """Some queries over 70 keys."""
    inputs = query_key_value(queries, 70, 1, 4, H=2, D=32)
    return tiny.flash_attention_gpu(*inputs, mask="causal", target=target)


def ragged_rows(tiny: Library) -> Tree:
    """What three rows see after 20 tokens more."""
    cache = tiny.BatchingKvCache(3, max_seq_len=512)
    for slot, L in enumerate((131, 67, 7)):
        row = tiny.TinyKvFullCache()
        row.update_and_fetch(normal(1, 2, L, 64, seed=L), normal(1, 2, L, 64, seed=L + 1))
        cache.add_request(row, slot)
    for i in range(20):
        pair = (normal(3, 2, 1, 64, seed=i), normal(3, 2, 1, 64, seed=i + 20))
        key, value, lengths, mask = cache.update_and_fetch(*pair)
        mx.eval(key, value)
    is_visible = mx.broadcast_to(mask == 0, (3, 1, 1, key.shape[2])).swapaxes(2, 3)
    seen = [mx.where(is_visible, held, 0.0) for held in (key, value)]
    return {"lengths": lengths, "visible": is_visible, "key": seen[0], "value": seen[1]}


def prefilled(tiny: Library) -> Tree:
    """How many tokens each chunk computed, and the first of the answer."""
    request = tiny.Request(small_model(tiny), ByteTokenizer(), token_ids(97), prefill_max_step=16)
    chunks: list[Tree] = []
    while not request.is_prefill_done and len(chunks) < 97:
        chunks.append([request.try_prefill(), request.offset])
    return {"chunks": chunks, "first token": request.token_ids}


CASES = (
    # day 1
    Case("TinyKvFullCache", "A prompt and 60 tokens", cached),
    Case(
        "simple_generate_with_kv_cache",
        "16 tokens, greedily",
        lambda tiny: generated(tiny, "simple_generate_with_kv_cache", 16),
    ),
    # day 2
    Case(
        "dequantize_weights",
        "4, 8 and 3 bits",
        lambda tiny: [tiny.dequantize_weights(packed(tiny, 509, 384, bits=bits)) for bits in BITS],
    ),
    Case(
        "ops.quantize.quantized_matmul_simple",
        "37 rows",
        lambda tiny: product(tiny, "quantized_matmul_simple", 37),
    ),
    # day 3
    Case(
        "cpu.quantized_matmul_simple.quantized_matmul_simple",
        "One row, 4 bits",
        lambda tiny: product(tiny, "multiply_simple", 1),
    ),
    Case("multiply_column", "11 rows, 4 bits", lambda tiny: product(tiny, "multiply_simd", 11)),
    *gpu_cases("quantized_matvec", "Two rows", lambda tiny, target: gpu_product(tiny, 2, target)),
    *gpu_cases("quantized_matmul", "33 rows", lambda tiny, target: gpu_product(tiny, 33, target)),
    Case(
        "kernels.quantized_matmul.quantized_matmul",
        "3 and 130 rows",
        lambda tiny: product(tiny, "quantized_matmul", 3, 130),
    ),
    # day 4
    Case(
        "ops.flash_attention.flash_attention",
        "257 queries, causal",
        lambda tiny: attended(tiny, "flash_attention", 257, 257),
    ),
    # day 5
    Case("score_few", "One query, 1,500 keys", lambda tiny: attended(tiny, "dispatch_attention", 1, 1500)),
    Case(
        "update_softmax", "131 queries, 400 keys", lambda tiny: attended(tiny, "dispatch_attention", 131, 400)
    ),
    *gpu_cases("flash_decode", "One query", lambda tiny, target: gpu_attention(tiny, 1, target)),
    *gpu_cases("flash_attention", "35 queries", lambda tiny, target: gpu_attention(tiny, 35, target)),
    Case("rms_norm", "512 vectors", lambda tiny: tiny.rms_norm(normal(512, 576), normal(576, seed=1), 1e-5)),
    Case("swiglu", "512 vectors", lambda tiny: tiny.swiglu(normal(512, 1536), normal(512, 1536, seed=1))),
    Case(
        "dispatch_attention",
        "509 queries, causal",
        lambda tiny: attended(tiny, "dispatch_attention", 509, 509),
    ),
    # day 6
    Case("BatchingKvCache.update_and_fetch", "Rows of 131, 67 and 7", ragged_rows),
    # day 7
    Case(
        "chunked_attention_mask", "127 of 1021 keys", lambda tiny: tiny.chunked_attention_mask(300, 127, 1021)
    ),
    Case("try_prefill", "97 tokens, chunks of 16", prefilled),
)
