"""The starter, as the commands of learners find it."""

from pathlib import Path

import pytest

from scripts.sources.files import Sources, write
from scripts.sources.render import render


@pytest.fixture(scope="module")
def starter() -> Sources:
    return render(())


@pytest.fixture
def package(tmp_path: Path, starter: Sources) -> Path:
    """A starter that a test may change."""
    write(starter, tmp_path / "tiny_llm")
    return tmp_path / "tiny_llm"
