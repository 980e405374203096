"""From a request in Anthropic's protocol to the chat completion that it asks for."""

from collections.abc import Sequence as Items
from typing import Literal

import msgspec

from .anthropic_fields import (
    CUSTOM,
    AnthropicToolChoice,
    ContentBlock,
    MessagesRequest,
    PromptFields,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from .errors import ApiError
from .fields import (
    CalledFunction,
    ChatRequest,
    Function,
    FunctionCall,
    FunctionName,
    JsonSchemaFormat,
    Message,
    NamedSchema,
    NamedTool,
    Tool,
)


def chat_of(request: PromptFields) -> tuple[ChatRequest, list[str]]:
    """The same request to /v1/chat/completions. If the assistant spoke last, the answer goes on from there.

    Returns:
        The request, and for each of its messages the field that it comes from.

    Raises:
        ApiError: a message has what its role must not have, or a tool lacks its schema.
    """
    messages, places = messages_of(request)
    choice = request.tool_choice
    chat = ChatRequest(
        model=request.model,
        messages=messages,
        tools=tools_of(request),
        tool_choice=None if choice is None else chat_choice(choice),
        parallel_tool_calls=False if choice is not None and choice.disable_parallel_tool_use else None,
        response_format=response_format_of(request),
        continue_final_message=messages[-1].role == "assistant" or None,
    )
    if request.thinking is not None and request.thinking.type in ("enabled", "disabled"):
        chat.chat_template_kwargs = {"enable_thinking": request.thinking.type == "enabled"}
    if request.thinking is not None and request.thinking.display == "omitted":
        chat.include_reasoning = False
    if isinstance(request, MessagesRequest):
        chat.max_completion_tokens = request.max_tokens
        chat.temperature, chat.top_p, chat.top_k = request.temperature, request.top_p, request.top_k
        chat.stop, chat.stream = request.stop_sequences, request.stream
        chat.cache_salt = request.cache_salt
    return chat, places


def tools_of(request: PromptFields) -> list[Tool]:
    """The tools that clients run.

    Raises:
        ApiError: a tool has no schema.
    """
    found = []
    for number, tool in enumerate(request.tools or ()):
        if tool.type not in CUSTOM:
            continue
        if tool.input_schema is None:
            message = "a tool needs a schema of its input"
            raise ApiError(400, message, f"tools[{number}].input_schema", "missing_required_parameter")
        function = Function(
            name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict
        )
        found.append(Tool(type="function", function=function))
    return found


def chat_choice(choice: AnthropicToolChoice) -> Literal["auto", "required", "none"] | NamedTool:
    """The choice of a tool, as chat completions have it.

    Raises:
        ApiError: a tool must be called, but has no name.
    """
    if choice.type == "tool":
        if choice.name is None:
            message = "a choice of type tool names the tool"
            raise ApiError(400, message, "tool_choice.name", "missing_required_parameter")
        return NamedTool(type="function", function=FunctionName(name=choice.name))
    return "required" if choice.type == "any" else choice.type


def response_format_of(request: PromptFields) -> JsonSchemaFormat | None:
    """The format of the answer, as chat completions have it."""
    form = None if request.output_config is None else request.output_config.format
    if form is None:
        return None
    return JsonSchemaFormat(json_schema=NamedSchema(name="format", schema=form.schema))


def messages_of(request: PromptFields) -> tuple[list[Message], list[str]]:
    """The conversation, and the field that each message comes from. Each result of a tool is a message."""
    messages, places = [], []
    if request.system:
        messages.append(Message(role="system", content=text_of(request.system)))
        places.append("system")
    for number, turn in enumerate(request.messages):
        place = f"messages[{number}]"
        content = turn.content
        blocks = [TextBlock(text=content)] if isinstance(content, str) else content
        is_assistant = turn.role == "assistant"
        new = assistant_turn(blocks, place) if is_assistant else other_turn(turn.role, blocks, place)
        messages += new
        places += [place] * len(new)
    return messages, places


def assistant_turn(blocks: Items[ContentBlock], place: str) -> list[Message]:
    """What the assistant said, as one message."""
    message = Message(role="assistant", content="")
    for number, block in enumerate(blocks):
        if isinstance(block, ToolResultBlock):
            raise misplaced(block, "assistant", place, number)
        if isinstance(block, ToolUseBlock):
            arguments = msgspec.json.encode(block.input).decode()
            function = CalledFunction(name=block.name, arguments=arguments)
            message.tool_calls = [*(message.tool_calls or ()), FunctionCall(id=block.id, function=function)]
        elif isinstance(block, ThinkingBlock):
            message.reasoning_content = (message.reasoning_content or "") + block.thinking
        elif isinstance(block, TextBlock):
            message.content = f"{message.content}{block.text}"
    return [message]


def other_turn(
    role: Literal["user", "assistant", "system"], blocks: Items[ContentBlock], place: str
) -> list[Message]:
    """What the user or the system said, as messages: one per result of a tool, and the texts between them."""
    messages: list[Message] = []
    for number, block in enumerate(blocks):
        if isinstance(block, ToolResultBlock) and role == "user":
            content = text_of(block.content or "")
            messages.append(Message(role="tool", tool_call_id=block.tool_use_id, content=content))
        elif not isinstance(block, TextBlock):
            raise misplaced(block, role, place, number)
        elif messages and messages[-1].role == role:
            messages[-1].content = f"{messages[-1].content}{block.text}"
        else:
            messages.append(Message(role=role, content=block.text))
    return messages or [Message(role=role, content="")]


def text_of(content: str | Items[TextBlock]) -> str:
    """The text of a content."""
    return content if isinstance(content, str) else "".join(block.text for block in content)


def misplaced(block: ContentBlock, role: str, place: str, number: int) -> ApiError:
    """The error for a block that its role must not have."""
    kind = block.__struct_config__.tag
    message = f"a message of the {role} can't have a block of type {kind}"
    return ApiError(400, message, f"{place}.content[{number}].type", "invalid_value")
