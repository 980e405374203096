"""Logits of the shipped model, bit by bit: alone, in chunks, in a batch, and in engines of many kinds."""

import functools
from collections.abc import Iterator

import mlx.core as mx
import pytest

from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from tests.support.bits import check_bits
from tests.support.schedules import IdTokenizer
from tiny_llm import (
    BatchingKvCache,
    BlockManager,
    Engine,
    PrefixCachingBlockManager,
    Qwen3Model,
    SamplingParams,
    SchedulerConfig,
    load,
)
from tiny_llm.engine.sampling_batch import SamplingBatch
from tiny_llm.generation.generate import to_logprobs

pytestmark = pytest.mark.usefixtures("on_cpu")
LENGTHS = (300, 40, 17, 1)
NUM_TOKENS = 5


@pytest.fixture(scope="module", params=[mx.float32, mx.bfloat16], ids=str)
def model(request: pytest.FixtureRequest) -> Iterator[Qwen3Model]:
    """The shipped model of the CPU's operations; it is made before `on_cpu` is there."""
    with mx.stream(mx.cpu):
        yield load(resolve_checkpoint(SHIPPED_MODEL), request.param)[0]


def prompt_of(length: int) -> list[int]:
    """Token ids, others for each length."""
    return [(7 + 31 * length + 13 * i * i) % 4000 + 90 for i in range(length)]


@functools.cache
def chunked(model: Qwen3Model, size: int) -> mx.array:
    """Logits [1, 300, V] of a prompt that comes in chunks."""
    cache, logits, tokens = model.create_kv_cache(), [], prompt_of(300)
    for start in range(0, len(tokens), size):
        logits.append(model(mx.array([tokens[start : start + size]]), start, cache))
    return mx.concatenate(logits, axis=1)


@functools.cache
def alone(model: Qwen3Model, prompt: tuple[int, ...]) -> list[mx.array]:
    """Log-probabilities [1, V] of each token of a greedy answer."""
    cache, position, answer, tokens = model.create_kv_cache(), 0, [], list(prompt)
    for _ in range(NUM_TOKENS):
        answer.append(to_logprobs(model(mx.array([tokens[position:]]), position, cache, 1)))
        position = len(tokens)
        tokens = [*tokens, int(mx.argmax(answer[-1]).item())]
    return answer


@pytest.mark.parametrize("size", [1, 3, 8, 9, 16, 17, 32, 64, 100])
def test_chunks_of_any_size(model: Qwen3Model, size: int) -> None:
    check_bits(chunked(model, size), chunked(model, 300), f"logits in chunks of {size}")


def test_a_batch_of_any_neighbours(model: Qwen3Model) -> None:
    expected = {length: alone(model, tuple(prompt_of(length)))[0] for length in LENGTHS}
    for lengths in ((40,), (40, 300), (17, 40, 300), (40, 17, 40, 300, 17, 40, 300, 40, 17)):
        slots = [BatchingKvCache(len(lengths)) for _ in range(model.num_hidden_layers)]
        for slot, length in enumerate(lengths):
            cache = model.create_kv_cache()
            mx.eval(model(mx.array([prompt_of(length)[:-1]]), 0, cache, 1))
            for own, layer in zip(slots, cache, strict=True):
                own.add_request(layer, slot)
        last = mx.array([prompt_of(length)[-1:] for length in lengths])
        logprobs = to_logprobs(model(last, [length - 1 for length in lengths], slots))
        for slot, length in enumerate(lengths):
            what = f"a prompt of {length} in a batch of {lengths}"
            check_bits(logprobs[slot : slot + 1], expected[length], what)


@pytest.mark.parametrize("blocks", [None, (1, False), (5, True), (16, False), (16, True)])
@pytest.mark.parametrize("budget", [4, 33, 64, 1000])
def test_an_engine_of_any_budget_and_blocks(
    model: Qwen3Model, budget: int, blocks: tuple[int, bool] | None
) -> None:
    """Of the last two prompts one begins as the first does and one is the first: kept prefixes are found."""
    prompts = [prompt_of(length) for length in LENGTHS]
    prompts += [prompts[0][:200] + prompts[1], prompts[0]]
    manager = None
    if blocks is not None:
        block_size, is_shared = blocks
        kind = PrefixCachingBlockManager if is_shared else BlockManager
        manager = kind(2000 // block_size, block_size)
    with Engine(model, IdTokenizer(), SchedulerConfig(budget, 4), 400, manager) as engine:
        answers = note_logprobs(engine)
        for number, prompt in enumerate(prompts):
            engine.add_request(prompt, SamplingParams(seed=number, max_tokens=NUM_TOKENS))
        while engine.has_unfinished_requests:
            engine.step()
    for number, prompt in enumerate(prompts):
        assert answers[number]
        for i, (actual, expected) in enumerate(
            zip(answers[number], alone(model, tuple(prompt)), strict=False)
        ):
            check_bits(actual, expected, f"token {i} of the answer to a prompt of {len(prompt)}")


def note_logprobs(engine: Engine) -> dict[int | None, list[mx.array]]:
    """The log-probabilities [1, V] that each request will sample from, by its number."""
    noted: dict[int | None, list[mx.array]] = {}

    def sample(logits: mx.array, batch: SamplingBatch) -> mx.array:
        for row, params in enumerate(batch.params):
            noted.setdefault(params.seed, []).append(to_logprobs(logits[row : row + 1, None]))
        return mx.argmax(logits, axis=-1)

    engine.runner.sampler = sample
    return noted
