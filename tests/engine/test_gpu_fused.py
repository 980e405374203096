"""The small operations in one dispatch each on a GPU: the numbers of their twins on the CPU."""

import mlx.core as mx
import pytest

from accelerated.fused_operations import rotate, split_heads
from accelerated.fused_parts import FusedRope
from accelerated.gpu_fused import split_heads_gpu, swiglu_gpu, swiglu_halves_gpu
from kernel_runtime.launch import BACKWARD, Language, Target
from tests.support.check import check_close, check_equal, normal
from tiny_llm.ops.basics import silu

pytestmark = pytest.mark.usefixtures("on_cpu")
TOLERANCES = {mx.float32: 1e-6, mx.float16: 2e-3, mx.bfloat16: 2e-2}
both_languages = pytest.mark.parametrize("language", ["metal", "cuda"])
every_dtype = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)


def target(language: Language) -> Target:
    return Target(language, "emulator", BACKWARD)


@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("D", [16, 80])
@every_dtype
@both_languages
def test_heads(language: Language, dtype: mx.Dtype, D: int, traditional: bool, has_norms: bool) -> None:
    B, L, H_q, H = 3, 5, 6, 2
    product = normal(B, L, (H_q + 2 * H) * D, seed=1, dtype=dtype)
    rope, weights = FusedRope(D, 40, traditional=traditional), normal(2, D, seed=2, dtype=dtype)
    norms = (weights[0], weights[1], 1e-3) if has_norms else None
    arguments = product, H_q, H, rope.tables, norms, [7, 0, 35], traditional
    actual, expected = split_heads_gpu(*arguments, target=target(language)), split_heads(*arguments)
    for what, one, other in zip(("query", "key", "value"), actual, expected, strict=True):
        check_equal((one.shape, one.dtype), (other.shape, dtype), f"shape and type of {what}")
        check_close(one, other, what, TOLERANCES[dtype])


@both_languages
def test_heads_alone_are_rotated(language: Language, monkeypatch: pytest.MonkeyPatch) -> None:
    x, rope = normal(2, 5, 3, 16, seed=1), FusedRope(16, 40)
    only, *rest = split_heads_gpu(x.reshape(2, 5, 48), 3, 0, rope.tables, None, [7], target=target(language))
    check_close(only.swapaxes(1, 2), rotate(x, *rope.tables, [7]), "rotated heads", 1e-6)
    check_equal([each.shape for each in rest], [(2, 0, 5, 16)] * 2, "shapes of keys and values")


@pytest.mark.parametrize("size", [3, 64, 301])
@every_dtype
@both_languages
def test_gate(language: Language, dtype: mx.Dtype, size: int) -> None:
    product = 5 * normal(3, 7, 2 * size, seed=4, dtype=dtype)
    gate, up = product[..., :size], product[..., size:]
    expected = silu(gate.astype(mx.float32)) * up.astype(mx.float32)
    for what, actual in (
        ("halves of one product", swiglu_halves_gpu(product, target(language))),
        ("two products", swiglu_gpu(gate, up, target(language))),
    ):
        check_equal((actual.shape, actual.dtype), (expected.shape, dtype), f"shape and type for {what}")
        check_close(actual, expected, f"silu(gate) x up of {what}", TOLERANCES[dtype])


def test_what_is_empty_runs_no_kernel() -> None:
    rope, nowhere = FusedRope(16, 40), Target("metal", "gpu")
    heads = split_heads_gpu(mx.zeros((2, 0, 64)), 2, 1, rope.tables, None, [0], target=nowhere)
    check_equal([each.shape for each in heads], [(2, 2, 0, 16), (2, 1, 0, 16), (2, 1, 0, 16)], "no heads")
    for gated in (swiglu_halves_gpu(mx.zeros((0, 6)), nowhere), swiglu_gpu(*mx.zeros((2, 0, 3)), nowhere)):
        check_equal(gated.shape, (0, 3), "no gates")
