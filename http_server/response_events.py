"""The objects and events of /v1/responses, and how a response grows."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from .completion_objects import Usage
from .pieces import Arguments, Call, Piece, Thought


class OutputText(msgspec.Struct, tag="output_text", tag_field="type"):
    """The text of a message."""

    text: str
    annotations: list[None] = []
    logprobs: list[None] = []


class ReasoningText(msgspec.Struct, tag="reasoning_text", tag_field="type"):
    """The text of a thought."""

    text: str


class OutputItem(msgspec.Struct):
    """A thought of the model, a message, or a call of a function."""

    id: str
    type: str
    status: str
    role: str | UnsetType = UNSET
    content: list[OutputText | ReasoningText] | UnsetType = UNSET
    summary: list[None] | UnsetType = UNSET
    call_id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class InputTokensDetails(msgspec.Struct):
    """Of a prompt's tokens, those found in the prefix cache."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    """Of an answer's tokens, those of its thought."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage, num_thought_tokens: int) -> "ResponseUsage":
        """The same numbers under the names of /v1/responses."""
        cached = InputTokensDetails(usage.prompt_tokens_details.cached_tokens)
        thought = OutputTokensDetails(num_thought_tokens)
        return cls(usage.prompt_tokens, cached, usage.completion_tokens, thought, usage.total_tokens)


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
    part: OutputText | ReasoningText | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    logprobs: list[None] | UnsetType = UNSET


PREFIXES = {"message": "msg", "reasoning": "rs"}
PARTS: dict[str, Callable[[str], OutputText | ReasoningText]] = {
    "message": OutputText,
    "reasoning": ReasoningText,
}
DELTAS = {
    "message": "output_text",
    "reasoning": "reasoning_text",
    "function_call": "function_call_arguments",
}
"""What the events are called that say how an item grows, by its type."""


class GrowingResponse:
    """Append the pieces of an answer to a response, and describe each change by events.

    All text belongs to one message, which stays open until the response ends. A thought and a call end when
    something else comes.

    Args:
        response: without output.

    Attributes:
        response: the response so far. Events share it, so encode each before the next change.
    """

    def __init__(self, response: ResponseObject) -> None:
        self.response = response
        self._num_events = 0
        self._open: dict[str, int] = {}  # places of the items that are not done, by their type
        self._texts: dict[int, str] = {}  # of the items

    def begin(self) -> list[ResponseEvent]:
        """The events at the start."""
        names = ("response.created", "response.in_progress")
        return [self._event(name, response=self.response) for name in names]

    def add(self, piece: Piece) -> list[ResponseEvent]:
        """Append a piece."""
        if isinstance(piece, Call):
            return [*self._close("reasoning"), *self._close("function_call"), *self._open_call(piece)]
        if isinstance(piece, Arguments):
            return [self._grow("function_call", piece.text)]
        kind = "reasoning" if isinstance(piece, Thought) else "message"
        events = [
            each for other in ("reasoning", "function_call") if other != kind for each in self._close(other)
        ]
        events += [] if kind in self._open else self._open_text(kind)
        return [*events, self._grow(kind, piece.text)]

    def end(self, finish_reason: str, usage: Usage, num_thought_tokens: int = 0) -> list[ResponseEvent]:
        """End the response. If it has nothing, it gets an empty message."""
        status = "incomplete" if finish_reason == "length" else "completed"
        events = [] if self.response.output else self._open_text("message")
        for kind in list(self._open):
            events += self._close(kind, status)
        self.response.status, self.response.usage = status, ResponseUsage.of(usage, num_thought_tokens)
        if status == "incomplete":
            self.response.incomplete_details = IncompleteDetails()
        return [*events, self._event(f"response.{status}", response=self.response)]

    def _begin_item(self, item: OutputItem) -> ResponseEvent:
        place = self._open[item.type] = len(self.response.output)
        self._texts[place] = ""
        self.response.output.append(item)
        return self._event("response.output_item.added", output_index=place, item=item)

    def _open_call(self, call: Call) -> list[ResponseEvent]:
        item = OutputItem(f"fc_{uuid4().hex}", "function_call", "in_progress")
        item.call_id, item.name, item.arguments = call.id, call.name, ""
        return [self._begin_item(item)]

    def _open_text(self, kind: str) -> list[ResponseEvent]:
        item = OutputItem(f"{PREFIXES[kind]}_{uuid4().hex}", kind, "in_progress", content=[])
        if kind == "message":
            item.role = "assistant"
        else:
            item.summary = []
        added = self._begin_item(item)
        part = PARTS[kind]("")
        return [added, self._event("response.content_part.added", **self._at(kind), part=part)]

    def _grow(self, kind: str, text: str) -> ResponseEvent:
        """Append to the text or the arguments of an item."""
        self._texts[self._open[kind]] += text
        logprobs: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        return self._event(f"response.{DELTAS[kind]}.delta", **self._at(kind), delta=text, **logprobs)

    def _close(self, kind: str, status: str = "completed") -> list[ResponseEvent]:
        """End an item, if there is one of this type that hasn't ended."""
        if kind not in self._open:
            return []
        at, place = self._at(kind), self._open.pop(kind)
        text, item = self._texts[place], self.response.output[place]
        if kind == "function_call":
            item = replace(item, status=status, arguments=text)
            events = [self._event(f"response.{DELTAS[kind]}.done", **at, arguments=text)]
        else:
            part = PARTS[kind](text)
            item = replace(item, status=status, content=[part])
            logprobs: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
            events = [
                self._event(f"response.{DELTAS[kind]}.done", **at, text=text, **logprobs),
                self._event("response.content_part.done", **at, part=part),
            ]
        self.response.output[place] = item
        return [*events, self._event("response.output_item.done", output_index=place, item=item)]

    def _at(self, kind: str) -> dict[str, Any]:
        """Where an item is that hasn't ended."""
        place = self._open[kind]
        found: dict[str, Any] = {"output_index": place, "item_id": self.response.output[place].id}
        return found if kind == "function_call" else found | {"content_index": 0}

    def _event(self, name: str, **values: Any) -> ResponseEvent:
        self._num_events += 1
        return ResponseEvent(name, self._num_events - 1, **values)
