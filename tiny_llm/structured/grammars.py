"""Grammars compiled for a model's tokenizer, by llguidance."""

import json
from collections.abc import Iterable
from concurrent.futures import TimeoutError  # another class before Python 3.11
from copy import copy
from dataclasses import replace
from typing import Any, cast
from weakref import WeakKeyDictionary

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from ..generation.generate import Tokenizer
from ..generation.structured_outputs import CompiledGrammar, StructuredOutputsParams
from .constraint import Constraint
from .deep_stack import on_deep_stack
from .json_formats import without_unknown_formats
from .json_whitespace import bounded, whitespace_options

THOUGHT = {
    "open": 'start: thought SPACE @answer\nthought[lazy]: ANY "</think>"\n',
    "possible": 'start: (thought SPACE)? @answer\nthought[lazy]: "<think>" ANY "</think>"\n',
}
END_OF_THOUGHT = "ANY: /(.|\\n)*/\nSPACE: /[ \\n]{0,4}/"
LIMITS = LLParserLimits(verbose_errors=False)
MOST_CHARACTERS = 256 * 2**10
"""Of a grammar. A larger one takes seconds to compile."""
STACK_PER_CHARACTER = 2**10
"""Bytes. A chain of rules, each of which is a few characters long, takes less than a third of it."""
MOST_SECONDS = 20.0
"""For compiling. A hundred patterns that must all match take minutes."""

_known: WeakKeyDictionary[Tokenizer, tuple[frozenset[int], LLTokenizer]] = WeakKeyDictionary()


def compile_grammar(params: StructuredOutputsParams, tokenizer: Tokenizer) -> Constraint:
    """Return a constraint at the start of what the parameters describe, which may be compiled already.

    Raises:
        ValueError: as for `compiled`.
    """
    grammar = compiled(params, tokenizer).compiled
    assert grammar is not None
    return Constraint(grammar.matcher.deep_copy(), grammar.end_ids, grammar.vocab_size)


def compiled(params: StructuredOutputsParams, tokenizer: Tokenizer) -> StructuredOutputsParams:
    """Return the parameters with their grammar compiled. A large one takes seconds.

    Nothing here belongs to a thread: a server compiles in one, and its engine runs in another.

    Raises:
        ValueError: it is too long, or takes too long; llguidance refuses it, and says why; the tokenizer
            can't write it; or the tokenizer is of a kind that llguidance doesn't know.
    """
    if params.compiled is not None:
        return params
    known = tokenizer_of(tokenizer)
    try:
        text = grammar_text(params)
    except ValueError as error:
        raise ValueError(f"structured_outputs can't be kept: {error}") from None
    if len(text) > MOST_CHARACTERS:
        raise ValueError(
            f"structured_outputs can't be kept: it has {len(text)} characters, "
            f"and at most {MOST_CHARACTERS} are allowed"
        )
    stack = STACK_PER_CHARACTER * MOST_CHARACTERS
    try:
        matcher = on_deep_stack(stack, lambda: started_matcher(known, text), MOST_SECONDS)
    except TimeoutError:
        raise ValueError(
            f"structured_outputs can't be kept: compiling takes more than {MOST_SECONDS:g} s; make it simpler"
        ) from None
    if matcher.is_error():
        reason = matcher.get_error().removesuffix("<non-verbose/>").strip()
        if "NoExtension" in reason:
            reason = "no token of the model can begin it"
        raise ValueError(f"structured_outputs can't be kept: {reason}")
    return replace(params, compiled=CompiledGrammar(matcher, tuple(known.eos_tokens), known.vocab_size))


def started_matcher(tokenizer: LLTokenizer, text: str) -> LLMatcher:
    """Compile a grammar. Some errors only show in the first mask, so compute that too."""
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher


def grammar_text(params: StructuredOutputsParams) -> str:
    """Return the grammar in llguidance's own form, after a thought if there may be one."""
    text = answer_text(params)
    if params.thought is None:
        return text
    try:
        answer = json.loads(text)["grammars"][0]
    except ValueError:
        answer = {"lark_grammar": text}
    start = THOUGHT[params.thought] + END_OF_THOUGHT
    return json.dumps({"grammars": [{"lark_grammar": start}, {**answer, "name": "answer"}]})


def answer_text(params: StructuredOutputsParams) -> str:
    """Return the grammar of the answer itself."""
    if params.regex is not None:
        return LLMatcher.grammar_from_regex(params.regex)
    if params.choice is not None:
        strings = " | ".join(json.dumps(each) for each in params.choice)
        return LLMatcher.grammar_from_lark(f"start: {strings}")
    options = whitespace_options(not params.disable_any_whitespace)
    if params.grammar is not None:
        return json.dumps({"grammars": [{"lark_grammar": bounded(params.grammar, options)}]})
    schema = cast(str, params.json) if params.json is not None else '{"type": "object"}'
    schema = without_unknown_formats(schema)
    return LLMatcher.grammar_from_json_schema(schema, overrides=cast(Any, options))


def tokenizer_of(tokenizer: Tokenizer) -> LLTokenizer:
    """Return llguidance's view of a tokenizer: the bytes of each token. It is made once, and then kept.

    Tokenizers of Hugging Face are known to it. Any other must have `token_bytes`, a list with the bytes of
    each token.
    """
    end_ids = frozenset(tokenizer.eos_token_ids)
    known = _known.get(tokenizer)
    if known is None or known[0] != end_ids:
        known = _known[tokenizer] = end_ids, _made(tokenizer, end_ids)
    return known[1]


def _made(tokenizer: Tokenizer, end_ids: Iterable[int]) -> LLTokenizer:
    ids = sorted(end_ids)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend = copy(backend)
        backend.no_padding()
        backend.no_truncation()
        return LLTokenizer(backend.to_str(), eos_token=ids)
    token_bytes = getattr(tokenizer, "token_bytes", None)
    if token_bytes is None:
        raise ValueError(
            f"structured outputs need a fast tokenizer of Hugging Face, got {type(tokenizer).__name__}: "
            "leave out structured_outputs"
        )
    return LLTokenizer(TokenizerWrapper(_Bytes(token_bytes, ids)), eos_token=ids)


class _Bytes:
    """The bytes of each token, as `TokenizerWrapper` wants them."""

    bos_token_id: int | None = None

    def __init__(self, tokens: list[bytes], end_ids: list[int]) -> None:
        self.tokens = tokens
        self.eos_token_id = end_ids[0]
        self.special_token_ids = end_ids

    def __call__(self, text: Any) -> list[int]:
        """Cut forced text into tokens, the longest first."""
        text = text if isinstance(text, bytes) else text.encode()
        found, longest = (
            [],
            sorted(
                (
                    (token, id)
                    for id, token in enumerate(self.tokens)
                    if token and id not in self.special_token_ids
                ),
                key=lambda pair: (-len(pair[0]), pair[1]),
            ),
        )
        while text:
            fitting = [(token, id) for token, id in longest if text.startswith(token)]
            if not fitting:
                break
            token, id = fitting[0]
            found.append(id)
            text = text[len(token) :]
        return found
