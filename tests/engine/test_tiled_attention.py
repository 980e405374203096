"""The given attention on matrix units, by the emulator: exact but for rounding, and used where it may be."""

from typing import Any

import mlx.core as mx
import pytest

from accelerated import tiled_attention as module
from accelerated.tiled_attention import (
    QUERIES,
    attend_paged_tiles,
    attend_tiles,
    tiled_attention,
    tiled_paged_attention,
)
from kernel_runtime.launch import BACKWARD, Language, Target
from tests.support.check import check_close, check_equal, check_value_error, normal
from tests.support.cpu_kernels import use_device
from tests.support.oracles import causal_mask, exact, grouped_attention
from tests.support.precision import short_types
from tests.support.ragged import Shape, check_paged, draw
from tiny_llm.kernels import gpu_operations, paged_gpu
from tiny_llm.kernels.gpu_operations import FEW_QUERIES, flash_attention_gpu
from tiny_llm.kernels.paged_gpu import paged_attention_gpu

both_languages = pytest.mark.parametrize("language", ["metal", "cuda"])
TOLERANCE = {mx.float16: 1e-3, mx.bfloat16: 8e-3}
SHAPES = [  # B, H_q, H, L, S and D
    (2, 1, 1, 9, 9, 64),
    (1, 8, 1, 17, 33, 64),
    (1, 2, 2, 65, 131, 64),
    (2, 4, 2, 33, 64, 128),
]
RAGGED = [
    Shape((9, 70, 1), (9, 97, 5), H_q=3, H=1, D=64, block_size=5),
    Shape((33, 10), (64, 43), H_q=4, H=2, D=128, block_size=16),
]


def attend_blocks(target: Target, *arguments: Any, **options: Any) -> mx.array:
    """Paged attention whose chunks are on matrix units."""
    return paged_attention_gpu(*arguments, target=target, many=attend_paged_tiles, tile=QUERIES, **options)


def draw_dense(
    B: int, H_q: int, H: int, L: int, S: int, D: int, dtype: mx.Dtype
) -> tuple[mx.array, mx.array, mx.array]:
    query, key = normal(B, H_q, L, D, seed=1, dtype=dtype), normal(B, H, S, D, seed=2, dtype=dtype)
    return query, key, normal(B, H, S, D, seed=3, dtype=dtype)


@short_types
@both_languages
def test_numbers(language: Language, dtype: mx.Dtype) -> None:
    for shape, order in zip(SHAPES, (0, BACKWARD, 2, 3), strict=True):
        arrays, (L, S) = draw_dense(*shape, dtype), shape[3:5]
        for is_causal, scale in ((True, None), (False, 0.3)):
            mask = causal_mask(L, S) if is_causal else 0.0
            expected = grouped_attention(*map(exact, arrays), scale, mask)
            actual = attend_tiles(*arrays, scale, is_causal, Target(language, "emulator", order))
            check_equal(actual.dtype, dtype, "type")
            check_close(actual, expected, f"attention of {shape}, causal {is_causal}", TOLERANCE[dtype])


@short_types
@both_languages
def test_numbers_in_blocks(language: Language, dtype: mx.Dtype) -> None:
    for shape, order in zip(RAGGED, (0, BACKWARD), strict=True):
        target = Target(language, "emulator", order)
        check_paged(
            lambda *arguments, target=target, **options: attend_blocks(target, *arguments, **options),
            draw(shape, dtype),
            f"attention of {shape}",
            TOLERANCE[dtype],
            0.2,
        )


@both_languages
def test_parts_of_a_cache_are_read_where_they_lie(language: Language) -> None:
    """Of 50 tokens and 3 heads, and with the dimensions first: as if they were copied."""
    query, *cache = draw_dense(2, 4, 3, 20, 50, 64, mx.bfloat16)
    for what, arrays in {
        "a part": [x[:, :2, 5:42] for x in cache],
        "dimensions first": [mx.contiguous(x.swapaxes(2, 3))[:, :2].swapaxes(2, 3) for x in cache],
    }.items():
        target = Target(language, "emulator")
        copied = attend_tiles(query, *map(mx.contiguous, arrays), target=target)
        check_close(attend_tiles(query, *arrays, target=target), copied, what, tolerance=0)


@short_types
@both_languages
def test_weights_add_up_to_one(language: Language, dtype: mx.Dtype) -> None:
    """For large scores as well."""
    query, key, value = draw_dense(1, 1, 1, 20, 70, 64, dtype)
    output = attend_tiles(
        20 * query, key, mx.full(value.shape, 1.5, dtype), target=Target(language, "emulator")
    )
    check_close(output, mx.full(output.shape, 1.5, dtype), "mean of equal values", tolerance=0)


def test_which_attention_takes_what(monkeypatch: pytest.MonkeyPatch) -> None:
    """The matrix units have heads of 64 and 128, short types and many queries; else nothing changes."""
    target = Target("metal", "emulator")
    for each in (module, gpu_operations, paged_gpu):
        monkeypatch.setattr(each, "default_target", lambda: target)
    use_device(mx.gpu, monkeypatch)
    query, key, value = draw_dense(1, 2, 1, FEW_QUERIES + 1, 20, 64, mx.float16)
    tiles = attend_tiles(query, key, value, 0.3, is_causal=True)
    check_close(tiled_attention(query, key, value, 0.3, "causal"), tiles, "many of float16", tolerance=0)
    whole = query, key, value, 0.3, "causal"
    hidden = mx.array(causal_mask(FEW_QUERIES + 1, 20)).astype(mx.float16)
    others = {
        "few": (query[:, :, 1:], key, value, 0.3, "causal"),
        "a mask that is an array": (*whole[:4], hidden),
        "float32": (*(x.astype(mx.float32) for x in (query, key, value)), 0.3, "causal"),
        "heads of 32": (*(x[..., :32] for x in (query, key, value)), 0.3, "causal"),
    }
    for what, arguments in others.items():
        expected = flash_attention_gpu(*arguments)
        check_close(tiled_attention(*arguments), expected, what, tolerance=0)
    ragged = draw(RAGGED[0], mx.bfloat16).arguments
    check_close(tiled_paged_attention(*ragged), attend_blocks(target, *ragged), "in blocks", tolerance=0)
    monkeypatch.setenv("TINY_LLM_INVARIANT", "1")
    check_close(tiled_attention(*whole), flash_attention_gpu(*whole), "invariant", tolerance=0)
    check_close(
        tiled_paged_attention(*ragged), paged_attention_gpu(*ragged), "blocks, invariant", tolerance=0
    )
    monkeypatch.delenv("TINY_LLM_INVARIANT")
    with check_value_error(L=FEW_QUERIES + 1, S=FEW_QUERIES):
        tiled_attention(query, key[:, :, :FEW_QUERIES], value[:, :, :FEW_QUERIES], 0.3, "causal")
