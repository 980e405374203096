"""The border of compiled code: what would lead a kernel out of its arrays is refused before."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import pytest

from accelerated import fused_operations
from accelerated.fused_operations import rms_norm, rotate, split_heads, swiglu, swiglu_halves
from accelerated.fused_parts import FusedNorm, fused_mlp
from accelerated.integer_matmul import IntegerProjection, integer_matmul
from accelerated.mlx_parts import mlx_attention, mlx_matmul, mlx_paged_attention
from accelerated.quantize_blocks import quantize_blocks
from accelerated.sample_rows import sample_rows
from accelerated.store_rows import store_rows
from accelerated.tiled_attention import tiled_attention, tiled_paged_attention
from accelerated.tiled_matmul import tiled_matmul
from kernel_runtime.block_layout import BlockLayout, QuantizedBlocks
from kernel_runtime.cpu_kernel import CpuKernel
from tests.support.check import check_close, check_equal, normal
from tests.support.cpu_kernels import spread, use_device
from tiny_llm.kernels import quantized_matmul as packed
from tiny_llm.kernels.dispatch_attention import dispatch_attention
from tiny_llm.kernels.dispatch_grouped_matmul import (
    dispatch_grouped_matmul,
    grouped_matmul_cpu,
    grouped_matmul_mlx,
)
from tiny_llm.kernels.dispatch_paged_attention import dispatch_paged_attention
from tiny_llm.kernels.dispatch_quantized_attention import dispatch_quantized_attention
from tiny_llm.kernels.mask_rows import mask_rows
from tiny_llm.ops.basics import as_projection
from tiny_llm.ops.experts import ExpertWeights, grouped_matmul_simple
from tiny_llm.ops.flash_attention import flash_attention
from tiny_llm.ops.paged_attention import paged_attention, paged_attention_simple
from tiny_llm.ops.quantize import QuantizedProjection, QuantizedWeights, quantize_weights
from tiny_llm.ops.quantized_blocks import quantize_heads
from tiny_llm.ops.quantized_paged_attention import quantized_paged_attention_simple
from tiny_llm.paging.forward_batch import ForwardBatch
from tiny_llm.paging.paged_kv_cache import PagedKvCache, PagedKvPool
from tiny_llm.paging.quantized_kv_pool import QuantizedKvPool
from tiny_llm.scheduling.block_manager import BlockTable
from tiny_llm.scheduling.scheduler_output import ScheduledTokens, SchedulerOutput
from tiny_llm.scheduling.sequence import Sequence

pytestmark = pytest.mark.usefixtures("on_cpu")


@dataclass(frozen=True)
class Entry:
    """Functions that hand their arguments to a kernel.

    Args:
        functions: alike in their arguments.
        right: arguments that fit.
        wrong: other values that don't, by argument; all that are in one mapping are given at once.
        words: what a sentence names, if it is no argument.
        is_for_gpu: whether these also run on a GPU.
    """

    functions: tuple[Callable[..., Any], ...]
    right: Mapping[str, Any]
    wrong: tuple[Mapping[str, Any], ...]
    words: tuple[str, ...] = ()
    is_for_gpu: bool = True


def ints(*numbers: Any) -> mx.array:
    return mx.array(numbers, mx.int32)


WEIGHTS = quantize_weights(normal(24, 128, seed=1))
EXPERTS = ExpertWeights(quantize_weights(normal(3 * 8, 64, seed=2), 64, 4), 3)
TABLES = normal(10, 8, seed=3), normal(10, 8, seed=4)
BLOCKS = normal(6, 4, 2, 64, seed=5)
ATTENTION = {
    "query": normal(2, 4, 3, 64, seed=6),
    "key": normal(2, 2, 5, 64, seed=7),
    "value": normal(2, 2, 5, 64, seed=8),
    "scale": 0.2,
    "mask": "causal",
}
WRONG_ATTENTION: tuple[Mapping[str, Any], ...] = (
    {"value": normal(2, 2, 6, 64, seed=9)},
    {"value": normal(2, 2, 4, 64, seed=9)},
    {"value": normal(2, 2, 5, 32, seed=9)},
    {"key": normal(2, 2, 4, 64, seed=9)},
    {"key": normal(2, 2, 5, 32, seed=9), "value": normal(2, 2, 5, 32, seed=9)},
    {"key": normal(3, 2, 5, 64, seed=9), "value": normal(3, 2, 5, 64, seed=9)},
    {"key": normal(2, 3, 5, 64, seed=9), "value": normal(2, 3, 5, 64, seed=9)},
    {"key": normal(2, 2, 2, 64, seed=9), "value": normal(2, 2, 2, 64, seed=9)},
    {"key": normal(2, 0, 5, 64, seed=9), "value": normal(2, 0, 5, 64, seed=9)},
    {"mask": "Causal"},
    {"mask": normal(2, 4, 3, 6, seed=9)},
)
LAYOUT = BlockLayout(ints([3, 1], [2, 0]), ints(0, 2, 3), ints(7, 4))
WRONG_LAYOUTS: tuple[Mapping[str, Any], ...] = (
    {"query": normal(4, 4, 64, seed=9)},
    {"query": normal(3, 3, 64, seed=9)},
    {"query": normal(3, 4, 32, seed=9)},
    {"layout": replace(LAYOUT, block_tables=ints([3, 1]))},
    {"layout": replace(LAYOUT, block_tables=ints([3, 6], [2, 0]))},
    {"layout": replace(LAYOUT, block_tables=ints([3, -1], [2, 0]))},
    {"layout": replace(LAYOUT, block_tables=mx.array([[3.0, 1.0], [2.0, 0.0]]))},
    {"layout": replace(LAYOUT, query_start_loc=ints(0, 3, 2))},
    {"layout": replace(LAYOUT, query_start_loc=ints(0, 3))},
    {"layout": replace(LAYOUT, query_start_loc=ints(1, 2, 3))},
    {"layout": replace(LAYOUT, seq_lens=ints(9, 4))},
    {"layout": replace(LAYOUT, seq_lens=ints(1, 4))},
    {"layout": replace(LAYOUT, seq_lens=ints(7, -4))},
    {"layout": replace(LAYOUT, seq_lens=ints(7))},
)
QUANTIZED = QuantizedBlocks(quantize_heads(BLOCKS, 8), quantize_heads(BLOCKS, 4), BLOCKS[:3], 2 * BLOCKS[:3])
ENTRIES = {
    "norm": Entry(
        (rms_norm,),
        {"x": normal(3, 5, 64, seed=1), "weight": normal(64, seed=2), "eps": 1e-3},
        (
            {"weight": normal(32, seed=3)},
            {"weight": normal(65, seed=3)},
            {"weight": normal(1, seed=3)},
            {"weight": normal(64, 1, seed=3)},
            {"x": mx.array(1.0), "weight": normal(64, seed=3)},
        ),
    ),
    "rotation": Entry(
        (rotate,),
        {"x": normal(2, 3, 4, 16, seed=1), "cos": TABLES[0], "sin": TABLES[1], "first_positions": [7, 0]},
        (
            {"first_positions": [8, 0]},
            {"first_positions": [-1, 0]},
            {"first_positions": [1, 2, 3]},
            {"first_positions": []},
            {"x": normal(2, 3, 4, 17, seed=1)},
            {"x": normal(2, 3, 4, 32, seed=1)},
            {"x": normal(2, 3, 16, seed=1)},
            {"sin": TABLES[1][:9]},
            {"cos": TABLES[0].astype(mx.float16)},
        ),
        words=("first position",),
    ),
    "heads": Entry(
        (split_heads,),
        {
            "product": normal(2, 3, 8 * 16, seed=1),
            "num_heads": 4,
            "num_kv_heads": 2,
            "tables": TABLES,
            "norms": (normal(16, seed=2), normal(16, seed=3), 1e-3),
            "first_positions": [7, 0],
        },
        (
            {"first_positions": [8, 0]},
            {"first_positions": [1, 2, 3]},
            {"product": normal(2, 3, 8 * 16 + 8, seed=1)},
            {"product": normal(3, 8 * 16, seed=1)},
            {"num_heads": 5},
            {"tables": (TABLES[0], TABLES[1][:9])},
            {"tables": (TABLES[0], TABLES[1].astype(mx.float16))},
            {"tables": (TABLES[0][0], TABLES[1][0])},
            {"norms": (normal(16, seed=2), normal(8, seed=3), 1e-3)},
        ),
        words=("first position", "heads of D"),
    ),
    "swiglu": Entry(
        (swiglu,),
        {"gate": normal(3, 70, seed=1), "up": normal(3, 70, seed=2)},
        ({"up": normal(3, 69, seed=3)}, {"up": normal(70, seed=3)}, {"up": normal(1, 70, seed=3)}),
    ),
    "halves": Entry(
        (swiglu_halves,), {"product": normal(3, 70, seed=1)}, ({"product": normal(3, 71, seed=1)},)
    ),
    "packed product": Entry(
        (packed.quantized_matmul, integer_matmul, mlx_matmul, tiled_matmul),
        {"x": normal(2, 3, 128, seed=3), "weights": WEIGHTS},
        ({"x": normal(2, 3, 64, seed=3)}, {"x": normal(129, seed=3)}, {"x": normal(2, 0, seed=3)}),
    ),
    "packed product on a CPU": Entry(
        (packed.multiply_simple, packed.multiply_simd),
        {"x": normal(2, 3, 128, seed=3), "weights": WEIGHTS},
        (
            {"x": normal(2, 3, 64, seed=3)},
            {"x": normal(2, 3, 256, seed=3)},
            {"x": normal(2, 3, 128, seed=3, dtype=mx.bfloat16)},
        ),
        is_for_gpu=False,
    ),
    "experts": Entry(
        (grouped_matmul_cpu, grouped_matmul_mlx, grouped_matmul_simple, dispatch_grouped_matmul),
        {"x": normal(4, 64, seed=3), "experts": ints(0, 0, 2, 2), "weights": EXPERTS},
        (
            {"experts": ints(2)},
            {"experts": ints(0, 0, 2, 2, 2)},
            {"experts": ints([0, 0, 2, 2])},
            {"experts": mx.array([0.0, 0, 2, 2])},
            {"x": normal(4, 32, seed=3)},
            {"x": normal(4, 128, seed=3)},
            {"x": normal(2, 2, 64, seed=3)},
        ),
    ),
    "attention": Entry(
        (dispatch_attention, mlx_attention, tiled_attention, flash_attention),
        ATTENTION,
        WRONG_ATTENTION,
        words=("heads", "a mask of", "a causal mask", "broadcast"),
    ),
    "blocks": Entry(
        (
            dispatch_paged_attention,
            mlx_paged_attention,
            tiled_paged_attention,
            paged_attention,
            paged_attention_simple,
        ),
        {"query": normal(3, 4, 64, seed=1), "keys": BLOCKS, "values": 2 * BLOCKS, "layout": LAYOUT},
        (*WRONG_LAYOUTS, {"values": BLOCKS[:5]}, {"keys": BLOCKS[:, :, :0], "values": BLOCKS[:, :, :0]}),
        words=("heads", "queries", *vars(LAYOUT)),
    ),
    "quantized blocks": Entry(
        (dispatch_quantized_attention, quantized_paged_attention_simple),
        {
            "query": normal(3, 4, 64, seed=1),
            "blocks": QUANTIZED,
            "layout": LAYOUT,
            "tails": ints(1, 1, 2),
        },
        (
            *WRONG_LAYOUTS,
            {"tails": ints(1, 1)},
            {"tails": ints(1, 3, 2)},
            {"tails": ints(1, -1, 2)},
            {"tails": mx.array([1.0, 1.0, 2.0])},
            {"blocks": QUANTIZED._replace(values=quantize_heads(BLOCKS[:5], 4))},
            {"blocks": QUANTIZED._replace(keys=QUANTIZED.keys[..., 1:])},
            {"blocks": QUANTIZED._replace(keys=QUANTIZED.keys.astype(mx.int32))},
            {"blocks": QUANTIZED._replace(tail_values=BLOCKS[:2])},
            {"blocks": QUANTIZED._replace(tail_keys=BLOCKS[:3, :2], tail_values=BLOCKS[:3, :2])},
        ),
        words=("heads", "queries", "words", *vars(LAYOUT), *QUANTIZED._fields),
    ),
    "rows of a pool": Entry(
        (store_rows,),
        {"held": normal(9, 2, 3, seed=1), "slots": ints(5, 1), "new": normal(2, 2, 3, seed=2)},
        (
            {"new": normal(3, 2, 3, seed=2)},
            {"new": normal(2, 3, 2, seed=2)},
            {"new": normal(2, 6, seed=2)},
            {"new": normal(2, 2, 3, seed=2, dtype=mx.float16)},
            {"slots": ints(5)},
            {"slots": ints([5, 1])},
            {"slots": mx.array([5.0, 1.0])},
        ),
    ),
    "blocks to quantize": Entry(
        (quantize_blocks,),
        {
            "blocks": quantize_heads(BLOCKS, 4),
            "places": ints(5, 1),
            "floats": BLOCKS[:3],
            "tails": ints(2, 0),
        },
        (
            {"places": ints(5)},
            {"tails": ints(2)},
            {"floats": BLOCKS[:3, :2]},
            {"floats": BLOCKS[:3, :, :1]},
            {"floats": mx.concatenate([BLOCKS, BLOCKS], axis=-1)},
            {"blocks": quantize_heads(BLOCKS, 4).astype(mx.int32)},
            {"blocks": quantize_heads(BLOCKS, 4)[..., 1:]},
        ),
        words=("words",),
    ),
    "rows to mask": Entry(
        (mask_rows,),
        {
            "logits": normal(3, 40, seed=1),
            "rows": ints(2, 0),
            "bits": mx.array([[7, 5], [1, 255]], mx.uint32),
        },
        (
            {"rows": ints(2)},
            {"rows": ints(2, 0, 1)},
            {"rows": mx.array([2.0, 0.0])},
            {"bits": mx.array([[7, 5], [1, 255]], mx.int32)},
            {"bits": mx.array([[7], [1]], mx.uint32)},
            {"logits": normal(40, seed=1)},
        ),
        is_for_gpu=False,
    ),
    "rows to sample": Entry(
        (sample_rows,),
        {"logits": normal(3, 40, seed=1), "numbers": [0.7, 0.9, 5, -3, 0.5] * 3},
        (
            {"numbers": [0.7, 0.9, 5, -3, 0.5] * 2},
            {"logits": normal(4, 40, seed=1)},
            {"logits": normal(40, seed=1)},
            {"logits": normal(3, 0, seed=1)},
        ),
        is_for_gpu=False,
    ),
}
CALLS = [(name, function) for name, entry in ENTRIES.items() for function in entry.functions]
by_call = pytest.mark.parametrize(
    ("name", "function"), CALLS, ids=[f"{name}-{function.__name__}" for name, function in CALLS]
)


def check_refused(name: str, function: Callable[..., Any]) -> None:
    entry = ENTRIES[name]
    for wrong in entry.wrong:
        with pytest.raises(ValueError, match=r".") as refused:
            mx.eval(function(**{**entry.right, **wrong}))
        sentence = str(refused.value)
        assert "\n" not in sentence
        assert any(word in sentence for word in (*entry.right, *entry.words)), sentence


@by_call
def test_what_does_not_fit_is_refused_in_one_sentence(name: str, function: Callable[..., Any]) -> None:
    check_refused(name, function)


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if entry.is_for_gpu])
def test_what_does_not_fit_a_gpu_is_refused_as_well(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_device(mx.gpu, monkeypatch)
    for function in ENTRIES[name].functions:
        check_refused(name, function)


def strided(value: Any, axis: int) -> Any:
    """The same arrays, none of them contiguous."""
    if isinstance(value, mx.array):
        return spread(value, axis)
    if isinstance(value, QuantizedWeights | ExpertWeights | BlockLayout):
        return replace(value, **{name: strided(each, axis) for name, each in vars(value).items()})
    if isinstance(value, QuantizedBlocks):
        return QuantizedBlocks(*[strided(each, axis) for each in value])
    return tuple([strided(each, axis) for each in value]) if isinstance(value, tuple) else value


def test_parts_of_a_model_refuse_weights_of_other_shapes() -> None:
    x = normal(2, 128, seed=1)
    narrow, wide = as_projection(normal(40, 128, seed=2)), as_projection(normal(48, 128, seed=3))
    with pytest.raises(ValueError, match="weight must be"):
        FusedNorm(128, normal(64, seed=4))(x)
    with pytest.raises(ValueError, match="up must be"):
        fused_mlp(128, 48, narrow, wide, wide)(x)
    gate, up = (QuantizedProjection(quantize_weights(normal(size, 128, seed=size))) for size in (40, 24))
    with pytest.raises(ValueError, match=r"\(40, 128\) and \(24, 128\)"):
        fused_mlp(128, 40, gate, up, wide)
    integers = IntegerProjection(WEIGHTS)
    with pytest.raises(ValueError, match="128"):
        integers(normal(2, 64, seed=1))


def test_a_block_that_is_twice_in_a_table_is_refused() -> None:
    """Its first tokens would be stored over by later ones."""
    entry = ScheduledTokens(Sequence(7, [5, 3, 2, 8, 1], 0, 9), 0, 5, True)
    for pool in (PagedKvPool(1, 9, 4), QuantizedKvPool(1, 9, 4)):
        for blocks in ([3, 3], [3, 1, 3]):
            with pytest.raises(ValueError, match="block 3 twice"):
                ForwardBatch.of(SchedulerOutput((entry,)), {7: BlockTable(blocks)}, pool)
    heads = normal(1, 2, 5, 32, seed=1)
    with pytest.raises(ValueError, match="block 3 twice"):
        PagedKvCache(PagedKvPool(1, 9, 4), 0, [3, 3]).attend(heads, heads, heads, dispatch_attention)


def test_what_no_kernel_could_take_is_refused() -> None:
    kernel, x = CpuKernel(packed.SOURCES / "swiglu.cpp"), normal(3, 4, seed=1)
    held = CpuKernel(packed.SOURCES / "mask_rows.cpp", is_in_place=True)
    empty = mx.zeros((3, 0))
    for inputs, shapes, dtypes, sentence in (
        ([x, x], [(3, 4)], [], "a shape and a type for each"),
        ([x, x], [], [], "needs outputs"),
        ([x, x], [(3, -4)], [mx.float32], "negative"),
        ([x, empty], [(3, 4)], [mx.float32], "may be empty"),
    ):
        with pytest.raises(ValueError, match=sentence):
            kernel(inputs, shapes, dtypes)
    for shape, dtype in (((3, 5), mx.float32), ((3, 4), mx.float16)):
        with pytest.raises(ValueError, match="in place"):
            held([x, ints(0), mx.zeros((1, 1), mx.uint32)], [shape], [dtype])
    check_equal(kernel([empty, empty], [(3, 0)], [mx.float32])[0].tolist(), [[]] * 3, "SwiGLU of nothing")


@pytest.mark.parametrize("device", [mx.cpu, mx.gpu], ids=["CPU", "GPU"])
def test_nothing_is_computed_of_nothing(device: mx.DeviceType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel would divide by a size of 0."""
    use_device(device, monkeypatch)
    tables, none = (mx.zeros((9, 0)), mx.zeros((9, 0))), mx.zeros((2, 3, 0))
    for name, result, shape in (
        ("norm", rms_norm(none, mx.zeros(0), 1e-5), none.shape),
        ("norm of no rows", rms_norm(mx.zeros((0, 64)), mx.zeros(64), 1e-5), (0, 64)),
        ("swiglu", swiglu(none, none), none.shape),
        ("halves", swiglu_halves(none), none.shape),
        ("rotation", rotate(mx.zeros((2, 3, 0, 16)), *TABLES, [0]), (2, 3, 0, 16)),
        ("heads", split_heads(none, 4, 2, tables, None, [0])[0], (2, 4, 3, 0)),
        ("packed product", packed.quantized_matmul(mx.zeros((0, 128)), WEIGHTS), (0, 24)),
    ):
        mx.eval(result)
        check_equal(result.shape, shape, f"shape of the {name}")


