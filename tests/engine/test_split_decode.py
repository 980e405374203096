"""Decode of long contexts on a GPU in splits of keys: the same numbers, and each key and value read once."""

import mlx.core as mx
import pytest

from kernel_runtime.counting import counting
from kernel_runtime.launch import BACKWARD, FORWARD, Language, Target
from tests.support.check import check_close, check_equal
from tests.support.ragged import Shape, draw
from tiny_llm.kernels.given.paged_gpu import paged_attention_gpu
from tiny_llm.kernels.given.split_decode import SPLIT
from tiny_llm.ops.paged_attention import paged_attention_simple

both_languages = pytest.mark.parametrize("language", ["metal", "cuda"])
SHAPES = [
    Shape((1, 3, 1), (2 * SPLIT + 88, SPLIT + 2, 3), H_q=6, H=2, D=80, block_size=16),  # some see one split
    Shape(
        (1,), (SPLIT + 1,), H_q=9, H=1, D=256, block_size=5
    ),  # more heads of a key head than a group computes
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(mx.float32, 1e-5), (mx.bfloat16, 2e-2)], ids=str)
@both_languages
def test_numbers(language: Language, dtype: mx.Dtype, tolerance: float, shape: Shape) -> None:
    ragged = draw(shape, dtype)
    expected = paged_attention_simple(
        *(x.astype(mx.float32) for x in ragged.arguments[:3]), *ragged.arguments[3:]
    )
    for order in (FORWARD, BACKWARD):
        actual = paged_attention_gpu(*ragged.arguments, target=Target(language, "emulator", order))
        check_equal(actual.dtype, dtype, "type")
        check_close(actual, expected, f"attention of {shape}", tolerance)


@both_languages
def test_a_long_neighbour_changes_no_bit_of_a_long_row(language: Language) -> None:
    ragged, target = draw(SHAPES[0], mx.float32), Target(language, "emulator")
    alone = paged_attention_gpu(
        *(ragged.query[:1], ragged.keys, ragged.values, ragged.block_tables[:1]),
        *(mx.array([0, 1]), ragged.context_lengths[:1]),
        target=target,
    )
    check_equal(
        paged_attention_gpu(*ragged.arguments, target=target)[:1].tolist(), alone.tolist(), "first row"
    )


@both_languages
def test_keys_and_values_are_read_once(language: Language) -> None:
    shape = Shape((1, 1), (3 * SPLIT, 600), H_q=4, H=2, D=64, block_size=16)
    ragged = draw(shape, mx.bfloat16)
    with counting() as runs:
        paged_attention_gpu(*ragged.arguments, target=Target(language, "emulator"))
    check_equal([run.kernel for run in runs], ["split_decode", "merge_splits"], "kernels")
    moved = sum(run.counts.requested for run in runs)
    least = sum(shape.contexts) * shape.H * shape.D * 2 * 2  # bytes of keys and values
    assert least < moved <= 1.1 * least
    check_equal([run.counts.bank_conflicts for run in runs], [0, 0], "bank conflicts")
