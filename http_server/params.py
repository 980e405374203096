"""From the fields of a request to the engine's parameters."""

import re
from collections.abc import Container, Mapping
from collections.abc import Sequence as Items
from dataclasses import replace
from typing import Any

from tiny_llm.engine.engine_request import check_request
from tiny_llm.generation.sampler import SamplingParams

from .answer_format import structured_outputs
from .config import ServerConfig
from .engine_client import NUM_SEEDS, EngineClient
from .errors import ApiError
from .fields import MAX_PROMPTS, ChatRequest, ChoiceFields, CompletionRequest, SamplingFields

DEFAULT_COMPLETION_TOKENS = 16
"""Of /v1/completions, as OpenAI has it; a chat's answer may be as long as there is room."""

RESERVED_OPTIONS = {
    "conversation",
    "messages",
    "tools",
    "documents",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "tokenize",
    "sanitize_control_tokens",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
    "return_assistant_tokens_mask",
    "tokenizer_kwargs",
    "self",
}
"""What `apply_chat_template` takes for itself, so that no template could see it."""
CHECKED_LATE = ("prompt", "logit_bias", "stop_token_ids", "logprobs", "min_tokens")
"""Fields that are checked against the engine's limits."""


def sampling_params(request: SamplingFields, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
    """Make the engine's parameters of a request.

    Args:
        request: its fields; null stands for the default of OpenAI's specification.
        max_tokens: largest number of tokens in the answer, under whatever name it was given.
        logprobs: how many of the likeliest tokens to return, if any are asked for.

    Raises:
        ApiError: the parameters do not fit each other.
    """
    stop = request.stop or []
    values: dict[str, Any] = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k if (request.top_k or 0) > 0 else None,
        "min_p": request.min_p,
        "seed": None if request.seed is None else request.seed % NUM_SEEDS,
        "max_tokens": max_tokens,
        "stop": (stop,) if isinstance(stop, str) else tuple(stop),
        "repetition_penalty": request.repetition_penalty,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "logit_bias": request.logit_bias,
        "min_tokens": min_tokens(request, max_tokens),
        "stop_token_ids": request.stop_token_ids,
        "logprobs": logprobs,
        "structured_outputs": structured_outputs(request),
        "cache_salt": request.cache_salt,
    }
    given = {name: value for name, value in values.items() if value is not None}
    try:
        return SamplingParams(**{"temperature": 1.0, **given})
    except ValueError as error:
        raise invalid(error, values) from None


def min_tokens(request: SamplingFields, max_tokens: int | None) -> int | None:
    """The fewest tokens of an answer. With `ignore_eos`, also the most, so no end-of-text id is drawn.

    Raises:
        ApiError: `ignore_eos` is given without a limit, or with other tokens that end the answer.
    """
    if not request.ignore_eos:
        return request.min_tokens
    if max_tokens is None:
        raise ApiError(
            400,
            "ignore_eos needs a limit, such as max_tokens or max_output_tokens",
            "ignore_eos",
            "invalid_value",
        )
    if request.stop_token_ids:
        message = "ignore_eos would ignore stop_token_ids as well: leave one of them out"
        raise ApiError(400, message, "ignore_eos", "invalid_value")
    return max_tokens


def invalid(error: ValueError, names: Container[str]) -> ApiError:
    """Make the error for a value that the engine refuses. Its field is the first that it names."""
    named = [word for word in re.findall(r"\w+", str(error)) if word in names]
    return ApiError(400, str(error), named[0] if named else None, "invalid_value")


def check_fits(
    client: EngineClient, prompts: Items[Items[int]], params: SamplingParams, priority: int, prompt_field: str
) -> None:
    """Refuse a request that could not run even alone.

    Args:
        client: knows the engine's limits.
        prompts, params, priority: of the request.
        prompt_field: the field that holds the prompts.

    Raises:
        ApiError: a prompt leaves no room for `max_tokens`, or an id is not in the vocabulary.
    """
    for prompt_ids in prompts:
        longest = client.max_model_len - len(prompt_ids)
        if longest < (params.max_tokens or 1):
            raise ApiError(
                400,
                f"this model's maximum context length is {client.max_model_len} tokens, but the prompt has "
                f"{len(prompt_ids)} and max_tokens is {params.max_tokens or 1}: shorten one of them",
                prompt_field,
                "context_length_exceeded",
            )
        try:
            check_request(prompt_ids, priority, client.vocab_size, params)
        except ValueError as error:
            raise invalid(error, CHECKED_LATE) from None


