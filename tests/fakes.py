"""A model and a tokenizer without weights, so that the tests of the batching days are exact and instant.

The fake's next token depends on every visible token, on its position and on what both layers of the cache
hold for it. A chunk fed twice, a token out of order or a row of another request changes the answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from tiny_llm import TinyKvFullCache

VOCAB_SIZE = 61
EOS = 0
PRIME = 100_003


def fingerprint(tokens: Sequence[int]) -> int:
    """A number that depends on every token and its position."""
    return sum((token + 1) * (position + 2) ** 2 for position, token in enumerate(tokens)) % PRIME


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
    """One call of the model: offsets and tokens of each row."""

    offsets: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]
    logits_to_keep: int | None


class FakeModel:
    """Called like Qwen3Model; records its calls.

    `fail_at` raises `failure` in that call (counted from 0), after the first layer's cache was updated.
    `eos_after` maps a fingerprint-independent total length to an end of text: a row of that many tokens
    is continued by the end-of-text id.
    """

    num_hidden_layers = 2

    def __init__(
        self,
        eos_at_length: int | None = None,
        fail_at: int | None = None,
        failure: type[BaseException] = RuntimeError,
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

    def __call__(self, tokens, offset=0, cache=None, logits_to_keep=None):  # type: ignore[no-untyped-def]
        B, L = tokens.shape
        offsets = list(offset) if isinstance(offset, list) else [offset] * B
        rows = tuple(tuple(int(token) for token in row) for row in tokens.tolist())
        self.calls.append(Call(tuple(offsets), rows, logits_to_keep))
        token = tokens.astype(mx.float32).reshape(B, 1, L, 1)
        position = (mx.array(offsets)[:, None] + mx.arange(L)[None, :]).astype(mx.float32).reshape(B, 1, L, 1)
        if cache is None:
            layers = [(token, position, "causal"), (token + 1000, position, "causal")]
        else:
            layers = [self._update(layer, cache[layer], token, position, L) for layer in range(len(cache))]
        keep = L if logits_to_keep is None else min(logits_to_keep, L)
        return self._logits(layers, B, L)[:, L - keep :]

    def _update(self, layer, cache, token, position, L):  # type: ignore[no-untyped-def]
        if layer == 1 and self.fail_at == len(self.calls) - 1:
            raise self.failure("the fake model was told to fail here")
        key, value, _, mask = cache.update_and_fetch(
            token + 1000 * layer, position, mask_length=L, mask="causal"
        )
        return key, value, mask

    def _logits(self, layers, B, L) -> mx.array:  # type: ignore[no-untyped-def]
        logits = np.zeros((B, L, VOCAB_SIZE), dtype=np.float32)
        for row in range(B):
            for query in range(L):
                seen = [self._seen(key, value, mask, row, query, L) for key, value, mask in layers]
                tokens = [token for token, _ in seen[0]]
                likeliest = 1 + self._mixed_fingerprint(seen) % (VOCAB_SIZE - 1)
                if self.eos_at_length == len(tokens):
                    likeliest = EOS
                logits[row, query] = np.cos(np.arange(VOCAB_SIZE) * (1 + fingerprint(tokens) % 17))
                logits[row, query, likeliest] = 3.0
        return mx.array(logits)

    @staticmethod
    def _seen(key, value, mask, row, query, L):  # type: ignore[no-untyped-def]
        """(token, position) of every entry that a query may see, as one layer's cache holds them."""
        keys, values = np.array(key)[row, 0, :, 0], np.array(value)[row, 0, :, 0]
        S = len(keys)
        if isinstance(mask, str) or mask is None:
            visible = np.arange(S) <= query + S - L if mask == "causal" else np.ones(S, dtype=bool)
        else:
            visible = np.array(mx.broadcast_to(mask, (key.shape[0], 1, L, S)))[row, 0, query] == 0
        return [(int(k), int(v)) for k, v in zip(keys[visible], values[visible], strict=True)]

    @staticmethod
    def _mixed_fingerprint(seen: list[list[tuple[int, int]]]) -> int:
        """The fingerprint of the tokens, if both layers hold the same tokens at their own positions."""
        first, second = seen
        agree = [(token + 1000, position) for token, position in first] == second
        in_place = [position for _, position in first] == list(range(len(first)))
        disorder = (
            0
            if agree and in_place
            else 1 + sum(token * 7 + position for layer in seen for token, position in layer)
        )
        return fingerprint([token for token, _ in first]) + disorder


class FakeTokenizer:
    """One token a character: ids 1 to 60 are the characters from "A" on, 0 ends the text."""

    bos_token: str | None = None

    def __init__(self) -> None:
        self.eos_token_ids = {EOS}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(character) - ord("A") + 1 for character in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(ord("A") + token - 1) for token in token_ids)
