"""The Metal sources with address spaces that are kept apart, as Metal does and the emulator does not."""

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from kernel_runtime.gpu_kernel import SUFFIXES, GpuKernel
from kernel_runtime.gpu_source import whole_source
from kernel_runtime.launch import Template
from tests.platforms.kernel_sources import GPU_KERNELS, GPU_SOURCES, declarations, parameters, templates
from tests.platforms.zig import zig

HEADER = Path(__file__).parent / "address_spaces"
QUALIFIER = re.compile(r"\b(device|constant|threadgroup) ")
OF_FILES = re.compile(
    r"//.*|^#.*|^using namespace metal;", re.M
)  # what holds for a file, not for a namespace
FILE = re.compile(r'^#line 1 "(.+)"', re.M)
INCLUDE = re.compile(r'^#include ".+"\n', re.M)
VARIABLE = re.compile(r"^\w[\w ]* \w+ =", re.M)  # of the program, since it begins a line
METAL_SOURCES = [file for file in GPU_SOURCES if file.parent.name == "metal"]
each_kernel = pytest.mark.parametrize("kernel", GPU_KERNELS, ids=lambda kernel: kernel.name)


def code_of(kernel: GpuKernel) -> str:
    """The source and all that it includes, without comments."""
    return OF_FILES.sub("", whole_source(kernel.file("metal")))


def in_namespace(name: str, kernel: GpuKernel, code: str, choices: Iterable[Template]) -> str:
    """A source and MLX's kernels around it; what the compiler says of it begins with the name."""
    # In a function a variable of clang may have a space only if it is static.
    body = kernel.body("metal").replace("threadgroup ", "static threadgroup ")
    body = body.replace(f"::{kernel.name}<", f"{kernel.name}<")
    kernels = [
        f"void kernel_{number}({parameters(kernel, 'metal', template)}) {{\n"
        f"{declarations('metal', template)}\n{body}\n}}"
        for number, template in enumerate(choices)
    ]
    return "\n".join(
        [f'#line 1 "{name}"', f"namespace {name} {{ using namespace metal;", code, *kernels, "}"]
    )


def compile_sources(folder: Path, sources: Iterable[str]) -> dict[str, str]:
    """The first error in each namespace that has one."""
    file = folder / "kernels.cpp"
    file.write_text("\n".join(["#include <metal_stdlib>", *sources]) + "\n", encoding="utf-8")
    options = ["-std=c++17", "-c", "-ferror-limit=0", "-Wno-everything", "-isystem", str(HEADER)]
    result = subprocess.run(
        [zig(), "c++", *options, str(file), "-o", str(file.with_suffix(".o"))], capture_output=True, text=True
    )
    errors = re.findall(r"^([\w. ]+):\d+:\d+: (?:fatal )?error: (.*)$", result.stderr, re.M)
    assert bool(errors) == (result.returncode != 0), result.stderr[:3000]
    return dict(reversed(errors))


def test_every_source_belongs_to_a_kernel_that_is_tested() -> None:
    files = [kernel.file(language) for kernel in GPU_KERNELS for language in SUFFIXES]
    reached = {file.with_name(name) for file in files for name in FILE.findall(whole_source(file))}
    assert sorted(reached) == GPU_SOURCES


@each_kernel
def test_every_combination_compiles(kernel: GpuKernel, tmp_path: Path) -> None:
    source = in_namespace("whole", kernel, code_of(kernel), templates(kernel))
    assert compile_sources(tmp_path, [source]) == {}


@pytest.mark.parametrize("source", METAL_SOURCES, ids=lambda source: source.name)
def test_a_source_that_lacks_one_qualifier_is_refused(source: Path, tmp_path: Path) -> None:
    """A header by one of the kernels that include it: of a template clang checks only what a kernel uses."""
    own = OF_FILES.sub("", INCLUDE.split(source.read_text(encoding="utf-8"))[-1])
    places = {f"number_{i}_{match[1]}": match.span() for i, match in enumerate(QUALIFIER.finditer(own))}
    kernels = [kernel for kernel in GPU_KERNELS if own in code_of(kernel)]
    assert kernels
    for kernel in kernels:
        before, after = code_of(kernel).split(own)
        variants = {"unchanged": own} | {name: own[:i] + own[j:] for name, (i, j) in places.items()}
        codes = {name: before + variant + after for name, variant in variants.items()}
        choices = [next(templates(kernel))]
        errors = compile_sources(
            tmp_path, [in_namespace(name, kernel, code, choices) for name, code in codes.items()]
        )
        assert "unchanged" not in errors
        places = {
            name: place
            for name, place in places.items()
            if name not in errors and not variables_elsewhere(codes[name])
        }
    assert places == {}, (
        f"accepted without a qualifier: {[own[:j].splitlines()[-1] for _, j in places.values()]}"
    )


@each_kernel
def test_variables_of_the_program_are_constant(kernel: GpuKernel) -> None:
    """Metal has them in no other space; clang cannot tell."""
    assert variables_elsewhere(code_of(kernel)) == []


def variables_elsewhere(code: str) -> list[str]:
    return [line for line in VARIABLE.findall(code) if "constant" not in line.split()]
