"""Zig's clang, which compiles for other machines than this one."""

import importlib.util
from pathlib import Path


def zig() -> Path:
    """The program; a failure in one sentence where it is not installed."""
    spec = importlib.util.find_spec("ziglang")
    assert spec is not None, "ziglang is not installed: run `pdm run setup --group platforms`"
    assert spec.origin is not None
    return Path(spec.origin).parent / "zig"
