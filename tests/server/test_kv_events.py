"""KV events over ZeroMQ: what subscribers get, also those that come late, and what the option refuses."""

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import zmq

from http_server.app import create_app
from http_server.config import ServerConfig
from http_server.engine_factory import EngineFactory
from http_server.kv_events import KvEventPublisher
from http_server.kv_events_config import KvEventsConfig, listens, parse_kv_events_config, seen_from_here
from tests.server.servers import MODEL, in_memory
from tests.support.batching import small_model
from tests.support.prefixes import live, manager
from tests.support.server_engines import ChatFake
from tiny_llm import Engine, PrefixCachingBlockManager, SchedulerConfig
from tiny_llm.scheduling import cache_events
from tiny_llm.scheduling.cache_events import CacheContents, CacheEvent, CacheEvents
from tiny_llm.scheduling.observed_cache import observe

MILLISECONDS = 20_000
ANY_PORT = "tcp://127.0.0.1:*"


class Event(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """The events as a subscriber to vLLM declares them."""


class BlockStored(Event):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str, ...] | None] | None = None


class BlockRemoved(Event):
    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int


class Follower:
    """A subscriber. What it knows: the tokens of each block, by hash."""

    def __init__(self, events: "zmq.Socket[bytes]", replay: "zmq.Socket[bytes]", topic: str) -> None:
        self.events, self.replay, self.topic = events, replay, topic.encode()
        self.blocks: dict[int, list[int]] = {}
        self.numbers: list[int] = []

    def receive(self) -> None:
        topic, *frames = self.events.recv_multipart()
        assert topic == self.topic
        self.apply(*frames)

    def ask(self, number: int) -> None:
        self.replay.send_multipart([b"", number.to_bytes(8, "big")])
        while True:
            empty, topic, *frames = self.replay.recv_multipart()
            assert empty == b""
            if frames == [(-1).to_bytes(8, "big", signed=True), b""]:
                assert topic == b""
                return
            assert topic == self.topic
            self.apply(*frames)

    def apply(self, number: bytes, content: bytes) -> None:
        self.numbers.append(int.from_bytes(number, "big"))
        batch = msgspec.msgpack.decode(content, type=Batch)
        assert batch.data_parallel_rank == 0
        assert batch.ts > 1.7e9
        for event in batch.events:
            if isinstance(event, BlockStored):
                assert (event.block_size, event.lora_id, event.medium) == (3, None, "GPU")
                self.blocks |= dict.fromkeys(event.block_hashes, event.token_ids)
            elif isinstance(event, BlockRemoved):
                for hash in event.block_hashes:
                    self.blocks.pop(hash, None)
            else:
                self.blocks.clear()


@contextmanager
def published(**options: Any) -> Iterator[tuple[KvEventPublisher, PrefixCachingBlockManager]]:
    """A publisher and blocks that it observes."""
    options = {"topic": "kv@here", **options}
    config = KvEventsConfig(True, endpoint=ANY_PORT, replay_endpoint=ANY_PORT, **options)
    with KvEventPublisher(config) as publisher:
        blocks = manager(num_blocks=4)
        observe(blocks, publisher.events)
        yield publisher, blocks


@contextmanager
def following(publisher: KvEventPublisher, topic: str = "kv@here") -> Iterator[Follower]:
    assert publisher.replay_address is not None
    with zmq.Context() as context, context.socket(zmq.SUB) as events, context.socket(zmq.DEALER) as replay:
        for each, endpoint in ((events, publisher.address), (replay, publisher.replay_address)):
            each.rcvtimeo = each.sndtimeo = MILLISECONDS
            each.linger, each.rcvhwm = 0, 1
            each.connect(endpoint)
        events.subscribe("kv@")
        yield Follower(events, replay, topic)


def held(blocks: PrefixCachingBlockManager) -> list[list[int]]:
    return sorted(list(prefix.token_ids) for prefix in blocks.block_of)


def work(publisher: KvEventPublisher, blocks: PrefixCachingBlockManager, number: int) -> None:
    """A step in which a prompt of two blocks comes and leaves. From the third on, it evicts another's."""
    blocks.free(live(blocks, range(10 * number, 10 * number + 6), number))
    publisher.publish()


def wait_until_connected(
    follower: Follower, publisher: KvEventPublisher, blocks: PrefixCachingBlockManager
) -> int:
    """Work until a subscriber gets something; what is sent before is lost. Return the number of steps."""
    for number in range(100):
        if follower.events.poll(50):
            return number
        work(publisher, blocks, number)
    pytest.fail("the subscriber gets nothing")


