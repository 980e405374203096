"""Write to the arrays of a pool in place: rows of keys and values, and quantized blocks."""

from collections.abc import Callable

import mlx.core as mx

from .quantized_blocks import bits_of, quantize_heads

StoreRows = Callable[[mx.array, mx.array, mx.array], mx.array]
"""`store_rows_simple`, or a faster one."""
QuantizeBlocks = Callable[[mx.array, mx.array, mx.array, mx.array], mx.array]
"""`quantize_blocks_simple`, or a faster one."""


def store_rows_simple(held: mx.array, slots: mx.array, new: mx.array) -> mx.array:
    """Do `held[slots] = new`, and return the array to keep.

    Args:
        held: [num_slots, ...]. Don't use it afterwards: the result takes its memory if nothing else refers to
            it.
        slots: [T], integers from 0 to num_slots - 1. That is not checked, since it would wait for them.
        new: [T, ...], of the type of `held`.

    Returns:
        [num_slots, ...]
    """
    held[slots] = new
    return held


def quantize_blocks_simple(blocks: mx.array, places: mx.array, floats: mx.array, tails: mx.array) -> mx.array:
    """Do `blocks[places] = quantize_heads(floats[tails], bits)`, and return the array to keep.

    Args:
        blocks: [num_blocks, block_size, H, words per head], uint32. Don't use it afterwards: the result takes
            its memory if nothing else refers to it.
        places: [F], blocks to write, all different.
        floats: [num_tails, block_size, H, D]
        tails: [F], what to write there. The values of both are not checked: that would wait for them.

    Returns:
        [num_blocks, block_size, H, words per head]
    """
    bits = bits_of(blocks.shape[-1], floats.shape[-1])
    return store_rows_simple(blocks, places, quantize_heads(floats[tails], bits))
