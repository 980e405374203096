"""Servers for tests: in this process on a fake model, over real sockets or over none."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from http_server.app import create_app
from http_server.config import ServerConfig
from http_server.engine_client import EngineClient
from http_server.run_server import listen
from tests.support.server_engines import SECONDS, ChatFake, make_engine
from tiny_llm import Engine, SchedulerConfig

MODEL = "fake"


def app_of(
    make: Callable[[], Engine] = make_engine, names: tuple[str, ...] = (MODEL, "alias"), **settings: Any
) -> Starlette:
    """An application on a fake model."""
    config = ServerConfig(names, SchedulerConfig(8, 4), **settings)
    return create_app(make, ChatFake, config)


def client_of(app: Starlette) -> EngineClient:
    """The engine of an application that is running."""
    client = app.state.server.client
    assert isinstance(client, EngineClient)
    return client


def wait_for(condition: Callable[[], bool], what: str = "the server") -> None:
    """Wait until something is true."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, f"{what} took more than {SECONDS} s"
        time.sleep(0.002)


class Deadline:
    """End a request that would wait forever. A client without sockets has no timeout of its own.

    On an emulated GPU, an answer may take most of a minute.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = self.app(scope, receive, send)
        await (asyncio.wait_for(work, 5 * SECONDS) if scope["type"] == "http" else work)


@contextmanager
def in_memory(app: Starlette) -> Iterator[TestClient]:
    """A client without sockets."""
    app.add_middleware(Deadline)
    with TestClient(app, "http://localhost", raise_server_exceptions=False) as client:
        wait_for(lambda: client.get("/ready", headers={"Authorization": "Bearer k"}).status_code == 200)
        yield client


@contextmanager
def on_socket(app: Starlette, send_buffer: int | None = None, **settings: Any) -> Iterator[str]:
    """The address of an application served by uvicorn, whose sockets may have a small buffer."""
    listener = listen("127.0.0.1", 0)
    if send_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on", **settings))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        wait_for(lambda: is_ready(url))
        yield url
    finally:
        server.should_exit = True
        thread.join(SECONDS)
        assert not thread.is_alive()


def is_ready(url: str) -> bool:
    """Whether a server takes requests."""
    try:
        return httpx2.get(f"{url}/ready", timeout=SECONDS).status_code == 200
    except httpx2.TransportError:
        return False
