"""Changes what MLX says of its default device, in every process that finds this folder on PYTHONPATH.

The default device is a GPU: the package takes every path that it takes on a Mac or an NVIDIA card, and the
emulator runs the kernels. MLX's own operations are computed by the CPU all the same: what a real GPU does in
them is not seen here, and libraries that ask are told the truth.

With ASKED_FOR_DEVICE, the path of a file, the answer stays true, and the file gets a line for each place in
the code that would have got another answer on a GPU, and each test that reached it, in this process or in one
that the test starts. On a machine with a GPU, the tests run with TINY_LLM_DEVICE=cpu meanwhile.
"""

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType


class DeviceFinder:
    """Finds mlx.core once, as the next finder would, and changes it when it is loaded."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "mlx.core":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        spec.loader = ChangingLoader(spec.loader)
        return spec


class ChangingLoader:
    """Loads as another loader does, and changes the module then."""

    def __init__(self, loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        file = os.environ.get("ASKED_FOR_DEVICE")
        real = module.default_device
        answer = gpu_first(module, bool(file))
        if file:
            answer = noting(real, answer, file)
        module.default_device = lambda: real() if is_library(sys._getframe(1)) else answer()


def is_library(frame) -> bool:
    return "site-packages" in frame.f_code.co_filename


def noting(real: Callable, on_gpu: Callable, file: str) -> Callable:
    """The real answer, and in a file who would get another one from `on_gpu`: the place, and the test."""

    def default_device():
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]  # without the phase it is in
        if test and on_gpu() != real():
            line = f"{place_of(sys._getframe(2))}\t{test}\n"
            if line not in noted:
                noted.add(line)
                with open(file, "a", encoding="utf-8") as lines:
                    lines.write(line)
        return real()

    noted: set[str] = set()
    return default_device


def place_of(frame) -> str:
    """The line that asks, and the one that called it."""
    callers = [each for each in (frame, frame.f_back) if each is not None]
    return " < ".join(f"{each.f_code.co_filename}:{each.f_lineno}" for each in callers)


def gpu_first(mx: ModuleType, is_noting: bool) -> Callable:
    """The answer of a machine with a GPU, which is the default device until another is chosen.

    While places are noted, TINY_LLM_DEVICE chooses only the device that computes.
    """
    default = [mx.Device(mx.gpu)]
    enter_stream, set_device = mx.stream, mx.set_default_device

    def set_default_device(device) -> None:
        chosen = mx.Device(device) if isinstance(device, mx.DeviceType) else device
        if chosen.type == mx.cpu:
            set_device(chosen)
        if not (is_noting and sys._getframe(1).f_code.co_name == "choose_device"):
            default[0] = chosen

    @contextmanager
    def stream(place) -> Iterator[None]:
        before = default[0]
        set_default_device(getattr(place, "device", place))
        try:
            with enter_stream(place if default[0] == mx.cpu else mx.cpu):
                yield
        finally:
            default[0] = before

    mx.set_default_device = set_default_device
    mx.stream = stream
    return lambda: default[0]


sys.meta_path.insert(0, DeviceFinder())
