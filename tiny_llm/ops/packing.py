"""Codes of a few bits, packed into 32-bit words in MLX's layout."""

import mlx.core as mx

BITS = (2, 3, 4, 5, 6, 8)


def check_bits(bits: int) -> None:
    """Raise ValueError unless `bits` is a width that MLX can pack."""
    if bits not in BITS:
        raise ValueError(f"bits must be 2, 3, 4, 5, 6 or 8, got {bits}")


def unpack(packed: mx.array, bits: int) -> mx.array:
    """Unpack the codes of each row, which is one little-endian stream of bits along the last axis.

    Code i occupies bits [i x bits, (i + 1) x bits) of its row. Bit 0 is the lowest bit of the first word.
    A code of 3, 5 or 6 bits may begin in one word and end in the next.

    Args:
        packed: [..., words], uint32.
        bits: width of a code: 2, 3, 4, 5, 6 or 8.

    Returns:
        [..., words x 32 / bits], uint32, each from 0 to 2**bits - 1.

    Raises:
        ValueError: MLX does not pack codes of that many `bits`; or the `words` of a row do not hold a
            whole number of codes, in which case it shows `bits` as well.
    """
    raise NotImplementedError("week 2 day 2 task 1: unpack is not written yet")


def pack(values: mx.array, bits: int) -> mx.array:
    """Pack codes into words, the inverse of `unpack`.

    Args:
        values: [..., codes], integers from 0 to 2**bits - 1.
        bits: width of a code: 2, 3, 4, 5, 6 or 8.

    Returns:
        [..., codes x bits / 32], uint32.

    Raises:
        ValueError: MLX does not pack codes of that many `bits`; or the `codes` of a row do not fill whole
            words, in which case it shows `bits` as well.
    """
    raise NotImplementedError("week 2 day 2 task 1: pack is not written yet")
