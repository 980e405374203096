"""Several schedulers behind a router, on paper."""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import islice

from ..batching.prefill_metrics import RequestTimes
from ..scheduling.block_hashes import Prefixes
from ..scheduling.cache_events import CacheContents, CacheEvents
from ..scheduling.content_hashes import ContentHashes, short_hash
from ..scheduling.load_report import LoadReport
from ..scheduling.observed_cache import observe
from ..scheduling.prefix_cache import PrefixCachingBlockManager
from ..scheduling.sequence import Sequence
from .routing import ReplicaView, Router
from .simulator import SimulatedRequest, Simulator

Conversation = Items[SimulatedRequest]
"""Turns, each sent some time after the answer to the one before: `arrival` counts from that answer's end."""


def block_hashes(prompt_ids: Items[int], block_size: int) -> list[int]:
    """Hashes of the full blocks of a prompt, as the events of any replica have them."""
    prefixes, hashes = Prefixes(block_size), ContentHashes("0")
    return [short_hash(hashes.of(prefix)) for prefix in prefixes.of(Sequence(0, prompt_ids))]


@dataclass
class Replica:
    """A simulated engine with a prefix cache, and what a router learns of it.

    Attributes:
        told: what its events say.
        sent: hashes of the blocks of all prompts that it got.
        turns: the rest of the conversation behind each request that has not ended, by the request's number.
    """

    simulator: Simulator
    blocks: PrefixCachingBlockManager
    told: CacheContents = field(default_factory=CacheContents)
    sent: set[int] = field(default_factory=set)
    turns: dict[int, Conversation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._events = CacheEvents()
        observe(self.blocks, self._events)

    def step(self) -> list[Conversation]:
        """Simulate a step and follow its events. Return the rest of conversations whose turn has ended."""
        self.simulator.step()
        self.told.apply(self._events.take())
        unfinished = self.simulator.scheduler.sequences
        return [self.turns.pop(number) for number in list(self.turns) if number not in unfinished]


class Fleet:
    """Serve conversations by several simulated engines.

    A router sees what a replica reports at the end of the step under way, so it is never late. It believes
    that a replica has what its events say, or else that it has everything that was ever sent to it. The first
    is what a router learns from KV events, the second what it can guess without them.

    Args:
        simulators: the engines, each with a prefix cache of its own.
        router: chooses one for each request.
        from_events: whether the router listens to events.

    Attributes:
        replicas: in the order of `simulators`.
        choices: which replica got each request, in the order of arrival.

    Raises:
        ValueError: simulator `number` has no prefix cache.
    """

    def __init__(self, simulators: Items[Simulator], router: Router, from_events: bool = True) -> None:
        self.router = router
        self.from_events = from_events
        self.replicas: list[Replica] = []
        self.choices: list[int] = []
        for number, simulator in enumerate(simulators):
            blocks = simulator.scheduler.blocks
            if not isinstance(blocks, PrefixCachingBlockManager):
                raise ValueError(f"simulator {number} needs a PrefixCachingBlockManager, got {blocks!r}")
            self.replicas.append(Replica(simulator, blocks))

    def run(self, conversations: Iterable[Conversation]) -> None:
        """Serve all conversations to their ends. The first turns arrive when they say so."""
        pending: list[tuple[float, int, Conversation]] = []
        num_turns = 0

        def expect(turns: Conversation, now: float) -> None:
            nonlocal num_turns
            if turns:
                heappush(pending, (now + turns[0].arrival, num_turns, turns))
                num_turns += 1

        for turns in conversations:
            expect(turns, 0.0)
        while True:
            busy = [each for each in self.replicas if each.simulator.scheduler.has_work]
            if not busy and not pending:
                return
            first = min(busy, key=lambda each: each.simulator.now, default=None)
            if first is None or (pending and pending[0][0] <= first.simulator.now):
                arrival, _, turns = heappop(pending)
                self._send(turns, arrival)
            else:
                for rest in first.step():
                    expect(rest, first.simulator.now)

    def _send(self, turns: Conversation, arrival: float) -> None:
        request, *rest = turns
        hashes = block_hashes(request.prompt_ids, self.replicas[0].blocks.block_size)
        views = [
            ReplicaView(
                LoadReport.of(each.simulator.scheduler), each.told.blocks if self.from_events else each.sent
            )
            for each in self.replicas
        ]
        chosen = self.router.choose(hashes, views)
        self.choices.append(chosen)
        replica = self.replicas[chosen]
        replica.sent.update(hashes)
        if not replica.simulator.scheduler.has_work:
            replica.simulator.now = max(replica.simulator.now, arrival)
        number = replica.simulator.add(replace(request, arrival=arrival))
        replica.turns[number] = rest

    @property
    def hit_rate(self) -> float:
        """Fraction of the admitted tokens that were found in a cache."""
        blocks = [each.blocks for each in self.replicas]
        return sum(each.num_hit_tokens for each in blocks) / max(
            1, sum(each.num_admitted_tokens for each in blocks)
        )

    @property
    def times(self) -> list[RequestTimes]:
        """The times of all requests, replica by replica."""
        return [times for each in self.replicas for times in each.simulator.metrics.requests.values()]


def converse(
    num_users: int,
    num_turns: int,
    system: int,
    question: int,
    answer: int,
    shared: bool = True,
    pause: float = 0.0,
    every: float = 0.0,
) -> list[list[SimulatedRequest]]:
    """Conversations in which each turn sends again everything that was said before.

    Args:
        num_users, num_turns: conversations, and the turns of each.
        system, question, answer: tokens of the introduction, and of each question and answer.
        shared: whether all have the same introduction, or each its own.
        pause: seconds from an answer to the next question.
        every: seconds from the start of a conversation to that of the next.
    """
    conversations = []
    for user in range(num_users):
        fresh = iter(range(10**6 * (user + 1), 10**6 * (user + 2)))
        said = [*range(system)] if shared else list(islice(fresh, system))
        turns = []
        for turn in range(num_turns):
            said += islice(fresh, question)
            output = tuple(islice(fresh, answer))
            turns.append(
                SimulatedRequest(tuple(said), answer, pause if turn else user * every, output_ids=output)
            )
            said += output
        conversations.append(turns)
    return conversations
