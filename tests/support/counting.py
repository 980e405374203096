"""Counts calls of parts that a test hands in: work done twice, or for nobody, gives the right result too."""

from collections.abc import Callable
from typing import Any

from tests.support.check import check_equal


class Counted:
    """A function, which counts its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.num_calls = function, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.num_calls += 1
        return self.function(*args, **kwargs)


def count_calls(owner: object, name: str) -> Counted:
    """Put a counter in place of a method of this one object."""
    counted = Counted(getattr(owner, name))
    setattr(owner, name, counted)
    return counted


def check_calls(parts: dict[str, Counted], expected: int, what: str) -> None:
    """Fail unless each of the parts was called so often since the last check."""
    __tracebackhide__ = True
    counts = {name: part.num_calls for name, part in parts.items()}
    for part in parts.values():
        part.num_calls = 0
    check_equal(counts, dict.fromkeys(parts, expected), f"calls of each part {what}")
