"""A GPU of NVIDIA before sm_80, such as Colab's T4: nothing asks its matrix units for bfloat16."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from accelerated import pretrained, race_inputs, tiled_attention, tiled_matmul
from kernel_runtime.checkpoint import stored_dtype
from kernel_runtime.launch import has_bfloat16
from tests.support.check import normal
from tests.support.checkpoints import Variant, build, save
from tests.support.cpu_kernels import use_device
from tiny_llm import QuantizedWeights

pytestmark = pytest.mark.sampled(3, "kernel_runtime/", "tiny_llm_ref/kernels/")
SHORT = [mx.float16, mx.bfloat16]
each_architecture = pytest.mark.parametrize(
    ("major", "is_turing"), [(7, True), (8, False)], ids=["T4", "A100"]
)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets MLX say that the default device is NVIDIA's, of an architecture."""

    def be(major: int) -> None:
        use_device(mx.gpu, monkeypatch)
        monkeypatch.setattr(mx.cuda, "is_available", lambda: True)
        monkeypatch.setattr(mx, "device_info", lambda device: {"compute_capability_major": major})

    return be


@each_architecture
def test_a_model_in_bfloat16_computes_in_float16(
    gpu: Callable[[int], None],
    major: int,
    is_turing: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TINY_LLM_KERNELS", "off")
    gpu(major)
    asked: list[mx.Dtype] = []
    best = pretrained.best_operations
    monkeypatch.setattr(pretrained, "best_operations", lambda dtype: asked.append(dtype) or best(dtype))
    for dtype in (mx.float32, *SHORT):
        variant = Variant(str(dtype), "qwen3", quantization={"group_size": 32, "bits": 4}, dtype=dtype)
        path = save(variant, build(variant), tmp_path / str(dtype))
        assert stored_dtype(path) == dtype
        monkeypatch.setattr(pretrained, "load_tokenizer", lambda path: None)
        model, _ = pretrained.load(path)
        expected = mx.float16 if is_turing and dtype == mx.bfloat16 else dtype
        assert asked.pop() == model(mx.array([[3]])).dtype == expected
        assert ("computes in float16" in capsys.readouterr().err) == (expected != dtype)
        assert pretrained.parts_for(path, mx.bfloat16)[0] == mx.bfloat16  # as asked for
        asked.clear()
        capsys.readouterr()


@each_architecture
def test_what_is_raced_by_default_is_a_type_of_the_gpu(
    gpu: Callable[[int], None], major: int, is_turing: bool
) -> None:
    gpu(major)
    assert has_bfloat16() is not is_turing
    assert race_inputs.usual_dtype() == (mx.float16 if is_turing else mx.bfloat16)


@each_architecture
def test_kernels_of_matrix_units_get_only_types_that_these_multiply(
    gpu: Callable[[int], None], major: int, is_turing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu(major)
    tiled: list[mx.Dtype] = []
    note: Any = lambda x, *_, **named: tiled.append(x.dtype)  # noqa: E731
    monkeypatch.setattr(tiled_matmul, "multiply_tiles", note)
    monkeypatch.setattr(tiled_attention, "attend_tiles", note)
    monkeypatch.setattr(tiled_matmul, "quantized_matmul", lambda *_: None)
    monkeypatch.setattr(tiled_attention, "dispatch_attention", lambda *_: None)
    for dtype in SHORT:
        codes, *grids = mx.quantize(normal(64, 64, seed=1))
        weights = QuantizedWeights(codes, *(grid.astype(dtype) for grid in grids), 64, 4)
        tiled_matmul.tiled_matmul(normal(40, 64, seed=2, dtype=dtype), weights)
        query, key = normal(1, 2, 40, 64, seed=3, dtype=dtype), normal(1, 1, 40, 64, seed=4, dtype=dtype)
        tiled_attention.tiled_attention(query, key, key, mask="causal")
    assert tiled == [each for each in SHORT for _ in range(2) if not is_turing or each == mx.float16]
