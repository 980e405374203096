"""The fastest operations that a model can be made of here: the kernels, once they are written and right.

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
from ..model.given.operations import PLAIN_OPERATIONS, Operations
from ..model.qwen3 import Qwen3MultiHeadAttention, SelfAttention
from ..ops.basics import as_projection
from ..ops.paged_attention import paged_attention
from ..ops.positional_encoding import RoPE, Rotation
from ..ops.quantize import QuantizedMatmul, QuantizedProjection, QuantizedWeights
from .fused_parts import FusedNorm, FusedRope, fused_attention, fused_mlp

CLOSE = 1e-3  # of the largest entry: far above rounding, far below any mistake
CLOSE_IN_TF32 = 4e-3  # products that cut each factor after 10 bits put the MLP off by up to 2.9e-3

_notice_once = cache(notice)


@cache
def best_operations() -> Operations:
    """The operations by kernels as far as they work, those of week 1 in the place of others."""
    plain = PLAIN_OPERATIONS
    is_on_cpu = mx.default_device() == mx.Device(mx.cpu)  # the only place where the rotation has a kernel
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
    """`dispatch_paged_attention`, or that in array operations where it does not work."""
    keys, values = _sample(4, 16, 2, 64), _sample(4, 16, 2, 64) + 1
    query, tables = _sample(12, 6, 64), mx.array([[3, 1], [2, 0]])
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

    return dispatch_paged_attention if _works("dispatch_paged_attention", ours, expected) else paged_attention


def _best_matmul() -> QuantizedMatmul | None:
    """`integer_matmul`, which is given, once `quantized_matmul` is written; None: weights are expanded."""
    x, packed = _sample(2, 128), mx.quantize(_sample(3, 128))

    def works(matmul: QuantizedMatmul, name: str) -> bool:
        return _works(
            name, lambda: matmul(x, QuantizedWeights(*packed, 64, 4)), lambda: mx.quantized_matmul(x, *packed)
        )

    if not works(quantized_matmul, "quantized_matmul"):
        return None
    return integer_matmul if works(integer_matmul, "integer_matmul") else quantized_matmul


def _attention_works() -> bool:
    query, key, value = _sample(1, 6, 5, 64), _sample(1, 2, 70, 64), _sample(1, 2, 70, 64) + 1
    return _works(
        "dispatch_attention",
        lambda: dispatch_attention(query, key, value, 0.1, "causal"),
        lambda: mx.fast.scaled_dot_product_attention(query, key, value, scale=0.1, mask="causal"),
    )


def _norm_works() -> bool:
    x, weight = _sample(3, 64), _sample(64)
    return _works("rms_norm", lambda: FusedNorm(64, weight)(x), lambda: mx.fast.rms_norm(x, weight, 1e-5))


def _rope_works() -> bool:
    x = _sample(1, 3, 2, 64)

    def expected() -> mx.array:
        turned = mx.fast.rope(x.swapaxes(1, 2), 64, traditional=False, base=10000.0, scale=1.0, offset=5)
        return turned.swapaxes(1, 2)

    return _works("rotate", lambda: FusedRope(64, 10)(x, 5), expected)


def _mlp_works() -> bool:
    x, plain = _sample(3, 64), [_sample(128, 64), _sample(129, 64)[1:], _sample(64, 128)]
    packed = [mx.quantize(weight) for weight in plain]

    def ours() -> mx.array:
        kinds = (
            map(as_projection, plain),
            (QuantizedProjection(QuantizedWeights(*each, 64, 4)) for each in packed),
        )
        return mx.stack([fused_mlp(64, 128, *kind)(x) for kind in kinds])

    def expected() -> mx.array:
        kinds = plain, [mx.dequantize(*each) for each in packed]
        gated = [(x @ gate.T) * mx.sigmoid(x @ gate.T) * (x @ up.T) for gate, up, _ in kinds]
        return mx.stack([each @ down.T for each, (_, _, down) in zip(gated, kinds, strict=True)])

    return _works("swiglu", ours, expected, close_products())


def _attention_layer_works() -> bool:
    config, x = ModelConfig("llama", 64, 1, 1, 4, 2, 16, 1, 10), _sample(2, 3, 64)
    packed = [mx.quantize(_sample(size, 64)) for size in (64, 32, 32, 64)]

    def run(make: Callable[..., SelfAttention], rope: Rotation) -> mx.array:
        return make(config, *(QuantizedProjection(QuantizedWeights(*each, 64, 4)) for each in packed), rope)(
            x, 4
        )

    plain = Qwen3MultiHeadAttention
    return _works(
        "split_heads", lambda: run(fused_attention, FusedRope(16, 10)), lambda: run(plain, RoPE(16, 10))
    )


def _sample(*shape: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(sum(shape)))


def close_products() -> float:
    """CLOSE for a part that MLX's own products in float32 belong to: a GPU may compute them in TF32."""
    may_be_tf32 = mx.default_device() == mx.gpu and os.environ.get("MLX_ENABLE_TF32", "1") != "0"
    return CLOSE_IN_TF32 if may_be_tf32 else CLOSE


def _works(
    name: str, ours: Callable[[], mx.array], expected: Callable[[], mx.array], close: float = CLOSE
) -> bool:
    """Whether a kernel gives what MLX gives on the CPU; a notice where it should and does not.

    There MLX computes in float32 to its last bits, and no sine or cosine is a fast one.
    """
    if not is_on("TINY_LLM_KERNELS"):
        return False
    try:
        actual = ours()
        with mx.stream(mx.cpu):
            exact = expected()
        is_close = mx.max(mx.abs(actual - exact)) <= close * mx.max(mx.abs(exact))
        if actual.shape == exact.shape and bool(is_close):
            return True
        notice(f"the kernel of {name} computes something else than MLX's operation, so that is used instead")
    except NotImplementedError:
        pass
    except BuildError as error:
        _notice_once(f"kernels are not in use: {error}. TINY_LLM_KERNELS=off hides this line.")
    except Exception as error:  # a learner's mistake in a part that the model can do without
        notice(f"{name} fails, so MLX's operation is used instead: {type(error).__name__}: {error}")
    return False
