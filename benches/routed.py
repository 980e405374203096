"""Conversations with real servers behind vllm-router, and what the simulator makes of the same requests."""

import asyncio
import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

import httpx2

from benches.http_load import NEVER, HttpRequest, Sent, body_of, send_one
from benches.load import take
from benches.server_process import ServerProcess, free_port, serving
from scripts.packages import OF_LEARNER
from scripts.run.serve_options import RouterPolicy
from tiny_llm import (
    CacheAware,
    CostModel,
    Fleet,
    PrefixCachingBlockManager,
    RoundRobin,
    SchedulerConfig,
    Simulator,
)
from tiny_llm.generation.generate import Tokenizer
from tiny_llm.simulation.routing import Router
from tiny_llm.simulation.simulator import SimulatedRequest

SERVE = "scripts.run.serve"
BLOCK_SIZE = 16
SCHEDULER = SchedulerConfig(128, 8, max_num_prefill_only_tokens=512)
"""That of `pdm run serve` by default."""
FOUND, ASKED = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
STARTED = "vllm:time_to_first_token_seconds_count"


@dataclass(frozen=True)
class Talk:
    """What users say, in conversations of several turns. All begin with the same introduction if `shared`."""

    num_users: int
    num_turns: int
    system: int
    question: int
    answer: int
    shared: bool
    pause: float
    every: float


@dataclass(frozen=True)
class Turn:
    """A request of a conversation, and what became of it."""

    prompt: str
    sent: Sent


@dataclass(frozen=True)
class Served:
    """What conversations cost behind a policy, measured.

    Attributes:
        turns: of all users.
        found: the share of prompt tokens that the servers found in their caches.
        counts: requests that each server got.
    """

    turns: list[Turn]
    found: float
    counts: list[int]

    @property
    def ttft(self) -> float:
        """The median time to the first token, in seconds."""
        return median(turn.sent.chunks[0] - turn.sent.arrival for turn in self.turns)

    @property
    def rate(self) -> float:
        """Answers per second, from the first question to the last answer."""
        return len(self.turns) / max(turn.sent.ended for turn in self.turns)

    @property
    def seconds_per_step(self) -> float:
        """The median time from a token to the next."""
        return median(b - a for turn in self.turns for a, b in pairwise(turn.sent.chunks))


@dataclass
class Servers:
    """A router and the servers behind it. `counted` is what their metrics said at the last look."""

    router: ServerProcess
    replicas: list[ServerProcess]
    counted: dict[str, list[float]] = field(default_factory=dict)

    def more_of(self, name: str) -> list[float]:
        """How much a counter of each server has grown since the last look."""
        before = self.counted.get(name, [0.0] * len(self.replicas))
        self.counted[name] = [each.gauge(name) for each in self.replicas]
        return [now - then for now, then in zip(self.counted[name], before, strict=True)]


@contextmanager
def routed(model: str, policy: RouterPolicy, replicas: int, blocks: int) -> Iterator[Servers]:
    """Start servers behind vllm-router, by `pdm run serve`. Raises ValueError if they don't start."""
    options = ["--replicas", str(replicas), "--router", "vllm", "--router-policy", policy]
    options += ["--num-gpu-blocks-override", str(blocks), "--block-size", str(BLOCK_SIZE)]
    if policy == "kv_aware":
        endpoint = f"tcp://127.0.0.1:{first_of_free_ports(replicas)}"
        config = {"enable_kv_cache_events": True, "endpoint": endpoint}
        options += ["--kv-events-config", json.dumps(config)]
    options += ["--mine"] if os.environ.get(OF_LEARNER) else []
    with serving(SERVE, model, options, "/readiness") as router:
        yield Servers(router, [ServerProcess(url, model, router.process) for url in urls_of(router)])


def first_of_free_ports(count: int) -> int:
    """The first of so many ports in a row that are free now."""
    while True:
        first = free_port()
        with suppress(OSError), ExitStack() as opened:
            for port in range(first, first + count):
                opened.enter_context(socket.create_server(("127.0.0.1", port)))
            return first


def urls_of(router: ServerProcess) -> list[str]:
    """The addresses of the servers behind a router."""
    found: list[str] = httpx2.get(f"{router.url}/list_workers").json()["urls"]
    return found


def converse(
    servers: Servers, talk: Talk, tokenizer: Tokenizer, stream: Sequence[int], number: int
) -> Served:
    """Have conversations about a stream of tokens, which are new to caches for each `number`.

    Raises:
        ValueError: a request had no answer.
    """
    turns = asyncio.run(_converse(servers.router, talk, tokenizer, stream, number))
    if lost := [turn.sent for turn in turns if not turn.sent.is_answered]:
        raise ValueError(f"{len(lost)} of {len(turns)} requests were not answered in full: {lost[0].error}")
    found, asked = (sum(servers.more_of(name)) for name in (FOUND, ASKED))
    return Served(turns, found / asked, [round(each) for each in servers.more_of(STARTED)])


async def _converse(
    router: ServerProcess, talk: Talk, tokenizer: Tokenizer, stream: Sequence[int], number: int
) -> list[Turn]:
    limits = httpx2.Limits(max_connections=None)
    bias = {str(id): NEVER for id in tokenizer.eos_token_ids}
    began = time.perf_counter()
    turns: list[Turn] = []

    async def speak(user: int) -> None:
        said = f"{number} " if talk.shared else f"{number}.{user} "  # so that it begins like no other
        said += tokenizer.decode(list(take(stream, 0, talk.system)))
        now = user * talk.every
        for turn in range(talk.num_turns):
            place = talk.system + (user * talk.num_turns + turn) * talk.question
            said += tokenizer.decode(list(take(stream, place, talk.question)))
            sent = Sent(now, talk.answer)
            body = body_of(router.model, HttpRequest(said, talk.answer), bias, stream=True)
            await send_one(client, body, sent, began)
            turns.append(Turn(said, sent))
            said += sent.text
            now = sent.ended + talk.pause

    async with httpx2.AsyncClient(base_url=router.url, limits=limits, timeout=None) as client:
        await asyncio.gather(*map(speak, range(talk.num_users)))
    return turns


def predicted(
    served: Served, tokenizer: Tokenizer, policy: RouterPolicy, replicas: int, blocks: int
) -> float:
    """The share of prompt tokens that simulated engines find, given the same prompts at the same times.

    vllm-router's kv_aware chooses by a cost of its own, for which the longest known prefix stands here.
    """
    routers: dict[RouterPolicy, Router] = {
        "round_robin": RoundRobin(),
        "cache_aware": CacheAware(balance_abs_threshold=SCHEDULER.max_num_seqs),
        "kv_aware": CacheAware(cache_threshold=0.0),
    }
    cost = CostModel(served.seconds_per_step, 0.0)
    fleet = Fleet(
        [Simulator(SCHEDULER, cost, PrefixCachingBlockManager(blocks, BLOCK_SIZE)) for _ in range(replicas)],
        routers[policy],
        from_events=policy == "kv_aware",
    )
    requests = [
        SimulatedRequest(
            tuple(tokenizer.encode(turn.prompt)),
            turn.sent.num_asked,
            turn.sent.arrival,
            output_ids=tuple(tokenizer.encode(turn.sent.text))[: turn.sent.num_asked],
        )
        for turn in served.turns
    ]
    fleet.run([[each] for each in sorted(requests, key=lambda each: each.arrival)])
    return fleet.hit_rate
