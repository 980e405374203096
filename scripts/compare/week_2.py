"""The cases of `pdm run compare` for week 2; a whole run is in `batch`."""

import mlx.core as mx

from scripts.compare.differences import Tree
from scripts.compare.inputs import (
    ByteTokenizer,
    fitting,
    normal,
    packed,
    query_key_value,
    small_model,
    token_ids,
)
from scripts.compare.library import Case, Library, gpu_cases
from scripts.compare.week_1 import generated


def cached(tiny: Library) -> Tree:
    """A prompt, 60 tokens one by one, some forgotten, and a chunk."""
    cache = tiny.TinyKvFullCache()
    for i, L in enumerate((1031, *[1] * 60, 31)):
        key, value, offset, _ = cache.update_and_fetch(normal(1, 8, L, 64), normal(1, 8, L, 64, seed=1))
        mx.eval(key, value)
        if i == 30:
            cache.rewind(13)
    return {"key": key, "value": value, "offset": offset}


def dequantized(tiny: Library) -> Tree:
    """The weights of each."""
    return [tiny.dequantize_weights(packed(tiny, 3072, 1024, bits=bits)) for bits in (4, 8, 3)]


def product(tiny: Library, function: str, rows: int) -> Tree:
    """Rows times the packed weights of an MLP of Qwen3-0.6B, by one of the functions for it."""
    outputs, inputs = fitting((3072, 1024), emulated=(96, 128))
    return getattr(tiny, function)(normal(rows, inputs), packed(tiny, outputs, inputs))


def attended(tiny: Library, function: str, queries: int, keys: int) -> Tree:
    """Causal attention with the heads of Qwen3-0.6B, by one of the functions for it."""
    H_q, H, D = fitting((16, 8, 128), emulated=(2, 1, 32))
    queries, keys = fitting((queries, keys), emulated=(min(queries, 131), min(keys, 400)))
    inputs = query_key_value(queries, keys, 1, H_q, H=H, D=D)
    return getattr(tiny, function)(*inputs, mask="causal")


def gpu_product(tiny: Library, target: Tree, rows: int) -> Tree:
    """Some rows times packed weights."""
    return tiny.quantized_matmul_gpu(normal(rows, 128), packed(tiny, 37, 128), target)


def gpu_attention(tiny: Library, target: Tree, queries: int) -> Tree:
    """Some queries over 70 keys."""
    inputs = query_key_value(queries, 70, 1, 4, H=2, D=32)
    return tiny.flash_attention_gpu(*inputs, mask="causal", target=target)


def ragged_rows(tiny: Library) -> Tree:
    """What three rows see after 20 tokens more."""
    cache = tiny.BatchingKvCache(3, max_seq_len=2048)
    for slot, L in enumerate((1031, 67, 7)):
        row = tiny.TinyKvFullCache()
        row.update_and_fetch(normal(1, 8, L, 64, seed=L), normal(1, 8, L, 64, seed=L + 1))
        cache.add_request(row, slot)
    for i in range(20):
        pair = (normal(3, 8, 1, 64, seed=i), normal(3, 8, 1, 64, seed=i + 20))
        key, value, lengths, mask = cache.update_and_fetch(*pair)
        mx.eval(key, value)
    is_visible = mx.broadcast_to(mask == 0, (3, 1, 1, key.shape[2])).swapaxes(2, 3)
    seen = [mx.where(is_visible, held, 0.0) for held in (key, value)]
    return {"lengths": lengths, "visible": is_visible, "key": seen[0], "value": seen[1]}


def chunk_mask(tiny: Library) -> Tree:
    """Of a chunk in the middle of a prompt."""
    return tiny.chunked_attention_mask(300, 127, 1021)


def prefilled(tiny: Library) -> Tree:
    """How many tokens each chunk computed, and the first of the answer."""
    request = tiny.Request(small_model(tiny), ByteTokenizer(), token_ids(97), prefill_max_step=16)
    chunks: list[Tree] = []
    while not request.is_prefill_done and len(chunks) < 97:
        chunks.append([request.try_prefill(), request.offset])
    return {"chunks": chunks, "first token": request.token_ids}


WITH_CACHE = "simple_generate_with_kv_cache"
KERNEL = "dispatch_attention"
CASES = (
    # day 1
    Case("TinyKvFullCache", "A prompt and 60 tokens", cached),
    Case(WITH_CACHE, "16 tokens, greedily", generated, (WITH_CACHE, 16)),
    # day 2
    Case("dequantize_weights", "4, 8 and 3 bits", dequantized),
    Case("quantize.quantized_matmul_simple", "37 rows", product, ("quantized_matmul_simple", 37)),
    # day 3
    Case("quantized_matmul_simple.quantized_matmul_simple", "One row", product, ("multiply_simple", 1)),
    Case("multiply_column", "One row", product, ("multiply_simd", 1)),
    Case("multiply_column", "11 rows", product, ("multiply_simd", 11)),
    *gpu_cases("quantized_matvec", "Two rows", gpu_product, 2),
    *gpu_cases("quantized_matmul", "33 rows", gpu_product, 33),
    Case("kernels.quantized_matmul.quantized_matmul", "130 rows", product, ("quantized_matmul", 130)),
    # day 4
    Case("ops.flash_attention.flash_attention", "509 queries", attended, ("flash_attention", 509, 509)),
    # day 5
    Case("score_few", "One query, 4,096 keys", attended, (KERNEL, 1, 4096)),
    Case("update_softmax", "131 queries, 400 keys", attended, (KERNEL, 131, 400)),
    *gpu_cases("flash_decode", "One query", gpu_attention, 1),
    *gpu_cases("flash_attention", "35 queries", gpu_attention, 35),
    Case("rms_norm", "512 vectors", lambda tiny: tiny.rms_norm(normal(512, 576), normal(576, seed=1), 1e-5)),
    Case("swiglu", "512 vectors", lambda tiny: tiny.swiglu(normal(512, 1536), normal(512, 1536, seed=1))),
    Case("dispatch_attention", "509 queries, causal", attended, (KERNEL, 509, 509)),
    # day 6
    Case("BatchingKvCache.update_and_fetch", "Rows of 1,031, 67 and 7", ragged_rows),
    # day 7
    Case("chunked_attention_mask", "127 of 1021 keys", chunk_mask),
    Case("try_prefill", "97 tokens, chunks of 16", prefilled),
)
