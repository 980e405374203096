"""Log-probabilities of tokens that are parts of characters, or whose text depends on where they stand."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_server.endpoint import AnswerPart
from http_server.text_codec import TextCodec
from http_server.token_texts import (
    GrowingText,
    bytes_of_token,
    readable,
    readable_key,
)
from tests.server.test_streams import CHAT, PROMPT, endpoint_of
from tests.support.fakes import FakeTokenizer
from tests.support.text_tokenizers import FallbackTokenizer, ShippedTokenizer
from tiny_llm.batching.answer import TokenLogprobs


class FastShipped(ShippedTokenizer):
    """With what llguidance wants to see of a tokenizer."""

    @property
    def backend_tokenizer(self) -> Any:
        return self.tokenizer


class FastFallback(FallbackTokenizer):
    """A tokenizer with bytes for characters that it does not know."""

    @property
    def backend_tokenizer(self) -> Any:
        return self.tokenizer


SHIPPED, FALLBACK = FastShipped(), FastFallback()
TOKENS = {
    "bytes of BPE": (SHIPPED, st.text("a é語🦙!", max_size=9).map(lambda text: ids_of(SHIPPED, text))),
    "words or bytes": (
        FALLBACK,
        st.lists(st.integers(0, 4) | st.sampled_from("é語🦙"), max_size=9).map(FallbackTokenizer.tokens_of),
    ),
}


def ids_of(tokenizer: ShippedTokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.tokenizer.encode(text, add_special_tokens=False).ids
    return ids


@pytest.mark.parametrize("name", TOKENS)
def test_bytes_of_all_tokens_together_are_the_text(name: str) -> None:
    tokenizer, sequences = TOKENS[name]

    @given(sequences)
    def check(ids: list[int]) -> None:
        text = GrowingText()
        content = b"".join([text.add(bytes_of_token(tokenizer, id)) for id in ids])
        assert content.decode() == tokenizer.decode(ids)
        assert text.num_characters == len(tokenizer.decode(ids))

    check()


def test_special_tokens_have_the_bytes_of_their_text() -> None:
    assert bytes_of_token(SHIPPED, 2).later == b"<|im_end|>"
    assert bytes_of_token(SHIPPED, 2).first == b"<|im_end|>"


def test_a_tokenizer_that_llguidance_does_not_know_gives_its_text() -> None:
    class Unknown(FakeTokenizer):
        token_bytes: Any = None

    assert bytes_of_token(Unknown(["", "\ufffd"]), 1).later == "\ufffd".encode()


def test_a_token_that_is_the_replacement_character_has_its_bytes() -> None:
    ids = FALLBACK.tokens_of("\ufffd")
    assert b"".join(bytes_of_token(FALLBACK, id).later for id in ids) == "\ufffd".encode()


@pytest.mark.parametrize(
    ("content", "text", "key"),
    [
        (b"a", "a", "a"),
        (b" \xf0\x9f", " \\xf0\\x9f", "bytes: \\xf0\\x9f"),
        ("😀".encode(), "😀", "😀"),
        (rb"\xf0", r"\xf0", r"\xf0"),
    ],
)
def test_bytes_that_are_no_characters_are_readable(content: bytes, text: str, key: str) -> None:
    assert (readable(content), readable_key(content)) == (text, key)


def test_the_case_of_an_emoji_in_four_tokens() -> None:
    """Its tokens have their own bytes, none hides another, and offsets count characters."""
    ids = ids_of(SHIPPED, "a😀!é")
    assert len(ids) == 8
    tops = [((id, -1.0), (ids[1], -2.0), (ids[2], -3.0)) for id in ids]
    halves = [
        AnswerPart(ids[start:end], "", [TokenLogprobs(-1.0, top) for top in tops[start:end]])
        for start, end in ((0, 3), (3, 8))
    ]

    async def chunks_of(fields: dict[str, Any]) -> list[Any]:
        codec = TextCodec(lambda: SHIPPED)  # type: ignore[arg-type,return-value]
        endpoint = endpoint_of(fields, codec)
        found = [await endpoint.chunks(0, half, False) for half in halves]
        codec.close()
        return [msgspec.to_builtins(choice)["logprobs"] for choices in found for choice in choices]

    new = [each for chunk in asyncio.run(chunks_of(CHAT | {"logprobs": True})) for each in chunk["content"]]
    assert bytes(byte for each in new for byte in each["bytes"]).decode() == "a😀!é"
    assert [each["token"] for each in new[:4]] == ["a", "\\xf0", "\\x9f", "\\x98"]
    assert [[likely["bytes"] for likely in each["top_logprobs"]][1:] for each in new] == [
        [[0xF0], [0x9F]]
    ] * 8
    old = asyncio.run(chunks_of(PROMPT | {"logprobs": 3}))
    assert [offset for chunk in old for offset in chunk["text_offset"]] == [0, 1, 1, 1, 1, 2, 3, 3]
    assert old[0]["tokens"] == ["a", "bytes:\\xf0", "bytes:\\x9f"]
    assert set(old[0]["top_logprobs"][0]) == {"a", "bytes:\\xf0", "bytes:\\x9f"}
    assert msgspec.json.encode(old)
