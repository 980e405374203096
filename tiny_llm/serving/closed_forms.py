"""How many steps prompts take, without counting them."""


def num_prefill_steps_of_two(
    first: int, second: int, threshold: int, budget: int, num_outputs: int = 1
) -> tuple[int, int]:
    """Steps until each of two prompts is prefilled that arrive together at an engine with nobody else.

    While the first is computed in pieces of c = min(threshold, budget), the second gets what a step leaves,
    and c at most. Then the first decodes beside it, a token a step, until its answer has ended.

    Args:
        first: tokens of the prompt that goes first.
        second: tokens of the other one.
        threshold: most tokens of one prompt in a step; 0 means no such bound.
        budget: most tokens of a step.
        num_outputs: tokens of the first one's answer.

    Returns:
        The number of the step, counted from 1, that completes the first, and of the one that completes the
        second.

    Raises:
        ValueError: `first`, `second` or `num_outputs` is below 1, the `threshold` negative, or the `budget`
            below 2, which is too few for two that run.
    """
    raise NotImplementedError("week 3 day 1 task 7: num_prefill_steps_of_two is not written yet")
