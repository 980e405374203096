"""Generate text from a prompt, one request at a time."""

from collections.abc import Callable, Sequence
from typing import Protocol

import mlx.core as mx

from ..model.qwen3 import Qwen3Model
from .sampler import Sampler

MAX_DECODED_TOKENS = 16
"""How many tokens a text stream decodes together. No character needs this many."""


class Tokenizer(Protocol):
    """The part of a tokenizer that generation uses; mlx-lm's tokenizers have it."""

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
    """Continue a prompt. For each new token, compute all tokens before it again.

    Args:
        model: called as (tokens [1, L], logits_to_keep=1).
        tokenizer: encodes the prompt, decodes the answer and lists the end-of-text ids.
        prompt: text or token ids; at least one token.
        sampler: log-probabilities [1, V] -> [1]
        max_tokens: largest number of tokens to generate.
        on_text: called with each new piece of text.

    Returns:
        The generated text, without the end-of-text token.

    Raises:
        ValueError: the prompt is empty. The model is not called then.
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
    """Continue a prompt, computing each token once: the whole prompt in one pass, then one token per pass.

    The text, the other arguments and the errors are those of `simple_generate`.

    Args:
        model: called as (tokens [1, L], offset, cache, logits_to_keep=1).
    """
    raise NotImplementedError("week 2 day 1 task 3: simple_generate_with_kv_cache is not written yet")


def to_logprobs(logits: mx.array) -> mx.array:
    """Turn the last position of logits [B, L, V] into log-probabilities [B, V], in float32."""
    raise NotImplementedError("week 1 day 6 task 1: to_logprobs is not written yet")


def encode_prompt(tokenizer: Tokenizer, prompt: str | Sequence[int]) -> list[int]:
    """Return the token ids of a prompt, in a new list: encode text, and copy ids unchanged.

    If the text already starts with the beginning-of-text token, don't let the tokenizer add a second one.

    Raises:
        ValueError: the prompt is empty, so it has no token.
    """
    raise NotImplementedError("week 1 day 6 task 1: encode_prompt is not written yet")


def check_token_ids(token_ids: Sequence[int], vocab_size: int) -> None:
    """Raise ValueError for a `token_id` outside the vocabulary; a model would read past its embedding."""
    for place, token in enumerate(token_ids):
        if not isinstance(token, int) or isinstance(token, bool):
            raise ValueError(
                f"token ids must be Python integers, but token {place} of the prompt is {token!r}"
            )
        if not 0 <= token < vocab_size:
            raise ValueError(
                f"token ids must be from 0 to {vocab_size - 1}, but token {place} of the prompt is {token}"
            )


class TextStream:
    """Turn tokens into text as they are added, and pass it on piece by piece at a constant cost per token.

    A character may be spread over several tokens. Its bytes are held back until it is complete. A token's
    text may depend on the tokens right before it, so the newest few tokens are decoded together: fewer than
    MAX_DECODED_TOKENS of them and the new one, unless bytes are held back.
    """

    def __init__(self, tokenizer: Tokenizer, on_text: Callable[[str], None] | None = None) -> None:
        raise NotImplementedError("week 1 day 6 task 2: TextStream.__init__ is not written yet")

    def add(self, token: int) -> None:
        """Append a token, and pass on the text that is certain now."""
        raise NotImplementedError("week 1 day 6 task 2: TextStream.add is not written yet")

    def finish(self) -> str:
        """Pass on the text that was held back, and return the whole text."""
        raise NotImplementedError("week 1 day 6 task 2: TextStream.finish is not written yet")
