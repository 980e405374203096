"""One kernel of each kind, called and compared with MLX's own product: what `pdm run doctor` tries."""

from collections.abc import Callable

import mlx.core as mx

from kernel_runtime.launch import Language, Target, default_target
from tiny_llm.kernels.gpu_operations import quantized_matmul_gpu
from tiny_llm.kernels.quantized_matmul import multiply_simple
from tiny_llm.ops.quantize import QuantizedWeights

CLOSE = 1e-3  # of the largest entry: far above rounding, far below any mistake
LANGUAGES: tuple[Language, ...] = ("metal", "cuda")


def probe(kind: str) -> str:
    """Call one kernel of a kind and say how it went.

    Args:
        kind: "cpu", "gpu" or "emulator".

    Returns:
        "right", "wrong", or "none" where this machine has no kernel of that kind.

    Raises:
        BuildError: it cannot be compiled here.
    """
    if kind == "cpu":
        return verdict(multiply_simple)
    if kind == "emulator":
        verdicts = {verdict(on_gpu(Target(language, "emulator"))) for language in LANGUAGES}
        return "wrong" if "wrong" in verdicts else "right"
    target = default_target()
    return verdict(on_gpu(target)) if target.device == "gpu" else "none"


def on_gpu(target: Target) -> Callable[[mx.array, QuantizedWeights], mx.array]:
    """The product on one target."""
    return lambda x, weights: quantized_matmul_gpu(x, weights, target)


def verdict(multiply: Callable[[mx.array, QuantizedWeights], mx.array]) -> str:
    """Whether a product with packed weights equals that of MLX on the CPU: "right" or "wrong"."""
    with mx.stream(mx.cpu):
        x, weight = (mx.random.normal((rows, 128), key=mx.random.key(rows)) for rows in (2, 35))
        packed = mx.quantize(weight, group_size=64, bits=4)
        expected = mx.quantized_matmul(x, *packed, group_size=64, bits=4)
        mx.eval(x, packed, expected)
    product = multiply(x, QuantizedWeights(*packed, 64, 4))
    with mx.stream(mx.cpu):
        is_close = mx.max(mx.abs(product - expected)) <= CLOSE * mx.max(mx.abs(expected))
        return "right" if product.shape == expected.shape and bool(is_close) else "wrong"
