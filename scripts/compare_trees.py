"""Where two results differ: arrays, numbers and texts in lists and dicts, part by part."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral, Number
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

Tree = Any
"""Arrays, numbers, texts and None in any nesting of lists, tuples and dicts."""

TOLERANCES = {mx.float32: 1e-4, mx.float16: 1e-2, mx.bfloat16: 3e-2}
"""Share of the reference's largest entry that an entry may be off."""
NUMBER_TOLERANCE = 1e-6
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
    if kind == "an mx.array":
        return compare_arrays(yours, reference, place)
    if kind in ("a list", "a dict"):
        return compare_parts(parts_of(yours), parts_of(reference), place)
    if yours == reference or (kind == "a float" and are_close(yours, reference)):
        return None
    if kind == "a str":
        return compare_texts(yours, reference, place)
    values = both(yours, reference) if kind == "a float" else f"yours {yours!r}, reference {reference!r}"
    return Difference("differs", f"differs{where(place)}: {values}")


def kind_of(value: object) -> str:
    """What a value is to this comparison: a list is as good as a tuple, a NumPy number as Python's."""
    kinds = {
        "an mx.array": mx.array,
        "a bool": bool | np.bool_,
        "an int": Integral,
        "a float": Number,
        "a str": str,
        "a dict": Mapping,
        "a list": list | tuple,
        "None": type(None),
    }
    return next(
        (kind for kind, type_ in kinds.items() if isinstance(value, type_)), f"of type {type(value).__name__}"
    )


def named(value: object) -> str:
    """A kind, with the value where that is short."""
    is_plain = isinstance(value, Number | str) and len(repr(value)) <= LONGEST
    return f"{kind_of(value)}, {value!r}," if is_plain else kind_of(value)


def where(place: Place) -> str:
    """The place of a part in words: names first, then what is counted."""
    names = ".".join(part for part in place if isinstance(part, str))
    indices = [part for part in place if isinstance(part, int)]
    return (f" in {names}" if names else "") + (f" at {indices}" if indices else "")


def compare_arrays(yours: mx.array, reference: mx.array, place: Place) -> Difference | None:
    """Shape, type, then the first entry that is off by more than its type's tolerance."""
    if yours.shape != reference.shape:
        sentence = f"shape {list(yours.shape)} instead of {list(reference.shape)}{where(place)}"
        return Difference("shape", sentence)
    is_float = mx.issubdtype(reference.dtype, mx.floating)
    if mx.issubdtype(yours.dtype, mx.floating) != is_float or (is_float and yours.dtype != reference.dtype):
        return Difference("type", f"type {yours.dtype} instead of {reference.dtype}{where(place)}")
    left, right = as_numpy(yours), as_numpy(reference)
    with np.errstate(invalid="ignore"):
        off = np.abs(left - right)
    off[(left == right) | (np.isnan(left) & np.isnan(right))] = 0.0
    off[np.isnan(off)] = np.inf  # one of the two is no number, or infinite
    largest = np.max(np.abs(right), where=np.isfinite(right), initial=0.0)
    wrong = off > TOLERANCES.get(reference.dtype, 0.0) * largest
    if not wrong.any():
        return None
    index = tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
    pair = float(left[index]), float(right[index])
    values = both(*pair) if is_float else f"yours {int(pair[0])}, reference {int(pair[1])}"
    sentence = f"differs{where((*place, *index))}: {values}"
    if wrong.size > 1:
        largest_off = f"{off.max():.2g}" if np.isfinite(off).all() else "infinite"
        sentence += f" (largest difference {largest_off}, {int(wrong.sum())} of {wrong.size} differ)"
    return Difference("differs", sentence)


def as_numpy(array: mx.array) -> npt.NDArray[np.float64]:
    """The entries in double precision."""
    if mx.issubdtype(array.dtype, mx.floating):
        array = array.astype(mx.float32)
    return np.array(array).astype(np.float64)


def are_close(yours: float, reference: float) -> bool:
    """Whether two fractions are equal up to rounding, or both are no number."""
    is_same = math.isclose(yours, reference, rel_tol=NUMBER_TOLERANCE)
    return is_same or (math.isnan(yours) and math.isnan(reference))


def both(yours: float, reference: float) -> str:
    """Two fractions with as few digits as show their difference, at least four."""
    for precision in range(4, 10):
        texts = f"{yours:.{precision}g}", f"{reference:.{precision}g}"
        if texts[0] != texts[1]:
            break
    return f"yours {texts[0]}, reference {texts[1]}"


def compare_texts(yours: str, reference: str, place: Place) -> Difference:
    """The first character that differs, with what follows it."""
    pairs = zip(yours, reference, strict=False)
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(yours), len(reference)))
    shown = (repr(text[first:][:LONGEST]) if text[first:] else "the end" for text in (yours, reference))
    sentence = f"differs{where(place)} at character {first}: yours {next(shown)}, reference {next(shown)}"
    return Difference("differs", sentence)


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
