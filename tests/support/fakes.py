"""A model and a tokenizer without weights, so that the tests of the batching days are exact and instant.

The fake works as a real model of two layers does: a layer adds up what its cache lets a query see, token by
token and position by position, and the second layer caches what the first made of it. So the next token
depends on every visible token, on its position, on the mask of every earlier query and on the caches of
both layers. A chunk fed twice, a token out of order or a row of another request changes the answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest

from accelerated.accelerate import engine_operations
from tiny_llm import TinyKvFullCache
from tiny_llm.paging.forward_batch import RaggedKvCache

VOCAB_SIZE = 61
EOS = 0
PRIME = 100_003
MAX_CALLS = 2000


class ModelFailureError(Exception):
    """What a fake model raises when it was told to fail."""


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """A prompt whose neighbouring tokens differ; another one for each seed."""
    return [1 + (7 * i * i + 13 * i + 17 * seed + 5) % (VOCAB_SIZE - 1) for i in range(length)]


def fingerprint(tokens: Sequence[int]) -> int:
    """What the fake makes of a sequence: a number that depends on every token and its position."""
    first = second = 0
    for position, token in enumerate(tokens):
        first = (first + (token + 1) * (position + 2) ** 2) % PRIME
        second = (second + (first + 1) * (position + 2) ** 2) % PRIME
    return second


def next_token(tokens: Sequence[int]) -> int:
    """The fake's most likely token after these; never the end-of-text id by itself."""
    return 1 + fingerprint(tokens) % (VOCAB_SIZE - 1)


def continuation(prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What a request gets when it runs alone and greedily."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


@dataclass(frozen=True)
class Call:
    """One call of the model: offset and tokens of each row."""

    offsets: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]
    logits_to_keep: int | None = None

    @property
    def rows(self) -> list[tuple[int, list[int]]]:
        """(offset, tokens) of each row, sorted: which row comes first is the business of the cache."""
        return sorted(
            (offset, list(tokens)) for offset, tokens in zip(self.offsets, self.tokens, strict=True)
        )


def attend(query, key, value, scale=None, mask=None):
    """[B, 1, L, 1]: for each query the sum over all it may see, of what is held times where."""
    B, _, L, _ = query.shape
    held, where = (np.array(x)[:, 0, :, 0].astype(np.int64) for x in (key, value))
    S = held.shape[1]
    if isinstance(mask, mx.array):
        visible = np.array(mx.broadcast_to(mask.astype(mx.float32), (B, 1, L, S)))[:, 0] == 0
    else:
        latest = np.arange(L) + S - L if mask == "causal" else np.full(L, S)
        visible = np.broadcast_to(np.arange(S)[None, :] <= latest[:, None], (B, L, S))
    return mx.array(sums_of(held[:, None], where[:, None], visible))[:, None, :, None]


def attend_in_blocks(query, keys, values, layout):
    """[T, 1, 1]: what `attend` gives each of T tokens, from the blocks of its own sequence."""
    tables, starts, lengths = layout.numbers()
    sequence = np.repeat(np.arange(len(tables)), np.diff(starts))
    position = np.arange(starts[-1]) + (lengths - starts[1:])[sequence]
    held, where = (
        np.array(x[layout.block_tables]).astype(np.int64).reshape(len(tables), -1)[sequence]
        for x in (keys, values)
    )
    visible = np.arange(held.shape[1])[None, :] <= position[:, None]
    return mx.array(sums_of(held, where, visible))[:, None, None]


def sums_of(held, where, visible):
    """Over the last axis, the sum of what is held times where, of all that is visible."""
    return ((visible * (held + 1) * (where + 2) ** 2).sum(axis=-1) % PRIME).astype(np.float32)


