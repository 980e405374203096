"""The objects and events of /v1/messages, and how a message grows."""

import msgspec
from msgspec import UNSET, Raw, UnsetType

from .errors import AnthropicError
from .responses import Usage
from .tool_calls import ToolCall

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


Content = TextContent | ToolUse


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
    """Append text and calls to a message, and describe each change by events.

    Args:
        message: without content.

    Attributes:
        message: the message so far. Events share it, so encode each before the next change.
    """

    def __init__(self, message: AnthropicMessage) -> None:
        self.message = message
        self._text: TextContent | None = None  # the last block, while it is open

    def begin(self, usage: Usage) -> list[AnthropicEvent]:
        """The event at the start."""
        self.message.usage = AnthropicUsage.of(usage)
        return [AnthropicEvent("message_start", message=self.message)]

    def add_text(self, text: str) -> list[AnthropicEvent]:
        """Append text."""
        events = []
        if self._text is None:
            self._text = TextContent("")
            events = [self._open(self._text, TextContent(""))]
        self._text.text += text
        return [*events, self._change("content_block_delta", AnthropicDelta("text_delta", text))]

    def add_call(self, call: ToolCall) -> list[AnthropicEvent]:
        """Append a whole call."""
        events = self._close_text()
        arguments = call.function.arguments
        use = ToolUse(call.id, call.function.name, Raw(arguments.encode()))
        return [
            *events,
            self._open(use, ToolUse(use.id, use.name, Raw(b"{}"))),
            self._change("content_block_delta", AnthropicDelta("input_json_delta", partial_json=arguments)),
            self._change("content_block_stop"),
        ]

    def end(self, finish_reason: str, stop_sequence: str | None, usage: Usage) -> list[AnthropicEvent]:
        """End the message.

        Args:
            finish_reason: of the answer.
            stop_sequence: the stop string that ended it, if one did.
            usage: of the request.
        """
        events, message = self._close_text(), self.message
        message.stop_reason = "stop_sequence" if stop_sequence else STOP_REASONS[finish_reason]
        message.stop_sequence, message.usage = stop_sequence, AnthropicUsage.of(usage)
        delta = AnthropicDelta(stop_reason=message.stop_reason, stop_sequence=stop_sequence)
        changed = AnthropicEvent("message_delta", delta=delta, usage=message.usage)
        return [*events, changed, AnthropicEvent("message_stop")]

    def _open(self, block: Content, empty: Content) -> AnthropicEvent:
        self.message.content.append(block)
        index = len(self.message.content) - 1
        return AnthropicEvent("content_block_start", index=index, content_block=empty)

    def _change(self, name: str, delta: AnthropicDelta | UnsetType = UNSET) -> AnthropicEvent:
        return AnthropicEvent(name, index=len(self.message.content) - 1, delta=delta)

    def _close_text(self) -> list[AnthropicEvent]:
        is_open, self._text = self._text is not None, None
        return [self._change("content_block_stop")] if is_open else []
