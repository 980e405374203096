"""The answers to one HTTP request, as they come."""

import asyncio
from collections.abc import AsyncIterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace

from tiny_llm.generation.sampler import SamplingParams
from tiny_llm.server.admission import Reservation
from tiny_llm.server.mailbox import Increment

from .engine_client import NUM_SEEDS, EngineClient, Running
from .errors import ApiError
from .record import RequestRecord


@dataclass
class Job:
    """The answers to one HTTP request: n for each of its prompts.

    Answer i continues prompt i // n. The others of a prompt are submitted once the first one has a token, so
    that they find the prompt in the prefix cache.

    Args:
        client: runs them.
        name: the id in the response.
        prompts: token ids.
        n: answers per prompt.
        params: how to sample; with a seed, answer i of a prompt uses seed + i.
        priority: of all of them.
        reservation: has a slot for each answer.
        arrival: when the HTTP request came.
        is_scoring: compute how likely each prompt is instead: force it as the answer to its first token.
    """

    client: EngineClient
    name: str
    prompts: Items[tuple[int, ...]]
    n: int
    params: SamplingParams
    priority: int
    reservation: Reservation
    arrival: float
    is_scoring: bool = False
    records: dict[int, RequestRecord] = field(default_factory=dict)
    _tickets: list[int] = field(default_factory=list)

    @property
    def num_answers(self) -> int:
        """Number of answers."""
        return self.n * len(self.prompts)

    async def increments(self) -> AsyncIterator[tuple[int, Increment]]:
        """Submit all requests, and yield what they get, each with the index of its answer.

        Raises:
            ApiError: one of them failed. The others are aborted by `close`.
        """
        queue: asyncio.Queue[tuple[int, Increment | ApiError]] = asyncio.Queue()
        for index in range(0, self.num_answers, self.n):
            self._submit(index, queue)
        num_unfinished = self.num_answers
        while num_unfinished:
            index, increment = await queue.get()
            if isinstance(increment, ApiError):
                raise increment
            if index % self.n == 0 and index + 1 not in self.records:
                for sibling in range(index + 1, index + self.n):
                    self._submit(sibling, queue)
            num_unfinished -= increment.finish_reason is not None
            yield index, increment

    def abort(self) -> None:
        """Drop what is unfinished."""
        for ticket in self._tickets:
            self.client.abort(ticket)

    def close(self) -> None:
        """Drop what is unfinished, and release all slots."""
        self.abort()
        self.reservation.__exit__(None, None, None)

    def _submit(self, index: int, queue: "asyncio.Queue[tuple[int, Increment | ApiError]]") -> None:
        prompt_ids, number = self.prompts[index // self.n], index % self.n
        seed = self.params.seed
        params = self.params if seed is None else replace(self.params, seed=(seed + number) % NUM_SEEDS)
        if self.is_scoring:
            prompt_ids, forced = prompt_ids[:1], prompt_ids[1:]
            params = replace(params, forced_ids=forced, max_tokens=len(forced))
        name = self.name if self.num_answers == 1 else f"{self.name}[{index}]"
        record = RequestRecord(name, self.arrival, len(prompt_ids))
        self.records[index] = record
        running = Running(index, queue, params, record, self.reservation)
        self._tickets.append(self.client.submit(running, prompt_ids, self.priority))
