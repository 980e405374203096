"""An engine on several ranks: every law holds, and each request gets what it gets alone in one process."""

from pathlib import Path

import pytest

from tiny_llm import (
    EngineStep,
    ScheduledTokens,
    SchedulerConfig,
    SchedulerOutput,
    Sequence,
    Watchdog,
)
from tiny_llm.given.pretrained import load_part
from tiny_llm.model.given.ranks import OneRank
from tiny_llm.serving.ranks.given.guarded_engine import RankLost, guard_steps

pytestmark = pytest.mark.usefixtures("on_cpu")


class Stepping:
    """An engine whose steps take no time, until one finds a rank lost."""

    error: Exception | None = None

    def step(self) -> EngineStep:
        if self.error is not None:
            raise self.error
        entry = ScheduledTokens(Sequence(0, [1, 2, 3]), 0, 3, True)
        return EngineStep(SchedulerOutput((entry,)), {}, ())


def test_guarded_steps_are_learned_from() -> None:
    engine, watchdog = Stepping(), Watchdog(SchedulerConfig(4, 2), 8)
    guard_steps(engine, watchdog)  # type: ignore[arg-type]
    for _ in range(16):
        engine.step()
    assert watchdog.limit == watchdog.at_least


@pytest.mark.parametrize(
    "error", [RuntimeError("[ring] connection to a peer was lost"), ConnectionError("gone")]
)
def test_a_lost_rank_is_no_error_to_recover_from(error: Exception) -> None:
    engine = Stepping()
    guard_steps(engine, Watchdog(SchedulerConfig(4, 2), 8))  # type: ignore[arg-type]
    engine.error = error
    with pytest.raises(RankLost):
        engine.step()
    engine.error = RuntimeError("another error")
    with pytest.raises(RuntimeError, match="another error"):
        engine.step()


def test_a_part_of_a_model_of_another_family_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gemma3", "text_config": {"hidden_size": 64}}')
    with pytest.raises(ValueError, match="model_type 'gemma3' is not supported"):
        load_part(tmp_path, OneRank())
