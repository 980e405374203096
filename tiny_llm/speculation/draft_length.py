"""How many drafts a step should compute: what they are likely to yield, against what they cost."""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items

LEARNING_RATE = 0.1
"""Share of a rate that the latest step replaces."""


class Acceptance:
    """How often drafts are accepted, by position. Recent steps count more than old ones.

    Args:
        rates: first guesses; the list is copied.

    Attributes:
        rates: for each position, an estimate of the probability that the draft there is accepted if all
            drafts before it are.
    """

    def __init__(self, rates: Iterable[float]) -> None:
        self.rates = list(rates)

    def record(self, num_drafts: int, num_accepted: int) -> None:
        """Move the rates of a step's drafts towards what happened, by `LEARNING_RATE` of the difference.

        An accepted draft counts as 1, the first rejected one as 0. Those after it were not tried.
        """
        raise NotImplementedError("week 3 day 6 task 8: Acceptance.record is not written yet")

    @property
    def survival(self) -> list[float]:
        """For each position, the probability that the draft there and all before it are accepted."""
        raise NotImplementedError("week 3 day 6 task 8: Acceptance.survival is not written yet")


def best_num_drafts(
    survival: Mapping[int, Items[float]], step_seconds: float, row_seconds: float, pass_seconds: float = 0.0
) -> dict[int, int]:
    """Choose how many drafts each sequence of a step gets, so that the step yields most tokens per second.

    Without drafts, a step yields a token for each sequence in `step_seconds`. A draft adds its probability of
    survival to the tokens, and `row_seconds` to the time. If the sequence with most drafts has k of them, the
    draft model adds k x `pass_seconds`.

    Args:
        survival: for each sequence that may get drafts, by id, the probability that each draft and all before
            it are accepted.
        step_seconds: of the step without drafts; above 0.
        row_seconds, pass_seconds: of a further row, and of a pass of the draft model; at least 0.

    Returns:
        The number for each sequence; 0 for all if drafts don't pay.
    """
    raise NotImplementedError("week 3 day 6 task 8: best_num_drafts is not written yet")
