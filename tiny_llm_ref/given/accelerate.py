"""The fastest parts that a model can be made of here: the kernels, once they are written and right.

Each is tried on a small input first. One that is not written yet, cannot be compiled or differs from MLX's
own operation is left out, so that a model always computes the right thing; a line on standard error says so.
"""

import os
from collections.abc import Callable
from functools import cache

import mlx.core as mx

from kernel_runtime.native import BuildError, is_on, notice
from kernel_runtime.paged_check import PagedAttention

from ..kernels.dispatch_attention import dispatch_attention
from ..kernels.dispatch_paged_attention import dispatch_paged_attention
from ..kernels.given.integer_matmul import integer_matmul
from ..kernels.quantized_matmul import quantized_matmul
from ..model.config import ModelConfig
from ..model.loader import Parts
from ..model.mlp import Qwen3MLP
from ..model.qwen3 import Qwen3MultiHeadAttention
from ..ops.attention import Attention, scaled_dot_product_attention_grouped
from ..ops.norm import RMSNorm
from ..ops.paged_attention import paged_attention
from ..ops.positional_encoding import RoPE
from ..ops.quantize import QuantizedMatmul, QuantizedProjection, QuantizedWeights
from .fused_parts import FusedAttention, FusedMLP, FusedRMSNorm, FusedRoPE

CLOSE = 1e-3  # of the largest entry: far above rounding, far below any mistake
CLOSE_IN_TF32 = 4e-3  # products that cut each factor after 10 bits put the MLP off by up to 2.9e-3

Comparison = tuple[mx.array, Callable[[], mx.array]]
"""What a kernel gives, and how MLX computes the same."""


@cache
def best_matmul() -> QuantizedMatmul | None:
    """The fastest product with packed weights, or None where none works and they are better expanded.

    `integer_matmul`, which is given, takes the place of `quantized_matmul` once that is written.
    """

    def compare(matmul: QuantizedMatmul) -> Comparison:
        weight, scales, biases = mx.quantize(_sample(3, 128), group_size=64, bits=4)
        x = _sample(2, 128)
        ours = matmul(x, QuantizedWeights(weight, scales, biases, 64, 4))
        return ours, lambda: mx.quantized_matmul(x, weight, scales, biases, group_size=64, bits=4)

    if not _works("quantized_matmul", lambda: compare(quantized_matmul)):
        return None
    return integer_matmul if _works("integer_matmul", lambda: compare(integer_matmul)) else quantized_matmul


@cache
def best_attention() -> Attention:
    """`dispatch_attention`, or that of week 1 where it does not work."""

    def compare() -> Comparison:
        query, key, value = _sample(1, 6, 5, 64), _sample(1, 2, 70, 64), _sample(1, 2, 70, 64) + 1
        ours = dispatch_attention(query, key, value, 0.1, "causal")
        attend = mx.fast.scaled_dot_product_attention
        return ours, lambda: attend(query, key, value, scale=0.1, mask="causal")

    works = _works("dispatch_attention", compare)
    return dispatch_attention if works else scaled_dot_product_attention_grouped


@cache
def best_paged_attention() -> PagedAttention:
    """`dispatch_paged_attention`, or that in array operations where it does not work."""

    def compare() -> Comparison:
        keys, values = _sample(4, 16, 2, 64), _sample(4, 16, 2, 64) + 1
        query, tables = _sample(12, 6, 64), mx.array([[3, 1], [2, 0]])
        places = tables, mx.array([0, 11, 12]), mx.array([23, 5])
        contexts = [(keys[tables[i]], values[tables[i]]) for i in (0, 1)]

        def expected() -> mx.array:
            outputs = [
                mx.fast.scaled_dot_product_attention(
                    rows.swapaxes(0, 1)[None],
                    *(x.reshape(1, -1, 2, 64)[:, :S].swapaxes(1, 2) for x in pair),
                    scale=0.125,
                    mask="causal",
                )
                for rows, S, pair in zip((query[:11], query[11:]), (23, 5), contexts, strict=True)
            ]
            return mx.concatenate([output[0].swapaxes(0, 1) for output in outputs])

        return dispatch_paged_attention(query, keys, values, *places), expected

    return dispatch_paged_attention if _works("dispatch_paged_attention", compare) else paged_attention


