"""Patterns of shapes and types: what they let through, and what a sentence says of the rest."""

import re
from typing import Any

import mlx.core as mx
import pytest

from kernel_runtime.shapes import heads_per_kv_head, shaped
from tests.support.check import check_equal

RIGHT = {
    "x": mx.zeros((7, 6)),
    "rows": mx.zeros(2, mx.int32),
    "weights": mx.zeros((2, 3)),
    "others": mx.zeros((2, 7)),
}


@shaped(x="[..., 2 * K]", rows="[N] integer", weights="[N, K] same", others="[N, ...] same")
def pattern(x: mx.array, rows: mx.array, weights: mx.array, others: mx.array, factor: int = 1) -> int:
    """Check a pattern of each kind."""
    return factor


def test_arguments_may_be_named_or_not() -> None:
    arrays = list(RIGHT.values())
    found = [
        pattern(**RIGHT),
        pattern(*arrays, 2),
        pattern(*arrays, factor=3),
        pattern(*arrays[:2], weights=arrays[2], others=arrays[3]),
    ]
    check_equal(found, [1, 2, 3, 1], "what the function returns")
    with pytest.raises(TypeError, match="missing 1 required"):
        pattern(*arrays[:3])  # type: ignore[call-arg]
    check_equal((pattern.__name__, pattern.__doc__), ("pattern", "Check a pattern of each kind."), "names")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"x": mx.zeros((7, 5))}, "x must be [..., 2 * K], got (7, 5)"),
        ({"x": mx.array(0.0)}, "x must be [..., 2 * K], got ()"),
        ({"rows": mx.zeros((2, 1))}, "rows must be [N] integer, got (2, 1)"),
        ({"rows": mx.zeros(2)}, "rows must be of type integer, got mlx.core.float32"),
        ({"weights": mx.zeros((2, 4))}, "weights must be [N, K] same with N = 2, K = 3, got (2, 4)"),
        ({"weights": mx.zeros(3)}, "weights must be [N, K] same with N = 2, K = 3, got (3,)"),
        ({"others": mx.zeros((2, 8))}, "others must be [N, ...] same with N = 2, ... = (7,), got (2, 8)"),
        ({"others": mx.zeros(2)}, "others must be [N, ...] same with N = 2, ... = (7,), got (2,)"),
        (
            {"others": mx.zeros((2, 7), mx.int32)},
            "others must be of type mlx.core.float32, got mlx.core.int32",
        ),
    ],
)
def test_sentences(wrong: dict[str, Any], sentence: str) -> None:
    for _ in range(2):  # nothing that was refused is remembered as right
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
            pattern(**{**RIGHT, **wrong})


@pytest.mark.parametrize(("H_q", "H"), [(5, 2), (2, 4), (4, 0)])
def test_heads_that_cannot_be_shared_evenly(H_q: int, H: int) -> None:
    with pytest.raises(ValueError, match=f"{H_q} query heads cannot share {H} key heads"):
        heads_per_kv_head(H_q, H)
