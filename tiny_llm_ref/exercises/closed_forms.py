"""Closed forms for the number of steps that prompts take."""

from .chunked_prefill import num_prefill_steps


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
    if min(first, second, num_outputs) < 1:
        raise ValueError(
            f"first, second and num_outputs must be at least 1, got {first}, {second} and {num_outputs}"
        )
    if budget < 2:
        raise ValueError(f"budget must be at least 2 for two prompts, got {budget}")
    num_steps = num_prefill_steps(first, threshold, budget)
    chunk = min(threshold, budget) if threshold else budget
    last_chunk = first - (num_steps - 1) * chunk
    stretches = (  # number of steps of a kind, and the tokens that each leaves for the second prompt
        (num_steps - 1, budget - chunk),
        (1, budget - last_chunk),
        (num_outputs - 1, budget - 1),
    )
    return num_steps, _steps_through(second, stretches, chunk)


def _steps_through(prompt_len: int, stretches: tuple[tuple[int, int], ...], chunk: int) -> int:
    """Steps until a prompt is computed that gets the rest of each stretch, then a whole chunk per step."""
    passed = 0
    for num_steps, left in stretches:
        tokens = min(left, chunk)
        if tokens * num_steps >= prompt_len:
            return passed + -(-prompt_len // tokens)
        passed += num_steps
        prompt_len -= tokens * num_steps
    return passed + -(-prompt_len // chunk)