@by_call
@pytest.mark.parametrize("axis", [0, -1], ids=["rows", "columns"])
def test_arrays_need_not_be_contiguous(name: str, function: Callable[..., Any], axis: int) -> None:
    right = ENTRIES[name].right
    expected, actual = (
        function(**{key: view(value) for key, value in right.items()})
        for view in (
            lambda value: value + 0 if isinstance(value, mx.array) else value,
            lambda value: strided(value, axis),
        )
    )
    for each, other in zip(*([x] if isinstance(x, mx.array) else x for x in (actual, expected)), strict=True):
        check_close(mx.maximum(each, -1e9), mx.maximum(other, -1e9), name, tolerance=1e-6)


def test_the_table_has_every_kernel_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    ran, call = set[str](), CpuKernel.__call__

    def note(self: CpuKernel, *args: Any, **named: Any) -> list[mx.array]:
        ran.add(self.function)
        return call(self, *args, **named)

    monkeypatch.setattr(CpuKernel, "__call__", note)
    for entry in ENTRIES.values():
        for function in entry.functions:
            function(**entry.right)
    packed.dequantize(WEIGHTS)  # nothing that could be wrong: QuantizedWeights has checked it
    folders = packed.SOURCES, fused_operations.FOLDER
    sources = [source.stem for folder in folders for source in folder.glob("*.cpp")]
    check_equal(sorted(ran), sorted(sources), "kernels of the table")
