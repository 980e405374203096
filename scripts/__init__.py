"""The course's commands and tools, each run as `pdm run NAME` or `python -m scripts.NAME`."""

from contextlib import suppress

from kernel_runtime import native  # noqa: F401  before MLX is loaded: a command may import it before the package

from .errors import usage_errors

with suppress(ImportError), usage_errors():  # without MLX there is no device: doctor says so
    from kernel_runtime import device  # noqa: F401
