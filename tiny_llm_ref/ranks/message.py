"""How rank 0 tells the others what comes next: one array of integers, summed over all ranks."""

from collections.abc import Sequence as Items
from enum import IntEnum

import mlx.core as mx
import numpy as np

from ..model.ranks import FRAME, Ranks
from ..paging.paged_kv_cache import Ints


class Kind(IntEnum):
    """What a message is about: the first integer of its first array."""

    STOP = 0
    POOL = 1
    STEP = 2


def to_message(arrays: Items[mx.array]) -> mx.array:
    """Store arrays of integers in one, together with their shapes, without evaluating them.

    Args:
        arrays: of any shapes and integer types; they may be empty.

    Returns:
        [n], int32: the number of arrays; for each, its number of dimensions and its shape; then the entries
        of all arrays, row by row.
    """
    shapes = [number for x in arrays for number in (x.ndim, *x.shape)]
    return mx.concatenate(
        [mx.array([len(arrays), *shapes], mx.int32), *(x.reshape(-1).astype(mx.int32) for x in arrays)]
    )


def from_message(numbers: Ints) -> list[Ints]:
    """Return the arrays that `to_message` stored."""
    shapes, place = [], 1
    for _ in range(numbers[0]):
        end = place + 1 + int(numbers[place])
        shapes.append(numbers[place + 1 : end])
        place = end
    arrays = []
    for shape in shapes:
        size = int(np.prod(shape))
        arrays.append(numbers[place : place + size].reshape(shape))
        place += size
    return arrays


def send(numbers: mx.array, ranks: Ranks) -> mx.array:
    """Send a message from rank 0, without evaluating anything.

    The others know only that `FRAME` integers (see `model/ranks.py`) will come, and add zeros. The first is
    the length of the message. What doesn't fit in the frame follows in a second array.

    Args:
        numbers: [n], int32.
        ranks: all of them receive.

    Returns:
        An array to evaluate: when it has been, the message has left.
    """
    framed = mx.concatenate([mx.array([numbers.size], mx.int32), numbers])
    frame = framed[:FRAME]
    sent = ranks.all_sum(mx.pad(frame, (0, FRAME - frame.size)))
    if framed.size <= FRAME:
        return sent
    (rest,) = mx.depends([framed[FRAME:]], [sent])  # all ranks need the same order
    return ranks.all_sum(rest)


def receive(ranks: Ranks) -> Ints:
    """Wait for a message of rank 0: [n], int32.

    Raises:
        ConnectionError: rank 0 has ended, and the sum is zeros. MLX may also raise an error of its own.
    """
    framed = np.array(ranks.all_sum(mx.zeros(FRAME, mx.int32)))
    if not framed[0]:
        raise ConnectionError("rank 0 has ended: it sent nothing")
    missing = 1 + int(framed[0]) - FRAME
    if missing > 0:
        framed = np.concatenate([framed, np.array(ranks.all_sum(mx.zeros(missing, mx.int32)))])
    return framed[1 : 1 + framed[0]]
