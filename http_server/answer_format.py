"""From the fields of a request to what its answer must look like."""

from typing import Any

from tiny_llm.generation.structured_outputs import StructuredOutputsParams

from .call_formats import CallFormat, HowMany
from .errors import ApiError
from .fields import ChatRequest, JsonObjectFormat, NamedTool, SamplingFields, TextFormat


def structured_outputs(request: SamplingFields) -> StructuredOutputsParams | None:
    """What the fields demand of the answer, if anything. Calls are not among it: their form is the model's.

    Raises:
        ApiError: they contradict each other, or make no sense by themselves.
    """
    extra = request.structured_outputs
    of_chat = demanded_by_chat(request) if isinstance(request, ChatRequest) else None
    if extra is None:
        return of_chat
    if of_chat is not None or (isinstance(request, ChatRequest) and has_grammar_of_calls(request)):
        message = (
            "structured_outputs cannot be combined with response_format, an enforced call or strict tools"
        )
        raise ApiError(400, message, "structured_outputs", "invalid_value")
    names = ("json", "json_object", "regex", "choice", "grammar", "disable_any_whitespace")
    given = {name: getattr(extra, name) for name in names if getattr(extra, name) is not None}
    return checked("structured_outputs", given)


def demanded_by_chat(request: ChatRequest) -> StructuredOutputsParams | None:
    """What the response format demands of the answer.

    Raises:
        ApiError: the tools demand something too.
    """
    form = request.response_format
    if form is None or isinstance(form, TextFormat):
        return None
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


def has_grammar_of_calls(request: ChatRequest) -> bool:
    """Whether there is a grammar of calls."""
    is_text = request.response_format is None or isinstance(request.response_format, TextFormat)
    return is_text and (is_enforced(request) or has_strict_calls(request))


def has_room_for_thoughts(request: ChatRequest) -> bool:
    """Whether an answer may begin with any text."""
    form = request.response_format
    is_text = (form is None or isinstance(form, TextFormat)) and request.structured_outputs is None
    return is_text and not is_enforced(request)


def calls_of_tools(request: ChatRequest, form: CallFormat) -> StructuredOutputsParams:
    """Calls of tools, as a grammar.

    Raises:
        ApiError: the parameters of a tool are nested too deeply, or can't be kept in this form.
    """
    try:
        return checked("tools", {"grammar": grammar_of_calls(request, form)})
    except RecursionError:
        message = "the parameters of a tool are nested too deeply"
        raise ApiError(400, message, "tools", "invalid_value") from None


def grammar_of_calls(request: ChatRequest, form: CallFormat) -> str:
    """A grammar of calls of the tools that may be called, in the form that the model writes.

    A named tool is called once. Required are one or more calls, or just one if `parallel_tool_calls` is
    false. Otherwise, there may be text around the calls, or nothing else.
    """
    choice, tools = request.tool_choice, request.tools or []
    if isinstance(choice, NamedTool):
        tools = [tool for tool in tools if tool.function.name == choice.function.name]
    is_one = isinstance(choice, NamedTool) or request.parallel_tool_calls is False
    is_all_kept = is_enforced(request)
    how_many: HowMany = "any" if not is_all_kept else "one" if is_one else "some"
    return form.grammar(tools, lambda tool: is_all_kept or bool(tool.function.strict), how_many)


def checked(field: str, given: dict[str, Any]) -> StructuredOutputsParams:
    """Make the engine's parameters of what a field demands.

    Raises:
        ApiError: they make no sense.
    """
    try:
        return StructuredOutputsParams(**given)
    except ValueError as error:
        raise ApiError(400, str(error), field, "invalid_value") from None
