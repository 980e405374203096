"""Several simulated engines behind a router: who gets what, and when."""

import pytest

from tiny_llm import (
    BlockManager,
    CacheAware,
    CostModel,
    Fleet,
    PrefixCachingBlockManager,
    RoundRobin,
    SchedulerConfig,
    SimulatedRequest,
    Simulator,
    converse,
)

COST = CostModel(0.5, 0.125)


def simulators(number: int, num_blocks: int = 60) -> list[Simulator]:
    return [
        Simulator(SchedulerConfig(16, 4), COST, PrefixCachingBlockManager(num_blocks, 4))
        for _ in range(number)
    ]


def test_one_replica_is_a_simulator() -> None:
    requests = [SimulatedRequest(tuple(range(n, n + 9)), 5, arrival=0.75 * n) for n in range(8)]
    fleet, (alone,) = Fleet(simulators(1), RoundRobin()), simulators(1)
    fleet.run([[request] for request in requests])
    alone.run(requests)
    assert [times.tokens for times in fleet.times] == [
        each.tokens for each in alone.metrics.requests.values()
    ]


def test_a_turn_comes_after_the_answer_before_it() -> None:
    turns = [SimulatedRequest((1, 2), 2), SimulatedRequest((1, 2, 3), 1, arrival=4.0)]
    fleet = Fleet(simulators(2), RoundRobin())
    fleet.run([turns])
    first, second = fleet.times
    assert fleet.choices == [0, 1]
    assert first.tokens == [0.75, 1.375]
    assert (second.arrival, second.tokens) == (5.375, [5.375 + 0.875])


def test_an_idle_replica_is_not_set_back() -> None:
    """A request that arrives during a step waits for its end, even if nothing else is left then."""
    fleet = Fleet(simulators(1), RoundRobin())
    fleet.run([[SimulatedRequest((1, 2), 1)], [SimulatedRequest((3, 4, 5), 1, arrival=0.25)]])
    assert [times.tokens for times in fleet.times] == [[0.75], [0.75 + 0.875]]


@pytest.mark.parametrize("num_blocks", [60, 12])
@pytest.mark.parametrize("from_events", [True, False])
def test_what_a_router_is_told_is_what_replicas_hold(num_blocks: int, from_events: bool) -> None:
    fleet = Fleet(simulators(2, num_blocks), CacheAware(), from_events)
    fleet.run(converse(7, 3, 8, 5, 4, shared=False, pause=1.0, every=0.5))
    assert len(fleet.choices) == 21
    for replica in fleet.replicas:
        assert len(replica.told.blocks) == len(replica.blocks.block_of)
        assert not replica.turns
    assert (num_blocks == 60) == all(len(each.sent) <= len(each.told.blocks) for each in fleet.replicas)


def test_conversations() -> None:
    (first, second), other = converse(2, 2, 3, 2, 4, pause=7.0, every=0.5)
    assert second.prompt_ids[:5] == first.prompt_ids
    assert second.prompt_ids[5:9] == first.output_ids
    assert (first.arrival, second.arrival, other[0].arrival) == (0.0, 7.0, 0.5)
    assert other[0].prompt_ids[:3] == first.prompt_ids[:3]
    assert not set(other[0].prompt_ids[3:]) & set(first.prompt_ids)
    own = converse(2, 1, 3, 2, 4, shared=False)
    assert not set(own[0][0].prompt_ids) & set(own[1][0].prompt_ids)


def test_a_replica_without_a_prefix_cache() -> None:
    with pytest.raises(ValueError, match="simulator 1 needs a PrefixCachingBlockManager"):
        Fleet([*simulators(1), Simulator(SchedulerConfig(), COST, BlockManager(4))], RoundRobin())
