"""C++ kernels on an arm64 processor, with its NEON vectors: compiled for it and run by qemu."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kernel_runtime.cpu_kernel import FOLDER, kernel_options

HERE = Path(__file__).parent / "neon"
SIMD_OPERATIONS = HERE / "simd_operations.cpp"
LANES = 4
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
Numbers = npt.NDArray[np.generic]


@dataclass(frozen=True)
class Case:
    """One call of a kernel, and what it must give in double precision.

    Attributes:
        inputs: arrays, the outputs' entries have 4 bytes.
        expected: of each output.
        numbers: what Python passes along.
        error: that an entry may have, in parts of `size`.
        dtype: of the outputs.
        size: what was added up at most, where an output can be small by chance; else its largest entry.
    """

    inputs: Sequence[Numbers]
    expected: Sequence[Numbers]
    numbers: Sequence[float] = ()
    error: float = 1e-5
    dtype: type = np.float32
    size: float | None = None

    def as_bytes(self) -> bytes:
        """What driver.cpp reads."""
        counts = [len(self.inputs), len(self.expected), len(self.numbers)]
        for array in self.inputs:
            counts += [array.itemsize, array.ndim, *array.shape]
        for array in self.expected:
            counts += [4, array.ndim, *array.shape]
        arrays = [np.ascontiguousarray(array).tobytes() for array in self.inputs]
        return b"".join([np.int64(counts).tobytes(), np.float64(self.numbers).tobytes(), *arrays])


def tool(name: str) -> str:
    """Path of a program; a failure in one sentence where it is not installed."""
    path = shutil.which(name)
    assert path, f"{name} is not installed: on Debian, `apt install g++-aarch64-linux-gnu qemu-user`"
    return path


def start_builds(folder: Path, functions: Mapping[str, Path]) -> dict[str, "Future[Path]"]:
    """Compile a program for each kernel function, some at a time."""
    pool = ThreadPoolExecutor(2)
    return {name: pool.submit(build, folder, name, source) for name, source in functions.items()}


def build(folder: Path, function: str, source: Path) -> Path:
    """A program that runs one kernel function, with the options that the project compiles kernels with."""
    program, compiled = folder / function, folder / f"{function}.o"
    options = [*kernel_options(source), "-march=armv8.4-a", f"-I{FOLDER}"]
    names = [f'-DSOURCE="{source}"', f"-DFUNCTION={function}"]
    for arguments in (
        [*options, *names, "-c", str(HERE / "driver.cpp"), "-o", str(compiled)],
        ["-static", str(compiled), "-o", str(program)],  # -ffast-math here would make small numbers 0
    ):
        result = subprocess.run([tool(COMPILER), *arguments], capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
    return program


def check_cases(program: Path, cases: Mapping[str, Case]) -> None:
    """Run all cases at once and compare their outputs."""
    __tracebackhide__ = True
    given = b"".join(case.as_bytes() for case in cases.values())
    result = subprocess.run([tool(EMULATOR), str(program)], input=given, capture_output=True)
    assert result.returncode == 0, f"the program ended with {result.returncode}: {result.stderr.decode()}"
    position = 0
    for name, case in cases.items():
        for number, expected in enumerate(case.expected):
            got = np.frombuffer(result.stdout, case.dtype, expected.size, position).reshape(expected.shape)
            position += 4 * expected.size
            difference = np.abs(got - expected).max()
            bound = case.error * (np.abs(expected).max() if case.size is None else case.size)
            assert difference <= bound, f"{name}, output {number}: off by {difference}, {bound} is allowed"
    assert position == len(result.stdout)
