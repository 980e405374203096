"""Run the application: listen, answer, and end in order."""

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from sse_starlette.sse import AppStatus

from tiny_llm.engine.engine import Engine
from tiny_llm.ranks.run_rank import LOST_SIGNAL

from .app import create_app
from .config import ServerConfig
from .engine_client import EngineClient
from .slow_heads import ImpatientProtocol
from .text_codec import ChatTokenizer

if TYPE_CHECKING:
    from .kv_events import KvEventPublisher

log = logging.getLogger("tiny_llm.server")
SIGNALLED = 128  # what shells add to a signal's number
KEEP_ALIVE_SECONDS = 75
"""How long an idle connection stays open. It must be longer than clients keep theirs, or one may send a
request just as the server closes the connection. uvicorn's 5 seconds are exactly those of httpx."""
CLOSING_SECONDS = 5
"""How long clients may take to read the rest of their answers, once all answers have ended."""


class DrainingServer(uvicorn.Server):
    """A server that lets running requests end after the first signal, and exits at once after the second."""

    client: EngineClient | None = None
    notes: Sequence[str] = ()  # logged once it is ready
    deadline: float | None = None  # when draining cuts answers off; None before a signal

    is_lost = False

    def handle_loss(self, sig: int, frame: FrameType | None) -> None:
        """Handle `LOST_SIGNAL`: let all answers end with an error, and exit. No step could be computed."""
        self.is_lost = True
        self.deadline = time.monotonic()
        if self.client is not None:
            self.client.begin_draining()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle SIGINT or SIGTERM."""
        if sig == signal.SIGINT and sys.stderr.isatty():
            print(file=sys.stderr)  # the terminal has written ^C
        if self.deadline is not None:
            os._exit(SIGNALLED + sig)
        self.deadline = time.monotonic() + self.drain_timeout
        if self.client is not None:
            self.client.begin_draining()
            log.info("draining: requests that have begun will end; a second signal exits at once")

    @property
    def drain_timeout(self) -> float:
        """Seconds from the first signal to the deadline."""
        return 0.0 if self.client is None else self.client.config.timeout_graceful_shutdown

    async def on_tick(self, counter: int) -> bool:
        """Say whether to exit: after a signal, once no request is left. Until then new ones get a 503."""
        should_exit = await super().on_tick(counter)
        if self.deadline is None:
            return should_exit
        if time.monotonic() >= self.deadline:
            self._cut_off()
        return should_exit or self.client is None or not self.client.admission.num_reqs

    def _cut_off(self) -> None:
        num_cut_off = 0 if self.client is None else self.client.cut_off()
        if num_cut_off and self.is_lost:
            log.warning("another rank has ended: %d answers end with an error", num_cut_off)
        elif num_cut_off:
            log.warning("draining took %g s: %d answers are cut off", self.drain_timeout, num_cut_off)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the connections, in the end even those whose clients do not read."""
        asyncio.get_running_loop().call_later(CLOSING_SECONDS, self._end_streams)
        await super().shutdown(sockets)

    def _end_streams(self) -> None:
        number = len(self.server_state.connections)
        if number:
            log.warning("clients that did not read their answers within %d s: %d", CLOSING_SECONDS, number)
        AppStatus.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then watch the engine's thread."""
        await super().startup(sockets)
        if self.client is not None:
            self._watching = asyncio.get_running_loop().create_task(self._exit_with(self.client))

    def watch(self, client: EngineClient) -> None:
        """Note the engine's client."""
        self.client = client

    async def _exit_with(self, client: EngineClient) -> None:
        await client.ready.wait()
        if client.loaded is not None:
            host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
            names = ", ".join(client.config.model_names)
            log.info("ready: %s on http://%s:%d", names, host, self.config.port)
            for note in self.notes:
                log.info("%s", note)
        await client.stopped.wait()
        self.should_exit = True


def run_server(
    make_engine: Callable[[], Engine],
    load_tokenizer: Callable[[], ChatTokenizer],
    config: ServerConfig,
    notes: Sequence[str] = (),
    publisher: "KvEventPublisher | None" = None,
) -> str | None:
    """Serve until a signal comes or the engine fails.

    Args:
        make_engine, load_tokenizer, config: as for `create_app`.
        notes: lines to log below the one that says where it listens.
        publisher: publishes what the prefix cache holds; None for no one.

    Returns:
        Why the engine failed while it was serving; None if it did not.

    Raises:
        ValueError: the address is in use, or is not one of this machine's; or no engine could be made.
    """
    # It would cut streams off at the first signal.
    AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]
    with listen(config.host, config.port) as listener, publisher or nullcontext():
        host, port = listener.getsockname()[:2]
        after_step = None if publisher is None else publisher.publish
        app = create_app(make_engine, load_tokenizer, config, lambda client: server.watch(client), after_step)
        server = DrainingServer(
            uvicorn.Config(
                app,
                http=ImpatientProtocol,
                host=host,
                port=port,
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="on",
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=CLOSING_SECONDS + 1,
            )
        )
        server.notes = notes
        if threading.current_thread() is threading.main_thread():  # no other may handle signals
            signal.signal(LOST_SIGNAL, server.handle_loss)
        server.run(sockets=[listener])
    client = server.client
    if client is not None and client.loaded is None and client.error is not None:
        raise ValueError(client.error)
    return None if client is None else client.error


def listen(host: str, port: int) -> socket.socket:
    """Open a socket that listens; port 0 takes a free one.

    Raises:
        ValueError: that is not possible; shows the address and the reason.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's delay off only for sockets that name their protocol
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()  # two sockets may be bound to an address, but only one may listen
    except (OSError, OverflowError) as error:
        listener.close()
        raise ValueError(
            f"cannot listen on {host}:{port}: {error}; choose another --host or --port"
        ) from None
    return listener
