"""The fastest parts that a model can be made of here: the kernels, once they are written and right.

Each is tried on a small input first. One that is not written yet, cannot be compiled or differs from MLX's
own operation is left out, so that a model always computes the right thing; a line on standard error says so.
"""

from collections.abc import Callable
from functools import cache

import mlx.core as mx

from .attention import Attention, scaled_dot_product_attention_grouped
from .basics import Projection, as_projection
from .kernels.fast_attention import fast_attention
from .kernels.fused_operations import rms_norm, rotate, swiglu
from .kernels.integer_matmul import integer_matmul
from .kernels.quantized_matmul import quantized_matmul
from .layer_norm import RMSNorm
from .loader import Parts
from .mlp import Qwen3MLP
from .native import BuildError, is_on, notice
from .positional_encoding import RoPE, RopeScaling
from .quantize import QuantizedMatmul, QuantizedWeights

CLOSE = 1e-3  # of the largest entry: far above rounding, far below any mistake


class FusedRMSNorm(RMSNorm):
    """RMSNorm in one pass over memory."""

    def __init__(self, dim: int, weight: mx.array, eps: float = 1e-5) -> None:
        super().__init__(dim, weight, eps)
        self._fused_weight, self._fused_eps = weight, eps

    def __call__(self, x: mx.array) -> mx.array:
        """[..., E] -> [..., E]"""
        return rms_norm(x, self._fused_weight, self._fused_eps)


class FusedRoPE(RoPE):
    """RoPE in one pass over memory; what it turns by it learns from the RoPE that it extends."""

    def __init__(
        self,
        dims: int,
        seq_len: int,
        base: float = 10000,
        traditional: bool = False,
        scaling: RopeScaling | None = None,
    ) -> None:
        super().__init__(dims, seq_len, base, traditional, scaling)
        self._fused_traditional, self._fused_shape = traditional, (seq_len, dims)
        # A pair (1, 0) is turned into (cos, sin).
        ones, zeros = mx.ones((1, seq_len, 1, dims // 2)), mx.zeros((1, seq_len, 1, dims // 2))
        probe = mx.stack([ones, zeros], axis=-1 if traditional else -2).reshape(1, seq_len, 1, dims)
        turned = super().__call__(probe).reshape(seq_len, *((-1, 2) if traditional else (2, -1)))
        pair_axis = -1 if traditional else -2
        # In one block, or each call would arrange the whole table anew.
        self._fused_cos, self._fused_sin = (mx.contiguous(mx.take(turned, i, axis=pair_axis)) for i in (0, 1))

    def __call__(self, x: mx.array, offset: int | slice | list[int] | None = None) -> mx.array:
        """[B, L, H, D] -> [B, L, H, D], errors as for RoPE."""
        B, L, _, D = x.shape
        seq_len, dims = self._fused_shape
        first = self.first_positions(offset, B, L)
        if dims != D or min(first) < 0 or max(first) + L > seq_len:
            return super().__call__(x, offset)  # which knows the right error
        return rotate(x, self._fused_cos, self._fused_sin, first, self._fused_traditional)


class FusedMLP(Qwen3MLP):
    """SwiGLU with its gate in one pass over memory."""

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        w_gate: mx.array | Projection,
        w_up: mx.array | Projection,
        w_down: mx.array | Projection,
    ) -> None:
        super().__init__(dim, hidden_dim, w_gate, w_up, w_down)
        # Under names of its own: those of the MLP that it extends are the learner's to choose.
        self._fused_gate, self._fused_up, self._fused_down = map(as_projection, (w_gate, w_up, w_down))

    def __call__(self, x: mx.array) -> mx.array:
        """[B, L, E] -> [B, L, E]"""
        return self._fused_down(swiglu(self._fused_gate(x), self._fused_up(x)))


@cache
def best_matmul() -> QuantizedMatmul | None:
    """The fastest product with packed weights, or None where none works and they are better expanded.

    `integer_matmul`, which is given, takes the place of `quantized_matmul` once that is written.
    """

    def compare(matmul: QuantizedMatmul) -> tuple[mx.array, mx.array]:
        weight, scales, biases = mx.quantize(_sample(3, 128), group_size=64, bits=4)
        x = _sample(2, 128)
        product = mx.quantized_matmul(x, weight, scales, biases, group_size=64, bits=4)
        return matmul(x, QuantizedWeights(weight, scales, biases, 64, 4)), product

    if not _works("quantized_matmul", lambda: compare(quantized_matmul)):
        return None
    return integer_matmul if _works("integer_matmul", lambda: compare(integer_matmul)) else quantized_matmul


@cache
def best_attention() -> Attention:
    """`fast_attention`, or that of week 1 where it does not work."""

    def compare() -> tuple[mx.array, mx.array]:
        query, key, value = _sample(1, 6, 5, 64), _sample(1, 2, 70, 64), _sample(1, 2, 70, 64) + 1
        expected = mx.fast.scaled_dot_product_attention(query, key, value, scale=0.1, mask="causal")
        return fast_attention(query, key, value, 0.1, "causal"), expected

    return fast_attention if _works("fast_attention", compare) else scaled_dot_product_attention_grouped


@cache
def best_parts() -> Parts:
    """The fused norm, rotation and MLP as far as they work, those of week 1 in the place of others."""
    x, weight = _sample(3, 64), _sample(64)
    is_on_cpu = mx.default_device() == mx.Device(mx.cpu)  # the only place where the rotation has a kernel

    def compare_norm() -> tuple[mx.array, mx.array]:
        return FusedRMSNorm(64, weight, 1e-5)(x), mx.fast.rms_norm(x, weight, 1e-5)

    def compare_rope() -> tuple[mx.array, mx.array]:
        heads = _sample(1, 3, 2, 64)
        expected = mx.fast.rope(
            heads.swapaxes(1, 2), 64, traditional=False, base=10000.0, scale=1.0, offset=5
        )
        return FusedRoPE(64, 10)(heads, 5), expected.swapaxes(1, 2)

    def compare_mlp() -> tuple[mx.array, mx.array]:
        w_gate, w_up, w_down = _sample(96, 64), _sample(97, 64)[1:], _sample(64, 96)
        gate = x @ w_gate.T
        expected = (gate * mx.sigmoid(gate) * (x @ w_up.T)) @ w_down.T
        return FusedMLP(64, 96, w_gate, w_up, w_down)(x), expected

    return Parts(
        rms_norm=FusedRMSNorm if _works("rms_norm", compare_norm) else RMSNorm,
        rope=FusedRoPE if is_on_cpu and _works("rotate", compare_rope) else RoPE,
        mlp=FusedMLP if _works("swiglu", compare_mlp) else Qwen3MLP,
    )


def _sample(*shape: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(sum(shape)))


def _works(name: str, compare: Callable[[], tuple[mx.array, mx.array]]) -> bool:
    """Whether a kernel gives what MLX's own operation gives; a notice where it should and does not."""
    if not is_on("TINY_LLM_KERNELS"):
        return False
    try:
        ours, expected = compare()
        is_close = mx.max(mx.abs(ours - expected)) <= CLOSE * mx.max(mx.abs(expected))
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
