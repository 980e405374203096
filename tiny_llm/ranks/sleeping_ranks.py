"""Let ranks sleep until rank 0 has something to say. While MLX waits for a message, it keeps a core busy."""

import os
import select
import time
from collections.abc import Sequence as Items

import mlx.core as mx

from ..model.ranks import Ranks

WAKE_PIPES = "TINY_LLM_WAKE_PIPES"
"""In a rank's environment, its ends of pipes, separated by commas: rank 0 has one to write to for each other
rank, which has the other end."""
AWAKE_SECONDS = 0.1
"""How long a rank looks for the next message before it sleeps: waking up between steps takes too long."""


class SleepingRanks:
    """Ranks that exchange messages of rank 0 only. The others sleep until it begins one.

    An exchange on rank 0 writes a byte to each of the others, even before anything is evaluated. So they wake
    up while rank 0 still prepares its step.

    Args:
        ranks: all of them.
        pipes: this rank's ends of the pipes. Without any, the ranks wait as MLX does.
    """

    def __init__(self, ranks: Ranks, pipes: Items[int]) -> None:
        self.rank, self.size = ranks.rank, ranks.size
        self._ranks = ranks
        self._pipes = pipes

    def all_sum(self, x: mx.array) -> mx.array:
        """Add up the arrays of all ranks.

        Raises:
            ConnectionError: the rank at the other end of a pipe has ended.
        """
        self._wake_up()
        return self._ranks.all_sum(x)

    def all_gather(self, x: mx.array) -> mx.array:
        """Stack the arrays of all ranks.

        Raises:
            ConnectionError: as for `all_sum`.
        """
        self._wake_up()
        return self._ranks.all_gather(x)

    def _wake_up(self) -> None:
        for pipe in self._pipes:
            if self.rank == 0:
                os.write(pipe, b"\0")
            elif not read_byte(pipe):
                raise ConnectionError("rank 0 has ended: its pipe is closed")


def read_byte(pipe: int) -> bytes:
    """Read from a pipe; nothing if its other end is closed."""
    end = time.monotonic() + AWAKE_SECONDS
    while time.monotonic() < end and not select.select([pipe], [], [], 0)[0]:
        pass
    return os.read(pipe, 1)


def inherited_pipes() -> list[int]:
    """This rank's ends of the pipes, if the launcher has made some."""
    return [int(pipe) for pipe in os.environ.get(WAKE_PIPES, "").split(",") if pipe]
