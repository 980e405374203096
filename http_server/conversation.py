"""The messages and tools of a request, as chat templates expect them."""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import Any

import msgspec

from .errors import ApiError
from .fields import (
    ChatRequest,
    ContentPart,
    FunctionCall,
    Message,
    NamedTool,
    TextPart,
    ThinkingPart,
    TokenizeRequest,
    Tool,
)
from .text_codec import TextCodec
from .xml_calls import FUNCTION


async def encode_messages(
    codec: TextCodec,
    messages: Items[Message],
    tools: Items[Tool] = (),
    options: Mapping[str, Any] | None = None,
    places: Items[str] | None = None,
) -> tuple[int, ...]:
    """Token ids of a conversation in the chat template.

    Args:
        codec: has the template.
        messages: the conversation.
        tools: what the model may call.
        options: of the template.
        places: the field that each message comes from; by default, an entry of `messages`.

    Raises:
        ApiError: a message is incomplete, or the template has no tools.
        ValueError: as for `TextCodec.encode_chat`.
    """
    places = places or [f"messages[{number}]" for number in range(len(messages))]
    template = await codec.template()
    is_apart = FUNCTION in template  # such a template writes each argument by itself
    dicts = [as_dict(message, place, is_apart) for message, place in zip(messages, places, strict=True)]
    named = zip(messages, places, strict=True)
    place = next((place for each, place in named if each.tool_calls or each.role == "tool"), None)
    if (tools or place is not None) and "tools" not in template:
        message = "the chat template of this model has no tools: leave them out"
        raise ApiError(400, message, "tools" if tools else place, "unsupported_value")
    return await codec.encode_chat(dicts, [described(tool) for tool in tools], **(options or {}))


def end_of_prompt(request: ChatRequest | TokenizeRequest) -> dict[str, bool]:
    """Options of the chat template: whether the prompt ends with the start of a turn, or within the last one.

    Raises:
        ApiError: both are asked for, or the last message is one of calls.
    """
    if not request.continue_final_message:
        return {"add_generation_prompt": request.add_generation_prompt is not False}
    if request.add_generation_prompt:
        message = "an answer either continues the last message or begins a new one: set one of them to false"
        raise ApiError(400, message, "add_generation_prompt", "invalid_value")
    last = request.messages[-1] if request.messages else None
    if last is not None and last.tool_calls:
        message = "only a text can be continued, but the last message ends with calls"
        raise ApiError(400, message, "continue_final_message", "invalid_value")
    return {"add_generation_prompt": False, "continue_final_message": True}


def described(tool: Tool) -> dict[str, Any]:
    """A tool as chat templates expect it. Whether it is strict concerns the server, not the model."""
    function = msgspec.structs.replace(tool.function, strict=None, defer_loading=None)
    return {"type": tool.type, "function": msgspec.to_builtins(function)}


def as_dict(message: Message, place: str, is_apart: bool = False) -> dict[str, Any]:
    """A message as chat templates expect it.

    Args:
        message: of the conversation.
        place: the field that it comes from.
        is_apart: whether the template takes the arguments of calls apart, so that they must be an object.

    Raises:
        ApiError: the message lacks something, or has what its role must not have; shows its `place`.
    """
    check_message(message, place)
    content, thought = message.content or message.refusal, message.reasoning or message.reasoning_content
    if isinstance(content, list):
        thought = "".join(part.thinking for part in content if isinstance(part, ThinkingPart)) or thought
        content = "".join(map(text_of_part, content))
    role = "system" if message.role == "developer" else message.role
    found: dict[str, Any] = {"role": role, "content": content or ""}
    if thought:
        found["reasoning_content"] = thought
    if message.tool_calls:
        calls = enumerate(message.tool_calls)
        found["tool_calls"] = [
            call_dict(call, f"{place}.tool_calls[{number}]", is_apart) for number, call in calls
        ]
    if message.tool_call_id is not None:
        found["tool_call_id"] = message.tool_call_id
    return found


def text_of_part(part: ContentPart) -> str:
    """What a part adds to the content."""
    if isinstance(part, ThinkingPart):
        return ""
    return part.text if isinstance(part, TextPart) else part.refusal


def check_message(message: Message, place: str) -> None:
    """Refuse calls that are not the assistant's, and results of calls that are not a tool's."""
    if message.tool_calls and message.role != "assistant":
        raise ApiError(400, "only the assistant calls tools", f"{place}.tool_calls", "invalid_value")
    if message.tool_call_id is not None and message.role != "tool":
        raise ApiError(400, "only a tool's message answers a call", f"{place}.tool_call_id", "invalid_value")


def call_dict(call: FunctionCall, place: str, is_apart: bool) -> dict[str, Any]:
    """A call as chat templates expect it: its arguments are an object, or what an answer has of them.

    An answer may end in the middle of a call. Its text is kept then, so that the conversation can go on; as
    the only argument, if the template takes them apart.

    Raises:
        ApiError: they are JSON, but no object; shows their `place`.
    """
    text = call.function.arguments.strip() or "{}"
    try:
        arguments = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        arguments = {"arguments": text} if is_apart else text
    if not isinstance(arguments, dict) and arguments is not text:
        message = "arguments must be a JSON object, as text"
        raise ApiError(400, message, f"{place}.function.arguments", "invalid_value")
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.function.name, "arguments": arguments},
    }


def tools_of(request: ChatRequest) -> list[Tool]:
    """The tools that the model may call.

    Raises:
        ApiError: the request demands a call of a tool that it doesn't have.
    """
    choice, tools = request.tool_choice, request.tools or []
    if choice == "none":
        return []
    if choice == "required" and not tools:
        raise ApiError(400, "tool_choice is required, but there are no tools", "tool_choice", "invalid_value")
    if isinstance(choice, NamedTool) and choice.function.name not in [tool.function.name for tool in tools]:
        message = f"tools has no function named {choice.function.name!r}"
        raise ApiError(400, message, "tool_choice", "invalid_value")
    return tools
