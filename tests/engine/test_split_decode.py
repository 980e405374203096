"""Decode of long contexts on a GPU in splits of keys: the same numbers, and each key and value read once."""

from collections.abc import Callable

import mlx.core as mx
import pytest

from kernel_runtime.block_layout import BlockLayout
from kernel_runtime.counting import counting
from kernel_runtime.launch import BACKWARD, FORWARD, Language, Target
from tests.support.check import check_close, check_equal, normal
from tests.support.oracles import exact, grouped_attention
from tests.support.ragged import Shape, draw
from tiny_llm.kernels.gpu_operations import flash_attention_gpu
from tiny_llm.kernels.paged_gpu import paged_attention_gpu
from tiny_llm.kernels.split_decode import SPLIT
from tiny_llm.ops.paged_attention import paged_attention_simple

both_languages = pytest.mark.parametrize("language", ["metal", "cuda"])
SHAPES = [
    Shape((1, 3, 1), (2 * SPLIT + 88, SPLIT + 2, 3), H_q=6, H=2, D=80, block_size=16),  # some see one split
    Shape(
        (1,), (SPLIT + 1,), H_q=9, H=1, D=256, block_size=5
    ),  # more heads of a key head than a group computes
]

DENSE = [  # B, H_q, H, S and D
    (2, 6, 2, 2 * SPLIT + 88, 80),
    (1, 9, 1, 2 * SPLIT + 1, 256),
    (1, 3, 3, 3 * SPLIT, 64),
]
every_type = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(mx.float32, 1e-5), (mx.bfloat16, 2e-2)], ids=str
)


def draw_dense(
    B: int, H_q: int, H: int, S: int, D: int, dtype: mx.Dtype
) -> tuple[mx.array, mx.array, mx.array]:
    """A query for each row, and parts of larger caches: every other dimension, and dimensions before keys."""
    query, key = (
        normal(B, H_q, 1, D, seed=1, dtype=dtype),
        normal(B, H + 1, S + 50, 2 * D, seed=2, dtype=dtype),
    )
    value = normal(B, H, D, S + 9, seed=3, dtype=dtype)
    return query, key[:, 1:, 7 : 7 + S, ::2], value[..., :S].swapaxes(2, 3)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@every_type
@both_languages
def test_numbers(language: Language, dtype: mx.Dtype, tolerance: float, shape: Shape) -> None:
    ragged = draw(shape, dtype)
    exactly = (x.astype(mx.float32) for x in (ragged.query, ragged.keys, ragged.values))
    expected = paged_attention_simple(*exactly, ragged.layout)
    for order in (FORWARD, BACKWARD):
        actual = paged_attention_gpu(*ragged.arguments, target=Target(language, "emulator", order))
        check_equal(actual.dtype, dtype, "type")
        check_close(actual, expected, f"attention of {shape}", tolerance)


@every_type
@both_languages
def test_numbers_on_a_dense_cache(language: Language, dtype: mx.Dtype, tolerance: float) -> None:
    for shape, scale, mask in zip(DENSE, (None, 0.3, None), (None, None, "causal"), strict=True):
        arrays = draw_dense(*shape, dtype)
        expected = grouped_attention(*map(exact, arrays), scale)
        for order in (FORWARD, BACKWARD):
            actual = flash_attention_gpu(*arrays, scale, mask, Target(language, "emulator", order))
            check_equal(actual.dtype, dtype, "type")
            check_close(actual, expected, f"attention of {shape}", tolerance)


@both_languages
def test_a_long_neighbour_changes_no_bit_of_a_long_row(language: Language) -> None:
    ragged, target = draw(SHAPES[0], mx.float32), Target(language, "emulator")
    layout = BlockLayout(ragged.layout.block_tables[:1], mx.array([0, 1]), ragged.layout.seq_lens[:1])
    alone = paged_attention_gpu(ragged.query[:1], ragged.keys, ragged.values, layout, target=target)
    check_equal(
        paged_attention_gpu(*ragged.arguments, target=target)[:1].tolist(), alone.tolist(), "first row"
    )


def attend_blocks(target: Target) -> int:
    shape = Shape((1, 1), (3 * SPLIT, 600), H_q=4, H=2, D=64, block_size=16)
    paged_attention_gpu(*draw(shape, mx.bfloat16).arguments, target=target)
    return sum(shape.contexts) * shape.H * shape.D


def attend_dense(target: Target) -> int:
    query, key, value = draw_dense(2, 4, 2, 3 * SPLIT, 64, mx.bfloat16)
    flash_attention_gpu(query, key, value, target=target)
    return key.size


@pytest.mark.parametrize("attend", [attend_blocks, attend_dense])
@both_languages
def test_keys_and_values_are_read_once(language: Language, attend: Callable[[Target], int]) -> None:
    with counting() as runs:
        num_entries = attend(Target(language, "emulator"))
    check_equal([run.kernel for run in runs], ["split_decode", "merge_splits"], "kernels")
    moved = sum(run.counts.requested for run in runs)
    least = num_entries * 2 * 2  # bytes of keys and values
    assert least < moved <= 1.1 * least
    check_equal([run.counts.bank_conflicts for run in runs], [0, 0], "bank conflicts")
