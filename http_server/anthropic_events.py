"""The objects and events of /v1/messages, and how a message grows."""

from copy import copy

import msgspec
from msgspec import UNSET, Raw, UnsetType

from .completion_objects import Usage
from .errors import AnthropicError
from .pieces import Call, Piece, Text, Thought

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
"""Why an answer ended, by its `finish_reason`."""


class TextContent(msgspec.Struct, tag="text", tag_field="type"):
    """A text."""

    text: str
    citations: None = None


class ToolUse(msgspec.Struct, tag="tool_use", tag_field="type"):
    """A call of a tool."""

    id: str
    name: str
    input: Raw


class Thinking(msgspec.Struct, tag="thinking", tag_field="type"):
    """A thought. Nothing is signed here."""

    thinking: str
    signature: str = ""


Content = TextContent | ToolUse | Thinking


class AnthropicUsage(msgspec.Struct):
    """Tokens of a request. Those of the prompt that were found in the prefix cache are counted apart."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0

    @classmethod
    def of(cls, usage: Usage) -> "AnthropicUsage":
        """The same numbers under Anthropic's names."""
        num_cached = usage.prompt_tokens_details.cached_tokens
        return cls(usage.prompt_tokens - num_cached, usage.completion_tokens, num_cached)


class AnthropicMessage(msgspec.Struct):
    """An answer."""

    id: str
    model: str
    content: list[Content]
    usage: AnthropicUsage
    type: str = "message"
    role: str = "assistant"
    stop_reason: str | None = None
    stop_sequence: str | None = None


class AnthropicDelta(msgspec.Struct):
    """What is new: in a block of content, or in the message."""

    type: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    partial_json: str | UnsetType = UNSET
    stop_reason: str | UnsetType = UNSET
    stop_sequence: str | UnsetType | None = UNSET


class AnthropicEvent(msgspec.Struct):
    """An event of a stream."""

    type: str
    message: AnthropicMessage | UnsetType = UNSET
    index: int | UnsetType = UNSET
    content_block: Content | UnsetType = UNSET
    delta: AnthropicDelta | UnsetType = UNSET
    usage: AnthropicUsage | UnsetType = UNSET
    error: AnthropicError | UnsetType = UNSET


class InputTokens(msgspec.Struct):
    """The answer of /v1/messages/count_tokens."""

    input_tokens: int


class GrowingMessage:
    """Append thoughts, text and calls to a message, and describe each change by events.

    Args:
        message: without content.

    Attributes:
        message: the message so far. Events share it, so encode each before the next change.
    """

    def __init__(self, message: AnthropicMessage) -> None:
        self.message = message
        self._open: Content | None = None  # the last block, until something else comes
        self._arguments = ""

    def begin(self, usage: Usage) -> list[AnthropicEvent]:
        """The event at the start."""
        self.message.usage = AnthropicUsage.of(usage)
        return [AnthropicEvent("message_start", message=self.message)]

    def add(self, piece: Piece) -> list[AnthropicEvent]:
        """Append a piece of the answer."""
        if isinstance(piece, Thought):
            events = self._in_block(Thinking(""))
            assert isinstance(self._open, Thinking)
            self._open.thinking += piece.text
            delta = AnthropicDelta("thinking_delta", thinking=piece.text)
        elif isinstance(piece, Text):
            events = self._in_block(TextContent(""))
            assert isinstance(self._open, TextContent)
            self._open.text += piece.text
            delta = AnthropicDelta("text_delta", text=piece.text)
        elif isinstance(piece, Call):
            return [*self._close(), self._begin(ToolUse(piece.id, piece.name, Raw(b"{}")))]
        else:
            events = []
            self._arguments += piece.text
            delta = AnthropicDelta("input_json_delta", partial_json=piece.text)
        return [*events, self._change("content_block_delta", delta)]

    def end(self, finish_reason: str, stop_sequence: str | None, usage: Usage) -> list[AnthropicEvent]:
        """End the message.

        Args:
            finish_reason: of the answer.
            stop_sequence: the stop string that ended it, if one did.
            usage: of the request.
        """
        events, message = self._close(), self.message
        message.stop_reason = "stop_sequence" if stop_sequence else STOP_REASONS[finish_reason]
        message.stop_sequence, message.usage = stop_sequence, AnthropicUsage.of(usage)
        delta = AnthropicDelta(stop_reason=message.stop_reason, stop_sequence=stop_sequence)
        changed = AnthropicEvent("message_delta", delta=delta, usage=message.usage)
        return [*events, changed, AnthropicEvent("message_stop")]

    def _in_block(self, empty: Content) -> list[AnthropicEvent]:
        """Begin a block, unless one of its kind is open."""
        return [] if type(self._open) is type(empty) else [*self._close(), self._begin(empty)]

    def _begin(self, block: Content) -> AnthropicEvent:
        self._open, self._arguments = block, ""
        self.message.content.append(block)
        index = len(self.message.content) - 1
        return AnthropicEvent("content_block_start", index=index, content_block=copy(block))

    def _change(self, name: str, delta: AnthropicDelta | UnsetType = UNSET) -> AnthropicEvent:
        return AnthropicEvent(name, index=len(self.message.content) - 1, delta=delta)

    def _close(self) -> list[AnthropicEvent]:
        """End the open block. The arguments of a call are an object, or none if they were cut off."""
        if self._open is None:
            return []
        if isinstance(self._open, ToolUse) and is_json(self._arguments):
            self._open.input = Raw(self._arguments.encode())
        self._open = None
        return [self._change("content_block_stop")]


def is_json(text: str) -> bool:
    """Whether a text is valid JSON."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
