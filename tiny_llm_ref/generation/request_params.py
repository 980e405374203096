"""Sampling parameters that users of a server expect beyond those of day 1.7, with vLLM's names."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from kernel_runtime.limits import check_integer

from .structured_outputs import StructuredOutputsParams

LARGEST_PENALTY, LARGEST_BIAS = 2, 100
WEEK_2 = ("stop_token_ids",)
"""The parameters that the batch generator of week 2 supports as well."""


@dataclass(frozen=True, kw_only=True)
class RequestParams:
    """Parameters that depend on a request's tokens. Mappings and lists are copied.

    Args:
        repetition_penalty: for each token that occurs in the prompt or the answer, a positive logit is
            divided by this, and any other logit is multiplied by it.
        presence_penalty: subtracted from the logit of each token that occurs in the answer.
        frequency_penalty: subtracted once for each time the token occurs in the answer.
        logit_bias: added to the logits of tokens, by id; stored as pairs sorted by id.
        min_tokens: the answer has at least this many tokens before an end-of-text id or one of
            `stop_token_ids` may end it.
        stop_token_ids: end the answer like end-of-text ids, and are not part of it either.
        logprobs: how many of the likeliest tokens to return with each token, with their log-probabilities
            and the token's own. These are the model's, before biases, penalties, temperature and cuts.
        structured_outputs: what the answer must look like (day 3.8).
        cache_salt: a text, if cached blocks may only be shared with requests that have the same.
        forced_ids: the answer begins with these tokens, whatever the model would say. They don't end it.
            With `logprobs`, this tells how likely a text is.

    Raises:
        ValueError: a value is out of range; shows its `name` and the `value`.
    """

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | Iterable[tuple[int, float]] = ()
    min_tokens: int = 0
    stop_token_ids: Iterable[int] = ()
    logprobs: int | None = None
    structured_outputs: StructuredOutputsParams | None = None
    cache_salt: str | None = None
    forced_ids: Iterable[int] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "logit_bias", tuple(sorted(dict(self.logit_bias).items())))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        if not 0 < self.repetition_penalty < math.inf:
            raise ValueError(f"repetition_penalty must be a positive number, got {self.repetition_penalty}")
        for name in ("presence_penalty", "frequency_penalty"):
            check_size(name, getattr(self, name), LARGEST_PENALTY)
        for token, bias in self.biases:
            check_ids("logit_bias", [token])
            check_size(f"logit_bias of token {token}", bias, LARGEST_BIAS)
        object.__setattr__(self, "forced_ids", tuple(self.forced_ids))
        check_ids("stop_token_ids", self.stop_token_ids)
        check_ids("forced_ids", self.forced)
        check_integer("min_tokens", self.min_tokens, 0)
        if self.logprobs is not None:
            check_integer("logprobs", self.logprobs, 0)
        if not isinstance(self.structured_outputs, StructuredOutputsParams | None):
            raise ValueError(
                f"structured_outputs must be StructuredOutputsParams or None, got {self.structured_outputs!r}"
            )

        if self.cache_salt is not None and not (isinstance(self.cache_salt, str) and self.cache_salt):
            raise ValueError(f"cache_salt must be a text that is not empty, got {self.cache_salt!r}")

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """`logit_bias` as pairs."""
        assert isinstance(self.logit_bias, tuple)
        return self.logit_bias

    @property
    def forced(self) -> tuple[int, ...]:
        """`forced_ids` as a tuple."""
        assert isinstance(self.forced_ids, tuple)
        return self.forced_ids

    @property
    def has_penalties(self) -> bool:
        """Whether a token's logits depend on the ids of the tokens before it."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def changes_logits(self) -> bool:
        """Whether any step uses logits other than the model's."""
        return self.has_penalties or bool(self.logit_bias) or self.min_tokens > 0 or bool(self.forced)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ValueError, showing the `token` or `logprobs`, if a value exceeds the vocabulary."""
        named = {"logit_bias": dict(self.biases), "stop_token_ids": self.stop_token_ids}
        for name, ids in {**named, "forced_ids": self.forced}.items():
            for token in ids:
                if token >= vocab_size:
                    raise ValueError(
                        f"{name} has token {token}, but the vocabulary ends with {vocab_size - 1}"
                    )
        if (self.logprobs or 0) > vocab_size:
            raise ValueError(f"logprobs is {self.logprobs}, but the vocabulary has {vocab_size} tokens")

    def check_week_2(self) -> None:
        """Raise ValueError, showing its `name`, for a parameter that only the engine of week 3 supports."""
        for field in fields(RequestParams):
            value = getattr(self, field.name)
            if field.name not in WEEK_2 and value != field.default:
                raise ValueError(f"{field.name} needs the engine of week 3: leave it out here, got {value!r}")


def check_size(name: str, value: float, largest: float) -> None:
    """Raise ValueError unless the value is between -largest and largest."""
    if not -largest <= value <= largest:
        raise ValueError(f"{name} must be between {-largest} and {largest}, got {value}")


def check_ids(name: str, ids: Iterable[int]) -> None:
    """Raise ValueError unless all ids are non-negative integers."""
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise ValueError(f"token ids in {name} must be non-negative integers, got {token!r}")
