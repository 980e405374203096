"""The given runner of a draft model: how it draws, whose distributions it returns, and what it forgets."""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.support.check import check_close
from tests.support.fakes import FakeModel, prompt_of
from tiny_llm import BlockManager, DraftModel, SamplingParams, ScheduledTokens, Sequence
from tiny_llm.engine.sampling_batch import SamplingBatch
from tiny_llm.speculation.draft_runner import DraftRunner
from tiny_llm.speculation.rejection import probabilities

SAMPLED, GREEDY = SamplingParams(1.3, top_k=20, seed=4), SamplingParams(seed=4)


def entry_of(blocks: BlockManager, id: int, is_final: bool = True) -> ScheduledTokens:
    """A prompt that is computed as a whole, or its first tokens."""
    sequence = Sequence(id, prompt_of(5 + id, id), max_num_tokens=20)
    assert blocks.allocate(sequence, sequence.num_tokens)
    return ScheduledTokens(sequence, 0, sequence.num_tokens if is_final else 3, is_final)


def test_a_distribution_belongs_to_the_sequence_that_it_was_computed_for() -> None:
    blocks = BlockManager(40, 4)
    entries = [entry_of(blocks, id, is_final=id != 0) for id in range(4)]
    drawn = DraftRunner(FakeModel(), blocks).draw(entries, {1: GREEDY, 2: SAMPLED, 3: SAMPLED})  # type: ignore[arg-type]
    assert drawn.token_ids.keys() == {1, 2, 3}
    assert drawn.probs.keys() == {2, 3}
    for id, found in drawn.probs.items():
        logits = FakeModel()(mx.array([entries[id].token_ids]), logits_to_keep=1)[0]
        expected = probabilities(logits, SamplingBatch((SAMPLED,), np.zeros(1, np.uint64)))
        check_close(found, expected[0], f"the distribution of sequence {id}")


@pytest.mark.parametrize("is_final", [True, False])
def test_no_distribution_is_left_of_the_pass_before(is_final: bool) -> None:
    blocks = BlockManager(40, 4)
    runner = DraftRunner(FakeModel(), blocks)  # type: ignore[arg-type]
    assert runner.draw([entry_of(blocks, id) for id in range(2)], {0: SAMPLED, 1: SAMPLED}).probs
    assert runner.draw([entry_of(blocks, 2, is_final)], {2: GREEDY}).probs == {}


def test_drafts_have_random_numbers_of_their_own_and_no_log_probabilities(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blocks, seen = BlockManager(40, 4), dict[int, SamplingParams]()
    runner = DraftRunner(FakeModel(), blocks)  # type: ignore[arg-type]
    run = runner.run

    def run_and_note(output: Any, params: Mapping[int, SamplingParams]) -> Any:
        seen.update(params)
        return run(output, params)

    monkeypatch.setattr(runner, "run", run_and_note)
    runner.draw([entry_of(blocks, 0)], {0: SamplingParams(0.7, top_p=0.9, seed=4, logprobs=3)})
    assert seen[0].seed != 4
    assert (seen[0].temperature, seen[0].top_p, seen[0].logprobs) == (0.7, 0.9, None)


def test_the_parameters_of_a_finished_sequence_are_forgotten() -> None:
    blocks = BlockManager(40, 4)
    drafter, entry = DraftModel(FakeModel(), blocks), entry_of(blocks, 0)  # type: ignore[arg-type]
    assert drafter.runner.draw([entry], {0: SAMPLED}).probs.keys() == {0}
    drafter.release(0)
    drafter.release(5)  # unknown
    assert drafter.runner.draw([entry], {0: GREEDY}).probs == {}
