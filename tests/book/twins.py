"""The JavaScript twins of the figures, in V8."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from py_mini_racer import MiniRacer

from scripts.course import ROOT

TWINS = ROOT / "book" / "viz" / "twins"
NUM_CASES = 1000


@contextmanager
def twin(name: str) -> Iterator[MiniRacer]:
    """V8 with one twin loaded, closed at the end: left open after an exception, it hangs at exit."""
    with MiniRacer() as context:
        context.eval((TWINS / f"{name}.js").read_text(encoding="utf-8"))
        yield context


def twin_fixture(name: str) -> Callable[[], Iterator[MiniRacer]]:
    """A fixture: the same for all tests of a module."""

    @pytest.fixture(scope="module")
    def context() -> Iterator[MiniRacer]:
        with twin(name) as loaded:
            yield loaded

    return context
