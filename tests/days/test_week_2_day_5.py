"""Week 2 day 5: FlashAttention as a kernel."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import numpy as np
import pytest

from accelerated import fused_operations
from accelerated.fused_operations import rms_norm, rotate, swiglu
from accelerated.fused_parts import FusedNorm, FusedRope, fused_mlp
from kernel_runtime.launch import BACKWARD, FORWARD, Language, Target
from tests.support import oracles
from tests.support.attentions import (
    Boundary,
    at_every_boundary,
    check_boundary,
    check_short_scores,
    make_mask,
)
from tests.support.bits import ROWS, check_rows
from tests.support.blocks import block_mistakes
from tests.support.causes import NOT_TO_BE_READ
from tests.support.check import check_close, check_equal, check_value_error, normal
from tests.support.checkpoints import VARIANTS, build, save
from tests.support.cpu_kernels import (
    check_threads,
    compiled_for,
    on_every_target,
    poison,
    rows_of,
    spread,
    threads,
    use_device,
)
from tests.support.fences import FencedKernel
from tests.support.oracles import LOW_PRECISION, Array, exact, grouped_attention, grouped_attention_mistakes
from tests.support.oracles import causal_mask as exact_mask
from tests.support.passes import PASSES
from tiny_llm import ModelConfig, scaled_dot_product_attention_grouped
from tiny_llm.kernels import dispatch_attention as attention_module
from tiny_llm.kernels import gpu_operations
from tiny_llm.kernels.dispatch_attention import dispatch_attention, flash_attention_cpu
from tiny_llm.kernels.gpu_operations import flash_attention_gpu
from tiny_llm.kernels.gpu_sizes import HEAD_DIMS
from tiny_llm.kernels.quantized_matmul import quantized_matmul
from tiny_llm.model.loader import load_model
from tiny_llm.model.operations import Operations
from tiny_llm.ops.attention import Mask

Shape = tuple[int, int, int, int, int, int]
"""B, H_q, H, L, S, D."""

ORDERS = [FORWARD, BACKWARD, *range(2, 7)]
PREFILL: list[Shape] = [
    (1, 1, 1, 9, 9, 32),
    (2, 6, 2, 37, 71, 64),
    (1, 3, 1, 32, 32, 64),
    (1, 2, 2, 33, 65, 64),
    (2, 4, 2, 70, 11, 64),
]
DECODE: list[Shape] = [
    (1, 1, 1, 1, 1, 32),
    (1, 2, 1, 1, 5, 64),
    (2, 6, 2, 1, 71, 64),
    (2, 3, 3, 8, 131, 64),
    (1, 6, 3, 5, 3, 64),
]

Attend = Callable[..., mx.array]

need_metal = pytest.mark.skipif(not mx.metal.is_available(), reason="needs an Apple GPU (Metal)")
need_cuda = pytest.mark.skipif(not mx.cuda.is_available(), reason="needs an NVIDIA GPU (CUDA)")


def draw(
    shape: Shape, dtype: mx.Dtype = mx.float32, size: float = 1.0
) -> tuple[mx.array, mx.array, mx.array]:
    """Query, key and value, the query's entries of a given size.

    If that is large, both factors of the scores are rounded to few bits. Then any order adds them up to the
    same, and what a processor rounds on the way does not decide.
    """
    B, H_q, H, L, S, D = shape
    query, key = normal(B, H_q, L, D, seed=1) * size, normal(B, H, S, D, seed=2)
    if size > 1:
        query, key = mx.round(query), mx.round(16 * key) / 16
    return query.astype(dtype), key.astype(dtype), normal(B, H, S, D, seed=3, dtype=dtype)


def on_target(target: Target) -> Attend:
    return partial(flash_attention_gpu, target=target)


def check_attention(
    attend: Attend,
    shape: Shape,
    mask: mx.array | Literal["causal"] | None = None,
    scale: float | None = None,
    dtype: mx.Dtype = mx.float32,
    tolerance: float = 1e-5,
    size: float = 1.0,
    what: str = "",
) -> None:
    """Compare attention with that in numpy and float64."""
    __tracebackhide__ = True
    B, H_q, H, L, S, D = shape
    query, key, value = draw(shape, dtype, size)
    operands = exact(query), exact(key), exact(value)
    is_causal = isinstance(mask, str)
    added: Array | float = exact_mask(L, S) if is_causal else 0.0 if mask is None else exact(mask)
    kind = "causal mask" if is_causal else "no mask" if mask is None else f"mask {mask.shape}"
    poison(B, H_q, L, D)
    check_close(
        attend(query, key, value, scale, mask),
        grouped_attention(*operands, scale, added),
        what or f"B={B} H_q={H_q} H={H} L={L} S={S} D={D}, {kind}",
        tolerance,
        {
            **grouped_attention_mistakes(*operands, scale, added, is_causal),
            **block_mistakes(*operands, scale, added),
        },
    )


def check_causal(attend: Attend, shape: Shape) -> None:
    """Of no more queries than keys."""
    __tracebackhide__ = True
    B, H_q, H, L, S, D = shape
    check_attention(attend, (B, H_q, H, L, max(L, S), D), "causal")


def check_head_dim(attend: Attend, D: int) -> None:
    """A decode and a prefill."""
    __tracebackhide__ = True
    for L, S in ((2, 41), (34, 71)):
        check_attention(attend, (1, 2, 1, L, S, D), "causal")


def check_masks(attend: Attend, shape: Shape) -> None:
    """An additive mask of every shape that broadcasts."""
    __tracebackhide__ = True
    B, H_q, _, L, S, _ = shape
    shapes = [(S,), (L, S), (H_q, L, S), (B, 1, L, S), (B, 1, 1, S), (1, H_q, L, S), (B, H_q, 1, S)]
    for mask_shape in [*shapes, (B, H_q, L, S)]:
        check_attention(attend, shape, make_mask(*mask_shape))
    check_attention(attend, shape, normal(L, 1, seed=8))


def check_hidden_blocks(attend: Attend, L: int) -> None:
    """Rows that see two keys far apart, so that whole blocks are hidden, the first ones or the last."""
    __tracebackhide__ = True
    S = 150
    mask = np.full((L, S), -np.inf, np.float32)
    for i in range(L):
        mask[i, (37 * i + 149) % S] = 0.0
        mask[i, (37 * i + 91) % S] = -1.0
    check_attention(attend, (1, 2, 1, L, S, 32), mx.array(mask))


def check_large_scores(attend: Attend, L: int) -> None:
    """Scores of some thousands, and of -200: only exponentials of differences are neither inf nor all 0."""
    __tracebackhide__ = True
    check_attention(attend, (1, 2, 1, L, 83, 64), "causal", size=300.0)
    below = mx.full((L, 83), -200.0)
    check_attention(attend, (1, 2, 1, L, 83, 64), below, tolerance=1e-4)


def check_hidden_row(attend: Attend, L: int, S: int, D: int) -> None:
    """A row that sees no key is nan, as in the plain version, and no other row is."""
    __tracebackhide__ = True
    mask = mx.zeros((L + 1, S))
    mask[1] = -mx.inf
    operands = draw((1, 1, 1, L + 1, S, D))
    plain = scaled_dot_product_attention_grouped(*operands, mask=mask)
    for name, output in (("plain", plain), ("own", attend(*operands, mask=mask))):
        rows = [i for i, is_nan in enumerate(mx.isnan(output[0, 0]).all(axis=-1).tolist()) if is_nan]
        check_equal(rows, [1], f"queries whose {name} attention is nan")


def check_low_scores(attend: Attend, L: int) -> None:
    """Scores far below 0 count like others, after keys that are hidden and where there are no others."""
    __tracebackhide__ = True
    shape = (1, 2, 1, L, 150, 64)
    what = f"average of the values by scores of -20000 from the mask, {L=}: only -inf hides a key"
    check_attention(attend, shape, mx.full((L, 150), -20000.0), size=0.0, what=what)
    mask = mx.where(mx.arange(150) < 70, -mx.inf, -200.0) + mx.zeros((L, 1))
    what = f"attention, {L=}, to keys of scores near -200 after 70 hidden ones: the maximum stays -inf there"
    check_attention(attend, shape, mask, tolerance=1e-4, what=what)


def check_orders(language: Language) -> None:
    """In every order of the threads the result must be the same to the last bit."""
    __tracebackhide__ = True
    for L in (34, 2):
        shape = (1, 2, 1, L, 70, 32)
        first = flash_attention_gpu(*draw(shape), mask="causal", target=Target(language, "emulator", FORWARD))
        for order in ORDERS:
            attend, what = on_target(Target(language, "emulator", order)), f"order {order} of the threads"
            check_attention(attend, shape, "causal", what=f"causal attention, {what}")
            result = attend(*draw(shape), mask="causal")
            check_close(result, first, f"{what}, against order {FORWARD}", tolerance=0)


def check_random_shapes(target: Target, seed: int, count: int = 10) -> None:
    """Shapes, masks, scales, types and orders that nobody chose."""
    __tracebackhide__ = True
    random = np.random.default_rng(seed)
    types = [(mx.float32, 1e-5), *(parameter.values for parameter in LOW_PRECISION)]
    for number in range(count):
        B, H, groups = (int(n) for n in random.integers(1, 3, 3))
        L = int(random.integers(1, 9) if random.integers(2) else random.integers(9, 50))
        S = L + int(random.integers(0, 60))
        shape = (B, H * groups, H, L, S, int(random.choice(HEAD_DIMS[:4])))
        mask = [None, "causal", make_mask(L, S, seed=number) if S > 1 else None][random.integers(3)]
        scale = [None, 0.3][random.integers(2)]
        dtype, tolerance = types[random.integers(3)]
        place = Target(target.language, target.device, int(random.integers(50)))
        check_attention(on_target(place), shape, mask, scale, dtype, tolerance)


def check_axes(attend: Attend, D: int = 32) -> None:
    """Without a batch axis, and with two."""
    __tracebackhide__ = True
    for L in (3, 12):
        query, key, value = draw((4, 4, 2, L, 21, D))
        expected = grouped_attention(exact(query), exact(key), exact(value))
        check_close(attend(query[1], key[1], value[1]), expected[1], "attention without a batch axis")
        operands = [x.reshape(2, 2, *x.shape[1:]) for x in (query, key, value)]
        mask = make_mask(2, 1, 1, L, 21)
        added = np.broadcast_to(exact(mask), (2, 2, 1, L, 21)).reshape(4, 1, L, 21)
        expected = grouped_attention(exact(query), exact(key), exact(value), mask=added)
        result = attend(*operands, mask=mask)
        check_close(result, expected.reshape(2, 2, 4, L, D), "attention with two batch axes")


def check_strided_attention(attend: Attend, L: int) -> None:
    """Slices of a larger cache, heads that lie side by side, and a head dimension with a stride."""
    __tracebackhide__ = True
    query, key, value = draw((2, 4, 2, L, 71, 32))
    expected = grouped_attention(exact(query), exact(key), exact(value))
    pad = [(0, 0), (0, 0), (5, 24), (0, 0)]
    caches = [mx.pad(x, pad, constant_values=mx.array(NOT_TO_BE_READ))[:, :, 5:76] for x in (key, value)]
    check_close(attend(query, *caches), expected, "attention to slices of a larger cache")
    turned = [mx.contiguous(x.swapaxes(1, 2)).swapaxes(1, 2) for x in (query, key, value)]
    check_close(attend(*turned), expected, "attention of heads that lie side by side, [B, L, H, D]")
    for axis in (-1, -2, 1):
        check_close(attend(*(spread(x, axis) for x in (query, key, value))), expected, "attention of slices")


GPU_CHECKS: dict[str, Callable[[Attend], None]] = {
    **{f"attention {shape}": partial(check_attention, shape=shape) for shape in PREFILL},
    **{f"attention {shape}": partial(check_attention, shape=shape, scale=0.2) for shape in DECODE},
    **{f"causal attention {shape}": partial(check_causal, shape=shape) for shape in PREFILL + DECODE},
    **{f"head dimension {D}": partial(check_head_dim, D=D) for D in HEAD_DIMS},
    **{f"additive masks, {L=}": partial(check_masks, shape=(2, 4, 2, L, 39, 32)) for L in (3, 35)},
    **{f"blocks hidden from a row, {L=}": partial(check_hidden_blocks, L=L) for L in (1, 8, 40)},
    **{f"a row hidden everywhere, {L=}": partial(check_hidden_row, L=L, S=75, D=32) for L in (1, 40)},
    **{f"large scores, {L=}": partial(check_large_scores, L=L) for L in (2, 40)},
    **{
        f"{parameter.values[0]}, {shape=}".removeprefix("mlx.core."): partial(
            check_attention, shape=shape, mask=mask, dtype=parameter.values[0], tolerance=parameter.values[1]
        )
        for parameter in LOW_PRECISION
        for shape, mask in (((1, 4, 2, 1, 300, 64), None), ((1, 4, 2, 33, 90, 64), "causal"))
    },
    **{f"scores far below 0, {L=}": partial(check_low_scores, L=L) for L in (2, 40)},
    **{f"large scores in short types, {L=}": partial(check_short_scores, L=L) for L in (2, 40)},
    "other numbers of axes": check_axes,
    **{f"slices of a larger cache, {L=}": partial(check_strided_attention, L=L) for L in (1, 40)},
}
each_gpu_check = pytest.mark.parametrize("check", GPU_CHECKS.values(), ids=GPU_CHECKS)


# --- CPU: tasks 1 and 5 ------------------------------------------------------------------------------------


def on_cpu(
    query: mx.array, key: mx.array, value: mx.array, scale: float | None = None, mask: Mask = None
) -> mx.array:
    return flash_attention_cpu(query, key, value, query.shape[-1] ** -0.5 if scale is None else scale, mask)


CPU_PREFILL: list[Shape] = [(1, 3, 1, 100, 100, 32), (1, 2, 2, 33, 257, 16), (2, 6, 2, 3, 130, 80)]
CPU_DECODE: list[Shape] = [(1, 2, 1, 1, 64, 64), (2, 4, 4, 1, 65, 48), (1, 4, 2, 2, 700, 32)]
cpu_shapes = pytest.mark.parametrize("shape", [*PREFILL, *CPU_PREFILL, *DECODE, *CPU_DECODE])
few_and_many = pytest.mark.parametrize("L", [1, 8, 40])


def check_attention_threads(attend: Attend, shape: Shape) -> None:
    """Who computes a block must not change it, and the threads must not meet."""
    __tracebackhide__ = True
    operands = draw(shape)
    check_threads(lambda: attend(*operands, None, "causal"), f"causal attention {shape}")
    with threads(4):
        check_attention(attend, shape, "causal", what="attention with 4 threads")


# --- task 1: C++ -------------------------------------------------------------------------------------------


@cpu_shapes
def test_task_1_attention(shape: Shape) -> None:
    check_attention(on_cpu, shape)


@cpu_shapes
def test_task_1_causal_attention(shape: Shape) -> None:
    check_causal(on_cpu, shape)


@few_and_many
def test_task_1_any_number_of_keys(L: int) -> None:
    for S in (1, 2, 63, 64, 65, 127, 129):
        check_attention(on_cpu, (1, 2, 1, L, S, 16))


def test_task_1_decode_against_a_long_cache() -> None:
    for L, S in ((1, 1031), (1, 512), (4, 513), (2, 3001)):
        check_attention(on_cpu, (1, 2, 1, L, S, 64))
        check_attention(on_cpu, (1, 2, 1, L, S, 64), "causal")


@pytest.mark.parametrize("D", [16, 32, 48, 64, 80, 96, 112, 128, 144, 192, 256])
def test_task_1_every_head_dimension(D: int) -> None:
    check_head_dim(on_cpu, D)


@pytest.mark.parametrize("scale", [0.3, 2.0])
def test_task_1_scale(scale: float) -> None:
    check_attention(on_cpu, (1, 4, 2, 3, 71, 32), scale=scale)
    check_attention(on_cpu, (1, 4, 2, 35, 71, 32), "causal", scale)


@pytest.mark.parametrize("L", [3, 35])
def test_task_1_additive_masks(L: int) -> None:
    check_masks(on_cpu, (2, 4, 2, L, 139, 32))


@few_and_many
def test_task_1_blocks_hidden_from_a_row(L: int) -> None:
    S = 601
    for hidden in (range(0, 300), range(64, 128), range(1, 601), range(0, 600), range(256, 512)):
        mask = mx.zeros((L, S))
        mask[::2, hidden.start : hidden.stop] = -mx.inf
        what = f"attention in which every other query does not see keys {hidden.start} to {hidden.stop - 1}"
        check_attention(on_cpu, (1, 2, 1, L, S, 16), mask, what=what)


@few_and_many
def test_task_1_a_row_hidden_everywhere_is_nan_as_in_the_plain_version(L: int) -> None:
    check_hidden_row(on_cpu, L, 300, 16)


@few_and_many
def test_task_1_large_scores(L: int) -> None:
    """Scores of some thousands, of either sign: only exponentials of differences stay finite."""
    shape = (1, 2, 1, L, 331, 64)
    query, key, value = draw(shape)
    # Whole numbers, so that the scores are exact in any order of summation.
    query, key = mx.round(64 * query), mx.round(8 * key)
    for lift in (0.0, -5000.0):
        mask = mx.full((L, 331), lift)
        expected = grouped_attention(exact(query), exact(key), exact(value), mask=lift)
        actual = on_cpu(query, key, value, mask=mask)
        check_close(actual, expected, f"attention with scores in the hundreds, plus {lift}")


@few_and_many
def test_task_1_scores_far_below_zero(L: int) -> None:
    check_low_scores(on_cpu, L)


@few_and_many
def test_task_1_large_scores_in_short_types(L: int) -> None:
    check_short_scores(on_cpu, L)


@few_and_many
def test_task_1_nothing_behind_an_array_is_touched(L: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_module, "FLASH_ATTENTION", FencedKernel(attention_module.FLASH_ATTENTION))
    shape = (1, 4, 2, L, 71, 16)
    check_attention(on_cpu, shape)
    check_attention(on_cpu, shape, make_mask(1, 4, L, 71))


@few_and_many
def test_task_1_arrays_that_are_not_contiguous(L: int) -> None:
    check_strided_attention(on_cpu, L)


@pytest.mark.parametrize("shape", [(2, 4, 2, 130, 300, 32), (1, 4, 2, 1, 1031, 32)], ids=str)
def test_task_1_threads_do_not_matter(shape: Shape) -> None:
    check_attention_threads(on_cpu, shape)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_task_1_sums_are_float32(dtype: mx.Dtype) -> None:
    rounding = {mx.float16: 1e-3, mx.bfloat16: 8e-3}[dtype]
    for L in (1, 40):
        operands = draw((1, 4, 2, L, 700, 32), dtype)
        actual = on_cpu(*operands)
        check_equal(actual.dtype, dtype, "type of the attention")
        expected = grouped_attention(*map(exact, operands))
        check_close(actual, expected, f"attention of {dtype}, rounded once", rounding)


@on_every_target
def test_task_1_other_processors(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = compiled_for(target, attention_module.FLASH_ATTENTION, monkeypatch)
    monkeypatch.setattr(attention_module, "FLASH_ATTENTION", kernel)
    for L in (1, 40):
        check_attention(on_cpu, (1, 2, 1, L, 300, 80), "causal", what=f"attention on {target}, {L=}")


# --- task 2: Metal -----------------------------------------------------------------------------------------

METAL = Target("metal", "emulator")


@each_gpu_check
def test_task_2_metal(check: Callable[[Attend], None]) -> None:
    check(on_target(METAL))


def test_task_2_the_order_of_the_threads_does_not_matter() -> None:
    check_orders("metal")


def test_task_2_random_shapes() -> None:
    check_random_shapes(METAL, seed=4)


def test_task_2_what_does_not_fit_is_refused() -> None:
    query, key, value = draw((1, 6, 2, 4, 5, 32))
    attend = on_target(METAL)
    attend(query, key, value)
    with check_value_error(H_q=5, H=2):
        attend(query[:, :5], key, value)
    with check_value_error(L=4, S=3):
        attend(query, key[:, :, :3], value[:, :, :3], mask="causal")
    with check_value_error(D=24):
        attend(query[..., :24], key[..., :24], value[..., :24])
    with check_value_error():
        attend(query, key.astype(mx.float16), value)
    with check_value_error(mask=(4, 4)):
        attend(query, key, value, mask=mx.zeros((4, 4)))
    with check_value_error(key=(1, 2, 5, 32), value=(1, 2, 3, 32)):
        attend(query, key, value[:, :, :3])


@need_metal
def test_task_2_on_the_gpu() -> None:
    check_everything_once(Target("metal"))


# --- task 3: CUDA ------------------------------------------------------------------------------------------

CUDA = Target("cuda", "emulator")


@each_gpu_check
def test_task_3_cuda(check: Callable[[Attend], None]) -> None:
    check(on_target(CUDA))


def test_task_3_the_order_of_the_threads_does_not_matter() -> None:
    check_orders("cuda")


def test_task_3_random_shapes() -> None:
    check_random_shapes(CUDA, seed=5)


@need_cuda
def test_task_3_on_the_gpu() -> None:
    check_everything_once(Target("cuda"))


def check_everything_once(target: Target) -> None:
    """What the emulator is asked, asked of a GPU."""
    __tracebackhide__ = True
    for check in GPU_CHECKS.values():
        check(on_target(target))
    check_random_shapes(target, seed=6, count=40)


# --- task 4: small operations ------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def small_operations_on_the_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU they are MLX's own, and there is nothing to test."""
    if request.node.name.startswith("test_task_4_"):
        use_device(mx.cpu, monkeypatch)


