"""The table of what the CUDA kernels take: made from the record, as it is."""

from pathlib import Path

import pytest

from scripts.book.cuda import Kernel, Takes, cuda_table, write_kernels
from scripts.book.problems import ChapterError


def test_a_row_has_every_architecture(tmp_path: Path) -> None:
    takes = {"sm_80": Takes(32, 48, 8448, 0, 0), "sm_90": Takes(40, 40, 0, 128, 0)}
    write_kernels(tmp_path / "kernels.json", [Kernel("matmul", "4711", takes)])
    head, _, row = cuda_table(tmp_path / "kernels.json").splitlines()
    assert head.count("sm_80: ") == head.count("sm_90: ") == 3
    assert row == "| `matmul` | 32 to 48 | 8,448 | 0 | 40 | 0 | 128 |"


def test_a_missing_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(ChapterError, match="no record kernels"):
        cuda_table(tmp_path / "kernels.json")
