"""Which replica gets a request: three small policies, as routers have them, for the simulator."""

from collections.abc import Container, Sized
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Protocol

from ..scheduling.load_report import LoadReport


class Hashes(Container[int], Sized, Protocol):
    """The hashes of blocks, in no order."""


@dataclass(frozen=True)
class ReplicaView:
    """What a router knows of a replica.

    Attributes:
        load: its last report.
        known: hashes of the blocks that the router expects in its cache.
    """

    load: LoadReport
    known: Hashes = field(default_factory=frozenset)


class Router(Protocol):
    """Chooses a replica for each request."""

    def choose(self, hashes: Items[int], replicas: Items[ReplicaView]) -> int:
        """Return the number of the replica that gets a request; they count from 0.

        Args:
            hashes: of the full blocks of its prompt, first to last.
            replicas: all replicas, at least one.
        """


def num_known_blocks(hashes: Items[int], known: Hashes) -> int:
    """Number of leading blocks of a prompt that a replica need not compute, as far as a router knows.

    A block behind a gap doesn't count: the replica has to compute everything from the gap on.
    """
    for number, each in enumerate(hashes):
        if each not in known:
            return number
    return len(hashes)


class RoundRobin:
    """One after the other, whatever they do: replica 0 first, and after the last one 0 again."""

    def __init__(self) -> None:
        self.num_chosen = 0

    def choose(self, hashes: Items[int], replicas: Items[ReplicaView]) -> int:
        """Choose the replica after the last chosen one."""
        self.num_chosen += 1
        return (self.num_chosen - 1) % len(replicas)


class LeastLoaded:
    """The replica with the fewest unfinished requests."""

    def choose(self, hashes: Items[int], replicas: Items[ReplicaView]) -> int:
        """Choose the replica with the fewest unfinished requests.

        Of several, choose the one whose pool is used least, and of several such the first.
        """
        loads = [replica.load for replica in replicas]
        return min(range(len(loads)), key=lambda i: (loads[i].num_requests, loads[i].kv_usage))


class CacheAware:
    """The replica that knows most of the prompt, unless another one has far less to do.

    The three limits have the names and defaults of vllm-router and sglang-router.

    Args:
        cache_threshold: fraction of a prompt's blocks. If no replica knows more, the load decides.
        balance_abs_threshold, balance_rel_threshold: `is_unbalanced` compares with both.
    """

    def __init__(
        self,
        cache_threshold: float = 0.3,
        balance_abs_threshold: int = 64,
        balance_rel_threshold: float = 1.5,
    ) -> None:
        self.cache_threshold = cache_threshold
        self.balance_abs_threshold = balance_abs_threshold
        self.balance_rel_threshold = balance_rel_threshold

    def is_unbalanced(self, replicas: Items[ReplicaView]) -> bool:
        """Whether one replica has so much more to do than another that no cache makes up for it.

        Count unfinished requests, of the replicas with the most and the fewest. They must be more than
        `balance_abs_threshold` apart, and the most more than `balance_rel_threshold` times the fewest.
        """
        loads = [replica.load.num_requests for replica in replicas]
        least, most = min(loads), max(loads)
        return most - least > self.balance_abs_threshold and most > self.balance_rel_threshold * least

    def choose(self, hashes: Items[int], replicas: Items[ReplicaView]) -> int:
        """Choose the replica that knows most leading blocks; of several, the one that is least loaded.

        Choose among all replicas, by their load alone, if they are unbalanced, or if none knows more than
        `cache_threshold` of the prompt's blocks. "Least loaded" always means what `LeastLoaded` chooses.
        """
        candidates = list(range(len(replicas)))
        lengths = [num_known_blocks(hashes, replica.known) for replica in replicas]
        longest = max(lengths)
        if not self.is_unbalanced(replicas) and longest > self.cache_threshold * len(hashes):
            candidates = [i for i in candidates if lengths[i] == longest]
        return candidates[LeastLoaded().choose(hashes, [replicas[i] for i in candidates])]