@cache
def best_parts() -> Parts:
    """The fused norm, rotation and MLP as far as they work, those of week 1 in the place of others."""
    x, weight = _sample(3, 64), _sample(64)
    is_on_cpu = mx.default_device() == mx.Device(mx.cpu)  # the only place where the rotation has a kernel

    def compare_norm() -> Comparison:
        return FusedRMSNorm(64, weight, 1e-5)(x), lambda: mx.fast.rms_norm(x, weight, 1e-5)

    def compare_rope() -> Comparison:
        heads = _sample(1, 3, 2, 64)

        def expected() -> mx.array:
            first = heads.swapaxes(1, 2)
            turned = mx.fast.rope(first, 64, traditional=False, base=10000.0, scale=1.0, offset=5)
            return turned.swapaxes(1, 2)

        return FusedRoPE(64, 10)(heads, 5), expected

    def compare_mlp() -> Comparison:
        def expected(w_gate: mx.array, w_up: mx.array, w_down: mx.array) -> mx.array:
            gate = x @ w_gate.T
            return (gate * mx.sigmoid(gate) * (x @ w_up.T)) @ w_down.T

        plain = [_sample(128, 64), _sample(129, 64)[1:], _sample(64, 128)]
        packed = [mx.quantize(weight) for weight in plain]
        projections = [QuantizedProjection(QuantizedWeights(*each, 64, 4)) for each in packed]
        ours = [FusedMLP(64, 128, *plain)(x), FusedMLP(64, 128, *projections)(x)]
        return mx.stack(ours), lambda: mx.stack(
            [expected(*plain), expected(*(mx.dequantize(*each) for each in packed))]
        )

    def compare_attention() -> Comparison:
        config, x = ModelConfig("llama", 64, 1, 1, 4, 2, 16, 1, 10), _sample(2, 3, 64)
        weights = [mx.quantize(_sample(size, 64)) for size in (64, 32, 32, 64)]
        wq, wk, wv, wo = (QuantizedProjection(QuantizedWeights(*each, 64, 4)) for each in weights)
        fused = FusedAttention(config, wq, wk, wv, wo, FusedRoPE(16, 10))(x, 4)
        return fused, lambda: Qwen3MultiHeadAttention(config, wq, wk, wv, wo, RoPE(16, 10))(x, 4)

    has_rope = is_on_cpu and _works("rotate", compare_rope)
    has_attention = has_rope and _works("split_heads", compare_attention)
    return Parts(
        rms_norm=FusedRMSNorm if _works("rms_norm", compare_norm) else RMSNorm,
        rope=FusedRoPE if has_rope else RoPE,
        mlp=FusedMLP if _works("swiglu", compare_mlp, close_products()) else Qwen3MLP,
        attention=FusedAttention if has_attention else Qwen3MultiHeadAttention,
    )


def _sample(*shape: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(sum(shape)))


def close_products() -> float:
    """CLOSE for a part that MLX's own products in float32 belong to: a GPU may compute them in TF32."""
    may_be_tf32 = mx.default_device() == mx.gpu and os.environ.get("MLX_ENABLE_TF32", "1") != "0"
    return CLOSE_IN_TF32 if may_be_tf32 else CLOSE


def _works(name: str, compare: Callable[[], Comparison], close: float = CLOSE) -> bool:
    """Whether a kernel gives what MLX gives on the CPU; a notice where it should and does not.

    There MLX computes in float32 to its last bits, and no sine or cosine is a fast one.
    """
    if not is_on("TINY_LLM_KERNELS"):
        return False
    try:
        ours, expect = compare()
        with mx.stream(mx.cpu):
            expected = expect()
        is_close = mx.max(mx.abs(ours - expected)) <= close * mx.max(mx.abs(expected))
        if ours.shape == expected.shape and bool(is_close):
            return True
        notice(f"the kernel of {name} computes something else than MLX's operation, so that is used instead")
    except NotImplementedError:
        pass
    except BuildError as error:
        _say_once(f"kernels are not in use: {error}. TINY_LLM_KERNELS=off hides this line.")
    except Exception as error:  # a learner's mistake in a part that the model can do without
        notice(f"{name} fails, so MLX's operation is used instead: {type(error).__name__}: {error}")
    return False


@cache
def _say_once(text: str) -> None:
    notice(text)
