"""Checks whose messages a learner reads: what was compared, what was expected, what came, where, and why."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import mlx.core as mx
import numpy as np
import pytest

from tests.support.calls import call_in_block
from tests.support.causes import (
    Array,
    Comparison,
    Mistakes,
    as_numpy,
    cause_of_shape,
    index_of,
    known_mistake,
    likely_cause,
)
from tests.support.shown import not_promised, shows
from tests.support.state import changed_place, is_packages_own, state_of

LONGEST = 70  # characters of a value that is shown whole
LONG = 45  # characters from which the first item that differs is shown alone, whole if it can be


def fail(*sentences: str | None) -> NoReturn:
    """Fail with these sentences, one a line."""
    __tracebackhide__ = True
    pytest.fail("\n".join(sentence for sentence in sentences if sentence), pytrace=True)


def check_equal(actual: Any, expected: Any, what: str, mistakes: Mapping[str, Any] | None = None) -> None:
    """Fail unless the two are equal.

    Args:
        actual: what came.
        expected: what should have come.
        what: the thing in the words of the task.
        mistakes: what known mistakes would give, by what they are.
    """
    __tracebackhide__ = True
    if actual != expected:
        names = [name for name, wrong in (mistakes or {}).items() if actual == wrong]
        fail(
            f"{what}: {first_difference(actual, expected)}",
            f"A known mistake gives the same: {'; or '.join(names)}."
            if names
            else how_they_differ(actual, expected),
        )


def check_close(
    actual: mx.array,
    expected: mx.array | Array,
    what: str,
    tolerance: float = 1e-5,
    mistakes: Mistakes | None = None,
) -> None:
    """Fail unless both have the same shape and every entry is within `tolerance` of the largest entry.

    Args:
        actual: what came.
        expected: what should have come.
        what: the thing in the words of the task.
        tolerance: share of the largest expected entry that an entry may be off.
        mistakes: what known mistakes would give, or functions that compute it, by what they are.
    """
    __tracebackhide__ = True
    if not isinstance(actual, mx.array):
        fail(f"{what}: expected an mx.array, got {type(actual).__name__}")
    left, right = as_numpy(actual), as_numpy(expected)
    if left.shape != right.shape:
        fail(
            f"shape of {what}: expected {right.shape}, got {left.shape}",
            known_mistake(left, right, mistakes, tolerance) or cause_of_shape(left, right, tolerance),
        )
    comparison = Comparison(left, right, tolerance)
    wrong = comparison.differences
    if wrong.any():
        index = index_of(wrong)
        wanted, got = digits(right[tuple(index)], left[tuple(index)])
        place = f"differs first at index {index}: " if index else ""
        fail(
            f"{what}: {place}expected {wanted}, got {got}",
            f"{int(wrong.sum())} of {wrong.size} entries differ." if index else None,
            likely_cause(comparison, mistakes),
        )


@contextmanager
def check_value_error(*, what: str | None = None, keeps_all: bool = True, **values: Any) -> Iterator[None]:
    """Fail unless the block raises a ValueError whose sentence shows all these values.

    Args:
        what: the thing in the words of the task; the block's call with its values unless given.
        keeps_all: whether no object may have changed when the call is refused, not even a count.
        values: what the sentence must show in any usual form, by the names that stand in backticks in the
            docstring of who refuses, where it speaks of the ValueError.
    """
    __tracebackhide__ = True
    caller = sys._getframe(2)  # beyond the context manager
    line = caller.f_lineno

    named = {name: f"{value!r} ({name})" for name, value in values.items()}
    showing = f" that shows {' and '.join(named.values())}" if named else ""

    def said(sentence: str) -> str:
        name = what or call_in_block(caller, line)
        return f"{name}: {sentence}" if name else sentence

    before = objects_in(caller)
    try:
        yield
    except ValueError as error:
        for name, value in values.items():
            if not shows(str(error), value):
                fail(said(f"the ValueError should show {named[name]}, it says: {error}"))
        if unseen := not_promised(error, list(values)):
            fail(said(f"no docstring says that the ValueError shows {' and '.join(unseen)}"))
        if keeps_all:
            check_nothing_changed(said, before, objects_in(caller))
    except NotImplementedError:  # a hole speaks for itself
        raise
    except Exception as error:
        got = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise pytest.fail.Exception(said(f"expected a ValueError{showing}, got {got}")) from error
    else:
        fail(said(f"expected a ValueError{showing}, nothing was raised"))


def objects_in(frame: FrameType) -> dict[str, Any]:
    """The state of the package's objects that a test has names for."""
    return {name: state_of(value) for name, value in frame.f_locals.items() if is_packages_own(value)}


