"""What each token adds to a text, in bytes, for log-probabilities."""

from codecs import getincrementaldecoder
from typing import NamedTuple

from tiny_llm.generation.generate import Tokenizer
from tiny_llm.structured.grammars import tokenizer_of

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What a tokenizer shows instead of bytes that are no characters."""


class TokenBytes(NamedTuple):
    """The bytes that a token adds at the beginning of a text, and those that it adds later.

    Only tokenizers that begin words with a space tell these apart: the first word of a text has none.
    """

    first: bytes
    later: bytes


def bytes_of_token(tokenizer: Tokenizer, token: int) -> TokenBytes:
    """Return what a token adds to a text. A token may be a part of a character, which has no text."""
    alone = tokenizer.decode([token])
    if REPLACEMENT in alone:
        raw = raw_bytes(tokenizer, token, alone)
        return TokenBytes(raw, raw)
    return TokenBytes(alone.encode(), tokenizer.decode([token, token])[len(alone) :].encode())


def raw_bytes(tokenizer: Tokenizer, token: int, text: str) -> bytes:
    """The bytes of a token; those of its text if llguidance doesn't know this kind of tokenizer."""
    try:
        return tokenizer_of(tokenizer).decode_bytes([token])
    except ValueError:
        return text.encode()


def readable(content: bytes) -> str:
    r"""A token's bytes as text. Bytes that are no characters are written as OpenAI does: \xf0\x9f."""
    return content.decode(errors="backslashreplace")


def readable_key(content: bytes) -> str:
    r"""The same as /v1/completions has it, where a part of a character begins with `bytes:`."""
    text = readable(content)
    return text if text.encode() == content else f"bytes:{text}"


class GrowingText:
    """Count the characters of a text as its tokens come.

    Attributes:
        num_characters: number of characters that are complete.
        is_empty: whether no token has come yet.
    """

    def __init__(self) -> None:
        self.num_characters = 0
        self.is_empty = True
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def add(self, token: TokenBytes) -> bytes:
        """Append a token, and return its bytes."""
        content = self.choose(token)
        self.num_characters += len(self._decoder.decode(content))
        self.is_empty = False
        return content

    def choose(self, token: TokenBytes) -> bytes:
        """The bytes of a token that would come next."""
        return token.first if self.is_empty else token.later
