"""The value of `--kv-events-config`, with the names and defaults of vLLM's `KVEventsConfig`."""

from typing import Annotated, Literal

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)]


class KvEventsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where KV events go.

    Attributes:
        enable_kv_cache_events: whether there are any.
        publisher: "null" for none either.
        endpoint: where subscribers get new events. ZeroMQ listens at it if its host is `*` or this machine,
            and connects to it otherwise.
        replay_endpoint: where they ask for events that they missed; None for nowhere.
        buffer_steps: number of steps whose events are kept for them one by one. They get older events
            summed up.
        hwm: number of messages that may wait for one subscriber. It loses those beyond. 0 for no limit.
        max_queue_size: number of steps whose events may wait to be sent. If so many wait, the next ones are
            sent together later. 0 for no limit.
        topic: the first part of every message.
    """

    enable_kv_cache_events: bool = False
    publisher: Literal["null", "zmq"] = "zmq"
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: Count = 10_000
    hwm: Count = 100_000
    max_queue_size: Count = 100_000
    topic: str = ""

    @property
    def is_on(self) -> bool:
        """Whether events are published."""
        return self.enable_kv_cache_events and self.publisher == "zmq"


def parse_kv_events_config(text: str) -> KvEventsConfig:
    """Read the option's value.

    Raises:
        ValueError: it is no JSON, or has an unknown key or a value of another type.
    """
    try:
        return msgspec.json.decode(text, type=KvEventsConfig)
    except msgspec.DecodeError as error:
        keys = ", ".join(KvEventsConfig.__struct_fields__)
        raise ValueError(
            f"--kv-events-config must be a JSON object with any of the keys {keys}: {error}"
        ) from None
