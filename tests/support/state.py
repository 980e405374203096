"""The state of things, as values that later changes do not reach and that == compares."""

from collections import deque
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any

import mlx.core as mx
import numpy as np

from scripts.packages import NAME, REFERENCE, STAND_ON_IT

MOST_ENTRIES = 1 << 16
"""Of an array whose entries are looked at: a copy of a larger one would spoil tests of memory."""
MOST_ITEMS = 1000
"""Of a container that is looked into: more would spoil tests of time."""
MUTABLE = (list, dict, set, deque, mx.array, np.ndarray)


def state_of(value: Any, looks_into_objects: bool = True, known: frozenset[int] = frozenset()) -> Any:
    """Entries of arrays, items of containers, attributes of the package's objects, and theirs in turn.

    Args:
        value: the thing.
        looks_into_objects: whether what is in an object of the package belongs to its state.
        known: what lies around it.
    """
    if id(value) in known:
        return "..."
    inner = partial(state_of, looks_into_objects=looks_into_objects, known=known | {id(value)})
    if isinstance(value, mx.array):
        entries = np.array(value.astype(mx.float32)).tobytes() if value.size <= MOST_ENTRIES else b""
        return value.shape, str(value.dtype), entries
    if isinstance(value, np.ndarray):
        return value.shape, str(value.dtype), value.tobytes() if value.size <= MOST_ENTRIES else b""
    if isinstance(value, Mapping | list | tuple | deque) and len(value) > MOST_ITEMS:
        return len(value)
    if isinstance(value, Mapping):
        return {key: inner(item) for key, item in value.items()}
    if isinstance(value, list | tuple | deque):
        return [inner(item) for item in value]
    if isinstance(value, set | frozenset):
        return frozenset(value)
    if looks_into_objects and is_packages_own(value):
        return {name: inner(getattr(value, name)) for name in attributes_of(value)}
    return value if isinstance(value, str | int | float | bytes) else id(value)


def is_of_package(module_name: str) -> bool:
    """Whether a module belongs to what is tested: a package, or what stands on it."""
    return module_name.partition(".")[0] in (NAME, REFERENCE, *STAND_ON_IT)


def is_packages_own(value: Any) -> bool:
    """Whether a thing is an instance of one of the package's classes."""
    return is_of_package(type(value).__module__)


def attributes_of(value: Any) -> list[str]:
    """The names of an object's attributes, in slots or not; what it has worked out once is none of them."""
    owner = type(value)
    slots = [
        name for each in owner.__mro__ for name in getattr(each, "__slots__", ()) if hasattr(value, name)
    ]
    own = [
        name
        for name in getattr(value, "__dict__", {})
        if not isinstance(getattr(owner, name, None), cached_property)
    ]
    return [*own, *slots]


def changed_place(before: Any, after: Any) -> str:
    """Where two states of one thing differ first: `.running[2].offset`."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before:
            if key in after and before[key] != after[key]:
                step = f".{key}" if isinstance(key, str) else f"[{key!r}]"
                return step + changed_place(before[key], after[key])
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, (old, new) in enumerate(zip(before, after, strict=True)):
            if old != new:
                return f"[{i}]{changed_place(old, new)}"
    return ""
