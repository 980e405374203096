"""Where two results differ: arrays, numbers and texts in lists and dicts, part by part."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from numbers import Integral, Number
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

Tree = Any
"""Arrays, numbers, texts and None in any nesting of lists, tuples and dicts."""

TOLERANCES: dict[Any, float] = {mx.float32: 1e-4, mx.float16: 1e-2, mx.bfloat16: 3e-2, float: 1e-6}
"""Share of the reference's largest entry that an entry may be off."""
KINDS = {
    "an mx.array": mx.array,
    "a bool": bool | np.bool_,
    "an int": Integral,
    "a float": Number,
    "a str": str,
    "a dict": Mapping,
    "a list": list | tuple,
    "None": type(None),
}
"""What a value is to this comparison: a list is as good as a tuple, a NumPy number as Python's."""
LONGEST = 40  # characters of a value that is shown whole
Place = tuple[int | str, ...]


@dataclass(frozen=True)
class Difference:
    """The word for it in the table, and the sentence below."""

    word: str
    sentence: str


def arrays_of(tree: Tree) -> Iterator[mx.array]:
    """Every array of a tree."""
    if isinstance(tree, mx.array):
        yield tree
    elif isinstance(tree, list | tuple | Mapping):
        for part in parts_of(tree).values():
            yield from arrays_of(part)


def parts_of(tree: Tree) -> Mapping[int | str, Tree]:
    """The items of a list by their index, those of a dict by their key."""
    return tree if isinstance(tree, Mapping) else dict(enumerate(tree))


def first_difference(yours: Tree, reference: Tree, place: Place = ()) -> Difference | None:
    """The first part that differs, in the order of the reference; None if all are equal.

    Within a part the type comes first, then the shape, then the first entry.
    """
    kind = kind_of(reference)
    if kind_of(yours) != kind:
        return Difference("type", f"{named(yours)} instead of {named(reference)}{where(place)}")
    if kind in ("an mx.array", "a float"):
        return compare_arrays(yours, reference, place)
    if kind in ("a list", "a dict"):
        return compare_parts(parts_of(yours), parts_of(reference), place)
    if yours == reference:
        return None
    start, values = "", [repr(yours), repr(reference)]
    if kind == "a str":
        first = next(i for i, (a, b) in enumerate(zip_longest(yours, reference)) if a != b)
        start = f" at character {first}"
        values = [repr(text[first:][:LONGEST]) if text[first:] else "the end" for text in (yours, reference)]
    return Difference("differs", f"differs{where(place)}{start}: yours {values[0]}, reference {values[1]}")


def kind_of(value: object) -> str:
    """The word for a value's kind."""
    found = (kind for kind, type_ in KINDS.items() if isinstance(value, type_))
    return next(found, f"of type {type(value).__name__}")


def named(value: object) -> str:
    """A kind, with the value where that is short."""
    is_plain = isinstance(value, Number | str) and len(repr(value)) <= LONGEST
    return f"{kind_of(value)}, {value!r}," if is_plain else kind_of(value)


def where(place: Place) -> str:
    """The place of a part in words: names first, then what is counted."""
    names = ".".join(part for part in place if isinstance(part, str))
    indices = [part for part in place if isinstance(part, int)]
    return (f" in {names}" if names else "") + (f" at {indices}" if indices else "")


def compare_arrays(yours: Any, reference: Any, place: Place) -> Difference | None:
    """Shape, type, then the first entry that is off by more than its type's tolerance; numbers likewise."""
    types: list[Any] = [getattr(value, "dtype", float) for value in (yours, reference)]
    is_own_float, is_float = (each is float or mx.issubdtype(each, mx.floating) for each in types)
    left, right = as_numpy(yours), as_numpy(reference)
    if left.shape != right.shape:
        return Difference("shape", f"shape {[*left.shape]} instead of {[*right.shape]}{where(place)}")
    if is_own_float != is_float or (is_float and types[0] != types[1]):
        return Difference("type", f"type {types[0]} instead of {types[1]}{where(place)}")
    with np.errstate(invalid="ignore"):
        off = np.asarray(np.abs(left - right))
    off[(left == right) | (np.isnan(left) & np.isnan(right))] = 0.0
    off[np.isnan(off)] = np.inf  # one of the two is no number, or infinite
    largest = np.max(np.abs(right), where=np.isfinite(right), initial=0.0)
    wrong = off > TOLERANCES.get(types[1], 0.0) * largest
    if not wrong.any():
        return None
    index = tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
    digits = ".6g" if is_float else ".0f"
    values = f"yours {left[index]:{digits}}, reference {right[index]:{digits}}"
    sentence = f"differs{where((*place, *index))}: {values}"
    if wrong.size > 1:
        largest_off = f"{off.max():.2g}" if np.isfinite(off).all() else "infinite"
        sentence += f" (largest difference {largest_off}, {int(wrong.sum())} of {wrong.size} differ)"
    return Difference("differs", sentence)


def as_numpy(value: Any) -> npt.NDArray[np.float64]:
    """An array or a number in double precision."""
    if isinstance(value, mx.array) and mx.issubdtype(value.dtype, mx.floating):
        value = value.astype(mx.float32)  # NumPy has no bfloat16
    return np.array(value, dtype=np.float64)


def compare_parts(
    yours: Mapping[int | str, Tree], reference: Mapping[int | str, Tree], place: Place
) -> Difference | None:
    """Part by part; where there are more or fewer of them, also which is the first that differs."""
    shared = [key for key in reference if key in yours]
    differences = (first_difference(yours[key], reference[key], (*place, key)) for key in shared)
    first = next((difference for difference in differences if difference), None)
    if len(shared) == len(yours) == len(reference):
        return first
    rest = f"; {first.sentence}" if first else ", equal so far" if shared else ""
    items = f"{len(yours)} item{'s' * (len(yours) != 1)}"
    return Difference("shape", f"{items} instead of {len(reference)}{where(place)}{rest}")
