"""Calls as Qwen3-Coder writes them: <function=f><parameter=p>value</parameter></function>, between tags."""

import json
from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import Any

import msgspec

from tiny_llm.server.text_increments import num_held_back

from .fields import Tool
from .json_calls import BEGIN, END
from .tool_calls import SteppingParser

FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"
OPENINGS = tuple(f"{line}{tag}{FUNCTION}" for line in ("\n", "") for tag in (f"{BEGIN}\n", BEGIN, ""))
"""The first tag may be missing: models forget it."""
ENDS = ("\n" + END_PARAMETER, END_PARAMETER)
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}


class XmlCalls(SteppingParser):
    """Read calls whose values are text, and make JSON of them by the schemas of the tools.

    A value whose schema wants a string is passed on while it is written, any other as a whole.

    Args:
        tools: that may be called.
    """

    def __init__(self, tools: Items[Tool]) -> None:
        super().__init__()
        self._schemas = {tool.function.name: tool.function.parameters or {} for tool in tools}

    def first_step(self) -> bool:
        """Read text up to the next call."""
        if FUNCTION not in self.held:
            self.add_text(self.take(len(self.held) - num_held_back(self.held, OPENINGS)))
            return False
        before = self.held[: self.held.index(FUNCTION)]
        text = before.removesuffix("\n")
        if text.endswith(BEGIN):
            text = text.removesuffix(BEGIN).removesuffix("\n")
        self.add_text(self.take(len(text)))
        self.opening = self.take(len(before) - len(text) + len(FUNCTION))
        self.step = self.name_step
        return True

    def name_step(self) -> bool:
        """Read the name of the function."""
        if ">" not in self.held:
            return False
        name = self.take(self.held.index(">"))
        self.take(1)
        self.begin_call(name, "{")
        self._schema = self._schemas.get(name, {})
        self._num_values, self.step = 0, self.parameter_step
        return True

    def parameter_step(self) -> bool:
        """Read the name of the next parameter, or the end of the call."""
        self.held = self.held.lstrip()
        if self.held.startswith(PARAMETER) and ">" in self.held:
            self.take(len(PARAMETER))
            name = self.take(self.held.index(">"))
            self.take(1)
            self.add_arguments(", " * (self._num_values > 0) + as_json(name) + ": ")
            self._num_values += 1
            self._value_schema = schema_of(self._schema, name)
            self._is_first = True
            self.step = self.value_step
            return True
        if self.held.startswith((END_FUNCTION, END)):
            self.held = self.held.removeprefix(END_FUNCTION)
            self.add_arguments("}")
            self.step = self.after_step
            return True
        if self.held and not any(tag.startswith(self.held) for tag in (PARAMETER, END_FUNCTION, END)):
            if self.held.startswith(PARAMETER):
                return False
            self.take(1)  # nothing else belongs here
            return True
        return False

    def value_step(self) -> bool:
        """Read a value, or more of a string."""
        if self._is_first and self.held:
            self.held = self.held.removeprefix("\n")
            self._is_first = False
            self._is_text = is_text(self._value_schema)
            self.add_arguments('"' * self._is_text)
        if END_PARAMETER in self.held:
            value = self.take(self.held.index(END_PARAMETER)).removesuffix("\n")
            self.take(len(END_PARAMETER))
            self.add_arguments(as_json(value)[1:] if self._is_text else json_of(value, self._value_schema))
            self.step = self.parameter_step
            return True
        if not self._is_first and self._is_text:
            certain = self.take(len(self.held) - num_held_back(self.held, ENDS))
            self.add_arguments(as_json(certain)[1:-1])
        return False

    def after_step(self) -> bool:
        """Read the last tag, which may be missing."""
        start = self.held.lstrip()
        if not start or (END.startswith(start) and start != END):
            return False
        self.held = start.removeprefix(END) if start.startswith(END) else self.held
        self.step = self.first_step
        return True

    def rest(self) -> None:
        """A tag without a name is text, and a call that is cut off stays as it is."""
        if self.step == self.first_step:
            self.add_text(self.held)
        elif self.step == self.name_step:
            self.add_text(self.opening + self.held)


def as_json(value: Any) -> str:
    """A value as JSON, in Unicode."""
    return json.dumps(value, ensure_ascii=False)


def schema_of(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The schema of a parameter; an empty one if there is none."""
    properties = schema.get("properties")
    found = properties.get(name) if isinstance(properties, dict) else None
    return found if isinstance(found, dict) else {}


def is_text(schema: Mapping[str, Any]) -> bool:
    """Whether a value is a string for sure, and so is what is written. Without any type, it is too."""
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(choices, list) and "type" not in schema:
        return all(isinstance(each, str) for each in choices)
    return schema.get("type") == "string" or not schema.keys() - {
        "description",
        "title",
        "default",
        "examples",
    }


def json_of(text: str, schema: Mapping[str, Any]) -> str:
    """What a text stands for by its schema: JSON if it is of the right type, and otherwise a string."""
    text = {"True": "true", "False": "false", "None": "null"}.get(text.strip(), text)
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return as_json(text)
    kinds = schema.get("type", ())
    kinds = [kinds] if isinstance(kinds, str) else kinds
    is_right = any(type(value) in TYPES.get(kind, ()) for kind in kinds if isinstance(kind, str))
    return text.strip() if is_right or "string" not in kinds else as_json(text)
