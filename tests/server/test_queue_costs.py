"""What a served step looks at doesn't depend on how many requests wait. This counts, and measures no time."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.fakes import prompt_of
from tests.support.server_engines import ENGINES
from tiny_llm import PrefixCachingBlockManager, SamplingParams, Scheduler, SchedulerConfig, Sequence
from tiny_llm.server.engine_thread import EngineThread
from tiny_llm.server.mailbox import Submit
from tiny_llm.server.recovery import RecoveringEngine


class Walked(dict[int, Any]):
    """A dict that counts the items that anyone walks over."""

    num_walked = 0

    def __iter__(self) -> Iterator[int]:
        for key in super().__iter__():
            Walked.num_walked += 1
            yield key

    def keys(self) -> Any:
        return list(self)

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]


def num_walked_over(kind: str, num_requests: int) -> int:
    """What some steps walk over, in the dicts that hold all requests."""
    thread = EngineThread(ENGINES[kind], lambda report: None)
    with RecoveringEngine(thread.make_engine) as engine:
        for ticket in range(num_requests):
            params = SamplingParams(max_tokens=3, seed=1)
            thread.add(engine, Submit(ticket, tuple(prompt_of(5, ticket)), params, 0))
        holders: list[tuple[Any, str]] = [
            (thread, "live"),
            (thread, "id_of"),
            (engine, "requests"),
            (engine.engine, "requests"),
            (engine.engine.scheduler, "sequences"),
        ]
        for holder, name in holders:
            setattr(holder, name, Walked(getattr(holder, name)))
        Walked.num_walked = 0
        for _ in range(12):
            thread.compute(engine)
        assert len(thread.live) < num_requests
        return Walked.num_walked


class Looking(PrefixCachingBlockManager):
    """Counts how often shared blocks are looked up."""

    num_lookups = 0

    def find_shared_blocks(self, sequence: Sequence) -> list[int]:
        self.num_lookups += 1
        return super().find_shared_blocks(sequence)


def test_the_prefix_of_a_request_is_not_looked_up_while_no_blocks_are_left() -> None:
    blocks = Looking(8, 4)
    scheduler = Scheduler(SchedulerConfig(8, 4), blocks)
    for id in range(2):
        scheduler.add(Sequence(id, prompt_of(9), max_num_tokens=24))
    for _ in range(9):
        output = scheduler.schedule()
        scheduler.complete(output, dict.fromkeys(output.final_ids, 5))
    assert blocks.num_lookups == 2, "once for the entry and once for the table of the first request"
    scheduler.remove(0)
    scheduler.schedule()
    assert [each.id for each in scheduler.running] == [1]


@pytest.mark.parametrize("kind", ENGINES)
def test_a_step_walks_over_no_queue(kind: str) -> None:
    assert num_walked_over(kind, 200) == num_walked_over(kind, 20)
