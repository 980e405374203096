"""Generate text from a prompt, one request at a time."""

from collections.abc import Callable, Sequence
from typing import Protocol

import mlx.core as mx

from ..model.qwen3 import Qwen3Model
from .sampler import Sampler, token_id

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
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
    tokens = encode_prompt(tokenizer, prompt)
    stream = TextStream(tokenizer, on_text)
    for _ in range(max_tokens):
        logits = model(mx.array([tokens]), logits_to_keep=1)
        token = token_id(sampler(to_logprobs(logits)))
        if token in tokenizer.eos_token_ids:
            break
        tokens.append(token)
        stream.add(token)
    return stream.finish()


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
    new_tokens = encode_prompt(tokenizer, prompt)
    cache = model.create_kv_cache()
    offset = 0
    stream = TextStream(tokenizer, on_text)
    for _ in range(max_tokens):
        logits = model(mx.array([new_tokens]), offset, cache, logits_to_keep=1)
        token = token_id(sampler(to_logprobs(logits)))
        if token in tokenizer.eos_token_ids:
            break
        offset += len(new_tokens)
        new_tokens = [token]
        stream.add(token)
    return stream.finish()


def to_logprobs(logits: mx.array) -> mx.array:
    """Turn the last position of logits [B, L, V] into log-probabilities [B, V], in float32."""
    last = logits[:, -1].astype(mx.float32)
    return last - mx.logsumexp(last, axis=-1, keepdims=True)


def encode_prompt(tokenizer: Tokenizer, prompt: str | Sequence[int]) -> list[int]:
    """Return the token ids of a prompt, in a new list: encode text, and copy ids unchanged.

    If the text already starts with the beginning-of-text token, don't let the tokenizer add a second one.

    Raises:
        ValueError: the prompt is empty, so it has no token.
    """
    if isinstance(prompt, str):
        has_bos = tokenizer.bos_token is not None and prompt.startswith(tokenizer.bos_token)
        tokens = list(tokenizer.encode(prompt, add_special_tokens=not has_bos))
    else:
        tokens = list(prompt)
    if not tokens:
        raise ValueError("the prompt is empty: give at least one token to continue")
    return tokens


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
        self._tokenizer = tokenizer
        self._on_text = on_text
        self._pieces: list[str] = []
        self._tokens: list[int] = []  # the newest tokens; without on_text, all of them
        self._num_sent = 0  # characters of their text that were passed on

    def add(self, token: int) -> None:
        """Append a token, and pass on the text that is certain now."""
        self._tokens.append(token)
        if self._on_text is None:
            return
        text = self._tokenizer.decode(self._tokens)
        complete = text.rstrip(REPLACEMENT)
        self._send(complete)
        if len(self._tokens) >= (MAX_DECODED_TOKENS if complete == text else 2 * MAX_DECODED_TOKENS):
            self._forget_oldest(text)

    def finish(self) -> str:
        """Pass on the text that was held back, and return the whole text."""
        self._send(self._tokenizer.decode(self._tokens))
        return "".join(self._pieces)

    def _send(self, text: str) -> None:
        """Pass on the new part of the newest tokens' text."""
        piece = text[self._num_sent :]
        if piece:
            self._num_sent = len(text)
            self._pieces.append(piece)
            if self._on_text is not None:
                self._on_text(piece)

    def _forget_oldest(self, text: str) -> None:
        """Keep the newer half of the tokens, or a few more so that the cut falls between two characters.

        If bytes that are still held back get forgotten, they will never become a character. Pass them on.
        """
        for start in range(len(self._tokens) - MAX_DECODED_TOKENS // 2, 0, -1):
            kept = self._tokenizer.decode(self._tokens[start:])
            if text.endswith(kept):
                forgotten = text[: len(text) - len(kept)]
                self._send(forgotten)
                self._num_sent -= len(forgotten)
                self._tokens = self._tokens[start:]
                return