def check_nothing_changed(said: Callable[[str], str], before: dict[str, Any], after: dict[str, Any]) -> None:
    """Fail if a call that was refused has changed an object."""
    __tracebackhide__ = True
    for name, state in before.items():
        if after.get(name, state) != state:
            place = f"{name}{changed_place(state, after[name])}"
            fail(said(f"refused as it should be, but it changed {place} before: check first, then change"))


def normal(*shape: int, seed: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    """Normal-distributed numbers that are the same in every run."""
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)


def short(value: Any) -> str:
    """A value as Python writes it, a long one without its middle, truth values by where they are true."""
    if isinstance(value, list) and len(value) > 5 and all(isinstance(item, bool) for item in value):
        return f"True at {[i for i, item in enumerate(value) if item]} of {len(value)}"
    text = repr(value)
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"


def digits(expected: np.floating[Any], actual: np.floating[Any]) -> tuple[str, str]:
    """Two numbers with as few digits as show their difference, at least four."""
    for precision in range(4, 9):
        texts = f"{expected:.{precision}g}", f"{actual:.{precision}g}"
        if texts[0] != texts[1]:
            break
    return texts


def first_difference(actual: Any, expected: Any) -> str:
    """Both values; of long lists the first items that differ, as deep down as it takes to be read."""
    place = ""
    while is_long(actual, expected, LONGEST if place else LONG) and are_alike(actual, expected):
        key = first_key(actual, expected)
        if key is None:
            break
        place += f"[{key!r}]"
        actual, expected = actual[key], expected[key]
    where = f"differs first at {place}: " if place else ""
    return f"{where}expected {short(expected)}, got {short(actual)}"


def first_key(actual: Any, expected: Any) -> Any:
    """Index or key of the first item that both have and that differs."""
    if isinstance(expected, dict):
        return next((key for key in expected if key in actual and actual[key] != expected[key]), None)
    pairs = enumerate(zip(actual, expected, strict=False))
    return next((i for i, (left, right) in pairs if left != right), None)


def is_long(actual: Any, expected: Any, limit: int) -> bool:
    """Whether one of the two takes so many characters."""
    return max(len(short(actual)), len(short(expected))) >= limit


def are_alike(actual: Any, expected: Any) -> bool:
    """Whether the two can be compared item by item."""
    kinds = (list, tuple, str, dict)
    return any(isinstance(actual, kind) and isinstance(expected, kind) for kind in kinds)


def how_they_differ(actual: Any, expected: Any) -> str | None:
    """A sentence on two lists or dicts that differ in a way that has a name."""
    if isinstance(actual, dict) and isinstance(expected, dict):
        return how_dicts_differ(actual, expected)
    if are_alike(actual, expected):
        return how_sequences_differ(actual, expected)
    return None


def how_dicts_differ(actual: dict[Any, Any], expected: dict[Any, Any]) -> str | None:
    """A sentence on keys that only one of them has."""
    missing, needless = (
        [key for key in expected if key not in actual],
        [key for key in actual if key not in expected],
    )
    parts = [
        f"{name} {', '.join(map(repr, keys[:5]))}"
        for name, keys in (("It lacks", missing), ("It should not have", needless))
        if keys
    ]
    return f"{'. '.join(parts)}." if parts else None


def how_sequences_differ(actual: Any, expected: Any) -> str | None:
    """A sentence on two lists, tuples or texts."""
    difference = len(actual) - len(expected)
    longer, shorter = (actual, expected) if difference > 0 else (expected, actual)
    many = "many" if difference > 0 else "few"
    if difference and len(shorter) and longer[: len(shorter)] == shorter:
        return f"{abs(difference)} too {many} at the end, the others are right."
    if difference and len(shorter) and longer[abs(difference) :] == shorter:
        return f"{abs(difference)} too {many} at the beginning, the others are right."
    if difference:
        return f"{abs(difference)} too {many}: expected {len(expected)}, got {len(actual)}."
    if len(expected) <= 2 and all(isinstance(item, bool) for item in expected):
        return None  # two answers, not an order
    if actual == expected[::-1]:
        return "The order is reversed."
    if sorted(map(repr, actual)) == sorted(map(repr, expected)):
        return "The same items in another order."
    return None
