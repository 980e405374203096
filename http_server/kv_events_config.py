"""The value of `--kv-events-config`, with the names and defaults of vLLM's `KVEventsConfig`."""

from typing import Annotated, Literal

import msgspec

HERE = ("*", "127.0.0.1", "localhost", "[::1]", "[::]", "0.0.0.0")
"""Hosts at which a socket listens."""
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

    def of_replicas(self, count: int) -> "list[KvEventsConfig]":
        """The same for each of several servers on a machine: their ports count up from these, as in vLLM.

        An endpoint that isn't TCP gets the replica's number, from 1.

        Raises:
            ValueError: an endpoint has no port, or two servers would have the same one.
        """
        configs = [
            msgspec.structs.replace(
                self,
                endpoint=of_replica(self.endpoint, number),
                replay_endpoint=self.replay_endpoint and of_replica(self.replay_endpoint, number),
            )
            for number in range(count)
        ]
        places = [place_of(each.endpoint) for each in configs]
        places += [place_of(each.replay_endpoint) for each in configs if each.replay_endpoint]
        if len(set(places)) < len(places):
            raise ValueError(
                f"--kv-events-config needs {count} ports each from those of {self.endpoint} and "
                f"{self.replay_endpoint} on, one per replica: put the two at least {count} apart"
            )
        return configs


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


def written(config: KvEventsConfig) -> str:
    """The option's value, as `parse_kv_events_config` reads it."""
    return msgspec.json.encode(config).decode()


def listens(endpoint: str) -> bool:
    """Whether subscribers come to an endpoint. Otherwise something there collects the events of many servers.

    vLLM connects to an address of this machine, unless it is `*` or `::`.
    """
    scheme, _, address = endpoint.partition("://")
    return scheme in ("ipc", "inproc") or address.rpartition(":")[0] in HERE


def place_of(endpoint: str) -> str:
    """The port of an endpoint, or its path."""
    return endpoint.rpartition(":")[2]


def of_replica(endpoint: str, number: int) -> str:
    """The endpoint of a replica, counted from 0. Raises ValueError as `KvEventsConfig.of_replicas` does."""
    if not endpoint.startswith("tcp://"):
        return f"{endpoint}-{number + 1}"
    port = place_of(endpoint)
    if not port.isdecimal() or not int(port):
        raise ValueError(
            f"--kv-events-config with --replicas needs the port of the first one, got the endpoint {endpoint}"
        )
    return f"{endpoint[: -len(port)]}{int(port) + number}"


def seen_from_here(endpoint: str) -> str:
    """The address at which a subscriber on this machine finds what listens at an endpoint."""
    scheme, _, address = endpoint.partition("://")
    host, colon, port = address.rpartition(":")
    local = {"*": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    return f"{scheme}://{local}{colon}{port}"
