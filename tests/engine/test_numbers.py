"""Logits that are not numbers: the request fails, however its tokens are sampled, and no other one does."""

import math
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.support.fakes import FakeModel, continuation, prompt_of
from tests.support.server_engines import ENGINES, ChatFake
from tiny_llm import Engine, SamplingParams, ScheduledTokens, SchedulerConfig, Sequence, UnlimitedBlocks
from tiny_llm.engine.sampling_batch import NoNumbersError, Sampled, check_numbers, totals_of
from tiny_llm.generation.structured_outputs import StructuredOutputsParams
from tiny_llm.server.recovery import RecoveringEngine
from tiny_llm.speculation.verifying_runner import numbers_of

LENGTH = 9  # of a sequence whose next logits are damaged
KINDS: dict[str, Any] = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "seed": 1},
    "cut": {"temperature": 1.0, "seed": 1, "top_k": 5, "top_p": 0.9, "min_p": 0.01},
    "penalized": {"repetition_penalty": 1.2},
    "constrained": {"structured_outputs": StructuredOutputsParams(regex="[A-Z]{30}")},
    "with logprobs": {"logprobs": 2},
}


class Damaged(FakeModel):
    """After so many tokens of a sequence, one of its logits is a given value."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def logits(self, x: mx.array) -> mx.array:
        logits = np.array(super().logits(x))
        logits[np.array(x)[..., 1] == LENGTH - 1, 7] = self.value
        return mx.array(logits)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_only_the_request_fails(kind: str, engine: str, value: float) -> None:
    serving = RecoveringEngine(lambda: ENGINES[engine](Damaged(value)))
    ends = LENGTH - 4  # tokens of an answer that is over before the damage
    damaged = serving.add_request(prompt_of(4), SamplingParams(max_tokens=12, **KINDS[kind]))
    other = serving.add_request(prompt_of(LENGTH + 3, 1), SamplingParams(max_tokens=12))
    early = serving.add_request(prompt_of(4, 2), SamplingParams(max_tokens=ends))
    failed: dict[int, Exception] = {}
    while serving.has_unfinished_requests:
        failed |= serving.step().failed
    assert list(failed) == [damaged.prompt_idx]
    assert "the logits of the model are not numbers" in str(failed[damaged.prompt_idx])
    assert len(damaged.token_ids) == ends if engine != "speculative" else len(damaged.token_ids) <= ends
    assert other.token_ids == continuation(prompt_of(LENGTH + 3, 1), 12)
    assert early.token_ids == continuation(prompt_of(4, 2), ends)
    serving.close()


def test_without_a_pool() -> None:
    config = SchedulerConfig(8, 4)
    engine = Engine(Damaged(math.nan), ChatFake(), config, 40, UnlimitedBlocks())  # type: ignore[arg-type]
    with engine, pytest.raises(NoNumbersError):
        engine.generate([prompt_of(4)], SamplingParams(max_tokens=12))


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize(
    ("value", "is_damaged"), [(1e4, False), (-math.inf, False), (math.inf, True), (math.nan, True)]
)
def test_what_is_a_number(dtype: mx.Dtype, value: float, is_damaged: bool) -> None:
    logits = mx.full((2, 500), 200.0, dtype)  # whose sum half precision cannot hold
    logits[1, 3] = value
    entries = [ScheduledTokens(Sequence(id, [1]), 0, 1, True) for id in (5, 6)]
    sampled = Sampled(entries, mx.zeros(2), totals_of(logits), {}, ())
    check_numbers(sampled, [0])
    if not is_damaged:
        return check_numbers(sampled, [0, 1])
    with pytest.raises(NoNumbersError) as caught:
        check_numbers(sampled, [0, 1])
    assert caught.value.sequence_ids == {6}
    return None


def test_a_draft_model_whose_probabilities_are_no_numbers_changes_no_answer() -> None:
    probs = mx.array([[0.25, 0.75], [math.nan, 0.5]])
    assert numbers_of(probs, mx.array([0, 1])).tolist() == [[0.25, 0.75], [0, 1]]
