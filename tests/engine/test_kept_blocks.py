"""Blocks that are kept in files: no token changes, whatever is evicted, restored, or lost on the way."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.test_invariance import no_health_checks, with_features
from tests.support.kept import KeptPool, files_in, keeping
from tests.support.schedules import POOLS, check_engine_law
from tests.support.speculation import DRAFTERS
from tiny_llm import BlockManager, InTurn, overlapped, with_drafts
from tiny_llm.engine.execution import MakeExecution

pytestmark = pytest.mark.usefixtures("on_cpu")
EXECUTIONS: dict[str, Callable[[BlockManager], MakeExecution]] = {
    "in turn": lambda blocks: InTurn,
    "overlapping": lambda blocks: overlapped,
    "lookup": lambda blocks: with_drafts(DRAFTERS["lookup"](blocks), overlap=True),
    "a draft model": lambda blocks: with_drafts(DRAFTERS["one that rests"](blocks), overlap=True),
}


@pytest.mark.parametrize("kind", list(EXECUTIONS))
@settings(max_examples=8, **no_health_checks)
@given(data=st.data())
def test_no_block_that_comes_back_changes_a_token(kind: str, data: st.DataObject) -> None:
    schedule = data.draw(with_features(POOLS["shared"]))
    assert schedule.pool is not None
    with TemporaryDirectory() as folder:
        for _ in range(2):  # the second engine finds what the first one has kept
            files = files_in(Path(folder))
            kept = replace(schedule, pool=KeptPool.of(schedule.pool, files))
            check_engine_law(kept, keeping(EXECUTIONS[kind], files))
