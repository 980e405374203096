"""Week 3, day 3: one ragged forward."""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Items
from dataclasses import replace
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from kernel_runtime.block_layout import BlockLayout
from kernel_runtime.launch import BACKWARD, FORWARD, Language, Target
from tests.support.batching import peak_bytes
from tests.support.budget import sequence_of
from tests.support.causes import NOT_TO_BE_READ
from tests.support.check import check_close, check_equal, check_value_error, normal
from tests.support.cpu_kernels import (
    check_threads,
    compiled_for,
    on_every_target,
    poison,
    threads,
    use_device,
)
from tests.support.evaluations import num_operations
from tests.support.fakes import FakeModel, continuation, next_token, prompt_of
from tests.support.fences import FencedKernel
from tests.support.gpu_scan import scan_like_a_gpu
from tests.support.oracles import LOW_PRECISION, Array, exact, expected_kept, log_softmax
from tests.support.pages import SharingBlocks
from tests.support.pieces import check_pieces
from tests.support.precision import check_rounded_once
from tests.support.ragged import (
    Attend,
    Ragged,
    Shape,
    causal,
    check_paged,
    draw,
    entries_of,
    output_of,
    random_shape,
)
from tests.support.sampling import numbers_of, probabilities, token_at
from tests.support.schedules import VOCAB_SIZE, random_qwen3
from tiny_llm import (
    BlockManager,
    ForwardBatch,
    ModelRunner,
    PagedKvPool,
    SamplingParams,
    SchedulerOutput,
    Sequence,
    paged_attention_simple,
)
from tiny_llm.engine.batch_sampler import draw as draw_tokens
from tiny_llm.engine.batch_sampler import kept_tokens, sample_batch
from tiny_llm.engine.sampling_batch import BatchSampler, SamplingBatch
from tiny_llm.kernels import dispatch_paged_attention as fast_module
from tiny_llm.kernels.dispatch_paged_attention import dispatch_paged_attention, paged_attention_cpu
from tiny_llm.kernels.gpu_sizes import HEAD_DIMS
from tiny_llm.kernels.paged_gpu import paged_attention_gpu
from tiny_llm.model.engine_operations import EngineOperations
from tiny_llm.ops import paged_attention as array_module
from tiny_llm.ops.paged_attention import attend_alike, padded_slots, paged_attention
from tiny_llm.paging.forward_batch import (
    RaggedKvCache,
    batch_slots,
    flatten,
    logits_indices,
    pad_block_tables,
)
from tiny_llm.scheduling.block_manager import BlockTable

# Task 1: a step end to end


def three_entries() -> tuple[Any, ...]:
    """A chunk in the middle of a prompt, a decode, and a whole prompt."""
    chunk, decode, whole = sequence_of(4, 13, 5), sequence_of(9, 6, 7, [31, 32]), sequence_of(2, 3)
    return entries_of((chunk, 4), (decode, 1), (whole, 3))


def test_task_1_tokens_of_all_entries_in_a_row() -> None:
    token_ids, positions, query_start_loc = flatten(three_entries())
    expected = [*prompt_of(13, 4)[5:9], 32, *prompt_of(3, 2)]
    mistakes = {
        "the beginnings of the prompts": [*prompt_of(13, 4)[:4], prompt_of(6, 9)[0], *prompt_of(3, 2)]
    }
    check_equal(token_ids.tolist(), expected, "token ids of a chunk, a decode and a whole prompt", mistakes)
    mistakes = {
        "counted through all entries": list(range(8)),
        "each entry from 0": [0, 1, 2, 3, 0, 0, 1, 2],
        "each entry at its start": [5, 5, 5, 5, 7, 0, 0, 0],
    }
    check_equal(positions.tolist(), [5, 6, 7, 8, 7, 0, 1, 2], "positions", mistakes)
    mistakes = {"the lengths, not added up": [0, 4, 1, 3], "without the end": [0, 4, 5]}
    check_equal(query_start_loc.tolist(), [0, 4, 5, 8], "query_start_loc", mistakes)


def test_task_1_one_token_of_one_sequence() -> None:
    arrays = flatten(entries_of((sequence_of(3, 1), 1)))
    found = [x.tolist() for x in arrays]
    check_equal(found, [prompt_of(1, 3), [0], [0, 1]], "token ids, positions and query_start_loc")
    check_equal({str(x.dtype) for x in arrays}, {"int32"}, "their types")


@pytest.mark.parametrize("seed", range(5))
def test_task_1_random_steps(seed: int) -> None:
    random = np.random.default_rng(seed)
    parts = []
    for id in range(int(random.integers(1, 9))):
        length = int(random.integers(1, 30))
        computed = int(random.integers(0, length))
        parts.append((sequence_of(id, length, computed), int(random.integers(1, length - computed + 1))))
    entries = entries_of(*parts)
    token_ids, positions, query_start_loc = flatten(entries)
    by_hand = [(entry.sequence.token_ids[p], p) for entry in entries for p in range(entry.start, entry.end)]
    found = list(zip(token_ids.tolist(), positions.tolist(), strict=True))
    check_equal(found, by_hand, "(token id, position) of each token")
    found_lengths = np.diff(query_start_loc).tolist()
    check_equal(found_lengths, [each.num_tokens for each in entries], "distances of query_start_loc")
    last = [sum(each.num_tokens for each in entries[: i + 1]) - 1 for i in range(len(entries))]
    expected = [row for row, entry in zip(last, entries, strict=True) if entry.is_final]
    mistakes = {"the last row of every entry, whether it samples or not": last}
    check_equal(logits_indices(entries, query_start_loc).tolist(), expected, "logits_indices", mistakes)


def test_task_1_logits_indices() -> None:
    entries = three_entries()
    query_start_loc = flatten(entries)[2]
    mistakes = {"the last of every entry": [3, 4, 7], "the first of each": [4, 5], "one too far": [5, 8]}
    check_equal(logits_indices(entries, query_start_loc).tolist(), [4, 7], "logits_indices", mistakes)
    none = logits_indices(entries[:1], query_start_loc[:2])
    what = "final rows of a step in which nothing is sampled, and their type"
    check_equal((none.tolist(), str(none.dtype)), ([], "int32"), what)


def test_task_1_block_tables_of_different_lengths() -> None:
    tables = [BlockTable([7, 3, 11]), BlockTable([5]), BlockTable([2, 8])]
    padded = pad_block_tables(tables)
    check_equal(padded.tolist(), [[7, 3, 11], [5, 0, 0], [2, 8, 0]], "block tables, filled up")
    check_equal(str(padded.dtype), "int32", "type of the block tables")
    padded[0, 0] = 99
    after = [each.block_ids for each in tables]
    check_equal(after, [[7, 3, 11], [5], [2, 8]], "blocks of the tables afterwards")


