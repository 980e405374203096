"""Blocks quantized in place: as array operations do it, and by them where the kernel cannot be used."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from accelerated import engine_contests
from accelerated import quantize_blocks as module
from accelerated.accelerate import _chosen, best
from accelerated.engine_contests import block_quantizers, quantized_attentions
from accelerated.quantize_blocks import (
    FLOATS,
    SOURCE,
    quantize_blocks,
)
from kernel_runtime import self_check
from kernel_runtime.cpu_kernel import CpuKernel
from tests.support.check import check_close, normal
from tests.support.cpu_kernels import TARGETS, compiled_for, use_device
from tests.support.quantized_blocks import num_words_of
from tiny_llm.ops.quantized_blocks import quantize_heads
from tiny_llm.ops.writing import quantize_blocks_simple


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    _chosen.cache_clear()
    yield
    _chosen.cache_clear()


def blank(D: int, bits: int) -> mx.array:
    return mx.zeros((9, 7, 3, num_words_of(D, bits)), mx.uint32)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("target", [None, *TARGETS], ids=["this processor", *TARGETS])
def test_bits(target: str | None, dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    if target is not None:
        kernel = compiled_for(target, module.QUANTIZE_BLOCKS, monkeypatch)
        kernel = CpuKernel(kernel.file, is_in_place=True)
        monkeypatch.setattr(module, "QUANTIZE_BLOCKS", kernel)
    for D, bits, (size, middle) in itertools.product(
        (32, 64, 96, 128), (4, 8), ((3, 1), (1e-4, 0), (0.5, 100), (0, 2))
    ):
        floats = (normal(5, 7, 3, D, seed=D) * size + middle).astype(dtype)
        places = mx.array([7, 1, 8]), floats, mx.array([3, 0, 4])
        found = quantize_blocks(blank(D, bits), *places)
        what = f"words of heads of {D} with {bits} bits, entries around {middle}"
        check_close(found, quantize_blocks_simple(blank(D, bits), *places), what, tolerance=0)


def check_quantizes() -> None:
    floats = normal(5, 7, 3, 64, seed=1)
    quantize = best(block_quantizers, mx.float32)
    found = quantize(blank(64, 4), mx.array([7, 1]), floats, mx.array([3, 0]))
    check_close(found[mx.array([7, 1])], quantize_heads(floats[mx.array([3, 0])], 4), "words", tolerance=0)


@pytest.mark.parametrize("text", ["floats", "#include"], ids=["does not compile", "includes nothing"])
def test_array_operations_where_the_kernel_cannot_be_used(
    text: str,
    on_cpu: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / SOURCE.name
    file.write_text(SOURCE.read_text(encoding="utf-8").replace(text, "", 1), encoding="utf-8")
    check_quantizes()
    _chosen.cache_clear()
    monkeypatch.setattr(module, "QUANTIZE_BLOCKS", CpuKernel(file, is_in_place=True))
    check_quantizes()


@pytest.mark.parametrize("device", [mx.cpu, mx.gpu], ids=["cpu", "gpu"])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_attention_is_right_in_the_type_of_the_model(
    dtype: mx.Dtype, device: mx.DeviceType, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_device(device, monkeypatch)
    assert best(quantized_attentions, dtype) is engine_contests.dispatch_quantized_attention


@pytest.mark.usefixtures("on_cpu")
def test_attention_falls_back(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    _chosen.cache_clear()
    assert best(quantized_attentions, mx.float32) is engine_contests.dispatch_quantized_attention
    _chosen.cache_clear()
    self_check._notice_once.cache_clear()
    simple = engine_contests.quantized_paged_attention_simple
    monkeypatch.setattr(engine_contests, "dispatch_quantized_attention", lambda *args: 2 * simple(*args))
    assert best(quantized_attentions, mx.float32) is simple
    assert capfd.readouterr().err.count("\n") == 1
    _chosen.cache_clear()
