"""Check a kernel against MLX's own operation on a small input, before a model uses it."""

import os
from collections.abc import Callable
from functools import cache
from typing import Literal

import mlx.core as mx

from .native import BuildError, notice

CLOSE = 1e-3  # relative to the largest entry: far above rounding, far below any mistake
CLOSE_IN_TF32 = 4e-3  # TF32 keeps 10 bits of each factor, which puts the MLP off by up to 2.9e-3
CLOSE_IN = {mx.float16: 5e-3, mx.bfloat16: 4e-2}

MLX = "MLX's operation"

Verdict = Literal["right", "wrong", "missing"]

_notice_once = cache(notice)


def judge(
    name: str,
    ours: Callable[[], mx.array],
    expected: Callable[[], mx.array],
    close: float = CLOSE,
    is_told: bool = True,
    stand_in: str = MLX,
) -> Verdict:
    """Whether a candidate agrees with MLX on the CPU; a notice says so if it fails or differs.

    On the CPU, MLX uses neither TF32 nor fast sines and cosines.

    Args:
        name: of the kernel, for the notice.
        ours: computes with the candidate.
        expected: computes the same with MLX's own operations.
        close: largest difference allowed, relative to the largest entry.
        is_told: whether there are notices.
        stand_in: what is used instead, for the notice.

    Returns:
        "right", "wrong", or "missing" for one that is not written yet.
    """
    try:
        actual = ours()
        with mx.stream(mx.cpu):
            exact = expected()
        is_close = mx.max(mx.abs(actual - exact)) <= close * mx.max(mx.abs(exact))
        if actual.shape == exact.shape and bool(is_close):
            return "right"
        problem = f"{name} differs from {stand_in}, which is used instead"
    except NotImplementedError:
        return "missing"
    except BuildError as error:
        problem = f"kernels are not in use: {error}. TINY_LLM_KERNELS=off hides this line."
    except Exception as error:  # a learner's mistake, in a part that the model can do without
        problem = f"{name} fails, so {stand_in} is used instead: {type(error).__name__}: {error}"
    if is_told:
        _notice_once(problem)
    return "wrong"


def sample(*shape: int) -> mx.array:
    """A normally distributed input for a kernel, the same in every run."""
    return mx.random.normal(shape, key=mx.random.key(sum(shape)))


def close_in(dtype: mx.Dtype) -> float:
    """Tolerance for a part that computes in a type: some roundings of entries of about the largest size."""
    return CLOSE_IN.get(dtype, CLOSE)


def close_products(dtype: mx.Dtype = mx.float32) -> float:
    """Tolerance for a part that includes MLX's own products, which a GPU may compute in TF32 for float32."""
    may_be_tf32 = mx.default_device() == mx.gpu and os.environ.get("MLX_ENABLE_TF32", "1") != "0"
    return max(close_in(dtype), CLOSE_IN_TF32 if may_be_tf32 else 0)
