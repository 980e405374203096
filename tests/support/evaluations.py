"""Counts how often the package waits for numbers: MLX computes nothing until somebody asks."""

import io
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import walk_stack
from types import FrameType
from typing import Any

import mlx.core as mx

from tests.support.state import is_of_package

EVALUATES = ("eval", "async_eval", "synchronize")
EARLY_READS = "read before the first evaluation"
ASKS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (mx, EVALUATES),
    (mx.array, ("item", "tolist", "__int__", "__float__", "__bool__", "__index__", "__array__")),
)
"""What makes MLX compute: functions, and methods of an array."""
MUST_ASK = {"remove_request", "load_model", "filled_beside", "tell", "follow"}
"""Functions with a reason to evaluate: a row is copied before it is written over, weights are joined, masks
are filled while the model computes, a message has to leave, and another rank computes in its own thread."""


def is_packages_line(frame: FrameType) -> bool:
    """Whether a line of the package asks, other than in a function that must."""
    if not is_of_package(frame.f_globals.get("__name__", "")):
        return False
    callers = {each.f_code.co_name for each, _ in walk_stack(frame)}
    return not MUST_ASK & callers


@contextmanager
def evaluations() -> Iterator[Counter[str]]:
    """How often lines of the package call each of them within the block, by its name."""
    counts: Counter[str] = Counter()
    originals = [(owner, name, getattr(owner, name)) for owner, names in ASKS for name in names]

    def counted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*args: Any, **kwargs: Any) -> Any:
            if is_packages_line(sys._getframe(1)):
                counts[name.strip("_")] += 1
                if not any(counts[each] for each in EVALUATES):
                    counts[EARLY_READS] += 1
            return original(*args, **kwargs)

        return ask

    for owner, name, original in originals:
        setattr(owner, name, counted(name, original))
    try:
        yield counts
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def num_operations(*arrays: mx.array, name: str = "") -> int:
    """How many operations are still to be computed before these arrays are there, or how many of one name."""
    graph = io.StringIO()
    mx.export_to_dot(graph, *arrays)
    return graph.getvalue().count(f'[label ="{name}')
