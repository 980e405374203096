"""From the fields of a request to what its answer must look like."""

import json
from typing import Any

from ....generation.given.structured_outputs import StructuredOutputsParams
from .errors import ApiError
from .fields import ChatRequest, JsonObjectFormat, NamedTool, SamplingFields, TextFormat, Tool
from .tool_calls import BEGIN, END

START_OF_CALL = f'start: call\nbegin: "{BEGIN}"'
START_OF_CALLS = f'start: call ("\\n" call)*\nbegin: "{BEGIN}"'
START_OF_TEXT = f'start: call* TEXT\nbegin[lazy]: TEXT "{BEGIN}"\nTEXT: /(.|\\n)*/'
"""Any text. A lazy rule ends as soon as it can, so wherever the text has the tag, a call follows."""


def structured_outputs(request: SamplingFields) -> StructuredOutputsParams | None:
    """What the fields demand of the answer, if anything.

    Raises:
        ApiError: they contradict each other, or make no sense by themselves.
    """
    extra = request.structured_outputs
    of_chat = demanded_by_chat(request) if isinstance(request, ChatRequest) else None
    if extra is None:
        return of_chat
    if of_chat is not None:
        message = (
            "structured_outputs cannot be combined with response_format, an enforced call or strict tools"
        )
        raise ApiError(400, message, "structured_outputs", "invalid_value")
    names = ("json", "json_object", "regex", "choice", "grammar", "disable_any_whitespace")
    given = {name: getattr(extra, name) for name in names if getattr(extra, name) is not None}
    return checked("structured_outputs", given)


def demanded_by_chat(request: ChatRequest) -> StructuredOutputsParams | None:
    """What the response format or the tools demand of the answer.

    Raises:
        ApiError: both do.
    """
    form = request.response_format
    if form is None or isinstance(form, TextFormat):
        has_grammar = is_enforced(request) or has_strict_calls(request)
        return calls_of_tools(request) if has_grammar else None
    if is_enforced(request):
        message = "an enforced call leaves no room for response_format: set tool_choice to auto or none"
        raise ApiError(400, message, "response_format", "invalid_value")
    if isinstance(form, JsonObjectFormat):
        return checked("response_format", {"json_object": True})
    return checked("response_format", {"json": form.json_schema.schema or {}})


def is_enforced(request: ChatRequest) -> bool:
    """Whether the answer must be a call, or several."""
    return request.tool_choice == "required" or isinstance(request.tool_choice, NamedTool)


def has_strict_calls(request: ChatRequest) -> bool:
    """Whether the model may write any text, but must keep the parameters of a tool when it calls one."""
    is_strict = any(tool.function.strict for tool in request.tools or ())
    return is_strict and request.tool_choice in (None, "auto")


def has_room_for_thoughts(request: ChatRequest) -> bool:
    """Whether an answer may begin with any text."""
    form = request.response_format
    is_text = (form is None or isinstance(form, TextFormat)) and request.structured_outputs is None
    return is_text and not is_enforced(request)


def calls_of_tools(request: ChatRequest) -> StructuredOutputsParams:
    """Calls of tools, as a grammar.

    Raises:
        ApiError: the parameters of a tool are nested too deeply.
    """
    try:
        return checked("tools", {"grammar": grammar_of_calls(request)})
    except RecursionError:
        message = "the parameters of a tool are nested too deeply"
        raise ApiError(400, message, "tools", "invalid_value") from None


def checked(field: str, given: dict[str, Any]) -> StructuredOutputsParams:
    """Make the engine's parameters of what a field demands.

    Raises:
        ApiError: they make no sense.
    """
    try:
        return StructuredOutputsParams(**given)
    except ValueError as error:
        raise ApiError(400, str(error), field, "invalid_value") from None


def grammar_of_calls(request: ChatRequest) -> str:
    """A grammar of calls of the tools that may be called, in the form that `ToolCallParser` reads.

    A named tool is called once. Required are one or more calls, or just one if `parallel_tool_calls` is
    false. Otherwise, there may be text around the calls, or nothing else.
    """
    choice, tools = request.tool_choice, request.tools or []
    if isinstance(choice, NamedTool):
        tools = [tool for tool in tools if tool.function.name == choice.function.name]
    is_one = isinstance(choice, NamedTool) or request.parallel_tool_calls is False
    start = START_OF_TEXT if not is_enforced(request) else START_OF_CALL if is_one else START_OF_CALLS
    names = " | ".join(f"call_{number}" for number in range(len(tools)))
    is_kept = [is_enforced(request) or bool(tool.function.strict) for tool in tools]
    rules = map(rules_of_call, range(len(tools)), tools, is_kept)
    return "\n".join([start, f"call: begin ({names})", *rules])


def rules_of_call(number: int, tool: Tool, is_kept: bool) -> str:
    """Rules of one tool. Its arguments have a rule of their own, in which references in a schema work.

    Args:
        number: of the tool.
        tool: what is called.
        is_kept: whether the arguments must be valid by its parameters.
    """
    function = tool.function
    before = json.dumps(f'\n{{"name": "{function.name}", "arguments": ')
    after = json.dumps(f"}}\n{END}")
    parameters = function.parameters if is_kept else None
    schema = json.dumps({**(parameters or {}), "type": "object"})
    return f"call_{number}: {before} args_{number} {after}\nargs_{number}: %json {schema}"
