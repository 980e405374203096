"""Attention races: to a dense cache, to blocks, and as a layer with its projections."""

from collections.abc import Callable, Mapping
from itertools import cycle
from typing import Any

import mlx.core as mx

from kernel_runtime.block_layout import BlockLayout
from kernel_runtime.contest import CHUNK, Contest, Run, switch
from kernel_runtime.paged_check import PagedAttention, checked, unchecked
from kernel_runtime.self_check import close_in, sample
from tiny_llm.kernels.dispatch_attention import dispatch_attention
from tiny_llm.kernels.dispatch_paged_attention import dispatch_paged_attention
from tiny_llm.model.config import ModelConfig
from tiny_llm.model.operations import PLAIN_OPERATIONS, Operations
from tiny_llm.model.qwen3 import Qwen3MultiHeadAttention
from tiny_llm.ops.attention import Attention
from tiny_llm.ops.paged_attention import paged_attention
from tiny_llm.ops.positional_encoding import RoPE

from .fused_parts import FusedRope, fused_heads
from .mlx_parts import mlx_attention, mlx_paged_attention
from .race_inputs import NUM_WEIGHTS, as_quantized, is_on_gpu, normal, packed_in, projection, sizes
from .tiled_attention import tiled_attention, tiled_paged_attention

BLOCK_SIZE = 16
Inputs = tuple[mx.array, mx.array, mx.array]
"""Query, key and value."""


def attentions(dtype: mx.Dtype) -> Contest[Attention]:
    """Attention to a dense cache, of few queries and of many: one query a row, or a chunk of one row.

    On a GPU, `tiled_attention`, which is given, is the course's as well once `dispatch_attention` works.
    """
    query, key, value = cast_to(dtype, sample(1, 6, 40, 64), sample(1, 2, 70, 64), sample(1, 2, 70, 64) + 1)
    inputs = [(query[..., :5, :], key, value), (query, key, value)]

    def compute(attention: Attention) -> mx.array:
        outputs = [attention(*each, 0.1, "causal") for each in inputs]
        return mx.concatenate([output.astype(mx.float32) for output in outputs], axis=2)

    def expected() -> mx.array:
        exact = [cast_to(mx.float32, *each) for each in inputs]
        outputs = [mx.fast.scaled_dot_product_attention(*each, scale=0.1, mask="causal") for each in exact]
        return mx.concatenate(outputs, axis=2)

    def start(attention: Attention) -> Callable[[int], Run]:
        return lambda rows: run_of(attention, rows)

    def run_of(attention: Attention, rows: int) -> Run:
        layer = sizes()
        B, L = (1, CHUNK) if rows == CHUNK else (rows, 1)
        shape = (B, layer.num_kv_heads, layer.num_keys, layer.head_dim)
        keys, values = mx.ones(shape, dtype), mx.ones(shape, dtype)
        mx.eval(keys, values)
        first = normal(dtype, B, layer.num_heads, L, layer.head_dim)
        return lambda query: attention(query, keys, values, mask="causal"), first

    return Contest(
        name="attention",
        kernel="dispatch_attention",
        candidates={
            "own": dispatch_attention,
            **({"given": tiled_attention} if is_on_gpu() else {}),
            "mlx": mlx_attention,
            "plain": PLAIN_OPERATIONS.attention,
        },
        fallback=PLAIN_OPERATIONS.attention,
        sample=compute,
        expected=expected,
        start=start,
        by_rows=lambda functions: switch(functions, num_decodes),
        keeps_bits=("own", "given"),
        close=close_in(dtype),
        dtype=dtype,
    )


def cast_to(dtype: mx.Dtype, query: mx.array, key: mx.array, value: mx.array) -> Inputs:
    """The same in a type."""
    return query.astype(dtype), key.astype(dtype), value.astype(dtype)


def num_decodes(query: mx.array, *_: object) -> int:
    """Rows of one query each; CHUNK stands for any other shape."""
    return query.shape[0] if query.shape[-2] == 1 else CHUNK


