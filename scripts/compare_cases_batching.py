"""The inputs of `pdm run compare` for batching: week 2 days 6 and 7; `compare_batch` adds a whole run."""

from itertools import product
from types import ModuleType
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from scripts.compare_cases import ByteTokenizer, case, module, normal, small_model, token_ids
from scripts.compare_trees import Tree

if TYPE_CHECKING:
    from tiny_llm_ref import BatchGenerator, Request, TinyKvFullCache

PROMPT_LENGTHS = (19, 5, 29, 11)
MAX_STEPS = 80

# week 2 day 6


def cache_of(tiny: ModuleType, L: int) -> "TinyKvFullCache":
    """One layer's cache of a request of L tokens."""
    cache: TinyKvFullCache = tiny.TinyKvFullCache()
    cache.update_and_fetch(normal(1, 2, L, 64, seed=L), normal(1, 2, L, 64, seed=L + 1))
    return cache


@case("kv_cache.BatchingKvCache")
def slots(tiny: ModuleType) -> Tree:
    """Requests come and go."""
    cache = tiny.BatchingKvCache(4, max_seq_len=512)
    seen = []
    for added, removed in (((67, 2), None), ((131, 0), None), ((7, 3), 2), ((31, 2), 0)):
        cache.add_request(cache_of(tiny, added[0]), added[1])
        if removed is not None:
            cache.remove_request(removed)
        seen.append(sorted(zip(cache.active_slots, cache.lengths, strict=True)))
    return seen


@case("kv_cache.BatchingKvCache.update_and_fetch")
def ragged_rows(tiny: ModuleType) -> Tree:
    """Rows of 131, 67, 7."""
    cache = tiny.BatchingKvCache(3, max_seq_len=512)
    for slot, L in enumerate((131, 67, 7)):
        cache.add_request(cache_of(tiny, L), slot)
    for i in range(2):
        pair = (normal(3, 2, 1, 64, seed=i), normal(3, 2, 1, 64, seed=i + 5))
        key, value, lengths, mask = cache.update_and_fetch(*pair, mask_length=1)
    is_visible = mx.broadcast_to(mask == 0, (3, 1, 1, key.shape[2])).swapaxes(2, 3)
    seen = [mx.where(is_visible, held, 0.0) for held in (key, value)]
    return {"lengths": lengths, "visible": is_visible, "key": seen[0], "value": seen[1]}


def request_of(tiny: ModuleType, length: int = 97, **kwargs: Any) -> "Request":
    """A request to the small model."""
    request: Request = tiny.Request(small_model(tiny), ByteTokenizer(), token_ids(length), **kwargs)
    return request


def decoding(tiny: ModuleType, **kwargs: Any) -> "Request":
    """A request whose prompt is computed and whose first token is sampled."""
    request = request_of(tiny, length=7, **kwargs)
    request.offset, request.token_ids = 7, [97]
    return request


def feed(request: "Request", text: str) -> list[Tree]:
    """Offset, answer and reason to end after each token of a text, up to the end."""
    seen: list[Tree] = []
    for token in text.encode():
        if request.is_done:
            break
        request.decode_done(token)
        seen.append([request.offset, list(request.token_ids), request.finish_reason])
    return seen


@case("answer.Answer.accept")
def accepted(tiny: ModuleType) -> Tree:
    """Bounds of 0, 3 and 9."""
    answers = [module(tiny, "answer").Answer(3, ByteTokenizer(), most, ("xy",)) for most in (0, 3, 9)]
    for answer in answers:
        for token in b"vwxyz":
            if not answer.is_done:
                answer.accept(token)
    return [[list(answer.token_ids), answer.finish_reason] for answer in answers]


@case("request.Request.decode_done")
def decoded(tiny: ModuleType) -> Tree:
    """End, bound, stop string."""
    requests = (decoding(tiny), decoding(tiny, max_tokens=4), decoding(tiny, stop=("cd",)))
    return [feed(request, "bcdef\0g") for request in requests]


@case("answer.Answer.text")
def text_of_request(tiny: ModuleType) -> Tree:
    """Up to a stop string."""
    requests = (decoding(tiny), decoding(tiny, stop=("é",)))
    for request in requests:
        feed(request, "bcéd 🌱")
    return [request.text() for request in requests]


def generator_of(tiny: ModuleType) -> "BatchGenerator":
    """Two slots, and four requests that wait for them."""
    generator: BatchGenerator = tiny.BatchGenerator(
        small_model(tiny), ByteTokenizer(), batch_size=2, prefill_step=8, max_seq_len=64
    )
    for seed, length in enumerate(PROMPT_LENGTHS):
        generator.submit(token_ids(length, seed), tiny.SamplingParams(max_tokens=2 + seed))
    return generator


def plain(results: Any) -> list[Tree]:
    """Results as lists, whatever class they are of."""
    return [[each.prompt_idx, each.text, list(each.token_ids), each.finish_reason] for each in results]


@case("batch.BatchGenerator.decode_phase")
@case("batch.BatchGenerator.prefill_phase")
def phases(tiny: ModuleType) -> Tree:
    """4 requests in 2 slots."""
    generator = generator_of(tiny)
    made_progress: list[Tree] = []
    finished: list[Tree] = []
    while generator.has_work and len(made_progress) < MAX_STEPS:
        made_progress.append([generator.prefill_phase(), generator.decode_phase(), generator.promote_phase()])
        finished.append(plain(generator.take_finished()))
    return {"finished in each step": finished, "progress of each phase": made_progress}


