"""The kernels of the course, and those for GPUs with the signature that MLX makes for each."""

import importlib
import itertools
import pkgutil
from collections.abc import Iterator, Mapping

import mlx.core as mx

from kernel_runtime.gpu_kernel import SMALLEST_BUFFER, SUFFIXES, GpuKernel
from kernel_runtime.launch import Language, Template
from scripts.course import ROOT
from tiny_llm import accelerated, kernels

CPU_SOURCES = sorted((ROOT / "tiny_llm_ref").rglob("*.cpp"))
GPU_SOURCES = sorted(file for language in SUFFIXES for file in (ROOT / "tiny_llm_ref").rglob(f"{language}/*"))
GPU_KERNELS = list(
    {
        value.name: value
        for package in (accelerated, kernels)
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        for value in vars(importlib.import_module(found.name)).values()
        if isinstance(value, GpuKernel)
    }.values()
)
TYPES: Mapping[Language, Mapping[mx.Dtype, str]] = {
    "metal": {mx.float32: "float", mx.float16: "float16_t", mx.bfloat16: "bfloat16_t"},
    "cuda": {mx.float32: "float", mx.float16: "__half", mx.bfloat16: "__nv_bfloat16"},
}
FLOAT_ARRAYS = ("mask", "partials", "cos", "sin", "query_weight", "key_weight")
INTEGER_INPUTS = ("block_tables", "sequences", "num_keys", "tiles", "first", "tails")
METAL_PLACE = (
    "uint3 threadgroup_position_in_grid",
    "uint simdgroup_index_in_threadgroup",
    "uint thread_index_in_simdgroup",
)


def templates(kernel: GpuKernel) -> Iterator[Template]:
    """Every combination of a kernel's template arguments."""
    for values in itertools.product(*kernel.templates.values()):
        yield dict(zip(kernel.templates, values, strict=True))


def parameters(kernel: GpuKernel, language: Language, template: Template) -> str:
    """The parameters of the kernel that MLX generates; in Metal it chooses the address space by the size."""
    T = TYPES[language][template["T"]]
    types = dict.fromkeys(INTEGER_INPUTS, "int32_t") | dict.fromkeys(FLOAT_ARRAYS, "float")
    types["weights"] = "uint32_t"
    if "tail_key" in kernel.inputs:  # quantized blocks, with the tails of the sequences in floats
        types["key"] = types["value"] = "uint32_t"
    spaces = ("device ", "constant ") if language == "metal" else ("", "")
    strides = "constant int64_t* " if language == "metal" else "__grid_constant__ Strides "
    declared = []
    for name in kernel.inputs:
        declared.append(f"const {spaces[0]}{types.get(name, T)}* {name}")
        declared += [f"const {strides}{name}_strides"] if name in kernel.strided else []
    for name, type_name, count in (
        ("integers", "int32_t", len(kernel.integers)),
        ("reals", "float", len(kernel.reals)),
    ):
        if count:
            declared.append(f"const {spaces[count < SMALLEST_BUFFER]}{type_name}* {name}")
    declared.append(f"{spaces[0]}{types.get(kernel.output, T)}* {kernel.output}")
    return ", ".join([*declared, *(METAL_PLACE if language == "metal" else ())])


def declarations(language: Language, template: Template) -> str:
    """The template arguments as names of the generated kernel."""
    return " ".join(
        f"using {name} = {TYPES[language][value]};"
        if isinstance(value, mx.Dtype)
        else f"constexpr int {name} = {value};"
        for name, value in template.items()
    )
