"""One request at a time, from a prompt to text."""

from collections.abc import Callable, Sequence
from typing import Protocol

import mlx.core as mx

from ..model.qwen3 import Qwen3Model
from .sampler import Sampler


class Tokenizer(Protocol):
    """What generation asks of a tokenizer; mlx-lm's has it."""

    @property
    def eos_token_ids(self) -> set[int]: ...

    @property
    def bos_token(self) -> str | None: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: list[int]) -> str: ...


def simple_generate(
    model: Qwen3Model,
    tokenizer: Tokenizer,
    prompt: str | Sequence[int],
    sampler: Sampler,
    max_tokens: int = 256,
    on_text: Callable[[str], None] | None = None,
) -> str:
    """Continue a prompt, computing every token of it again for each new one.

    Args:
        model: called as (tokens [1, L], logits_to_keep=1).
        tokenizer: encodes the prompt, decodes the answer and names the end-of-text ids.
        prompt: text that encodes to a token or more, or token ids.
        sampler: log-probabilities [1, V] -> [1]
        max_tokens: the most tokens to generate.
        on_text: called with each new piece of text.

    Returns:
        The text generated, without the end-of-text token.

    Raises:
        ValueError: the prompt is empty.
    """
    raise NotImplementedError("week 1 day 6 task 3: simple_generate is not written yet")


def simple_generate_with_kv_cache(
    model: Qwen3Model,
    tokenizer: Tokenizer,
    prompt: str | Sequence[int],
    sampler: Sampler,
    max_tokens: int = 256,
    on_text: Callable[[str], None] | None = None,
) -> str:
    """Continue a prompt, computing each token once: the prompt in one pass, then one token a pass.

    The other arguments, the result and the errors are those of `simple_generate`, and so is the text.

    Args:
        model: called as (tokens [1, L], offset, cache, logits_to_keep=1).
    """
    raise NotImplementedError("week 2 day 1 task 3: simple_generate_with_kv_cache is not written yet")


def to_logprobs(logits: mx.array) -> mx.array:
    """Log-probabilities [B, V], in float32, of the token after the last of logits [B, L, V]."""
    raise NotImplementedError("week 1 day 6 task 1: to_logprobs is not written yet")


def encode_prompt(tokenizer: Tokenizer, prompt: str | Sequence[int]) -> list[int]:
    """Token ids of a prompt: text is encoded, ids are taken as they are.

    A prompt that starts with the beginning-of-text token already does not get a second one.

    Raises:
        ValueError: the prompt is empty: it holds no token.
    """
    raise NotImplementedError("week 1 day 6 task 1: encode_prompt is not written yet")


def check_token_ids(token_ids: Sequence[int], vocab_size: int) -> None:
    """ValueError for a `token_id` outside a vocabulary of this size: a model would read past its end."""
    for place, token in enumerate(token_ids):
        if not isinstance(token, int) or isinstance(token, bool):
            raise ValueError(f"token {place} of the prompt is {token!r}: token ids are Python integers")
        if not 0 <= token < vocab_size:
            raise ValueError(
                f"token {place} of the prompt is {token}, and the vocabulary ends with {vocab_size - 1}"
            )


class TextStream:
    """The text of the tokens added so far, handed on piece by piece at a constant cost per token.

    A character may be spread over several tokens; its bytes are held back until it is complete. The text of
    a token may depend on the tokens right before it, so the newest few are decoded together.
    """

    def __init__(self, tokenizer: Tokenizer, on_text: Callable[[str], None] | None = None) -> None:
        raise NotImplementedError("week 1 day 6 task 2: TextStream.__init__ is not written yet")

    def add(self, token: int) -> None:
        raise NotImplementedError("week 1 day 6 task 2: TextStream.add is not written yet")

    def finish(self) -> str:
        """Hand on what was held back and return the whole text."""
        raise NotImplementedError("week 1 day 6 task 2: TextStream.finish is not written yet")
