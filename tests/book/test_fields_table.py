"""The tables of the server's fields: made from the types, with each field's values and use."""

from pathlib import Path

import pytest

from scripts.book.fields import fields_table, values_of
from scripts.book.problems import ChapterError

PAGE = Path(__file__).parents[2] / "book" / "src" / "protocol.md"


def test_each_use_has_its_word() -> None:
    table = fields_table("ChatRequest")
    assert "| <code>messages</code> | list of Message; required | read |" in table
    assert "| <code>audio</code> | null | refused |" in table
    assert "| <code>verbosity</code> | any | accepted and ignored |" in table
    assert "temperature" not in table  # shared with the other request


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 1}, "whole number from 1"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "number above 0, at most 1"),
        ({"type": "array", "items": {"type": "string"}, "maxItems": 16}, "list of texts, at most 16"),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, "true or false"),
        ({"enum": [1]}, "<code>1</code>"),
        ({"$ref": "#/$defs/Tool"}, "Tool"),
    ],
)
def test_values_in_words(schema: dict[str, object], words: str) -> None:
    assert values_of(schema) == words


def test_an_object_that_does_not_exist() -> None:
    with pytest.raises(ChapterError, match="Nope"):
        fields_table("Nope")


def test_the_page_has_every_request() -> None:
    text = PAGE.read_text()
    for name in ("SamplingFields", "CompletionRequest", "ChatRequest", "Message", "ResponsesRequest"):
        assert f"{{{{#fields {name}}}}}" in text
