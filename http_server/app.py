"""The application: which path does what, and how it starts and ends."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import time

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from tiny_llm.engine.engine import Engine
from tiny_llm.server.disconnects import ClientGoneError

from .access import guards
from .api import API
from .config import ServerConfig
from .engine_client import EngineClient
from .errors import ApiError, on_api_error, on_http_error, on_other_error
from .event_stream import EventStream
from .openapi import openapi
from .page import page
from .server import Server, as_json, server_of
from .text_codec import ChatTokenizer, TextCodec

CLIENT_CLOSED_REQUEST = 499


def create_app(
    make_engine: Callable[[], Engine],
    load_tokenizer: Callable[[], ChatTokenizer],
    config: ServerConfig,
    on_start: Callable[[EngineClient], None] = lambda client: None,
    after_step: Callable[[], None] | None = None,
) -> Starlette:
    """Make the application. It loads nothing until it is started.

    Args:
        make_engine: loads a model and makes an engine; called in the engine's thread, and again after a
            failed step.
        load_tokenizer: loads another tokenizer, for the event loop.
        config: the settings.
        on_start: called with the engine's client once it exists.
        after_step: as for `EngineClient`.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        client = EngineClient(make_engine, config, after_step)
        codec = TextCodec(load_tokenizer)
        app.state.server = Server(config, client, codec, int(time()))
        on_start(client)
        try:
            yield
        finally:
            try:
                await client.stop()
            finally:
                codec.close()

    return Starlette(
        routes=[
            Route("/", page),
            Route("/page/{name}", page),
            Route("/events", events),
            Route("/openapi.json", describe),
            Route("/metrics", metrics),
            *(each.route for each in API),
        ],
        middleware=guards(config),
        lifespan=lifespan,
        exception_handlers={
            ApiError: on_api_error,
            ClientGoneError: on_client_gone,
            ClientDisconnect: on_client_gone,
            HTTPException: on_http_error,
            Exception: on_other_error,
        },
    )


async def on_client_gone(request: Request, error: Exception) -> Response:
    """Answer a client that has gone; the answer is not sent."""
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def metrics(http: Request) -> Response:
    """Metrics for Prometheus."""
    return Response(server_of(http).client.metrics.text(), media_type="text/plain; version=0.0.4")


async def events(http: Request) -> Response:
    """What the engine does, for the page: a stream without end."""
    server = server_of(http)
    return EventStream(server.client.feed.events(server.client), lambda: None, server.config)


async def describe(http: Request) -> Response:
    """The description of the protocol."""
    return as_json(openapi(server_of(http).config.model_names))
