"""Chunked prefill on paper: the number of steps, a chunk's mask, and the schedule."""

from collections import deque
from collections.abc import Sequence
from typing import TypedDict

import mlx.core as mx

LAST_STEP = 1000


def num_prefill_steps(prompt_len: int, threshold: int, budget: int) -> int:
    """Number of steps until a prompt is prefilled, if it is the only one.

    Args:
        prompt_len: tokens of the prompt.
        threshold: largest number of tokens of one prompt in a step; 0 means no such limit.
        budget: largest number of tokens in a step; applies whatever the threshold is.

    Raises:
        ValueError: `prompt_len` or `threshold` is negative, or `budget` is below 1.
    """
    if prompt_len < 0 or threshold < 0:
        raise ValueError(f"prompt_len and threshold must not be negative, got {prompt_len} and {threshold}")
    if budget < 1:
        raise ValueError(f"budget must be at least 1 token per step, got {budget}")
    chunk_size = min(threshold, budget) if threshold else budget
    return -(-prompt_len // chunk_size)


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
    if chunk_start < 0 or chunk_size < 0 or chunk_start + chunk_size > total_length:
        raise ValueError(
            f"the chunk must lie within the {total_length} tokens of total_length, "
            f"got chunk_size {chunk_size} from chunk_start {chunk_start}"
        )
    query_position = mx.arange(chunk_start, chunk_start + chunk_size)[:, None]
    key_position = mx.arange(total_length)[None, :]
    return mx.where(key_position <= query_position, 0.0, -mx.inf).astype(mx.float32)


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
    """Take at most `limit` tokens from a prompt. Remove the prompt from the queue if none are left."""
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
                f"prompt_length of request {request['id']} must be at least 1, got {request['prompt_length']}"
            )
    ids = [request["id"] for request in prefill_requests]
    if len(set(ids)) != len(ids):
        raise ValueError(f"every request needs its own id, got {ids}")