def test_a_subscriber_gets_what_happens_and_asks_for_what_it_missed() -> None:
    with published() as (publisher, blocks), following(publisher) as follower:
        number = wait_until_connected(follower, publisher, blocks)
        follower.receive()
        (first,) = follower.numbers
        publisher.publish()  # nothing has happened
        for later in range(number, number + 3):
            work(publisher, blocks, later)
        while follower.numbers[-1] < number + 2:
            follower.receive()
        assert follower.numbers == [*range(first, number + 3)]
        follower.blocks.clear()
        follower.ask(0)
        assert follower.numbers[-number - 3 :] == [*range(number + 3)]
        assert sorted(follower.blocks.values()) == held(blocks)


def test_a_late_subscriber_gets_the_sum_of_what_is_not_kept() -> None:
    with published(buffer_steps=3) as (publisher, blocks), following(publisher) as late:
        for number in range(6):
            work(publisher, blocks, number)
        wait_for(publisher, 6)
        late.ask(1)
        assert late.numbers == [2, 3, 4, 5]
        assert sorted(late.blocks.values()) == held(blocks)
        late.ask(6)
        assert late.numbers == [2, 3, 4, 5]


def test_a_subscriber_that_reads_nothing_costs_nothing_but_its_own_messages() -> None:
    topic = "kv@here" * 10_000  # so that messages do not fit into the system's buffers
    with (
        published(hwm=1, topic=topic) as (publisher, blocks),
        following(publisher, topic) as stuck,
        following(publisher, topic) as late,
    ):
        assert wait_until_connected(stuck, publisher, blocks) < 100
        for number in range(100, 500):
            work(publisher, blocks, number)
        late.ask(0)
        while sorted(late.blocks.values()) != held(blocks):
            late.ask(late.numbers[-1] + 1)
        while stuck.events.poll(100):
            stuck.receive()
        assert len(stuck.numbers) < 400


def test_events_wait_together_if_too_many_steps_wait() -> None:
    config = KvEventsConfig(
        True, endpoint=ANY_PORT, replay_endpoint=ANY_PORT, topic="kv@here", max_queue_size=2
    )
    publisher = KvEventPublisher(config)
    blocks = manager(num_blocks=4)
    observe(blocks, publisher.events)
    for number in range(5):  # it does not send yet
        work(publisher, blocks, number)
    with publisher, following(publisher) as late:
        wait_for(publisher, 2)
        publisher.publish()
        wait_for(publisher, 3)
        late.ask(0)
        assert late.numbers == [0, 1, 2]
        assert sorted(late.blocks.values()) == held(blocks)


def wait_for(publisher: KvEventPublisher, number: int) -> None:
    """Wait until so many batches have been sent."""
    with following(publisher) as follower:
        while not follower.numbers or follower.numbers[-1] < number - 1:
            follower.numbers.clear()
            follower.blocks.clear()
            follower.ask(0)


def test_it_ends_at_once_and_leaves_its_ports() -> None:
    with published() as (publisher, blocks), following(publisher):
        work(publisher, blocks, 0)
        port = publisher.address.rpartition(":")[2]
    with socket.create_server(("127.0.0.1", int(port))):
        assert "KV events" not in {thread.name for thread in threading.enumerate()}


def test_a_port_that_is_taken() -> None:
    with published() as (publisher, _):
        for taken in (
            KvEventsConfig(True, endpoint=publisher.address),
            KvEventsConfig(True, endpoint=ANY_PORT, replay_endpoint=publisher.address),
        ):
            with pytest.raises(
                ValueError, match=f"cannot use {publisher.address}: Address .*in use.*; choose"
            ):
                KvEventPublisher(taken)


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1", "127.0.0.1:5557", "http://*:5557", ""])
def test_an_endpoint_that_is_none(endpoint: str) -> None:
    with pytest.raises(ValueError, match="--kv-events-config"):
        KvEventPublisher(KvEventsConfig(True, endpoint=endpoint))


