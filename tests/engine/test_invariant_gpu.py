"""TINY_LLM_INVARIANT=1: the GPU kernels, run by the emulator, and weights that are not packed, on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

from accelerated import pretrained
from kernel_runtime.block_layout import BlockLayout
from kernel_runtime.launch import Language, Target
from tests.engine.test_integer_matmul import make_weights
from tests.support.bits import ROWS, check_bits, check_rows
from tests.support.check import check_equal, normal
from tests.support.checkpoints import Variant, build, save
from tests.support.ragged import Shape, draw
from tiny_llm.kernels import gpu_operations, paged_gpu
from tiny_llm.kernels.gpu_operations import flash_attention_gpu, quantized_matmul_gpu
from tiny_llm.kernels.paged_gpu import paged_attention_gpu
from tiny_llm.ops.basics import one_by_one

both_languages = pytest.mark.parametrize("language", ["metal", "cuda"])
every_dtype = pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
PRINT_LIMITS = """
import scripts
from tiny_llm.kernels.gpu_operations import FEW_QUERIES, FEW_ROWS
from tiny_llm.kernels.quantized_matmul import MAX_FUSED_ROWS
print(FEW_ROWS, FEW_QUERIES, MAX_FUSED_ROWS > 10**9)
"""


@pytest.fixture
def one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel for all numbers of rows and queries, as with TINY_LLM_INVARIANT=1."""
    monkeypatch.setattr(gpu_operations, "FEW_ROWS", 0)
    for module in (gpu_operations, paged_gpu):
        monkeypatch.setattr(module, "FEW_QUERIES", 0)


@pytest.mark.parametrize(("value", "expected"), [("1", "0 0 True"), ("off", "8 8 False")])
def test_the_variable_leaves_one_kernel(value: str, expected: str) -> None:
    environment = os.environ | {"TINY_LLM_INVARIANT": value}
    run = subprocess.run(
        [sys.executable, "-c", PRINT_LIMITS], env=environment, capture_output=True, text=True, check=True
    )
    check_equal(run.stdout.strip(), expected, "most rows and queries of kernels of their own, and no BLAS")


@pytest.mark.parametrize("bits", [4, 8])
@every_dtype
@both_languages
def test_products(language: Language, dtype: mx.Dtype, bits: int, one_kernel: None) -> None:
    weights, x = make_weights(5, 192, bits), normal(ROWS, 192, seed=3, dtype=dtype)
    target = Target(language, "emulator")
    check_rows(lambda x: quantized_matmul_gpu(x, weights, target), x, "product", (1, 8, 9, 31, 33))


@every_dtype
@both_languages
def test_attention_of_chunks(language: Language, dtype: mx.Dtype, one_kernel: None) -> None:
    query, key, value = (normal(1, H, 75, 32, seed=H, dtype=dtype) for H in (4, 2, 2))

    def attend(size: int) -> mx.array:
        outputs = []
        for start in range(0, 75, size):
            end = min(start + size, 75)
            chunk = query[:, :, start:end], key[:, :, :end], value[:, :, :end]
            outputs.append(flash_attention_gpu(*chunk, mask="causal", target=Target(language, "emulator")))
        return mx.concatenate(outputs, axis=2)

    for size in (1, 8, 9, 33):
        check_bits(attend(size), attend(75), f"attention in chunks of {size}")


@every_dtype
@both_languages
def test_attention_in_blocks(language: Language, dtype: mx.Dtype, one_kernel: None) -> None:
    target = Target(language, "emulator")
    expected = None
    for block_size in (1, 5, 16):
        ragged = draw(Shape((40, 9), (75, 30), D=32, block_size=block_size), dtype, seed=5)
        together = paged_attention_gpu(*ragged.arguments, target=target)[:40]
        expected = together if expected is None else expected
        check_bits(together, expected, f"blocks of {block_size}")
        for size in (1, 8, 33):
            parts = []
            for start in range(0, 40, size):
                end = min(start + size, 40)
                places = mx.array([0, end - start]), mx.array([35 + end])
                layout = BlockLayout(ragged.layout.block_tables[:1], *places)
                rows = ragged.query[start:end]
                parts.append(paged_attention_gpu(rows, ragged.keys, ragged.values, layout, target=target))
            check_bits(mx.concatenate(parts), expected, f"chunks of {size} in blocks of {block_size}")


@every_dtype
def test_plain_weights_take_a_row_at_a_time(dtype: mx.Dtype) -> None:
    weight, bias = normal(37, 96, seed=1, dtype=dtype), normal(37, seed=2, dtype=dtype)
    project = one_by_one(lambda x: x @ weight.T + bias)
    x = normal(ROWS, 96, seed=3, dtype=dtype)
    check_rows(project, x, "product with plain weights")
    check_equal(project(x.reshape(7, 10, 96)).shape, (7, 10, 37), "shape of [7, 10, 96] times [37, 96]")
    check_equal(project(x[:0]).shape, (0, 37), "shape of no rows")


@pytest.mark.parametrize("is_tied", [False, True])
@every_dtype
def test_a_model_of_plain_weights(
    dtype: mx.Dtype, is_tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_cpu: None
) -> None:
    monkeypatch.setenv("TINY_LLM_INVARIANT", "1")
    monkeypatch.setattr(pretrained, "load_tokenizer", lambda path: None)
    variant = Variant("plain", "qwen3", {"head_dim": 16, "tie_word_embeddings": is_tied}, dtype=dtype)
    model, _ = pretrained.load(save(variant, build(variant), tmp_path / "plain"))
    tokens = mx.arange(2, 42)[None]
    expected = model(tokens)
    for size in (1, 7, 16, 33):
        cache = model.create_kv_cache()
        chunks = [model(tokens[:, start : start + size], start, cache) for start in range(0, 40, size)]
        check_bits(mx.concatenate(chunks, axis=1), expected, f"logits in chunks of {size}")