def slots_by_hand(
    positions: Items[int], tables: Items[Items[int]], owners: Items[int], size: int
) -> list[int]:
    return [tables[i][p // size] * size + p % size for i, p in zip(owners, positions, strict=True)]


def test_task_1_slots() -> None:
    pool = PagedKvPool(1, 12, 5)
    tables = np.array([[7, 3, 11], [5, 9, 0], [2, 0, 0]], np.int32)
    positions, starts = np.array([5, 6, 7, 8, 7, 0, 1, 2]), np.array([0, 4, 5, 8])
    slots = batch_slots(positions, starts, tables, np.zeros(3, int), pool)
    owners = [0, 0, 0, 0, 1, 2, 2, 2]
    mistakes = {
        "slots of the first sequence's blocks": slots_by_hand(positions, tables, [0] * 8, 5),
        "the positions": positions.tolist(),
        "places within the blocks": (positions % 5).tolist(),
        "block x block_size + position: the place within the block is position % block_size": [
            slot - p % 5 + p
            for slot, p in zip(slots_by_hand(positions, tables, owners, 5), positions, strict=True)
        ],
    }
    expected = [15, 16, 17, 18, 47, 10, 11, 12]
    check_equal(expected, slots_by_hand(positions.tolist(), tables.tolist(), owners, 5), "by hand, both ways")
    check_equal(slots.tolist(), expected, "slots", mistakes)
    check_equal(str(slots.dtype), "int32", "type of the slots")


@pytest.mark.parametrize("block_size", [1, 3, 7, 16])
def test_task_1_random_slots(block_size: int) -> None:
    random = np.random.default_rng(block_size)
    pool = PagedKvPool(1, 60, block_size)
    ends = random.integers(1, 40, 6)
    lengths = [int(random.integers(1, end + 1)) for end in ends]
    tables = random.permutation(60 * 41)[: 6 * 40].reshape(6, 40) % 60
    positions = [p for end, length in zip(ends, lengths, strict=True) for p in range(end - length, end)]
    owners = np.repeat(np.arange(6), lengths).tolist()
    starts = np.cumsum([0, *lengths])
    slots = batch_slots(np.array(positions), starts, tables.astype(np.int32), np.zeros(6, int), pool)
    check_equal(slots.tolist(), slots_by_hand(positions, tables, owners, block_size), "slots")


def test_task_1_what_is_stored_already_goes_to_the_null_slot() -> None:
    pool = PagedKvPool(1, 12, 4)
    tables = np.array([[7, 3], [5, 9], [2, 0]], np.int32)
    positions, starts = np.array([6, 7, 6, 7, 3, 4]), np.array([0, 2, 4, 6])
    slots = batch_slots(positions, starts, tables, np.array([4, 8, 4]), pool).tolist()
    mistakes = {
        "written into blocks that others read": [14, 15, 38, 39, 11, 0],
        "the null slot for all of a sequence that shares blocks": [48] * 6,
        "the token behind the stored ones in the null slot too": [14, 15, 48, 48, 48, 48],
        "the null slot for the first token of each entry alone": [14, 15, 48, 39, 48, 0],
    }
    what = "slots where 4, 8 and 4 tokens were stored before"
    check_equal(slots, [14, 15, 48, 48, 48, 0], what, mistakes)


def tables_of(blocks: BlockManager, *sequences: Sequence) -> Mapping[int, BlockTable]:
    """Blocks for all tokens of the sequences."""
    for sequence in sequences:
        if sequence.id not in blocks.tables:
            assert blocks.allocate(sequence, sequence.num_tokens)
    return blocks.tables


def test_task_1_the_batch_of_a_step() -> None:
    entries = three_entries()
    pool = PagedKvPool(1, 20, 4)
    tables = {4: BlockTable([7, 3, 11]), 9: BlockTable([5, 9]), 2: BlockTable([2])}
    batch = ForwardBatch.of(SchedulerOutput(entries), tables, pool)
    expected_ids = [[id] for id in [*prompt_of(13, 4)[5:9], 32, *prompt_of(3, 2)]]
    check_equal(batch.token_ids.tolist(), expected_ids, "token ids, a row each")
    check_equal(batch.positions, [5, 6, 7, 8, 7, 0, 1, 2], "positions")
    check_equal(batch.slots.tolist(), [13, 14, 15, 44, 39, 8, 9, 10], "slots")
    check_equal(batch.query_start_loc.tolist(), [0, 4, 5, 8], "query_start_loc")
    check_equal(batch.seq_lens.tolist(), [9, 8, 3], "seq_lens")
    check_equal(batch.block_tables.tolist(), [[7, 3, 11], [5, 9, 0], [2, 0, 0]], "block tables")
    check_equal(batch.logits_indices.tolist(), [4, 7], "logits_indices")


@pytest.mark.parametrize(
    ("block_ids", "shown"),
    [([7, 3], {"id": 4, "num_tokens": 9}), ([7, -1, 3], {"block_id": -1}), ([7, 20, 3], {"block_id": 20})],
    ids=str,
)
def test_task_1_a_step_whose_blocks_are_not_there_is_refused(
    block_ids: list[int], shown: dict[str, int]
) -> None:
    pool = PagedKvPool(1, 20, 4)
    tables = {4: BlockTable([7, 3, 11]), 9: BlockTable([5, 9]), 2: BlockTable([2])}
    ForwardBatch.of(SchedulerOutput(three_entries()), tables, pool)
    with check_value_error(**shown, what=f"a step in which 9 tokens are in the blocks {block_ids} of 20"):
        ForwardBatch.of(SchedulerOutput(three_entries()), {**tables, 4: BlockTable(block_ids)}, pool)


# Tasks 2 and 3: attention to blocks, in array operations

SHAPES = [
    Shape((1,), (1,)),
    Shape((7,), (7,)),
    Shape((1,), (23,)),
    Shape((3,), (5,), 1, 1, 7, 1),
    Shape((4, 1, 9, 1), (11, 6, 9, 23)),
    Shape((1, 1, 1), (3, 17, 10), 6, 2, 16, 3),
    Shape((5, 5, 2), (5, 31, 40), 6, 3, 24, 16),
    Shape((1, 13), (64, 13), 3, 1, 80, 64),
]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
MIXED = Shape((4, 1, 9, 1), (11, 6, 9, 23))


def misplaced(layout: BlockLayout) -> Iterator[tuple[str, dict[str, Any], BlockLayout]]:
    """The layout of MIXED with one number that leads astray, and what the error shows."""
    num_blocks = sum(-(-S // MIXED.block_size) for S in MIXED.contexts) + 3
    for what, changed, place, number, shown in (
        ("a block of -1", 0, (1, 1), -1, {"block_id": -1}),
        ("a block just behind the pool", 0, (3, 4), num_blocks, {"block_id": num_blocks}),
        ("a block far behind the pool", 0, (0, 0), 50_000_000, {"block_id": 50_000_000}),
        ("more queries than context", 2, 0, 3, {"num_queries": 4, "seq_len": 3}),
        ("a context of no tokens", 2, 3, 0, {"seq_len": 0}),
        ("a context longer than its table", 2, 1, 36, {"seq_len": 36}),
        ("queries that start behind the first", 1, 0, 1, {"query_start_loc": [1, 4, 5, 14, 15]}),
        ("queries behind the last", 1, 4, 16, {"query_start_loc": [0, 4, 5, 14, 16]}),
        ("a sequence without queries", 1, 2, 4, {"query_start_loc": [0, 4, 4, 14, 15]}),
        ("queries that start before those before", 1, 2, 3, {"query_start_loc": [0, 4, 3, 14, 15]}),
    ):
        arrays = layout.numbers()
        arrays[changed][place] = number
        yield what, shown, BlockLayout(*map(mx.array, arrays))
    tables = layout.block_tables
    yield "a table that is too short", {"seq_len": 23}, replace(layout, block_tables=tables[:, :4])
    yield "tables of no whole numbers", {}, replace(layout, block_tables=tables.astype(mx.float32))


def check_what_does_not_fit(attend: Attend) -> None:
    """Shapes that contradict each other."""
    query, keys, values, layout = draw(MIXED).arguments
    attend(query, keys, values, layout)
    with check_value_error(H_q=3, H=2):
        attend(query[:, :3], keys, values, layout)
    with check_value_error(query=query.shape, keys=(15, 5, 2, 16)):
        attend(query, keys[..., :16], values[..., :16], layout)
    with check_value_error(values=values[:4].shape):
        attend(query, keys, values[:4], layout)
    with check_value_error(query_start_loc=(4,)):
        attend(query, keys, values, replace(layout, query_start_loc=layout.query_start_loc[:-1]))
    with check_value_error(block_tables=(3, 7)):
        attend(query, keys, values, replace(layout, block_tables=layout.block_tables[:3]))
    for what, shown, changed in misplaced(layout):
        with check_value_error(**shown, what=what):
            attend(query, keys, values, changed)


def check_random_shapes_and_a_scale(attend: Attend, seed: int) -> None:
    __tracebackhide__ = True
    for scale in (0.3, 0.0):
        check_paged(attend, draw(MIXED), scale=scale)
    random = np.random.default_rng(seed)
    for number in range(12):
        check_paged(attend, draw(random_shape(random, (8, 24)), seed=number))


@every_shape
def test_task_2_attention_to_blocks(shape: Shape) -> None:
    check_paged(paged_attention_simple, draw(shape))


def test_task_2_random_shapes_and_a_scale() -> None:
    check_random_shapes_and_a_scale(paged_attention_simple, seed=2)


def test_task_2_blocks_that_several_share() -> None:
    shape = Shape((2, 1, 5), (13, 11, 19), block_size=5)
    check_paged(paged_attention_simple, draw(shape, num_shared=2), "attention to two shared blocks")


def test_task_2_a_table_longer_than_the_context() -> None:
    ragged = draw(Shape((3,), (10,), block_size=5))
    check_equal(ragged.layout.block_tables.shape, (1, 4), "shape of a table with two entries too many")
    check_paged(paged_attention_simple, ragged, "attention to two blocks of four in the table")


def test_task_2_blocks_behind_the_context_are_not_copied() -> None:
    query, keys, values, layout = draw(Shape((3,), (10,), block_size=5)).arguments
    tables = mx.concatenate([layout.block_tables, mx.zeros((1, 20_000), mx.int32)], axis=1)
    mx.eval(tables)
    longer = replace(layout, block_tables=tables)
    peak = peak_bytes(lambda: mx.eval(paged_attention_simple(query, keys, values, longer)))
    what = f"whether 2 blocks of 1.3 kB in a table of 20,004 take less than 2 MB (they took {peak / 1e6:.1f})"
    check_equal(peak < 2_000_000, True, what)


def check_type_is_kept(attend: Attend, dtype: mx.Dtype, tolerance: float) -> None:
    """The result has the type of the query, that of keys and values or not."""
    __tracebackhide__ = True
    ragged = draw(MIXED, dtype)
    check_equal(attend(*ragged.arguments).dtype, dtype, "type of the attention")
    check_paged(attend, ragged, tolerance=tolerance)
    wide = replace(ragged, keys=ragged.keys.astype(mx.float32), values=ragged.values.astype(mx.float32))
    what = f"type of the attention of a query of {dtype} to keys of float32"
    check_equal(attend(*wide.arguments).dtype, dtype, what)
    check_paged(attend, wide, tolerance=tolerance)
    check_sums(attend, dtype)


def check_sums(attend: Attend, dtype: mx.Dtype) -> None:
    """The error is what rounding of the result leaves; with sums in a short type it is four times that."""
    __tracebackhide__ = True
    ragged = draw(Shape((1, 40, 7), (300, 300, 90), D=64, block_size=16), dtype)
    expected = ragged.each(lambda q, k, v: causal(q, k, v, None))
    rounded = exact(mx.array(expected.astype(np.float32)).astype(dtype))
    errors = [np.sqrt(np.mean((x - expected) ** 2)) for x in (exact(attend(*ragged.arguments)), rounded)]
    what = f"rms error of {errors[0]:.1e} in {dtype}, where rounding the result alone leaves {errors[1]:.1e}"
    check_equal(errors[0] <= 1.1 * errors[1], True, f"{what}: whether scores, softmax and sums are float32")


@pytest.mark.parametrize(("dtype", "tolerance"), LOW_PRECISION)
def test_task_2_type_is_kept(dtype: mx.Dtype, tolerance: float) -> None:
    check_type_is_kept(paged_attention_simple, dtype, tolerance)


def test_task_2_what_does_not_fit_is_refused() -> None:
    check_what_does_not_fit(paged_attention_simple)


def test_task_3_slots_of_contexts() -> None:
    tables = np.array([[7, 3, 61], [5, 61, 61], [2, 8, 4]], np.int32)
    slots = padded_slots(tables, np.array([5, 2, 9]), 4)
    own = [[28, 29, 30, 31, 12], [20, 21], [8, 9, 10, 11, 32, 33, 34, 35, 16]]
    rows = [row[: len(x)] for row, x in zip(slots.tolist(), own, strict=True)]
    check_equal(slots.shape, (3, 9), "shape of the slots of contexts of 5, 2 and 9")
    check_equal(rows, own, "slots of each context")
    behind = [set(row[len(x) :]) - set(x) for row, x in zip(slots.tolist(), own, strict=True)]
    check_equal(behind, [set()] * 3, "slots behind a context that are not its own")


@pytest.mark.parametrize("L", [1, 4])
def test_task_3_sequences_with_as_many_queries(L: int) -> None:
    ragged = draw(Shape((L, L, L), (9, 17, 4)))
    query = ragged.query.reshape(3, L, 4, 32)
    tables, _, lengths = ragged.layout.numbers()
    for scale in (None, 0.3, 0.0):
        result = attend_alike(query, ragged.keys, ragged.values, tables, lengths, scale)
        check_equal(result.shape, (3, L, 4, 32), "shape of the attention of three sequences")
        what = f"attention of three sequences, {L} queries each, {scale=}"
        rows = result.reshape(-1, 4, 32)
        check_paged(lambda *_, rows=rows, **__: rows, ragged, what, scale=scale)


@every_shape
def test_task_3_attention_to_blocks(shape: Shape) -> None:
    check_paged(paged_attention, draw(shape))


def test_task_3_random_shapes_and_a_scale() -> None:
    check_random_shapes_and_a_scale(paged_attention, seed=3)


def test_task_3_one_call_for_all_that_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counting(query: mx.array, *rest: Any) -> mx.array:
        calls.append(query.shape[:2])
        return attend_alike(query, *rest)

    monkeypatch.setattr(array_module, "attend_alike", counting)
    check_paged(paged_attention, draw(Shape((1, 4, 1, 9, 1, 4), (6, 11, 23, 9, 2, 8))))
    mistakes = {"a call for each sequence": [(1, 1), (1, 1), (1, 1), (1, 4), (1, 4), (1, 9)]}
    check_equal(sorted(calls), [(1, 9), (2, 4), (3, 1)], "sequences and queries of each call", mistakes)


def attend_alike_to(shape: Shape, dtype: mx.Dtype = mx.float32) -> mx.array:
    """`attend_alike` for sequences with as many queries each."""
    ragged = draw(shape, dtype)
    n, L = len(shape.num_queries), shape.num_queries[0]
    query = ragged.query.reshape(n, L, shape.H_q, shape.D)
    tables, _, lengths = ragged.layout.numbers()
    return attend_alike(query, ragged.keys, ragged.values, tables, lengths, None)


def test_task_3_as_many_products_for_many_sequences() -> None:
    few, many = (num_operations(attend_alike_to(Shape((2,) * n, (9,) * n)), name="Matmul") for n in (2, 7))
    check_equal(many, few, "products of matrices for seven sequences, against those for two")


@pytest.mark.parametrize(("dtype", "tolerance"), LOW_PRECISION)
def test_task_3_type_is_kept(dtype: mx.Dtype, tolerance: float) -> None:
    result = attend_alike_to(Shape((4, 4), (11, 6)), dtype)
    check_equal(result.dtype, mx.float32, "type of the sums for sequences with 4 queries each")
    check_type_is_kept(paged_attention, dtype, tolerance)


def test_task_3_what_does_not_fit_is_refused() -> None:
    check_what_does_not_fit(paged_attention)


# Task 4: the model on a batch


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


def check_continuations(*sequences: Sequence) -> None:
    __tracebackhide__ = True
    for each in sequences:
        prompt = each.token_ids[: each.num_prompt_tokens]
        expected = continuation(prompt, len(each.generated_ids))
        check_equal(each.generated_ids, expected, f"tokens of sequence {each.id}")


def test_task_4_keys_and_values_are_stored_before_they_are_read() -> None:
    pool = PagedKvPool(3, 9, 4)
    entries = entries_of((sequence_of(0, 6, 3), 2), (sequence_of(1, 5, 4), 1))
    tables = {0: BlockTable([8, 2]), 1: BlockTable([5, 7])}
    batch = ForwardBatch.of(SchedulerOutput(entries), tables, pool)
    query, key, value = normal(3, 6, 1, 16, seed=1), normal(3, 2, 1, 16, seed=2), normal(3, 2, 1, 16, seed=3)
    seen: list[tuple[mx.array, mx.array, mx.array, BlockLayout]] = []

    def attention(query: mx.array, keys: mx.array, values: mx.array, layout: BlockLayout) -> mx.array:
        seen.append((query, keys, values, layout))
        return query * 2

    def not_asked(*_: Any, **__: Any) -> mx.array:
        pytest.fail("the attention function of the model was called: only that of the cache knows blocks")

    result = RaggedKvCache(pool, 1, batch, attention).attend(query, key, value, not_asked, "causal")
    check_close(result, 2 * query, "what attend returns, [T, H_q, 1, D]", tolerance=0)
    ((rows, keys, values, layout),) = seen
    check_close(rows, query[:, :, 0], "queries that the attention gets, [T, H_q, D]", tolerance=0)
    for name, blocks, new in (("keys", keys, key), ("values", values, value)):
        check_equal(blocks.shape, (10, 4, 2, 16), f"shape of the {name} that it gets")
        stored = mx.stack([blocks[8, 3], blocks[2, 0], blocks[7, 0]])
        mistakes = {"still zeros: stored too late": mx.zeros(stored.shape)}
        check_close(stored, new[:, :, 0], f"{name} of the new tokens in their slots", 0, mistakes)
    tables, starts, lengths = (x.tolist() for x in layout.numbers())
    check_equal(tables, [[8, 2], [5, 7]], "block tables that it gets")
    check_equal((starts, lengths), ([0, 2, 3], [5, 5]), "query_start_loc and seq_lens")
    for layer in (0, 2):
        with check_value_error(layer=layer):
            pool.blocks(layer)


def test_task_4_a_layer_of_the_batch_holds_what_the_pool_holds() -> None:
    pool = PagedKvPool(1, 9, 4)
    tables = {0: BlockTable([8])}
    batch = ForwardBatch.of(SchedulerOutput(entries_of((sequence_of(0, 3), 3))), tables, pool)
    cache = RaggedKvCache(pool, 0, batch)
    check_equal(cache.state, [], "state before anything is stored")
    query, key = normal(3, 2, 1, 16, seed=1), normal(3, 1, 1, 16, seed=2)
    cache.attend(query, key, key, paged_attention_simple)
    check_equal([x.shape for x in cache.state], [(40, 1, 16)] * 2, "shapes of the state")
    cache.release()
    check_equal((cache.state, pool.state), ([], []), "state once it is released, and the pool's")


def test_task_4_one_call_for_a_chunk_a_decode_and_a_whole_prompt() -> None:
    model = FakeModel()
    runner = ModelRunner(model, BlockManager(30, 4))
    old, long, short = sequence_of(0, 4), sequence_of(1, 11), sequence_of(2, 2)
    run_step(runner, (old, 4))
    sampled = run_step(runner, (old, 1), (long, 5), (short, 2))
    check_equal(len(model.calls), 2, "calls of the model in two steps")
    first = continuation(prompt_of(4), 1)[0]
    expected = [(4, [first]), *((i, [prompt_of(11, 1)[i]]) for i in range(5)), (0, [prompt_of(2, 2)[0]])]
    expected = sorted([*expected, (1, [prompt_of(2, 2)[1]])])
    check_equal(model.rows[1], expected, "position and token of each row of the second call")
    check_equal(sorted(sampled), [0, 2], "ids that were sampled: not the unfinished prompt")
    run_step(runner, (long, 6), (short, 1), (old, 1))
    run_step(runner, (short, 1), (old, 1), (long, 1))
    check_continuations(old, long, short)


@pytest.mark.parametrize("sizes", [(7,), (3, 4), (3, 3, 1), (1,) * 7], ids=str)
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_task_4_chunks_of_a_prompt(sizes: tuple[int, ...], block_size: int) -> None:
    model, sequence = FakeModel(), sequence_of(5, 7)
    runner = ModelRunner(model, BlockManager(30, block_size))
    sampled = [run_step(runner, (sequence, size)) for size in sizes]
    what = "tokens sampled in each step, by id"
    check_equal(sampled, [{}] * (len(sizes) - 1) + [{5: next_token(prompt_of(7, 5))}], what)
    run_step(runner, (sequence, 1))
    check_continuations(sequence)


def test_task_4_logits_of_those_that_sample_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, counts = FakeModel(), []
    logits = model.logits

    def counting(x: mx.array) -> mx.array:
        counts.append(x.size // x.shape[-1])
        return logits(x)

    monkeypatch.setattr(model, "logits", counting)
    runner = ModelRunner(model, BlockManager(30, 4))
    long, short = sequence_of(1, 11), sequence_of(2, 2)
    check_equal(run_step(runner, (long, 5)), {}, "what a step without a final entry samples")
    check_equal(counts, [], "number of states that got logits in each call, without a final entry")
    run_step(runner, (long, 5), (short, 2))
    mistakes = {"logits of every token": [7], "logits of every entry": [2]}
    check_equal(counts, [1], "number of states that got logits, where one of two sequences samples", mistakes)
    run_step(runner, (long, 1), (short, 1))
    check_continuations(long, short)


def test_task_4_one_call_of_the_sampler_for_all_that_sample() -> None:
    seen = []

    def sample(logits: mx.array, batch: SamplingBatch) -> mx.array:
        seen.append(
            (logits.shape, mx.argmax(logits, axis=-1).tolist(), [each.top_k for each in batch.params])
        )
        return mx.array([14, 17])

    runner = ModelRunner(FakeModel(), BlockManager(30, 4), sampler=sample)
    sequences = [sequence_of(4, 5), sequence_of(1, 3), sequence_of(7, 6)]
    parts = [(sequences[0], 5), (sequences[1], 2), (sequences[2], 6)]
    for sequence, num_tokens in parts:
        runner.blocks.allocate(sequence, num_tokens)
    params = {id: SamplingParams(top_k=10 + id) for id in (1, 7, 4)}
    sampled = runner.run(output_of(*parts), params).token_ids
    check_equal(sampled, {4: 14, 7: 17}, "tokens sampled, by id")
    expected = [((2, 61), [next_token(prompt_of(5, 4)), next_token(prompt_of(6, 7))], [14, 17])]
    check_equal(seen, expected, "shape of the logits, likeliest token and top_k of each row, for each call")


def test_task_4_an_empty_step() -> None:
    model = FakeModel()
    sampled = ModelRunner(model, BlockManager(30, 4)).run(SchedulerOutput(()), {}).token_ids
    check_equal((sampled, len(model.calls)), ({}, 0), "what it samples, model calls")


def test_task_4_blocks_change_hands() -> None:
    runner = ModelRunner(FakeModel(), BlockManager(9, 4))
    stayer = sequence_of(0, 5)
    run_step(runner, (stayer, 5))
    for id in range(1, 5):
        guest = sequence_of(id, 9 + id)
        run_step(runner, (guest, 3), (stayer, 1))
        run_step(runner, (stayer, 1), (guest, guest.num_uncomputed_tokens))
        check_continuations(guest, stayer)
        runner.release(guest.id)
        runner.blocks.free(guest)
    check_equal(len(runner.pool.state), 4, "arrays of the pool: keys and values of two layers")
    runner.close()
    check_equal(runner.pool.state, [], "arrays of the pool once the runner is closed")


def recording(noted: list[mx.array]) -> BatchSampler:
    """Notes the logits of each row."""

    def sample(logits: mx.array, batch: SamplingBatch) -> mx.array:
        noted.extend(logits)
        return mx.argmax(logits, axis=-1)

    return sample


def fill_with_nan(runner: ModelRunner) -> None:
    """Every slot of every layer, the null slot too."""
    config = random_qwen3().config
    slots = mx.arange(runner.pool.null_slot + 1)
    shape = slots.size, config.num_key_value_heads, config.head_dim
    garbage = mx.full(shape, mx.array(NOT_TO_BE_READ))
    for layer in range(runner.pool.num_layers):
        runner.pool.write(layer, garbage, garbage, slots)


def check_logits(runner: ModelRunner, steps: Items[Items[tuple[Sequence, int | None]]]) -> None:
    """Run steps; each final entry's log-probabilities are those of its sequence alone, without a cache.

    No number stands for all that a sequence lacks.
    """
    __tracebackhide__ = True
    model = random_qwen3()
    for number, parts in enumerate(steps):
        step = [(each, each.num_uncomputed_tokens if n is None else n) for each, n in parts]
        for sequence, num_tokens in step:
            assert runner.blocks.allocate(sequence, num_tokens)
        output, noted = output_of(*step), list[mx.array]()
        runner.sampler = recording(noted)
        sampled = runner.run(output, {each.id: SamplingParams() for each, _ in step}).token_ids
        check_equal(sorted(sampled), sorted(e.sequence.id for e in output.final), "ids that were sampled")
        found = dict(zip((entry.sequence.id for entry in output.final), noted, strict=True))
        for entry in output.entries:
            sequence = entry.sequence
            if entry.is_final:
                expected = model(mx.array([sequence.token_ids]), logits_to_keep=1)[0, -1]
                what = f"logits of sequence {sequence.id} in step {number}, against it alone"
                check_close(found[sequence.id], expected, what)
                sequence.token_ids.append(sampled[sequence.id])
            sequence.num_computed_tokens = entry.end


def qwen_prompt(id: int, length: int) -> Sequence:
    return Sequence(id, [(11 * i * i + 5 * i + 7 * id + 2) % VOCAB_SIZE for i in range(length)])


def mixed_steps() -> list[list[tuple[Sequence, int | None]]]:
    """Chunks, decodes, whole prompts and a prompt of one token, side by side."""
    first, second, third, single = (qwen_prompt(id, n) for id, n in ((0, 23), (1, 9), (2, 13), (3, 1)))
    return [
        [(second, None)],
        [(second, 1), (first, 7)],
        [(first, 11), (second, 1), (single, None)],
        [(second, 1), (first, 3), (third, None), (single, 1)],
        [(first, None), (single, 1), (third, 1), (second, 1)],
        [(third, 1), (first, 1), (second, 1), (single, 1)],
    ]


ATTENTIONS = {"simple": paged_attention_simple, "array": paged_attention, "default": None}


@pytest.mark.parametrize("attention", list(ATTENTIONS))
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_task_4_logits_of_mixed_steps(attention: str, block_size: int) -> None:
    runner = ModelRunner(random_qwen3(), BlockManager(90, block_size), ATTENTIONS[attention])
    fill_with_nan(runner)
    check_logits(runner, mixed_steps())


class FirstBlocksShared(SharingBlocks):
    """Sequence 1 begins with two of the blocks in `shared`, sequence 2 with three."""

    def find_shared_blocks(self, sequence: Sequence) -> list[int]:
        return self.shared[: {1: 2, 2: 3}.get(sequence.id, 0)]


def test_task_4_logits_of_sequences_that_share_their_beginning() -> None:
    blocks = FirstBlocksShared(40, 4)
    runner = ModelRunner(random_qwen3(), blocks)
    fill_with_nan(runner)
    giver = qwen_prompt(0, 14)
    check_logits(runner, [[(giver, None)], [(giver, 1)], [(giver, 1)]])
    blocks.shared = blocks.tables[0].block_ids
    taker = Sequence(1, [*giver.token_ids[:9], 3, 17, 5])
    again = Sequence(2, giver.token_ids[:12])
    for sequence in (taker, again):
        sequence.num_computed_tokens = blocks.find_prefix(sequence)
    check_equal(
        (taker.num_computed_tokens, again.num_computed_tokens), (8, 11), "tokens that are there already"
    )
    slots = [block * 4 + i for block in blocks.tables[0].block_ids[:3] for i in range(4)]
    before = [np.array(x) for layer in range(2) for x in runner.pool.fetch(layer, mx.array(slots))]
    check_logits(runner, [[(taker, None), (giver, 1), (again, None)], [(again, 1), (taker, 1), (giver, 1)]])
    after = [np.array(x) for layer in range(2) for x in runner.pool.fetch(layer, mx.array(slots))]
    is_same = all(np.array_equal(x, y) for x, y in zip(before, after, strict=True))
    check_equal(is_same, True, "whether shared blocks hold what they held, to the last bit")


def test_task_4_the_attention_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counting(query: mx.array, *rest: Any) -> mx.array:
        calls.append(query.shape)
        return paged_attention_simple(query, *rest)

    runner = ModelRunner(random_qwen3(), BlockManager(40, 4), counting)
    check_logits(runner, [[(qwen_prompt(0, 5), None), (qwen_prompt(1, 1), None)]])
    check_equal(calls, [(6, 4, 8)] * 2, "queries that the given attention got, layer by layer")
    model = random_qwen3()
    monkeypatch.setattr(model, "operations", EngineOperations(paged_attention=lambda: counting))
    check_logits(ModelRunner(model, BlockManager(40, 4)), [[(qwen_prompt(0, 5), None)]])
    check_equal(calls[2:], [(5, 4, 8)] * 2, "queries that the model's attention got, where none is given")


def test_task_4_a_token_changes_its_own_slot_alone() -> None:
    runner = ModelRunner(random_qwen3(), BlockManager(40, 4))
    sequence = qwen_prompt(0, 40)
    run_step(runner, (sequence, 20))
    before = [np.array(x) for x in runner.pool.state]
    run_step(runner, (sequence, 1))
    changed = [
        int((np.array(x) != y).any(axis=(1, 2)).sum()) for x, y in zip(runner.pool.state, before, strict=True)
    ]
    check_equal(changed, [1] * 4, "slots that one token changed, in keys and values of each layer")


def test_task_4_nothing_is_left_to_compute_after_a_step() -> None:
    runner = ModelRunner(random_qwen3(), BlockManager(40, 4))
    long, short = qwen_prompt(0, 40), qwen_prompt(1, 3)
    steps = {
        "a step that samples": [(short, 3), (long, 5)],
        "a step in which nothing is sampled": [(long, 5)],
        "another one": [(long, 7)],
        "the last chunk of the prompt": [(long, 23), (short, 1)],
    }
    for name, parts in steps.items():
        run_step(runner, *parts)
        check_equal(len(runner.pool.state), 4, f"arrays of the pool after {name}")
        arrays = [f"{kind} of layer {layer}" for kind in ("keys", "values") for layer in range(2)]
        waiting = [each for each, x in zip(arrays, runner.pool.state, strict=True) if num_operations(x) > 0]
        check_equal(waiting, [], f"what is still to be computed of the pool after {name}")


def test_task_4_one_batch_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    made, of = [], ForwardBatch.of

    def counting(output: SchedulerOutput, *rest: Any, **named: Any) -> ForwardBatch:
        made.append(output.num_tokens)
        return of(output, *rest, **named)

    monkeypatch.setattr(ForwardBatch, "of", counting)
    runner = ModelRunner(random_qwen3(), BlockManager(40, 4))
    run_step(runner, (qwen_prompt(0, 9), 5), (qwen_prompt(1, 3), 3))
    check_equal(made, [8], "tokens of each batch that a step of 8 tokens makes")


# Task 5: C++, and the choice of a kernel

CPU_SHAPES = [
    Shape((1,), (1,), 2, 1, 16, 16),
    Shape((1,), (255,), 4, 2, 16, 16),
    Shape((1, 1), (256, 257), 3, 1, 32, 16),
    Shape((1, 2), (700, 513), 6, 2, 16, 7),
    Shape((9, 1), (9, 1), 9, 1, 16, 3),
    Shape((31, 33, 64), (31, 40, 64), 2, 2, 16, 16),
    Shape((65, 1, 3, 100), (300, 90, 700, 100), 6, 3, 48, 11),
    Shape((4, 1, 9, 1), (11, 6, 9, 23), 4, 4, 80, 1),
]


def on_cpu(*arguments: Any, scale: float | None = None) -> mx.array:
    query = arguments[0]
    return paged_attention_cpu(*arguments, query.shape[-1] ** -0.5 if scale is None else scale)


def check_on_cpu(ragged: Ragged, what: str = "", scale: float | None = None, tolerance: float = 1e-5) -> None:
    __tracebackhide__ = True
    check_pieces(ragged)  # a kernel with other pieces may read what is not there
    poison(*ragged.query.shape)
    check_paged(on_cpu, ragged, what, scale=scale, tolerance=tolerance)


def test_task_5_few_queries_are_cut_along_the_keys_many_along_themselves() -> None:
    for heads in ((1, 1), (3, 1), (4, 2), (8, 2)):
        check_pieces(draw(Shape((8, 1, 9, 2, 3), (8, 600, 40, 256, 513), *heads)))
    check_pieces(draw(Shape((64, 4, 33, 1, 2), (64, 300, 70, 257, 1000), 4, 2)))


@pytest.mark.parametrize("shape", CPU_SHAPES, ids=str)
def test_task_5_attention_to_blocks(shape: Shape) -> None:
    check_on_cpu(draw(shape))


def test_task_5_scale() -> None:
    for scale in (0.3, 0.0):
        check_on_cpu(draw(Shape((65, 1), (71, 300), 4, 2, 16)), scale=scale)


@pytest.mark.parametrize("D", [16, 32, 48, 64, 80, 96, 112, 128, 256])
def test_task_5_every_head_dimension(D: int) -> None:
    check_on_cpu(draw(Shape((2, 34), (41, 71), 4, 2, D)))


def test_task_5_random_shapes() -> None:
    random = np.random.default_rng(5)
    for seed in range(25):
        check_on_cpu(draw(random_shape(random, (16, 32), longest=150), seed=seed))


def test_task_5_blocks_that_several_share() -> None:
    shape = Shape((2, 1, 40), (613, 511, 619), block_size=5)
    check_on_cpu(draw(shape, num_shared=60), "attention to sixty shared blocks")


@pytest.mark.parametrize("shape", [CPU_SHAPES[3], CPU_SHAPES[6]], ids=str)
def test_task_5_threads_do_not_matter(shape: Shape) -> None:
    ragged = draw(shape)
    check_pieces(ragged)
    check_threads(lambda: on_cpu(*ragged.arguments), f"attention, {shape}")
    with threads(4):
        check_on_cpu(ragged, "attention with 4 threads")


def test_task_5_nothing_behind_an_array_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_module, "PAGED_ATTENTION", FencedKernel(fast_module.PAGED_ATTENTION))
    check_on_cpu(draw(Shape((1, 40), (71, 71), 4, 2, 16)))


@pytest.mark.parametrize("L", [1, 40])
def test_task_5_large_scores(L: int) -> None:
    check_on_cpu(draw(Shape((L, 1), (331, 600), 2, 1, 64), size=300.0), tolerance=1e-4)


@on_every_target
def test_task_5_other_processors(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = compiled_for(target, fast_module.PAGED_ATTENTION, monkeypatch)
    monkeypatch.setattr(fast_module, "PAGED_ATTENTION", kernel)
    check_on_cpu(draw(Shape((1, 40), (300, 71), 4, 2, 80)), f"attention on {target}")


def kernels_called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes which of the three is called; the one of the GPU computes in arrays."""
    called: list[str] = []

    def noting(name: str, function: Attend) -> Attend:
        def call(*arguments: Any) -> mx.array:
            called.append(name)
            return function(*arguments)

        return call

    for name, function in (
        ("paged_attention_cpu", paged_attention_cpu),
        ("paged_attention_gpu", paged_attention_simple),
        ("paged_attention", paged_attention),
    ):
        monkeypatch.setattr(fast_module, name, noting(name, function), raising=False)
    return called


@pytest.mark.parametrize("D", [16, 24, 32, 40, 48, 64, 80, 128])
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_task_5_which_is_used_for_a_head_dimension(
    device: str, D: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = kernels_called(monkeypatch)
    use_device(mx.gpu if device == "gpu" else mx.cpu, monkeypatch)
    ragged = draw(Shape((4, 1), (11, 6), D=D))
    check_pieces(ragged)
    for scale in (None, 0.3, 0.0):
        check_paged(dispatch_paged_attention, ragged, scale=scale)
    is_known = D in HEAD_DIMS if device == "gpu" else D % 16 == 0
    expected = f"paged_attention_{device}" if is_known else "paged_attention"
    check_equal(called, [expected] * 3, f"what is called for {D=} on a {device.upper()}")


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_task_5_which_is_used_for_a_type(dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    called = kernels_called(monkeypatch)
    ragged = draw(MIXED, dtype)
    check_pieces(ragged)
    query, keys, values, layout = ragged.arguments
    wide_keys, wide_values = keys.astype(mx.float32), values.astype(mx.float32)
    use_device(mx.cpu, monkeypatch)
    for key, value, expected in (
        (keys, values, "paged_attention_cpu"),
        (wide_keys, wide_values, "paged_attention_cpu"),
        (wide_keys, values, "paged_attention"),
        (keys, wide_values, "paged_attention"),
    ):
        called.clear()
        result = dispatch_paged_attention(query, key, value, layout)
        what = f"called for keys of {key.dtype} and values of {value.dtype}, and the type of the result"
        check_equal((called, result.dtype), ([expected], dtype), what)
    check_sums(dispatch_paged_attention, dtype)
    use_device(mx.gpu, monkeypatch)
    called.clear()
    dispatch_paged_attention(query, keys, values, layout)
    dispatch_paged_attention(query, wide_keys, wide_values, layout)
    expected = ["paged_attention_gpu", "paged_attention"]
    check_equal(called, expected, "called on a GPU for one type, and for two")


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16], ids=str)
def test_task_5_the_pool_is_not_copied(dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    use_device(mx.cpu, monkeypatch)
    query, keys, values, layout = draw(Shape((1, 3), (11, 6)), dtype).arguments
    pools = [mx.concatenate([x, mx.zeros((9000, *x.shape[1:]), dtype)]) for x in (keys, values)]
    mx.eval(pools)
    peak = peak_bytes(lambda: mx.eval(dispatch_paged_attention(query, *pools, layout)))
    what = f"whether 17 tokens in a pool of {pools[0].nbytes / 1e6:.0f} MB take less than 1 MB"
    check_equal(peak < 1_000_000, True, f"{what} (they took {peak / 1e6:.1f})")


@pytest.mark.parametrize("D", [16, 24])
def test_task_5_what_the_kernel_would_read_past_is_refused(D: int) -> None:
    check_what_does_not_fit(dispatch_paged_attention)
    query, keys, values, layout = draw(Shape((4, 1), (11, 6), D=D)).arguments
    dispatch_paged_attention(query, keys, values, layout)
    with check_value_error(H_q=3, H=2):
        dispatch_paged_attention(query[:, :3], keys, values, layout)
    with check_value_error(query_start_loc=(2,)):
        shorter = replace(layout, query_start_loc=layout.query_start_loc[:-1])
        dispatch_paged_attention(query, keys, values, shorter)
    with check_value_error(values=values[:2].shape):
        dispatch_paged_attention(query, keys, values[:2], layout)


# Tasks 6 and 7: Metal and CUDA

ORDERS = [FORWARD, BACKWARD, *range(2, 6)]
GPU_SHAPES = [
    Shape((1,), (1,), 1, 1, 32, 1),
    Shape((1, 8, 1), (71, 8, 5), 6, 2, 32, 16),
    Shape((9,), (9,), 3, 1, 32, 4),
    Shape((33, 32), (65, 32), 2, 2, 64, 16),
    Shape((40, 1, 9, 5), (77, 131, 90, 60), 4, 2, 32, 7),
]
need_metal = pytest.mark.skipif(not mx.metal.is_available(), reason="needs an Apple GPU (Metal)")
need_cuda = pytest.mark.skipif(not mx.cuda.is_available(), reason="needs an NVIDIA GPU (CUDA)")


def check_on_gpu(
    target: Target,
    shape: Shape,
    tolerance: float = 1e-5,
    scale: float | None = None,
    **options: Any,
) -> None:
    """Compare attention on a target, of what is drawn with these options, with that in numpy."""
    __tracebackhide__ = True
    what = f"attention, {shape}, order {target.order}"
    check_paged(paged_attention_gpu, draw(shape, **options), what, tolerance, scale, target=target)


def check_large_scores_in_short_types(target: Target) -> None:
    """Large scores that differ by little: rounded to the input's type they would be equal."""
    __tracebackhide__ = True
    for (dtype, _), L in itertools.product((each.values for each in LOW_PRECISION), (2, 34)):
        ragged = draw(Shape((L,), (83,), 2, 1, 80), dtype, size=30.0, has_close_keys=True)
        what = f"attention of {dtype} to keys that are much alike, {L=}: query x scale and scores are float32"
        expected = ragged.each(lambda q, k, v: causal(q, k, v, None))
        check_rounded_once(paged_attention_gpu(*ragged.arguments, target=target), expected, what)


GPU_CHECKS: dict[str, Callable[[Target], None]] = {
    **{f"attention to blocks, {shape}": partial(check_on_gpu, shape=shape) for shape in GPU_SHAPES},
    **{
        f"head dimension {D}": partial(check_on_gpu, shape=Shape((2, 34), (41, 41), 2, 1, D, 16))
        for D in HEAD_DIMS
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
    "large scores in short types": check_large_scores_in_short_types,
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
        check_on_gpu, shape=Shape((2, 1, 40), (63, 51, 61), block_size=5), num_shared=4
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
        result = paged_attention_gpu(*draw(shape).arguments, target=target)
        first = result if first is None else first
        check_close(result, first, f"order {order} of the threads, against order {FORWARD}", tolerance=0)


def check_random_shapes(target: Target, seed: int, count: int = 8) -> None:
    """Shapes, scales, types and orders drawn at random."""
    __tracebackhide__ = True
    random = np.random.default_rng(seed)
    types = [(mx.float32, 1e-5), *(parameter.values for parameter in LOW_PRECISION)]
    for number in range(count):
        shape = random_shape(random, HEAD_DIMS[:4], longest=40)
        dtype, tolerance = types[random.integers(3)]
        place = Target(target.language, target.device, int(random.integers(50)))
        scale = [None, 0.3][random.integers(2)]
        check_on_gpu(place, shape, tolerance, scale, dtype=dtype, seed=number)


METAL = Target("metal", "emulator")


@each_gpu_check
def test_task_6_metal(check: Callable[[Target], None]) -> None:
    check(METAL)


def test_task_6_the_order_of_the_threads_does_not_matter() -> None:
    check_orders("metal")


def test_task_6_random_shapes() -> None:
    check_random_shapes(METAL, seed=4)


@need_metal
def test_task_6_on_the_gpu() -> None:
    check_everything_once(Target("metal"))


CUDA = Target("cuda", "emulator")


@each_gpu_check
def test_task_7_cuda(check: Callable[[Target], None]) -> None:
    check(CUDA)


def test_task_7_the_order_of_the_threads_does_not_matter() -> None:
    check_orders("cuda")


def test_task_7_random_shapes() -> None:
    check_random_shapes(CUDA, seed=5)


@need_cuda
def test_task_7_on_the_gpu() -> None:
    check_everything_once(Target("cuda"))


def check_everything_once(target: Target) -> None:
    """What the emulator is asked, asked of a GPU."""
    __tracebackhide__ = True
    for check in GPU_CHECKS.values():
        check(target)
    for shape in GPU_SHAPES:
        check_on_gpu(target, shape, scale=0.3)
    check_random_shapes(target, seed=6, count=40)


# Task 8: all samples in one call

CUTS: list[dict[str, Any]] = [
    {"top_p": top_p, "top_k": top_k, "min_p": min_p}
    for top_p, top_k, min_p in itertools.product([0, 0.5, 0.9, 1], [None, 2, 7, 99], [0, 0.1, 0.4])
]
"""Every combination, no cut among them."""
BY_MIN_P: list[dict[str, Any]] = [{"min_p": min_p} for min_p in (0.1, 0, 0.3, 1)]
SORTING = ("Sort", "ArgSort", "Partition", "ArgPartition")


def rows_cut_by(cuts: Items[Mapping[str, Any]], **options: Any) -> SamplingBatch:
    """One row for each, with no random number."""
    params = tuple(SamplingParams(**{"temperature": 1.0, **options, **each}) for each in cuts)
    return SamplingBatch(params, np.zeros(len(params), np.uint64))


def logprobs_of(B: int, V: int, seed: int) -> mx.array:
    return mx.array(log_softmax(exact(1.5 * normal(B, V, seed=seed))), mx.float32)


def check_kept(logprobs: mx.array, cuts: Items[Mapping[str, Any]], what: str) -> None:
    """Row i by cut i."""
    __tracebackhide__ = True
    kept, rows = np.array(kept_tokens(logprobs, rows_cut_by(cuts))), exact(logprobs)
    check_equal((kept.shape, str(kept.dtype)), (logprobs.shape, "bool"), "shape and type of what is kept")
    for i, (row, cut) in enumerate(zip(rows, cuts, strict=True)):
        expected = np.flatnonzero(expected_kept(row, **cut)).tolist()
        edge = min(row[expected])
        mistakes = {
            "the cuts of row 0": expected_kept(row, **cuts[0]),
            "all tokens that are as likely as the last one kept": row >= edge,
            "none of the tokens that are as likely as the last one kept": row > edge,
            "the token that crosses top_p dropped": row > min(row[row >= edge]),
            "min_p as a bound by itself, not relative to the likeliest": np.exp(row) >= cut.get("min_p", 0),
        }
        tokens = {name: np.flatnonzero(each).tolist() for name, each in mistakes.items()}
        check_equal(
            np.flatnonzero(kept[i]).tolist(), expected, f"tokens of row {i} {what} kept by {cut}", tokens
        )


def test_task_8_each_row_is_cut_as_alone() -> None:
    check_kept(logprobs_of(len(CUTS), 61, seed=40), CUTS, "of 61")
    check_kept(logprobs_of(1, 61, seed=41), CUTS[-1:], "of one")


def test_task_8_rows_cut_by_min_p_alone() -> None:
    check_kept(logprobs_of(len(BY_MIN_P), 61, seed=42), BY_MIN_P, "of four")


@pytest.mark.parametrize(
    "cut", [{"top_k": k} for k in range(1, 7)] + [{"top_p": p / 10 + 0.03} for p in range(1, 10)], ids=str
)
def test_task_8_of_equals_at_the_edge_the_first_stay(cut: dict[str, Any]) -> None:
    probs = mx.array([[0.1, 0.2, 0.2, 0.1, 0.2, 0.2], [0.15, 0.15, 0.25, 0.15, 0.15, 0.15]])
    check_kept(mx.log(probs), [cut, cut], f"of probabilities {probs.tolist()}")


def test_task_8_impossible_tokens_beside_cuts() -> None:
    possible = mx.where(mx.arange(61) % 5 == 3, normal(len(CUTS), 61, seed=43), -mx.inf)
    logprobs = possible - mx.logsumexp(possible, axis=-1, keepdims=True)
    kept, rows = np.array(kept_tokens(logprobs, rows_cut_by(CUTS))), exact(logprobs)
    for i, (row, cut) in enumerate(zip(rows, CUTS, strict=True)):
        found = np.flatnonzero(kept[i] & np.isfinite(row)).tolist()
        expected = np.flatnonzero(expected_kept(row, **cut) & np.isfinite(row)).tolist()
        check_equal(found, expected, f"tokens that are possible and kept by {cut}")


def test_task_8_sorts_once_and_only_if_a_row_is_cut_by_rank() -> None:
    for cuts, most in ((CUTS, 1), (BY_MIN_P, 0), ([{}] * 3, 0)):
        batch = rows_cut_by(cuts)
        tokens = sample_batch(logprobs_of(len(cuts), 61, seed=44), batch)
        found = sum(num_operations(tokens, name=f'{name}"') for name in SORTING)
        what = (
            f"operations that sort rows with {len({str(cut) for cut in cuts})} kinds of cuts, at most {most}"
        )
        check_equal(min(found, most), found, what)


WEIGHTS = [[0, 0.3, 0, 0.9, 0.1, 0], [2, 0, 0, 0, 0, 0], [0.0] * 5 + [7], [1e-9, 4, 1, 1e-9, 4, 1]]


def test_task_8_a_number_picks_the_token_at_its_place() -> None:
    for uniform in (0.0, 0.125, 0.24, 0.26, 0.45, 0.75, 0.88, 0.96, 1 - 2**-23):
        found = draw_tokens(mx.array(WEIGHTS), mx.full((4,), uniform)).tolist()
        shares = [np.array(row) / sum(row) for row in WEIGHTS]
        expected = [token_at(share, uniform) for share in shares]
        mistakes = {
            "weights taken for probabilities": [int((np.cumsum(row) > uniform).argmax()) for row in WEIGHTS],
            "the likeliest tokens": [int(share.argmax()) for share in shares],
        }
        check_equal(found, expected, f"tokens drawn by {uniform} from {WEIGHTS}", mistakes)


def test_task_8_every_row_has_its_own_number() -> None:
    weights, uniform = np.array([3.0, 1.0, 0.0, 4.0, 8.0]), (np.arange(1600) * 711 % 1600 + 0.5) / 1600
    found = np.array(
        draw_tokens(mx.array(np.tile(weights, (1600, 1)), mx.float32), mx.array(uniform, mx.float32))
    )
    counts = np.bincount(found, minlength=5).tolist()
    check_equal(
        counts, [300, 100, 0, 400, 800], "how often each token is drawn by 1,600 numbers, evenly spread"
    )
    expected = [token_at(weights, number) for number in uniform]
    check_equal(found.tolist(), expected, "token drawn by each of these numbers")


def test_task_8_no_token_of_weight_0_where_a_gpu_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "cumsum", scan_like_a_gpu)
    weights = np.random.default_rng(5).random(6001).astype(np.float32)
    weights[::2] = weights[5990:] = 0
    reached = np.array(scan_like_a_gpu(mx.array(weights)))
    places = reached[weights == 0] / reached.max()
    uniform = np.concatenate([places, np.nextafter(places, np.float32(0)), [1 - 2**-23, 0]])
    uniform = uniform[(uniform >= 0) & (uniform < 1)].astype(np.float32)
    num_wrong = 0
    for numbers in np.array_split(uniform, 20):
        rows = mx.broadcast_to(mx.array(weights), (len(numbers), len(weights)))
        found = np.array(draw_tokens(rows, mx.array(numbers)))
        num_wrong += int((weights[found] == 0).sum())
    what = f"tokens of weight 0 among {len(uniform)} that are drawn at the borders of a GPU's threads"
    check_equal(num_wrong, 0, what)


@functools.cache
def rows_of_every_kind() -> tuple[SamplingParams, ...]:
    """Greedy and at random, with each kind of cut."""
    cuts = [CUTS[0], *CUTS[3::5], *BY_MIN_P]
    return tuple(SamplingParams(t, **cut) for t, cut in itertools.product([0, 0.4, 1.0, 3.0], cuts))


def tokens_in_turn(rows: Array, number: int) -> tuple[list[int], Array]:
    """Of each row a token that may be drawn, and the number in the middle of its share."""
    tokens, places = [], []
    for i, (row, params) in enumerate(zip(rows, rows_of_every_kind(), strict=True)):
        probs = probabilities(row, params)
        likely = np.flatnonzero(probs > 1e-3)
        tokens.append(int(likely[(number * (i + 1)) % len(likely)]))
        ends = np.cumsum(probs)
        places.append((ends[tokens[-1]] + ends[tokens[-1]] - probs[tokens[-1]]) / 2)
    return tokens, np.array(places)


def drawn_otherwise(rows: Array, places: Array) -> dict[str, list[int]]:
    """What mistakes would draw in the place of the right tokens."""

    def drawn(change: Callable[[SamplingParams, Array], tuple[Array, SamplingParams]]) -> list[int]:
        changed = [change(params, row) for params, row in zip(rows_of_every_kind(), rows, strict=True)]
        return [token_at(probabilities(*each), place) for each, place in zip(changed, places, strict=True)]

    def tempered_first(params: SamplingParams, row: Array) -> tuple[Array, SamplingParams]:
        return log_softmax(row / (params.temperature or 1)), replace(
            params, temperature=float(params.temperature > 0)
        )

    hottest = max(params.temperature for params in rows_of_every_kind())
    return {
        "cuts of the tempered distribution: cut first": drawn(tempered_first),
        "greedy rows drawn at random as well": drawn(
            lambda params, row: (row, replace(params, temperature=params.temperature or 1))
        ),
        "all rows by the highest temperature": drawn(
            lambda params, row: (row, replace(params, temperature=hottest))
        ),
        "no cuts": drawn(lambda params, row: (row, SamplingParams(temperature=params.temperature))),
        "the likeliest token of every row": rows.argmax(axis=-1).tolist(),
    }


@pytest.mark.parametrize("number", range(4))
def test_task_8_greedy_tempered_and_cut_rows_in_one_call(number: int) -> None:
    params = rows_of_every_kind()
    logits = 1.5 * normal(len(params), 61, seed=50 + number) + 20
    rows = log_softmax(exact(logits))
    expected, places = tokens_in_turn(rows, number)
    found = sample_batch(logits, SamplingBatch(params, numbers_of(places)))
    check_equal(found.shape, (len(params),), "shape of the tokens")
    what = "tokens of rows of every kind, each by the number in the middle of its share"
    check_equal(found.tolist(), expected, what, drawn_otherwise(rows, places))


def test_task_8_a_row_draws_what_it_draws_alone() -> None:
    params = rows_of_every_kind()
    logits, numbers = (
        1.5 * normal(len(params), 257, seed=60),
        numbers_of(np.arange(len(params)) / len(params)),
    )
    together = sample_batch(logits, SamplingBatch(params, numbers)).tolist()
    alone = [
        sample_batch(logits[i : i + 1], SamplingBatch((each,), numbers[i : i + 1])).item()
        for i, each in enumerate(params)
    ]
    check_equal(together, alone, "tokens of rows together, as alone")


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_task_8_logits_in_half_precision_are_sampled_in_float32(dtype: mx.Dtype) -> None:
    logits = (normal(5, 5003, seed=61) + 8).astype(dtype)
    batch = SamplingBatch(
        (SamplingParams(1.0), SamplingParams(1.0, top_p=0.9)) * 2 + (SamplingParams(),),
        numbers_of(np.arange(5) / 5),
    )
    found, expected = (sample_batch(each, batch).tolist() for each in (logits, logits.astype(mx.float32)))
    check_equal(found, expected, "tokens of 5003, as of the same logits in float32")
