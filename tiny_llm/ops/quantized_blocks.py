"""Keys and values in quantized blocks: codes of 4 or 8 bits, with a scale and a bias per group.

The codes of a head are packed as on day 2.2. One more word per group follows them, which holds two float16
numbers: the scale in its lower half, the bias in its upper half. So a head's numbers lie side by side, and a
block is one piece of memory.
"""

import mlx.core as mx

CODE_BITS = (4, 8)
SMALLEST_SCALE = 2.0**-14
"""For a group whose entries are all equal: the smallest float16 with full precision."""


def kv_group_size(head_dim: int) -> int:
    """Number of neighboring entries of a head that share a scale and a bias.

    Raises:
        ValueError: `head_dim` is not a positive multiple of 32.
    """
    if head_dim < 1 or head_dim % 32:
        raise ValueError(f"quantized blocks need a head_dim that is a multiple of 32, got {head_dim}")
    return 32 if head_dim % 64 else 64


def words_per_head(head_dim: int, bits: int) -> int:
    """Number of 32-bit words for the entries of one head of one token: its codes, and one word per group.

    Raises:
        ValueError: `head_dim` is not a positive multiple of 32, or `bits` is neither 4 nor 8.
    """
    if bits not in CODE_BITS:
        raise ValueError(f"bits must be 4 or 8, got {bits}")
    return head_dim * bits // 32 + head_dim // kv_group_size(head_dim)


def bits_of(num_words: int, head_dim: int) -> int:
    """Bits of a code, from the number of words per head.

    Raises:
        ValueError: `num_words` fits neither 4 nor 8 bits, or `head_dim` is not a positive multiple of 32.
    """
    for bits in CODE_BITS:
        if words_per_head(head_dim, bits) == num_words:
            return bits
    raise ValueError(f"{num_words} words cannot hold the codes of a head of {head_dim} dimensions")


def quantize_heads(x: mx.array, bits: int) -> mx.array:
    """Quantize the entries of each head, in groups.

    The grid of a group has 2**bits values, from the smallest entry (the bias) to the largest. The scale is
    the step between two of them, and at least SMALLEST_SCALE. Both are computed in float32 and rounded to
    float16. The codes are computed from the rounded ones, in float32, and rounded to the nearest. So an entry
    is off by at most half a step. If rounding has moved an end of the grid across an entry, the entry gets
    the code of that end.

    Args:
        x: [..., D] with D a multiple of 32.
        bits: 4 or 8.

    Returns:
        [..., words_per_head(D, bits)], uint32: the codes as `pack` packs them, then one word per group, with
        the scale in its lower 16 bits and the bias in its upper 16 bits.

    Raises:
        ValueError: `head_dim` (D) is not a positive multiple of 32, or `bits` is neither 4 nor 8.
    """
    raise NotImplementedError("week 4 day 1 task 1: quantize_heads is not written yet")


def dequantize_heads(words: mx.array, head_dim: int) -> mx.array:
    """Compute scale x code + bias for the entries of each head, in float32.

    Args:
        words: [..., words per head], uint32, as `quantize_heads` returns them.
        head_dim: D.

    Returns:
        [..., D], float32.

    Raises:
        ValueError: `num_words` (words per head) fits neither 4 nor 8 bits, or `head_dim` is not a positive
            multiple of 32.
    """
    raise NotImplementedError("week 4 day 1 task 1: dequantize_heads is not written yet")
