"""How much whitespace grammars allow between two tokens of JSON: one rule for all of them."""

import json
import re
from typing import Any

from .json_formats import without_unknown_formats

WHITESPACE = r"\n?[ \t]{0,64}"
"""A line break and an indent. A model that likes whitespace would otherwise write it without end."""
JSON_IN_LARK = re.compile(
    r'"(?:\\.|[^"\\\n])*"'  # nothing in a string, in a regular expression or in a comment counts
    r"|/(?!/)(?:\\.|[^/\\\n])+/"
    r"|(?://|#)[^\n]*"
    r"|%json\s*(?=\{)"
)


def whitespace_options(is_flexible: bool) -> dict[str, Any]:
    """llguidance's options for whitespace between two tokens of JSON, or for none at all."""
    return {"whitespace_flexible": is_flexible, "whitespace_pattern": WHITESPACE if is_flexible else None}


def bounded(lark: str, options: dict[str, Any]) -> str:
    """Return a grammar in Lark with options added to each schema in it, and without unknown formats.

    What is no JSON stays as it is.
    """
    pieces, end = [], 0
    while found := JSON_IN_LARK.search(lark, end):
        pieces.append(lark[end : found.end()])
        end = found.end()
        if not found[0].startswith("%json"):
            continue
        try:
            schema, after = json.JSONDecoder().raw_decode(lark, end)
        except (ValueError, RecursionError):
            continue  # llguidance says what is wrong with it
        own = schema.get("x-guidance", {})
        if isinstance(own, dict):
            known = without_unknown_formats(lark[end:after])
            pieces.append(with_options(known, {**own, **options}))
            end = after
    return "".join([*pieces, lark[end:]])


def with_options(schema: str, options: dict[str, Any]) -> str:
    """Return a schema, as text, with llguidance's options at its end, where they replace earlier ones."""
    rest = schema[1:-1]
    return f'{{{rest}{", " if rest.strip() else ""}"x-guidance": {json.dumps(options)}}}'
