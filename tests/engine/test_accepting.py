"""What requests accept of the tokens of a step: all up to the end of the answer."""

from typing import Any

import pytest

from tests.support.check import check_equal
from tests.support.fakes import FakeTokenizer, prompt_of
from tiny_llm import SamplingParams, Sequence
from tiny_llm.batching.answer import TokenLogprobs
from tiny_llm.engine.engine_request import EngineRequest


def accepting_request(**options: Any) -> EngineRequest:
    sequence = Sequence(0, prompt_of(3), max_num_tokens=options.pop("most", 20))
    return EngineRequest(sequence, options.pop("tokenizer", FakeTokenizer()), SamplingParams(**options))


@pytest.mark.parametrize(
    ("options", "kept", "reason"),
    [
        ({}, [7, 8, 9, 5], None),
        ({"most": 5}, [7, 8], "length"),
        ({"stop": ("GH",)}, [7, 8], "stop"),
        ({"stop_token_ids": (8,)}, [7, 8], "stop"),
        ({"stop_token_ids": (7,)}, [7], "stop"),
        ({"stop_token_ids": (5,)}, [7, 8, 9, 5], "stop"),
    ],
)
def test_nothing_is_accepted_after_the_end(
    options: dict[str, Any], kept: list[int], reason: str | None
) -> None:
    request = accepting_request(**options)
    found = request.accept_all([7, 8, 9, 5])
    mistakes = {
        "all tokens are kept, whatever ends the answer": [7, 8, 9, 5],
        "the last is left out": kept[:-1],
    }
    mistakes = {name: wrong for name, wrong in mistakes.items() if wrong != kept}
    check_equal(found, kept, f"accepted of 7 8 9 5 with {options}", mistakes)
    answer = kept[:-1] if "stop_token_ids" in options else kept
    check_equal((request.token_ids, request.finish_reason), (answer, reason), "the answer, and why it ended")


def test_each_token_has_its_own_log_probability() -> None:
    request = accepting_request(logprobs=0, most=5)
    request.accept_all([7, 8, 9], [TokenLogprobs(-float(i), ()) for i in range(3)])
    mistakes = {"that of the first for all": [0.0, 0.0]}
    check_equal([each.logprob for each in request.logprobs], [0.0, -1.0], "log-probabilities kept", mistakes)
