"""Formats of strings in JSON schemas: those that llguidance doesn't know are annotations."""

import json

KNOWN_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown")
)
"""What llguidance keeps to."""
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keys under which each value is a schema, by a name that means nothing here."""
DATA = ("const", "enum", "default", "examples")
"""Keys under which nothing is a schema."""


def without_unknown_formats(schema: str) -> str:
    """Return a JSON schema, as text, without the formats that llguidance would refuse.

    By the standard, an unknown format asserts nothing (JSON Schema 2020-12, Validation, section 7).
    """
    if '"format"' not in schema:
        return schema
    found = json.loads(schema)
    pending = [found]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, dict):
            if isinstance(part.get("format"), str) and part["format"] not in KNOWN_FORMATS:
                del part["format"]
            for key, value in part.items():
                if key in NAMED and isinstance(value, dict):
                    pending += value.values()
                elif key not in DATA:
                    pending.append(value)
    return json.dumps(found)
