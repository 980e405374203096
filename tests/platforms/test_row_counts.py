"""The model on a GPU, for every number of rows around the edge of a tile: as one made of plain parts."""

from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from accelerated import accelerate
from kernel_runtime.gpu_kernel import GpuKernel
from kernel_runtime.launch import Language, Target
from tests.support.check import check_close, check_equal, normal
from tests.support.checkpoints import Variant, build, save
from tests.support.cpu_kernels import use_device
from tiny_llm import (
    BlockManager,
    ModelRunner,
    Qwen3Model,
    SamplingParams,
    ScheduledTokens,
    SchedulerOutput,
    Sequence,
)
from tiny_llm.engine.sampling_batch import SamplingBatch
from tiny_llm.generation.generate import to_logprobs
from tiny_llm.kernels import gpu_operations, paged_gpu
from tiny_llm.kernels.dispatch_paged_attention import dispatch_paged_attention
from tiny_llm.kernels.gpu_operations import (
    FEW_QUERIES,
    FEW_ROWS,
    flash_attention_gpu,
    quantized_matmul_gpu,
)
from tiny_llm.kernels.gpu_sizes import TILE
from tiny_llm.model.loader import load_model
from tiny_llm.ops.quantize import QuantizedWeights

pytestmark = pytest.mark.sampled(3, "kernel_runtime/", "tiny_llm_ref/kernels/")
EDGES = {FEW_ROWS, FEW_QUERIES, TILE, 2 * TILE}
ROW_COUNTS = sorted({1} | {edge + step for edge in EDGES for step in (-1, 0, 1)})
NUM_CACHED = 5
TOLERANCE = 1e-4
VARIANT = Variant("one-layer", "qwen3", {"num_hidden_layers": 1}, quantization={"group_size": 64, "bits": 4})


def token_ids(count: int) -> list[int]:
    return [(7 * i * i + 3 * i + 5) % 160 for i in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(VARIANT, build(VARIANT), tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def plain(folder: Path) -> Qwen3Model:
    """The model made of plain parts."""
    return load_model(folder, mx.float32)


@pytest.fixture(params=["metal", "cuda"])
def fast(
    request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Qwen3Model]:
    """The model made of what is best on a GPU, while the default device is one."""
    language: Language = request.param
    for module in (gpu_operations, paged_gpu):
        monkeypatch.setattr(module, "default_target", lambda: Target(language, "emulator"))
    use_device(mx.gpu, monkeypatch)
    operations = accelerate.best_operations()
    model = load_model(folder, mx.float32, operations)
    model.operations = operations
    return model


def test_every_count_in_one_call(fast: Qwen3Model, plain: Qwen3Model) -> None:
    for count in ROW_COUNTS:
        tokens = mx.array([token_ids(count)])
        check_close(fast(tokens), plain(tokens), f"logits of a prompt of {count}", TOLERANCE)
        check_close(fast(tokens.T), plain(tokens.T), f"logits of {count} prompts of one", TOLERANCE)


def test_every_count_behind_a_cache(fast: Qwen3Model, plain: Qwen3Model) -> None:
    for count in ROW_COUNTS:
        tokens, logits = mx.array([token_ids(NUM_CACHED + count)]), []
        for model in (fast, plain):
            cache = model.create_kv_cache()
            mx.eval(model(tokens[:, :NUM_CACHED], 0, cache, logits_to_keep=0))
            logits.append(model(tokens[:, NUM_CACHED:], NUM_CACHED, cache))
        check_close(*logits, f"logits of {count} tokens behind {NUM_CACHED}", TOLERANCE)


def test_every_count_of_logits(fast: Qwen3Model, plain: Qwen3Model) -> None:
    tokens = mx.array([token_ids(ROW_COUNTS[-1])])
    for count in (0, *ROW_COUNTS):
        logits = fast(tokens, logits_to_keep=count)
        check_close(logits, plain(tokens, logits_to_keep=count), f"the last {count} logits", TOLERANCE)


def test_every_count_of_a_chunk_on_blocks(fast: Qwen3Model, plain: Qwen3Model) -> None:
    for count in ROW_COUNTS:
        for prompt, logits in logits_on_blocks(fast, token_ids(4), token_ids(count)):
            logprobs, expected = map(to_logprobs, (logits, plain(mx.array([prompt]), logits_to_keep=1)))
            check_close(logprobs, expected, f"log-probabilities beside a chunk of {count}", TOLERANCE)


def logits_on_blocks(
    model: Qwen3Model, decoding: list[int], chunk: list[int]
) -> list[tuple[list[int], mx.array]]:
    """Both prompts and their logits [1, 1, V]: the last token of one and all of the other in one step."""
    sequences, noted = [Sequence(0, decoding), Sequence(1, chunk)], list[mx.array]()
    blocks = BlockManager(64, 4)
    for sequence in sequences:
        blocks.allocate(sequence, sequence.num_tokens)

    def sample(logits: mx.array, batch: SamplingBatch) -> mx.array:
        noted.extend(logits[:, None, None])
        return mx.argmax(logits, axis=-1)

    runner = ModelRunner(model, blocks, dispatch_paged_attention, sample)
    start = len(decoding) - 1
    runner.run(SchedulerOutput((ScheduledTokens(sequences[0], 0, start, False),)), {})

    entries = (
        ScheduledTokens(sequences[0], start, 1, True),
        ScheduledTokens(sequences[1], 0, len(chunk), True),
    )
    runner.run(SchedulerOutput(entries), {0: SamplingParams(), 1: SamplingParams()})
    return list(zip((decoding, chunk), noted, strict=True))


def test_what_is_empty_runs_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GpuKernel, "__call__", lambda *_: pytest.fail("a kernel ran"))
    weights = QuantizedWeights(*mx.quantize(normal(7, 64, seed=1), 64, 4), 64, 4)
    for shape in ((0, 64), (2, 0, 64)):
        product = quantized_matmul_gpu(mx.zeros(shape, mx.float16), weights)
        check_equal((product.shape, product.dtype), ((*shape[:-1], 7), mx.float32), "product of no rows")
    query, key = normal(2, 4, 5, 32, seed=1, dtype=mx.float16), normal(2, 2, 9, 32, seed=2, dtype=mx.float16)
    for few in (query[:, :, :0], query[:0]):
        attended = flash_attention_gpu(few, key[: few.shape[0]], key[: few.shape[0]], mask="causal")
        check_equal((attended.shape, attended.dtype), (few.shape, mx.float16), "attention of no queries")
