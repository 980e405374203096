"""The fastest way to mask rows that works on this machine."""

from functools import cache

import mlx.core as mx

from kernel_runtime.native import kernels_mode
from kernel_runtime.self_check import judge

from ..kernels.mask_rows import mask_rows
from ..model.engine_operations import MaskRows
from ..structured.masks import mask_rows_simple


def best_mask() -> MaskRows:
    """Use the C++ kernel on a CPU if it is right, and `mask_rows_simple` otherwise."""
    return _mask(str(mx.default_device()), kernels_mode())


@cache
def _mask(device: str, mode: str) -> MaskRows:
    if device != str(mx.Device(mx.cpu)) or mode in ("mlx", "off"):
        return mask_rows_simple
    rows, bits = mx.array([2, 0]), mx.array([[0xFFFFFFFF, 5], [0x80000001, 0]], mx.uint32)

    def finite(masked: mx.array) -> mx.array:
        return mx.where(mx.isinf(masked), -7, masked)

    def logits() -> mx.array:
        return mx.arange(3 * 37, dtype=mx.float32).reshape(3, 37)

    verdict = judge(
        "mask_rows",
        lambda: finite(mask_rows(logits(), rows, bits)),
        lambda: finite(mask_rows_simple(logits(), rows, bits)),
    )
    return mask_rows if verdict == "right" else mask_rows_simple