def check_rms_norm(shape: tuple[int, ...], eps: float = 1e-2, size: float = 1.0, what: str = "") -> None:
    __tracebackhide__ = True
    x, weight = size * (normal(*shape, seed=1) + 0.5), normal(shape[-1], seed=2)
    poison(*shape)
    check_close(
        rms_norm(x, weight, eps),
        oracles.rms_norm(exact(x), exact(weight), eps),
        what or f"x {shape}, normalized, eps {eps}",
        mistakes=oracles.rms_norm_mistakes(exact(x), exact(weight), eps),
    )


@pytest.mark.parametrize(
    "shape", [(1, 64), (7,), (3, 5, 37), (1, 1, 576), (131, 1000), (2, 3, 4, 16)], ids=str
)
def test_task_4_rms_norm(shape: tuple[int, ...]) -> None:
    check_rms_norm(shape)


@pytest.mark.parametrize(("eps", "size"), [(1e-6, 0.1), (1e-2, 0.1), (3.0, 0.1), (1e-6, 1e-12), (1e-6, 1e15)])
def test_task_4_eps_is_inside_the_root_for_small_and_large_vectors(eps: float, size: float) -> None:
    check_rms_norm((3, 5, 37), eps, size)


def tables(num_positions: int, D: int) -> tuple[mx.array, mx.array]:
    """cos and sin [num_positions, D / 2] of the usual angles."""
    angles = np.arange(num_positions)[:, None] * oracles.rope_frequencies(D, 10000)
    return mx.array(np.cos(angles).astype(np.float32)), mx.array(np.sin(angles).astype(np.float32))


