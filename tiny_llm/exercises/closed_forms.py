"""Closed forms for the number of steps that prompts take."""


def num_prefill_steps_of_two(
    first: int, second: int, threshold: int, budget: int, num_outputs: int = 1
) -> tuple[int, int]:
    """Number of steps until each of two prompts is prefilled, if they arrive together at an idle engine.

    A chunk has at most c tokens: the smaller of threshold and budget. While the first prompt is prefilled in
    chunks of c, the second gets the rest of each step, but at most c. Then the first decodes one token per
    step until its answer ends, and the second again gets the rest, but at most c.

    Args:
        first: tokens of the prompt that goes first.
        second: tokens of the other prompt.
        threshold: largest number of tokens of one prompt in a step; 0 means no such limit.
        budget: largest number of tokens in a step.
        num_outputs: number of tokens in the first prompt's answer.

    Returns:
        The step that completes the first prompt and the step that completes the second, counted from 1.

    Raises:
        ValueError: `first`, `second` or `num_outputs` is below 1; `threshold` is negative; or `budget` is
            below 2, which is too small for two running prompts.
    """
    raise NotImplementedError("week 3 day 1 task 7: num_prefill_steps_of_two is not written yet")
