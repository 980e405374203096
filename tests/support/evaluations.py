"""Notices when the package waits for numbers: MLX computes nothing until somebody asks."""

import io
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import walk_stack
from types import FrameType, TracebackType
from typing import Any

import mlx.core as mx
import numpy as np

from tests.support.state import is_of_package

EVALUATES = ("eval", "async_eval", "synchronize")
EARLY_READS = "read before the first evaluation"
ASKS: tuple[tuple[Any, dict[str, str]], ...] = (
    (mx, {name: f"mx.{name}" for name in EVALUATES}),
    (np, {name: f"np.{name}" for name in ("array", "asarray", "ascontiguousarray")}),
    (
        mx.array,
        {
            "item": ".item()",
            "tolist": ".tolist()",
            "__int__": "int()",
            "__float__": "float()",
            "__bool__": "a condition",
            "__index__": "an index",
            "__array__": "NumPy",
            "__repr__": "its text",
        },
    ),
)
"""What makes MLX compute, and how a learner would call it: functions, and methods of an array."""
MUST_ASK = {"remove_request", "read_blocks", "load_model", "filled_beside", "tell", "follow"}
"""Functions with a reason to evaluate: a row or a block is copied before it is written over, weights are
joined, masks are filled while the model computes, a message has to leave, and another rank computes in its
own thread."""


class AskedError(Exception):
    """What asked for numbers, such as `.item()`. Its traceback has the lines of the package that did."""


class Evaluations(Counter[str]):
    """How often each has been asked for numbers.

    Attributes:
        asked: those that asked, by whether they evaluate or read.
        is_asked_by_others: whether a test, an emulator or a function that must has asked as well.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[bool, list[AskedError]] = {True: [], False: []}
        self.is_asked_by_others = False

    def add(self, name: str, shown: str, frame: FrameType) -> None:
        """Count one more."""
        self[name.strip("_")] += 1
        if not any(self[each] for each in EVALUATES):
            self[EARLY_READS] += 1
        self.asked[name in EVALUATES].append(AskedError(shown).with_traceback(traceback_of(frame)))


def traceback_of(frame: FrameType) -> TracebackType | None:
    """The lines of the package that have led to a frame of its own."""
    traceback = None
    for each, line in walk_stack(frame):
        if not is_of_package(each.f_globals.get("__name__", "")):
            break
        if traceback is None or traceback.tb_lineno != line:  # which a comprehension shares
            traceback = TracebackType(traceback, each, each.f_lasti, line)
    return traceback


def is_packages_line(frame: FrameType) -> bool:
    """Whether a line of the package asks, other than in a function that must."""
    if not is_of_package(frame.f_globals.get("__name__", "")):
        return False
    callers = {each.f_code.co_name for each, _ in walk_stack(frame)}
    return not MUST_ASK & callers


@contextmanager
def evaluations() -> Iterator[Evaluations]:
    """How often lines of the package call each of them within the block, by its name."""
    counts = Evaluations()
    originals = [
        (owner, name, getattr(owner, name), shown) for owner, names in ASKS for name, shown in names.items()
    ]

    def counted(owner: Any, name: str, original: Callable[..., Any], shown: str) -> Callable[..., Any]:
        def ask(*args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            if owner is not np or any(map(is_waiting, args[:1])):
                if is_packages_line(frame):
                    counts.add(name, shown, frame)
                else:
                    counts.is_asked_by_others = True
            return original(*args, **kwargs)

        return ask

    for owner, name, original, shown in originals:
        setattr(owner, name, counted(owner, name, original, shown))
    try:
        yield counts
    finally:
        for owner, name, original, _ in originals:
            setattr(owner, name, original)


def num_operations(*arrays: mx.array, name: str = "") -> int:
    """How many operations are still to be computed before these arrays are there, or how many of one name."""
    graph = io.StringIO()
    mx.export_to_dot(graph, *arrays)
    return graph.getvalue().count(f'[label ="{name}')


def is_waiting(x: object) -> bool:
    """Whether something is an array that is still to be computed."""
    return isinstance(x, mx.array) and num_operations(x) > 0


def let_wait(x: mx.array) -> None:
    """Let an array be computed again, from its own numbers. `is_waiting` tells whether that has been done.

    So nothing that reads numbers remains unseen, such as NumPy, which asks an array for its memory.
    """
    if not is_waiting(x):
        x[...] = mx.stop_gradient(x)
