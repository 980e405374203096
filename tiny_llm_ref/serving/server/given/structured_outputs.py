"""From the fields of a request to what its answer must look like."""

import json
from typing import Any

from ....generation.given.structured_outputs import StructuredOutputsParams
from .errors import ApiError
from .fields import ChatRequest, JsonObjectFormat, NamedTool, SamplingFields, TextFormat, Tool
from .tool_calls import BEGIN, END


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
        message = "structured_outputs cannot be combined with response_format or an enforced call"
        raise ApiError(400, message, "structured_outputs", "invalid_value")
    names = ("json", "json_object", "regex", "choice", "grammar", "disable_any_whitespace")
    given = {name: getattr(extra, name) for name in names if getattr(extra, name) is not None}
    return checked("structured_outputs", given)


def demanded_by_chat(request: ChatRequest) -> StructuredOutputsParams | None:
    """What the response format or an enforced call demands of the answer.

    Raises:
        ApiError: both do.
    """
    form, choice = request.response_format, request.tool_choice
    is_enforced = choice == "required" or isinstance(choice, NamedTool)
    if form is None or isinstance(form, TextFormat):
        return enforced_calls(request) if is_enforced else None
    if is_enforced:
        message = "an enforced call leaves no room for response_format: set tool_choice to auto or none"
        raise ApiError(400, message, "response_format", "invalid_value")
    if isinstance(form, JsonObjectFormat):
        return checked("response_format", {"json_object": True})
    return checked("response_format", {"json": form.json_schema.schema or {}})


def enforced_calls(request: ChatRequest) -> StructuredOutputsParams:
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

    A named tool is called once. Otherwise, there are one or more calls, unless `parallel_tool_calls` is
    false.
    """
    choice, tools = request.tool_choice, request.tools or []
    if isinstance(choice, NamedTool):
        tools = [tool for tool in tools if tool.function.name == choice.function.name]
    is_one = isinstance(choice, NamedTool) or request.parallel_tool_calls is False
    start = "start: call" if is_one else 'start: call ("\\n" call)*'
    names = " | ".join(f"call_{number}" for number in range(len(tools)))
    return "\n".join([start, f"call: {names}", *map(rules_of_call, range(len(tools)), tools)])


def rules_of_call(number: int, tool: Tool) -> str:
    """Rules of one tool. Its arguments have a rule of their own, in which references in a schema work."""
    function = tool.function
    before = json.dumps(f'{BEGIN}\n{{"name": "{function.name}", "arguments": ')
    after = json.dumps(f"}}\n{END}")
    schema = json.dumps({**(function.parameters or {}), "type": "object"})
    return f"call_{number}: {before} args_{number} {after}\nargs_{number}: %json {schema}"
