"""Whether a kernel is right: tried on a small input beside MLX's own operation, before a model uses it."""

import os
from collections.abc import Callable
from functools import cache

import mlx.core as mx

from .native import BuildError, is_on, notice

CLOSE = 1e-3  # of the largest entry: far above rounding, far below any mistake
CLOSE_IN_TF32 = 4e-3  # products that cut each factor after 10 bits put the MLP off by up to 2.9e-3

_notice_once = cache(notice)


def works(
    name: str, ours: Callable[[], mx.array], expected: Callable[[], mx.array], close: float = CLOSE
) -> bool:
    """Whether a kernel gives what MLX gives on the CPU; a notice where it should and does not.

    There MLX computes in float32 to its last bits, and no sine or cosine is a fast one.

    Args:
        name: of the kernel, for the notice.
        ours: computes with the kernel.
        expected: computes the same with MLX's own operations.
        close: how far the two may lie apart, as a share of the largest entry.
    """
    if not is_on("TINY_LLM_KERNELS"):
        return False
    try:
        actual = ours()
        with mx.stream(mx.cpu):
            exact = expected()
        is_close = mx.max(mx.abs(actual - exact)) <= close * mx.max(mx.abs(exact))
        if actual.shape == exact.shape and bool(is_close):
            return True
        notice(f"the kernel of {name} computes something else than MLX's operation, so that is used instead")
    except NotImplementedError:
        pass
    except BuildError as error:
        _notice_once(f"kernels are not in use: {error}. TINY_LLM_KERNELS=off hides this line.")
    except Exception as error:  # a learner's mistake in a part that the model can do without
        notice(f"{name} fails, so MLX's operation is used instead: {type(error).__name__}: {error}")
    return False


def sample(*shape: int) -> mx.array:
    """An input to try a kernel on, normally distributed and the same in each run."""
    return mx.random.normal(shape, key=mx.random.key(sum(shape)))


def close_products() -> float:
    """CLOSE for a part that MLX's own products in float32 belong to: a GPU may compute them in TF32."""
    may_be_tf32 = mx.default_device() == mx.gpu and os.environ.get("MLX_ENABLE_TF32", "1") != "0"
    return CLOSE_IN_TF32 if may_be_tf32 else CLOSE
