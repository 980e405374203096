"""Calls of tools in a response, and what the readers of all forms of calls share."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from uuid import uuid4

import msgspec

from .pieces import Arguments, Call, Piece, Text


class CalledFunction(msgspec.Struct):
    """What is called. The arguments are JSON, as text. Later parts of a streamed call have no name."""

    name: str | msgspec.UnsetType
    arguments: str


class ToolCall(msgspec.Struct):
    """A call in an answer, or a part of one. Only streams number their calls."""

    id: str | msgspec.UnsetType
    function: CalledFunction
    type: str | msgspec.UnsetType = "function"
    index: int | msgspec.UnsetType = msgspec.UNSET


class SteppingParser(ABC):
    """Read a text that grows in steps, each of which knows what may come next.

    Attributes:
        held: text that has come, but belongs to nothing yet.
        found: what has been found since the last call.
        step: goes on from here; returns whether it has come any further.
    """

    def __init__(self) -> None:
        self.held = ""
        self.found: list[Piece] = []
        self.step: Callable[[], bool] = self.first_step
        self.num_calls = 0
        self._blank = ""  # whitespace after a call, of which it isn't known yet whether text follows

    @abstractmethod
    def first_step(self) -> bool:
        """Read what an answer begins with."""

    @abstractmethod
    def rest(self) -> None:
        """Find what is left at the end of the answer."""

    def add(self, text: str) -> list[Piece]:
        """Append a piece of the answer, and return what is certain by now."""
        self.held += text
        while self.step():
            pass
        return self._taken()

    def finish(self) -> list[Piece]:
        """Return the rest."""
        self.rest()
        self.held = ""
        return self._taken()

    def take(self, number: int) -> str:
        """Take characters of the held text."""
        taken, self.held = self.held[:number], self.held[number:]
        return taken

    def begin_call(self, name: str, arguments: str = "") -> None:
        """Note a call, and what is known of its arguments."""
        self.num_calls += 1
        self._blank = ""
        self.found += [Call(f"call_{uuid4().hex}", name), Arguments(arguments)]

    def add_arguments(self, arguments: str) -> None:
        """Note more of the arguments of the last call."""
        self.found.append(Arguments(arguments))

    def add_text(self, text: str) -> None:
        """Note text. After a call, whitespace before another or before the end belongs to nothing."""
        text = self._blank + text
        kept = text.rstrip() if self.num_calls else text
        self._blank = text[len(kept) :]
        if kept:
            self.found.append(Text(kept))

    def _taken(self) -> list[Piece]:
        taken, self.found = self.found, []
        return taken
