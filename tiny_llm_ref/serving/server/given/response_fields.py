"""The fields of /v1/responses, as far as an answer depends on nothing but its request."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from .errors import ApiError
from .fields import (
    MAX_TOOLS,
    CalledFunction,
    ChatRequest,
    Function,
    FunctionCall,
    FunctionName,
    Ignored,
    JsonObjectFormat,
    JsonSchemaFormat,
    Message,
    NamedSchema,
    NamedTool,
    Positive,
    Priority,
    Refused,
    RepetitionPenalty,
    ResponseFormat,
    Seed,
    Stop,
    StreamOptions,
    Strict,
    Text,
    TextFormat,
    Tool,
    TopK,
)

NothingIncluded = Annotated[list[str], Meta(max_length=0)]


class InputText(Strict, kw_only=True):
    """A part of a message's content. Images and files are refused."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: Ignored = None
    logprobs: Ignored = None


class InputItem(Strict, kw_only=True):
    """A message, a call that the model made, or the result of one."""

    type: Literal["message", "function_call", "function_call_output"] = "message"
    id: Ignored = None
    status: Ignored = None
    phase: Ignored = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[InputText] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | None = None


NEEDED = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
}
"""What an item of each type must have, and nothing else."""


class ResponseTool(Function, kw_only=True):
    """A function that the model may call."""

    type: Literal["function"]


class NamedFunction(Strict, kw_only=True):
    """The function that the model must call."""

    type: Literal["function"]
    name: str


class FlatSchemaFormat(NamedSchema, kw_only=True, tag="json_schema", tag_field="type"):
    """JSON that is valid by a schema."""


class TextOptions(Strict, kw_only=True):
    """What kind of text the answer is."""

    format: TextFormat | JsonObjectFormat | FlatSchemaFormat | None = None
    verbosity: Ignored = None


class ResponseStreamOptions(Strict, kw_only=True):
    """How to stream. The last event always has the usage."""

    include_obfuscation: Ignored = None


class ResponsesRequest(Strict, kw_only=True):
    """The body of /v1/responses."""

    model: str
    input: Annotated[str, Meta(min_length=1)] | Annotated[list[InputItem], Meta(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Positive | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    tools: Annotated[list[ResponseTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    include: NothingIncluded | None = None
    metadata: dict[str, str] | None = None

    # vLLM's extras
    stop: Stop | None = None
    seed: Seed | None = None
    top_k: TopK | None = None
    repetition_penalty: RepetitionPenalty | None = None
    ignore_eos: bool | None = None
    priority: Priority | None = None
    cache_salt: Text | None = None

    store: Ignored = None
    user: Ignored = None
    reasoning: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None
    previous_response_id: Refused = None
    conversation: Refused = None
    prompt: Refused = None
    top_logprobs: Refused = None
    max_tool_calls: Refused = None
    moderation: Refused = None
    context_management: Refused = None


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
    tools = [Tool(type="function", function=function_of(tool)) for tool in request.tools or []]
    chat = ChatRequest(
        model=request.model,
        messages=messages,
        max_completion_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        stream=request.stream,
        stream_options=None if request.stream_options is None else StreamOptions(),
        tools=tools,
        tool_choice=named,
        parallel_tool_calls=request.parallel_tool_calls,
        response_format=response_format_of(request),
        stop=request.stop,
        seed=request.seed,
        top_k=request.top_k,
        repetition_penalty=request.repetition_penalty,
        ignore_eos=request.ignore_eos,
        priority=request.priority,
        cache_salt=request.cache_salt,
    )
    return chat, places


def response_format_of(request: ResponsesRequest) -> ResponseFormat | None:
    """The format of the answer, as chat completions have it."""
    form = None if request.text is None else request.text.format
    if not isinstance(form, FlatSchemaFormat):
        return form
    schema = NamedSchema(name=form.name, schema=form.schema, strict=form.strict)
    return JsonSchemaFormat(json_schema=schema)


def function_of(tool: ResponseTool) -> Function:
    """A tool without its type, as chat completions have it."""
    return Function(
        name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
    )


def messages_of(request: ResponsesRequest) -> tuple[list[Message], list[str]]:
    """The conversation, and the field that each message comes from. Calls in a row are one message."""
    messages, places = [], []
    if request.instructions is not None:
        messages.append(Message(role="system", content=request.instructions))
        places.append("instructions")
    items = request.input
    if isinstance(items, str):
        items = [InputItem(role="user", content=items)]
    for number, item in enumerate(items):
        place = "input" if isinstance(request.input, str) else f"input[{number}]"
        check_item(item, place)
        message = message_of(item)
        last = messages[-1] if messages else None
        if message.tool_calls and last is not None and last.role == "assistant":
            last.tool_calls = [*(last.tool_calls or []), *message.tool_calls]
            continue
        messages.append(message)
        places.append(place)
    return messages, places


def check_item(item: InputItem, place: str) -> None:
    """Raise ApiError unless an item has exactly what its type needs."""
    needed = NEEDED[item.type]
    for name in dict.fromkeys(each for names in NEEDED.values() for each in names):
        if (getattr(item, name) is None) == (name in needed):
            message = f"{place}: an item of type {item.type} has {', '.join(needed)}"
            raise ApiError(400, message, f"{place}.{name}", "invalid_value")


def message_of(item: InputItem) -> Message:
    """An item as a message of a chat."""
    if item.type == "message":
        content = item.content
        if isinstance(content, list):
            content = "".join(part.text for part in content)
        return msgspec.convert({"role": item.role, "content": content}, Message)
    if item.type == "function_call_output":
        return Message(role="tool", tool_call_id=item.call_id, content=item.output)
    function = CalledFunction(name=item.name or "", arguments=item.arguments or "")
    return Message(role="assistant", tool_calls=[FunctionCall(id=item.call_id or "", function=function)])


def echoed(request: ResponsesRequest) -> dict[str, Any]:
    """The fields of a request that its response repeats."""
    form = None if request.text is None else request.text.format
    return {
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "tools": [{"strict": False, **msgspec.to_builtins(tool)} for tool in request.tools or []],
        "tool_choice": "auto" if request.tool_choice is None else msgspec.to_builtins(request.tool_choice),
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "metadata": request.metadata or {},
        "text": {"format": {"type": "text"} if form is None else msgspec.to_builtins(form)},
    }
