"""C++ functions as MLX operations: what they see, when they are compiled, and what a failure says."""

import inspect
import shutil
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import mlx.core as mx
import pytest

from kernel_runtime import cpu_kernel
from kernel_runtime.cpu_kernel import CpuKernel, compile_kernels, kernel_options
from kernel_runtime.native import BuildError, cache_dir
from scripts.hardware.memory import memory_use
from tests.support.check import check_close, check_equal, normal
from tests.support.cpu_kernels import TARGETS, compiled_for, poison, spread, threads

SOURCE = """
#include "kernel.h"

KERNEL scaled(const Array* inputs, const Array* outputs, const double* numbers) {
  const Array& x = inputs[0];
  const long rows = x.length(0), columns = x.length(-1);
  parallel_for(rows, 2, [&](long first, long last) {
    for (long i = first; i < last; i++) {
      float total = 0;
      for (long j = 0; j < columns; j++) {
        const float entry = numbers[0] * x.data<float>()[i * x.stride(0) + j * x.stride(-1)];
        outputs[0].data<float>()[i * columns + j] = entry;
        total += entry;
      }
      outputs[1].data<float>()[i] = total;
    }
  });
}
"""

PRODUCT_AND_SUM = """
#include "kernel.h"
#include "simd.h"

KERNEL product_and_sum(const Array* inputs, const Array* outputs, const double*) {
  const Floats x = load(inputs[0].data<float>()), y = load(inputs[1].data<float>());
  store(outputs[0].data<float>(), x * x + y);
}
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "scaled.cpp"
    file.write_text(SOURCE)
    return file


def call(kernel: CpuKernel, x: mx.array, factor: float = 2.5) -> list[mx.array]:
    poison(*x.shape)
    return kernel([x], [x.shape, x.shape[:1]], [mx.float32, mx.float32], [factor])


def test_the_extension_is_compiled_for_the_backend_of_mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same version of MLX comes with several: its library is another one with each."""
    installed, keys = {"mlx": "0.32.4", "nanobind": "3.1.0"}, []

    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError
        return installed[name]

    monkeypatch.setattr(cpu_kernel, "version", version)
    monkeypatch.setattr(
        cpu_kernel, "compile_library", lambda name, sources, options, key, **rest: keys.append(key)
    )
    for name in cpu_kernel.BACKENDS:
        installed[name] = "0.32.4"
        cpu_kernel.compile_extension()
        del installed[name]
    check_equal(len(set(keys)), len(cpu_kernel.BACKENDS), "different keys")


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("target", [None, *TARGETS], ids=["this processor", *TARGETS])
def test_in_vectors_a_product_is_rounded_before_it_is_added(
    target: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "product_and_sum.cpp"
    file.write_text(PRODUCT_AND_SUM)
    kernel = CpuKernel(file)
    if target is not None:
        kernel = compiled_for(target, kernel, monkeypatch)
    x, y = mx.full(16, 1 + 2**-12), mx.full(16, -(1 + 2**-11))  # the square of x, rounded, is -y
    (found,) = kernel([x, y], [[16]], [mx.float32], [])
    check_equal(found[:4].tolist(), [0] * 4, "the square, plus what it is rounded to with the other sign")


def test_a_file_is_compiled_as_those_that_it_takes_in_at_any_depth(tmp_path: Path) -> None:
    inner, middle, outer = (tmp_path / f"{name}.cpp" for name in ("inner", "middle", "outer"))
    inner.write_text(PRODUCT_AND_SUM)
    middle.write_text('#include "inner.cpp"\n')
    outer.write_text('#include "middle.cpp"\n')
    assert kernel_options(outer) == kernel_options(inner)
    before = compile_kernels(outer)
    inner.write_text(PRODUCT_AND_SUM.replace("x * x + y", "x * x - y"))
    assert compile_kernels(outer) != before


def test_too_many_dimensions_are_refused(source: Path) -> None:
    kernel, x = CpuKernel(source), normal(3, 4, seed=1)
    with pytest.raises(ValueError, match="9 dimensions"):
        call(kernel, x.reshape(3, 4, *[1] * 7))
    with pytest.raises(ValueError, match="10 dimensions"):
        kernel([x], [[1] * 10], [mx.float32], [1])


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
def test_outputs_of_any_number_of_threads(source: Path, rows: int, count: int) -> None:
    x = normal(rows, 5, seed=1)
    with threads(count):
        scaled, totals = call(CpuKernel(source, "scaled"), x)
        mx.eval(scaled, totals)
    check_close(scaled, 2.5 * x, "first output")
    check_close(totals, (2.5 * x).sum(axis=1), "second output")


@pytest.mark.parametrize("strided", [(), (0,)], ids=["contiguous", "by strides"])
def test_inputs_that_are_not_contiguous(source: Path, strided: tuple[int, ...]) -> None:
    x, kernel = normal(7, 5, seed=1), CpuKernel(source, "scaled", strided)
    for name, view in (("rows", spread(x, 0)), ("columns", spread(x, 1)), ("transposed", x.T)):
        check_close(call(kernel, view)[0], 2.5 * view, f"scaled {name}")
    row = mx.broadcast_to(x[:1], (7, 5))
    check_close(call(kernel, row)[0], 2.5 * row, "scaled row, broadcast")
    column = mx.broadcast_to(x[:, :1], (7, 5))
    check_close(call(kernel, column)[0], 2.5 * column, "scaled column, broadcast")


def test_operations_are_lazy_and_wait_for_each_other(source: Path) -> None:
    kernel, x = CpuKernel(source, "scaled"), normal(64, 64, seed=1)
    y = x
    for _ in range(20):
        y = call(kernel, y @ mx.eye(64), 2.0)[0] / 2
    check_close(y, x, "a chain of kernels and MLX's own operations")


def test_an_output_in_place_takes_memory_that_nobody_else_refers_to(tmp_path: Path) -> None:
    """And leaves other arrays as they were, of which it may be a view that is not contiguous."""
    file = tmp_path / "first.cpp"
    file.write_text(
        '#include "kernel.h"\nKERNEL first(const Array*, const Array* outputs, const double* numbers) {\n'
        "  outputs[0].data<float>()[0] = numbers[0];\n}\n"
    )
    kernel, size = CpuKernel(file, is_in_place=True), 1 << 20

    def changed(x: mx.array) -> mx.array:
        return kernel([x], [x.shape], [mx.float32], [7])[0]

    def peak(is_kept: bool) -> int:
        kept = [mx.zeros(size)]
        mx.eval(kept)
        with memory_use() as memory:
            result = changed(kept[0] if is_kept else kept.pop())
            mx.eval(result)
        assert result[0].item() == 7
        assert not is_kept or kept[0][0].item() == 0
        return memory.peak

    assert peak(is_kept=False) < size < peak(is_kept=True)
    x = normal(3, 4, seed=1)
    check_close(changed(x.T)[1:], x.T[1:], "the rest of a transposed array", tolerance=0)
    check_close(mx.compile(lambda x: changed(x) + x)(x), changed(x) + x, "compiled", tolerance=0)


def test_equal_calls_are_told_from_others_under_compile(source: Path) -> None:
    kernel, x = CpuKernel(source, "scaled"), normal(3, 5, seed=1)
    function = mx.compile(
        lambda x: call(kernel, x, 2.0)[0] + call(kernel, x, 3.0)[0] - call(kernel, x, 2.0)[0]
    )
    check_close(function(x), 3 * x, "2 x + 3 x - 2 x")


@pytest.mark.parametrize("threads", ["0", "-1", "many", "1025", "9" * 20])
def test_a_number_of_threads_that_is_none_is_refused(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINY_LLM_THREADS", threads)
    with pytest.raises(BuildError, match="from 1 to 1024, or unset it"):
        cpu_kernel.num_threads()


def test_a_hole_is_found_before_the_compiler_is_called(source: Path) -> None:
    sentence = "week 2 day 3 task 1: scaled is not written yet"
    source.write_text(f'#include "kernel.h"\nKERNEL scaled() {{\n  NOT_WRITTEN_YET("{sentence}");\n}}\n')
    before = set(cache_dir().iterdir())
    with pytest.raises(NotImplementedError, match=sentence):
        call(CpuKernel(source, "scaled"), normal(3, 5, seed=1))
    check_equal(
        {path.name for path in set(cache_dir().iterdir()) - before if "scaled" in path.name}, set(), "files"
    )


def test_a_compiler_error_is_one_sentence_with_its_line(source: Path) -> None:
    source.write_text(SOURCE.replace("float total = 0;", "float total = 0"))
    with pytest.raises(BuildError, match=r"the compiler refused: scaled\.cpp:\d+:\d+: error"):
        call(CpuKernel(source, "scaled"), normal(3, 5, seed=1))


def test_a_function_that_is_not_there_is_named(source: Path) -> None:
    with pytest.raises(BuildError, match=r"scaled\.cpp has no function unscaled"):
        call(CpuKernel(source, "unscaled"), normal(3, 5, seed=1))


def test_the_same_source_in_another_folder_is_not_compiled_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call(CpuKernel(source, "scaled"), normal(3, 5, seed=1))
    before = {path.name for path in cache_dir().iterdir() if path.name.startswith("scaled-")}
    headers = tmp_path / "elsewhere"
    headers.mkdir()
    for file in (*cpu_kernel.FOLDER.glob("*.h"), source):
        shutil.copy(file, headers)
    monkeypatch.setattr(cpu_kernel, "FOLDER", headers)
    monkeypatch.setattr(cpu_kernel, "load_kernels", inspect.unwrap(cpu_kernel.load_kernels))
    (scaled, _) = call(CpuKernel(headers / "scaled.cpp", "scaled"), normal(3, 5, seed=1))
    check_close(scaled, 2.5 * normal(3, 5, seed=1), "first output")
    after = {path.name for path in cache_dir().iterdir() if path.name.startswith("scaled-")}
    check_equal(after, before, "libraries in the cache")


def test_another_header_compiles_it_again(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call(CpuKernel(source, "scaled"), normal(3, 5, seed=1))
    before = {path.name for path in cache_dir().iterdir() if path.name.startswith("scaled-")}
    text = cpu_kernel.headers() + "// another line\n"
    monkeypatch.setattr(cpu_kernel, "headers", lambda: text)
    monkeypatch.setattr(cpu_kernel, "compile_extension", pytest.fail)  # it is loaded already
    monkeypatch.setattr(cpu_kernel, "load_kernels", inspect.unwrap(cpu_kernel.load_kernels))
    monkeypatch.setenv("TINY_LLM_CACHE", str(source.parent))
    call(CpuKernel(source, "scaled"), normal(3, 5, seed=1))
    after = {path.name for path in cache_dir().iterdir() if path.name.startswith("scaled-")}
    check_equal(len(after - before), 1, "new libraries")