def check_rotation(
    shape: tuple[int, int, int, int], first: list[int], traditional: bool, what: str = ""
) -> None:
    __tracebackhide__ = True
    B, L, _, D = shape
    x, frequencies = normal(*shape, seed=1), oracles.rope_frequencies(D, 10000)
    positions = np.array(rows_of(first * (B // len(first)), L))
    poison(*shape)
    check_close(
        rotate(x, *tables(50, D), first, traditional),
        oracles.rotate(exact(x), positions, frequencies, traditional),
        what or f"x {shape} from positions {first}, {traditional=}",
        mistakes=oracles.rotation_mistakes(exact(x), positions, frequencies, traditional),
    )


@pytest.mark.parametrize("traditional", [False, True], ids=["halves", "neighbours"])
@pytest.mark.parametrize("first", [[0], [7], [3, 17], [41, 0]], ids=str)
@pytest.mark.parametrize("shape", [(2, 9, 3, 16), (2, 1, 5, 64), (2, 5, 1, 2), (2, 3, 7, 38)], ids=str)
def test_task_4_rope(shape: tuple[int, int, int, int], first: list[int], traditional: bool) -> None:
    check_rotation(shape, first, traditional)


def check_swiglu(gate: mx.array, up: mx.array, what: str) -> None:
    __tracebackhide__ = True
    left, right = exact(gate), exact(up)
    poison(*gate.shape)
    with np.errstate(over="ignore"):
        expected = oracles.silu(left) * right

    def times_up(mistake: Callable[[], Array]) -> Array:
        return mistake() * right

    mistakes: oracles.Mistakes = {
        "gate and up swapped": lambda: left * oracles.silu(right),
        "silu of the gate, without up": lambda: oracles.silu(left),
        "gate * up, without silu": lambda: left * right,
        **{
            f"{name}, x the gate, times up": partial(times_up, mistake)
            for name, mistake in oracles.silu_mistakes(left).items()
        },
    }
    check_close(swiglu(gate, up), expected, what, mistakes=mistakes)


@pytest.mark.parametrize("shape", [(1,), (3,), (16,), (5, 7), (1, 1, 1537), (3, 20011)], ids=str)
def test_task_4_swiglu(shape: tuple[int, ...]) -> None:
    check_swiglu(3 * normal(*shape, seed=1), normal(*shape, seed=2), f"silu(gate) * up of {shape}")


def test_task_4_swiglu_of_every_number_of_entries() -> None:
    for count in range(1, 40):
        check_swiglu(normal(count, seed=1), normal(count, seed=2), f"silu(gate) * up of {count} entries")
    check_rows(lambda x: swiglu(x, -x), normal(ROWS, 61, seed=1), "silu(gate) * up of 61 entries a row")


@pytest.mark.parametrize("count", [5, 64])
@pytest.mark.parametrize("size", [1e-4, 50.0, 100.0, 1e4, 1e30])
def test_task_4_swiglu_of_large_and_small_gates(size: float, count: int) -> None:
    gate = size * normal(count, seed=1)
    check_swiglu(gate, normal(count, seed=2), f"silu(gate) * up, gates of about {size}")
    check_swiglu(-mx.abs(gate), normal(count, seed=2), f"silu(gate) * up, gates of about -{size}")


SMALL_OPERATIONS: dict[str, Callable[[mx.array], mx.array]] = {
    "rms_norm": lambda x: rms_norm(x, normal(x.shape[-1], seed=2), 1e-5),
    "rope": lambda x: rotate(x, *tables(50, x.shape[-1]), [3, 17]),
    "swiglu": lambda x: swiglu(x, normal(*x.shape, seed=3)),
}
every_operation = pytest.mark.parametrize("name", SMALL_OPERATIONS)


@every_operation
def test_task_4_arrays_that_are_not_contiguous(name: str) -> None:
    x = normal(2, 9, 3, 16, seed=1)
    for axis in (-1, 1):
        expected = SMALL_OPERATIONS[name](x)
        check_close(SMALL_OPERATIONS[name](spread(x, axis)), expected, f"{name} of a slice of a larger array")


@every_operation
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_task_4_type_is_kept_and_sums_are_float32(name: str, dtype: mx.Dtype) -> None:
    x = normal(2, 9, 3, 512, seed=1, dtype=dtype)
    actual, expected = SMALL_OPERATIONS[name](x), SMALL_OPERATIONS[name](x.astype(mx.float32))
    check_equal(actual.dtype, dtype, f"type of {name}")
    rounding = {mx.float16: 1e-3, mx.bfloat16: 8e-3}[dtype]
    check_close(actual, exact(expected), f"{name} of {dtype}, rounded once", rounding)


@every_operation
def test_task_4_threads_do_not_matter(name: str) -> None:
    sizes = {"rms_norm": (4096, 1024), "rope": (2, 23, 101, 64), "swiglu": (512, 1024)}
    x = normal(*sizes[name], seed=1)
    check_threads(lambda: SMALL_OPERATIONS[name](x), f"{name} of {x.shape}")
    check_rms_norm((2, 23, 29, 64), what="x, normalized by many threads")
    check_rotation((2, 23, 29, 64), [3, 17], False, what="x, rotated by many threads")


def test_task_4_nothing_behind_an_array_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RMS_NORM", "ROPE", "SWIGLU"):
        monkeypatch.setattr(fused_operations, name, FencedKernel(getattr(fused_operations, name)))
    check_rms_norm((3, 5, 37))
    check_rotation((2, 9, 3, 38), [3, 17], False)
    check_swiglu(normal(3, 37, seed=1), normal(3, 37, seed=2), "silu(gate) * up")


@on_every_target
def test_task_4_other_processors(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RMS_NORM", "ROPE", "SWIGLU"):
        kernel = compiled_for(target, getattr(fused_operations, name), monkeypatch)
        monkeypatch.setattr(fused_operations, name, kernel)
    check_rms_norm((3, 5, 37), what=f"x, normalized on {target}")
    check_rotation((2, 9, 3, 38), [3, 17], False, what=f"x, rotated on {target}")
    check_swiglu(normal(3, 37, seed=1), normal(3, 37, seed=2), f"silu(gate) * up on {target}")
    check_swiglu(200 * normal(3, 37, seed=1), normal(3, 37, seed=2), f"the same on {target}, large gates")


# --- task 5: one dispatch ----------------------------------------------------------------------------------


@pytest.mark.parametrize("D", [16, 48, 64, 80, 128])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_task_5_head_dimensions_of_the_kernel(
    D: int, mask: Literal["causal"] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    kernel = attention_module.FLASH_ATTENTION

    def counting(*arguments: Any) -> list[mx.array]:
        calls.append(arguments[0][0].shape[-1])
        return kernel(*arguments)

    monkeypatch.setattr(attention_module, "FLASH_ATTENTION", counting)
    use_device(mx.cpu, monkeypatch)
    for L in (1, 35):
        check_attention(dispatch_attention, (2, 4, 2, L, 71, D), mask)
    check_equal(set(calls), {D}, "head dimensions that the C++ kernel got")


@pytest.mark.parametrize("D", [1, 7, 8, 24, 40])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_task_5_other_head_dimensions(
    D: int, mask: Literal["causal"] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_kernel(inputs: Any, *_: Any) -> list[mx.array]:
        pytest.fail(f"the C++ kernel got {D=}, and it would read and write past it")

    monkeypatch.setattr(attention_module, "FLASH_ATTENTION", no_kernel)
    use_device(mx.cpu, monkeypatch)
    for L in (1, 35):
        check_attention(dispatch_attention, (2, 4, 2, L, 71, D), mask)


@pytest.mark.parametrize("D", [16, 20])
def test_task_5_additive_masks_and_scales(D: int) -> None:
    for L in (3, 35):
        check_masks(dispatch_attention, (2, 4, 2, L, 71, D))
        check_attention(dispatch_attention, (2, 4, 2, L, 71, D), "causal", scale=0.3)


@pytest.mark.parametrize("D", [16, 20])
@at_every_boundary
def test_task_5_boundaries_of_attention(boundary: Boundary, D: int) -> None:
    check_boundary(dispatch_attention, boundary, D)


@pytest.mark.parametrize("D", [16, 20])
def test_task_5_other_numbers_of_axes(D: int) -> None:
    check_axes(dispatch_attention, D)


@pytest.mark.parametrize("device", [mx.cpu, mx.gpu], ids=["cpu", "gpu"])
@pytest.mark.parametrize("D", [16, 20, 64])
def test_task_5_arrays_without_entries(
    D: int, device: mx.DeviceType, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_device(device, monkeypatch)
    query, key, value = draw((1, 4, 2, 5, 21, D))
    no_queries = dispatch_attention(query[:, :, :0], key, value)
    check_equal(no_queries.shape, (1, 4, 0, D), "shape of the attention of no queries")
    empty_batch = dispatch_attention(query[:0], key[:0], value[:0])
    check_equal(empty_batch.shape, (0, 4, 5, D), "shape of the attention of an empty batch")
    with check_value_error():  # as the plain version says it
        dispatch_attention(query, key[:, :, :0], value[:, :, :0])


@pytest.mark.parametrize("D", [64, 24])
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_task_5_type_is_kept(dtype: mx.Dtype, D: int) -> None:
    operands = draw((1, 4, 2, 5, 71, D), dtype)
    for mask in (None, "causal", normal(5, 71, seed=9, dtype=dtype)):
        check_equal(dispatch_attention(*operands, None, mask).dtype, dtype, f"type with D={D}")


@pytest.mark.parametrize("D", [64, 24])
def test_task_5_what_does_not_fit_is_refused(D: int) -> None:
    query, key, value = draw((2, 6, 2, 4, 5, D))
    with check_value_error(H_q=5, H=2):
        dispatch_attention(query[:, :5], key, value)
    with check_value_error(L=4, S=3):
        dispatch_attention(query, key[:, :, :3], value[:, :, :3], None, "causal")
    with check_value_error():
        dispatch_attention(query, key, value, None, mx.zeros((4, 4)))
    wrong: Any = "Causal"
    with check_value_error(mask=wrong):
        dispatch_attention(query, key, value, None, wrong)


def test_task_5_what_the_kernel_would_read_past_is_refused() -> None:
    query, key, value = draw((2, 6, 2, 4, 5, 64))
    shorter = (key, value[:, :, :3])
    for keys, values in (
        shorter,
        (key[:1], value[:1]),
        (key[..., :32], value[..., :32]),
        (key, value[:, :1]),
    ):
        with check_value_error(query=(2, 6, 4, 64), key=keys.shape, value=values.shape):
            dispatch_attention(query, keys, values)


@pytest.mark.parametrize(
    ("D", "goes_to_gpu"), [(64, True), (80, True), (16, False), (48, False), (24, False)]
)
def test_task_5_a_gpu_gets_what_its_kernels_know(
    D: int, goes_to_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[object]] = []

    def on_gpu(query: mx.array, key: mx.array, value: mx.array, *rest: object) -> mx.array:
        calls.append(list(rest[:2]))
        return query

    for module in (attention_module, gpu_operations):
        monkeypatch.setattr(module, "flash_attention_gpu", on_gpu, raising=False)
    operands = draw((1, 4, 2, 5, 21, D))
    use_device(mx.cpu, monkeypatch)
    dispatch_attention(*operands, 0.3, "causal")
    check_equal(calls, [], "scales and masks that the GPU got though the default device is the CPU")
    use_device(mx.gpu, monkeypatch)
    dispatch_attention(*operands, 0.3, "causal")
    check_equal(calls, [[0.3, "causal"]] * goes_to_gpu, f"scales and masks that the GPU got, {D=}")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    chosen = [variant for variant in VARIANTS if variant.name in MODELS]
    ModelConfig.from_dict(chosen[0].config)  # a hole there is found before mlx-lm's import takes a second
    return {variant.name: save(variant, build(variant), folder / variant.name) for variant in chosen}


MODELS = ("qwen3", "qwen3-4bit", "qwen3-yarn", "qwen2-4bit", "llama-mixed-bits")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", PASSES)
def test_task_5_a_model_of_kernels_gives_the_same_logits(
    kind: str, name: str, checkpoints: dict[str, Path]
) -> None:
    plain = load_model(checkpoints[name])
    operations = Operations(
        FusedNorm, FusedRope, fused_mlp, attention=dispatch_attention, matmul=quantized_matmul
    )
    fast = load_model(checkpoints[name], operations=operations)
    check_close(PASSES[kind](fast), PASSES[kind](plain), f"logits {kind}", tolerance=1e-4)
