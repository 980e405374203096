"""The threads of the tokenizer and of grammars."""

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tokenizers.normalizers import NFC

from http_server.text_codec import (
    LONG_TEXT,
    SHRINKING,
    ChatTokenizer,
    PromptTooLongError,
    TextCodec,
    longest_token,
)
from kernel_runtime.checkpoint import load_tokenizer
from tests.support.server_engines import SECONDS, ChatFake
from tiny_llm.generation.structured_outputs import StructuredOutputsParams
from tiny_llm.server.thread_end import Worker
from tiny_llm.structured import grammars

SHIPPED = Path(__file__).parents[2] / "models" / "qwen3-kjv-4m"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_destructors_of_an_ended_thread_have_run() -> None:
    native_ids = []

    def load() -> ChatTokenizer:
        native_ids.append(threading.get_native_id())
        assert mx.random.state  # MLX makes one per thread, and so does the thread that imports mlx-lm first
        return load_tokenizer(SHIPPED)

    async def encode() -> None:
        codec = TextCodec(load)
        assert await codec.decode(await codec.encode("and")) == "and"
        codec.close()

    for _ in range(5):
        asyncio.run(encode())
        assert not Path(f"/proc/self/task/{native_ids[-1]}").exists()


def test_all_threads_end_with_the_codec() -> None:
    before = set(threading.enumerate())

    async def compile() -> None:
        codec = TextCodec(lambda: load_tokenizer(SHIPPED))
        await codec.compile(StructuredOutputsParams(regex="a"))
        codec.close()

    asyncio.run(compile())
    assert set(threading.enumerate()) <= before


def test_a_worker_that_is_closed_drops_what_has_not_begun() -> None:
    may_end = threading.Event()

    class Closing(Worker):
        """Its thread is busy until shutdown has begun."""

        def shutdown(self, wait: bool = True, **options: Any) -> None:
            ThreadPoolExecutor.shutdown(self, wait=False, **options)
            may_end.set()
            ThreadPoolExecutor.shutdown(self, wait)

    worker = Closing("worker")
    first, second = worker.submit(may_end.wait, SECONDS), worker.submit(may_end.wait, SECONDS)
    worker.close()
    assert first.result() is True
    assert second.cancelled()


class GatedOnLength(ChatFake):
    """A tokenizer that waits with long texts until the test lets them go."""

    gate = threading.Event()

    def encode(self, text: str, **options: Any) -> list[int]:
        assert len(text) < LONG_TEXT or self.gate.wait(SECONDS)
        return super().encode(text[:3], **options)

    def apply_chat_template(self, messages: list[dict[str, str]], **settings: Any) -> Any:
        return messages[0]["content"] if settings.get("tokenize") is False else [1]


@pytest.mark.parametrize("is_chat", [False, True])
def test_short_texts_do_not_wait_for_long_ones(is_chat: bool) -> None:
    async def encode() -> None:
        codec = TextCodec(GatedOnLength)

        async def of(text: str) -> tuple[int, ...]:
            return await (codec.encode_chat([{"content": text}]) if is_chat else codec.encode(text))

        long = asyncio.ensure_future(of("A" * LONG_TEXT))
        try:
            assert await asyncio.wait_for(of("A"), SECONDS) == (1,)
            assert not long.done()
        finally:
            GatedOnLength.gate.set()
        assert await long == (1, 1, 1)
        GatedOnLength.gate.clear()
        codec.close()

    asyncio.run(encode())


def test_the_tokenizer_of_long_texts_is_loaded_once() -> None:
    loaded = []

    def load() -> ChatTokenizer:
        loaded.append(threading.current_thread().name)
        return ChatFake()

    async def encode() -> None:
        codec = TextCodec(load)
        for text in ("A", "A" * LONG_TEXT, "B" * LONG_TEXT):
            await codec.limited(10**6).encode(text)
        codec.close()

    asyncio.run(encode())
    assert len(loaded) == len(set(loaded)) == 2


@pytest.mark.parametrize("normalizer", [None, NFC()])
def test_a_text_that_no_tokens_can_spell_is_refused_unencoded(normalizer: NFC | None) -> None:
    tokenizer = load_tokenizer(SHIPPED)
    tokenizer.backend_tokenizer.normalizer = normalizer
    longest = longest_token(tokenizer)
    assert longest is not None
    assert longest == 15 * (1 if normalizer is None else SHRINKING)
    most = LONG_TEXT // longest + 1

    async def encode() -> None:
        codec = TextCodec(lambda: tokenizer)
        limited, text = codec.limited(most), "a" * ((most + 1) * longest)
        for encoded in (limited.encode(text), limited.encode_chat([{"role": "user", "content": text}])):
            with pytest.raises(PromptTooLongError, match=f"is {most} tokens, but the prompt has at least"):
                await encoded
        assert len(await limited.encode(text[longest:])) > most  # not certain, so it is encoded
        assert len(await codec.encode(text)) > most
        codec.close()

    asyncio.run(encode())


def test_a_slow_grammar_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    make = grammars.started_matcher

    def started(tokenizer: Any, text: str) -> Any:
        assert "slow" not in text or gate.wait(SECONDS)
        return make(tokenizer, text)

    monkeypatch.setattr(grammars, "started_matcher", started)
    monkeypatch.setattr(grammars, "MOST_SECONDS", SECONDS)

    async def compile() -> None:
        codec = TextCodec(lambda: load_tokenizer(SHIPPED))
        slow = asyncio.ensure_future(codec.compile(StructuredOutputsParams(regex="slow")))
        try:
            assert (
                await asyncio.wait_for(codec.compile(StructuredOutputsParams(regex="a")), SECONDS)
            ).compiled
            assert not slow.done()
        finally:
            gate.set()
        assert (await slow).compiled
        codec.close()

    asyncio.run(compile())
