"""What to run on a GPU, and where."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import mlx.core as mx

Language = Literal["metal", "cuda"]
Template = Mapping[str, int | mx.Dtype]
"""Values of a kernel function's template arguments, by name."""

FORWARD, BACKWARD = 0, 1
FLOATS = (mx.float32, mx.float16, mx.bfloat16)
LANES = 32  # threads of a SIMD group, or warp
MAX_THREADS = 1024
MAX_ENTRIES = 2**31 - 1  # that an int can count


@dataclass(frozen=True)
class Target:
    """Where a kernel runs.

    Args:
        language: "metal" or "cuda".
        device: "gpu", or "emulator", which runs both languages on any machine.
        order: in which the emulator's threads take turns: FORWARD, BACKWARD, or the seed, 2 or more, of a
            random order.
    """

    language: Language
    device: Literal["gpu", "emulator"] = "gpu"
    order: int = FORWARD


def default_target() -> Target:
    """The GPU of this machine or, where there is none, the emulator with the Metal sources."""
    if mx.metal.is_available():
        return Target("metal")
    return Target("cuda") if mx.cuda.is_available() else Target("metal", "emulator")


def has_bfloat16() -> bool:
    """Whether the GPU of this machine computes in bfloat16; NVIDIA's do from sm_80 on, so a T4 does not."""
    if not mx.cuda.is_available():
        return True
    return int(mx.device_info(mx.gpu).get("compute_capability_major", 8)) >= 8


@dataclass(frozen=True, eq=False)
class Launch:
    """One run of a kernel.

    Args:
        inputs: arrays, which the kernel reads as if they were contiguous, unless it reads them by strides.
        shape, dtype: of the output, a float.
        num_groups: groups of threads along x, y and z.
        num_threads: threads of a group, a multiple of 32.
        template: a value for each template argument.
        integers, reals: the numbers that the kernel function takes.

    Raises:
        ValueError: no GPU runs this.
    """

    inputs: Sequence[mx.array]
    shape: Sequence[int]
    dtype: mx.Dtype
    num_groups: tuple[int, int, int]
    num_threads: int
    template: Template
    integers: Sequence[int] = ()
    reals: Sequence[float] = ()

    def __post_init__(self) -> None:
        if self.dtype not in FLOATS:
            raise ValueError(f"a kernel's output is float32, float16 or bfloat16, not {self.dtype}")
        if self.num_threads % LANES != 0 or not 0 < self.num_threads <= MAX_THREADS:
            raise ValueError(
                f"a group has a multiple of {LANES} threads, at most {MAX_THREADS}, not {self.num_threads}"
            )
        if min(self.num_groups) < 1 or 0 in self.shape or any(x.size == 0 for x in self.inputs):
            raise ValueError("a kernel needs work: none of its arrays may be empty")
        if max(prod(self.shape), *(x.size for x in self.inputs)) > MAX_ENTRIES:
            raise ValueError(
                f"a kernel's arrays have at most {MAX_ENTRIES} entries: it counts them in an int"
            )
