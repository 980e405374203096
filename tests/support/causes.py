"""Likely causes: what a wrong result equals, found by comparing it with changes of the expected one."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Mistake = mx.array | Array | Callable[[], mx.array | Array]
Mistakes = Mapping[str, Mistake | tuple[Mistake, ...]]
"""What known mistakes would give, or functions that compute it, each by what it is; or several of a name."""

LEFT_OVER, NOT_TO_BE_READ = (
    np.array([bits], np.uint32).view(np.float32)[0] for bits in (0x7FDD0000, 0x7FEE0000)
)
"""nan that tests put into an output's memory, and where nothing may be read."""
NANS = {
    0x7FDD: "in the output's memory before: write every entry, and add to none that was not set",
    0x7FEE: "where nothing may be read, not even with a weight of 0: behind an end, or in a slot or block "
    "that is free or another's",
    0x7FFF: "where no thread had written: a shared entry is not stored, or is read before the barrier; "
    "or something lies before the beginning of a buffer",
}
"""Where a nan stood, by its upper bits, which no arithmetic makes. The last is POISON of emulator.h."""
LARGEST_AXIS = 64  # beyond which the order of an axis is not searched
SMALLEST_TOLERANCE = 1e-6
TOLERANCE_OF_MISTAKES = 1e-4  # each is computed in another precision than the result it is compared with


@dataclass(frozen=True)
class Comparison:
    """A result and what it should be, of one shape, with the share of the largest entry it may be off."""

    actual: Array
    expected: Array
    tolerance: float

    @property
    def differences(self) -> Array:
        """Which entries are wrong."""
        return differences(self.actual, self.expected, self.tolerance)

    @property
    def is_equal(self) -> bool:
        """Whether there is no difference."""
        return self.same(self.actual, self.expected)

    def same(self, left: Array, right: Array) -> bool:
        """Whether two arrays are equal, nan to nan as well."""
        if left.shape != right.shape:
            return False
        both_nan = np.isnan(left) & np.isnan(right)
        return not (differences(left, right, max(self.tolerance, SMALLEST_TOLERANCE)) & ~both_nan).any()


def as_numpy(x: mx.array | Array) -> Array:
    """The numbers in float32."""
    return np.array(x.astype(mx.float32)) if isinstance(x, mx.array) else np.asarray(x, np.float32)


def differences(actual: Array, expected: Array, tolerance: float) -> Array:
    """Where two arrays of one shape differ by more than a share of the largest expected entry."""
    finite = np.isfinite(expected)
    scale = float(np.abs(expected[finite]).max(initial=0.0)) or 1.0
    with np.errstate(invalid="ignore"):
        too_far = ~(np.abs(actual - expected) <= tolerance * scale)
    wrong: Array = np.where(finite, too_far, actual != expected)
    return wrong


def known_mistake(actual: Array, expected: Array, mistakes: Mistakes | None, tolerance: float) -> str | None:
    """Sentences on the known mistakes that give the same; one that cannot be computed is passed over."""
    variants = {
        name: [result(variant) for variant in (each if isinstance(each, tuple) else (each,))]
        for name, each in (mistakes or {}).items()
    }
    for close in (tolerance, max(tolerance, TOLERANCE_OF_MISTAKES)):
        names = [
            name
            for name, results in variants.items()
            if any(is_proof(wrong, actual, expected, close) for wrong in results)
        ]
        if names:
            return " ".join(f"It {'also ' if i else ''}equals {name}." for i, name in enumerate(names))
    return None


def result(mistake: Mistake) -> Array | None:
    """What a mistake gives; None if it cannot be computed, for sizes that do not fit, say."""
    try:
        with np.errstate(all="ignore"):  # a mistake may well divide by zero
            return as_numpy(mistake() if callable(mistake) else mistake)
    except Exception:  # no fault of the learner's
        return None


def is_proof(wrong: Array | None, actual: Array, expected: Array, tolerance: float) -> bool:
    """Whether a mistake gives what came, and nothing else does: neither what is right, nor nan all over."""
    if wrong is None or np.isnan(wrong).all() or not Comparison(actual, wrong, tolerance).is_equal:
        return False
    return wrong.shape != expected.shape or bool(differences(wrong, expected, tolerance).any())


def likely_cause(comparison: Comparison, mistakes: Mistakes | None) -> str | None:
    """A sentence on what the result equals, known mistakes of the task first."""
    known = known_mistake(comparison.actual, comparison.expected, mistakes, comparison.tolerance)
    if known:
        return known
    sentences = (cause(comparison) for cause in CAUSES)
    return next((sentence for sentence in sentences if sentence), None)


def cause_of_shape(actual: Array, expected: Array, tolerance: float) -> str | None:
    """A sentence on a result of another shape."""
    compare = Comparison(expected, expected, tolerance).same
    for first, second in itertools.combinations(range(actual.ndim), 2):
        swapped = actual.swapaxes(first, second)
        if compare(swapped, expected):
            return f"Axes {first} and {second} are swapped."
    if actual.size == expected.size and compare(actual.reshape(expected.shape), expected):
        return "The numbers are right, in another shape."
    return None


def is_not_a_number(comparison: Comparison) -> str | None:
    nan = np.isnan(comparison.actual) & ~np.isnan(comparison.expected)
    if not nan.any():
        return None
    marks = np.ascontiguousarray(comparison.actual).view(np.uint32) >> 16 & 0x7FFF
    for mark, sentence in NANS.items():
        if (marked := nan & (marks == mark)).any():
            return f"The nan at index {index_of(marked)} stood {sentence}."
    return (
        f"nan at index {index_of(nan)} comes of inf - inf, 0 / 0 or 0 x inf: look for an exponential that "
        "overflows, and for a row whose scores are all -inf."
    )


