"""Engines that read a long prompt in chunks and decode behind it, each run in a process of its own.

`python -m benches.long_sides NAME CHECKPOINT CHUNK` reads lines {"num_tokens": 8192, "num_steps": 16} from
standard input and answers each with the seconds of every chunk and of every decode, and the memory it took.
"""

import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from kernel_runtime.checkpoint import read_json

POSITIONS = "max_position_embeddings"
ROOM = 64  # tokens behind the prompt
BLOCK_SIZE = 16


class WatchedMemory:
    """The most memory held between two calls, which `memory_use` measures within a block."""

    def __init__(self) -> None:
        self._block = ExitStack()

    def start(self) -> None:
        from scripts.hardware.memory import memory_use

        self._block.close()
        self._use = self._block.enter_context(memory_use(reuses_buffers=False))

    def peak_bytes(self) -> int:
        self._block.close()
        return self._use.peak


class LongEngine(Protocol):
    """Reads one prompt and decodes; `chunk` tokens of the prompt at a time. Or `fills` its cache instead."""

    fills: bool

    def start(self, tokens: list[int]) -> None:
        """Forget what was read before; this is the prompt."""

    def read(self) -> bool:
        """Read the next chunk; whether more of the prompt is left."""

    def decode(self) -> None:
        """One more token, the likeliest."""

    def peak_bytes(self) -> int | None:
        """The most memory of arrays since the start, the weights left out; None if it cannot be told."""


class Ours:
    """This course's engine, on blocks or with a dense cache."""

    fills = False

    def __init__(self, checkpoint: Path, chunk: int, is_paged: bool) -> None:
        import mlx.core as mx

        from tiny_llm import load

        self.chunk, self.is_paged, self.memory = chunk, is_paged, WatchedMemory()
        self.model, _ = load(checkpoint, mx.float32 if mx.default_device() == mx.Device(mx.cpu) else None)
        self.engine: Any = None
        self.start([0])  # raises here what is not written yet
        self.read()

    def start(self, tokens: list[int]) -> None:
        from tiny_llm import BlockManager, Engine, SamplingParams, SchedulerConfig, UnlimitedBlocks
        from tiny_llm.speculation.endless_tokenizer import EndlessTokenizer

        if self.engine is not None:
            self.engine.close()
        self.memory.start()
        longest = len(tokens) + ROOM
        blocks = BlockManager(-(-longest // BLOCK_SIZE), BLOCK_SIZE) if self.is_paged else UnlimitedBlocks()
        config = SchedulerConfig(self.chunk, 1)
        self.engine = Engine(self.model, EndlessTokenizer(), config, longest, blocks)
        self.engine.add_request(tokens, SamplingParams(max_tokens=ROOM))

    def read(self) -> bool:
        return not self.engine.step().sampled

    def decode(self) -> None:
        self.engine.step()

    def peak_bytes(self) -> int:
        return self.memory.peak_bytes()


class MlxLm:
    """mlx-lm's model. On a CPU its prefill takes minutes: its cache is filled with random numbers there."""

    def __init__(self, checkpoint: Path, chunk: int) -> None:
        import mlx.core as mx
        from mlx_lm.utils import load_model

        self.mx, self.chunk, self.memory = mx, chunk, WatchedMemory()
        self.model = load_model(checkpoint)[0]
        self.fills = mx.default_device() == mx.Device(mx.cpu)

    def start(self, tokens: list[int]) -> None:
        from mlx_lm.models.cache import make_prompt_cache

        self.cache, self.left = make_prompt_cache(self.model), list(tokens)
        self.memory.start()

    def read(self) -> bool:
        mx = self.mx
        if self.fills:
            heads, size = self.model.args.num_key_value_heads, self.model.args.head_dim
            for layer in self.cache:
                layer.update_and_fetch(*mx.random.normal((2, 1, heads, len(self.left) - 1, size)))
            self.left = self.left[-1:]
        now, self.left = self.left[: self.chunk], self.left[self.chunk :]
        self.logits = self.model(mx.array([now]), cache=self.cache)[:, -1]
        mx.eval(self.logits, [layer.state for layer in self.cache])
        return bool(self.left)

    def decode(self) -> None:
        token = self.mx.argmax(self.logits, axis=-1)[:, None]
        self.logits = self.model(token, cache=self.cache)[:, -1]
        self.mx.eval(self.logits)

    def peak_bytes(self) -> int | None:
        return None if self.fills else self.memory.peak_bytes()


class LlamaCpp:
    """llama.cpp on the GGUF file that SMOLLM2_GGUF names; its cache holds 16-bit floats."""

    fills = False

    def __init__(self, checkpoint: Path, chunk: int) -> None:
        from benches.engines import LlamaCpp as Loaded

        self.chunk = chunk
        self.loaded = Loaded(checkpoint, read_json(checkpoint / "config.json")[POSITIONS])

    def start(self, tokens: list[int]) -> None:
        self.loaded.clear()
        self.left, self.position = list(tokens), 0

    def read(self) -> bool:
        now, self.left = self.left[: self.chunk], self.left[self.chunk :]
        self.loaded.run([(token, self.position + i, 0) for i, token in enumerate(now)], last_only=True)
        self.position += len(now)
        return bool(self.left)

    def decode(self) -> None:
        self.loaded.run([(1, self.position, 0)], last_only=True)
        self.position += 1

    def peak_bytes(self) -> None:
        return None


SIDES: dict[str, Callable[[Path, int], LongEngine]] = {
    "blocks": lambda path, chunk: Ours(path, chunk, True),
    "dense cache": lambda path, chunk: Ours(path, chunk, False),
    "llama.cpp": LlamaCpp,
    "mlx-lm": MlxLm,
}


def measure(engine: LongEngine, num_tokens: int, num_steps: int) -> dict[str, Any]:
    """Seconds of the chunks of a prompt and of decodes behind it, the first decode left out."""
    engine.start([100 + 7 * i % 20000 for i in range(num_tokens)])
    chunks, decodes = [], []
    is_left = True
    while is_left:
        start = time.perf_counter()
        is_left = engine.read()
        chunks.append(time.perf_counter() - start)
    for _ in range(num_steps + 1):
        start = time.perf_counter()
        engine.decode()
        decodes.append(time.perf_counter() - start)
    return {
        "chunks": [] if engine.fills else chunks,
        "decodes": decodes[1:],
        "peak_bytes": engine.peak_bytes(),
    }


def main(name: str, checkpoint: str, chunk: str) -> None:
    """Answer requests until the input ends."""
    try:
        engine = SIDES[name](Path(checkpoint), int(chunk))
    except (ImportError, ValueError, NotImplementedError) as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(engine, **json.loads(line))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
