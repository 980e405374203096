"""The fields of /v1/responses, as far as an answer depends on nothing but its request."""

from collections.abc import Sequence as Items
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from .errors import ApiError, of_validation
from .fields import (
    MAX_TOOLS,
    CalledFunction,
    ChatRequest,
    Empty,
    Function,
    FunctionCall,
    FunctionName,
    Ignored,
    JsonObjectFormat,
    JsonSchemaFormat,
    Message,
    NamedSchema,
    NamedTool,
    Off,
    One,
    Positive,
    Reasoning,
    RefusalPart,
    Refused,
    RequestObject,
    ResponseFormat,
    SamplingFields,
    Schema,
    StreamOptions,
    TextFormat,
    Tool,
    Zero,
)

Includable = Annotated[str, Meta(pattern=r"^(?!message\.output_text\.logprobs$)")]
"""What comes of tools that this server doesn't run, or is encrypted, is never there to be included."""


class InputText(RequestObject, kw_only=True, tag="input_text", tag_field="type"):
    """A text as a part of a message's content, or of a call's result."""

    text: str
    prompt_cache_breakpoint: Ignored = None


class OutputTextPart(RequestObject, kw_only=True, tag="output_text", tag_field="type"):
    """A text that the model wrote."""

    text: str
    annotations: Ignored = None
    logprobs: Ignored = None


class ReasoningText(RequestObject, kw_only=True, tag="reasoning_text", tag_field="type"):
    """What the model thought."""

    text: str


class SummaryText(RequestObject, kw_only=True, tag="summary_text", tag_field="type"):
    """A summary of what a model thought."""

    text: str


InputPart = InputText | OutputTextPart | RefusalPart | ReasoningText
"""A part of a message's content. Images and files are refused."""


class InputItem(RequestObject, kw_only=True):
    """A message, a thought, a call that the model made, or the result of one."""

    type: Literal["message", "reasoning", "function_call", "function_call_output"] = "message"
    id: Ignored = None
    status: Ignored = None
    phase: Ignored = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputText] | None = None
    summary: list[SummaryText] | None = None
    encrypted_content: Ignored = None
    caller: Ignored = None
    namespace: Ignored = None


NEEDED = {
    "message": ("role", "content"),
    "reasoning": (),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
}
"""What an item of each type must have, and nothing else. A thought may have content."""


