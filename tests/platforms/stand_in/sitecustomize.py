"""Makes MLX name a GPU as its default device, in every process that finds this folder on PYTHONPATH.

The package then takes every path that it takes on a Mac or an NVIDIA card, and the emulator runs the kernels.
MLX's own operations are computed by the CPU all the same: what a real GPU does in them is not seen here.
"""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType


class GpuFirst:
    """Finds mlx.core once, as the next finder would, and changes it when it is loaded."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "mlx.core":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        spec.loader = Changed(spec.loader)
        return spec


class Changed:
    """A loader whose module has a GPU."""

    def __init__(self, loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        give_gpu(module)


def give_gpu(mx: ModuleType) -> None:
    """Let the GPU be the default device until another is chosen."""
    default = [mx.Device(mx.gpu)]
    enter_stream = mx.stream

    def set_default_device(device) -> None:
        default[0] = mx.Device(getattr(device, "type", device))

    @contextmanager
    def stream(place) -> Iterator[None]:
        before = default[0]
        set_default_device(getattr(place, "device", place))
        try:
            with enter_stream(place if default[0] == mx.cpu else mx.cpu):
                yield
        finally:
            default[0] = before

    mx.default_device = lambda: default[0]
    mx.set_default_device = set_default_device
    mx.stream = stream


sys.meta_path.insert(0, GpuFirst())
