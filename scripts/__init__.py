"""The course's commands and tools, each run as `pdm run NAME` or `python -m scripts.NAME`."""

import runpy
from contextlib import suppress
from pathlib import Path

from .errors import usage_errors

REFERENCE = Path(__file__).resolve().parent.parent / "tiny_llm_ref"

# OpenBLAS must be loaded before MLX is; the package itself would be too late for a command that imports MLX.
runpy.run_path(str(REFERENCE / "native.py"))
with suppress(ImportError), usage_errors():  # without MLX there is no device: doctor says so
    runpy.run_path(str(REFERENCE / "device.py"))
