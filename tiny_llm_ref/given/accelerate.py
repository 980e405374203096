"""The fastest operations that work on this machine: the kernels, once they are written and correct.

Each kernel is tried on a small input first. One that is not written yet, does not compile or differs from
MLX's own operation is left out, with a line on standard error, so a model always computes the right thing.
"""

from collections.abc import Callable
from functools import cache

import mlx.core as mx

from kernel_runtime.paged_check import PagedAttention
from kernel_runtime.self_check import close_products, sample, works

from ..kernels.dispatch_attention import dispatch_attention
from ..kernels.dispatch_paged_attention import dispatch_paged_attention
from ..kernels.given.integer_matmul import integer_matmul
from ..kernels.quantized_matmul import quantized_matmul
from ..model.config import ModelConfig
from ..model.given.operations import PLAIN_OPERATIONS, Operations
from ..model.qwen3 import Qwen3MultiHeadAttention, SelfAttention
from ..ops.basics import as_projection
from ..ops.paged_attention import paged_attention
from ..ops.positional_encoding import RoPE, Rotation
from ..ops.quantize import QuantizedMatmul, QuantizedProjection, QuantizedWeights
from .fused_parts import FusedNorm, FusedRope, fused_attention, fused_mlp


@cache
def best_operations() -> Operations:
    """Kernels where they work, the operations of week 1 elsewhere."""
    plain = PLAIN_OPERATIONS
    is_on_cpu = mx.default_device() == mx.Device(mx.cpu)  # the rotation has no kernel elsewhere
    has_rope = is_on_cpu and _rope_works()
    return Operations(
        norm=FusedNorm if _norm_works() else plain.norm,
        rope=FusedRope if has_rope else plain.rope,
        mlp=fused_mlp if _mlp_works() else plain.mlp,
        attention_layer=fused_attention if has_rope and _attention_layer_works() else plain.attention_layer,
        attention=dispatch_attention if _attention_works() else plain.attention,
        matmul=_best_matmul(),
    )


@cache
def best_paged_attention() -> PagedAttention:
    """`dispatch_paged_attention` if it works, else `paged_attention` in array operations."""
    keys, values = sample(4, 16, 2, 64), sample(4, 16, 2, 64) + 1
    query, tables = sample(12, 6, 64), mx.array([[3, 1], [2, 0]])
    places = tables, mx.array([0, 11, 12]), mx.array([23, 5])

    def expected() -> mx.array:
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

    def ours() -> mx.array:
        return dispatch_paged_attention(query, keys, values, *places)

    return dispatch_paged_attention if works("dispatch_paged_attention", ours, expected) else paged_attention


def _best_matmul() -> QuantizedMatmul | None:
    """`integer_matmul`, which is given, once `quantized_matmul` works; None until then."""
    x, packed = sample(2, 128), mx.quantize(sample(3, 128))

    def expected() -> mx.array:
        return mx.quantized_matmul(x, *packed)

    if not works("quantized_matmul", lambda: quantized_matmul(x, QuantizedWeights(*packed)), expected):
        return None
    has_integers = works("integer_matmul", lambda: integer_matmul(x, QuantizedWeights(*packed)), expected)
    return integer_matmul if has_integers else quantized_matmul


def _attention_works() -> bool:
    query, key, value = sample(1, 6, 5, 64), sample(1, 2, 70, 64), sample(1, 2, 70, 64) + 1
    return works(
        "dispatch_attention",
        lambda: dispatch_attention(query, key, value, 0.1, "causal"),
        lambda: mx.fast.scaled_dot_product_attention(query, key, value, scale=0.1, mask="causal"),
    )


def _norm_works() -> bool:
    x, weight = sample(3, 64), sample(64)
    return works("rms_norm", lambda: FusedNorm(64, weight)(x), lambda: mx.fast.rms_norm(x, weight, 1e-5))


def _rope_works() -> bool:
    x = sample(1, 3, 2, 64)

    def expected() -> mx.array:
        turned = mx.fast.rope(x.swapaxes(1, 2), 64, traditional=False, base=10000.0, scale=1.0, offset=5)
        return turned.swapaxes(1, 2)

    return works("rotate", lambda: FusedRope(64, 10)(x, 5), expected)


def _mlp_works() -> bool:
    x, plain = sample(3, 64), [sample(128, 64), sample(129, 64)[1:], sample(64, 128)]
    packed = [mx.quantize(weight) for weight in plain]

    def ours() -> mx.array:
        kinds = map(as_projection, plain), map(_projection, packed)
        return mx.stack([fused_mlp(64, 128, *kind)(x) for kind in kinds])

    def expected() -> mx.array:
        outputs = []
        for w_gate, w_up, w_down in (plain, [mx.dequantize(*each) for each in packed]):
            gate = x @ w_gate.T
            outputs.append((gate * mx.sigmoid(gate) * (x @ w_up.T)) @ w_down.T)
        return mx.stack(outputs)

    return works("swiglu", ours, expected, close_products())


def _attention_layer_works() -> bool:
    config, x = ModelConfig("llama", 64, 1, 1, 4, 2, 16, 1, 10), sample(2, 3, 64)
    packed = [mx.quantize(sample(size, 64)) for size in (64, 32, 32, 64)]

    def run(make: Callable[..., SelfAttention], rope: Rotation) -> mx.array:
        return make(config, *map(_projection, packed), rope)(x, 4)

    plain = Qwen3MultiHeadAttention
    return works(
        "split_heads", lambda: run(fused_attention, FusedRope(16, 10)), lambda: run(plain, RoPE(16, 10))
    )


def _projection(packed: tuple[mx.array, mx.array, mx.array]) -> QuantizedProjection:
    return QuantizedProjection(QuantizedWeights(*packed))
