"""The emulator's matrix units and wide loads: what is right, and what breaks a rule."""

from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from kernel_runtime.emulation import EmulatorError
from kernel_runtime.gpu_kernel import GpuKernel
from kernel_runtime.launch import BACKWARD, FORWARD, Language
from tests.engine.test_emulator import LANGUAGES, ORDERS, make_probe, run
from tests.support.check import check_close, normal

SIZES: Mapping[Language, int] = {"metal": 8, "cuda": 16}
LAYOUTS: Mapping[Language, tuple[str, str]] = {"metal": ("false", "true"), "cuda": ("row_major", "col_major")}
MULTIPLY: Mapping[Language, str] = {
    "metal": """
      simdgroup_matrix<T, 8, 8> left, right;
      simdgroup_matrix<float, 8, 8> sum = make_filled_simdgroup_matrix<float, 8, 8>(0.5f);
      simdgroup_load(left, x, 8);
      simdgroup_load(right, x + 64, 8, 0, LAYOUT);
      simdgroup_multiply_accumulate(sum, left, right, sum);
      threadgroup float* own = tile + int(simd_group) * 64;
      simdgroup_store(sum, own, 8);
      BARRIER
      if (simd_group == 0) for (int k = int(lane); k < 64; k += 32) out[k] = T(own[k]);
    """,
    "cuda": """
      using namespace nvcuda::wmma;
      fragment<matrix_a, 16, 16, 16, T, row_major> left;
      fragment<matrix_b, 16, 16, 16, T, LAYOUT> right;
      fragment<accumulator, 16, 16, 16, float> sum;
      fill_fragment(sum, 0.5f);
      load_matrix_sync(left, x, 16);
      load_matrix_sync(right, x + 256, 16);
      mma_sync(sum, left, right, sum);
      store_matrix_sync(tile + i / 32 * 256, sum, 16, mem_row_major);
      BARRIER
      if (i < 32) for (int k = lane; k < 256; k += 32) out[k] = T(tile[k]);
    """,
}


def multiply(
    language: Language, folder: Path, is_transposed: bool, old: str = "LAYOUT", new: str = "LAYOUT"
) -> GpuKernel:
    """Multiply two matrices, the second perhaps transposed, by a kernel with `new` in place of `old`."""
    body = MULTIPLY[language].replace(old, new).replace("LAYOUT", LAYOUTS[language][is_transposed])
    return make_probe(folder, language, body, (mx.float16, mx.bfloat16), 2 * SIZES[language] ** 2)


def matrices(language: Language, dtype: mx.Dtype = mx.float16) -> mx.array:
    return normal(2 * SIZES[language] ** 2, seed=1, dtype=dtype)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_product_of_matrices(
    language: Language, is_transposed: bool, dtype: mx.Dtype, tmp_path: Path
) -> None:
    kernel = multiply(language, tmp_path, is_transposed)
    x, size = matrices(language, dtype), SIZES[language]
    left, right = np.array(x.astype(mx.float32)).reshape(2, size, size)
    expected = 0.5 + left @ (right.T if is_transposed else right)
    for order in ORDERS:
        result = run(kernel, language, order, x, size**2)
        check_close(result.reshape(size, size), expected, f"product, order {order}", 1e-2)


MISTAKES = [
    (
        "metal",
        "simdgroup_multiply",
        "if (lane != 5) simdgroup_multiply",
        "thread 4 is at simdgroup_multiply_accumulate and thread 5 at simdgroup_store",
    ),
    (
        "cuda",
        "mma_sync(",
        "if (lane != 5) mma_sync(",
        "thread 4 is at mma_sync and thread 5 at store_matrix_sync",
    ),
    (
        "metal",
        "(left, x, 8)",
        "(left, x + lane, 8)",
        "thread 1 calls simdgroup_load with other arguments than lane 0",
    ),
    (
        "cuda",
        "(left, x, 16)",
        "(left, x, 16 + lane / 9 * 8)",
        "thread 9 calls load_matrix_sync with other arguments than lane 0",
    ),
    (
        "cuda",
        "(left, x, 16)",
        "(left, x + 8, 16)",
        "load_matrix_sync needs an address that is a multiple of 32 bytes",
    ),
    (
        "cuda",
        "(left, x, 16)",
        "(left, x, 12)",
        "load_matrix_sync needs an address that .* and rows that are one of 16",
    ),
    ("metal", "BARRIER", "", r"writes tile\[\d+\] and thread \d+ reads it, and no barrier"),
    ("cuda", "BARRIER", "", r"writes tile\[\d+\] and thread \d+ reads it, and no barrier"),
    (
        "metal",
        "simdgroup_load(left, x, 8)",
        "tile[i] = 0; simdgroup_load(sum, tile, 8)",
        "no barrier comes between them",
    ),
    (
        "metal",
        "out[k] = T(own[k])",
        "*(device half4*)(out + 4 * k + 1) = half4(half(own[k]))",
        "accesses 8 bytes of out at once, at byte 2: that is no multiple",
    ),
]


@pytest.mark.parametrize(("language", "old", "new", "sentence"), MISTAKES)
def test_a_mistake_is_an_error(language: Language, old: str, new: str, sentence: str, tmp_path: Path) -> None:
    kernel = multiply(language, tmp_path, False, old, new)
    with pytest.raises(EmulatorError, match=sentence):
        run(kernel, language, FORWARD, matrices(language), SIZES[language] ** 2)


WIDE: Mapping[Language, str] = {
    "metal": """
      float4 wide = float4(*(const device vec<T, 4>*)(x + 4 * i)) * 2.0f;
      *(threadgroup float4*)(tile + 4 * i) = float4(wide.w, wide[2], wide.y, wide.x);
      BARRIER
      *(device vec<T, 4>*)(out + 4 * i) = vec<T, 4>(*(threadgroup float4*)(tile + 4 * (63 - i)));
    """,
    "cuda": """
      uint2 wide = *reinterpret_cast<const uint2*>(x + 4 * i);
      *reinterpret_cast<uint2*>(tile + 4 * i) = make_uint2(wide.y, wide.x);
      BARRIER
      *reinterpret_cast<uint2*>(out + 4 * i) = *reinterpret_cast<uint2*>(tile + 4 * (63 - i));
    """,
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_wide_loads_and_stores(language: Language, tmp_path: Path) -> None:
    kernel = make_probe(tmp_path, language, WIDE[language], (mx.float16,), 256)
    x = normal(256, seed=1, dtype=mx.float16)
    expected = x[::-1] * 2 if language == "metal" else x.reshape(64, 2, 2)[::-1, ::-1].flatten()
    check_close(run(kernel, language, BACKWARD, x, 256), expected, "x in reverse", tolerance=0)
