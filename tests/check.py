"""Checks whose messages a learner reads: what was compared, what was expected, what came, and where."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np
import pytest


def check_equal(actual: Any, expected: Any, what: str) -> None:
    """Fail unless the two are equal; `what` names the thing in the words of the task."""
    __tracebackhide__ = True
    if actual != expected:
        pytest.fail(f"{what}: expected {expected!r}, got {actual!r}", pytrace=True)


def check_close(
    actual: mx.array, expected: mx.array | np.ndarray, what: str, tolerance: float = 1e-5
) -> None:
    """Fail unless both have the same shape and every entry is within `tolerance` of the largest entry."""
    __tracebackhide__ = True
    if not isinstance(actual, mx.array):
        pytest.fail(f"{what}: expected an mx.array, got {type(actual).__name__}", pytrace=True)
    left = np.array(actual.astype(mx.float32))
    right = (
        np.array(expected.astype(mx.float32))
        if isinstance(expected, mx.array)
        else np.asarray(expected, np.float32)
    )
    check_equal(left.shape, right.shape, f"shape of {what}")
    finite = np.isfinite(right)
    scale = max(1.0, float(np.abs(right[finite]).max(initial=0.0)))
    with np.errstate(invalid="ignore"):
        wrong = np.where(finite, ~(np.abs(left - right) <= tolerance * scale), left != right)
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        pytest.fail(
            f"{what}: differs first at index {list(index)}: expected {right[index]:.6g}, "
            f"got {left[index]:.6g} ({int(wrong.sum())} of {wrong.size} entries differ)",
            pytrace=True,
        )


@contextmanager
def check_value_error(*words: str) -> Iterator[None]:
    """Fail unless the block raises a ValueError whose sentence holds all these words."""
    __tracebackhide__ = True
    try:
        yield
    except ValueError as error:
        for word in words:
            if word not in str(error):
                pytest.fail(f"the error should mention {word!r}, it says: {error}", pytrace=True)
    else:
        pytest.fail("expected a ValueError, nothing was raised", pytrace=True)


def normal(*shape: int, seed: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    """Normal-distributed numbers that are the same in every run."""
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)
