"""What the forecast of `bench speculation` makes of costs and drafts, and what the bench refuses."""

import pytest

from benches.speculation import check_length
from benches.speculation_prediction import Try, predicted_gain
from tiny_llm import CostModel
from tiny_llm.speculation.draft_cost import DraftCost

STEPS, ROWS = CostModel(1.0, 0.0), CostModel(0.0, 1.0)


@pytest.mark.parametrize("num_requests", [1, 3])
@pytest.mark.parametrize(
    ("cost", "tries", "gain"),
    [
        (DraftCost({1: STEPS}), [(3, 3)], 4),
        (DraftCost({1: STEPS}), [(3, 1)], 2),
        (DraftCost({1: STEPS}), [(0, 0)], 1),
        (DraftCost({1: STEPS}, CostModel(0.5, 0.0)), [(2, 1)], 1),  # two tokens in 1 s + 2 x 0.5 s
        (DraftCost({1: ROWS}), [(3, 3)], 1),
        (DraftCost({1: ROWS}), [(3, 0)], 1 / 4),
    ],
)
def test_the_forecast(cost: DraftCost, tries: list[Try], gain: float, num_requests: int) -> None:
    assert predicted_gain(cost, tries, num_requests, 5, 52) == pytest.approx(gain, rel=0.04)


def test_a_forecast_is_a_mean_of_many_runs() -> None:
    gain = predicted_gain(DraftCost({1: STEPS}), [(8, 8), *[(8, 0)] * 7], 1, 5, 49)
    assert gain == pytest.approx(2, rel=0.2)


def test_an_answer_that_may_end_in_its_first_step_is_refused() -> None:
    check_length(10, 3)
    with pytest.raises(ValueError, match="ask for 10 or more"):
        check_length(9, 3)
    with pytest.raises(ValueError, match="ask for 14 or more"):
        check_length(13, 12)
