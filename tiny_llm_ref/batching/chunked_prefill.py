"""Chunked prefill on paper: the number of steps, the mask of a chunk, the schedule."""

from collections import deque
from collections.abc import Sequence
from typing import TypedDict

import mlx.core as mx

LAST_STEP = 1000


def num_prefill_steps(prompt_len: int, threshold: int, budget: int) -> int:
    """Steps until a lone prompt is prefilled.

    Args:
        prompt_len: tokens of the prompt.
        threshold: most tokens of one prompt a step may take; 0 means no such bound.
        budget: most tokens of a step, which binds in any case.

    Raises:
        ValueError: `prompt_len` or `threshold` is negative, or `budget` is not positive.
    """
    if prompt_len < 0 or threshold < 0:
        raise ValueError(f"prompt_len and threshold must not be negative, got {prompt_len} and {threshold}")
    if budget < 1:
        raise ValueError(f"budget must be at least 1 token a step, or the prefill never ends, got {budget}")
    chunk_size = min(threshold, budget) if threshold else budget
    return -(-prompt_len // chunk_size)


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
    if chunk_start < 0 or chunk_size < 0 or chunk_start + chunk_size > total_length:
        raise ValueError(
            f"a chunk of {chunk_size} tokens from position {chunk_start} is not within {total_length} tokens"
        )
    query_position = mx.arange(chunk_start, chunk_start + chunk_size)[:, None]
    key_position = mx.arange(total_length)[None, :]
    return mx.where(key_position <= query_position, 0.0, -mx.inf).astype(mx.float32)


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
    _check_schedule(prefill_requests, token_budget, chunk_size)
    if num_active_decodes < 0:
        raise ValueError(f"num_active_decodes must not be negative, got {num_active_decodes}")
    remaining = {request["id"]: request["prompt_length"] for request in prefill_requests}
    num_decoding = num_active_decodes
    steps: list[ScheduledStep] = []
    while (remaining or num_decoding) and len(steps) <= LAST_STEP:
        decode_tokens = min(num_decoding, token_budget)
        budget = token_budget - decode_tokens
        chunks: list[ScheduledChunk] = []
        for request_id in list(remaining):
            if budget < chunk_size:
                break
            tokens = _take_chunk(remaining, request_id, chunk_size)
            budget -= tokens
            chunks.append({"id": request_id, "tokens_processed": tokens})
        num_decoding += sum(chunk["id"] not in remaining for chunk in chunks)
        steps.append({"step": len(steps), "prefill_chunks": chunks, "decode_tokens": decode_tokens})
    return steps


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
    _check_schedule(prefill_requests, token_budget, chunk_size)
    if output_length < 1 or any(length < 1 for length in active_output_lengths):
        shortest = min([output_length, *active_output_lengths])
        raise ValueError(f"every request must have at least 1 token to decode, got {shortest}")
    remaining = {request["id"]: request["prompt_length"] for request in prefill_requests}
    decoding = deque(active_output_lengths)
    steps: list[ScheduledStep] = []
    while remaining or decoding:
        served = [decoding.popleft() for _ in range(min(len(decoding), token_budget))]
        decoding.extend(length - 1 for length in served if length > 1)
        budget = token_budget - len(served)
        chunks: list[ScheduledChunk] = []
        for request_id in list(remaining):
            if budget == 0:
                break
            tokens = _take_chunk(remaining, request_id, min(chunk_size, budget))
            budget -= tokens
            chunks.append({"id": request_id, "tokens_processed": tokens})
        decoding.extend(output_length for chunk in chunks if chunk["id"] not in remaining)
        steps.append({"step": len(steps), "prefill_chunks": chunks, "decode_tokens": len(served)})
    return steps


def _take_chunk(remaining: dict[int, int], request_id: int, limit: int) -> int:
    """Take at most `limit` tokens off a prompt, and the prompt off the queue when none is left."""
    tokens = min(limit, remaining[request_id])
    remaining[request_id] -= tokens
    if remaining[request_id] == 0:
        del remaining[request_id]
    return tokens


def _check_schedule(prefill_requests: Sequence[PrefillRequest], token_budget: int, chunk_size: int) -> None:
    if token_budget < 1 or chunk_size < 1:
        raise ValueError(
            f"token_budget and chunk_size must be at least 1, got {token_budget} and {chunk_size}"
        )
    for request in prefill_requests:
        if request["prompt_length"] < 1:
            raise ValueError(
                f"request {request['id']} has a prompt of {request['prompt_length']} tokens: give 1 or more"
            )
    ids = [request["id"] for request in prefill_requests]
    if len(set(ids)) != len(ids):
        raise ValueError("two requests have the same id: give each one of its own")