@pytest.mark.parametrize(
    ("endpoint", "does"),
    [
        ("tcp://*:5557", True),
        ("tcp://localhost:5557", True),
        ("tcp://[::]:5557", True),
        ("ipc:///tmp/events", True),
        ("tcp://router:5557", False),
        ("tcp://10.0.0.7:5557", False),
    ],
)
def test_where_it_listens(endpoint: str, does: bool) -> None:
    assert listens(endpoint) == does


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        ("tcp://*:5557", "tcp://127.0.0.1:5557"),
        ("tcp://[::]:5557", "tcp://[::1]:5557"),
        ("tcp://localhost:5557", "tcp://localhost:5557"),
        ("ipc:///tmp/events", "ipc:///tmp/events"),
    ],
)
def test_where_a_subscriber_on_this_machine_finds_it(endpoint: str, address: str) -> None:
    assert seen_from_here(endpoint) == address


def test_each_replica_has_endpoints_of_its_own() -> None:
    config = KvEventsConfig(True, endpoint="tcp://*:5557", replay_endpoint="ipc:///tmp/replay", topic="kv")
    assert config.of_replicas(3) == [
        KvEventsConfig(True, endpoint="tcp://*:5557", replay_endpoint="ipc:///tmp/replay-1", topic="kv"),
        KvEventsConfig(True, endpoint="tcp://*:5558", replay_endpoint="ipc:///tmp/replay-2", topic="kv"),
        KvEventsConfig(True, endpoint="tcp://*:5559", replay_endpoint="ipc:///tmp/replay-3", topic="kv"),
    ]
    without = KvEventsConfig(True, endpoint="tcp://[::1]:65534")
    assert [each.replay_endpoint for each in without.of_replicas(2)] == [None, None]
    apart = KvEventsConfig(True, endpoint="tcp://*:5557", replay_endpoint="tcp://127.0.0.1:5559")
    assert [each.replay_endpoint for each in apart.of_replicas(2)] == [
        "tcp://127.0.0.1:5559",
        "tcp://127.0.0.1:5560",
    ]
    with pytest.raises(ValueError, match="put the two at least 3 apart"):
        apart.of_replicas(3)


@pytest.mark.parametrize("endpoint", ["tcp://*:0", "tcp://*:*", "tcp://127.0.0.1"])
def test_replicas_need_the_port_of_the_first(endpoint: str) -> None:
    with pytest.raises(
        ValueError, match=re.escape(f"the port of the first one, got the endpoint {endpoint}")
    ):
        KvEventsConfig(True, endpoint=endpoint).of_replicas(2)


def test_the_option_has_the_names_and_defaults_of_vllm() -> None:
    assert parse_kv_events_config("{}") == KvEventsConfig(
        False, "zmq", "tcp://*:5557", None, 10_000, 100_000, 100_000, ""
    )
    assert not parse_kv_events_config("{}").is_on
    assert parse_kv_events_config('{"enable_kv_cache_events": true}').is_on
    assert not parse_kv_events_config('{"enable_kv_cache_events": true, "publisher": "null"}').is_on


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tcp://*:5557", "malformed"),
        ("[]", "Expected `object`"),
        ('{"endpont": "tcp://*:5557"}', "`endpont`"),
        ('{"hwm": -1}', "at `$.hwm`"),
        ('{"buffer_steps": "9"}', "at `$.buffer_steps`"),
        ('{"publisher": "kafka"}', "'kafka'"),
    ],
)
def test_options_that_cannot_be_read(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match="--kv-events-config must be a JSON object") as caught:
        parse_kv_events_config(text)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_server_s_engines_report_their_caches() -> None:
    events, contents, told = CacheEvents(), CacheContents(), list[list[CacheEvent]]()
    config, engines = SchedulerConfig(8, 4), list[Engine]()
    factory = EngineFactory(lambda: (small_model(), ChatFake()), config, 40, 30, 4, observer=events)

    def make_engine() -> Engine:
        engines.append(factory())
        return engines[-1]

    app = create_app(
        make_engine,
        ChatFake,
        ServerConfig((MODEL,), config),
        after_step=lambda: told.append(events.take()),
    )
    with in_memory(app) as client:
        for prompt in ([5, 6, 7, 8, 9, 10, 11, 12, 13], [5, 6, 7, 8, 1]):
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 3}
            assert client.post("/v1/completions", json=body).status_code == 200
        blocks = engines[-1].scheduler.blocks
        assert isinstance(blocks, PrefixCachingBlockManager)
        assert told[0] == [cache_events.AllBlocksCleared()]
        for each in told:
            contents.apply(each)
        assert len(contents.blocks) == len(blocks.block_of) > 1
