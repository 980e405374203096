"""Publish what the prefix cache holds, in the form of vLLM's KV events, for routers that know all caches.

The form is that of vLLM 0.29 (vllm/distributed/kv_events.py): messages of ZeroMQ in three parts. They are the
topic, the number of the batch in 8 bytes, and the batch in MessagePack: an array of the time, of the events
as maps, and of the data-parallel rank, which is 0.
"""

import logging
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from types import TracebackType

import msgspec
import zmq

from tiny_llm.scheduling.cache_events import BlockRemoved, BlockStored, CacheEvent, CacheEvents

from .kv_event_log import EventBatch, EventLog
from .kv_events_config import KvEventsConfig, listens

log = logging.getLogger("tiny_llm.server")
DATA_PARALLEL_RANK = 0
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
WAKE = "inproc://wake"
MEDIUM = "GPU"
"""Where blocks are, in vLLM's words: not on the host, in a cache elsewhere, or on disk."""


def as_map(event: CacheEvent) -> Mapping[str, object]:
    """Write an event as vLLM does, which leaves out optional fields that are None."""
    form: dict[str, object] = {"type": type(event).__name__}
    if isinstance(event, BlockStored):
        form |= {
            "block_hashes": [event.block_hash],
            "parent_block_hash": event.parent_block_hash,
            "token_ids": event.token_ids,
            "block_size": len(event.token_ids),
            "lora_id": None,
            "medium": MEDIUM,
            "lora_name": None,
        }
        if event.cache_salt is not None:
            form["extra_keys"] = [[event.cache_salt]]
    elif isinstance(event, BlockRemoved):
        form |= {"block_hashes": [event.block_hash], "medium": MEDIUM}
    return form


class KvEventPublisher:
    """Publish the events of each step, from a thread of its own.

    Args:
        config: where to, and how much may wait.
        seed: as for `CacheEvents`.

    Attributes:
        events: the observer of the prefix cache.
        address, replay_address: the endpoints, with the ports that the system chose if it was to choose them.

    Raises:
        ValueError: an endpoint can't be used; shows it and the reason.
    """

    def __init__(self, config: KvEventsConfig, seed: str = "0") -> None:
        self.events = CacheEvents(seed)
        self._topic = config.topic.encode()
        self._log = EventLog(config.buffer_steps)
        self._queue: SimpleQueue[tuple[float, list[CacheEvent]] | None] = SimpleQueue()
        self._context = zmq.Context()
        self._inbox = self._open(zmq.PULL, WAKE)
        self._wake = self._open(zmq.PUSH, WAKE, is_client=True)
        try:
            self._subscribers = self._open(zmq.PUB, config.endpoint, config.hwm)
            self._requests = None
            if config.replay_endpoint is not None:
                room_for_a_replay = config.buffer_steps + 2
                self._requests = self._open(zmq.ROUTER, config.replay_endpoint, room_for_a_replay)
        except ValueError:
            self._context.destroy(linger=0)
            raise
        self.address = address_of(self._subscribers)
        self.replay_address = None if self._requests is None else address_of(self._requests)
        self._most_waiting = config.max_queue_size or sys.maxsize
        self._thread = Thread(target=self._run, name="KV events", daemon=True)

    def publish(self) -> None:
        """Hand what has happened since the last call to the thread, unless too much waits there already.

        This is for the engine's thread. It never waits, whatever subscribers do.
        """
        if self._queue.qsize() < self._most_waiting and (events := self.events.take()):
            self._queue.put((time.time(), events))
            self._wake_up(self._wake)

    def __enter__(self) -> "KvEventPublisher":
        self._thread.start()
        log.info("KV events on %s: whoever reaches it can read all prompts", self.address)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send what waits, and close all sockets."""
        self._queue.put(None)
        self._wake_up(self._open(zmq.PUSH, WAKE, is_client=True))  # `_wake` belongs to the engine's thread
        self._thread.join()
        self._context.destroy(linger=0)

    def _open(
        self, kind: int, endpoint: str, hwm: int = 1000, is_client: bool = False
    ) -> "zmq.Socket[bytes]":
        """Open a socket for at most `hwm` messages to each peer."""
        socket = self._context.socket(kind)
        socket.sndhwm = hwm
        socket.ipv6 = "[" in endpoint
        open_at = socket.connect if is_client or not listens(endpoint) else socket.bind
        try:
            open_at(endpoint)
        except zmq.ZMQError as error:
            raise ValueError(
                f"KV events cannot use {endpoint}: {error}; choose another one in --kv-events-config"
            ) from None
        return socket

    @staticmethod
    def _wake_up(wake: "zmq.Socket[bytes]") -> None:
        with suppress(zmq.Again):  # enough messages wait to wake it
            wake.send(b"", zmq.NOBLOCK)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._inbox, zmq.POLLIN)
        if self._requests is not None:
            poller.register(self._requests, zmq.POLLIN)
        number = 0
        while True:
            ready = dict(poller.poll())
            if self._requests is not None and self._requests in ready:
                self._answer(self._requests)
            if self._inbox in ready:
                self._inbox.recv()
            while not self._queue.empty():
                waiting = self._queue.get()
                if waiting is None:
                    return
                batch = EventBatch(number, *waiting)
                number += 1
                self._log.add(batch)
                self._subscribers.send_multipart([self._topic, *frames_of(batch)])

    def _answer(self, requests: "zmq.Socket[bytes]") -> None:
        """Send a subscriber all batches from the number that it asks for, then a batch that ends them."""
        client, *request = requests.recv_multipart()
        if len(request) != 2:
            return  # no one who speaks this protocol
        for batch in self._log.since(int.from_bytes(request[1], "big")):
            requests.send_multipart([client, b"", self._topic, *frames_of(batch)])
        requests.send_multipart([client, b"", b"", END_OF_REPLAY, b""])


def address_of(socket: "zmq.Socket[bytes]") -> str:
    """Where a socket listens, or what it is connected to."""
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def frames_of(batch: EventBatch) -> list[bytes]:
    """The number and the content of a batch, as they are sent."""
    content = (batch.seconds, [as_map(event) for event in batch.events], DATA_PARALLEL_RANK)
    return [batch.number.to_bytes(8, "big"), msgspec.msgpack.encode(content)]
