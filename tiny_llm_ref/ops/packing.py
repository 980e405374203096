"""Codes of a few bits, packed into words of 32 as MLX lays them out."""

from math import gcd

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
    num_words = _words_of_a_period(bits)
    if packed.shape[-1] % num_words != 0:
        raise ValueError(f"rows of {bits} bits come in {num_words} words at a time, got {packed.shape[-1]}")
    words = packed.reshape(*packed.shape[:-1], -1, num_words)
    codes = [_code_at(words, start, bits) for start in range(0, 32 * num_words, bits)]
    return mx.stack(codes, axis=-1).reshape(*packed.shape[:-1], -1)


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
    num_words = _words_of_a_period(bits)
    num_codes = 32 * num_words // bits
    if values.shape[-1] % num_codes != 0:
        raise ValueError(f"rows of {bits} bits come in {num_codes} codes at a time, got {values.shape[-1]}")
    codes = values.astype(mx.uint32).reshape(*values.shape[:-1], -1, num_codes)
    words = [mx.zeros(codes.shape[:-1], mx.uint32)] * num_words
    for i in range(num_codes):
        word, shift = divmod(i * bits, 32)
        words[word] = words[word] | codes[..., i] << shift
        if shift + bits > 32:
            words[word + 1] = words[word + 1] | codes[..., i] >> (32 - shift)
    return mx.stack(words, axis=-1).reshape(*values.shape[:-1], -1)


def _words_of_a_period(bits: int) -> int:
    """After how many words codes begin at the start of a word again."""
    check_bits(bits)
    return bits // gcd(bits, 32)


def _code_at(words: mx.array, start: int, bits: int) -> mx.array:
    """The code that begins at bit `start` of the words of a period."""
    word, shift = divmod(start, 32)
    code = words[..., word] >> shift
    if shift + bits > 32:
        code = code | words[..., word + 1] << (32 - shift)
    return mx.bitwise_and(code, 2**bits - 1)
