"""The operations that race, without attention: their candidates, a small check and what is timed of each."""

from collections.abc import Callable, Mapping
from itertools import cycle
from typing import Any

import mlx.core as mx

from kernel_runtime.contest import CHUNK, Contest, Run, switch
from kernel_runtime.native import is_invariant
from kernel_runtime.self_check import close_in, close_products, sample
from tiny_llm.kernels.quantized_matmul import quantized_matmul
from tiny_llm.model.operations import PLAIN_OPERATIONS
from tiny_llm.ops.basics import as_projection
from tiny_llm.ops.positional_encoding import RoPE
from tiny_llm.ops.quantize import QuantizedMatmul, QuantizedWeights, quantized_matmul_simple

from .fused_parts import FusedNorm, FusedRope, fused_mlp
from .integer_matmul import integer_matmul
from .mlx_parts import MlxNorm, MlxRope, mlx_matmul, mlx_mlp
from .race_inputs import NUM_WEIGHTS, as_quantized, is_on_gpu, normal, packed_in, projection, sizes
from .tiled_matmul import tiled_matmul


def num_rows(x: mx.array, *_: object) -> int:
    """How many vectors an array holds."""
    return x.size // max(x.shape[-1], 1)


def switch_makers(makers: Mapping[int, Any], rows_of: Callable[..., int]) -> Any:
    """A maker of parts that call the part for their number of rows."""

    def make(*args: object) -> Any:
        parts = {each: each(*args) for each in makers.values()}
        return switch({rows: parts[each] for rows, each in makers.items()}, rows_of)

    return make


def norms(dtype: mx.Dtype) -> Contest[Any]:
    """RMSNorm."""
    x, weight = sample(3, 64).astype(dtype), sample(64).astype(dtype)

    def start(make: Any) -> Callable[[int], Run]:
        norm = make(sizes().dim, normal(dtype, sizes().dim), 1e-5)
        return lambda rows: (norm, normal(dtype, rows, sizes().dim))

    mlx = FusedNorm if is_on_gpu() else MlxNorm  # where the course's is MLX's own
    return Contest(
        name="norm",
        kernel="rms_norm",
        candidates={"own": FusedNorm, "mlx": mlx, "plain": PLAIN_OPERATIONS.norm},
        fallback=PLAIN_OPERATIONS.norm,
        sample=lambda make: make(64, weight, 1e-5)(x),
        expected=lambda: mx.fast.rms_norm(x.astype(mx.float32), weight.astype(mx.float32), 1e-5),
        start=start,
        by_rows=lambda makers: switch_makers(makers, num_rows),
        close=close_in(dtype),
        dtype=dtype,
    )


def ropes(dtype: mx.Dtype) -> Contest[Any]:
    """The rotation."""
    x = sample(1, 3, 2, 64).astype(dtype)

    def expected() -> mx.array:
        exact = x.astype(mx.float32).swapaxes(1, 2)
        turned = mx.fast.rope(exact, 64, traditional=False, base=10000.0, scale=1.0, offset=5)
        return turned.swapaxes(1, 2)

    def start(make: Any) -> Callable[[int], Run]:
        rope, shape = make(sizes().head_dim, 2 * CHUNK), (sizes().num_heads, sizes().head_dim)

        def run_of(rows: int) -> Run:
            if rows == CHUNK:
                return lambda x: rope(x, CHUNK), normal(dtype, 1, rows, *shape)
            return lambda x: rope(x, [CHUNK] * rows), normal(dtype, rows, 1, *shape)

        return run_of

    return Contest(
        name="rope",
        kernel="rotate",
        candidates={"own": FusedRope, "mlx": MlxRope, "plain": RoPE},
        fallback=RoPE,
        sample=lambda make: make(64, 10)(x, 5),
        expected=expected,
        start=start,
        by_rows=lambda makers: switch_makers(makers, lambda x, *_: x.shape[0] * x.shape[1]),
        close=close_in(dtype),
        dtype=dtype,
    )


