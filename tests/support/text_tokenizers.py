"""Tokenizers whose tokens are no whole characters, or whose text depends on the tokens before."""

from collections.abc import Sequence
from functools import cached_property

from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from scripts.course import ROOT
from tests.support.check import fail
from tests.support.fakes import FakeTokenizer

MOST_DECODED = 64


class ByteTokenizer(FakeTokenizer):
    """One token a byte; bytes that are no whole character read as U+FFFD."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token_ids).decode(errors="replace")


class WordTokenizer(FakeTokenizer):
    """Words with a space between, so that the text of a token depends on where it stands."""

    words = ("the", "cat", "sat")

    def decode(self, token_ids: Sequence[int]) -> str:
        return " ".join(self.words[token] for token in token_ids)


class ShippedTokenizer(FakeTokenizer):
    """That of the checkpoint that comes with the course, a byte-level BPE."""

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_file(str(ROOT / "models/qwen3-kjv-4m/tokenizer.json"))

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=False))


class FallbackTokenizer(ShippedTokenizer):
    """As Llama 2 and Gemma have it: words with their space, and bytes for characters it does not know.

    A run of bytes reads as characters only as a whole.
    """

    words = ("▁the", "▁cat", "s", "▁", "!")

    @cached_property
    def tokenizer(self) -> Tokenizer:
        pieces = [f"<0x{byte:02X}>" for byte in range(256)] + list(self.words)
        tokenizer = Tokenizer(models.WordLevel(dict(zip(pieces, range(len(pieces)), strict=True)), "s"))
        steps = [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
        tokenizer.decoder = decoders.Sequence(steps)
        return tokenizer

    @staticmethod
    def tokens_of(parts: Sequence[int | str]) -> list[int]:
        """Words by their number, and characters by their bytes."""
        return [
            token
            for part in parts
            for token in ([256 + part] if isinstance(part, int) else list(part.encode()))
        ]


BYTES = st.sampled_from([*b"a \n", 0xFF, *"語🦙é".encode()])
"""Those of whole characters and of broken ones."""
TOKENIZERS = {
    "bytes": (ByteTokenizer(), st.lists(BYTES, max_size=99)),
    "words": (WordTokenizer(), st.lists(st.integers(0, 2), max_size=99)),
    "the shipped one": (ShippedTokenizer(), st.lists(st.integers(0, 4095), max_size=99)),
    "words or bytes": (
        FallbackTokenizer(),
        st.lists(st.integers(0, 4) | st.sampled_from("é語🦙"), max_size=40).map(FallbackTokenizer.tokens_of),
    ),
}
"""Each with sequences of its tokens."""


class DecodedTokens:
    """Counts what a tokenizer decodes from here on."""

    def __init__(self, tokenizer: FakeTokenizer) -> None:
        self.sizes: list[int] = []
        decode = tokenizer.decode

        def counted(token_ids: Sequence[int]) -> str:
            self.sizes.append(len(token_ids))
            return decode(token_ids)

        tokenizer.decode = counted  # type: ignore[method-assign]

    def check(self, num_added: int, what: str) -> None:
        """Fail if a token was decoded more often, or together with more others, than an answer needs."""
        __tracebackhide__ = True
        if max(self.sizes, default=0) > MOST_DECODED or sum(self.sizes) > MOST_DECODED * num_added:
            fail(
                f"{what} decodes up to {max(self.sizes):,} tokens at once and {sum(self.sizes):,} in all for "
                f"{num_added:,} that are added: the cost of a token should not grow with the answer."
            )
