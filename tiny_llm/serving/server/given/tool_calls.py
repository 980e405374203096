"""Calls of tools in the text of an answer, as Qwen's models write them: <tool_call>{…}</tool_call>."""

from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import msgspec

from ..text_increments import num_held_back

BEGIN, END = "<tool_call>", "</tool_call>"
MAY_BEGIN = ("\n" + BEGIN, BEGIN)  # the line break before a call belongs to it


class CalledFunction(msgspec.Struct):
    """What is called. The arguments are JSON, as text."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    """A call in an answer. Only streams number their calls."""

    id: str
    function: CalledFunction
    type: str = "function"
    index: int | msgspec.UnsetType = msgspec.UNSET


class WrittenCall(msgspec.Struct):
    """What a model writes between the tags."""

    name: str
    arguments: dict[str, Any] = {}


@dataclass
class ToolCallParser:
    """Separate the text of an answer from the calls in it, while the answer grows.

    Text is held back while it may be the beginning of a tag. What is between tags but is not a call stays
    text, with its tags.

    Attributes:
        calls: the calls found so far.
    """

    calls: list[ToolCall] = field(default_factory=list)
    _held: str = ""

    def add(self, text: str) -> str:
        """Append a piece of the answer, and return the text that is certain to belong to no call."""
        self._held += text
        certain = ""
        while True:
            number = len(self._held) - num_held_back(self._held, MAY_BEGIN)
            certain, self._held = certain + self._held[:number], self._held[number:]
            if END not in self._held:
                return certain
            written, self._held = self._held.split(END, 1)
            certain += self._read(written, END)

    def finish(self) -> str:
        """Return the rest of the text. A call may lack its last tag at the end of the answer."""
        held, self._held = self._held, ""
        rest = self._read(held) if BEGIN in held else held
        return rest if rest.strip() or not self.calls else ""

    def _read(self, written: str, end: str = "") -> str:
        """Note a call, and return nothing; or return its text if it is no call."""
        try:
            call = msgspec.json.decode(written.split(BEGIN, 1)[1].strip(), type=WrittenCall)
        except (msgspec.DecodeError, RecursionError):
            return written + end
        function = CalledFunction(call.name, msgspec.json.encode(call.arguments).decode())
        self.calls.append(ToolCall(f"call_{uuid4().hex}", function))
        return ""
