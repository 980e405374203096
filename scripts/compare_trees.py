"""Where two results differ: trees of arrays, numbers and texts, compared in the order of their parts."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral, Number

import mlx.core as mx
import numpy as np
import numpy.typing as npt

Tree = object
"""Arrays, numbers, texts and None in any nesting of lists, tuples and dicts."""

FloatArray = npt.NDArray[np.float64]
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
    elif isinstance(tree, Mapping):
        yield from arrays_of(list(tree.values()))
    elif isinstance(tree, list | tuple):
        for item in tree:
            yield from arrays_of(item)


def first_difference(yours: Tree, reference: Tree, place: Place = ()) -> Difference | None:
    """The first part that differs, in the order of the reference; None if all are equal.

    Within a part the type comes first, then the shape, then the first entry.
    """
    if kind_of(yours) != kind_of(reference):
        return Difference("type", f"{named(yours)} instead of {named(reference)}{where(place)}")
    compare = COMPARISONS.get(kind_of(reference), compare_values)
    return compare(yours, reference, place)


def kind_of(value: object) -> str:
    """What a value is to this comparison: a list is as good as a tuple, a NumPy number as Python's."""
    if isinstance(value, mx.array):
        return "an mx.array"
    if isinstance(value, bool | np.bool_):
        return "a bool"
    if isinstance(value, Number):
        return "an int" if isinstance(value, Integral) else "a float"
    if isinstance(value, str):
        return "a str"
    if isinstance(value, Mapping):
        return "a dict"
    if isinstance(value, list | tuple):
        return "a list"
    return "None" if value is None else f"of type {type(value).__name__}"


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
    off = errors(left, right)
    largest = np.max(np.abs(right), where=np.isfinite(right), initial=0.0)
    wrong = off > TOLERANCES.get(reference.dtype, 0.0) * largest
    if not wrong.any():
        return None
    index = tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
    sentence = f"differs{where((*place, *index))}: {both(float(left[index]), float(right[index]), is_float)}"
    if wrong.size > 1:
        largest_off = f"{off.max():.2g}" if np.isfinite(off).all() else "infinite"
        sentence += f" (largest difference {largest_off}, {int(wrong.sum())} of {wrong.size} differ)"
    return Difference("differs", sentence)


def as_numpy(array: mx.array) -> FloatArray:
    """The entries in double precision."""
    if mx.issubdtype(array.dtype, mx.floating):
        array = array.astype(mx.float32)
    return np.array(array).astype(np.float64)


def errors(left: FloatArray, right: FloatArray) -> FloatArray:
    """Distance of each pair: 0 where both are the same infinity or no number, infinite where only one is."""
    with np.errstate(invalid="ignore"):
        off = np.abs(left - right)
    off[(left == right) | (np.isnan(left) & np.isnan(right))] = 0.0
    off[np.isnan(off)] = np.inf
    return off


def both(yours: float, reference: float, is_float: bool) -> str:
    """Two numbers with as few digits as show their difference, at least four."""
    if not is_float:
        return f"yours {int(yours)}, reference {int(reference)}"
    for precision in range(4, 10):
        texts = f"{yours:.{precision}g}", f"{reference:.{precision}g}"
        if texts[0] != texts[1]:
            break
    return f"yours {texts[0]}, reference {texts[1]}"


def compare_numbers(yours: float, reference: float, place: Place) -> Difference | None:
    """Fractions up to rounding."""
    if math.isclose(yours, reference, rel_tol=NUMBER_TOLERANCE) or (
        math.isnan(yours) and math.isnan(reference)
    ):
        return None
    return Difference("differs", f"differs{where(place)}: {both(yours, reference, True)}")


def compare_texts(yours: str, reference: str, place: Place) -> Difference | None:
    """The first character, with what follows it."""
    if yours == reference:
        return None
    pairs = zip(yours, reference, strict=False)
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(yours), len(reference)))
    shown = (repr(short(text[first:])) if text[first:] else "the end" for text in (yours, reference))
    sentence = f"differs{where(place)} at character {first}: yours {next(shown)}, reference {next(shown)}"
    return Difference("differs", sentence)


def compare_dicts(
    yours: Mapping[str, Tree], reference: Mapping[str, Tree], place: Place
) -> Difference | None:
    """Keys, then values in the reference's order."""
    for words, one, other in (("lacks", reference, yours), ("should not have", yours, reference)):
        if extra := [key for key in one if key not in other]:
            keys = ", ".join(map(repr, extra[:3]))
            return Difference("shape", f"{words} {keys}{where(place)}")
    differences = (first_difference(yours[key], value, (*place, key)) for key, value in reference.items())
    return next((difference for difference in differences if difference), None)


def compare_lists(yours: list[Tree], reference: list[Tree], place: Place) -> Difference | None:
    """Item by item; of lists of another length also which is the first that differs."""
    pairs = enumerate(zip(yours, reference, strict=False))
    differences = (first_difference(left, right, (*place, i)) for i, (left, right) in pairs)
    first = next((difference for difference in differences if difference), None)
    if len(yours) == len(reference):
        return first
    rest = f"; {first.sentence}" if first else ", equal so far" if yours and reference else ""
    items = f"{len(yours)} item{'s' * (len(yours) != 1)}"
    return Difference("shape", f"{items} instead of {len(reference)}{where(place)}{rest}")


def compare_values(yours: object, reference: object, place: Place) -> Difference | None:
    """Anything else by its own equality."""
    if yours == reference:
        return None
    shown = (short(repr(value)) for value in (yours, reference))
    return Difference("differs", f"differs{where(place)}: yours {next(shown)}, reference {next(shown)}")


def short(text: str) -> str:
    """The beginning of a long text."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


COMPARISONS: dict[str, Callable[..., Difference | None]] = {
    "an mx.array": compare_arrays,
    "a float": compare_numbers,
    "a str": compare_texts,
    "a dict": compare_dicts,
    "a list": compare_lists,
}
