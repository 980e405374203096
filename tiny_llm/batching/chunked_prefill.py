"""Chunked prefill on paper: the number of steps, the mask of a chunk, the schedule."""

from collections.abc import Sequence
from typing import TypedDict

import mlx.core as mx


def num_prefill_steps(prompt_len: int, threshold: int, budget: int) -> int:
    """Steps until a lone prompt is prefilled.

    Args:
        prompt_len: tokens of the prompt.
        threshold: most tokens of one prompt a step may take; 0 means no such bound.
        budget: most tokens of a step, which binds in any case.

    Raises:
        ValueError: `prompt_len` or `threshold` is negative, or `budget` is not positive.
    """
    raise NotImplementedError("week 2 day 7 task 1: num_prefill_steps is not written yet")


def chunked_attention_mask(chunk_start: int, chunk_size: int, total_length: int) -> mx.array:
    """Additive mask of one chunk: each of its queries sees all earlier tokens and itself.

    Args:
        chunk_start: position of the first query.
        chunk_size: L, number of queries.
        total_length: S, number of keys; those after the chunk are hidden.

    Returns:
        [L, S] in float32, 0 where query i may see key j (j <= chunk_start + i), -inf elsewhere.

    Raises:
        ValueError: one of `chunk_start` and `chunk_size` is negative, or the chunk reaches past
            `total_length`.
    """
    raise NotImplementedError("week 2 day 7 task 1: chunked_attention_mask is not written yet")


class PrefillRequest(TypedDict):
    """A prompt that waits."""

    id: int
    prompt_length: int


class ScheduledChunk(TypedDict):
    """Prompt tokens of one request that a step computes."""

    id: int
    tokens_processed: int


class ScheduledStep(TypedDict):
    """All that a step computes; steps are numbered from 0."""

    step: int
    prefill_chunks: list[ScheduledChunk]
    decode_tokens: int


def chunked_prefill_schedule(
    prefill_requests: Sequence[PrefillRequest], num_active_decodes: int, token_budget: int, chunk_size: int
) -> list[ScheduledStep]:
    """The schedule as it is often set as an exercise; compare `repaired_prefill_schedule`.

    Decodes take their token first. Then one pass over the queue gives each prompt a chunk, as long as a
    whole chunk_size of budget is left, even for a shorter rest. A prompt that completes decodes from the
    next step on. Decodes never end, so the schedule is cut after step 1000 (1001 steps, 0 to 1000); only
    with no prompt and no decode it is empty.

    Raises:
        ValueError: a prompt length, the budget or the chunk size is not positive; `num_active_decodes` is
            negative; or two requests have the same id.
    """
    raise NotImplementedError("week 2 day 7 task 7: chunked_prefill_schedule is not written yet")


def repaired_prefill_schedule(
    prefill_requests: Sequence[PrefillRequest],
    active_output_lengths: Sequence[int],
    token_budget: int,
    chunk_size: int,
    output_length: int = 1,
) -> list[ScheduledStep]:
    """The same schedule with its two faults mended: a part of a budget is used, and decodes end.

    When more decode than the budget holds, they take turns. Every step computes at least one token, so the
    schedule ends.

    Args:
        prefill_requests: prompts in the order they came.
        active_output_lengths: tokens still to decode for each request that decodes at the start.
        token_budget: most tokens of a step.
        chunk_size: most tokens of one prompt a step.
        output_length: tokens each of the prompts decodes after its prefill.

    Raises:
        ValueError: the budget, the chunk size, a prompt's length or an output's `length` is not positive;
            or two requests have the same id.
    """
    raise NotImplementedError("week 2 day 7 task 7: repaired_prefill_schedule is not written yet")
