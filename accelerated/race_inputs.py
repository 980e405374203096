"""What the candidates for an operation are timed on: parts of a layer of a usual size."""

from dataclasses import dataclass

import mlx.core as mx

from kernel_runtime.contest import CHUNK
from kernel_runtime.launch import default_target, has_bfloat16
from kernel_runtime.self_check import sample
from tiny_llm.ops.basics import Projection, as_projection
from tiny_llm.ops.quantize import QuantizedMatmul, QuantizedProjection, QuantizedWeights

from .integer_matmul import fast_projection


@dataclass(frozen=True)
class Sizes:
    """A layer to time: E, I, H_q, H, D, and S keys in the cache."""

    dim: int
    hidden_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_keys: int


ON_CPU = Sizes(576, 1536, 9, 3, 64, 512)
ON_GPU = Sizes(2048, 6144, 16, 8, 128, 1024)
EMULATED = Sizes(64, 128, 2, 1, 32, CHUNK)
NUM_WEIGHTS = 4
"""Different weights that are multiplied in turn, as a model's layers are: no cache holds them for long."""


def is_on_gpu() -> bool:
    """Whether models compute on a GPU."""
    return mx.default_device() == mx.gpu


def sizes() -> Sizes:
    """What to time on this device: an emulated GPU takes long."""
    if not is_on_gpu():
        return ON_CPU
    return EMULATED if default_target().device == "emulator" else ON_GPU


def usual_dtype() -> mx.Dtype:
    """The type that most models compute in on this device."""
    if sizes() is not ON_GPU:
        return mx.float32
    return mx.bfloat16 if has_bfloat16() else mx.float16


def normal(dtype: mx.Dtype, *shape: int) -> mx.array:
    """An input of that type and shape."""
    x = sample(*shape).astype(dtype)
    mx.eval(x)
    return x


def projection(
    matmul: QuantizedMatmul | None, dtype: mx.Dtype, num_outputs: int, num_inputs: int
) -> Projection:
    """A projection in 4 bits, or with its weights expanded; a vector keeps about its length."""
    weight = normal(dtype, num_outputs, num_inputs) * num_inputs**-0.5
    if matmul is None:
        return as_projection(weight)
    packed = QuantizedWeights(*mx.quantize(weight))
    mx.eval(packed.weight, packed.scales, packed.biases)
    return fast_projection(packed, None, matmul)


def packed_in(dtype: mx.Dtype, weight: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """A weight in 4 bits: codes, and scales and biases in a type."""
    codes, scales, biases = mx.quantize(weight)
    return codes, scales.astype(dtype), biases.astype(dtype)


def as_quantized(packed: tuple[mx.array, mx.array, mx.array]) -> QuantizedProjection:
    """The projection of packed weights by array operations."""
    return QuantizedProjection(QuantizedWeights(*packed))
