"""Quantize full blocks in place: on a CPU, by a C++ function."""

from functools import cache
from pathlib import Path

import mlx.core as mx

from kernel_runtime.cpu_kernel import CpuKernel
from kernel_runtime.native import kernels_mode
from kernel_runtime.self_check import judge, sample
from kernel_runtime.shapes import shaped

from ..ops.quantized_blocks import bits_of, dequantize_heads, words_per_head
from ..ops.writing import quantize_blocks_simple

SOURCE = Path(__file__).parent / "quantize_blocks.cpp"
QUANTIZE_BLOCKS = CpuKernel(SOURCE, is_in_place=True)
FLOATS = (mx.float32, mx.bfloat16, mx.float16)
"""Types of the entries. The C++ function gets the index of a type in this list."""


@shaped(
    blocks="[num_blocks, block_size, H, words] uint32",
    places="[F] integer",
    floats="[num_tails, block_size, H, D]",
    tails="[F] integer",
)
def quantize_blocks(blocks: mx.array, places: mx.array, floats: mx.array, tails: mx.array) -> mx.array:
    """Do what `quantize_blocks_simple` does, with the C++ function where that works."""
    is_native = (
        mx.default_device() != mx.gpu
        and kernels_mode() not in ("mlx", "off")
        and floats.dtype in FLOATS
        and _is_right()
    )
    return (quantize_natively if is_native else quantize_blocks_simple)(blocks, places, floats, tails)


def quantize_natively(blocks: mx.array, places: mx.array, floats: mx.array, tails: mx.array) -> mx.array:
    """Do `quantize_blocks` with the C++ function."""
    inputs = [blocks, floats, tails.astype(mx.int32), places.astype(mx.int32)]
    numbers = [bits_of(blocks.shape[-1], floats.shape[-1]), FLOATS.index(floats.dtype)]
    return QUANTIZE_BLOCKS(inputs, [blocks.shape], [mx.uint32], numbers)[0]


@cache
def _is_right() -> bool:
    floats, tails, places = sample(3, 2, 2, 64), mx.array([2, 0]), mx.array([1, 3])
    verdict = judge(
        "quantize_blocks",
        lambda: dequantize_heads(quantize_natively(_blank(), places, floats, tails), 64),
        lambda: dequantize_heads(quantize_blocks_simple(_blank(), places, floats, tails), 64),
    )
    return verdict == "right"


def _blank() -> mx.array:
    return mx.zeros((4, 2, 2, words_per_head(64, 4)), mx.uint32)
