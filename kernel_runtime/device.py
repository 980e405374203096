"""The device that MLX computes on: its own choice, or the one that TINY_LLM_DEVICE names.

Importing this module makes that device the default of all threads, so that whatever asks for
`mx.default_device()` follows. It comes after `native`, which must run before MLX is loaded.
"""

import os

from .native import kernels_mode


def choose_device() -> None:
    """Make the device that TINY_LLM_DEVICE names MLX's default device.

    Raises:
        ValueError: the variable is neither cpu nor gpu, or it is gpu and MLX has no GPU here.
    """
    name = os.environ.get("TINY_LLM_DEVICE", "").lower()
    if not name:
        return
    if name not in ("cpu", "gpu"):
        raise ValueError(f"TINY_LLM_DEVICE is {name!r}: set it to cpu or gpu, or unset it")
    import mlx.core as mx  # here, since commands that compute nothing need not wait for it

    device = mx.cpu if name == "cpu" else mx.gpu
    if not mx.is_available(device):
        raise ValueError("TINY_LLM_DEVICE is gpu, but MLX has no GPU here: set it to cpu, or unset it")
    mx.set_default_device(device)


choose_device()
kernels_mode()  # refuses what makes no sense before anything is computed
