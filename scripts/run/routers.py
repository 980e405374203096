"""The routers that `pdm run serve --replicas` can start, none of which is ours, and their options."""

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from http_server.kv_events_config import KvEventsConfig, listens, seen_from_here
from scripts.run.serve_options import RouterName, RouterPolicy, ServeOptions

LOG_LEVELS = {"vllm": "error", "sglang": "warn"}
"""What a router logs. vllm-router takes its own word "warning" for "info"."""
HEALTH_SECONDS = 2
"""How often a router asks each replica whether it takes requests."""
NUM_FAILURES = 3
"""Failed requests in a row after which a replica gets no more for a while. A router tries a request five
times: one that finds a replica dead reaches another in time, and one that all fail on stops only one."""
PAUSE_SECONDS = 5
"""How long that while is."""


def default_router() -> RouterName:
    """The router that has a package for this system."""
    return "vllm" if sys.platform == "linux" else "sglang"


def require_router(name: RouterName) -> None:
    """Raise ValueError if the package of a router is not installed."""
    if find_spec(f"{name}_router") is None:
        raise ValueError(f"{name}-router is not installed: run `pdm run setup --group routers`")


def choose_policy(options: ServeOptions, name: RouterName) -> RouterPolicy:
    """How a router chooses: as the options say, or by KV events where it can follow them.

    Raises:
        ValueError: it is to follow events that it can't follow.
    """
    can_follow = name == "vllm" and options.kv_events is not None and can_reach(options.kv_events.endpoint)
    if options.router_policy == "kv_aware" and not can_follow:
        raise ValueError(
            "--router-policy kv_aware needs --router vllm, and --kv-events-config with an endpoint at which "
            "the servers listen for TCP, such as tcp://*:5557"
        )
    return options.router_policy or ("kv_aware" if can_follow else "cache_aware")


def can_reach(endpoint: str) -> bool:
    """Whether vllm-router can subscribe at an endpoint of a server on this machine. It knows only TCP."""
    return endpoint.startswith("tcp://") and listens(endpoint)


def event_options(urls: Sequence[str], events: Sequence[KvEventsConfig], options: ServeOptions) -> list[str]:
    """What tells vllm-router where each replica's events are, and what is in them."""
    words = ["--kv-event-block-size", str(options.block_size), "--kv-event-model", options.names[0]]
    for url, config in zip(urls, events, strict=True):
        words += ["--kv-event-source", f"{url}={seen_from_here(config.endpoint)}"]
        if config.replay_endpoint and can_reach(config.replay_endpoint):
            words += ["--kv-event-replay-source", f"{url}={seen_from_here(config.replay_endpoint)}"]
    return words


def router_command(
    name: RouterName,
    host: str,
    port: int,
    metrics_port: int,
    urls: Sequence[str],
    origins: Sequence[str],
    events: Sequence[KvEventsConfig],
    options: ServeOptions,
) -> list[str]:
    """What starts a router.

    Args:
        host, port: where it listens.
        metrics_port: where it serves its own metrics, on this machine only.
        urls: the replicas.
        origins: the websites whose pages may use it; "*" for all.
        events: where each replica publishes them; empty if none does.
        options: of the replicas. One that has `max_num_seqs` more requests than another gets no more,
            whatever it has in its cache.

    Raises:
        ValueError: as `choose_policy` does.
    """
    policy = choose_policy(options, name)
    values = {
        "host": f"[{host}]" if ":" in host else host,
        "port": port,
        "prometheus-host": "127.0.0.1",
        "prometheus-port": metrics_port,
        "log-level": LOG_LEVELS[name],
        "policy": policy,
        "balance-abs-threshold": options.max_num_seqs,
        "health-check-endpoint": "/ready",
        "health-check-interval-secs": HEALTH_SECONDS,
        "cb-failure-threshold": NUM_FAILURES,
        "cb-timeout-duration-secs": PAUSE_SECONDS,
    }
    words = [word for key, value in values.items() for word in (f"--{key}", str(value))]
    if policy == "kv_aware":
        words += event_options(urls, events, options)
    lists = ["--worker-urls", *urls, "--cors-allowed-origins", *([] if "*" in origins else origins)]
    return [sys.executable, "-m", f"{name}_router.launch_router", *words, *lists]


def router_environment() -> dict[str, str]:
    """The environment of a router. It must not ask a proxy for servers on this machine."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", "NO_PROXY": "127.0.0.1"}
