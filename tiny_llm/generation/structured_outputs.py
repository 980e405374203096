"""What an answer must look like, as text: a JSON schema, a regular expression, a choice or a grammar."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from llguidance import LLMatcher

KINDS = ("json", "json_object", "regex", "choice", "grammar")


class CompiledGrammar(NamedTuple):
    """A matcher at the start of a grammar, to be copied, and what it knows of the tokenizer."""

    matcher: LLMatcher
    end_ids: tuple[int, ...]
    vocab_size: int


@dataclass(frozen=True, kw_only=True)
class StructuredOutputsParams:
    """What the answer must look like. Give exactly one of the first five, which have vLLM's names.

    The engine compiles them when the request is added, and refuses what it can't promise to keep.

    Args:
        json: a JSON schema, as a dictionary or as text; stored as text.
        json_object: True for any JSON object.
        regex: a regular expression that the whole answer matches.
        choice: strings, one of which is the whole answer.
        grammar: a context-free grammar in llguidance's variant of Lark, which begins at the rule `start`.
        disable_any_whitespace: whether JSON comes without whitespace between its tokens. Otherwise, there may
            be a line break and up to 64 spaces in each place.
        thought: whether the answer may begin with a thought, before what is described: text up to `</think>`.
            "open" if the prompt has its first tag, "possible" if the answer may have it.
        compiled: the grammar, if `compiled` has made it, perhaps in another thread; not compared.

    Raises:
        ValueError: none of the first five is given, or several; or one has the wrong type or is not valid
            JSON. Shows its `name`.
    """

    json: str | Mapping[str, Any] | None = None
    json_object: bool = False
    regex: str | None = None
    choice: Iterable[str] | None = None
    grammar: str | None = None
    disable_any_whitespace: bool = False
    thought: Literal["open", "possible"] | None = None
    compiled: CompiledGrammar | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        given = [name for name in KINDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise ValueError(f"structured outputs need exactly one of {', '.join(KINDS)}, got {given}")
        (name,) = given
        value = getattr(self, name)
        if name == "json":
            object.__setattr__(self, "json", schema_text(value))
        elif name == "choice":
            object.__setattr__(self, "choice", checked_choice(value))
        elif not isinstance(value, bool if name == "json_object" else str):
            raise ValueError(
                f"{name} must be {'True' if name == 'json_object' else 'a string'}, got {value!r}"
            )
        if not isinstance(self.disable_any_whitespace, bool):
            raise ValueError(
                f"disable_any_whitespace must be True or False, got {self.disable_any_whitespace!r}"
            )


def schema_text(schema: object) -> str:
    """Return a JSON schema as text. Raise ValueError if it isn't an object, or not JSON at all."""
    try:
        found = json.loads(schema) if isinstance(schema, str) else schema
        text = json.dumps(found)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"json must be a JSON schema, but it is not valid JSON: {error}") from None
    if not isinstance(found, Mapping):
        raise ValueError(f"json must be a JSON schema, which is an object, got {text[:80]}")
    return text


def checked_choice(choice: object) -> tuple[str, ...]:
    """Return the strings as a tuple. Raise ValueError if there are none, or other things than strings."""
    strings = tuple(choice) if isinstance(choice, Iterable) and not isinstance(choice, str) else ()
    if not strings or not all(isinstance(each, str) and each for each in strings):
        raise ValueError(f"choice must be a list of nonempty strings, got {choice!r}")
    return strings
