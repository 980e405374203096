"""Engines that the speed benchmark compares: each reads prompts and decodes batches.

Run as a process of its own (`python -m benches.engines NAME CHECKPOINT`), since a BLAS once loaded stays. It
reads lines of JSON from standard input, {"work": "prefill", "num_tokens": 512, ...} or {"work": "decode",
"num_tokens": 32, "batch_size": 8, "num_steps": 16}, and answers each with the seconds it took.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from scripts.hardware.processor import num_cores


class Engine(Protocol):
    """A model ready to run."""

    def prefill(self, tokens: list[list[int]]) -> Any:
        """Read prompts of one length, up to the logits of the next token; returns the state to go on from."""
        ...

    def decode(self, state: Any) -> None:
        """One more token for each prompt, the likeliest."""
        ...


class TinyLlm:
    """This course's model, with the parts of a day; with "all kernels", as far as they are written."""

    def __init__(self, checkpoint: Path, parts: str) -> None:
        import mlx.core as mx

        from accelerated.pretrained import parts_for
        from benches.newest import Newest
        from tiny_llm.kernels.quantized_matmul import quantized_matmul
        from tiny_llm.model.operations import PLAIN_OPERATIONS, Operations
        from tiny_llm.model.registry import load_checkpoint
        from tiny_llm.ops.flash_attention import flash_attention
        from tiny_llm.ops.quantize import quantized_matmul_simple

        dtype = mx.float32 if mx.default_device() == mx.Device(mx.cpu) else None
        self.mx = mx
        self.has_cache = parts != "no cache"
        operations = {
            "no cache": PLAIN_OPERATIONS,
            "cache": PLAIN_OPERATIONS,
            "packed": Operations(matmul=quantized_matmul_simple),
            "matmul kernel": Operations(matmul=quantized_matmul),
            "flash attention": Operations(attention=flash_attention, matmul=quantized_matmul),
        }.get(parts)
        chosen = (dtype, operations) if operations else parts_for(checkpoint, dtype)
        self.model = load_checkpoint(checkpoint, *chosen)
        try:
            measure(self, "decode", num_tokens=2, batch_size=1, num_steps=1)
        except NotImplementedError:
            if parts != "all kernels":
                raise
            self.has_cache = False
        self.newest = Newest(self.model, self.one_by_one)

    def one_by_one(self, _: object, prompts: Sequence[Sequence[int]], max_tokens: int) -> None:
        """Answer prompts one after the other."""
        for prompt in prompts:
            state = self.prefill([list(prompt)])
            for _ in range(max_tokens - 1):
                self.decode(state)

    def prefill(self, tokens: list[list[int]]) -> Any:
        mx = self.mx
        cache = self.model.create_kv_cache() if self.has_cache else None
        ids = mx.array(tokens)
        logits = self.model(ids, 0, cache, 1)
        mx.eval(logits)
        return [ids, cache, logits]

    def decode(self, state: Any) -> None:
        mx = self.mx
        ids, cache, logits = state
        next_ids = mx.argmax(logits[:, -1], axis=-1)[:, None]
        state[0] = mx.concatenate([ids, next_ids], axis=1)
        new = state[0] if cache is None else next_ids
        state[2] = self.model(new, 0 if cache is None else ids.shape[1], cache, 1)
        mx.eval(state)


class MlxLm:
    """mlx-lm's model, as its own generation loop calls it."""

    def __init__(self, checkpoint: Path) -> None:
        import mlx.core as mx
        from mlx_lm.utils import load_model

        self.mx = mx
        self.model = load_model(checkpoint)[0]

    def prefill(self, tokens: list[list[int]]) -> Any:
        from mlx_lm.models.cache import make_prompt_cache

        mx = self.mx
        cache = make_prompt_cache(self.model)
        ids = mx.array(tokens)
        if ids.shape[1] > 1:  # all but the last token for the cache alone, without logits
            self.model(ids[:, :-1], cache=cache)
            mx.eval([layer.state for layer in cache])
        logits = self.model(ids[:, -1:], cache=cache)
        mx.eval(logits)
        return [cache, logits]

    def decode(self, state: Any) -> None:
        cache, logits = state
        next_ids = self.mx.argmax(logits[:, -1], axis=-1)[:, None]
        state[1] = self.model(next_ids, cache=cache)
        self.mx.eval(state[1])