def is_infinite(comparison: Comparison) -> str | None:
    infinite = np.isposinf(comparison.actual) & np.isfinite(comparison.expected)
    return f"inf at index {index_of(infinite)}: an overflow?" if infinite.any() else None


def has_swapped_axes(comparison: Comparison) -> str | None:
    for first, second in itertools.combinations(range(comparison.expected.ndim), 2):
        if comparison.same(comparison.actual, comparison.expected.swapaxes(first, second)):
            return f"It equals the expected result with axes {first} and {second} swapped."
    return None


def has_other_sign(comparison: Comparison) -> str | None:
    is_negated = comparison.same(comparison.actual, -comparison.expected)
    return "It equals the expected result with the other sign." if is_negated else None


def is_a_multiple(comparison: Comparison) -> str | None:
    large = np.isfinite(comparison.actual) & np.isfinite(comparison.expected)
    large &= np.abs(comparison.expected) > 0.1 * np.abs(comparison.expected[large]).max(initial=0.0)
    if large.sum() < 3:
        return None
    factor = float(np.median(comparison.actual[large] / comparison.expected[large]))
    is_trivial = factor == 0 or number(factor) == "1"
    if is_trivial or not comparison.same(comparison.actual, factor * comparison.expected):
        return None
    return f"It is {number(factor)} times the expected result."


def has_an_offset(comparison: Comparison) -> str | None:
    if comparison.expected.size < 3:
        return None
    with np.errstate(invalid="ignore"):
        offset = float(np.median(comparison.actual - comparison.expected))
    if not np.isfinite(offset) or not comparison.same(comparison.actual, comparison.expected + offset):
        return None
    return f"It is the expected result {'plus' if offset > 0 else 'minus'} {abs(offset):.4g}."


def is_shifted(comparison: Comparison) -> str | None:
    for axis, size in enumerate(comparison.expected.shape):
        actual, expected = np.moveaxis(comparison.actual, axis, 0), np.moveaxis(comparison.expected, axis, 0)
        if size < 3 or comparison.same(expected[1:], expected[:-1]):
            continue
        if comparison.same(actual[1:], expected[:-1]):
            return f"It is off by one along axis {axis}: entry i is what entry i - 1 should be."
        if comparison.same(actual[:-1], expected[1:]):
            return f"It is off by one along axis {axis}: entry i is what entry i + 1 should be."
    return None


def has_another_order(comparison: Comparison) -> str | None:
    for axis, size in enumerate(comparison.expected.shape):
        order = order_along(comparison, axis) if 2 <= size <= LARGEST_AXIS else []
        if not order:
            continue
        if order == list(range(size))[::-1]:
            return f"It is reversed along axis {axis}."
        if len(set(order)) == 1:
            return f"Along axis {axis} every entry is what entry {order[0]} should be."
        return f"Along axis {axis} it holds the expected entries {order}."
    return None


def order_along(comparison: Comparison, axis: int) -> list[int]:
    """For each entry along an axis the one that it should be; nothing if that is none, or not clear."""
    actual, expected = np.moveaxis(comparison.actual, axis, 0), np.moveaxis(comparison.expected, axis, 0)
    order = []
    for entry in actual:
        matches = [i for i, other in enumerate(expected) if comparison.same(entry, other)]
        if len(matches) != 1:
            return []
        order.append(matches[0])
    return order


def hides_too_much(comparison: Comparison) -> str | None:
    """For masks and log-probabilities."""
    hidden = int((np.isneginf(comparison.actual) & ~np.isneginf(comparison.expected)).sum())
    seen = int((~np.isneginf(comparison.actual) & np.isneginf(comparison.expected)).sum())
    parts = [
        f"{count} {'entry' if count == 1 else 'entries'} should {be}"
        for count, be in ((hidden, "not be -inf"), (seen, "be -inf"))
        if count
    ]
    return f"{' and '.join(parts)}." if parts else None


def is_wrong_in_places(comparison: Comparison) -> str | None:
    wrong: Array = np.asarray(comparison.differences)
    candidates = []
    for axis, size in enumerate(wrong.shape):
        is_wrong = np.asarray(np.moveaxis(wrong, axis, 0).reshape(size, -1).any(axis=1))
        candidates.append((is_wrong.sum() / size, axis, is_wrong))
    for share, axis, is_wrong in sorted(candidates, key=lambda candidate: candidate[:2]):
        if share <= 0.5:
            return f"Along axis {axis} only {entries(np.flatnonzero(is_wrong))} wrong."
        if share < 1 and not is_wrong[0] and is_wrong[1:].all():
            return f"Along axis {axis} only entry 0 is right."
    return None


CAUSES: tuple[Callable[[Comparison], str | None], ...] = (
    is_not_a_number,
    has_swapped_axes,
    has_other_sign,
    is_a_multiple,
    has_an_offset,
    is_shifted,
    has_another_order,
    is_infinite,
    hides_too_much,
    is_wrong_in_places,
)


def index_of(wrong: Array) -> list[int]:
    """The first index at which something is so."""
    return [int(i) for i in np.argwhere(wrong)[0]]


def number(value: float) -> str:
    """A factor, as a fraction where it is one of a whole number."""
    inverse = 1 / value
    is_fraction = abs(inverse) > 1.5 and abs(inverse - round(inverse)) < 1e-3
    return f"{value:.4g} (1/{round(inverse)})" if is_fraction else f"{value:.4g}"


def entries(indices: Array) -> str:
    """Some indices in words, with their verb."""
    if len(indices) == 1:
        return f"entry {indices[0]} is"
    if len(indices) == indices[-1] - indices[0] + 1:
        return f"entries {indices[0]} to {indices[-1]} are"
    return f"{len(indices)} entries, from {indices[0]} on, are"
