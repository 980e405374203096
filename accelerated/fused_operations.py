"""Small operations in one pass over memory each, where array operations would make several.

Each raises ValueError if its arrays don't fit each other, before anything is computed.
"""

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx

from kernel_runtime.cpu_kernel import CpuKernel
from kernel_runtime.shapes import shaped
from tiny_llm import kernels

from .gpu_fused import split_heads_gpu, swiglu_gpu, swiglu_halves_gpu

FOLDER = Path(__file__).parent
SOURCES = Path(kernels.__file__).parent / "cpu"
RMS_NORM = CpuKernel(SOURCES / "rms_norm.cpp")
ROPE = CpuKernel(SOURCES / "rope.cpp")
SPLIT_HEADS = CpuKernel(FOLDER / "split_heads.cpp")
SWIGLU = CpuKernel(SOURCES / "swiglu.cpp")
SWIGLU_HALVES = CpuKernel(FOLDER / "swiglu_halves.cpp")


@shaped(x="[..., E]", weight="[E]")
def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    """RMSNorm: x [..., E], weight [E] -> [..., E] in the type of x."""
    if mx.default_device() == mx.gpu:
        return mx.fast.rms_norm(x, weight, eps) if x.size else x  # nothing to launch a kernel for
    inputs = [x.astype(mx.float32), weight.astype(mx.float32)]
    return RMS_NORM(inputs, [x.shape], [mx.float32], [eps])[0].astype(x.dtype)


@shaped(x="[B, L, H, 2 * pairs]", cos="[P, pairs] float32", sin="[P, pairs] float32")
def rotate(
    x: mx.array, cos: mx.array, sin: mx.array, first_positions: Sequence[int], traditional: bool = False
) -> mx.array:
    """RoPE from tables.

    Args:
        x: [B, L, H, D]
        cos, sin: [number of positions, D / 2], the amplitude included.
        first_positions: of each row's first vector, one for all rows or one a row.
        traditional: whether the pairs are neighbours.

    Returns:
        [B, L, H, D] in the type of x.
    """
    B, L, H, D = x.shape
    positions = positions_of_rows(first_positions, B, L, cos)
    if x.size == 0:
        return x
    if mx.default_device() == mx.gpu:
        heads = split_heads_gpu(x.reshape(B, L, H * D), H, 0, (cos, sin), None, positions, traditional)
        return heads[0].swapaxes(1, 2)
    inputs = [x.astype(mx.float32), cos, sin]
    (turned,) = ROPE(inputs, [x.shape], [mx.float32], [traditional, *positions])
    return turned.astype(x.dtype)


@shaped(product="[B, L, width]")
def split_heads(
    product: mx.array,
    num_heads: int,
    num_kv_heads: int,
    tables: tuple[mx.array, mx.array],
    norms: tuple[mx.array, mx.array, float] | None,
    first_positions: Sequence[int],
    traditional: bool = False,
) -> list[mx.array]:
    """Queries, keys and values out of one product, normalized, rotated and with their heads first.

    Args:
        product: [B, L, (H_q + 2 H) x D], queries first, then keys, then values.
        num_heads, num_kv_heads: H_q, H
        tables: cos and sin as for `rotate`.
        norms: weights [D] of queries and keys, and eps; None for a model without them.
        first_positions, traditional: as for `rotate`.

    Returns:
        query [B, H_q, L, D], key and value [B, H, L, D], in the type of the product.
    """
    B, L, _ = product.shape
    D = head_dim_of(product, num_heads + 2 * num_kv_heads, tables, norms)
    positions = positions_of_rows(first_positions, B, L, tables[0])
    if mx.default_device() == mx.gpu:
        return split_heads_gpu(product, num_heads, num_kv_heads, tables, norms, positions, traditional)
    inputs, eps = [product.astype(mx.float32), *tables], 0.0
    if norms is not None:
        *weights, eps = norms
        inputs += [weight.astype(mx.float32) for weight in weights]
    shapes = [(B, heads, L, D) for heads in (num_heads, num_kv_heads, num_kv_heads)]
    numbers = [norms is not None, eps, traditional, *positions]
    heads = SPLIT_HEADS(inputs, shapes, [mx.float32] * 3, numbers)
    return [each.astype(product.dtype) for each in heads]


def head_dim_of(
    product: mx.array,
    num_heads: int,
    tables: tuple[mx.array, mx.array],
    norms: tuple[mx.array, mx.array, float] | None,
) -> int:
    """D; ValueError unless the product has so many heads of D, and tables and norms are made for them."""
    cos, sin = tables
    D = 2 * cos.shape[-1]
    weights = [each.shape for each in norms[:2]] if norms else []
    fit = cos.ndim == 2 and cos.shape == sin.shape and all(shape == (D,) for shape in weights)
    if product.shape[-1] != num_heads * D or not fit or not cos.dtype == sin.dtype == mx.float32:
        raise ValueError(
            f"{num_heads} heads of D need a product of [B, L, {num_heads} x D], cos and sin of [P, D / 2] in "
            f"float32 and norms of [D], got {product.shape}, {cos.shape} of {cos.dtype} and {sin.shape} of "
            f"{sin.dtype}, and norms of {weights}"
        )
    return D


def positions_of_rows(first_positions: Sequence[int], B: int, L: int, cos: mx.array) -> list[int]:
    """The first position of each row; ValueError unless the tables hold the positions of all L vectors."""
    if len(first_positions) not in (1, B) or min(first_positions) < 0 or max(first_positions) + L > len(cos):
        raise ValueError(
            f"{B} rows of {L} vectors need one first position for all or one each, within the {len(cos)} of "
            f"the tables, got {list(first_positions)}"
        )
    return list(first_positions) * (B // len(first_positions))


@shaped(gate="[...]", up="[...]")
def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """silu(gate) * up, elementwise, in the type of gate."""
    if mx.default_device() == mx.gpu:
        return swiglu_gpu(gate, up)
    inputs = [gate.astype(mx.float32), up.astype(mx.float32)]
    return SWIGLU(inputs, [gate.shape], [mx.float32])[0].astype(gate.dtype)


@shaped(product="[..., 2 * I]")
def swiglu_halves(product: mx.array) -> mx.array:
    """`swiglu` of the first and the second half of one product, [..., 2 x I] -> [..., I]."""
    if mx.default_device() == mx.gpu:
        return swiglu_halves_gpu(product)
    shape = (*product.shape[:-1], product.shape[-1] // 2)
    return SWIGLU_HALVES([product.astype(mx.float32)], [shape], [mx.float32])[0].astype(product.dtype)
