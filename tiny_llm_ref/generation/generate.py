"""One request at a time, from a prompt to text."""

from collections.abc import Callable, Sequence
from typing import Protocol

import mlx.core as mx

from ..model.qwen3 import Qwen3Model
from .sampler import Sampler, token_id

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
MAX_DECODED_TOKENS = 16
"""How many tokens a text stream decodes together: more than any character needs."""


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
    """Continue a prompt, computing each token once: the prompt in one pass, then one token a pass.

    The other arguments, the result and the errors are those of `simple_generate`, and so is the text.

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
    """Log-probabilities [B, V], in float32, of the token after the last of logits [B, L, V]."""
    last = logits[:, -1].astype(mx.float32)
    return last - mx.logsumexp(last, axis=-1, keepdims=True)


def encode_prompt(tokenizer: Tokenizer, prompt: str | Sequence[int]) -> list[int]:
    """Token ids of a prompt: text is encoded, ids are taken as they are.

    A prompt that starts with the beginning-of-text token already does not get a second one.

    Raises:
        ValueError: the prompt is empty: it holds no token.
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
        self._tokenizer = tokenizer
        self._on_text = on_text
        self._pieces: list[str] = []
        self._tokens: list[int] = []  # the newest; all of them while nobody listens
        self._num_sent = 0  # characters of their text

    def add(self, token: int) -> None:
        self._tokens.append(token)
        if self._on_text is None:
            return
        text = self._tokenizer.decode(self._tokens)
        complete = text.rstrip(REPLACEMENT)
        self._send(complete)
        if len(self._tokens) >= (MAX_DECODED_TOKENS if complete == text else 2 * MAX_DECODED_TOKENS):
            self._forget_oldest(text)

    def finish(self) -> str:
        """Hand on what was held back and return the whole text."""
        self._send(self._tokenizer.decode(self._tokens))
        return "".join(self._pieces)

    def _send(self, text: str) -> None:
        """Hand on what is new in the text of the newest tokens."""
        piece = text[self._num_sent :]
        if piece:
            self._num_sent = len(text)
            self._pieces.append(piece)
            if self._on_text is not None:
                self._on_text(piece)

    def _forget_oldest(self, text: str) -> None:
        """Keep the newer half of the tokens, or a few more so that the cut falls between two characters.

        Bytes that are held back and forgotten will never be a character: they are handed on.
        """
        for start in range(len(self._tokens) - MAX_DECODED_TOKENS // 2, 0, -1):
            kept = self._tokenizer.decode(self._tokens[start:])
            if text.endswith(kept):
                forgotten = text[: len(text) - len(kept)]
                self._send(forgotten)
                self._num_sent -= len(forgotten)
                self._tokens = self._tokens[start:]
                return
