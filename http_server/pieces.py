"""What an answer consists of: thoughts, text, and calls of tools, in the order in which they are written."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from .thoughts import ThoughtParser


class Thought(NamedTuple):
    """Some more of what the model thinks."""

    text: str


class Text(NamedTuple):
    """Some more of the answer itself."""

    text: str


class Call(NamedTuple):
    """A call begins."""

    id: str
    name: str


class Arguments(NamedTuple):
    """Some more of the arguments of the last call: JSON, as text."""

    text: str


Piece = Thought | Text | Call | Arguments


class CallParser(Protocol):
    """Separate the text of an answer from the calls in it, while the answer grows."""

    def add(self, text: str) -> list[Piece]:
        """Append a piece of the answer, and return what is certain by now."""

    def finish(self) -> list[Piece]:
        """Return the rest."""


class PlainText:
    """What reads an answer in which there can be no calls."""

    def add(self, text: str) -> list[Piece]:
        """Return the text."""
        return [Text(text)]

    def finish(self) -> list[Piece]:
        """Return nothing."""
        return []


@dataclass
class AnswerParser:
    """Read one answer: what it begins with may be a thought, and a call in a thought is none.

    Args:
        thoughts: separates the thought from the rest.
        calls: separates the calls in the rest from its text.

    Attributes:
        num_calls: number of calls so far.
        num_tokens: number of tokens so far.
        num_thought_tokens: how many of them came before the end of the thought.
    """

    thoughts: ThoughtParser
    calls: CallParser
    num_calls: int = 0
    num_tokens: int = 0
    num_thought_tokens: int = 0

    def add(self, text: str, num_tokens: int, is_last: bool) -> list[Piece]:
        """Append a piece of the answer, and return what is certain by now; after the last one, everything."""
        was_inside = self.thoughts.is_inside
        thought, rest = self.thoughts.add(text, is_last)
        self.num_tokens += num_tokens
        if was_inside or self.thoughts.is_inside:
            self.num_thought_tokens = self.num_tokens
        found: list[Piece] = [Thought(thought), *(self.calls.add(rest) if rest else [])]
        if is_last:
            found += self.calls.finish()
        self.num_calls += sum(isinstance(piece, Call) for piece in found)
        return [piece for piece in found if isinstance(piece, Call) or piece.text]
