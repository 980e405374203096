"""The fields of /v1/messages, which is Anthropic's protocol."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from .fields import (
    MAX_STOP,
    MAX_TOOLS,
    Empty,
    Ignored,
    Positive,
    Refused,
    RequestObject,
    Schema,
    StopString,
    Text,
    TopK,
)

AnthropicName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]


class Block(RequestObject, kw_only=True, tag_field="type"):
    """A part of a message's content. Images and documents are refused."""

    cache_control: Ignored = None


class TextBlock(Block, kw_only=True, tag="text"):
    """A text."""

    text: str
    citations: Ignored = None


class ToolUseBlock(Block, kw_only=True, tag="tool_use"):
    """A call that the assistant made."""

    id: str
    name: str
    input: dict[str, Any]
    caller: Ignored = None


class ToolResultBlock(Block, kw_only=True, tag="tool_result"):
    """What a call gave."""

    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: Ignored = None


class ThinkingBlock(Block, kw_only=True, tag="thinking"):
    """A thought of the assistant."""

    thinking: str
    signature: Ignored = None


class RedactedBlock(Block, kw_only=True, tag="redacted_thinking"):
    """A thought that no model here can read."""

    data: Ignored = None


ContentBlock = TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedBlock


class AnthropicTurn(RequestObject, kw_only=True):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlock]


CUSTOM = (None, "custom")
"""Types of tools that clients run themselves."""


class AnthropicTool(RequestObject, kw_only=True):
    """A tool that the model may call. Those with a type of their own run on Anthropic's servers: skipped."""

    name: AnthropicName
    type: str | None = None
    description: str | None = None
    input_schema: Schema | None = None
    strict: bool | None = None
    cache_control: Ignored = None
    input_examples: Ignored = None
    defer_loading: Ignored = None
    eager_input_streaming: Ignored = None
    allowed_callers: Ignored = None


class AnthropicToolChoice(RequestObject, kw_only=True):
    """Whether the model must call, and what."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingOption(RequestObject, kw_only=True):
    """Whether the model thinks. How much it thinks is its own affair."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Ignored = None
    display: Literal["summarized", "omitted"] | None = None


class SchemaFormat(RequestObject, kw_only=True):
    """JSON that is valid by a schema."""

    type: Literal["json_schema"]
    schema: Schema


class OutputConfig(RequestObject, kw_only=True):
    """What the answer must look like."""

    format: SchemaFormat | None = None
    effort: Ignored = None


class PromptFields(RequestObject, kw_only=True):
    """What a prompt is made of."""

    model: str
    messages: Annotated[list[AnthropicTurn], Meta(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: Annotated[list[AnthropicTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: ThinkingOption | None = None
    output_config: OutputConfig | None = None
    cache_control: Ignored = None
    context_management: Ignored = None
    diagnostics: Ignored = None
    speed: Ignored = None


class CountTokensRequest(PromptFields, kw_only=True):
    """The body of /v1/messages/count_tokens."""


class MessagesRequest(PromptFields, kw_only=True):
    """The body of /v1/messages."""

    max_tokens: Positive
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: TopK | None = None
    stop_sequences: Annotated[list[StopString], Meta(max_length=MAX_STOP)] | None = None
    stream: bool | None = None
    cache_salt: Text | None = None
    metadata: Ignored = None
    service_tier: Ignored = None
    inference_geo: Ignored = None
    container: Refused = None
    mcp_servers: Empty = None
