"""Week 4, day 1: quantized KV blocks."""

import itertools
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import replace
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from kernel_runtime.block_layout import BlockLayout, QuantizedBlocks
from kernel_runtime.launch import BACKWARD, FORWARD, Language, Target
from tests.support.batching import peak_bytes, small_model
from tests.support.bits import check_bits
from tests.support.budget import answers_of, run, sequence_of
from tests.support.check import check_close, check_equal, check_value_error, fail, normal
from tests.support.cpu_kernels import (
    check_threads,
    compiled_for,
    on_every_target,
    poison,
    threads,
    use_device,
)
from tests.support.engines import drafting_engine, overlapping_engine
from tests.support.fakes import FakeTokenizer, prompt_of
from tests.support.fences import FencedKernel
from tests.support.oracles import LOW_PRECISION, exact
from tests.support.precision import check_rounded_once, short_types
from tests.support.quantized_blocks import (
    QuantizedRagged,
    check_quantized,
    draw_quantized,
    expanded,
    group_size_of,
    in_chunks,
    num_words_of,
    packed,
    quantized_by_hand,
    unpacked,
)
from tests.support.quantized_fakes import GoodDrafter, QuantizedFakeModel, continuation
from tests.support.ragged import Attend, Shape, entries_of, output_of, random_shape
from tiny_llm import (
    BlockManager,
    Engine,
    ModelRunner,
    PrefixCachingBlockManager,
    QuantizedKvPool,
    SamplingParams,
    SchedulerConfig,
    Sequence,
    dequantize_heads,
    quantize_heads,
    quantized_paged_attention_simple,
)
from tiny_llm.kernels import dispatch_quantized_attention as fast_module
from tiny_llm.kernels.dispatch_quantized_attention import (
    dispatch_quantized_attention,
    quantized_paged_attention_cpu,
)
from tiny_llm.kernels.quantized_paged_gpu import HEAD_DIMS, quantized_paged_attention_gpu
from tiny_llm.ops.quantized_paged_attention import seen_entries
from tiny_llm.paging.quantized_batch import QuantizedBatch, QuantizedKvCache
from tiny_llm.paging.quantized_kv_pool import Tails, stored_tokens
from tiny_llm.scheduling.block_manager import BlockTable

# Task 1: a grid for each group

every_width = pytest.mark.parametrize("bits", [4, 8])
every_head = pytest.mark.parametrize("D", [32, 64, 96, 128, 192, 256])


def check_grids(words: mx.array, x: mx.array, bits: int, what: str) -> None:
    """Grids run from the smallest entry of a group to the largest, and each entry has the nearest code."""
    __tracebackhide__ = True
    D, groups = x.shape[-1], exact(x).reshape(*x.shape[:-1], -1, group_size_of(x.shape[-1]))
    check_equal((words.shape[-1], words.dtype), (num_words_of(D, bits), mx.uint32), f"words of {what}")
    codes, scales, biases = unpacked(words, D, bits)
    lowest, largest = groups.min(axis=-1), groups.max(axis=-1)
    ranges = largest - lowest
    mistakes = {
        "scales, the lower half of each word": ranges / (2**bits - 1),
        "the largest entries": largest,
        "the smallest entries of the head": np.broadcast_to(exact(x).min(-1, keepdims=True), lowest.shape),
    }
    check_close(mx.array(biases), lowest, f"biases of {what}", 1e-3, mistakes)
    mistakes = {
        "a range divided by 2**bits: between 2**bits values there is one step fewer": ranges / 2**bits,
        "the largest entry divided by the largest code": largest / (2**bits - 1),
    }
    check_close(mx.array(scales), ranges / (2**bits - 1), f"scales of {what}", 1e-3, mistakes)
    steps = (groups - biases[..., None]) / scales[..., None]
    error = np.abs(np.clip(steps, 0, 2**bits - 1) - codes.reshape(groups.shape))
    if error.max() > 0.501:
        place = np.unravel_index(error.argmax(), error.shape)
        fail(
            f"codes of {what}: entry {groups[place]:.6g} is {steps[place]:.3f} steps of the rounded scale "
            f"{scales[place[:-1]]:.6g} above the rounded bias {biases[place[:-1]]:.6g}, its code is "
            f"{codes.reshape(groups.shape)[place]:.0f}",
            "The nearest code is off by half a step at most. Compute codes from what is stored: scale and "
            "bias rounded to float16.",
        )


