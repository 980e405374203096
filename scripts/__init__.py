"""The course's commands and tools, each run as `pdm run NAME` or `python -m scripts.NAME`."""

import sys
from contextlib import suppress

from . import errors, packages, waiting

if sys.argv[0] == "-m" and errors.begin():  # `python -m scripts.NAME`; `setup.py` has begun by itself
    waiting.show_progress("starting")

from kernel_runtime import native  # noqa: F401  before MLX is loaded: a command may import it before the package

with suppress(ImportError), errors.usage_errors():  # without MLX there is no device: doctor says so
    from kernel_runtime import device  # noqa: F401

packages.choose_by_environment()
