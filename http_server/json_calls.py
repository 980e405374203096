"""Calls written as JSON: between the tags <tool_call> and </tool_call>, or bare, as Llama 3 writes them."""

import re
from abc import abstractmethod

import msgspec

from tiny_llm.server.text_increments import num_held_back

from .tool_calls import SteppingParser

BEGIN, END = "<tool_call>", "</tool_call>"
MAY_BEGIN = ("\n" + BEGIN, BEGIN)  # the line break before a call belongs to it
PYTHON_TAG = "<|python_tag|>"
HEAD = re.compile(
    r'\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"(?P<name>[^"\\]{1,64})"\s*,'
    r'\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
"""What almost every call begins with. Its arguments can be passed on while they are written."""


class WrittenCall(msgspec.Struct):
    """What a model writes, in any order."""

    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"")
    parameters: msgspec.Raw = msgspec.Raw(b"")


class ObjectEnd:
    """Find the end of a JSON object in a text that grows.

    Attributes:
        is_reached: whether the end has come, or a tag, which no JSON has outside of a string.
    """

    def __init__(self) -> None:
        self.is_reached = False
        self._depth = 0
        self._in_string = self._is_escaped = False

    def read(self, text: str) -> int:
        """Read on, and return how many characters belong to the object."""
        for place, character in enumerate(text):
            if self._is_escaped:
                self._is_escaped = False
            elif character == "\\":
                self._is_escaped = self._in_string
            elif character == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                self._depth += (character in "{[") - (character in "}]")
                if self._depth == 0 or character == "<":
                    self.is_reached = True
                    return place + (character != "<")
        return len(text)


class JsonCalls(SteppingParser):
    """What both readers of JSON share: the call itself."""

    def call_step(self) -> bool:
        """Read the name of a call, if the call begins in the usual way."""
        head = HEAD.match(self.held)
        if head is None:
            return False
        self.begin_call(head["name"])
        self.take(head.end())
        self.end, self.step = ObjectEnd(), self.arguments_step
        return True

    def arguments_step(self) -> bool:
        """Read more of the arguments."""
        arguments = self.take(self.end.read(self.held))
        self.add_arguments(arguments)
        if self.end.is_reached:
            self.step = self.after_step
        return self.end.is_reached

    @abstractmethod
    def after_step(self) -> bool:
        """Read what follows the arguments."""

    def is_call(self, written: str) -> bool:
        """Whether a whole text is a call, which is noted then."""
        try:
            call = msgspec.json.decode(written.strip(), type=WrittenCall)
            arguments = (bytes(call.arguments) or bytes(call.parameters) or b"{}").decode()
            arguments = "{}" if arguments == "null" else arguments
            if arguments.startswith('"'):  # JSON in JSON
                arguments = msgspec.json.decode(arguments, type=str)
            msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, RecursionError):
            return False
        self.begin_call(call.name, arguments)
        return True


class TaggedJsonCalls(JsonCalls):
    """Read calls between tags. What is between tags but is not a call stays text, with its tags."""

    def first_step(self) -> bool:
        """Read text up to the next tag."""
        if BEGIN not in self.held:
            self.add_text(self.take(len(self.held) - num_held_back(self.held, MAY_BEGIN)))
            return False
        before = self.take(self.held.index(BEGIN))
        self.opening = "\n" * before.endswith("\n") + self.take(len(BEGIN))
        self.add_text(before.removesuffix("\n"))
        self.step = self.call_step
        return True

    def call_step(self) -> bool:
        """Read the beginning of a call, or all of it."""
        if super().call_step():
            return True
        if END not in self.held:
            return False
        written = self.take(self.held.index(END))
        end = self.take(len(END))
        if not self.is_call(written):
            self.add_text(self.opening + written + end)
        self.step = self.first_step
        return True

    def after_step(self) -> bool:
        """Read up to the last tag, which a model may forget before its next call."""
        places = [place for place in map(self.held.find, (END, BEGIN)) if place >= 0]
        if places:
            self.take(min(places))
            self.held = self.held.removeprefix(END)
            self.step = self.first_step
        return bool(places)

    def rest(self) -> None:
        """A call may lack its last tag."""
        if self.step == self.first_step:
            self.add_text(self.held)
        elif self.step == self.call_step and not self.is_call(self.held):
            self.add_text(self.opening + self.held)
        elif self.step == self.after_step:
            left = self.held.lstrip().removeprefix("}")
            self.add_text("" if END.startswith(left.lstrip()) else left)


class BareJsonCalls(JsonCalls):
    """Read an answer that is a call, or several with semicolons between them. Any other answer is text."""

    def first_step(self) -> bool:
        """Read up to the next call."""
        pattern = (
            rf"[\s;]*({re.escape(PYTHON_TAG)})?\s*"
            if self.num_calls
            else rf"\s*({re.escape(PYTHON_TAG)})?\s*"
        )
        match = re.match(pattern, self.held)
        assert match is not None
        start = self.held[match.end() :]
        if start.startswith("{"):
            self.opening = self.take(match.end())
            self.end, self.num_read, self.step = ObjectEnd(), 0, self.call_step
            return True
        if start and not PYTHON_TAG.startswith(start):
            self.step = self.text_step
            return True
        return False

    def call_step(self) -> bool:
        """Read the beginning of a call, or all of an object."""
        if super().call_step():
            return True
        self.num_read += self.end.read(self.held[self.num_read :])
        if not self.end.is_reached:
            return False
        written = self.take(self.num_read)
        self.step = self.first_step
        if not self.is_call(written):
            self.add_text(self.opening + written)
            self.step = self.text_step
        return True

    def after_step(self) -> bool:
        """Read up to the end of the call."""
        if "}" in self.held:
            self.take(self.held.index("}") + 1)
            self.step = self.first_step
        return self.step == self.first_step

    def text_step(self) -> bool:
        """Read text."""
        self.add_text(self.take(len(self.held)))
        return False

    def rest(self) -> None:
        """An object that is incomplete is text."""
        if self.step == self.call_step:
            self.add_text(self.opening + self.held)
        elif self.step == self.first_step:
            self.add_text(self.held)
