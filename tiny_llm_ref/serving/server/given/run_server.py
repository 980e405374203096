"""Run the application: listen, answer, and end in order."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from sse_starlette.sse import AppStatus

from ...engine import Engine
from .app import create_app
from .config import ServerConfig
from .engine_client import EngineClient
from .text_codec import ChatTokenizer

log = logging.getLogger("tiny_llm.server")
SIGNALLED = 128  # what shells add to a signal's number


class DrainingServer(uvicorn.Server):
    """A server that lets running requests end after the first signal, and exits at once after the second."""

    client: EngineClient | None = None
    is_signalled = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle SIGINT or SIGTERM."""
        if self.is_signalled:
            os._exit(SIGNALLED + sig)
        self.is_signalled = True
        if self.client is not None:
            self.client.begin_draining()
            log.info("draining: requests that have begun will end; a second signal exits at once")

    async def on_tick(self, counter: int) -> bool:
        """Say whether to exit: after a signal, once no request is left. Until then new ones get a 503."""
        is_drained = self.client is None or not self.client.admission.num_reqs
        return await super().on_tick(counter) or (self.is_signalled and is_drained)

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
            log.info(
                "ready: %s on http://%s:%d",
                ", ".join(client.config.model_names),
                self.config.host,
                self.config.port,
            )
        await client.stopped.wait()
        self.should_exit = True


def run_server(
    make_engine: Callable[[], Engine], load_tokenizer: Callable[[], ChatTokenizer], config: ServerConfig
) -> str | None:
    """Serve until a signal comes or the engine fails.

    Args:
        make_engine, load_tokenizer, config: as for `create_app`.

    Returns:
        Why the engine failed while it was serving; None if it did not.

    Raises:
        ValueError: the address is in use, or is not one of this machine's; or no engine could be made.
    """
    # It would cut streams off at the first signal.
    AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]
    with listen(config.host, config.port) as listener:
        host, port = listener.getsockname()[:2]
        app = create_app(make_engine, load_tokenizer, config, on_start=lambda client: server.watch(client))
        server = DrainingServer(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="on",
            )
        )
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
