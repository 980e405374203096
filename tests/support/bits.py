"""What the tests of invariant bits share: a row alone, and the same row among others."""

from collections.abc import Callable, Iterable
from typing import Any

import mlx.core as mx
import numpy as np

from tests.support.check import fail

ROWS = 70
CHUNKS = (1, 2, 3, 7, 8, 9, 16, 17, 31, 32, 33, 64, 65, 69, 70)
"""Rows at a time: around every number at which a kernel changes what it does."""


def bits_of(x: mx.array) -> Any:
    """The bits of floats, [...]; bfloat16 and float16 are exact in float32."""
    return np.array(x.astype(mx.float32)).view(np.uint32)


def check_bits(actual: mx.array, expected: mx.array, what: str) -> None:
    """Fail unless two arrays are the same, bit by bit."""
    __tracebackhide__ = True
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        fail(f"{what}: {actual.dtype} {actual.shape} instead of {expected.dtype} {expected.shape}", "")
    differs = bits_of(actual) != bits_of(expected)
    if differs.any():
        first = tuple(int(i) for i in np.argwhere(differs)[0])
        fail(
            f"{what}: {int(differs.sum())} of {differs.size} entries have other bits, the first at {first}",
            f"{actual[first].item():.9g} instead of {expected[first].item():.9g}",
        )


def check_rows(
    compute: Callable[[mx.array], mx.array], x: mx.array, what: str, chunks: Iterable[int] = CHUNKS
) -> None:
    """Fail unless every row of x, cut in any chunks, comes out as it does among all.

    Args:
        compute: a function of rows [n, ...], each of which it turns into a row.
        x: [ROWS, ...]
    """
    __tracebackhide__ = True
    expected = compute(x)
    for size in chunks:
        parts = [compute(x[start : start + size]) for start in range(0, len(x), size)]
        check_bits(mx.concatenate(parts), expected, f"{what}, {size} rows at a time")
