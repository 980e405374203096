"""The course's commands and tools, each run as `pdm run NAME` or `python -m scripts.NAME`."""

import runpy
from pathlib import Path

# OpenBLAS must be loaded before MLX is; the package itself would be too late for a command that imports MLX.
runpy.run_path(str(Path(__file__).resolve().parent.parent / "tiny_llm_ref" / "native.py"))
