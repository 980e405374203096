"""The inputs of `pdm run compare` for one ragged forward: week 3 day 3."""

from types import ModuleType
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from scripts.compare_cases import case, module, normal, small_model, token_ids
from scripts.compare_trees import Tree

if TYPE_CHECKING:
    from tiny_llm_ref import ModelRunner, ScheduledTokens

BLOCK_SIZE = 16
LANGUAGES = ("metal", "cuda")
Counts = tuple[int, ...]

# week 3 day 3


def entries_of(tiny: ModuleType) -> tuple["ScheduledTokens", ...]:
    """64 sequences with one to 40 tokens each; every third one samples."""
    entries = []
    for id in range(64):
        num_tokens = 1 + 11 * id % 40
        sequence = tiny.Sequence(id, range(100 + num_tokens))
        entries.append(tiny.ScheduledTokens(sequence, 37 + id % 50, num_tokens, id % 3 == 0))
    return tuple(entries)


@case("serving.forward_batch.flatten")
@case("serving.forward_batch.final_rows")
def flattened(tiny: ModuleType) -> Tree:
    """64 sequences."""
    forward_batch = module(tiny, "serving.forward_batch")
    entries = entries_of(tiny)
    token_ids, positions, starts = forward_batch.flatten(entries)
    return [x.tolist() for x in (token_ids, positions, starts, forward_batch.final_rows(entries, starts))]


@case("serving.forward_batch.pad_block_tables")
@case("serving.forward_batch.batch_slots")
def slots(tiny: ModuleType) -> Tree:
    """64 sequences."""
    forward_batch = module(tiny, "serving.forward_batch")
    tables = [
        module(tiny, "serving.block_manager").BlockTable(list(range(8 * id, 8 * id + 8 + id % 3)))
        for id in range(64)
    ]
    padded = forward_batch.pad_block_tables(tables)
    lengths = [1 + 11 * id % 40 for id in range(64)]
    positions = np.concatenate([np.arange(37 + id % 50, 37 + id % 50 + n) for id, n in enumerate(lengths)])
    starts, pool = np.cumsum([0, *lengths]), tiny.PagedKvPool(1, 600, BLOCK_SIZE)
    found = forward_batch.batch_slots(positions, starts, padded, np.full(64, 48), pool)
    return [padded.tolist(), found.tolist()]


def places(num_queries: Counts, contexts: Counts) -> list[np.ndarray]:
    """Block tables, query starts and context lengths."""
    longest = max(-(-S // BLOCK_SIZE) for S in contexts)
    tables = [[(7 * i + 3 * j) % 101 for j in range(longest)] for i in range(len(contexts))]
    return [np.array(x, np.int32) for x in (tables, np.cumsum([0, *num_queries]), contexts)]


def batch(num_queries: Counts, contexts: Counts, D: int = 64) -> list[mx.array]:
    """The arguments of paged attention: 6 heads over 2, 101 blocks."""
    keys, values = normal(101, BLOCK_SIZE, 2, D, seed=1), normal(101, BLOCK_SIZE, 2, D, seed=2)
    arrays = [mx.array(x) for x in places(num_queries, contexts)]
    return [normal(sum(num_queries), 6, D), keys, values, *arrays]


MIXED = (64, 1, 1, 1, 1, 1), (300, 100, 200, 50, 700, 30)


@case("paged_attention.paged_attention_simple")
def attended_alone(tiny: ModuleType) -> Tree:
    """A chunk, five decodes."""
    return module(tiny, "paged_attention").paged_attention_simple(*batch(*MIXED))


@case("paged_attention.paged_attention")
def attended_by_length(tiny: ModuleType) -> Tree:
    """A chunk, five decodes."""
    return module(tiny, "paged_attention").paged_attention(*batch(*MIXED))


@case("paged_attention.attend_alike")
def attended_alike(tiny: ModuleType) -> Tree:
    """Eight decodes."""
    contexts = tuple(100 + 31 * i for i in range(8))
    query, keys, values, *_ = batch((1,) * 8, contexts)
    tables, _, lengths = places((1,) * 8, contexts)
    attend = module(tiny, "paged_attention").attend_alike
    return attend(query[:, None], keys, values, tables, lengths, None)


@case("paged_attention.padded_slots")
def padded(tiny: ModuleType) -> Tree:
    """64 contexts."""
    contexts = tuple(1 + 37 * i % 500 for i in range(64))
    tables, _, lengths = places((1,) * 64, contexts)
    found = module(tiny, "paged_attention").padded_slots(tables, lengths, BLOCK_SIZE)
    return [row[:S].tolist() for row, S in zip(found, contexts, strict=True)]


def runner_of(tiny: ModuleType) -> "ModelRunner":
    """The small model on 60 blocks."""
    runner: ModelRunner = tiny.ModelRunner(small_model(tiny), tiny.BlockManager(60, BLOCK_SIZE))
    return runner


@case("serving.forward_batch.RaggedKvCache.attend")
@case("serving.model_runner.ModelRunner.run")
def run_mixed_steps(tiny: ModuleType) -> Tree:
    """3 prompts, 8 steps."""
    runner, sampled = runner_of(tiny), []
    sequences = [tiny.Sequence(id, token_ids(length, id)) for id, length in enumerate((50, 7, 30))]
    samplers = {each.id: tiny.make_sampler(0) for each in sequences}
    for _ in range(8):
        entries = []
        for each in sequences:
            num_tokens = min(16, each.num_uncomputed_tokens)
            runner.blocks.allocate(each, num_tokens)
            start = each.num_computed_tokens
            is_final = start + num_tokens == each.num_tokens
            entries.append(tiny.ScheduledTokens(each, start, num_tokens, is_final))
        tokens = runner.run(tiny.SchedulerOutput(tuple(entries)), samplers)
        for entry in entries:
            entry.sequence.num_computed_tokens = entry.end
            if entry.is_final:
                entry.sequence.token_ids.append(tokens[entry.sequence.id])
        sampled.append(sorted(tokens.items()))
    return sampled


@case("kernels.cpu.paged_attention.cut")
@case("kernels.cpu.paged_attention.head_of")
@case("kernels.fast_paged_attention.fast_paged_attention")
def attended_fast(tiny: ModuleType) -> Tree:
    """A chunk, five decodes."""
    return module(tiny, "kernels.fast_paged_attention").fast_paged_attention(*batch(*MIXED))


def emulated(tiny: ModuleType, language: str, num_queries: Counts, contexts: Counts) -> Tree:
    """Attention on the emulator."""
    target = module(tiny, "kernels.launch").Target(language, "emulator")
    attend = module(tiny, "kernels.paged_gpu").paged_attention_gpu
    return attend(*batch(num_queries, contexts, D=32), target=target)


for language in LANGUAGES:

    @case(f"kernels.{language}.paged_decode.paged_decode")
    def decodes_emulated(tiny: ModuleType, language: str = language) -> Tree:
        """Two decodes, emulated."""
        return emulated(tiny, language, (1, 1), (70, 33))

    @case(f"kernels.{language}.paged_attention.paged_attention")
    def chunk_emulated(tiny: ModuleType, language: str = language) -> Tree:
        """A chunk of 35, emulated."""
        return emulated(tiny, language, (35,), (70,))
