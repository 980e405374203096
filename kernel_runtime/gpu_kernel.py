"""GPU kernels: a function in Metal and in CUDA, on a GPU or under the emulator.

A source holds one kernel function, with a signature like any other. Python generates the kernel around it,
which hands it the buffers, the numbers, the shared memory and, in Metal, the thread's place.
"""

import hashlib
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Protocol, cast

import mlx.core as mx

from kernel_runtime.counting import CountsInMemory, is_counting, note_run
from kernel_runtime.cpu_kernel import HOLE
from kernel_runtime.emulation import EmulatorError, emulate, generate_source, load_emulated
from kernel_runtime.gpu_source import whole_source
from kernel_runtime.launch import Language, Launch, Target, Template
from kernel_runtime.native import BuildError

SUFFIXES: Mapping[Language, str] = {"metal": ".metal", "cuda": ".cu"}
METAL_PLACE = ("threadgroup_position_in_grid", "simdgroup_index_in_threadgroup", "thread_index_in_simdgroup")
TRACING = "during function transformations"
"""Part of what MLX says when something is to be evaluated inside mx.compile."""
SMALLEST_BUFFER = 8  # entries below which MLX would hand it to Metal in the constant address space


@dataclass(frozen=True, eq=False)
class GpuKernel:
    """A kernel function of inputs, output, strides, numbers, shared arrays and, in Metal, the thread's place.

    Args:
        name: of the function and of its sources, `metal/NAME.metal` and `cuda/NAME.cu`, with the headers
            beside them that they include.
        inputs: names of the arrays that it reads.
        output: name of the array that it writes.
        templates: its template arguments in their order, each with the values that it may have.
        folder: where the folders of the sources are.
        integers, reals: names of the numbers that it takes.
        shared: arrays that the threads of a group share, each with its length as C++ writes it; they begin at
            multiples of 16 bytes in Metal and of 32 in CUDA.
        shared_types: the type of each shared array that isn't of floats, as C++ writes it.
        strided: inputs that it reads where they lie, each by its strides; all others are copied unless they
            are contiguous.
    """

    name: str
    inputs: Sequence[str]
    output: str
    templates: Mapping[str, Sequence[int | mx.Dtype]]
    folder: Path
    integers: Sequence[str] = ()
    reals: Sequence[str] = ()
    shared: Mapping[str, str] = field(default_factory=dict)
    shared_types: Mapping[str, str] = field(default_factory=dict)
    strided: Collection[str] = ()

    def __call__(self, target: Target, launch: Launch) -> mx.array:
        """The output of one run; the emulator computes it at once.

        Raises:
            BuildError: the source cannot be compiled, there is no such GPU, or kernels are turned off.
            EmulatorError: the emulator saw the kernel break a rule.
            NotImplementedError: the source is not written yet.
            ValueError: the launch does not fit the kernel.
        """
        self._check(launch)
        text = whole_source(self.file(target.language))
        if hole := HOLE.search(text):
            raise NotImplementedError(hole[1])
        if target.device == "emulator":
            return self._run_emulated(target, launch)
        return self._run_on_gpu(target.language, text, launch)

    def file(self, language: Language) -> Path:
        """Path of a source."""
        return self.folder / language / f"{self.name}{SUFFIXES[language]}"

    def call(self, language: Language, buffers: Sequence[str], strides: Sequence[str] = ()) -> str:
        """The statement that calls the kernel function."""
        arguments = [
            *buffers,
            *strides,
            *(f"integers[{number}]" for number in range(len(self.integers))),
            *(f"reals[{number}]" for number in range(len(self.reals))),
            *self.shared,
            *(METAL_PLACE if language == "metal" else ()),
        ]
        return f"::{self.name}<{', '.join(self.templates)}>({', '.join(arguments)});"

    def body(self, language: Language) -> str:
        """What the kernel on the GPU does: it makes the shared arrays and calls the function."""
        space = "alignas(16) threadgroup" if language == "metal" else "alignas(32) __shared__"
        arrays = [f"{space} {of} {name}[{length}];" for name, (of, length) in self.arrays.items()]
        suffix = "_strides" if language == "metal" else "_strides.data()"  # MLX makes these variables
        strides = [name + suffix for name in self.strided]
        return "\n".join([*arrays, self.call(language, [*self.inputs, self.output], strides)])

    def emulated_source(
        self, language: Language, choices: Sequence[Template], is_counted: bool = False
    ) -> str:
        """What the emulator compiles, for each choice of template arguments."""
        buffers = [f"buffer({number})" for number in range(len(self.inputs) + 1)]
        strides = [f"strides({self.inputs.index(name)})" for name in self.strided]
        call = self.call(language, buffers, strides)
        return generate_source(self.file(language), call, choices, self.arrays, is_counted)

    @property
    def arrays(self) -> dict[str, tuple[str, str]]:
        """Type and length of each shared array."""
        return {name: (self.shared_types.get(name, "float"), length) for name, length in self.shared.items()}

    def _check(self, launch: Launch) -> None:
        counts = [
            (what, len(names), len(given))
            for what, names, given in (
                ("inputs", self.inputs, launch.inputs),
                ("integers", self.integers, launch.integers),
                ("reals", self.reals, launch.reals),
            )
        ]
        for what, expected, got in counts:
            if expected != got:
                raise ValueError(f"{self.name} takes {expected} {what}, got {got}")
        for name, values in self.templates.items():
            if launch.template.get(name) not in values:
                choices = ", ".join(map(str, values))
                raise ValueError(f"{self.name} has no {name} = {launch.template.get(name)}; it has {choices}")

    def _run_emulated(self, target: Target, launch: Launch) -> mx.array:
        wanted = {name: launch.template[name] for name in self.templates}
        choices = [
            dict(zip(self.templates, values, strict=True))
            for values in itertools.product(*self.templates.values())
        ]
        counts = CountsInMemory() if is_counting() else None
        if counts is not None:
            choices = [wanted]
        source = self.emulated_source(target.language, choices, is_counted=counts is not None)
        library = load_emulated(f"{self.name}-{target.language}", source)
        try:
            names = [*self.inputs, self.output]
            number = choices.index(wanted)
            output = emulate(library, number, names, launch, target.order, self.strided, counts)
        except EmulatorError as error:
            raise EmulatorError(f"{self.file(target.language).name}: {error}") from None
        if counts is not None:
            note_run(self.name, counts.read())
        return output

    def _run_on_gpu(self, language: Language, text: str, launch: Launch) -> mx.array:
        is_available = mx.metal.is_available() if language == "metal" else mx.cuda.is_available()
        if not is_available:
            raise BuildError(f"MLX has no {language} GPU here: the emulator runs the kernel too")
        x, y, z = launch.num_groups
        template = [(name, launch.template[name]) for name in self.templates]
        run = gpu_function(self, language, text)
        outputs = run(
            inputs=[
                *map(self._in_place, self.inputs, launch.inputs),
                *([numbers(tuple(launch.integers), mx.int32)] if self.integers else []),
                *([numbers(tuple(launch.reals), mx.float32)] if self.reals else []),
            ],
            template=template,
            grid=(x * launch.num_threads, y, z),
            threadgroup=(launch.num_threads, 1, 1),
            output_shapes=[launch.shape],
            output_dtypes=[launch.dtype],
            stream=mx.gpu,  # whatever the default device is
        )
        ensure_it_compiles(run, tuple(template), outputs)
        return outputs[0]

    def _in_place(self, name: str, x: mx.array) -> mx.array:
        """An input as MLX gets it: a kernel with strided ones sees to it that the others are contiguous."""
        if name in self.strided:
            return x
        return at_least_smallest(mx.contiguous(x, stream=mx.gpu) if self.strided else x)