def prompts_of(request: CompletionRequest) -> list[str | tuple[int, ...]]:
    """The prompts of a completion: a text, token ids, or a list of either.

    Raises:
        ApiError: the prompt is anything else, or empty.
    """
    prompt = request.prompt
    if isinstance(prompt, str):
        return [prompt]
    if prompt and all(is_token(item) for item in prompt):
        return [tuple(prompt)]
    if not 1 <= len(prompt) <= MAX_PROMPTS:
        raise ApiError(
            400, f"prompt must have 1 to {MAX_PROMPTS} items, got {len(prompt)}", "prompt", "invalid_value"
        )
    for place, item in enumerate(prompt):
        is_text = isinstance(item, str) and item
        is_ids = isinstance(item, list) and item and all(is_token(token) for token in item)
        if not is_text and not is_ids:
            message = "a prompt must be a nonempty text, or a nonempty list of token ids that are at least 0"
            raise ApiError(400, message, f"prompt[{place}]", "invalid_value")
    return [item if isinstance(item, str) else tuple(item) for item in prompt]


def is_token(value: object) -> bool:
    """Whether a value of a JSON file can be a token id."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def completion_params(request: CompletionRequest) -> SamplingParams:
    """The engine's parameters of a completion.

    If the prompt's log-probabilities are asked for, at least one token follows it: clients expect that the
    last entry is not the prompt's.
    """
    given = request.max_tokens
    if request.echo and given == 0:
        given = 1  # whose token is not shown
    max_tokens = DEFAULT_COMPLETION_TOKENS if given is None else as_many_as_fit(given)
    params = sampling_params(request, max_tokens, request.logprobs)
    is_scored = request.echo and request.logprobs is not None
    return replace(params, min_tokens=max(params.min_tokens, 1)) if is_scored else params


def chat_params(request: ChatRequest) -> SamplingParams:
    """The engine's parameters of a chat completion."""
    if request.top_logprobs and not request.logprobs:
        message = "top_logprobs needs logprobs to be true"
        raise ApiError(400, message, "top_logprobs", "invalid_value")
    if request.max_tokens is not None and request.max_completion_tokens not in (None, request.max_tokens):
        message = "max_tokens and max_completion_tokens differ: give one of them"
        raise ApiError(400, message, "max_tokens", "invalid_value")
    max_tokens = request.max_completion_tokens or as_many_as_fit(request.max_tokens)
    return sampling_params(request, max_tokens, (request.top_logprobs or 0) if request.logprobs else None)


def template_options(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a request tells the chat template.

    Raises:
        ApiError: the server itself decides on one of them.
    """
    options = dict(given or {})
    for name in sorted(RESERVED_OPTIONS & options.keys()):
        message = f"chat_template_kwargs can't have {name}, which the server sets itself"
        raise ApiError(400, message, f"chat_template_kwargs.{name}", "invalid_value")
    return options


def as_many_as_fit(max_tokens: int | None) -> int | None:
    """The largest number of tokens that a request asks for; None if it has no limit, which -1 stands for too.

    Raises:
        ApiError: it is 0.
    """
    if max_tokens == 0:
        raise ApiError(
            400, "max_tokens must be at least 1, or -1 for as many as fit", "max_tokens", "invalid_value"
        )
    return None if max_tokens == -1 else max_tokens


def check_shared(request: ChoiceFields, config: ServerConfig) -> None:
    """Refuse fields that make no sense together, or with the settings of the server."""
    options = request.stream_options
    if options is not None and options.continuous_usage_stats and not options.include_usage:
        message = "continuous_usage_stats needs include_usage to be true"
        raise ApiError(400, message, "stream_options.continuous_usage_stats", "invalid_value")
    if request.priority and not config.has_priorities:
        message = "this server has no priorities: start it with --scheduling-policy priority"
        raise ApiError(400, message, "priority", "unsupported_value")
