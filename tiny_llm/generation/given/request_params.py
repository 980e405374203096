"""What users of a server expect to set beyond the parameters of day 1.7, under vLLM's names."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

LARGEST_PENALTY, LARGEST_BIAS = 2, 100
WEEK_2 = ("stop_token_ids",)
"""What the batch of week 2 knows as well."""


@dataclass(frozen=True, kw_only=True)
class RequestParams:
    """Parameters that need to know the tokens of a request; mappings and lists are copied.

    Args:
        repetition_penalty: divides the logit of each token of prompt and answer if it is positive, and
            multiplies it otherwise.
        presence_penalty: subtracted from the logit of each token of the answer.
        frequency_penalty: subtracted from it as often as the answer holds the token.
        logit_bias: added to the logits of tokens, by their ids; kept as pairs in the order of the ids.
        min_tokens: tokens that the answer has before an end-of-text id or one of `stop_token_ids` may come.
        stop_token_ids: end the answer like end-of-text ids, and are not part of it either.
        logprobs: number of likeliest tokens whose log-probabilities are returned with each token's own. They
            are those of the model, before biases, penalties, temperature and cuts.

    Raises:
        ValueError: a value is out of its range; shows its `name` and the `value`.
    """

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | Iterable[tuple[int, float]] = ()
    min_tokens: int = 0
    stop_token_ids: Iterable[int] = ()
    logprobs: int | None = None

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
        check_ids("stop_token_ids", self.stop_token_ids)
        check_count("min_tokens", self.min_tokens)
        if self.logprobs is not None:
            check_count("logprobs", self.logprobs)

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """`logit_bias` as pairs."""
        assert isinstance(self.logit_bias, tuple)
        return self.logit_bias

    @property
    def has_penalties(self) -> bool:
        """Whether a token's logits depend on the tokens before it, so that these have to be known."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def changes_logits(self) -> bool:
        """Whether the logits of some step are not those of the model."""
        return self.has_penalties or bool(self.logit_bias) or self.min_tokens > 0

    def check_vocabulary(self, vocab_size: int) -> None:
        """ValueError, with the `token` or `logprobs`, for what a vocabulary of this size does not hold."""
        for name, ids in (("logit_bias", dict(self.biases)), ("stop_token_ids", self.stop_token_ids)):
            for token in ids:
                if token >= vocab_size:
                    raise ValueError(
                        f"{name} has token {token}, and the vocabulary ends with {vocab_size - 1}"
                    )
        if (self.logprobs or 0) > vocab_size:
            raise ValueError(f"logprobs is {self.logprobs}, and the vocabulary has {vocab_size} tokens")

    def check_week_2(self) -> None:
        """ValueError, with its `name`, for what only the engine of week 3 does."""
        for field in fields(RequestParams):
            value = getattr(self, field.name)
            if field.name not in WEEK_2 and value != field.default:
                raise ValueError(f"{field.name} needs the engine of week 3: leave it out here, got {value!r}")


def check_size(name: str, value: float, largest: float) -> None:
    """ValueError unless the value is between -largest and largest."""
    if not -largest <= value <= largest:
        raise ValueError(f"{name} must be between {-largest} and {largest}, got {value}")


def check_count(name: str, value: int) -> None:
    """ValueError unless the value is an integer from 0 on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} must be an integer from 0 on, got {value!r}")


def check_ids(name: str, ids: Iterable[int]) -> None:
    """ValueError unless all are integers from 0 on."""
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise ValueError(f"{name} holds token ids, which are integers from 0 on, got {token!r}")
