"""A fake model whose answers tell whether each entry was read from a quantized block or in floats.

Its keys and values are digits plus a quarter, on a grid whose step is 1: a quantized block rounds the
quarters away, and nothing else. So all is exact, and what each token should see is known beforehand.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from kernel_runtime.block_layout import BlockLayout, QuantizedBlocks
from tests.support.fakes import PRIME, VOCAB_SIZE, FakeModel
from tests.support.quantized_blocks import expanded, unpacked
from tiny_llm import ScheduledTokens, SchedulerOutput, Sequence
from tiny_llm.paging.quantized_batch import QuantizedKvCache
from tiny_llm.speculation.drafter import Drafts

D = 32
NUM_DIGITS = 8
WEIGHTS = 8 ** np.arange(NUM_DIGITS)
QUARTERS = int(WEIGHTS.sum())
"""What a quarter in each digit adds to four times the number."""
Ints = npt.NDArray[np.int64]


def written(numbers: Ints, bits: int) -> mx.array:
    """[...] -> [..., D]: 0, the largest code, and the digits to base 8, a quarter added to each."""
    digits = numbers[..., None] // WEIGHTS % 8 + 0.25
    rest = np.zeros((*numbers.shape, D - 2 - NUM_DIGITS))
    ends = np.broadcast_to([0.0, 2.0**bits - 1], (*numbers.shape, 2))
    return mx.array(np.concatenate([ends, digits, rest], axis=-1).astype(np.float32))


def read(entries: npt.NDArray[Any]) -> Ints:
    """[..., D] -> [...]: four times the number, and QUARTERS more if it was not quantized."""
    digits = 4 * entries[..., 2 : 2 + NUM_DIGITS]
    return (np.nan_to_num(digits, nan=0.5) @ WEIGHTS).astype(np.int64)


def mixed(held: Ints, where: Ints) -> int:
    """What a token makes of all that it sees."""
    return int(((held % PRIME + 1) * ((where + 2) ** 2 % PRIME)).sum() % PRIME)


def attend_as_told(
    query: mx.array, blocks: QuantizedBlocks, layout: BlockLayout, tails: mx.array
) -> mx.array:
    """[T, 1, 1]: what each token makes of what it sees, in numpy."""
    keys, values, *floats = blocks
    block_size = keys.shape[1]
    full = [read(expanded(*unpacked(x, D, (x.shape[-1] - 1) * 32 // D)))[:, :, 0] for x in (keys, values)]
    rest = [read(np.array(x))[:, :, 0] for x in floats]
    (tables, starts, lengths), tail_of = layout.numbers(), np.array(tails)
    outputs = []
    for i, length in enumerate(lengths):
        for row in range(starts[i], starts[i + 1]):
            num_seen = length - (starts[i + 1] - row) + 1
            num_full, num_in_tail = divmod(int(num_seen), block_size)
            held, where = (
                np.concatenate([x[tables[i, :num_full]].reshape(-1), y[tail_of[row], :num_in_tail]])
                for x, y in zip(full, rest, strict=True)
            )
            outputs.append(mixed(held, where))
    return mx.array(np.array(outputs, np.float32))[:, None, None]


class QuantizedFakeModel(FakeModel):
    """A `FakeModel` for runners with `kv_bits`."""

    config = SimpleNamespace(
        vocab_size=VOCAB_SIZE,
        head_dim=D,
        num_key_value_heads=1,
        num_hidden_layers=2,
        max_position_embeddings=4096,
    )

    def __init__(self, kv_bits: int, **options: Any) -> None:
        super().__init__(**options)
        self.kv_bits = kv_bits

    def _layer(self, states: Ints, positions: Ints, cache: QuantizedKvCache) -> Ints:
        """[B, 1] -> [B, 1]; its query is not looked at."""
        key, value = (written(x, bits)[:, None] for x, bits in ((states, 8), (positions, self.kv_bits)))
        told = QuantizedKvCache(cache.pool, cache.layer, cache.batch, attend_as_told)
        attended = told.attend(key, key, value, lambda query, *_, **__: query, "causal")
        return np.array(attended)[:, 0, :, 0].astype(np.int64)


def next_state(tokens: Items[int], block_size: int) -> int:
    """What the fake makes of a sequence whose full blocks are quantized."""
    states, where = np.array(tokens, np.int64), np.arange(len(tokens))
    for _ in range(QuantizedFakeModel.num_hidden_layers):
        seen = []
        for position in range(len(tokens)):
            num_seen = position + 1
            in_floats = where[:num_seen] >= num_seen // block_size * block_size
            held, places = (4 * x[:num_seen] + QUARTERS * in_floats for x in (states, where))
            seen.append(mixed(held, places))
        states = np.array(seen, np.int64)
    return int(states[-1])


def continuation(prompt: Items[int], num_tokens: int, block_size: int) -> list[int]:
    """What a request gets, in any schedule."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(1 + next_state(tokens, block_size) % (VOCAB_SIZE - 1))
    return tokens[len(prompt) :]


class GoodDrafter:
    """Drafts what comes next, and at times something else."""

    def __init__(self, block_size: int, seed: int) -> None:
        self.block_size = block_size
        self.random = np.random.default_rng(seed)

    def rests(self, sequences: Items[Sequence]) -> bool:
        return False

    def wanted(self, entries: Items[ScheduledTokens]) -> dict[int, int]:
        return {entry.sequence.id: int(self.random.integers(0, 8)) for entry in entries}

    def propose(self, output: SchedulerOutput, granted: Mapping[int, int], params: Any) -> Drafts:
        drafts = {}
        for entry in output.final:
            number = granted.get(entry.sequence.id, 0)
            token_ids = continuation(entry.sequence.token_ids, number, self.block_size)
            is_wrong = self.random.random(number) < 0.25
            drafts[entry.sequence.id] = [
                1 + token % 60 if wrong else token for token, wrong in zip(token_ids, is_wrong, strict=True)
            ]
        return Drafts({id: each for id, each in drafts.items() if each})

    def release(self, sequence_id: int) -> None:
        pass

    def close(self) -> None:
        pass