@case("batch.BatchGenerator.promote_phase")
def promote_phase(tiny: ModuleType) -> Tree:
    """Slots after each."""
    generator = generator_of(tiny)
    seen: list[Tree] = []
    for _ in range(MAX_STEPS):
        generator.prefill_phase()
        if generator.promote_phase():
            held = [None if request is None else request.prompt_idx for request in generator.slots]
            seen.append([held, generator.cache[0].lengths, generator.prefilling is None])
        if None not in generator.slots:
            break
    return seen


# week 2 day 7


@case("chunked_prefill.num_prefill_steps")
def prefill_steps(tiny: ModuleType) -> Tree:
    """720 prompts and budgets."""
    grid = product(range(0, 120), (0, 16, 64), (7, 64))
    return [tiny.num_prefill_steps(*numbers) for numbers in grid]


@case("chunked_prefill.chunked_attention_mask")
def chunk_mask(tiny: ModuleType) -> Tree:
    """127 of 1021 positions."""
    return tiny.chunked_attention_mask(300, 127, 1021)


@case("request.Request.try_prefill")
def prefilled(tiny: ModuleType) -> Tree:
    """97 tokens, chunks of 16."""
    request = request_of(tiny, prefill_max_step=16)
    chunks: list[Tree] = []
    while not request.is_prefill_done and len(chunks) < MAX_STEPS:
        chunks.append([request.try_prefill(), request.offset])
    key, value = request.cache[-1].fetch()
    return {"chunks": chunks, "first token": request.token_ids, "key": key, "value": value}


@case("batch.BatchGenerator.step")
def steps(tiny: ModuleType) -> Tree:
    """Finished in each step."""
    generator = generator_of(tiny)
    finished: list[Tree] = []
    while generator.has_work and len(finished) < MAX_STEPS:
        finished.append(plain(generator.step()))
    return finished


@case("batch.batch_generate")
def generated(tiny: ModuleType) -> Tree:
    """4 prompts in 2 slots."""
    prompts = [token_ids(length, seed) for seed, length in enumerate(PROMPT_LENGTHS)]
    params = [tiny.SamplingParams(max_tokens=3, temp=0.7, seed=seed) for seed in range(len(prompts))]
    return plain(tiny.batch_generate(small_model(tiny), ByteTokenizer(), prompts, 64, 2, 8, params))


@case("chunk_policy.select_optimal_chunk_size")
def chunk_sizes(tiny: ModuleType) -> Tree:
    """80 situations."""
    grid = product((1, 100, 2048, 2049), (1000, 100_000, 10**9), (0, 3, 4, 5, 6))
    return [tiny.select_optimal_chunk_size(*numbers, bytes_per_token=997) for numbers in grid]


@case("chunk_policy.AdaptiveChunker")
def adaptive_sizes(tiny: ModuleType) -> Tree:
    """30 measured chunks."""
    chunker = tiny.AdaptiveChunker()
    sizes = []
    for i in range(30):
        sizes.append([chunker.chunk_size(active, 5) for active in range(6)])
        chunker.record(16 + 7 * i, 0.01 + 0.004 * (i % 11))
    return sizes


@case("prefill_metrics.ChunkedPrefillMetrics")
def metrics(tiny: ModuleType) -> Tree:
    """3 requests of 20 tokens."""
    metrics = tiny.ChunkedPrefillMetrics()
    for request in range(3):
        metrics.record_arrival(request, 0.1 * request)
        metrics.record_chunk(16 + request, 0.02 + 0.01 * request)
        for i in range(20):
            metrics.record_token(request, 0.5 + request + 0.03 * i + 0.001 * i * i)
    return {
        "average chunk": metrics.average_chunk_seconds,
        "ratio": metrics.prefill_to_decode_ratio,
        "ttft": [metrics.ttft(request) for request in range(3)],
        "gaps": metrics.gaps(),
        "percentiles": [metrics.gap_percentile(percent) for percent in (0, 50, 99, 100)],
    }


@case("chunk_policy.PriorityScheduler")
def priorities(tiny: ModuleType) -> Tree:
    """40 requests, 2 classes."""
    scheduler = tiny.PriorityScheduler(max_passed_over=3)
    turns = []
    for request in range(40):
        scheduler.add(request, "batch" if request % 3 == 0 else "interactive")
        if request % 2:
            turns.append([scheduler.next(), len(scheduler)])
    return turns + [[scheduler.next(), len(scheduler)] for _ in range(len(scheduler) + 1)]


QUEUE = [{"id": id, "prompt_length": length} for id, length in enumerate((500, 30, 129, 64))]


@case("chunked_prefill.chunked_prefill_schedule")
def schedule(tiny: ModuleType) -> Tree:
    """4 prompts, 2 decodes."""
    return tiny.chunked_prefill_schedule(QUEUE, 2, token_budget=100, chunk_size=64)


@case("chunked_prefill.repaired_prefill_schedule")
def repaired_schedule(tiny: ModuleType) -> Tree:
    """4 prompts, 2 decodes."""
    return tiny.repaired_prefill_schedule(QUEUE, [9, 40], token_budget=100, chunk_size=64, output_length=7)
