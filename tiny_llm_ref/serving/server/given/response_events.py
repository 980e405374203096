"""The objects and events of /v1/responses, and how a response grows."""

from typing import Any
from uuid import uuid4

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from .responses import Usage
from .tool_calls import ToolCall


class OutputText(msgspec.Struct):
    """The text of a message."""

    text: str
    type: str = "output_text"
    annotations: list[None] = []
    logprobs: list[None] = []


class OutputItem(msgspec.Struct):
    """A message of the model, or a call of a function."""

    id: str
    type: str
    status: str
    role: str | UnsetType = UNSET
    content: list[OutputText] | UnsetType = UNSET
    call_id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class InputTokensDetails(msgspec.Struct):
    """Of a prompt's tokens, those found in the prefix cache."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    """Of an answer's tokens, those that are not shown: none."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> "ResponseUsage":
        """The same numbers under the names of /v1/responses."""
        cached = InputTokensDetails(usage.prompt_tokens_details.cached_tokens)
        return cls(
            usage.prompt_tokens, cached, usage.completion_tokens, OutputTokensDetails(), usage.total_tokens
        )


class IncompleteDetails(msgspec.Struct):
    """Why a response is incomplete."""

    reason: str = "max_output_tokens"


class TextSettings(msgspec.Struct):
    """What kind of text the answer is."""

    format: dict[str, Any]


class ResponseObject(msgspec.Struct):
    """A response. Some of its fields repeat those of the request."""

    id: str
    created_at: int
    model: str
    status: str
    instructions: str | None
    max_output_tokens: int | None
    temperature: float
    top_p: float
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, str]
    parallel_tool_calls: bool
    metadata: dict[str, str]
    output: list[OutputItem]
    object: str = "response"
    usage: ResponseUsage | None = None
    error: None = None
    incomplete_details: IncompleteDetails | None = None
    text: TextSettings = msgspec.field(default_factory=lambda: TextSettings({"type": "text"}))
    truncation: str = "disabled"
    background: bool = False
    store: bool = False
    previous_response_id: None = None


class ResponseEvent(msgspec.Struct):
    """An event of a stream. Those that end with `done` repeat what came piece by piece."""

    type: str
    sequence_number: int
    response: ResponseObject | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    item: OutputItem | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    part: OutputText | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    logprobs: list[None] | UnsetType = UNSET


class GrowingResponse:
    """Append text and calls to a response, and describe each change by events.

    All text belongs to one message, which stays open until the response ends.

    Args:
        response: without output.

    Attributes:
        response: the response so far. Events share it, so encode each before the next change.
    """

    def __init__(self, response: ResponseObject) -> None:
        self.response = response
        self._num_events = 0
        self._message: int | None = None  # its place among the items
        self._text = ""

    def begin(self) -> list[ResponseEvent]:
        """The events at the start."""
        names = ("response.created", "response.in_progress")
        return [self._event(name, response=self.response) for name in names]

    def add_text(self, text: str) -> list[ResponseEvent]:
        """Append text. The first one opens the message."""
        events = [] if self._message is not None else self._open_message()
        self._text += text
        delta = self._event(
            "response.output_text.delta", **self._place, content_index=0, delta=text, logprobs=[]
        )
        return [*events, delta]

    def add_call(self, call: ToolCall) -> list[ResponseEvent]:
        """Append a whole call."""
        function = call.function
        item = OutputItem(f"fc_{uuid4().hex}", "function_call", "in_progress")
        item.call_id, item.name, item.arguments = call.id, function.name, ""
        done = replace(item, status="completed", arguments=function.arguments)
        place: dict[str, Any] = {"output_index": len(self.response.output), "item_id": item.id}
        self.response.output.append(done)
        return [
            self._event("response.output_item.added", output_index=place["output_index"], item=item),
            self._event("response.function_call_arguments.delta", **place, delta=function.arguments),
            self._event("response.function_call_arguments.done", **place, arguments=function.arguments),
            self._event("response.output_item.done", output_index=place["output_index"], item=done),
        ]

    def end(self, finish_reason: str, usage: Usage) -> list[ResponseEvent]:
        """End the response. Without text and calls, it has an empty message."""
        status = "incomplete" if finish_reason == "length" else "completed"
        events = [] if self.response.output else self._open_message()
        if self._message is not None:
            events += self._close_message(status)
        self.response.status, self.response.usage = status, ResponseUsage.of(usage)
        if status == "incomplete":
            self.response.incomplete_details = IncompleteDetails()
        return [*events, self._event(f"response.{status}", response=self.response)]

    @property
    def _place(self) -> dict[str, Any]:
        """Where the message is."""
        assert self._message is not None
        return {"output_index": self._message, "item_id": self.response.output[self._message].id}

    def _open_message(self) -> list[ResponseEvent]:
        self._message = len(self.response.output)
        item = OutputItem(f"msg_{uuid4().hex}", "message", "in_progress", "assistant", [])
        self.response.output.append(item)
        return [
            self._event("response.output_item.added", output_index=self._message, item=item),
            self._event("response.content_part.added", **self._place, content_index=0, part=OutputText("")),
        ]

    def _close_message(self, status: str) -> list[ResponseEvent]:
        assert self._message is not None
        part = OutputText(self._text)
        item = replace(self.response.output[self._message], status=status, content=[part])
        self.response.output[self._message] = item
        at = {**self._place, "content_index": 0}
        return [
            self._event("response.output_text.done", **at, text=self._text, logprobs=[]),
            self._event("response.content_part.done", **at, part=part),
            self._event("response.output_item.done", output_index=self._message, item=item),
        ]

    def _event(self, name: str, **values: Any) -> ResponseEvent:
        self._num_events += 1
        return ResponseEvent(name, self._num_events - 1, **values)