class FakeModel:
    """Called like Qwen3Model; records its calls.

    Args:
        eos_at_length: a sequence of this many tokens is continued by the end-of-text id.
        fail_at: raise `failure` in that call (counted from 0), after the first layer's cache was updated.
    """

    num_hidden_layers = 2
    config = SimpleNamespace(vocab_size=VOCAB_SIZE, max_position_embeddings=4096)
    operations = engine_operations()

    def __init__(
        self,
        eos_at_length: int | None = None,
        fail_at: int | None = None,
        failure: type[BaseException] = ModelFailureError,
    ) -> None:
        self.calls: list[Call] = []
        self.caches: list[TinyKvFullCache] = []
        self.eos_at_length = eos_at_length
        self.fail_at = fail_at
        self.failure = failure

    def create_kv_cache(self) -> list[TinyKvFullCache]:
        caches = [TinyKvFullCache() for _ in range(self.num_hidden_layers)]
        self.caches.extend(caches)
        return caches

    def __call__(self, tokens, offset=0, cache=None, logits_to_keep=None):
        L = tokens.shape[1]
        keep = L if logits_to_keep is None else min(logits_to_keep, L)
        return self.logits(self.hidden_states(tokens, offset, cache, logits_to_keep)[:, L - keep :])

    def hidden_states(self, tokens, offset=0, cache=None, logits_to_keep=None):
        """[B, L, 2]: the state of each token, and its position."""
        B, L = tokens.shape
        if not isinstance(offset, int | list | tuple):
            raise ValueError(f"offset must be a number or a list with one a row, got {type(offset).__name__}")
        offsets = list(offset) if isinstance(offset, list | tuple) else [offset] * B
        caches = [None] * self.num_hidden_layers if cache is None else list(cache)
        self._record(tokens, offsets, caches, logits_to_keep)
        positions = np.array(offsets)[:, None] + np.arange(L)[None, :]
        states = np.array(tokens, dtype=np.int64)
        for layer, layer_cache in enumerate(caches):
            if layer == 1 and self.fail_at == len(self.calls) - 1:
                raise self.failure("the fake model was told to fail here")
            states = self._layer(states, positions, layer_cache)
        return mx.array(np.stack([states, positions], axis=-1))

    @property
    def rows(self) -> list[list[tuple[int, list[int]]]]:
        """(offset, tokens) of each row of each call."""
        return [call.rows for call in self.calls]

    def _record(self, tokens, offsets, caches, logits_to_keep) -> None:
        if len(self.calls) >= MAX_CALLS:
            pytest.fail(f"the model was called {MAX_CALLS} times and the run did not end")
        if len(offsets) != tokens.shape[0] or len(caches) != self.num_hidden_layers:
            raise ValueError(
                f"{tokens.shape[0]} rows and {self.num_hidden_layers} layers got {len(offsets)} offsets "
                f"and {len(caches)} caches"
            )
        rows = tuple(tuple(row) for row in tokens.tolist())
        self.calls.append(Call(tuple(offsets), rows, logits_to_keep))

    @staticmethod
    def _layer(states, positions, cache):
        """[B, L] -> [B, L]: what each state becomes; its query is not looked at."""
        B, L = states.shape
        key, value = (mx.array(x.astype(np.float32)).reshape(B, 1, L, 1) for x in (states, positions))
        if cache is None:
            attended = attend(key, key, value, mask="causal")
        else:
            if isinstance(cache, RaggedKvCache):  # it attends in the blocks, and not as it is asked to
                cache = RaggedKvCache(cache.pool, cache.layer, cache.batch, attend_in_blocks)
            attended = cache.attend(key, key, value, attend, "causal")
        return np.array(attended)[:, 0, :, 0].astype(np.int64)

    def logits(self, x) -> mx.array:
        """[B, L, 2] -> [B, L, V]: the likeliest token stands out, the others depend on the state too."""
        states, positions = np.moveaxis(np.array(x), -1, 0)
        likeliest = 1 + states % (VOCAB_SIZE - 1)
        if self.eos_at_length is not None:
            likeliest = np.where(positions + 1 == self.eos_at_length, EOS, likeliest)
        logits = np.cos(np.arange(VOCAB_SIZE) * (1 + states[..., None] % 17))
        np.put_along_axis(logits, likeliest[..., None], 3.0, axis=-1)
        return mx.array(logits.astype(np.float32))


class FakeTokenizer:
    """One token a character: ids 1 to 60 are the characters from "A" on, 0 ends the text.

    With `pieces`, token i is the text `pieces[i]` instead, of any length.
    """

    bos_token: str | None = None

    def __init__(self, pieces: Sequence[str] | None = None, eos_token_ids: Sequence[int] = (EOS,)) -> None:
        self.eos_token_ids = set(eos_token_ids)
        self.pieces = pieces

    @property
    def token_bytes(self) -> list[bytes]:
        """What grammars take the tokens for."""
        return [b"", *(self.decode([token]).encode() for token in range(1, VOCAB_SIZE))]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(character) - ord("A") + 1 for character in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(
            chr(ord("A") + token - 1) if self.pieces is None else self.pieces[token] for token in token_ids
        )
