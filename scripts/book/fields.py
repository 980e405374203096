"""The tables of the fields that the server's requests may have, made from the types that read them."""

import inspect
import json
from typing import Any

import msgspec

from http_server import anthropic_fields, fields, response_fields
from scripts.book.problems import ChapterError

COLUMNS = ("field", "values", "use")
USES = {
    "Accepted and ignored.": "accepted and ignored",
    "Not supported: only null will do.": "refused",
    fields.DEFAULT_ONLY: "refused, except for its default",
}
MODULES = (fields, response_fields, anthropic_fields)
WORDS = {
    "integer": ("whole number", "whole numbers"),
    "number": ("number", "numbers"),
    "string": ("text", "texts"),
    "boolean": ("true or false", "truth values"),
}
"""Of a value, and of several."""


def fields_table(name: str) -> str:
    """The table of an object's fields, without those that it shares with other requests.

    Raises:
        ChapterError: there is no object of this name.
    """
    kind = next((vars(each)[name] for each in MODULES if name in vars(each)), None)
    if not inspect.isclass(kind) or not issubclass(kind, fields.RequestObject):
        raise ChapterError(f"{{{{#fields {name}}}}}: {fields.__name__} has no object of this name")
    _, components = msgspec.json.schema_components([kind])
    inherited = {each.name for base in kind.__bases__ for each in msgspec.structs.fields(base)}
    described = components[name]
    rows = [
        row_of(field, schema, field in described.get("required", ()))
        for field, schema in described["properties"].items()
        if field not in inherited
    ]
    return "\n".join([row(*COLUMNS), row(*["---"] * len(COLUMNS)), *rows])


def row_of(field: str, schema: dict[str, Any], is_required: bool) -> str:
    """One field. If it is refused, null is its only value."""
    use = USES.get(schema.get("description", ""), "read")
    values = {"accepted and ignored": "any", "refused": "null"}.get(use) or values_of(schema)
    return row(f"<code>{field}</code>", values + ("; required" if is_required else ""), use)


def row(*cells: str) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"


def values_of(schema: dict[str, Any], is_plural: bool = False) -> str:
    """The values that a schema allows, in words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return ", ".join(f"<code>{json.dumps(value)}</code>" for value in schema["enum"])
    if "anyOf" in schema and "type" not in schema:
        parts = [values_of(each, is_plural) for each in schema["anyOf"] if each != {"type": "null"}]
        return " or ".join(parts)
    kind = schema.get("type", "any")
    if kind in ("array", "object"):
        within = f" of {values_of(schema['items'], True)}" if schema.get("items") else ""
        most = schema.get("maxItems", schema.get("maxProperties"))
        name = "list" if kind == "array" else "object"
        return f"empty {name}" if most == 0 else f"{name}{within}" + (f", at most {most:,}" if most else "")
    return WORDS[kind][is_plural] + limits_of(schema)


def limits_of(schema: dict[str, Any]) -> str:
    """The range of a number, or the pattern of a text; empty if it has none."""
    low, above, high = (schema.get(name) for name in ("minimum", "exclusiveMinimum", "maximum"))
    if "pattern" in schema:
        return f" like <code>{schema['pattern']}</code>"
    if above is not None:
        return f" above {above:,}" + (f", at most {high:,}" if high is not None else "")
    if low is not None:
        return f" from {low:,}" + (f" to {high:,}" if high is not None else "")
    return ""
