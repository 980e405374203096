"""What the endpoints of the application share."""

import asyncio
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from .body import read_body
from .config import ServerConfig
from .engine_client import EngineClient
from .errors import JSON, ApiError
from .text_codec import TextCodec

T = TypeVar("T")
MAX_TEXTS = 2
"""How many requests that need nothing but the tokenizer may be in its queue."""


@dataclass
class Server:
    """What the endpoints use.

    Attributes:
        config: the settings.
        client: the engine.
        codec: the tokenizer.
        created: when the server started, in seconds since 1970.
        texts: held by requests that need nothing but the tokenizer.
    """

    config: ServerConfig
    client: EngineClient
    codec: TextCodec
    created: int
    texts: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_TEXTS))

    async def body(self, http: Request, kind: type[T], max_bytes: int | None = None) -> T:
        """Read and check the body of a request, and the model that it asks for."""
        body = await read_body(http, kind, max_bytes or self.config.max_body_bytes, self.config.body_timeout)
        self.check_model(getattr(body, "model", None))
        return body

    def check_model(self, name: str | None) -> None:
        """Raise ApiError with status 404 for a model that is not served here."""
        if name is not None and name not in self.config.model_names:
            names = ", ".join(self.config.model_names)
            message = f"the model {name!r} does not exist: this server has {names}"
            raise ApiError(404, message, "model", "model_not_found")


def server_of(http: Request) -> Server:
    """What the endpoints of this application use."""
    server = http.app.state.server
    assert isinstance(server, Server)
    return server


def as_json(content: object) -> Response:
    """A response of JSON."""
    return Response(msgspec.json.encode(content), media_type=JSON)