class GpuFunction(Protocol):
    """What mx.fast.metal_kernel and mx.fast.cuda_kernel return."""

    def __call__(
        self,
        *,
        inputs: Sequence[mx.array],
        template: Sequence[tuple[str, int | mx.Dtype]],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
        stream: mx.DeviceType,
    ) -> list[mx.array]: ...


@cache
def gpu_function(kernel: GpuKernel, language: Language, text: str) -> GpuFunction:
    """MLX's operation for a kernel with a given text, from `whole_source`."""
    make = mx.fast.metal_kernel if language == "metal" else mx.fast.cuda_kernel
    numbers = (["integers"] if kernel.integers else []) + (["reals"] if kernel.reals else [])
    function = make(
        # MLX keeps compiled kernels by name, on CUDA even on disk: another text needs another name.
        name=f"{kernel.name}_{hashlib.sha256(text.encode()).hexdigest()[:16]}",
        input_names=[*kernel.inputs, *numbers],
        output_names=[kernel.output],
        header=in_ascii(text),
        source=kernel.body(language),
        ensure_row_contiguous=not kernel.strided,
    )
    return cast(GpuFunction, function)


def in_ascii(text: str) -> str:
    """A source as MLX takes it for Metal: any other character, as a comment may have, is a question mark."""
    return text.encode("ascii", "replace").decode()


compiled: set[tuple[GpuFunction, tuple[tuple[str, int | mx.Dtype], ...]]] = set()


def ensure_it_compiles(
    function: GpuFunction, template: tuple[tuple[str, int | mx.Dtype], ...], outputs: list[mx.array]
) -> None:
    """Evaluate a kernel's first outputs, so that a mistake in its source shows here, as a BuildError."""
    if (function, template) in compiled:
        return
    try:
        mx.eval(outputs)
    except (ValueError, RuntimeError) as error:
        if TRACING in str(error):
            return  # nothing can be evaluated inside mx.compile; a mistake shows later, in MLX's words
        lines = str(error).splitlines()
        first = next((line for line in lines if "error:" in line or "): error" in line), lines[0])
        raise BuildError(f"the compiler refused: {first.strip()}") from None
    compiled.add((function, template))


@lru_cache(maxsize=64)
def numbers(values: tuple[float, ...], dtype: mx.Dtype, least: int = 0) -> mx.array:
    """Numbers for a kernel, with zeros behind them up to the `least` size.

    All layers of a step get the same array; made on the host, it needs no dispatch.
    """
    return mx.array([*values, *[0] * (least - len(values))], dtype)


def at_least_smallest(x: mx.array) -> mx.array:
    """The array itself, or a longer one that begins with its entries."""
    if x.size >= SMALLEST_BUFFER:
        return x
    return mx.concatenate([x.reshape(-1), mx.zeros(SMALLEST_BUFFER - x.size, x.dtype)])
