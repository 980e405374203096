"""The forms in which models write calls: how to tell them by the chat template, read and enforce them."""

import json
from collections.abc import Callable, Set
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any, Literal

from .errors import ApiError
from .fields import Tool
from .json_calls import BEGIN, END, BareJsonCalls, TaggedJsonCalls
from .pieces import CallParser
from .xml_calls import END_PARAMETER, XmlCalls, is_text

HowMany = Literal["one", "some", "any"]
FREE = "/(.|\\n)*/"
TAGGED_TEXT = f"""start: thought call* TEXT | first call* TEXT | PLAIN
first: head (NAMES)
head[lazy]: PLAIN "{BEGIN}"
begin[lazy]: TEXT "{BEGIN}"
thought[lazy]: "<think>" TEXT "</think>"
TEXT: {FREE}
PLAIN: TEXT & ~/\\s*<think>(.|\\n)*/"""
"""Any text. A lazy rule ends as soon as it can, so wherever the text has the tag, a call follows; except in a
thought, with which the text may begin."""

BARE_TEXT = f"""start: call (";" SPACE call)* | thought PLAIN | PLAIN
begin: ""
thought[lazy]: "<think>" {FREE} "</think>"
SPACE: " "
PLAIN: {FREE} & ~/\\s*(\\{{|<think>)(.|\\n)*/"""
"""A call, several, or any text that doesn't begin like a call."""


@dataclass(frozen=True)
class CallFormat:
    """A form in which models write calls.

    Attributes:
        name: for people.
        marks: alternatives, each of which has texts that are all in the chat template.
        parser: makes what reads an answer.
        begin: the grammar's rule of what a call begins with.
        separator: between two calls.
        text: the grammar of an answer that is any text, perhaps with calls.
        rules: the grammar's rules of the call of a tool with a number, kept to its schema or not.
    """

    name: str
    marks: tuple[tuple[str, ...], ...]
    parser: Callable[[Items[Tool]], CallParser]
    begin: str
    separator: str
    text: str
    rules: Callable[[int, Tool, bool], str]

    def grammar(self, tools: Items[Tool], is_kept: Callable[[Tool], bool], how_many: HowMany) -> str:
        """A grammar of calls.

        Args:
            tools: that may be called.
            is_kept: whether a call keeps to its tool's schema.
            how_many: one call, some, or any text with or without calls.

        Raises:
            ApiError: a schema can't be kept in this form.
        """
        starts = {
            "one": f"start: call\n{self.begin}",
            "some": f"start: call ({json.dumps(self.separator)} call)*\n{self.begin}",
            "any": self.text,
        }
        names = " | ".join(f"call_{number}" for number in range(len(tools)))
        rules = [self.rules(number, tool, is_kept(tool)) for number, tool in enumerate(tools)]
        start = starts[how_many].replace("NAMES", names)
        return "\n".join([start, f"call: begin ({names})", *rules])


def json_rules(before: str, after: str) -> Callable[[int, Tool, bool], str]:
    """Make the rules of a call in JSON. Its arguments have a rule of their own, in which references work."""

    def rules(number: int, tool: Tool, is_kept: bool) -> str:
        start, end = json.dumps(before % tool.function.name), json.dumps(after)
        parameters = tool.function.parameters if is_kept else None
        schema = json.dumps({**(parameters or {}), "type": "object"})
        return f"call_{number}: {start} args_{number} {end}\nargs_{number}: %json {schema}"

    return rules


KEPT_OF_ALL = {
    *("type", "properties", "required", "additionalProperties", "$defs", "definitions"),
    *("title", "description", "$schema"),
}
KEPT_OF_TEXT = {
    "type",
    "enum",
    "const",
    "minLength",
    "maxLength",
    "title",
    "description",
    "default",
    "examples",
}
"""What a schema may have if its values are written as text: of all arguments, and of one that is a string."""


