"""Codes of a few bits, packed into 32-bit words in MLX's layout."""

from math import gcd

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
    num_words = _words_per_period(bits)
    if packed.shape[-1] % num_words != 0:
        raise ValueError(
            f"with {bits} bits, a row must have a multiple of {num_words} words, got {packed.shape[-1]}"
        )
    words = packed.reshape(*packed.shape[:-1], -1, num_words)
    codes = [_code_at(words, start, bits) for start in range(0, 32 * num_words, bits)]
    return mx.stack(codes, axis=-1).reshape(*packed.shape[:-1], -1)


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
    num_words = _words_per_period(bits)
    num_codes = 32 * num_words // bits
    if values.shape[-1] % num_codes != 0:
        raise ValueError(
            f"with {bits} bits, a row must have a multiple of {num_codes} codes, got {values.shape[-1]}"
        )
    codes = values.astype(mx.uint32).reshape(*values.shape[:-1], -1, num_codes)
    words = [mx.zeros(codes.shape[:-1], mx.uint32)] * num_words
    for i in range(num_codes):
        word, shift = divmod(i * bits, 32)
        words[word] = words[word] | codes[..., i] << shift
        if shift + bits > 32:
            words[word + 1] = words[word + 1] | codes[..., i] >> (32 - shift)
    return mx.stack(words, axis=-1).reshape(*values.shape[:-1], -1)


def _words_per_period(bits: int) -> int:
    """Smallest number of words that hold a whole number of codes."""
    check_bits(bits)
    return bits // gcd(bits, 32)


def _code_at(words: mx.array, start: int, bits: int) -> mx.array:
    """Read the code that begins at bit `start` of a period."""
    word, shift = divmod(start, 32)
    code = words[..., word] >> shift
    if shift + bits > 32:
        code = code | words[..., word + 1] << (32 - shift)
    return mx.bitwise_and(code, 2**bits - 1)
