"""The starter, as the commands of learners find it."""

from pathlib import Path

import pytest

from scripts.hardware.quiet import ACCEPT_BUSY
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


@pytest.fixture
def busy_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks write what tests ask for while other tests run."""
    monkeypatch.setenv(ACCEPT_BUSY, "1")
