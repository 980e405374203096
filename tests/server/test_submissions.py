"""What a job of several answers submits, when, and what it drops at its end."""

import asyncio
from typing import Any

import pytest

from http_server.engine_client import NUM_SEEDS, Running
from http_server.job import Job
from tests.support.server_engines import SECONDS
from tiny_llm import SamplingParams
from tiny_llm.server.admission import Admission
from tiny_llm.server.mailbox import Increment


class Submissions:
    """In place of the engine's client: notes what a job submits, and gives each answer a token at once."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, tuple[int, ...], int | None, int]] = []
        self.aborted: list[int] = []
        self.queue: asyncio.Queue[Any] = asyncio.Queue()

    def submit(self, running: Running, prompt_ids: tuple[int, ...], priority: int) -> int:
        self.seen.append((running.index, prompt_ids, running.params.seed, priority))
        self.queue = running.queue
        self.gain(running.index)
        return len(self.seen)

    def gain(self, index: int, end: str | None = None) -> None:
        self.queue.put_nowait((index, Increment(0, (7,), "G", (), end)))

    def abort(self, ticket: int) -> None:
        self.aborted.append(ticket)


def test_each_answer_is_submitted_once_and_after_the_first_token_of_its_prompt() -> None:
    client: Any = Submissions()
    admission, last_seed = Admission(6), NUM_SEEDS - 1
    params = SamplingParams(seed=last_seed)
    job = Job(client, "r", [(1,), (2, 2)], 3, params, 4, admission.reserve(6), 0.0)

    async def test() -> None:
        increments = job.increments()
        found = []
        for place in range(12):
            if place == 6:
                for index in range(6):
                    client.gain(index, "stop")
            assert place == 0 or not client.queue.empty(), "an answer that was not submitted would be awaited"
            index, _ = await anext(increments)
            found.append(index)
            assert len(client.seen) == (4 if place == 0 else 6)
        assert found == [0, 3, 1, 2, 4, 5, 0, 1, 2, 3, 4, 5]
        with pytest.raises(StopAsyncIteration):
            await anext(increments)

    asyncio.run(asyncio.wait_for(test(), SECONDS))
    assert client.seen == [
        (0, (1,), last_seed, 4),
        (3, (2, 2), last_seed, 4),
        (1, (1,), 0, 4),
        (2, (1,), 1, 4),
        (4, (2, 2), 0, 4),
        (5, (2, 2), 1, 4),
    ]
    job.close()
    assert client.aborted == [1, 2, 3, 4, 5, 6]
    assert admission.num_reqs == 0