class LlamaCpp:
    """llama.cpp through llama-cpp-python, on the GGUF file that SMOLLM2_GGUF names.

    Its cache has room for 32 sequences of 512 tokens, or for one of so many.
    """

    def __init__(self, checkpoint: Path, num_tokens: int | None = None) -> None:
        import llama_cpp

        self.lib = llama_cpp
        file = os.environ.get("SMOLLM2_GGUF", "")
        if not Path(file).is_file():
            raise ValueError("llama.cpp needs the environment variable SMOLLM2_GGUF: the path of a GGUF file")
        self.silent = llama_cpp.llama_log_callback(lambda *_: None)  # kept, since only C holds on to it
        llama_cpp.llama_log_set(self.silent, None)
        llama_cpp.llama_backend_init()
        model_parameters = llama_cpp.llama_model_default_params()
        model_parameters.use_extra_bufts = False  # its repacking for AMX crashes on some machines
        self.model = llama_cpp.llama_model_load_from_file(file.encode(), model_parameters)
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = num_tokens or 16384, 2048, 512
        parameters.n_seq_max = 1 if num_tokens else 32
        parameters.n_threads = parameters.n_threads_batch = os.cpu_count() or 1
        self.context = llama_cpp.llama_init_from_model(self.model, parameters)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def prefill(self, tokens: list[list[int]]) -> Any:
        self.clear()
        for sequence, ids in enumerate(tokens):
            self.run([(token, i, sequence) for i, token in enumerate(ids)], last_only=True)
        return [tokens[0][-1] for _ in tokens], len(tokens[0])

    def decode(self, state: Any) -> None:
        last_tokens, position = state
        self.run([(token, position, sequence) for sequence, token in enumerate(last_tokens)], last_only=False)
        state[1] = position + 1

    def clear(self) -> None:
        """Forget all sequences."""
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)

    def run(self, entries: list[tuple[int, int, int]], last_only: bool) -> None:
        """Compute tokens, each with its position and its sequence."""
        batch = self.lib.llama_batch_init(len(entries), 0, 1)
        batch.n_tokens = len(entries)
        for i, (token, position, sequence) in enumerate(entries):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = not last_only or i == len(entries) - 1
        if self.lib.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama.cpp could not run a batch")
        self.lib.llama_batch_free(batch)


class Torch:
    """transformers' model in torch, its packed weights expanded."""

    def __init__(self, checkpoint: Path, dtype: str) -> None:
        import mlx.core as mx
        import numpy as np
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        from kernel_runtime.checkpoint import read_json, read_tensors
        from tiny_llm.model.loader import Quantization, Tensors

        self.torch = torch
        torch.set_num_threads(num_cores())
        torch.set_grad_enabled(False)
        config = AutoConfig.from_pretrained(checkpoint)
        self.model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).eval()
        tensors = Tensors(
            read_tensors(checkpoint),
            Quantization.from_config(read_json(checkpoint / "config.json")),
            mx.float32,
        )
        for name, parameter in self.model.named_parameters():  # tied ones come once
            parameter.copy_(torch.from_numpy(np.array(tensors.take(name, *parameter.shape))))

    def prefill(self, tokens: list[list[int]]) -> Any:
        output = self.model(self.torch.tensor(tokens), use_cache=True, logits_to_keep=1)
        return [output.past_key_values, output.logits]

    def decode(self, state: Any) -> None:
        cache, logits = state
        next_ids = logits[:, -1].argmax(dim=-1, keepdim=True)
        state[1] = self.model(next_ids, past_key_values=cache, use_cache=True).logits


ENGINES: dict[str, Callable[[Path], Engine]] = {
    "tiny-llm, no cache": lambda path: TinyLlm(path, "no cache"),
    "tiny-llm, 2.1 cache": lambda path: TinyLlm(path, "cache"),
    "tiny-llm, 2.2 packed": lambda path: TinyLlm(path, "packed"),
    "tiny-llm, 2.3 matmul kernel": lambda path: TinyLlm(path, "matmul kernel"),
    "tiny-llm, 2.4 flash attention": lambda path: TinyLlm(path, "flash attention"),
    "tiny-llm": lambda path: TinyLlm(path, "all kernels"),
    "mlx-lm as installed": MlxLm,
    "mlx-lm with OpenBLAS": MlxLm,
    "llama.cpp": LlamaCpp,
    "torch float32": lambda path: Torch(path, "float32"),
    "torch bfloat16": lambda path: Torch(path, "bfloat16"),
}
ENVIRONMENTS = {"mlx-lm as installed": {"TINY_LLM_BLAS": "off"}}


def measure(engine: Engine, work: str, num_tokens: int, batch_size: int, num_steps: int) -> float:
    """Seconds of one prefill of `num_tokens`, of `num_steps` decodes after it, or of serving these."""
    prompts = [[100 + (7 * i + 13 * row) % 20000 for i in range(num_tokens)] for row in range(batch_size)]
    start = time.perf_counter()
    if work == "serve" and isinstance(engine, TinyLlm):
        engine.newest.serve(prompts, num_steps)
        return time.perf_counter() - start
    state = engine.prefill(prompts)
    if work == "prefill":
        return time.perf_counter() - start
    state = list(state)
    engine.decode(state)  # what is made at the first step, a longer cache for example, is left out
    start = time.perf_counter()
    for _ in range(num_steps):
        engine.decode(state)
    return time.perf_counter() - start


def main(name: str, checkpoint: str) -> None:
    """Answer requests until the input ends."""
    try:
        engine = ENGINES[name](Path(checkpoint))
    except (ImportError, ValueError, NotImplementedError) as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"seconds": measure(engine, **json.loads(line))}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
