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
from .anthropic_endpoint import AnthropicEndpoint
from .anthropic_fields import CUSTOM, MessagesRequest
from .chat import ChatEndpoint
from .completion_objects import ModelCard, ModelList, Status, Version
from .completions import CompletionEndpoint
from .config import ServerConfig
from .engine_client import EngineClient
from .errors import ApiError, on_api_error, on_http_error, on_other_error
from .event_stream import EventStream
from .fields import ChatRequest, CompletionRequest
from .ignored_fields import IGNORED
from .openapi import VERSION, openapi
from .page import page
from .response_endpoint import ResponseEndpoint
from .response_fields import ResponsesRequest
from .serve_completion import serve_completion
from .server import Server, as_json, server_of
from .text_codec import ChatTokenizer, TextCodec
from .tokenize import count_tokens, detokenize, tokenize

CLIENT_CLOSED_REQUEST = 499


def create_app(
    make_engine: Callable[[], Engine],
    load_tokenizer: Callable[[], ChatTokenizer],
    config: ServerConfig,
    on_start: Callable[[EngineClient], None] = lambda client: None,
) -> Starlette:
    """Make the application. It loads nothing until it is started.

    Args:
        make_engine: loads a model and makes an engine; called in the engine's thread, and again after a
            failed step.
        load_tokenizer: loads another tokenizer, for the event loop.
        config: the settings.
        on_start: called with the engine's client once it exists.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        client = EngineClient(make_engine, config)
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
            Route("/health", health),
            Route("/ready", ready),
            Route("/openapi.json", describe),
            Route("/metrics", metrics),
            Route("/version", version),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", one_model),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
            Route("/v1/responses", responses, methods=["POST"]),
            Route("/v1/messages", messages, methods=["POST"]),
            Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/detokenize", detokenize, methods=["POST"]),
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


async def health(http: Request) -> Response:
    """Whether the server is alive: 200 while it loads and drains, 503 if the engine's thread has ended."""
    client = server_of(http).client
    if client.state == "stopped":
        raise ApiError(503, f"the engine has stopped: {client.error}", code="stopped")
    return as_json(Status("ok"))


async def ready(http: Request) -> Response:
    """Whether the server takes requests: 503 while it loads or drains."""
    server_of(http).client.check_ready()
    return as_json(Status("ready"))


async def metrics(http: Request) -> Response:
    """Metrics for Prometheus."""
    return Response(server_of(http).client.metrics.text(), media_type="text/plain; version=0.0.4")


async def version(http: Request) -> Response:
    """The version of the project."""
    return as_json(Version(VERSION))


async def events(http: Request) -> Response:
    """What the engine does, for the page: a stream without end."""
    server = server_of(http)
    return EventStream(server.client.feed.events(server.client), lambda: None, server.config)


async def describe(http: Request) -> Response:
    """The description of the protocol."""
    return as_json(openapi(server_of(http).config.model_names))


async def models(http: Request) -> Response:
    """All models."""
    server = server_of(http)
    return as_json(ModelList([card(server, name) for name in server.config.model_names]))


async def one_model(http: Request) -> Response:
    """One model."""
    server = server_of(http)
    name = http.path_params["name"]
    server.check_model(name)
    return as_json(card(server, name))


async def completions(http: Request) -> Response:
    """Continue prompts."""
    server = server_of(http)
    request = await server.body(http, CompletionRequest)
    return await serve_completion(http, server.client, CompletionEndpoint(request, server.codec))


async def chat_completions(http: Request) -> Response:
    """Answer a conversation."""
    server = server_of(http)
    request = await server.body(http, ChatRequest)
    return await serve_completion(http, server.client, ChatEndpoint(request, server.codec))


async def responses(http: Request) -> Response:
    """Answer a conversation, in the newer protocol."""
    server = server_of(http)
    request = await server.body(http, ResponsesRequest)
    http.scope[IGNORED] += [
        f"tools[].type={tool.type}" for tool in request.tools or () if tool.type != "function"
    ]
    endpoint = ResponseEndpoint(request, server.codec)
    return await serve_completion(http, server.client, endpoint, endpoint.answer)


async def messages(http: Request) -> Response:
    """Answer a conversation, in Anthropic's protocol."""
    server = server_of(http)
    request = await server.body(http, MessagesRequest)
    http.scope[IGNORED] += [
        f"tools[].type={tool.type}" for tool in request.tools or () if tool.type not in CUSTOM
    ]
    endpoint = AnthropicEndpoint(request, server.codec)
    return await serve_completion(http, server.client, endpoint, endpoint.answer)


def card(server: Server, name: str) -> ModelCard:
    """What /v1/models says of a model."""
    return ModelCard(name, server.created, server.client.max_model_len)
