"""Start replicas of a server and a router in front of them, and end all of them together."""

import http.client
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from http_server.kv_events_config import written
from http_server.run_server import listen
from scripts.errors import SIGNALLED, USAGE_EXIT_CODE, handled
from scripts.run.child_process import ChildProcess
from scripts.run.ranks import free_ports, how_it_ended, lifeline, stopped_at_exit, wait_until
from scripts.run.routers import default_router, require_router, router_command, router_environment
from scripts.run.serve_options import ServeOptions

REPLICA = "TINY_LLM_REPLICA"
"""In a replica's environment, its number."""
LOCAL = "127.0.0.1"
TETHERED = Path(__file__).with_name("tethered.py")
START_POLL_SECONDS = 0.1
ASK_SECONDS = 5.0
GRACE_SECONDS = 30.0
"""How long a replica may take to end after it has cut its answers off."""
STOP_SECONDS = 5.0
"""How long a router may take to end."""


@dataclass(frozen=True)
class Member:
    """A process that is to be started.

    Attributes:
        name: of the process, for the log.
        command, env: what it runs, and with which environment.
        host, port, path: a GET of this succeeds once it takes requests.
    """

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    host: str
    port: int
    path: str

    def is_ready(self, headers: Mapping[str, str]) -> bool:
        """Whether it takes requests."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=ASK_SECONDS)
        try:
            connection.request("GET", self.path, headers=dict(headers))
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def replica_number() -> int | None:
    """The number of this process, counted from 1, if `run_replicas` has started it."""
    return int(os.environ[REPLICA]) if REPLICA in os.environ else None


def run_replicas(options: ServeOptions, command: Sequence[str]) -> int:
    """Run a command once per replica, and a router that shares requests among them, until a signal comes.

    The first replica starts alone. It refuses what all would refuse, and compiles and times kernels for all.
    The first SIGINT, SIGTERM or SIGHUP lets answers end that have begun; after a second one, all end at once.
    If this process ends, all do. A replica that ends is reported, and the others go on.

    Args:
        options: how many replicas, which router, and where that listens.
        command: starts a server. It gets a --host and a --port more, and a --kv-events-config if it has one.

    Returns:
        The exit code: 0 after a signal; 128 more than the second one's number; 2 if a replica refused its
        options; 1 if one didn't start for another reason, if the router ended, or if all replicas did.

    Raises:
        ValueError: the router is not installed, can't listen at the address, or can't follow the events; or
            the replicas can't have an endpoint each for them.
    """
    plan = members(options, command)
    headers = {} if options.api_key is None else {"Authorization": f"Bearer {options.api_key}"}
    title = f"ready: {', '.join(options.names)} on http://{options.host}:{plan[-1].port}"
    return run_members(plan, title, headers, options.timeout_graceful_shutdown)


def run_members(plan: Sequence[Member], title: str, headers: Mapping[str, str], timeout: float) -> int:
    """Run the replicas and the router of a plan, as `run_replicas` does, and return the exit code.

    Args:
        plan: the replicas, then the router.
        title: printed once all take requests.
        headers: of requests that ask whether they do.
        timeout: seconds after which a replica that was asked to end cuts its answers off.
    """
    children: list[ChildProcess] = []
    signals: list[int] = []
    with stopped_at_exit(children), handled(lambda number, _: signals.append(number)), lifeline() as pipe:
        code = start(plan, headers, pipe, children, signals)
        if code is None:
            print(title, file=sys.stderr)
            code = watch(children, signals)
        if signals:
            code = drain(children, signals, timeout)
    for child in children:
        child.finish_output()
    return code


def members(options: ServeOptions, command: Sequence[str]) -> list[Member]:
    """The replicas, then the router. Raises ValueError as `run_replicas` does."""
    name = options.router or default_router()
    require_router(name)
    with listen(options.host, options.port) as listener:  # or refuse, before anything has started
        host, port = listener.getsockname()[:2]
    metrics_port, *ports = free_ports(options.replicas + 1)
    threads = str(max(1, (os.cpu_count() or 1) // (options.replicas * options.ranks)))
    env = {"TINY_LLM_THREADS": threads} | os.environ
    own = {"0.0.0.0": LOCAL, "::": "::1"}.get(host, host)
    names = (f"[{own}]" if ":" in own else own, "localhost")
    origins = [*(f"http://{each}:{port}" for each in names), *(options.allowed_origins or ())]
    allowed = [word for origin in origins for word in ("--allowed-origins", origin)]
    events = [] if options.kv_events is None else options.kv_events.of_replicas(options.replicas)
    published = [["--kv-events-config", written(each)] for each in events] or [[]] * options.replicas
    replicas = [
        Member(
            f"replica {number}",
            [*command, "--host", LOCAL, "--port", str(replica_port), *allowed, *publishing],
            env | {REPLICA: str(number)},
            LOCAL,
            replica_port,
            "/ready",
        )
        for number, (replica_port, publishing) in enumerate(zip(ports, published, strict=True), 1)
    ]
    urls = [f"http://{LOCAL}:{replica_port}" for replica_port in ports]
    start = router_command(name, host, port, metrics_port, urls, origins, events, options)
    tethered = [sys.executable, "-I", str(TETHERED), *start]
    return [*replicas, Member("router", tethered, router_environment(), own, port, "/readiness")]


def ended(children: Sequence[ChildProcess]) -> list[ChildProcess]:
    """The processes that have ended."""
    return [child for child in children if child.poll() is not None]


def start(
    plan: Sequence[Member],
    headers: Mapping[str, str],
    pipe: int,
    children: list[ChildProcess],
    signals: Sequence[int],
) -> int | None:
    """Start the first replica, then the others, then the router, and wait until each takes requests.

    Args:
        headers: of requests that ask whether they do.
        pipe: the lifeline.
        children: gets what is started.
        signals: those that have come; after one, nothing more starts.

    Returns:
        The exit code if a process has ended or a signal has come; None if all take requests.
    """
    for group in (plan[:1], plan[1:-1], plan[-1:]):
        children.extend(ChildProcess(each.command, each.env, pipe, each.name) for each in group)

        def is_settled(group: Sequence[Member] = group) -> bool:
            return bool(signals or ended(children)) or all(each.is_ready(headers) for each in group)

        wait_until(is_settled, poll_seconds=START_POLL_SECONDS)
        if signals:
            return 0
        for child in ended(children):
            if child.returncode == USAGE_EXIT_CODE:  # it has said why
                return USAGE_EXIT_CODE
            print(f"error: {child.name} {how_it_ended(child.returncode)}; all were stopped", file=sys.stderr)
            return 1
    return None


def watch(children: Sequence[ChildProcess], signals: Sequence[int]) -> int:
    """Wait until a signal comes, the router has ended, or all replicas have. Report each process that ends.

    Returns:
        The exit code: 0 after a signal, else 1.
    """
    *replicas, router = children
    lost: list[ChildProcess] = []
    while router not in lost and len(lost) < len(replicas):
        wait_until(lambda: signals or len(ended(children)) > len(lost))
        if signals:
            return 0
        for child in ended(children):
            if child not in lost:
                lost.append(child)
                is_end = child is router or len(lost) == len(replicas)
                rest = "all were stopped" if is_end else "the others go on"
                print(f"error: {child.name} {how_it_ended(child.returncode)}; {rest}", file=sys.stderr)
    return 1


def drain(children: Sequence[ChildProcess], signals: Sequence[int], timeout: float) -> int:
    """Let answers end that have begun, within a time and unless another signal comes, and then the router.

    Returns:
        The exit code.
    """
    for group, seconds in ((children[:-1], timeout + GRACE_SECONDS), (children[-1:], STOP_SECONDS)):
        for child in group:
            child.send_signal(signal.SIGTERM)

        def has_ended(group: Sequence[ChildProcess] = group) -> bool:
            return len(signals) > 1 or len(ended(group)) == len(group)

        wait_until(has_ended, seconds)
    return SIGNALLED + signals[1] if len(signals) > 1 else 0
