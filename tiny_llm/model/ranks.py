"""What a process knows of the others that run the same model, and the two ways to exchange arrays."""

import json
import os
from pathlib import Path
from typing import Protocol

import mlx.core as mx

FRAME = 1024
"""Integers that every message takes at least. No rank knows a message's length before it has arrived."""


class Ranks(Protocol):
    """N processes, numbered from 0. All of them must call the same operations in the same order."""

    rank: int
    size: int

    def all_sum(self, x: mx.array) -> mx.array:
        """Add up the arrays of all ranks, which have one shape, in an order that depends on the backend."""

    def all_gather(self, x: mx.array) -> mx.array:
        """Stack the arrays of all ranks in their order: [...] -> [N, ...]"""


class MlxRanks:
    """The ranks of MLX's distributed backend, over the network.

    Operations run on the CPU, whatever the default device is: the network is there, too.
    """

    def __init__(self) -> None:
        self._group = mx.distributed.init(strict=True, backend="ring")
        self.rank = self._group.rank()
        self.size = self._group.size()

    def all_sum(self, x: mx.array) -> mx.array:
        """Add up the arrays of all ranks."""
        return mx.distributed.all_sum(x, group=self._group, stream=mx.cpu)

    def all_gather(self, x: mx.array) -> mx.array:
        """Stack the arrays of all ranks."""
        return mx.distributed.all_gather(x[None], group=self._group, stream=mx.cpu)


class OneRank:
    """A process that is alone."""

    rank = 0
    size = 1

    def all_sum(self, x: mx.array) -> mx.array:
        """Return x."""
        return x

    def all_gather(self, x: mx.array) -> mx.array:
        """Return [1, ...]."""
        return x[None]


def join_ranks() -> Ranks:
    """Find the other ranks as `mlx.launch` describes them in the environment; without that, be alone."""
    return MlxRanks() if "MLX_RANK" in os.environ else OneRank()


def ranks_on_this_machine() -> int:
    """How many ranks share the memory of this machine, this one included; 1 for a process that is alone."""
    if "MLX_RANK" not in os.environ:
        return 1
    addresses = json.loads(Path(os.environ["MLX_HOSTFILE"]).read_text(encoding="utf-8"))
    hosts = [of_rank[0].rpartition(":")[0] for of_rank in addresses]
    return hosts.count(hosts[int(os.environ["MLX_RANK"])])
