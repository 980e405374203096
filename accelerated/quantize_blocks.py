"""Quantize full blocks in place by a C++ function."""

from pathlib import Path

import mlx.core as mx

from kernel_runtime.cpu_kernel import CpuKernel
from kernel_runtime.shapes import shaped
from tiny_llm.ops.quantized_blocks import bits_of
from tiny_llm.ops.writing import quantize_blocks_simple

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
    """Do what `quantize_blocks_simple` does, with the C++ function for the types of `FLOATS`; CPU only."""
    if floats.dtype not in FLOATS:
        return quantize_blocks_simple(blocks, places, floats, tails)
    inputs = [blocks, floats, tails.astype(mx.int32), places.astype(mx.int32)]
    numbers = [bits_of(blocks.shape[-1], floats.shape[-1]), FLOATS.index(floats.dtype)]
    return QUANTIZE_BLOCKS(inputs, [blocks.shape], [mx.uint32], numbers)[0]
