"""Who may use the server."""

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import ApiError

OPEN_PATHS = ("/", "/health", "/ready")
OPEN_FOLDER = "/page/"


class RequireKey:
    """Let only requests with the API key through, except for the page and the health checks.

    Args:
        app: the application behind it.
        api_key: what clients must send as a bearer token.
    """

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self.app = app
        self._expected = f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401. Comparing takes the same time wherever the keys differ."""
        if scope["type"] == "http" and not is_open(scope["path"]):
            sent = Headers(scope=scope).get("authorization", "")
            if not hmac.compare_digest(sent.encode(), self._expected):
                error = ApiError(401, "the API key is missing or wrong", code="invalid_api_key")
                await error.response()(scope, receive, send)
                return
        await self.app(scope, receive, send)


def is_open(path: str) -> bool:
    """Whether a path needs no key."""
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)
