"""Codes of a few bits, packed into words of 32 as MLX lays them out."""

import mlx.core as mx

BITS = (2, 3, 4, 5, 6, 8)


def check_bits(bits: int) -> None:
    """ValueError unless MLX packs codes of so many `bits`."""
    if bits not in BITS:
        raise ValueError(f"codes have 2, 3, 4, 5, 6 or 8 bits, not {bits}")


def unpack(packed: mx.array, bits: int) -> mx.array:
    """Codes out of words: along the last axis, one little-endian stream of bits.

    Code i lies in bits [i x bits, (i + 1) x bits) of its row; bit 0 is the lowest of the first word.
    A code of 3, 5 or 6 bits may begin in one word and end in the next.

    Args:
        packed: [..., words], uint32.
        bits: width of a code: 2, 3, 4, 5, 6 or 8.

    Returns:
        [..., words x 32 / bits], uint32, each from 0 to 2**bits - 1.

    Raises:
        ValueError: no code has so many `bits`, or the `words` of a row hold no whole number of codes.
    """
    raise NotImplementedError("week 2 day 2 task 1: unpack is not written yet")


def pack(values: mx.array, bits: int) -> mx.array:
    """Codes into words, so that `unpack` gives them back.

    Args:
        values: [..., codes], integers from 0 to 2**bits - 1.
        bits: width of a code: 2, 3, 4, 5, 6 or 8.

    Returns:
        [..., codes x bits / 32], uint32.

    Raises:
        ValueError: no code has so many `bits`, or the `codes` of a row do not fill whole words.
    """
    raise NotImplementedError("week 2 day 2 task 1: pack is not written yet")
