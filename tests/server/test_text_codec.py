"""The threads of the tokenizer."""

import asyncio
import sys
import threading
from pathlib import Path

import mlx.core as mx
import pytest

from kernel_runtime.checkpoint import load_tokenizer
from tiny_llm.serving.server.given.text_codec import ChatTokenizer, TextCodec

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
