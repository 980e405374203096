"""How many steps prompts take, without counting them."""

from ..batching.chunked_prefill import num_prefill_steps


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
    if min(first, second, num_outputs) < 1:
        raise ValueError(f"prompts and answer need a token at least, got {first}, {second} and {num_outputs}")
    if budget < 2:
        raise ValueError(f"two prompts need a budget of at least 2, got {budget}")
    num_steps = num_prefill_steps(first, threshold, budget)
    chunk = min(threshold, budget) if threshold else budget
    last_chunk = first - (num_steps - 1) * chunk
    stretches = (  # steps of a kind, and what each of them leaves for the second prompt
        (num_steps - 1, budget - chunk),
        (1, budget - last_chunk),
        (num_outputs - 1, budget - 1),
    )
    return num_steps, _steps_through(second, stretches, chunk)


def _steps_through(prompt_len: int, stretches: tuple[tuple[int, int], ...], chunk: int) -> int:
    """Steps until a prompt is computed that gets what each stretch of steps leaves, then a chunk a step."""
    passed = 0
    for num_steps, left in stretches:
        tokens = min(left, chunk)
        if tokens * num_steps >= prompt_len:
            return passed + -(-prompt_len // tokens)
        passed += num_steps
        prompt_len -= tokens * num_steps
    return passed + -(-prompt_len // chunk)
