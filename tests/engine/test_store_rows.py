"""Rows written in place: as MLX writes them, in any type, and by MLX where the kernel cannot be used."""

from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from accelerated import store_rows as module
from accelerated.accelerate import _chosen, best
from accelerated.engine_contests import row_writers
from accelerated.store_rows import SOURCE
from kernel_runtime.cpu_kernel import CpuKernel
from tests.support.check import check_close, normal
from tests.support.precision import FLOATS
from tiny_llm.ops.writing import store_rows_simple


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    _chosen.cache_clear()
    yield
    _chosen.cache_clear()


def check_stores(dtype: mx.Dtype = mx.float32) -> None:
    store_rows = best(row_writers, mx.float32)
    held, new = normal(9, 2, 5, seed=1, dtype=dtype), normal(4, 2, 5, seed=2, dtype=dtype)
    for slots in (mx.array([7, 0, 3, 8]), mx.array([1, 2, 3, 4], mx.uint32), mx.array([], mx.int64)):
        rows = new[: slots.size]
        expected = store_rows_simple(held + 0, slots, rows)
        check_close(store_rows(held + 0, slots, rows), expected, f"at {slots.tolist()}", tolerance=0)
        heads = normal(2, 9, 5, seed=3, dtype=dtype).swapaxes(0, 1)[: slots.size]
        check_close(
            store_rows(held + 0, slots, heads),
            store_rows_simple(held + 0, slots, heads),
            "a view",
            tolerance=0,
        )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_numbers(dtype: mx.Dtype) -> None:
    check_stores(dtype)


@pytest.mark.parametrize("text", ["+ i * num_bytes", "#include"], ids=["wrong", "does not compile"])
def test_mlx_stores_where_the_kernel_does_not(
    text: str,
    on_cpu: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / SOURCE.name
    file.write_text(SOURCE.read_text(encoding="utf-8").replace(text, "", 1), encoding="utf-8")
    monkeypatch.setattr(module, "STORE_ROWS", CpuKernel(file, is_in_place=True))
    check_stores()
    assert capfd.readouterr().err.count("\n") == 1
