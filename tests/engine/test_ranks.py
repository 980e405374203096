"""An engine on several ranks: every law holds, and each request gets what it gets alone in one process."""

import os
import select
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from accelerated.pretrained import load_part
from scripts.checkpoints.files import resolve_checkpoint
from tests.support.ranks import ThreadRanks, on_ranks
from tiny_llm import (
    ScheduledTokens,
    SchedulerConfig,
    SchedulerOutput,
    Sequence,
    Watchdog,
)
from tiny_llm.engine.execution import Computed
from tiny_llm.model.loader import load_model
from tiny_llm.model.ranks import OneRank
from tiny_llm.ranks import run_rank
from tiny_llm.ranks.guarded import Guarded, RankLost, losses_noticed
from tiny_llm.ranks.sleeping_ranks import SleepingRanks
from tiny_llm.ranks.warm_up import AloneFirst

pytestmark = pytest.mark.usefixtures("on_cpu")


class Stepping:
    """Computes steps that take no time, until one finds a rank lost."""

    error: Exception | None = None
    complete = release = close = None

    def compute(self, requests: object) -> Computed:
        if self.error is not None:
            raise self.error
        entry = ScheduledTokens(Sequence(0, [1, 2, 3]), 0, 3, True)
        return Computed(SchedulerOutput((entry,)), {})


def test_guarded_steps_are_learned_from() -> None:
    watchdog = Watchdog(SchedulerConfig(4, 2), 8)
    execution = Guarded(Stepping(), watchdog)  # type: ignore[arg-type]
    for _ in range(16):
        execution.compute({})
    assert watchdog.limit == watchdog.at_least


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[ring] connection to a peer was lost"),
        RuntimeError("[METAL] Command buffer execution failed: Caused GPU Timeout Error (00000002)"),
        ConnectionError("gone"),
    ],
    ids=["ring", "a GPU that waited", "rank 0"],
)
def test_a_lost_rank_is_no_error_to_recover_from(error: Exception) -> None:
    stepping = Stepping()
    execution = Guarded(stepping, Watchdog(SchedulerConfig(4, 2), 8))  # type: ignore[arg-type]
    stepping.error = error
    with pytest.raises(RankLost):
        execution.compute({})
    stepping.error = RuntimeError("another error")
    with pytest.raises(RuntimeError, match="another error"):
        execution.compute({})


def test_a_part_of_a_model_of_another_family_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gemma3", "text_config": {"hidden_size": 64}}')
    with pytest.raises(ValueError, match="model_type 'gemma3' is not supported"):
        load_part(tmp_path, OneRank())


def test_each_rank_is_warm_before_they_meet() -> None:
    """It has computed steps with its part, and exchanged nothing but whether it could load."""
    tokens, path = mx.array([[5, 9, 100, 7]]), resolve_checkpoint("qwen3-kjv-1m")

    def load_and_compute(ranks: ThreadRanks) -> tuple[list[Any], np.ndarray]:
        part = run_rank.load_together(path, ranks, mx.float32, load_part)
        before = list(ranks.exchanged)
        return before, np.array(part(tokens))

    whole = np.array(load_model(path, mx.float32)(tokens))
    for before, logits in on_ranks(2, load_and_compute):
        assert before == [("all_gather", ())]
        np.testing.assert_allclose(logits, whole, atol=1e-2)  # by kernels and by plain parts


def test_a_rank_alone_takes_its_part_for_all() -> None:
    x, alone = mx.array([1.0, 2.0]), AloneFirst(OneRank())
    alone.size = 3
    assert alone.all_sum(x).tolist() == [1, 2]
    assert alone.all_gather(x).tolist() == [[1, 2]] * 3


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The ends of a pipe, to read from and to write to. A test may close them."""
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


def sleeping(rank: int, *pipes: int) -> SleepingRanks:
    """A rank whose exchanges, once it is awake, are those of a process that is alone."""
    ranks = OneRank()
    ranks.rank = rank
    return SleepingRanks(ranks, pipes)


@pytest.mark.parametrize("operation", ["all_sum", "all_gather"])
def test_each_exchange_of_rank_0_wakes_the_others_once(operation: str, pipe: tuple[int, int]) -> None:
    reading = pipe[0]
    x = mx.array([1, 2])
    first, other = (getattr(sleeping(rank, pipe[1 - rank]), operation) for rank in range(2))
    for _ in range(3):
        first(x)
    for _ in range(3):
        assert select.select([reading], [], [], 0)[0]
        assert other(x).flatten().tolist() == [1, 2]
    assert not select.select([reading], [], [], 0)[0]  # so it would sleep now


@pytest.mark.parametrize("lost", [0, 1])
def test_a_sleeping_rank_notices_a_lost_one(lost: int, pipe: tuple[int, int]) -> None:
    os.close(pipe[1 - lost])
    with pytest.raises(RankLost), losses_noticed():
        sleeping(1 - lost, pipe[lost]).all_sum(mx.array([1]))
