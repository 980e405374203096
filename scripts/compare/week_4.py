"""The cases of `pdm run compare` for week 4."""

import mlx.core as mx
import numpy as np

from kernel_runtime.block_layout import BlockLayout, QuantizedBlocks
from scripts.compare import ranks
from scripts.compare.differences import Tree
from scripts.compare.inputs import ByteTokenizer, fitting, normal, small_model, token_ids
from scripts.compare.library import Case, Library, gpu_cases
from scripts.compare.week_3 import BLOCK_SIZE, LONG, MIXED, Counts, batch


def in_words(tiny: Library) -> Tree:
    """Heads in codes, and expanded again."""
    words = tiny.quantize_heads(normal(256, BLOCK_SIZE, 2, 64), 8)
    return [words.astype(mx.float32), tiny.dequantize_heads(words, 64)]


def quantized_batch(
    tiny: Library, counts: Counts, H_q: int, H: int, D: int
) -> tuple[mx.array, QuantizedBlocks, BlockLayout, mx.array]:
    """The arguments of attention to quantized blocks; the blocks of floats are numbered as the others."""
    query, keys, values, layout = batch(counts, H_q, H, D)
    numbers = np.array(layout.block_tables)
    tails = [
        numbers[i, (S - L + j) // BLOCK_SIZE]
        for i, (L, S) in enumerate(zip(*counts, strict=True))
        for j in range(L)
    ]
    blocks = QuantizedBlocks(tiny.quantize_heads(keys, 8), tiny.quantize_heads(values, 4), keys, values)
    return query, blocks, layout, mx.array(np.array(tails, np.int32))


def attended(tiny: Library) -> Tree:
    """Attention to quantized blocks, by array operations."""
    return tiny.quantized_paged_attention_simple(*quantized_batch(tiny, MIXED, 6, 2, 64))


def dispatched(tiny: Library) -> Tree:
    """Attention to quantized blocks with the heads of Qwen3-0.6B."""
    sizes = fitting((16, 8, 128), emulated=(2, 1, 32))
    return tiny.dispatch_quantized_attention(*quantized_batch(tiny, LONG, *sizes))


def gpu_attention(tiny: Library, target: Tree, counts: Counts) -> Tree:
    """Attention to quantized blocks by the kernels in Metal or CUDA."""
    return tiny.quantized_paged_attention_gpu(*quantized_batch(tiny, counts, 6, 2, 32), target=target)


def generated(tiny: Library) -> Tree:
    """Four answers of an engine with quantized blocks, three at a time."""
    prompts = [token_ids(length, seed) for seed, length in enumerate((19, 5, 29, 11))]
    blocks, config = tiny.BlockManager(60, 4), tiny.SchedulerConfig(24, 3)
    engine = tiny.Engine(small_model(tiny), ByteTokenizer(), config, 96, blocks, kv_bits=8)
    answers = engine.generate(prompts, tiny.SamplingParams(max_tokens=8))
    return [[list(each.token_ids), each.finish_reason] for each in answers]


def experts_of(tiny: Library, num_tokens: int) -> tuple[Tree, Tree]:
    """Experts that a router chooses, two of eight per token, and the rows by expert."""
    experts, weights = tiny.route(normal(num_tokens, 8), 2, True)
    return [experts, weights], tiny.group_by_expert(experts)


def routed(tiny: Library) -> Tree:
    """Experts of many tokens, and the rows by expert."""
    chosen, grouping = experts_of(tiny, 2000)
    return [*chosen, *grouping]


def multiplied(tiny: Library, function: str) -> Tree:
    """Rows of 32 tokens, each multiplied by the weights of its expert."""
    _, grouping = experts_of(tiny, 32)
    packed = mx.quantize(normal(8 * 256, 512, seed=3), group_size=64, bits=4)
    weights = tiny.ExpertWeights(tiny.QuantizedWeights(*packed, 64, 4), 8)
    return getattr(tiny, function)(normal(64, 512), grouping.experts, weights)


def routed_users(tiny: Library) -> Tree:
    """Eight conversations on two simulated engines, whose pools are too small for all of them."""
    engines = [
        tiny.Simulator(
            tiny.SchedulerConfig(64, 4), tiny.CostModel(0.01, 0.001), tiny.PrefixCachingBlockManager(40, 4)
        )
        for _ in range(2)
    ]
    fleet = tiny.Fleet(engines, tiny.CacheAware(balance_abs_threshold=2))
    fleet.run(tiny.converse(8, 3, 16, 8, 6, pause=0.05, every=0.03))
    return [mx.array(fleet.choices), mx.array(fleet.hit_rate)]


CASES = (
    # day 1
    Case("quantize_heads", "4,096 tokens", in_words),
    Case("quantized_paged_attention_simple", "A chunk, five decodes", attended),
    Case("QuantizedKvPool.write", "4 prompts", generated),
    Case("dispatch_quantized_attention", "A chunk, five decodes", dispatched),
    *gpu_cases("quantized_paged_decode", "Two decodes", gpu_attention, ((1, 1), (70, 33))),
    *gpu_cases("quantized_paged_attention", "35 queries", gpu_attention, ((35,), (70,))),
    # day 2
    Case("route", "2,000 tokens", routed),
    Case("grouped_matmul_simple", "64 rows", multiplied, ("grouped_matmul_simple",)),
    Case("dispatch_grouped_matmul", "64 rows", multiplied, ("dispatch_grouped_matmul",)),
    # day 3
    *ranks.CASES,
    # day 4
    Case("CacheAware.choose", "8 conversations", routed_users),
)