def paged_attentions(dtype: mx.Dtype) -> Contest[PagedAttention]:
    """Attention to blocks: one query a sequence, or a chunk of one sequence.

    `tiled_paged_attention` is given, as `tiled_attention` is.
    """
    inputs = cast_to(dtype, sample(12, 6, 64), sample(4, 16, 2, 64), sample(4, 16, 2, 64) + 1)
    tables = mx.array([[3, 1], [2, 0]])
    layout = BlockLayout(tables, mx.array([0, 11, 12]), mx.array([23, 5]))

    def expected() -> mx.array:
        query, keys, values = cast_to(mx.float32, *inputs)
        outputs = [
            mx.fast.scaled_dot_product_attention(
                rows.swapaxes(0, 1)[None],
                *(x[tables[i]].reshape(1, -1, 2, 64)[:, :S].swapaxes(1, 2) for x in (keys, values)),
                scale=0.125,
                mask="causal",
            )
            for i, (rows, S) in enumerate(((query[:11], 23), (query[11:], 5)))
        ]
        return mx.concatenate([output[0].swapaxes(0, 1) for output in outputs])

    def start(attention: PagedAttention) -> Callable[[int], Run]:
        return lambda rows: run_of(unchecked(attention), rows)

    def run_of(attend: PagedAttention, rows: int) -> Run:
        layer = sizes()
        N = 1 if rows == CHUNK else rows
        num_blocks = layer.num_keys // BLOCK_SIZE
        shape = (N * num_blocks, BLOCK_SIZE, layer.num_kv_heads, layer.head_dim)
        blocks = mx.ones(shape, dtype), mx.ones(shape, dtype)
        tables = mx.arange(N * num_blocks, dtype=mx.int32).reshape(N, num_blocks)
        starts = mx.arange(N + 1, dtype=mx.int32) * (rows // N)
        layout = BlockLayout(tables, starts, mx.full(N, layer.num_keys, dtype=mx.int32))
        mx.eval(blocks, vars(layout))
        first = normal(dtype, rows, layer.num_heads, layer.head_dim)
        return lambda query: attend(query, *blocks, layout), first

    def by_rows(functions: Mapping[int, PagedAttention]) -> PagedAttention:
        return checked(switch({rows: unchecked(each) for rows, each in functions.items()}, num_paged_decodes))

    return Contest(
        name="paged attention",
        kernel="dispatch_paged_attention",
        candidates={
            "own": dispatch_paged_attention,
            **({"given": tiled_paged_attention} if is_on_gpu() else {}),
            "mlx": mlx_paged_attention,
            "plain": paged_attention,
        },
        fallback=paged_attention,
        sample=lambda attention: attention(*inputs, layout),
        expected=expected,
        start=start,
        by_rows=by_rows,
        keeps_bits=("own", "given"),
        close=close_in(dtype),
        dtype=dtype,
    )


def num_paged_decodes(query: mx.array, keys: mx.array, values: mx.array, layout: BlockLayout) -> int:
    """Sequences of one query each; CHUNK stands for any other batch."""
    return query.shape[0] if query.shape[0] == layout.seq_lens.size else CHUNK


def attention_layers(parts: Operations, dtype: mx.Dtype) -> Contest[Any]:
    """Heads, in a layer of attention; weights are joined as it is made, so one part makes those of all rows.

    Args:
        parts: what it is made of; the course's needs its own rotation, which on a GPU is the same kernel.
        dtype: type of the model.
    """
    config, x = ModelConfig("llama", 64, 1, 1, 4, 2, 16, 1, 10), sample(2, 3, 64).astype(dtype)
    packed = [packed_in(dtype, sample(size, 64) / 8) for size in (64, 32, 32, 64)]
    plain = PLAIN_OPERATIONS.project_heads

    def compute(make: Any, dtype: mx.Dtype) -> mx.array:
        rope = RoPE(16, 10) if make is plain else FusedRope(16, 10)
        kinds = [(codes, scales.astype(dtype), biases.astype(dtype)) for codes, scales, biases in packed]
        wq, wk, wv, wo = map(as_quantized, kinds)
        layer = Qwen3MultiHeadAttention(config, wq, wk, wv, wo, rope, project_heads=make)
        return layer(x.astype(dtype), 4)

    def start(make: Any) -> Callable[[int], Run]:
        size = sizes()
        E, H_q, H, D = size.dim, size.num_heads, size.num_kv_heads, size.head_dim
        config = ModelConfig("llama", E, 1, size.hidden_dim, H_q, H, D, 1, 2 * CHUNK)
        make_rope = FusedRope if make is fused_heads else parts.rope
        rope = make_rope(D, 2 * CHUNK, 10000, False, None)

        def layer_of(*shapes: tuple[int, int]) -> Qwen3MultiHeadAttention:
            wq, wk, wv, wo = (projection(parts.matmul, dtype, *shape) for shape in shapes)
            return Qwen3MultiHeadAttention(
                config, wq, wk, wv, wo, rope, attention=parts.attention, project_heads=make
            )

        shapes = (H_q * D, E), (H * D, E), (H * D, E), (E, H_q * D)
        layers = cycle([layer_of(*shapes) for _ in range(NUM_WEIGHTS)])
        return lambda rows: (
            lambda x: next(layers)(x),
            normal(dtype, *((1, rows) if rows == CHUNK else (rows, 1)), E),
        )

    can_rotate = is_on_gpu() or parts.rope is FusedRope
    return Contest(
        name="attention layer",
        kernel="split_heads",
        candidates={**({"own": fused_heads} if can_rotate else {}), "plain": plain},
        fallback=plain,
        sample=lambda make: compute(make, dtype),
        expected=lambda: compute(plain, mx.float32),
        start=start,
        keeps_bits=("own", "plain"),
        close=close_in(dtype),
        dtype=dtype,
    )