class ResponseTool(RequestObject, kw_only=True, omit_defaults=True):
    """A function that the model may call, or a tool of another type, which is left out."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None
    output_schema: Ignored = None
    allowed_callers: Ignored = None
    defer_loading: Ignored = None


class NamedFunction(RequestObject, kw_only=True):
    """The function that the model must call."""

    type: Literal["function"]
    name: str


class FlatSchemaFormat(NamedSchema, kw_only=True, tag="json_schema", tag_field="type"):
    """JSON that is valid by a schema."""


class TextOptions(RequestObject, kw_only=True):
    """What kind of text the answer is."""

    format: TextFormat | JsonObjectFormat | FlatSchemaFormat | None = None
    verbosity: Ignored = None


class ResponseStreamOptions(RequestObject, kw_only=True):
    """How to stream. The last event always has the usage."""

    include_obfuscation: Ignored = None


class ResponsesRequest(SamplingFields, kw_only=True):
    """The body of /v1/responses."""

    input: Annotated[str, Meta(min_length=1)] | Annotated[list[InputItem], Meta(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Positive | None = None
    stream_options: ResponseStreamOptions | None = None
    tools: Annotated[list[ResponseTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    text: TextOptions | None = None
    truncation: Literal["disabled", "auto"] | None = None
    background: Off = None
    include: list[Includable] | None = None
    metadata: dict[str, str] | None = None

    access_programs: Ignored = None
    background_options: Ignored = None
    client_metadata: Ignored = None
    image: Ignored = None
    max_tool_calls: Ignored = None
    context_management: Empty = None
    conversation: Refused = None
    enable_response_messages: Off = None
    moderation: Refused = None
    n: One = None
    previous_input_messages: Empty = None
    previous_response: Refused = None
    previous_response_id: Refused = None
    prompt: Refused = None
    top_logprobs: Zero = None


def chat_request(request: ResponsesRequest) -> tuple[ChatRequest, list[str]]:
    """The same request to /v1/chat/completions.

    Returns:
        The request, and for each of its messages the field that it comes from.

    Raises:
        ApiError: an item of the input lacks something, or has too much.
    """
    messages, places = messages_of(request)
    choice = request.tool_choice
    named = (
        NamedTool(type="function", function=FunctionName(name=choice.name))
        if isinstance(choice, NamedFunction)
        else choice
    )
    chat = ChatRequest(
        messages=messages,
        max_completion_tokens=request.max_output_tokens,
        stream_options=None if request.stream_options is None else StreamOptions(),
        tools=[Tool(type="function", function=function) for function in functions_of(request)],
        tool_choice=named,
        parallel_tool_calls=request.parallel_tool_calls,
        reasoning=request.reasoning,
        chat_template_kwargs=request.chat_template_kwargs,
        response_format=response_format_of(request),
        **{name: getattr(request, name) for name in SamplingFields.__struct_fields__},
    )
    return chat, places


def response_format_of(request: ResponsesRequest) -> ResponseFormat | None:
    """The format of the answer, as chat completions have it."""
    form = None if request.text is None else request.text.format
    if not isinstance(form, FlatSchemaFormat):
        return form
    schema = NamedSchema(name=form.name, schema=form.schema, strict=form.strict)
    return JsonSchemaFormat(json_schema=schema)


def functions_of(request: ResponsesRequest) -> list[Function]:
    """The tools that are functions, as chat completions have them.

    Raises:
        ApiError: one of them has no name, or a wrong one.
    """
    found = []
    for number, tool in enumerate(request.tools or []):
        if tool.type == "function":
            fields = {name: getattr(tool, name) for name in ("name", "description", "parameters", "strict")}
            try:
                found.append(msgspec.convert(fields, Function))
            except msgspec.ValidationError as error:
                raise of_validation(error, f"tools[{number}]") from None
    return found


def messages_of(request: ResponsesRequest) -> tuple[list[Message], list[str]]:
    """The conversation, and the field that each message comes from. Calls in a row are one message.

    Raises:
        ApiError: an item lacks something or has too much, or there are only thoughts.
    """
    messages, places = [], []
    thought: str | None = None  # belongs to what the assistant says or calls next
    if request.instructions is not None:
        messages.append(Message(role="system", content=request.instructions))
        places.append("instructions")
    items = request.input
    if isinstance(items, str):
        items = [InputItem(role="user", content=items)]
    for number, item in enumerate(items):
        place = "input" if isinstance(request.input, str) else f"input[{number}]"
        check_item(item, place)
        if item.type == "reasoning":
            thought = text_of(item.content) or "\n".join(part.text for part in item.summary or ())
            continue
        message = message_of(item)
        message.reasoning, thought = thought if message.role == "assistant" else None, None
        last = messages[-1] if messages else None
        if message.tool_calls and last is not None and last.role == "assistant":
            last.tool_calls = [*(last.tool_calls or []), *message.tool_calls]
            last.reasoning = last.reasoning or message.reasoning
            continue
        messages.append(message)
        places.append(place)
    if not messages:
        raise ApiError(400, "input has thoughts, but no message", "input", "invalid_value")
    return messages, places


def check_item(item: InputItem, place: str) -> None:
    """Raise ApiError unless an item has exactly what its type needs."""
    needed = NEEDED[item.type]
    for name in dict.fromkeys(each for names in NEEDED.values() for each in names):
        is_free = item.type == "reasoning" and name == "content"
        if not is_free and (getattr(item, name) is None) == (name in needed):
            message = f"{place}: an item of type {item.type} has {', '.join(needed)}"
            raise ApiError(400, message, f"{place}.{name}", "invalid_value")


def message_of(item: InputItem) -> Message:
    """An item as a message of a chat."""
    if item.type == "message":
        return msgspec.convert({"role": item.role, "content": text_of(item.content)}, Message)
    if item.type == "function_call_output":
        return Message(role="tool", tool_call_id=item.call_id, content=text_of(item.output))
    function = CalledFunction(name=item.name or "", arguments=item.arguments or "")
    return Message(role="assistant", tool_calls=[FunctionCall(id=item.call_id or "", function=function)])


def text_of(content: str | Items[InputPart] | Items[InputText] | None) -> str | None:
    """The parts of a content together."""
    if content is None or isinstance(content, str):
        return content
    return "".join(part.refusal if isinstance(part, RefusalPart) else part.text for part in content)


def echoed(request: ResponsesRequest) -> dict[str, Any]:
    """The fields of a request that its response repeats."""
    form = None if request.text is None else request.text.format
    return {
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "tools": [
            {"type": "function", "strict": False, **msgspec.to_builtins(function)}
            for function in functions_of(request)
        ],
        "tool_choice": "auto" if request.tool_choice is None else msgspec.to_builtins(request.tool_choice),
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "metadata": request.metadata or {},
        "text": {"format": {"type": "text"} if form is None else msgspec.to_builtins(form)},
    }
