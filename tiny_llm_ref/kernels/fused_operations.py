"""Small operations in one pass over memory each on the CPU, where array operations would make several.

On a GPU the norm is MLX's own and the gate stays two operations; the rotation runs on the CPU only.
"""

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx

from ..basics import silu
from .cpu_kernel import CpuKernel

SOURCES = Path(__file__).parent / "cpu"
RMS_NORM = CpuKernel(SOURCES / "rms_norm.cpp")
ROPE = CpuKernel(SOURCES / "rope.cpp")
SWIGLU = CpuKernel(SOURCES / "swiglu.cpp")


def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    """RMSNorm: x [..., E], weight [E] -> [..., E] in the type of x."""
    if mx.default_device() == mx.gpu:
        return mx.fast.rms_norm(x, weight, eps)
    inputs = [x.astype(mx.float32), weight.astype(mx.float32)]
    return RMS_NORM(inputs, [x.shape], [mx.float32], [eps])[0].astype(x.dtype)


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
    B = x.shape[0]
    positions = list(first_positions) * (B // len(first_positions))
    inputs = [x.astype(mx.float32), cos, sin]
    (turned,) = ROPE(inputs, [x.shape], [mx.float32], [traditional, *positions])
    return turned.astype(x.dtype)


def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """silu(gate) * up, elementwise, in the type of gate."""
    if mx.default_device() == mx.gpu:
        return silu(gate) * up
    inputs = [gate.astype(mx.float32), up.astype(mx.float32)]
    return SWIGLU(inputs, [gate.shape], [mx.float32])[0].astype(gate.dtype)
