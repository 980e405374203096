"""/health, /ready and /version: what can be known of the server without a request for its model."""

from starlette.requests import Request
from starlette.responses import Response

from .. import VERSION
from ..api_route import ApiRoute
from ..completion_objects import Status, Version
from ..errors import ApiError
from ..server import as_json, server_of


async def health(http: Request) -> Response:
    """Whether the server is alive.

    200 while it loads and drains, 503 if the engine's thread has ended.
    """
    client = server_of(http).client
    if client.state == "stopped":
        raise ApiError(503, f"the engine has stopped: {client.error}", code="stopped")
    return as_json(Status("ok"))


async def ready(http: Request) -> Response:
    """Whether the server takes requests.

    503 while it loads or drains.
    """
    server_of(http).client.check_ready()
    return as_json(Status("ready"))


async def version(http: Request) -> Response:
    """Which version this is."""
    return as_json(Version(VERSION))


ROUTES = (
    ApiRoute("/version", version, Version),
    ApiRoute("/health", health, Status),
    ApiRoute("/ready", ready, Status),
)
