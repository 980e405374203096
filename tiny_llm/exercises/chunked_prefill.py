"""Chunked prefill on paper: the number of steps, a chunk's mask, and the schedule."""

from collections.abc import Sequence
from typing import TypedDict

import mlx.core as mx


def num_prefill_steps(prompt_len: int, threshold: int, budget: int) -> int:
    """Number of steps until a prompt is prefilled, if it is the only one.

    Args:
        prompt_len: tokens of the prompt.
        threshold: largest number of tokens of one prompt in a step; 0 means no such limit.
        budget: largest number of tokens in a step; applies whatever the threshold is.

    Raises:
        ValueError: `prompt_len` or `threshold` is negative, or `budget` is below 1.
    """
    raise NotImplementedError("week 2 day 7 task 1: num_prefill_steps is not written yet")


def chunked_attention_mask(chunk_start: int, chunk_size: int, total_length: int) -> mx.array:
    """Additive mask for one chunk: each query sees itself and all earlier tokens.

    Args:
        chunk_start: position of the first query.
        chunk_size: L, the number of queries.
        total_length: S, the number of keys. Keys after the chunk are hidden.

    Returns:
        [L, S] in float32, 0 where query i may see key j (j <= chunk_start + i), -inf elsewhere.

    Raises:
        ValueError: `chunk_start` or `chunk_size` is negative, or their sum is above `total_length`. Any of
            these errors shows all three.
    """
    raise NotImplementedError("week 2 day 7 task 1: chunked_attention_mask is not written yet")


class PrefillRequest(TypedDict):
    """A waiting prompt."""

    id: int
    prompt_length: int


class ScheduledChunk(TypedDict):
    """The number of prompt tokens that a step computes for one request."""

    id: int
    tokens_processed: int


class ScheduledStep(TypedDict):
    """Everything that one step computes. Steps are numbered from 0."""

    step: int
    prefill_chunks: list[ScheduledChunk]
    decode_tokens: int


def chunked_prefill_schedule(
    prefill_requests: Sequence[PrefillRequest], num_active_decodes: int, token_budget: int, chunk_size: int
) -> list[ScheduledStep]:
    """Build the schedule of a common exercise, with its two faults; compare `repaired_prefill_schedule`.

    In each step, decodes take one token each, as far as the budget goes. Then one pass over the queue gives
    each prompt a chunk, as long as at least chunk_size tokens of budget are left. This is required even if
    the rest of the prompt is shorter. A completed prompt decodes from the next step on.

    Decodes never end, so the schedule is cut off after step 1000 (1001 steps, 0 to 1000). Without prompts and
    decodes, it is empty.

    Raises:
        ValueError: a prompt length, `token_budget` or `chunk_size` is below 1; `num_active_decodes` is
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
    """Build the same schedule without its two faults: partial budgets are used, and decodes end.

    If more requests decode than the budget allows, they take turns: the ones that got a token go to the back
    of the queue. Every step computes at least one token, so the schedule ends.

    Args:
        prefill_requests: prompts in order of arrival.
        active_output_lengths: for each request that decodes at the start, the tokens it has yet to decode.
        token_budget: largest number of tokens in a step.
        chunk_size: largest number of tokens of one prompt in a step.
        output_length: number of tokens that each prompt decodes after its prefill.

    Raises:
        ValueError: `token_budget`, `chunk_size`, a prompt's length or an output's `length` is below 1; or two
            requests have the same id.
    """
    raise NotImplementedError("week 2 day 7 task 7: repaired_prefill_schedule is not written yet")