@every_width
@every_head
def test_task_1_entries_on_a_grid_have_its_codes(D: int, bits: int) -> None:
    random = np.random.default_rng(bits)
    shape = (3, 2, D // group_size_of(D))
    codes = random.integers(0, 2**bits, (*shape, group_size_of(D)))
    codes[..., 0], codes[..., -1] = 2**bits - 1, 0
    scales, biases = random.integers(1, 30, shape) / 64, random.integers(-40, 40, shape) / 16
    codes = codes.reshape(3, 2, D)
    words = packed(codes, scales, biases, bits)
    entries = expanded(codes, scales, biases)
    found = quantize_heads(mx.array(entries.astype(np.float32)), bits)
    check_equal((found.shape, found.dtype), (words.shape, mx.uint32), "shape and type of the words")
    found_codes, found_scales, found_biases = unpacked(found, D, bits)
    what = "entries that are on a grid"
    mistakes = {
        "biases: the scale is in the lower half": biases,
        "a range divided by 2**bits: between 2**bits values there is one step fewer": scales
        * (2**bits - 1)
        / 2**bits,
    }
    check_close(mx.array(found_scales), scales, f"scales of {what}", 1e-3, mistakes)
    check_close(mx.array(found_biases), biases, f"biases of {what}", 1e-6)
    check_close(mx.array(found_codes), codes, f"codes of {what}", 1e-6)
    check_equal(np.array(found).tolist(), words.tolist(), "words of entries that are on a grid")
    check_close(dequantize_heads(found, D), entries, "dequantized entries", 1e-6)


@every_width
@every_head
def test_task_1_no_entry_is_off_by_more_than_half_a_step(D: int, bits: int) -> None:
    for seed, (size, middle) in enumerate(((1, 0), (0.01, 0), (300, 50), (3, -2))):
        x = normal(41, 3, D, seed=seed) * size + middle
        check_grids(quantize_heads(x, bits), x, bits, f"entries around {middle}, {D=}, {bits=}")


@every_width
@every_head
def test_task_1_codes_are_those_that_mlx_reads(D: int, bits: int) -> None:
    x = normal(5, 3, D, seed=1) * 2 + 1
    words = quantize_heads(x, bits)
    codes, grids = words[..., : D * bits // 32], words[..., D * bits // 32 :].view(mx.float16)
    scales, biases = (grids[..., i::2].astype(mx.float32).reshape(15, -1) for i in (0, 1))
    by_mlx = mx.dequantize(
        codes.reshape(15, -1), scales, biases, group_size=group_size_of(D), bits=bits
    ).reshape(x.shape)
    found = dequantize_heads(words, D)
    check_equal(found.dtype, mx.float32, "type of dequantized entries")
    check_close(found, by_mlx, "dequantized entries, against mx.dequantize")
    check_close(found, x, "dequantized entries, against what was quantized", 0.1 if bits == 4 else 0.01)


def test_task_1_words_of_any_numbers() -> None:
    for D, bits in itertools.product((32, 64, 96), (4, 8)):
        random = np.random.default_rng(D)
        groups = D // group_size_of(D)
        codes = random.integers(0, 2**bits, (7, 2, D))
        scales, biases = (random.normal(size=(7, 2, groups)).astype(np.float16) for _ in range(2))
        expected = expanded(codes, scales.astype(np.float64), biases.astype(np.float64))
        mistakes = {
            "scale x (code + bias)": expanded(codes, scales, 0 * biases)
            + expanded(0 * codes + 1, scales * biases.astype(np.float64), 0 * biases),
            "scales and biases swapped": expanded(codes, biases, scales),
            "codes that have one scale and bias in each head": expanded(
                codes, *(np.repeat(x[..., :1], groups, axis=-1).astype(np.float64) for x in (scales, biases))
            ),
        }
        words = mx.array(packed(codes, scales, biases, bits))
        check_close(dequantize_heads(words, D), expected, f"entries, {D=}, {bits=}", 1e-6, mistakes)


@every_width
def test_task_1_codes_count_from_the_rounded_bias(bits: int) -> None:
    """A bias of 100 is rounded to a multiple of 1/16, which is many a step of a narrow group."""
    x = 100 + mx.random.uniform(0.02, 0.7, (37, 2, 64), key=mx.random.key(3))
    check_grids(quantize_heads(x, bits), x, bits, f"entries between 100 and 101, {bits=}")


@every_width
def test_task_1_entries_beyond_the_rounded_grid_get_its_ends(bits: int) -> None:
    x = mx.concatenate([mx.array([[100.031, 100.99]]), mx.linspace(100.1, 100.9, 30)[None]], axis=-1)
    x = mx.concatenate([x, -x])
    check_grids(quantize_heads(x, bits), x, bits, f"entries whose smallest is not a float16, {bits=}")


@every_width
@pytest.mark.parametrize("entry", [0.0, 1.0, -3.5, 1000.0])
def test_task_1_equal_entries(entry: float, bits: int) -> None:
    x = mx.full((2, 3, 96), entry)
    found = dequantize_heads(quantize_heads(x, bits), 96)
    mistakes = {"nan, as 0 / 0 is: no scale may be 0": np.full(x.shape, np.nan)}
    check_close(found, exact(x), f"groups of entries that are all {entry}", 1e-6, mistakes)
    _, scales, _ = unpacked(quantize_heads(x, bits), 96, bits)
    check_close(mx.array(scales), np.full(scales.shape, 2.0**-14), "scales of equal entries", 0)


@every_width
def test_task_1_a_group_narrower_than_the_smallest_grid(bits: int) -> None:
    x = 1 + 1e-5 * normal(3, 2, 64, seed=8)
    words = quantize_heads(x, bits)
    _, scales, _ = unpacked(words, 64, bits)
    check_close(mx.array(scales), np.full(scales.shape, 2.0**-14), "scales of entries much alike", 0)
    check_close(dequantize_heads(words, 64), x, "entries much alike", 2**-13)


@every_width
def test_task_1_a_group_is_quantized_as_alone(bits: int) -> None:
    x = normal(3, 2, 192, seed=4)
    louder = mx.concatenate([x[..., :64], 50 * x[..., 64:]], axis=-1)
    found, other = (dequantize_heads(quantize_heads(each, bits), 192)[..., :64] for each in (x, louder))
    check_close(found, other, "a group of 64 beside others, and beside others fifty times as large", 0)
    check_close(
        quantize_heads(x[1:2, 1], bits), quantize_heads(x, bits)[1:2, 1], "words of one head by itself", 0
    )


@short_types
@every_width
def test_task_1_short_types(bits: int, dtype: mx.Dtype) -> None:
    x = normal(9, 2, 64, seed=5, dtype=dtype)
    words = quantize_heads(x, bits)
    check_grids(words, x, bits, f"entries in {dtype}, {bits=}")
    num_other = int((words != quantize_heads(x.astype(mx.float32), bits)).sum().item())
    if num_other:
        fail(
            f"{num_other} of {words.size} words of entries in {dtype} are not those of the same in float32",
            "Compute scales, biases and codes in float32, whatever the type of x: cast x first.",
        )


@every_width
def test_task_1_axes_in_front(bits: int) -> None:
    x = normal(2, 3, 4, 64, seed=6)
    words = quantize_heads(x, bits)
    check_equal(words.shape, (2, 3, 4, num_words_of(64, bits)), "shape of the words of [2, 3, 4, 64]")
    check_close(words[1, 2], quantize_heads(x[1, 2], bits), "words of some heads by themselves", 0)
    check_equal(dequantize_heads(words, 64).shape, x.shape, "shape of the dequantized entries")
    single = quantize_heads(x[0, 0, 0], bits)
    check_close(single, words[0, 0, 0], "words of one head alone, [64]", 0)
    check_equal(dequantize_heads(single, 64).shape, (64,), "shape of its dequantized entries")
    spread = quantize_heads(x.swapaxes(0, 2), bits)
    check_close(spread, words.swapaxes(0, 2), "words of entries that do not lie side by side", 0)


@pytest.mark.parametrize("head_dim", [1, 16, 48, 80])
def test_task_1_other_head_dimensions_are_refused(head_dim: int) -> None:
    quantize_heads(normal(2, 64, seed=7), 8)
    with check_value_error(head_dim=head_dim):
        quantize_heads(normal(2, head_dim, seed=7), 8)
    with check_value_error(head_dim=head_dim):
        dequantize_heads(mx.zeros((2, 18), mx.uint32), head_dim)


@pytest.mark.parametrize("bits", [0, 2, 3, 5, 6, 16])
def test_task_1_other_numbers_of_bits_are_refused(bits: int) -> None:
    with check_value_error(bits=bits):
        quantize_heads(normal(2, 64, seed=7), bits)


@pytest.mark.parametrize("num_words", [0, 8, 10, 16, 18])
def test_task_1_words_that_are_no_head_are_refused(num_words: int) -> None:
    dequantize_heads(mx.zeros((2, 9), mx.uint32), 64)
    dequantize_heads(mx.zeros((2, 17), mx.uint32), 64)
    with check_value_error(num_words=num_words, head_dim=64):
        dequantize_heads(mx.zeros((2, num_words), mx.uint32), 64)


# Task 2: full blocks and a tail

SHAPES = [
    Shape((1,), (1,)),
    Shape((1,), (5,)),
    Shape((5,), (5,)),
    Shape((1,), (23,)),
    Shape((1,), (25,)),
    Shape((17,), (23,)),
    Shape((4,), (7,), 1, 1, 96, 1),
    Shape((4, 1, 9, 1), (11, 6, 9, 23)),
    Shape((1, 1, 1), (3, 17, 10), 6, 2, 64, 3),
    Shape((5, 5, 2), (5, 31, 40), 6, 3, 96, 16),
    Shape((1, 13), (64, 13), 3, 1, 128, 64),
    Shape((300,), (317,), 2, 1, 32, 16),
]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
every_pair = pytest.mark.parametrize("bits", list(itertools.product((4, 8), repeat=2)), ids=str)
MIXED = Shape((4, 1, 9, 1), (11, 6, 9, 23))


@every_pair
def test_task_2_entries_of_blocks_then_of_the_tail(bits: tuple[int, int]) -> None:
    floats = normal(3, 4, 2, 64, seed=1)
    words, entries = quantized_by_hand(exact(floats), bits[0])
    tail = normal(3, 2, 64, seed=2)
    for num_blocks, num_in_tail in ((3, 3), (1, 1), (3, 0), (0, 3), (0, 1)):
        blocks, rest = entries[:num_blocks].reshape(-1, 2, 64), exact(tail[:num_in_tail])
        expected = np.concatenate([blocks, rest]).swapaxes(0, 1)[None]
        mistakes = {
            "the tail first": np.concatenate([rest, blocks]).swapaxes(0, 1)[None],
            "the blocks in floats": np.concatenate(
                [exact(floats[:num_blocks]).reshape(-1, 2, 64), rest]
            ).swapaxes(0, 1)[None],
        }
        found = seen_entries(mx.array(words[:num_blocks]), tail[:num_in_tail])
        check_equal(found.dtype, mx.float32, "type of the entries")
        what = f"entries of {num_blocks} blocks and {num_in_tail} tokens, [1, H, S, D]"
        check_close(found, expected, what, 1e-6, mistakes)


@short_types
def test_task_2_dequantized_entries_are_not_rounded_again(dtype: mx.Dtype) -> None:
    words, entries = quantized_by_hand(exact(normal(3, 4, 2, 64, seed=1)), 8)
    tail = normal(3, 2, 64, seed=2, dtype=dtype)
    expected = np.concatenate([entries.reshape(-1, 2, 64), exact(tail)]).swapaxes(0, 1)[None]
    found = seen_entries(mx.array(words), tail)
    check_equal(found.dtype, mx.float32, f"type of the entries, the tail in {dtype}")
    check_close(found, expected, f"entries of blocks and of a tail in {dtype}", 1e-6)


@every_shape
def test_task_2_attention_to_blocks_and_tails(shape: Shape) -> None:
    check_quantized(quantized_paged_attention_simple, draw_quantized(shape))


@every_pair
def test_task_2_bits_of_keys_and_of_values(bits: tuple[int, int]) -> None:
    batch = draw_quantized(MIXED, bits=bits)
    check_quantized(quantized_paged_attention_simple, batch, f"attention, bits of keys and values {bits}")


@pytest.mark.parametrize("L", range(1, 12))
def test_task_2_queries_that_see_one_block_more_than_their_neighbors(L: int) -> None:
    """Chunks of each length that end before, at and behind the end of a block."""
    for S in range(max(L, 10), 14):
        shape = Shape((L,), (S,), 2, 1, 32, 4)
        what = f"attention of {L} queries, the last at position {S - 1}, in blocks of 4"
        check_quantized(quantized_paged_attention_simple, draw_quantized(shape), what)


def test_task_2_random_shapes_and_a_scale() -> None:
    for scale in (0.3, 0.0):
        check_quantized(quantized_paged_attention_simple, draw_quantized(MIXED), scale=scale)
    random = np.random.default_rng(2)
    for seed in range(12):
        shape, bits = random_shape(random, (32, 64)), random.choice([4, 8], 2)
        batch = draw_quantized(shape, bits=(int(bits[0]), int(bits[1])), seed=seed)
        check_quantized(quantized_paged_attention_simple, batch)


def test_task_2_blocks_that_several_share() -> None:
    shape = Shape((2, 1, 5), (13, 11, 19), block_size=5)
    check_quantized(quantized_paged_attention_simple, draw_quantized(shape, num_shared=2))


def test_task_2_the_same_rows_in_any_chunks() -> None:
    """What a query sees depends on its position: a sequence in one chunk, and token by token."""
    whole = draw_quantized(Shape((19,), (19,), 2, 1, 32, 4))
    expected = quantized_paged_attention_simple(*whole.arguments)
    query, blocks, layout, tails = whole.arguments
    for size in (1, 2, 4, 5, 7):
        parts = []
        for start in range(0, 19, size):
            end = min(start + size, 19)
            own = BlockLayout(layout.block_tables, mx.array([0, end - start]), mx.array([end]))
            rows, own_tails = query[start:end], tails[start:end]
            parts.append(quantized_paged_attention_simple(rows, blocks, own, own_tails))
        check_close(mx.concatenate(parts), expected, f"attention of 19 tokens in chunks of {size}")


def check_types(attend: Attend) -> None:
    """The result has the type of the query, and is rounded once."""
    __tracebackhide__ = True
    for dtype, tolerance in (each.values for each in LOW_PRECISION):
        batch = draw_quantized(Shape((2, 9), (41, 23), 2, 1, 64, 7), dtype, size=8.0, has_close_keys=True)
        result = attend(*batch.arguments)
        check_equal(result.dtype, dtype, f"type of attention of a query in {dtype}")
        expected = batch.each(lambda seen, S: seen // 7 * 7, None)
        check_rounded_once(result, expected, f"attention in {dtype}")
        query, blocks, *places = batch.arguments
        wide = attend(query.astype(mx.float32), blocks, *places)
        check_equal(wide.dtype, mx.float32, f"type of attention of a query in float32 to tails in {dtype}")
        check_close(wide, expected, f"attention of a query in float32 to tails in {dtype}")
        wide_values = blocks.tail_values.astype(mx.float32)
        mixed = attend(query, blocks._replace(tail_values=wide_values), *places)
        check_equal(mixed.dtype, dtype, f"type of attention to keys in {dtype} and values in float32")
        check_close(mixed, expected, f"attention to keys in {dtype}, values in float32", tolerance)


def test_task_2_types() -> None:
    check_types(quantized_paged_attention_simple)


def misplaced(batch: QuantizedRagged) -> Iterator[tuple[str, dict[str, Any], Items[Any]]]:
    """Arguments with one of them wrong, and what the error shows."""
    query, blocks, layout, tails = batch.arguments
    keys, values, tail_keys, tail_values = blocks

    def changed(**arrays: mx.array) -> Items[Any]:
        return query, blocks._replace(**arrays), layout, tails

    def moved(**arrays: mx.array) -> Items[Any]:
        return query, blocks, replace(layout, **arrays), tails

    yield "three query heads for two key heads", {"H_q": 3, "H": 2}, (query[:, :3], blocks, layout, tails)
    yield (
        "tails of other dimensions",
        {"tail_keys": tail_keys[..., :16].shape},
        changed(tail_keys=tail_keys[..., :16], tail_values=tail_values[..., :16]),
    )
    yield (
        "fewer blocks of values in floats",
        {"tail_values": tail_values[:-1].shape},
        changed(tail_values=tail_values[:-1]),
    )
    yield "fewer heads of keys", {"keys": keys[:, :, :1].shape}, changed(keys=keys[:, :, :1])
    yield "smaller blocks of values", {"values": values[:, :3].shape}, changed(values=values[:, :3])
    yield "keys that are no words", {"keys": keys.shape}, changed(keys=keys.astype(mx.int32))
    yield "fewer blocks of values", {}, changed(values=values[:-1])
    yield "words that are no head", {"num_words": 7}, changed(keys=mx.concatenate([keys] * 7, -1)[..., :7])
    whole = query, blocks, layout
    yield "a tail for each query but one", {"tails": tails[1:].shape}, (*whole, tails[1:])
    yield "tails of no whole numbers", {"tails": tails.shape}, (*whole, tails.astype(mx.float32))
    for tail in (-1, tail_keys.shape[0], 50_000_000):
        numbers = np.array(tails)
        numbers[3] = tail
        yield f"block of floats {tail}", {"tail": tail}, (*whole, mx.array(numbers))
    for block, place in ((-1, (1, 1)), (keys.shape[0], (3, 4)), (50_000_000, (0, 0))):
        tables = np.array(layout.block_tables)
        tables[place] = block
        yield f"block {block}", {"block_id": block}, moved(block_tables=mx.array(tables))
    yield "a table that is too short", {"seq_len": 23}, moved(block_tables=layout.block_tables[:, :4])
    lengths = np.array(layout.seq_lens)
    lengths[0] = 3
    yield "more queries than context", {"num_queries": 4, "seq_len": 3}, moved(seq_lens=mx.array(lengths))
    starts = [1, 4, 5, 14, 15]
    what = "queries that start behind the first"
    yield what, {"query_start_loc": starts}, moved(query_start_loc=mx.array(starts))


def check_what_does_not_fit(attend: Attend) -> None:
    batch = draw_quantized(MIXED)
    attend(*batch.arguments)
    for what, shown, arguments in misplaced(batch):
        with check_value_error(**shown, what=what):
            attend(*arguments)


def test_task_2_what_does_not_fit_is_refused() -> None:
    check_what_does_not_fit(quantized_paged_attention_simple)


# Task 3: where the floats go


def steps_of(*parts: tuple[Sequence, int]) -> tuple[tuple[Any, ...], list[Sequence]]:
    """The entries of a step, and its sequences, whose tokens count as computed from now on."""
    entries = entries_of(*parts)
    for entry in entries:
        entry.sequence.num_computed_tokens = entry.end
    return entries, [entry.sequence for entry in entries]


def numbers_of(tails: Tails, blocks: Items[int]) -> list[int]:
    return [int(tails.tail_of[block]) for block in blocks]


@pytest.mark.parametrize(
    ("computed", "num_tokens", "stored", "expected"),
    [
        (0, 7, 0, (0, 7)),
        (5, 1, 0, (5, 6)),
        (8, 5, 8, (8, 13)),
        (7, 1, 8, (8, 8)),
        (4, 6, 8, (8, 10)),
        (12, 3, 8, (12, 15)),
    ],
)
def test_task_3_tokens_that_a_step_stores(
    computed: int, num_tokens: int, stored: int, expected: tuple[int, int]
) -> None:
    (entry,) = entries_of((sequence_of(3, 30, computed), num_tokens))
    found = stored_tokens(entry, BlockTable(list(range(8)), stored))
    mistakes = {"all tokens of the step": (computed, computed + num_tokens)}
    what = f"what is stored of {num_tokens} tokens from {computed} on, {stored} of them shared"
    check_equal((max(found), found[0]), (expected[1], expected[0]), f"(end, start) of {what}", mistakes)


def test_task_3_a_block_of_floats_for_each_block() -> None:
    tails = Tails(20, 4)
    entries = entries_of((sequence_of(0, 30), 10), (sequence_of(1, 3), 3))
    tails.assign(entries, [BlockTable([7, 3, 11]), BlockTable([5, 6])])
    found = numbers_of(tails, [7, 3, 11, 5])
    mistakes = {"floats for the last block of each alone": [0, 0, 1, 2]}
    check_equal(len(set(found) - {0}), 4, f"different blocks of floats, without 0, among {found}", mistakes)
    check_equal(tails.num_tails, 5, "num_tails: 4 blocks, and that of the null slot")
    check_equal(int(tails.tail_of[20]), 0, "tail_of the null slot's block")
    full = tails.full_blocks(entries, [BlockTable([7, 3, 11]), BlockTable([5, 6])]).tolist()
    check_equal(full, [7, 3], "blocks that are full after it")


def test_task_3_a_sequence_keeps_the_floats_that_it_continues_in() -> None:
    tails = Tails(20, 4)
    first, second = sequence_of(0, 30), sequence_of(1, 30)
    tables = [BlockTable([7, 3, 11, 9]), BlockTable([5, 6, 2])]
    entries, _ = steps_of((first, 6), (second, 2))
    tails.assign(entries, tables)
    before = numbers_of(tails, [3, 5])
    for num_tokens in (1, 6):  # the second sequence comes first, and begins new blocks
        entries, _ = steps_of((second, num_tokens), (first, 1))
        tails.assign(entries, tables[::-1])
        found = numbers_of(tails, [3, 5])
        check_equal(found, before, f"floats of the two blocks that go on, after {num_tokens} tokens")
    others = numbers_of(tails, [6, 2])
    what = f"different blocks of floats: {found} are kept, {others} are new"
    check_equal(len({*found, *others, 0}), 5, what)


def test_task_3_what_is_new_takes_nothing_that_is_kept() -> None:
    """Whoever comes first in the step begins blocks; those behind it continue in theirs."""
    tails = Tails(20, 2)
    sequences = [sequence_of(id, 30) for id in range(5)]
    tables = [BlockTable([4 * id, 4 * id + 1, 4 * id + 2, 4 * id + 3]) for id in range(5)]
    entries, _ = steps_of(*((each, 1) for each in sequences[1:]))
    tails.assign(entries, tables[1:])
    kept = numbers_of(tails, [4, 8, 12, 16])
    entries, _ = steps_of((sequences[0], 7), *((each, 1) for each in sequences[1:]))
    tails.assign(entries, tables)
    check_equal(numbers_of(tails, [4, 8, 12, 16]), kept, "floats of the blocks that four go on in")
    new = numbers_of(tails, [0, 1, 2, 3])
    mistakes = {"floats that are kept, given to another": 0}
    check_equal(len({*new} - {*kept, 0}), 4, f"blocks of floats among {new} that no other has", mistakes)


def test_task_3_floats_of_those_who_left_are_used_again() -> None:
    tails, table = Tails(40, 4), BlockTable([7, 3, 11, 9])
    stayer = sequence_of(0, 60)
    for id in range(1, 12):
        guest = sequence_of(id, 30)
        guest_table = BlockTable([13 + id, 25 + id])
        for _ in range(2):
            entries, _ = steps_of((stayer, 1), (guest, 3))
            tails.assign(entries, [BlockTable([*table.block_ids, *range(26, 37)]), guest_table])
    mistakes = {"floats that are never free": 15}
    what = "num_tails, where no step needs more than three blocks of floats and that of the null slot"
    check_equal(tails.num_tails, 4, what, mistakes)


def test_task_3_a_block_of_floats_is_free_once_its_block_is_full() -> None:
    tails, table, sequence = Tails(40, 4), BlockTable(list(range(10))), sequence_of(0, 40)
    for num_tokens in (4, 4, 1, 3, 2, 2, 4):
        entries, _ = steps_of((sequence, num_tokens))
        tails.assign(entries, [table])
    check_equal(tails.num_tails, 2, "num_tails of a sequence that stores tokens in one block in each step")


def test_task_3_rejected_drafts_lead_back_into_an_earlier_block() -> None:
    tails = Tails(20, 4)
    sequence, other = sequence_of(0, 40), sequence_of(1, 40)
    tables = [BlockTable([7, 3, 11, 9]), BlockTable([5, 6, 2])]
    entries, _ = steps_of((sequence, 12), (other, 2))  # with drafts: blocks 7, 3 and 11
    tails.assign(entries, tables)
    check_equal(tails.full_blocks(entries, tables).tolist(), [7, 3, 11], "full blocks with drafts")
    kept = numbers_of(tails, [3, 5])
    sequence.num_computed_tokens = 6  # those from 6 on are rejected
    entries, _ = steps_of((other, 5), (sequence, 4))
    tails.assign(entries, tables[::-1])
    check_equal(numbers_of(tails, [3, 5]), kept, "floats of the block that drafts led out of, and of another")
    new = numbers_of(tails, [11, 6])
    check_equal(len({*kept, *new, 0}), 5, f"different blocks of floats: {kept} are kept, {new} are new")
    full = tails.full_blocks(entries, tables[::-1]).tolist()
    check_equal(full, [5, 3], "full blocks: block 3 once more, since its tokens have changed")


def test_task_3_shared_tokens_need_no_floats() -> None:
    tails = Tails(20, 4)
    sequence, other = sequence_of(0, 30, computed=8), sequence_of(1, 30)
    tables = [BlockTable([7, 3, 11], num_stored_tokens=8), BlockTable([5])]
    entries, _ = steps_of((sequence, 3), (other, 3))
    tails.assign(entries, tables)
    check_equal(len({*numbers_of(tails, [11, 5]), 0}), 3, "blocks of floats of two sequences, and 0")
    check_equal(tails.num_tails, 3, "num_tails, two shared blocks beside")
    check_equal(tails.full_blocks(entries, tables).tolist(), [], "full blocks")


def test_task_3_a_whole_prompt_that_is_shared() -> None:
    """Its last token is computed again, and stored nowhere."""
    tails = Tails(20, 4)
    owner, sequence = sequence_of(0, 30), sequence_of(1, 8, computed=7)
    shared = BlockTable([7, 3], num_stored_tokens=8)
    own = BlockTable([5, 6])
    entries, _ = steps_of((owner, 7))
    tails.assign(entries, [own])
    kept = numbers_of(tails, [6])
    entries, _ = steps_of((sequence, 1), (owner, 1))
    tails.assign(entries, [shared, own])
    check_equal(numbers_of(tails, [6]), kept, "floats of the sequence beside it")
    check_equal(tails.num_tails, 3, "num_tails: two blocks in the first step, and that of the null slot")
    check_equal(tails.full_blocks(entries, [shared, own]).tolist(), [6], "full blocks")


@pytest.mark.parametrize(
    ("block_size", "computed", "num_tokens", "full"),
    [
        (4, 0, 3, []),
        (4, 0, 4, [7]),
        (4, 3, 1, [7]),
        (4, 3, 2, [7]),
        (4, 3, 6, [7, 3]),
        (4, 4, 4, [3]),
        (4, 5, 2, []),
        (4, 2, 13, [7, 3, 11]),
        (1, 0, 3, [7, 3, 11]),
        (1, 2, 1, [11]),
        (16, 0, 15, []),
        (16, 15, 1, [7]),
    ],
)
def test_task_3_blocks_that_a_step_fills(
    block_size: int, computed: int, num_tokens: int, full: list[int]
) -> None:
    tails, table = Tails(20, block_size), BlockTable([7, 3, 11, 9])
    entries = entries_of((sequence_of(0, 40, computed), num_tokens))
    found = tails.full_blocks(entries, [table])
    blocks = table.block_ids
    mistakes = {
        "blocks that are not full too": blocks[
            computed // block_size : -(-(computed + num_tokens) // block_size)
        ],
        "blocks filled from their first slot alone": blocks[
            -(-computed // block_size) : (computed + num_tokens) // block_size
        ],
        "all full blocks of the sequence": blocks[: (computed + num_tokens) // block_size],
    }
    what = f"blocks of {block_size} that {num_tokens} tokens from {computed} on fill"
    check_equal(
        (found.tolist(), found.dtype), (full, np.dtype(np.int32)), f"{what}, and their type", mistakes
    )


def test_task_3_blocks_of_one_token() -> None:
    tails, table = Tails(20, 1), BlockTable([7, 3, 11, 9])
    sequence = sequence_of(0, 40)
    for num_tokens in (1, 1, 2):
        entries, _ = steps_of((sequence, num_tokens))
        tails.assign(entries, [table])
        check_equal(len(tails.full_blocks(entries, [table])), num_tokens, "full blocks of one token")
    check_equal(tails.num_tails, 3, "num_tails: two blocks of one token, and that of the null slot")


def test_task_3_two_of_them_share_nothing() -> None:
    tails, other = Tails(20, 4), Tails(20, 4)
    entries = entries_of((sequence_of(0, 30), 10))
    tails.assign(entries, [BlockTable([7, 3, 11])])
    check_equal((other.num_tails, other.tail_of.tolist()), (1, [0] * 21), "num_tails and tail_of of another")


@pytest.mark.parametrize("seed", range(8))
def test_task_3_random_steps(seed: int) -> None:
    """Sequences come, share, grow, are cut back and leave; floats that somebody needs are his alone."""
    random = np.random.default_rng(seed)
    size, most = int(random.integers(1, 6)), 0
    tails, free = Tails(400, size), list(random.permutation(400))
    running: list[tuple[Sequence, BlockTable]] = []
    holds: dict[tuple[int, int], int] = {}  # the block of floats by id and place of the block
    for id in range(60):
        if random.integers(3) == 0 and running:
            running.pop(int(random.integers(len(running))))
        if len(running) < 4:
            stored = size * int(random.integers(0, 3))
            sequence = sequence_of(id, 400, max(0, stored - int(random.integers(2)) * (stored > 0)))
            running.append((sequence, BlockTable([int(free.pop()) for _ in range(stored // size)], stored)))
        random.shuffle(running)  # type: ignore[arg-type]
        parts = [(each, int(random.integers(1, 3 * size + 1))) for each, _ in running]
        tables = [table for _, table in running]
        starts = [each.num_computed_tokens for each, _ in running]
        for (each, num_tokens), table in zip(parts, tables, strict=True):
            while len(table.block_ids) * size < each.num_computed_tokens + num_tokens:
                table.block_ids.append(int(free.pop()))
        entries, sequences = steps_of(*parts)
        tails.assign(entries, tables)
        needed: dict[tuple[int, int], int] = {}
        for sequence, table, start in zip(sequences, tables, starts, strict=True):
            first = max(start, table.num_stored_tokens)
            for position in range(first, sequence.num_computed_tokens):
                key = (sequence.id, position // size)
                needed[key] = int(tails.tail_of[table.block_ids[key[1]]])
                if position == first and first % size:
                    what = f"floats of sequence {sequence.id}, which goes on at {first} in a block of {size}"
                    check_equal(needed[key], holds[key], what)
        numbers = list(needed.values())
        most = max(most, len(numbers))
        check_equal(
            len({*numbers, 0}), len(numbers) + 1, f"different blocks of floats and 0, among {numbers}"
        )
        check_equal(tails.num_tails, most + 1, "num_tails: the most at once, and that of the null slot")
        check_equal(max(numbers, default=0) < tails.num_tails, True, f"{numbers} are below num_tails")
        holds = needed
        for sequence, table in running:  # rejected drafts, in this step's tokens
            start = starts[sequences.index(sequence)]
            kept = int(random.integers(max(start, table.num_stored_tokens), sequence.num_computed_tokens + 1))
            sequence.num_computed_tokens = max(kept, start + 1)
        if len(free) < 60:
            free += [block for block in range(400) if all(block not in t.block_ids for t in tables)]
            free = list(dict.fromkeys(each for each in free))


# Task 4: store, quantize, attend


def pool_of(num_tails: int, num_layers: int = 2, kv_bits: int = 8, **options: int) -> QuantizedKvPool:
    """A pool of 9 blocks of 4 with so many blocks of floats, that of the null slot included."""
    pool = QuantizedKvPool(num_layers, 9, 4, kv_bits, **options)
    pool.tails.num_tails = num_tails
    pool.reserve_tails()
    return pool


def quantized_entries(words: mx.array, D: int, bits: int) -> Any:
    """What the words of quantized blocks stand for."""
    check_equal(words.shape[-1], num_words_of(D, bits), f"words of a head of {D} in {bits} bits")
    return expanded(*unpacked(words, D, bits))


@pytest.mark.parametrize("kv_bits", [4, 8])
def test_task_4_tokens_are_stored_in_floats_and_full_blocks_quantized(kv_bits: int) -> None:
    pool = pool_of(4, kv_bits=kv_bits)
    key, value = normal(7, 2, 64, seed=1), normal(7, 2, 64, seed=2)
    slots = mx.array([4, 5, 6, 7, 12, 13, 14])  # a whole block in floats 1, three tokens in floats 3
    pool.write(1, key, value, slots, mx.array([5]), mx.array([1]))
    keys, values, tail_keys, tail_values = pool.blocks(1)
    check_equal((keys.shape[:3], keys.dtype), ((9, 4, 2), mx.uint32), "shape and type of the keys")
    for name, words, tail, new, bits in (
        ("keys", keys, tail_keys, key, 8),
        ("values", values, tail_values, value, kv_bits),
    ):
        in_floats = mx.concatenate([tail[1], tail[3, :3]])
        check_close(in_floats, new, f"{name} in floats", 0)
        what = f"{name} of block 5, which is full"
        check_equal(words.shape[-1], num_words_of(64, bits), f"words of a head, {name} of {kv_bits=}")
        found, expected = words[5], mx.array(quantized_by_hand(exact(new[:4]), bits)[0])
        mistakes = {"zeros: quantized before the tokens are stored": mx.zeros(expected.shape)}
        entries = mx.array(quantized_entries(found, 64, bits))
        wanted = expanded(*unpacked(expected, 64, bits))
        check_close(entries, wanted, what, 0.01 if bits == 8 else 0.2, {**mistakes, "0": 0 * wanted})
        check_close(entries, exact(new[:4]), f"{what}, against what was stored", 0.01 if bits == 8 else 0.2)
        others = mx.concatenate([words[:5], words[6:]])
        check_equal(int(others.astype(mx.int64).sum().item()), 0, f"sum of the {name} of all other blocks")


@pytest.mark.parametrize("kv_bits", [4, 8])
def test_task_4_a_block_is_quantized_as_quantize_heads_does(kv_bits: int) -> None:
    pool = pool_of(6, kv_bits=kv_bits)
    key, value = normal(12, 3, 96, seed=1), normal(12, 3, 96, seed=2)
    slots = mx.array([*range(8, 12), *range(20, 24), *range(4, 8)])
    pool.write(0, key, value, slots, mx.array([7, 0, 3]), mx.array([2, 5, 1]))
    keys, values, *_ = pool.blocks(0)
    for name, words, new, bits in (("keys", keys, key, 8), ("values", values, value, kv_bits)):
        expected = quantize_heads(new.reshape(3, 4, 3, 96), bits)
        check_close(words[mx.array([7, 0, 3])], expected, f"words of {name} in blocks 7, 0 and 3", 0)


def test_task_4_a_block_that_fills_token_by_token() -> None:
    pool, key, value = pool_of(3), normal(4, 2, 32, seed=1), normal(4, 2, 32, seed=2)
    none = mx.array([], mx.int32)
    for i in range(4):
        full = (mx.array([6]), mx.array([2])) if i == 3 else (none, none)
        pool.write(0, key[i : i + 1], value[i : i + 1], mx.array([8 + i]), *full)
        words = pool.blocks(0)[0]
        num_written = int((words != 0).any(axis=(1, 2, 3)).sum().item())
        check_equal(num_written, int(i == 3), f"quantized blocks after {i + 1} of 4 tokens")
    keys, values, *_ = pool.blocks(0)
    check_close(keys[6], quantize_heads(key, 8), "words of the keys", 0)
    check_close(values[6], quantize_heads(value, 8), "words of the values", 0)


def test_task_4_drafts_are_replaced_in_the_floats_and_quantized_again() -> None:
    pool, key, value = pool_of(3), normal(4, 2, 32, seed=1), normal(4, 2, 32, seed=2)
    places = mx.array([6]), mx.array([2])
    pool.write(0, key, value, mx.array([8, 9, 10, 11]), *places)
    new_key, new_value = normal(2, 2, 32, seed=3), normal(2, 2, 32, seed=4)
    pool.write(0, new_key, new_value, mx.array([10, 11]), *places)
    keys, values, *_ = pool.blocks(0)
    for name, words, old, new in (("keys", keys, key, new_key), ("values", values, value, new_value)):
        expected = quantize_heads(mx.concatenate([old[:2], new]), 8)
        check_close(words[6], expected, f"{name} of a block whose last two tokens were drafts", 0)


def test_task_4_layers_and_pools_have_nothing_in_common() -> None:
    pool, other = pool_of(3), pool_of(3)
    pair = normal(4, 2, 32, seed=1), normal(4, 2, 32, seed=2)
    pool.write(0, *pair, mx.array([4, 5, 6, 7]), mx.array([2]), mx.array([1]))
    before = [np.array(x) for x in pool.blocks(0)]
    check_equal(len(pool.state), 4, "arrays of a pool in which one layer was written to")
    pool.write(1, *(2 * x for x in pair), mx.array([4, 5, 6, 7]), mx.array([2]), mx.array([1]))
    same = all(np.array_equal(x, np.array(y)) for x, y in zip(before, pool.blocks(0), strict=True))
    check_equal(same, True, "whether layer 0 has what it had")
    check_close(pool.blocks(1)[0][2], quantize_heads(2 * pair[0], 8), "keys of layer 1", 0)
    check_equal(other.state, [], "state of another pool")
    with check_value_error(layer=0):
        other.blocks(0)
    pool.release()
    check_equal((pool.state, pool.tails.num_tails), ([], 1), "state and num_tails once it is released")


@short_types
def test_task_4_short_types(dtype: mx.Dtype) -> None:
    pool = pool_of(3, kv_bits=4)
    key, value = normal(4, 2, 64, seed=1, dtype=dtype), normal(4, 2, 64, seed=2, dtype=dtype)
    pool.write(0, key, value, mx.array([4, 5, 6, 7]), mx.array([2]), mx.array([1]))
    keys, values, tail_keys, tail_values = pool.blocks(0)
    check_equal([x.dtype for x in (tail_keys, tail_values)], [dtype] * 2, "types of the floats")
    check_close(tail_keys[1], key, "keys in floats", 0)
    check_close(keys[2], quantize_heads(key, 8), "words of the keys", 0)
    check_close(values[2], quantize_heads(value, 4), "words of the values", 0)


@pytest.mark.parametrize("D", [16, 48])
def test_task_4_what_cannot_be_quantized_is_refused_and_nothing_is_stored(D: int) -> None:
    pool, none = pool_of(3), mx.array([], mx.int32)
    pool.write(1, normal(1, 2, 32, seed=1), normal(1, 2, 32, seed=2), mx.array([4]), none, none)
    with check_value_error(head_dim=D):
        pool.write(0, normal(1, 2, D, seed=1), normal(1, 2, D, seed=2), mx.array([4]), none, none)
    with check_value_error(layer=2):
        pool.write(2, normal(1, 2, 32, seed=1), normal(1, 2, 32, seed=2), mx.array([4]), none, none)
    check_equal(len(pool.state), 4, "arrays of the pool after the errors")


def test_task_4_a_write_copies_no_pool() -> None:
    pool = QuantizedKvPool(1, 4000, 16)
    pool.tails.num_tails = 40
    pool.reserve_tails()
    new = [(normal(1, 4, 64, seed=i), normal(1, 4, 64, seed=50 + i)) for i in range(16)]
    places = mx.array([3000]), mx.array([3])
    pool.write(0, *new[0], mx.array([48]), *places)
    mx.eval(pool.state, new)
    num_bytes = sum(x.nbytes for x in pool.state)

    def decode() -> None:
        for i, pair in enumerate(new):
            pool.write(0, *pair, mx.array([48 + i]), *places)
            mx.eval(pool.state)

    peak = peak_bytes(decode)
    if peak >= num_bytes / 4:
        fail(f"16 writes to a pool of {num_bytes:,} bytes took {peak:,} bytes more")


def batch_of(
    pool: QuantizedKvPool, tables: Items[BlockTable], *parts: tuple[Sequence, int]
) -> QuantizedBatch:
    """The batch of a step; its tokens count as computed from now on."""
    output = output_of(*parts)
    by_id = {entry.sequence.id: table for entry, table in zip(output.entries, tables, strict=True)}
    batch = QuantizedBatch.of_quantized(output, by_id, pool)
    for entry in output.entries:
        entry.sequence.num_computed_tokens = entry.end
    return batch


def test_task_4_the_batch_of_a_step() -> None:
    pool = QuantizedKvPool(1, 20, 4)
    chunk, decode, whole = sequence_of(4, 13, 0), sequence_of(9, 6, 0), sequence_of(2, 3)
    tables = [BlockTable([7, 3, 11]), BlockTable([5, 9]), BlockTable([2])]
    batch_of(pool, tables[:2], (chunk, 5), (decode, 3))
    batch = batch_of(pool, tables, (chunk, 4), (decode, 1), (whole, 3))
    check_equal(batch.positions, [5, 6, 7, 8, 3, 0, 1, 2], "positions")
    check_equal(batch.slots.tolist(), [13, 14, 15, 44, 23, 8, 9, 10], "slots")
    block, other, first, last = (int(pool.tails.tail_of[b]) for b in (3, 11, 5, 2))
    check_equal(len({block, other, first, last, 0}), 5, "blocks of floats of four blocks, and 0")
    rows = [block] * 3 + [other, first] + [last] * 3
    check_equal(batch.tails.tolist(), rows, "tails")
    places = [1, 2, 3, 0, 3, 0, 1, 2]
    mistakes = {
        "slots of the pool": batch.slots.tolist(),
        "places within a block": places,
        "the first slot of each block of floats": [4 * tail for tail in rows],
    }
    slots = [4 * tail + place for tail, place in zip(rows, places, strict=True)]
    check_equal(batch.tail_slots.tolist(), slots, "tail_slots", mistakes)
    check_equal(batch.full_blocks.tolist(), [3, 5], "full_blocks")
    check_equal(batch.full_tails.tolist(), [block, first], "full_tails")
    named = ("tails", "tail_slots", "full_blocks", "full_tails")
    types = {name: getattr(batch, name).dtype for name in named}
    check_equal(types, dict.fromkeys(named, mx.int32), "types")
    if pool.tails.num_tails > pool.floats.num_blocks + 1:
        fail(f"{pool.tails.num_tails} blocks of floats are needed, the pool has {pool.floats.num_blocks}")


def test_task_4_a_step_that_fills_nothing() -> None:
    pool, sequence = QuantizedKvPool(1, 20, 4), sequence_of(4, 13)
    batch = batch_of(pool, [BlockTable([7])], (sequence, 3))
    check_equal((batch.full_blocks.shape, batch.full_tails.shape), ((0,), (0,)), "shapes of what is full")
    integers = [mx.issubdtype(x.dtype, mx.integer) for x in (batch.full_blocks, batch.full_tails)]
    check_equal(integers, [True, True], "whether they are whole numbers")


def test_task_4_what_is_stored_already_goes_to_the_null_slot() -> None:
    """A whole prompt is shared, and its block has floats no more; those beside it have theirs."""
    pool = QuantizedKvPool(1, 20, 4)
    giver, other, taker = sequence_of(0, 30), sequence_of(1, 30), sequence_of(2, 8, computed=7)
    tables = [BlockTable([7, 3, 11]), BlockTable([5, 9])]
    batch_of(pool, tables, (giver, 8), (other, 2))
    shared = BlockTable([7, 3], num_stored_tokens=8)
    batch = batch_of(pool, [shared, *tables], (taker, 1), (giver, 1), (other, 1))
    mistakes = {"where the shared block once had its floats": 4 * int(pool.tails.tail_of[3]) + 3}
    check_equal(batch.tail_slots.tolist()[0], 0, "slot of floats of a token that is stored already", mistakes)
    check_equal(batch.tails.tolist()[0], 0, "its tail: that of the null slot")
    check_equal(0 in batch.tail_slots.tolist()[1:], False, "whether another token goes there too")
    check_equal(batch.full_blocks.tolist(), [], "full blocks: the shared one is quantized already")


@pytest.mark.parametrize(
    ("block_ids", "shown"), [([7, 3], {"id": 4, "num_tokens": 9}), ([7, 20, 3], {"block_id": 20})], ids=str
)
def test_task_4_a_step_whose_blocks_are_not_there_is_refused(
    block_ids: list[int], shown: dict[str, int]
) -> None:
    pool = QuantizedKvPool(1, 20, 4)
    batch_of(pool, [BlockTable([7, 3, 11])], (sequence_of(4, 13), 9))
    with check_value_error(**shown, what=f"a step in which 9 tokens are in the blocks {block_ids} of 20"):
        batch_of(pool, [BlockTable(block_ids)], (sequence_of(4, 13), 9))


def test_task_4_stored_and_quantized_before_anybody_attends() -> None:
    pool = QuantizedKvPool(3, 9, 4, kv_bits=4)
    sequence, other = sequence_of(0, 9), sequence_of(1, 5)
    tables = [BlockTable([8, 2]), BlockTable([5])]
    batch = batch_of(pool, tables, (sequence, 6), (other, 3))
    query, key, value = normal(9, 6, 1, 32, seed=1), normal(9, 2, 1, 32, seed=2), normal(9, 2, 1, 32, seed=3)
    seen: list[tuple[mx.array, QuantizedBlocks, BlockLayout, mx.array]] = []

    def attention(query: mx.array, blocks: QuantizedBlocks, layout: BlockLayout, tails: mx.array) -> mx.array:
        copied = QuantizedBlocks(*map(mx.array, blocks))  # the next write may change an array in place
        seen.append((query, copied, layout, tails))
        return query * 2

    def not_asked(*_: Any, **__: Any) -> mx.array:
        fail("the attention function of the model was called: only that of the cache knows the blocks")

    result = QuantizedKvCache(pool, 1, batch, attention).attend(query, key, value, not_asked, "causal")
    check_close(result, 2 * query, "what attend returns, [T, H_q, 1, D]", tolerance=0)
    ((rows, (keys, values, tail_keys, tail_values), layout, own_tails),) = seen
    check_close(rows, query[:, :, 0], "queries that the attention gets, [T, H_q, D]", tolerance=0)
    for name, words, new, bits in (("keys", keys, key, 8), ("values", values, value, 4)):
        expected = dequantize_heads(quantize_heads(new[:4, :, 0], bits), 32)
        mistakes = {"zeros: quantized too late": mx.zeros(expected.shape)}
        found = dequantize_heads(words[8], 32)
        check_close(found, expected, f"quantized {name} of the block that is full", 0, mistakes)
    tails = batch.tails.tolist()
    for name, floats, new in (("keys", tail_keys, key), ("values", tail_values, value)):
        check_close(floats[tails[4], :2], new[4:6, :, 0], f"{name} of the tail of the first sequence", 0)
        check_close(floats[tails[6], :3], new[6:, :, 0], f"{name} of the tail of the second", 0)
    found_places = [x.tolist() for x in (*layout.numbers(), own_tails)]
    wanted = [[[8, 2], [5, 0]], [0, 6, 9], [6, 3], tails]
    check_equal(found_places, wanted, "block tables, query_start_loc, seq_lens and tails")
    for layer in (0, 2):
        with check_value_error(layer=layer):
            pool.blocks(layer)


def test_task_4_a_layer_of_the_batch_holds_what_the_pool_holds() -> None:
    pool, sequence = QuantizedKvPool(1, 9, 4), sequence_of(0, 9)
    batch = batch_of(pool, [BlockTable([8, 2])], (sequence, 6))
    cache = QuantizedKvCache(pool, 0, batch)
    check_equal((cache.state, cache.offset), ([], [0, 1, 2, 3, 4, 5]), "state and offset before")
    query, key = normal(6, 2, 1, 32, seed=1), normal(6, 1, 1, 32, seed=2)
    cache.attend(query, key, key, lambda query, *_, **__: query)
    check_equal(len(cache.state), 4, "arrays of the state: floats and quantized, keys and values")
    cache.release()
    check_equal((cache.state, pool.state), ([], []), "state once it is released, and the pool's")


class Twin:
    """A sequence that attends on the pool, and remembers its keys and values, [S, H, D]."""

    def __init__(self, id: int, num_blocks: int) -> None:
        self.sequence = sequence_of(id, 400)
        self.table = BlockTable([num_blocks - 1 - id - 4 * i for i in range((num_blocks - id - 1) // 4)])
        self.key, self.value = mx.zeros((0, 2, 32)), mx.zeros((0, 2, 32))

    def cut(self, num_tokens: int) -> None:
        """As when drafts are rejected."""
        self.sequence.num_computed_tokens = num_tokens
        self.key, self.value = self.key[:num_tokens], self.value[:num_tokens]

    def expected(self, query: mx.array, pool: QuantizedKvPool) -> mx.array:
        """What the newest tokens get, [L, H_q, D], each by itself."""
        rows, S = [], self.key.shape[0]
        quantized = [
            exact(dequantize_heads(quantize_heads(x, bits), 32))
            for x, bits in ((self.key, 8), (self.value, pool.kv_bits))
        ]
        for i in range(query.shape[0]):
            seen = S - query.shape[0] + i + 1
            full = seen // pool.block_size * pool.block_size
            key, value = (
                mx.array(np.concatenate([y[:full], exact(x)[full:seen]]).astype(np.float32))
                for x, y in zip((self.key, self.value), quantized, strict=True)
            )
            heads = (x.swapaxes(0, 1)[None] for x in (query[i : i + 1], key, value))
            rows.append(mx.fast.scaled_dot_product_attention(*heads, scale=32**-0.5)[0, :, 0])
        return mx.stack(rows)


def check_step(pool: QuantizedKvPool, parts: Items[tuple[Twin, int]], seed: int, what: str) -> None:
    """Let some sequences attend with new tokens in one step."""
    __tracebackhide__ = True
    tables = [twin.table for twin, _ in parts]
    batch = batch_of(pool, tables, *((twin.sequence, num_tokens) for twin, num_tokens in parts))
    T = sum(num_tokens for _, num_tokens in parts)
    query, key, value = (normal(T, H, 1, 32, seed=3 * seed + i) for i, H in enumerate((4, 2, 2)))
    cache = QuantizedKvCache(pool, 0, batch)
    found = cache.attend(query, key, value, lambda query, *_, **__: query, "causal")[:, :, 0]
    start, expected = 0, []
    for twin, num_tokens in parts:
        own = slice(start, start + num_tokens)
        twin.key = mx.concatenate([twin.key, key[own, :, 0]])
        twin.value = mx.concatenate([twin.value, value[own, :, 0]])
        expected.append(twin.expected(query[own, :, 0], pool))
        start += num_tokens
    check_close(found, mx.concatenate(expected), what, 1e-4)


@pytest.mark.parametrize("kv_bits", [4, 8])
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_task_4_attention_of_mixed_steps(block_size: int, kv_bits: int) -> None:
    pool = QuantizedKvPool(1, 160, block_size, kv_bits)
    random, twins = np.random.default_rng(block_size), [Twin(id, 160) for id in range(4)]
    for step in range(9):
        chosen = [twins[i] for i in random.permutation(4)[: random.integers(1, 5)]]
        for twin in twins:
            if twin not in chosen:  # it has left; whoever runs is in every step
                twin.cut(0)
        parts = [(twin, int(random.choice([1, 1, 2, 5, 9]))) for twin in chosen]
        check_step(pool, parts, step, f"attention in step {step}, blocks of {block_size}, {kv_bits=}")
        if step % 3 == 2:
            for twin, num_tokens in parts:
                twin.cut(twin.sequence.num_computed_tokens - int(random.integers(0, num_tokens)))


def test_task_4_floats_stay_when_there_are_more_of_them() -> None:
    pool, twins = QuantizedKvPool(1, 160, 4), [Twin(id, 160) for id in range(4)]
    sizes = []
    for step, count in enumerate((1, 2, 3, 4, 4)):
        check_step(
            pool, [(twin, 2 + 5 * (twin.sequence.id == 3)) for twin in twins[:count]], step, f"step {step}"
        )
        sizes.append(pool.floats.num_blocks)
    check_equal(sizes == sorted(sizes), True, f"whether the floats only grow: {sizes} blocks")


def run_step(runner: ModelRunner, *parts: tuple[Sequence, int]) -> dict[int, int]:
    """Give blocks, run a step, and note in the sequences what it computed and sampled."""
    for sequence, num_tokens in parts:
        assert runner.blocks.allocate(sequence, num_tokens)
    output = output_of(*parts)
    sampled = runner.run(output, {sequence.id: SamplingParams() for sequence, _ in parts}).token_ids
    for entry in output.entries:
        entry.sequence.num_computed_tokens = entry.end
        if entry.is_final:
            entry.sequence.token_ids.append(sampled[entry.sequence.id])
    return sampled


def check_continuations(block_size: int, *sequences: Sequence) -> None:
    __tracebackhide__ = True
    for each in sequences:
        prompt = each.token_ids[: each.num_prompt_tokens]
        expected = continuation(prompt, len(each.generated_ids), block_size)
        check_equal(each.generated_ids, expected, f"tokens of sequence {each.id}")


@pytest.mark.parametrize("sizes", [(9,), (3, 6), (4, 4, 1), (1,) * 9, (5, 4)], ids=str)
@pytest.mark.parametrize(("block_size", "kv_bits"), [(1, 8), (3, 4), (4, 4), (4, 8), (16, 8)])
def test_task_4_chunks_of_a_prompt(kv_bits: int, block_size: int, sizes: tuple[int, ...]) -> None:
    sequence = sequence_of(5, 9)
    runner = ModelRunner(QuantizedFakeModel(kv_bits), BlockManager(30, block_size), kv_bits=kv_bits)
    for size in sizes:
        run_step(runner, (sequence, size))
    for _ in range(4):
        run_step(runner, (sequence, 1))
    check_continuations(block_size, sequence)


def test_task_4_a_chunk_a_decode_and_a_whole_prompt() -> None:
    runner = ModelRunner(QuantizedFakeModel(8), BlockManager(30, 4), kv_bits=8)
    old, long, short = sequence_of(0, 4), sequence_of(1, 15), sequence_of(2, 2)
    run_step(runner, (old, 4))
    run_step(runner, (old, 1), (long, 5), (short, 2))
    run_step(runner, (long, 9), (short, 1), (old, 1))
    run_step(runner, (short, 1), (old, 1), (long, 1))
    check_continuations(4, old, long, short)


def test_task_4_blocks_change_hands() -> None:
    runner = ModelRunner(QuantizedFakeModel(4), BlockManager(10, 4), kv_bits=4)
    stayer = sequence_of(0, 5)
    run_step(runner, (stayer, 5))
    for id in range(1, 5):
        guest = sequence_of(id, 9 + id)
        run_step(runner, (guest, 3), (stayer, 1))
        run_step(runner, (stayer, 1), (guest, guest.num_uncomputed_tokens))
        check_continuations(4, guest, stayer)
        runner.blocks.free(guest)
    runner.close()
    check_equal(runner.pool.state, [], "arrays of the pool once the runner is closed")


def logits_of(attention: Attend | None, kv_bits: int | None, chunk: int) -> mx.array:
    """Logits after three prompts, [3, V], whose chunks are side by side."""
    runner, noted = ModelRunner(small_model(), BlockManager(60, 4), attention, kv_bits=kv_bits), {}
    sequences = [sequence_of(id, length) for id, length in enumerate((23, 9, 14))]

    def sample(logits: mx.array, batch: Any) -> mx.array:
        noted.update(zip(final, logits, strict=True))
        return mx.argmax(logits, axis=-1)

    runner.sampler = sample
    while left := [each for each in sequences if not each.generated_ids]:
        parts = [(each, min(chunk, each.num_uncomputed_tokens)) for each in left]
        final = [each.id for each, num_tokens in parts if num_tokens == each.num_uncomputed_tokens]
        run_step(runner, *parts)
    return mx.stack([noted[id] for id in range(3)])


def test_task_4_logits_of_a_model_are_close_to_those_in_floats() -> None:
    for chunk in (5, 64):
        expected = logits_of(None, None, chunk)
        for kv_bits, tolerance in ((8, 0.02), (4, 0.2)):
            found = logits_of(quantized_paged_attention_simple, kv_bits, chunk)
            what = f"logits with {kv_bits=}, prompts in chunks of {chunk}, against those in floats"
            check_close(found, expected, what, tolerance)


endless = FakeTokenizer(eos_token_ids=[])
JOBS = [
    (prompt_of(length, id), most)
    for id, (length, most) in enumerate(((23, 9), (3, 17), (14, 4), (8, 12), (1, 9)))
]


def check_answers(engine: Engine, jobs: Items[tuple[list[int], int]], block_size: int, what: str) -> None:
    """Each request gets what it gets alone."""
    __tracebackhide__ = True
    with engine:
        for prompt, most in jobs:
            engine.add_request(prompt, SamplingParams(max_tokens=most))
        found = answers_of(run(engine))
    expected = {i: continuation(prompt, most, block_size) for i, (prompt, most) in enumerate(jobs)}
    check_equal(found, expected, f"tokens of each request, {what}")


@pytest.mark.parametrize(
    ("kind", "kv_bits", "budget", "block_size"),
    [
        *((Engine, *case) for case in [(4, 5, 4), (8, 6, 1), (4, 9, 16), (8, 9, 4), (4, 64, 1), (8, 64, 16)]),
        *((overlapping_engine, *case) for case in [(4, 5, 4), (8, 9, 1), (8, 64, 16)]),
    ],
)
def test_task_4_engine_with_any_budget(
    kind: type[Engine], kv_bits: int, budget: int, block_size: int
) -> None:
    blocks = BlockManager(200 // block_size, block_size)
    config = SchedulerConfig(budget, 3)
    engine = kind(QuantizedFakeModel(kv_bits), endless, config, 64, blocks, kv_bits=kv_bits)
    check_answers(engine, JOBS, block_size, f"{budget=}, blocks of {block_size}")


@pytest.mark.parametrize("kind", [Engine, overlapping_engine], ids=["steps", "overlapping steps"])
def test_task_4_engine_whose_requests_share_prefixes(kind: type[Engine]) -> None:
    first = prompt_of(24, 7)
    prompts = [first, first, first[:16], [*first[:9], *prompt_of(5, 8)], first[:20], first[:17]]
    for block_size, most in ((4, 2), (3, 4)):
        blocks = PrefixCachingBlockManager(200 // block_size, block_size)
        engine = kind(QuantizedFakeModel(4), endless, SchedulerConfig(9, most), 64, blocks, kv_bits=4)
        jobs = [(prompt, 6) for prompt in prompts]
        check_answers(engine, jobs, block_size, f"blocks of {block_size}, at most {most} at once")


@pytest.mark.parametrize("kind", [BlockManager, PrefixCachingBlockManager])
def test_task_4_engine_that_preempts(kind: type[BlockManager]) -> None:
    for num_blocks in (9, 11):
        engine = Engine(
            QuantizedFakeModel(8),
            endless,
            SchedulerConfig(12, 4),
            36,
            kind(num_blocks, 4, overcommit=True),
            kv_bits=8,
        )
        check_answers(engine, JOBS, 4, f"{num_blocks} blocks for all")


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
def test_task_4_engine_with_drafts(block_size: int) -> None:
    for seed, kind in enumerate((BlockManager, PrefixCachingBlockManager)):
        engine = drafting_engine(
            QuantizedFakeModel(4),
            endless,
            SchedulerConfig(24, 3),
            64,
            kind(200 // block_size, block_size),
            drafter=GoodDrafter(block_size, seed),
            kv_bits=4,
        )
        check_answers(engine, JOBS, block_size, f"drafts of which a quarter is wrong, blocks of {block_size}")


# Task 5: codes in C++, and the choice of a kernel

CPU_SHAPES = [
    Shape((1,), (1,), 2, 1, 32, 16),
    Shape((1,), (255,), 4, 2, 32, 16),
    Shape((1, 1), (256, 257), 3, 1, 64, 16),
    Shape((1, 2), (700, 513), 6, 2, 96, 7),
    Shape((9, 1), (9, 1), 9, 1, 32, 3),
    Shape((31, 33, 64), (31, 40, 64), 2, 2, 32, 16),
    Shape((65, 1, 3, 100), (300, 90, 700, 100), 6, 3, 128, 11),
    Shape((4, 1, 9, 1), (11, 6, 9, 23), 4, 4, 96, 1),
    Shape((1, 130, 40), (340, 345, 70), 4, 2, 64, 70),
]


def on_cpu(*arguments: Any, scale: float | None = None) -> mx.array:
    query = arguments[0]
    return quantized_paged_attention_cpu(*arguments, query.shape[-1] ** -0.5 if scale is None else scale)


def check_on_cpu(
    batch: QuantizedRagged, what: str = "", scale: float | None = None, tolerance: float = 1e-5
) -> None:
    __tracebackhide__ = True
    poison(*batch.arguments[0].shape)
    check_quantized(on_cpu, batch, what, tolerance, scale)


@pytest.mark.parametrize("shape", CPU_SHAPES, ids=str)
def test_task_5_attention_to_blocks_and_tails(shape: Shape) -> None:
    check_on_cpu(draw_quantized(shape))


def test_task_5_scale() -> None:
    for scale in (0.3, 0.0):
        check_on_cpu(draw_quantized(Shape((65, 1), (71, 300), 4, 2, 32)), scale=scale)


@every_pair
@pytest.mark.parametrize("D", [32, 64, 96, 128, 160, 256])
def test_task_5_every_head_dimension_and_number_of_bits(D: int, bits: tuple[int, int]) -> None:
    check_on_cpu(draw_quantized(Shape((2, 34), (41, 71), 4, 2, D), bits=bits))


@pytest.mark.parametrize(("dtype", "tolerance"), [(mx.float32, 1e-5), *LOW_PRECISION])
def test_task_5_random_shapes(dtype: mx.Dtype, tolerance: float) -> None:
    random = np.random.default_rng(5)
    for seed in range(10):
        shape, bits = random_shape(random, (32, 64, 96), longest=150), random.choice([4, 8], 2)
        batch = draw_quantized(shape, dtype, (int(bits[0]), int(bits[1])), seed=seed)
        check_on_cpu(batch, tolerance=tolerance)


def test_task_5_blocks_that_several_share() -> None:
    shape = Shape((2, 1, 40), (613, 511, 619), block_size=5)
    check_on_cpu(draw_quantized(shape, num_shared=60), "attention to sixty shared blocks")


@pytest.mark.parametrize("L", [1, 3, 8, 9, 12])
def test_task_5_queries_that_see_one_block_more_than_their_neighbors(L: int) -> None:
    for S, heads in itertools.product(range(max(L, 10), 14), ((1, 1), (3, 1), (2, 2))):
        shape = Shape((L,), (S,), *heads, 32, 4)
        what = f"attention of {L} queries, the last at position {S - 1}, in blocks of 4"
        check_on_cpu(draw_quantized(shape), what)


@pytest.mark.parametrize("shape", [CPU_SHAPES[3], CPU_SHAPES[6]], ids=str)
def test_task_5_threads_do_not_matter(shape: Shape) -> None:
    batch = draw_quantized(shape)
    check_threads(lambda: on_cpu(*batch.arguments), f"attention, {shape}")
    with threads(4):
        check_on_cpu(batch, "attention with 4 threads")


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
@pytest.mark.parametrize("block_size", [1, 5, 16, 70])
def test_task_5_bits_do_not_depend_on_chunks_and_neighbors(block_size: int, dtype: mx.Dtype) -> None:
    batch = draw_quantized(Shape((45, 1, 40), (600, 300, 70), 6, 2, 64, block_size), dtype)
    expected = on_cpu(*batch.arguments)[:45]
    for size, beside in [*itertools.product((1, 7, 33), (False, True)), (45, True)]:
        others = "beside others" if beside else "alone"
        what = f"attention of 45 tokens, {size} at a time, {others}, blocks of {block_size}"
        check_bits(in_chunks(on_cpu, batch, size, beside), expected, what)


def test_task_5_nothing_behind_an_array_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "QUANTIZED_PAGED_ATTENTION"
    monkeypatch.setattr(fast_module, name, FencedKernel(getattr(fast_module, name)))
    for bits in ((4, 8), (8, 4)):
        check_on_cpu(draw_quantized(Shape((1, 40), (71, 71), 4, 2, 32), bits=bits))


@pytest.mark.parametrize("L", [1, 40])
def test_task_5_large_scores(L: int) -> None:
    check_on_cpu(draw_quantized(Shape((L, 1), (331, 600), 2, 1, 64), size=300.0), tolerance=1e-4)


@on_every_target
def test_task_5_other_processors(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = compiled_for(target, fast_module.QUANTIZED_PAGED_ATTENTION, monkeypatch)
    monkeypatch.setattr(fast_module, "QUANTIZED_PAGED_ATTENTION", kernel)
    check_on_cpu(draw_quantized(Shape((1, 40), (300, 71), 4, 2, 96)), f"attention on {target}")


def kernels_called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes which of them is called; there may be no GPU."""
    called: list[str] = []

    def noting(name: str, function: Attend) -> Attend:
        def call(*arguments: Any) -> mx.array:
            called.append(name)
            return function(*arguments)

        return call

    for name, function in (
        ("quantized_paged_attention_cpu", quantized_paged_attention_cpu),
        ("quantized_paged_attention_gpu", quantized_paged_attention_simple),
        ("quantized_paged_attention_simple", quantized_paged_attention_simple),
    ):
        monkeypatch.setattr(fast_module, name, noting(name, function), raising=False)
    return called


@pytest.mark.parametrize(
    ("device", "D", "expected"),
    [
        *(("cpu", D, "cpu") for D in (32, 64, 96, 160)),
        *(("gpu", D, "gpu") for D in HEAD_DIMS),
        ("gpu", 160, "simple"),
    ],
)
def test_task_5_the_kernel_is_that_of_the_device(
    device: str, D: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = kernels_called(monkeypatch)
    use_device(getattr(mx, device), monkeypatch)
    batch = draw_quantized(Shape((4, 1), (11, 6), D=D))
    for scale in (None, 0.3, 0.0):
        check_quantized(dispatch_quantized_attention, batch, scale=scale)
    check_equal(called, [f"quantized_paged_attention_{expected}"] * 3, f"called for {D=} on a {device}")


def test_task_5_tails_of_another_type_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    called = kernels_called(monkeypatch)
    use_device(mx.gpu, monkeypatch)
    query, (*pools, keys, values), *places = draw_quantized(MIXED, mx.float16).arguments
    wide_keys, wide_values = keys.astype(mx.float32), values.astype(mx.float32)
    for key, value in ((keys, values), (wide_keys, values), (keys, wide_values), (wide_keys, wide_values)):
        dispatch_quantized_attention(query, QuantizedBlocks(*pools, key, value), *places)
    expected = [f"quantized_paged_attention_{name}" for name in ("gpu", "simple", "simple", "simple")]
    check_equal(called, expected, "called for a query of float16, with both tails, one and none of that type")


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_task_5_which_is_used_for_a_type(dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    called = kernels_called(monkeypatch)
    use_device(mx.cpu, monkeypatch)
    query, (*pools, tail_keys, tail_values), *places = draw_quantized(MIXED, dtype).arguments
    wide_keys, wide_values = tail_keys.astype(mx.float32), tail_values.astype(mx.float32)
    for key, value, expected in (
        (tail_keys, tail_values, "cpu"),
        (wide_keys, wide_values, "cpu"),
        (wide_keys, tail_values, "simple"),
        (tail_keys, wide_values, "simple"),
    ):
        called.clear()
        result = dispatch_quantized_attention(query, QuantizedBlocks(*pools, key, value), *places)
        what = f"called for tails of keys {key.dtype} and values {value.dtype}, and the type of the result"
        check_equal((called, result.dtype), ([f"quantized_paged_attention_{expected}"], dtype), what)


def test_task_5_types(monkeypatch: pytest.MonkeyPatch) -> None:
    use_device(mx.cpu, monkeypatch)
    check_types(dispatch_quantized_attention)


def test_task_5_the_pool_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    use_device(mx.cpu, monkeypatch)
    query, (keys, values, *floats), *places = draw_quantized(Shape((1, 3), (11, 6), D=64)).arguments
    pools = [mx.concatenate([x, mx.zeros((9000, *x.shape[1:]), x.dtype)]) for x in (keys, values)]
    mx.eval(pools)
    blocks = QuantizedBlocks(*pools, *floats)
    peak = peak_bytes(lambda: mx.eval(dispatch_quantized_attention(query, blocks, *places)))
    what = f"whether 17 tokens in a pool of {pools[0].nbytes / 1e6:.0f} MB take less than 1 MB"
    check_equal(peak < 1_000_000, True, f"{what} (they took {peak / 1e6:.1f})")


def test_task_5_what_the_kernel_would_read_past_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    use_device(mx.cpu, monkeypatch)
    check_what_does_not_fit(dispatch_quantized_attention)


def test_task_5_logits_of_a_model() -> None:
    for chunk in (5, 64):
        found, expected = (
            logits_of(attention, 4, chunk)
            for attention in (dispatch_quantized_attention, quantized_paged_attention_simple)
        )
        check_close(
            found, expected, f"logits of prompts in chunks of {chunk}, as with array operations", 0.02
        )


# --- Metal and CUDA

GPU_SHAPES = [
    Shape((1,), (1,), 1, 1, 32, 1),
    Shape((1, 1, 1), (4, 7, 1), 2, 1, 32, 4),
    Shape((1, 8, 1), (71, 8, 5), 6, 2, 32, 16),
    Shape((9,), (9,), 3, 1, 32, 4),
    Shape((33, 32), (65, 32), 2, 2, 64, 16),
    Shape((40, 1, 9, 5), (77, 131, 90, 60), 4, 2, 32, 7),
    Shape((48, 70), (48, 75), 2, 1, 32, 40),
]
ORDERS = [FORWARD, BACKWARD, 2, 3]
need_metal = pytest.mark.skipif(not mx.metal.is_available(), reason="needs an Apple GPU (Metal)")
need_cuda = pytest.mark.skipif(not mx.cuda.is_available(), reason="needs an NVIDIA GPU (CUDA)")


def check_on_gpu(
    target: Target, shape: Shape, tolerance: float = 1e-5, scale: float | None = None, **options: Any
) -> None:
    """Compare attention on a target, of what is drawn with these options, with that in numpy."""
    __tracebackhide__ = True

    def attend(*arguments: Any, **named: Any) -> mx.array:
        return quantized_paged_attention_gpu(*arguments, target=target, **named)

    what = f"attention, {shape}, order {target.order}"
    check_quantized(attend, draw_quantized(shape, **options), what, tolerance, scale)


GPU_CHECKS: dict[str, Callable[[Target], None]] = {
    **{f"attention to blocks, {shape}": partial(check_on_gpu, shape=shape) for shape in GPU_SHAPES},
    **{
        f"head dimension {D}": partial(check_on_gpu, shape=Shape((2, 34), (41, 41), 2, 1, D, 16))
        for D in HEAD_DIMS
    },
    **{
        f"keys of {bits[0]} bits, values of {bits[1]}": partial(check_on_gpu, shape=GPU_SHAPES[4], bits=bits)
        for bits in ((8, 8), (4, 4), (4, 8))
    },
    "scale": partial(check_on_gpu, shape=GPU_SHAPES[4], scale=0.3),
    "large scores": partial(
        check_on_gpu, shape=Shape((2, 34), (83, 83), 2, 1, 64), size=300.0, tolerance=1e-4
    ),
    "scores far below 0": partial(
        check_on_gpu,
        shape=Shape((8, 34), (83, 83), 2, 1, 64),
        size=200.0,
        has_close_keys=True,
        tolerance=1e-4,
    ),
    **{
        str(each.values[0]).removeprefix("mlx.core."): partial(
            check_on_gpu,
            shape=Shape((1, 33), (300, 90), 4, 2, 64, 16),
            dtype=each.values[0],
            tolerance=each.values[1],
        )
        for each in LOW_PRECISION
    },
    "blocks that several share": partial(
        check_on_gpu, shape=Shape((2, 1, 40), (63, 51, 61), block_size=5, D=32), num_shared=4
    ),
}
each_gpu_check = pytest.mark.parametrize("check", GPU_CHECKS.values(), ids=GPU_CHECKS)


def check_orders(language: Language) -> None:
    """In every order of the threads the result must be the same to the last bit."""
    __tracebackhide__ = True
    shape, first = Shape((34, 2), (70, 70), 2, 1, 32, 16), None
    for order in ORDERS:
        target = Target(language, "emulator", order)
        check_on_gpu(target, shape)
        result = quantized_paged_attention_gpu(*draw_quantized(shape).arguments, target=target)
        first = result if first is None else first
        check_close(result, first, f"order {order} of the threads, against order {FORWARD}", tolerance=0)


def check_random_shapes(target: Target, seed: int, count: int = 5) -> None:
    """Shapes, widths, scales, types and orders drawn at random."""
    __tracebackhide__ = True
    random = np.random.default_rng(seed)
    types = [(mx.float32, 1e-5), *(parameter.values for parameter in LOW_PRECISION)]
    for number in range(count):
        shape = random_shape(random, HEAD_DIMS[:3], longest=40)
        dtype, tolerance = types[random.integers(3)]
        place = Target(target.language, target.device, int(random.integers(50)))
        scale = [None, 0.3][random.integers(2)]
        bits = [(8, 8), (8, 4)][random.integers(2)]
        check_on_gpu(place, shape, tolerance, scale, dtype=dtype, seed=number, bits=bits)


def check_bits_in_chunks(language: Language) -> None:
    """A query of a tile has the same bits wherever it is in the tile."""
    __tracebackhide__ = True
    batch, target = draw_quantized(Shape((40,), (75,), 2, 1, 32, 5)), Target(language, "emulator")

    def attend(*arguments: Any) -> mx.array:
        return quantized_paged_attention_gpu(*arguments, target=target)

    expected = attend(*batch.arguments)
    check_bits(in_chunks(attend, batch, 20, False), expected, "attention of 40 tokens, 20 at a time")


def check_everything_once(target: Target) -> None:
    """What the emulator is asked, asked of a GPU."""
    __tracebackhide__ = True
    for check in GPU_CHECKS.values():
        check(target)
    for shape in GPU_SHAPES:
        check_on_gpu(target, shape, scale=0.3)
    check_random_shapes(target, seed=6, count=40)


# Task 6: Metal


@each_gpu_check
def test_task_6_metal(check: Callable[[Target], None]) -> None:
    check(Target("metal", "emulator"))


def test_task_6_the_order_of_the_threads_does_not_matter() -> None:
    check_orders("metal")


def test_task_6_random_shapes() -> None:
    check_random_shapes(Target("metal", "emulator"), seed=4)


def test_task_6_bits_do_not_depend_on_the_tile() -> None:
    check_bits_in_chunks("metal")


@need_metal
def test_task_6_on_the_gpu() -> None:
    check_everything_once(Target("metal"))


# Task 7: CUDA


@each_gpu_check
def test_task_7_cuda(check: Callable[[Target], None]) -> None:
    check(Target("cuda", "emulator"))


def test_task_7_the_order_of_the_threads_does_not_matter() -> None:
    check_orders("cuda")


def test_task_7_random_shapes() -> None:
    check_random_shapes(Target("cuda", "emulator"), seed=5)


def test_task_7_bits_do_not_depend_on_the_tile() -> None:
    check_bits_in_chunks("cuda")


@need_cuda
def test_task_7_on_the_gpu() -> None:
    check_everything_once(Target("cuda"))
