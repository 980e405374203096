"""The routers that `pdm run serve --replicas` can start, none of which is ours, and their options."""

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Literal

RouterName = Literal["vllm", "sglang"]
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


def router_command(
    name: RouterName,
    host: str,
    port: int,
    metrics_port: int,
    urls: Sequence[str],
    origins: Sequence[str],
    max_num_seqs: int,
) -> list[str]:
    """What starts a router.

    Args:
        host, port: where it listens.
        metrics_port: where it serves its own metrics, on this machine only.
        urls: the replicas.
        origins: the websites whose pages may use it; "*" for all.
        max_num_seqs: requests that a replica runs at once. One that has so many more than another gets no
            more, whatever it has in its cache.
    """
    options = {
        "host": f"[{host}]" if ":" in host else host,
        "port": port,
        "prometheus-host": "127.0.0.1",
        "prometheus-port": metrics_port,
        "log-level": LOG_LEVELS[name],
        "policy": "cache_aware",
        "balance-abs-threshold": max_num_seqs,
        "health-check-endpoint": "/ready",
        "health-check-interval-secs": HEALTH_SECONDS,
        "cb-failure-threshold": NUM_FAILURES,
        "cb-timeout-duration-secs": PAUSE_SECONDS,
    }
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    lists = ["--worker-urls", *urls, "--cors-allowed-origins", *([] if "*" in origins else origins)]
    return [sys.executable, "-m", f"{name}_router.launch_router", *words, *lists]


def router_environment() -> dict[str, str]:
    """The environment of a router. It must not ask a proxy for servers on this machine."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", "NO_PROXY": "127.0.0.1"}
