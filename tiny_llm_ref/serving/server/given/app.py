"""The application: which path does what, and how it starts and ends."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import time
from typing import TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ...engine import Engine
from ..disconnects import ClientGoneError
from .access import guards
from .body import read_body
from .chat import ChatEndpoint
from .completions import CompletionEndpoint
from .config import ServerConfig
from .conversation import encode_messages
from .engine_client import EngineClient
from .errors import JSON, ApiError, on_api_error, on_http_error, on_other_error
from .fields import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from .openapi import openapi
from .page import page
from .response_endpoint import ResponseEndpoint
from .response_fields import ResponsesRequest
from .responses import DetokenizedText, ModelCard, ModelList, Status, Tokens
from .serve_completion import EventStream, serve_completion
from .text_codec import ChatTokenizer, TextCodec

log = logging.getLogger("tiny_llm.server")
T = TypeVar("T")
CLIENT_CLOSED_REQUEST = 499


@dataclass
class Server:
    """What the endpoints use.

    Attributes:
        config: the settings.
        client: the engine.
        codec: the tokenizer.
        created: when the server started, in seconds since 1970.
    """

    config: ServerConfig
    client: EngineClient
    codec: TextCodec
    created: int

    async def body(self, http: Request, kind: type[T]) -> T:
        """Read and check the body of a request, and the model that it asks for."""
        body = await read_body(http, kind, self.config.max_body_bytes)
        self.check_model(getattr(body, "model", None))
        return body

    def check_model(self, name: str | None) -> None:
        """Raise ApiError with status 404 for a model that is not served here."""
        if name is not None and name not in self.config.model_names:
            names = ", ".join(self.config.model_names)
            message = f"the model {name!r} does not exist: this server has {names}"
            raise ApiError(404, message, "model", "model_not_found")


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
            await client.stop()
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
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", one_model),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
            Route("/v1/responses", responses, methods=["POST"]),
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
    endpoint = ResponseEndpoint(request, server.codec)
    return await serve_completion(http, server.client, endpoint, endpoint.answer)


async def tokenize(http: Request) -> Response:
    """Turn text into token ids."""
    server = server_of(http)
    request = await server.body(http, TokenizeRequest)
    server.client.check_ready()
    if (request.prompt is None) == (request.messages is None):
        raise ApiError(400, "give either prompt or messages", "prompt", "invalid_value")
    try:
        ids = await token_ids(server.codec, request)
    except ValueError as error:
        field = "prompt" if request.messages is None else "messages"
        raise ApiError(400, str(error), field, "invalid_value") from None
    return as_json(Tokens(list(ids), len(ids), server.client.max_model_len))


async def token_ids(codec: TextCodec, request: TokenizeRequest) -> tuple[int, ...]:
    """Token ids of a prompt, which may be empty, or of messages."""
    if request.messages is not None:
        options = {"add_generation_prompt": request.add_generation_prompt}
        return await encode_messages(codec, request.messages, request.tools or (), options)
    return await codec.encode(request.prompt, request.add_special_tokens) if request.prompt else ()


async def detokenize(http: Request) -> Response:
    """Turn token ids into text."""
    server = server_of(http)
    request = await server.body(http, DetokenizeRequest)
    server.client.check_ready()
    vocab_size = server.client.vocab_size
    for place, token in enumerate(request.tokens):
        if token >= vocab_size:
            message = f"token {token} does not exist: the vocabulary ends with {vocab_size - 1}"
            raise ApiError(400, message, f"tokens[{place}]", "invalid_value")
    return as_json(DetokenizedText(await server.codec.decode(request.tokens)))


def server_of(http: Request) -> Server:
    """What the endpoints of this application use."""
    server = http.app.state.server
    assert isinstance(server, Server)
    return server


def card(server: Server, name: str) -> ModelCard:
    """What /v1/models says of a model."""
    return ModelCard(name, server.created, server.client.max_model_len)


def as_json(content: object) -> Response:
    """A response of JSON."""
    return Response(msgspec.json.encode(content), media_type=JSON)