def matmuls(dtype: mx.Dtype) -> Contest[Any]:
    """The product with packed weights, by few rows and by many; None stands for that with expanded ones.

    `integer_matmul` and, on a GPU, `tiled_matmul`, which are given, are the course's as well once
    `quantized_matmul` works.
    """
    inputs, packed = (
        [sample(2, 128).astype(dtype), sample(40, 128).astype(dtype)],
        packed_in(dtype, sample(3, 128)),
    )

    def multiply(matmul: QuantizedMatmul | None, x: mx.array) -> mx.array:
        if matmul is None:
            return as_projection(mx.dequantize(*packed))(x)
        return matmul(x, QuantizedWeights(*packed))

    def compute(matmul: QuantizedMatmul | None) -> mx.array:
        return mx.concatenate([multiply(matmul, x).astype(mx.float32) for x in inputs])

    def expected() -> mx.array:
        x = mx.concatenate([each.astype(mx.float32) for each in inputs])
        weight, scales, biases = packed
        return mx.quantized_matmul(x, weight, scales.astype(mx.float32), biases.astype(mx.float32))

    def start(matmul: QuantizedMatmul | None) -> Callable[[int], Run]:
        dim = sizes().dim
        layers = cycle([projection(matmul, dtype, dim, dim) for _ in range(NUM_WEIGHTS)])
        return lambda rows: (lambda x: next(layers)(x), normal(dtype, rows, dim))

    on_gpu = is_on_gpu()
    return Contest(
        name="matmul",
        kernel="quantized_matmul",
        candidates={
            "own": quantized_matmul,
            "given": tiled_matmul if on_gpu else integer_matmul,
            "mlx": mlx_matmul,
            "plain": quantized_matmul_simple if on_gpu else None,
        },
        fallback=None,
        sample=compute,
        expected=expected,
        start=start,
        by_rows=(lambda functions: switch(functions, num_rows)) if on_gpu else None,
        keeps_bits=("own", "given") if on_gpu else ("given", "mlx", *(("own",) if is_invariant() else ())),
        close=close_in(dtype),
        dtype=dtype,
    )


def mlps(matmul: QuantizedMatmul | None, dtype: mx.Dtype) -> Contest[Any]:
    """The feed-forward half of a layer. Weights are joined as it is made, so one part computes all rows."""
    weights = sample(128, 64), sample(129, 64)[1:], sample(64, 128)
    x, plain = sample(3, 64).astype(dtype), [weight.astype(dtype) / 8 for weight in weights]
    packed = [packed_in(dtype, weight) for weight in plain]

    def compute(make: Any) -> mx.array:
        kinds = map(as_projection, plain), map(as_quantized, packed)
        return mx.stack([make(64, 128, *kind)(x) for kind in kinds])

    def expected() -> mx.array:
        outputs = []
        exact = x.astype(mx.float32)
        for kind in (plain, [mx.dequantize(*each) for each in packed]):
            w_gate, w_up, w_down = (weight.astype(mx.float32) for weight in kind)
            gate = exact @ w_gate.T
            outputs.append((gate * mx.sigmoid(gate) * (exact @ w_up.T)) @ w_down.T)
        return mx.stack(outputs)

    def start(make: Any) -> Callable[[int], Run]:
        E, hidden = sizes().dim, sizes().hidden_dim
        shapes = (hidden, E), (hidden, E), (E, hidden)
        layers = cycle(
            [
                make(E, hidden, *(projection(matmul, dtype, *shape) for shape in shapes))
                for _ in range(NUM_WEIGHTS)
            ]
        )
        return lambda rows: (lambda x: next(layers)(x), normal(dtype, rows, E))

    return Contest(
        name="mlp",
        kernel="swiglu",
        candidates={"own": fused_mlp, "mlx": mlx_mlp, "plain": PLAIN_OPERATIONS.mlp},
        fallback=PLAIN_OPERATIONS.mlp,
        sample=compute,
        expected=expected,
        start=start,
        close=close_products(dtype),
        dtype=dtype,
    )
