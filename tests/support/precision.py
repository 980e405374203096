"""Operands of mixed types, and results in a short type: one rule for each, whatever function it is."""

import itertools
from collections.abc import Callable, Mapping

import mlx.core as mx
import numpy as np
import pytest

from tests.support.causes import result
from tests.support.check import check_close, fail
from tests.support.oracles import Array, Mistakes, exact

FLOATS = (mx.float32, mx.float16, mx.bfloat16)
STEP = {mx.float32: 1e-5, mx.float16: 3e-3, mx.bfloat16: 2e-2}
"""Share of the largest entry by which a result may be off, if one of its operands has this type."""


def softmax_tolerance(x: mx.array, least: float = 1e-5) -> float:
    """The tolerance of a softmax: exp of a float32 as large as those of x is off by as much as that number.

    Subtracting the largest entry first is exact; subtracting the logsumexp rounds, and is as right.
    """
    return max(least, float(np.finfo(np.float32).eps) * float(np.abs(exact(x)).max()))


short_types = pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)


def check_types(
    function: Callable[..., mx.array],
    expected: Callable[..., Array],
    what: str,
    operands: Mapping[str, mx.array],
    keeps: str | None = None,
) -> None:
    """Fail unless a function's result has the right type and numbers, whatever types its operands have.

    Args:
        function: of the operands, in their order.
        expected: the same in numpy and float64.
        what: the result in the words of the task.
        operands: in float32, by name.
        keeps: the operand whose type the result has; unless given, it has the type that all have together.
    """
    __tracebackhide__ = True
    for dtypes in itertools.product(FLOATS, repeat=len(operands)):
        given = [x.astype(dtype) for x, dtype in zip(operands.values(), dtypes, strict=True)]
        by_name = dict(zip(operands, dtypes, strict=True))
        types = ", ".join(f"{name} {short_name(dtype)}" for name, dtype in by_name.items())
        actual = function(*given)
        wanted = by_name[keeps] if keeps else mx.result_type(*given)
        if actual.dtype != wanted:
            fail(
                f"type of {what} of {types}: expected {short_name(wanted)}, got {short_name(actual.dtype)}",
                f"The result has the type of {keeps}, whatever the others have: cast it at the end."
                if keeps
                else "The type is the one that all operands have together: cast none of them to another's.",
            )
        tolerance = max(STEP[dtype] for dtype in dtypes)
        check_close(actual, expected(*map(exact, given)), f"{what} of {types}", tolerance)


def check_rounded_once(
    actual: mx.array,
    expected: Array,
    what: str,
    most: float = 1.1,
    smallest: float = 1e-2,
    mistakes: Mistakes | None = None,
) -> None:
    """Fail if a result in a short type is further off than rounding leaves it, each entry by its own size.

    Args:
        actual: what came.
        expected: the result of the same numbers in float64.
        what: the thing in the words of the task.
        most: so many times the error of one rounding are allowed, as root mean square.
        smallest: share of the largest entry below which an entry counts as that large.
        mistakes: as of `check_close`.
    """
    __tracebackhide__ = True
    check_close(actual, expected, what, STEP[actual.dtype], mistakes)
    rounded = mx.array(expected.astype(np.float32)).astype(actual.dtype)
    sizes = np.maximum(np.abs(expected), smallest * np.abs(expected).max())

    def error(x: mx.array, exact_result: Array) -> float:
        return float(np.sqrt(np.mean(((exact(x) - exact_result) / sizes) ** 2)))

    allowed = most * error(rounded, expected)
    if error(actual, expected) > allowed:
        wrong = {name: result(each) for name, each in (mistakes or {}).items() if not isinstance(each, tuple)}
        same = [name for name, each in wrong.items() if each is not None and error(actual, each) <= allowed]
        fail(
            f"{what}: the error is {most * error(actual, expected) / allowed:.1f} times that of rounding the "
            f"exact result to {short_name(actual.dtype)}, at most {most} times is allowed",
            f"It equals {same[0]}."
            if same
            else "Something before the result is rounded, as when part of it is computed in "
            f"{short_name(actual.dtype)}: cast to float32 first, and back once, at the end.",
        )


def short_name(dtype: mx.Dtype) -> str:
    return str(dtype).removeprefix("mlx.core.")