def xml_rules(number: int, tool: Tool, is_kept: bool) -> str:
    """The rules of a call whose values are text. Each value has a rule of its own.

    Raises:
        ApiError: the schema has what such a grammar can't keep; names the tool.
    """
    name, parameters = tool.function.name, tool.function.parameters or {}
    start, end = json.dumps(f"\n<function={name}>\n"), json.dumps(f"</function>\n{END}")
    tail = json.dumps("\n")
    if not is_kept or not parameters.get("properties"):
        return (
            f"call_{number}: {start} any_{number}* {end}\n"
            f'any_{number}: "<parameter=" NAME_{number} ">\\n" value_{number} {tail}\n'
            f"NAME_{number}: /[^<>\\n]{{1,64}}/\n{text_rule(f'value_{number}', FREE)}"
        )
    check_kept(name, parameters, KEPT_OF_ALL)
    shared = {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}
    parts, rules = [], []
    for place, (key, schema) in enumerate(parameters["properties"].items()):
        rule = f"p_{number}_{place}"
        opening = json.dumps(f"<parameter={key}>\n")
        if isinstance(schema, dict) and is_text(schema):
            check_kept(f"{name}.{key}", schema, KEPT_OF_TEXT)
            rules.append(f"{rule}: {opening} {rule}v {tail}\n{text_rule(f'{rule}v', strings_of(schema))}")
        else:
            value = {**schema, **shared} if isinstance(schema, dict) else schema
            closing = json.dumps("\n" + END_PARAMETER + "\n")
            rules.append(f"{rule}: {opening} {rule}v {closing}\n{rule}v: %json {json.dumps(value)}")
        parts.append(rule if key in parameters.get("required", ()) else f"{rule}?")
    return "\n".join([f"call_{number}: {start} {' '.join(parts)} {end}", *rules])


def text_rule(name: str, strings: str) -> str:
    """A rule of a text up to the tag that ends it, which it must not contain."""
    terminal = name.upper()
    return (
        f'{name}[lazy]: {terminal} "\\n{END_PARAMETER}"\n'
        f"{terminal}: ({strings}) & ~/(.|\\n)*<\\/parameter>(.|\\n)*/"
    )


def strings_of(schema: dict[str, Any]) -> str:
    """The texts that a schema allows, as a terminal of a grammar."""
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if choices is not None:
        return " | ".join(json.dumps(each) for each in choices if isinstance(each, str))
    return f"/(.|\\n){{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}/"


def check_kept(place: str, schema: dict[str, Any], known: Set[str]) -> None:
    """Raise ApiError for what a grammar of texts can't keep."""
    unknown = sorted(schema.keys() - known)
    if unknown:
        message = f"this model writes arguments as text, for which {place} can't have {', '.join(unknown)}"
        raise ApiError(400, message, "tools", "unsupported_value")


TAG = f'begin: "{BEGIN}"'
NO_TAG = 'begin: ""'
FORMATS = (
    CallFormat(
        name="Qwen3-Coder's XML",
        marks=(("<function=", "<parameter="),),
        parser=XmlCalls,
        begin=TAG,
        separator="\n",
        text=TAGGED_TEXT,
        rules=xml_rules,
    ),
    CallFormat(
        name="the JSON of Hermes and Qwen",
        marks=((BEGIN, "arguments"),),
        parser=lambda tools: TaggedJsonCalls(),
        begin=TAG,
        separator="\n",
        text=TAGGED_TEXT,
        rules=json_rules('\n{"name": "%s", "arguments": ', f"}}\n{END}"),
    ),
    CallFormat(
        name="Llama 3's JSON",
        marks=(("<|python_tag|>",), ("<|start_header_id|>", '"parameters": ')),
        parser=lambda tools: BareJsonCalls(),
        begin=NO_TAG,
        separator="; ",
        text=BARE_TEXT,
        rules=json_rules('{"name": "%s", "parameters": ', "}"),
    ),
)
"""The first whose marks the template has."""
FOREIGN_MARK = "<arg_key>"
"""Of GLM's models, whose tags are Hermes's, but not what is between them."""


def format_of(template: str) -> CallFormat:
    """The form in which a model with this chat template writes calls.

    Raises:
        ApiError: it is none that is known here.
    """
    for form in FORMATS:
        if FOREIGN_MARK not in template and any(
            all(mark in template for mark in all_) for all_ in form.marks
        ):
            return form
    known = ", ".join(form.name for form in FORMATS)
    message = (
        f"the chat template of this model writes calls in a form that is not known here, which are {known}"
    )
    raise ApiError(400, f"{message}: leave tools out", "tools", "unsupported_value")
