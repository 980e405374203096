"""The threads of the tokenizer and of grammars."""

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from kernel_runtime.checkpoint import load_tokenizer
from tests.support.server_engines import SECONDS
from tiny_llm.generation.given.structured_outputs import StructuredOutputsParams
from tiny_llm.serving.server.given.text_codec import ChatTokenizer, TextCodec
from tiny_llm.serving.server.given.thread_end import Worker

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


def test_both_threads_end_with_the_codec() -> None:
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
