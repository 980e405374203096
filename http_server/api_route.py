"""A path of the API: what answers it, and what /openapi.json says of it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from inspect import getdoc
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

QUESTION = [{"role": "user", "content": "Who made the world?"}]
STREAMED_USAGE = {"stream": True, "stream_options": {"include_usage": True}}
"""Of examples."""


@dataclass(frozen=True)
class ApiRoute:
    """One path, for one method.

    Attributes:
        path: as Starlette has it, such as /v1/models/{name:path}.
        answer: answers a request. The first line of its docstring says what it does.
        response: type of the body of a response.
        request: type of the body of a request; None for GET.
        event: type of the data of an event, if the path can stream.
        examples: bodies of requests without the model.
    """

    path: str
    answer: Callable[[Request], Awaitable[Response]]
    response: Any
    request: Any = None
    event: Any = None
    examples: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def method(self) -> str:
        """GET or POST."""
        return "GET" if self.request is None else "POST"

    @property
    def summary(self) -> str:
        """What it does."""
        return (getdoc(self.answer) or "").partition("\n")[0]

    @property
    def route(self) -> Route:
        """The path for Starlette."""
        return Route(self.path, self.answer, methods=[self.method])
