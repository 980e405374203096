"""The Metal sources with address spaces that are kept apart, as Metal does and the emulator does not."""

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from kernel_runtime.gpu_kernel import SUFFIXES, GpuKernel
from kernel_runtime.launch import Template
from tests.platforms.kernel_sources import GPU_KERNELS, GPU_SOURCES, declarations, parameters, templates
from tests.platforms.zig import zig

HEADER = Path(__file__).parent / "address_spaces"
QUALIFIER = re.compile(r"\b(device|constant|threadgroup) ")
VARIABLE = re.compile(r"^\w[\w ]* \w+ =", re.M)  # of the program, since it begins a line
each_kernel = pytest.mark.parametrize("kernel", GPU_KERNELS, ids=lambda kernel: kernel.name)


def code_of(kernel: GpuKernel) -> str:
    """The source without comments, line for line."""
    return re.sub(r"//.*", "", kernel.file("metal").read_text(encoding="utf-8"))


def in_namespace(name: str, kernel: GpuKernel, code: str, choices: Iterable[Template]) -> str:
    """A source and MLX's kernels around it; what the compiler says of it begins with the name."""
    include, _, rest = code.partition("using namespace metal;")
    # In a function a variable of clang may have a space only if it is static.
    body = kernel.body("metal").replace("threadgroup ", "static threadgroup ")
    body = body.replace(f"::{kernel.name}<", f"{kernel.name}<")
    kernels = [
        f"void kernel_{number}({parameters(kernel, 'metal', template)}) {{\n"
        f"{declarations('metal', template)}\n{body}\n}}"
        for number, template in enumerate(choices)
    ]
    return "\n".join(
        [include, f'#line 1 "{name}"', f"namespace {name} {{ using namespace metal;", rest, *kernels, "}"]
    )


def compile_sources(folder: Path, sources: Iterable[str]) -> dict[str, str]:
    """The first error in each namespace that has one."""
    file = folder / "kernels.cpp"
    file.write_text("\n".join(sources) + "\n", encoding="utf-8")
    options = ["-std=c++17", "-c", "-ferror-limit=0", "-Wno-everything", "-isystem", str(HEADER)]
    result = subprocess.run(
        [zig(), "c++", *options, str(file), "-o", str(file.with_suffix(".o"))], capture_output=True, text=True
    )
    errors = re.findall(r"^([\w. ]+):\d+:\d+: (?:fatal )?error: (.*)$", result.stderr, re.M)
    assert bool(errors) == (result.returncode != 0), result.stderr[:3000]
    return dict(reversed(errors))


def test_every_source_belongs_to_a_kernel_that_is_tested() -> None:
    assert sorted(kernel.file(language) for kernel in GPU_KERNELS for language in SUFFIXES) == GPU_SOURCES


@each_kernel
def test_every_combination_compiles(kernel: GpuKernel, tmp_path: Path) -> None:
    source = in_namespace("whole", kernel, code_of(kernel), templates(kernel))
    assert compile_sources(tmp_path, [source]) == {}


@each_kernel
def test_a_source_that_lacks_one_qualifier_is_refused(kernel: GpuKernel, tmp_path: Path) -> None:
    code, choices = code_of(kernel), [next(templates(kernel))]
    variants = {"unchanged": code}
    for number, match in enumerate(QUALIFIER.finditer(code)):
        line = code.count("\n", 0, match.start()) + 1
        name = f"line_{line}_without_{match[1]}_number_{number}"
        variants[name] = code[: match.start()] + code[match.end() :]
    sources = [in_namespace(name, kernel, variant, choices) for name, variant in variants.items()]
    errors = compile_sources(tmp_path, sources)
    accepted = [name for name in variants if name not in errors and not variables_elsewhere(variants[name])]
    assert accepted == ["unchanged"]


@each_kernel
def test_variables_of_the_program_are_constant(kernel: GpuKernel) -> None:
    """Metal has them in no other space; clang cannot tell."""
    assert variables_elsewhere(code_of(kernel)) == []


def variables_elsewhere(code: str) -> list[str]:
    return [line for line in VARIABLE.findall(code) if "constant" not in line.split()]
