"""Who may use the server."""

import hmac
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from .config import LOOPBACK, ServerConfig
from .errors import ApiError
from .ignored_fields import HEADER, NameIgnored

OPEN_PATHS = ("/", "/health", "/ready")
OPEN_FOLDER = "/page/"


def guards(config: ServerConfig) -> list[Middleware]:
    """What a request passes on its way to the application, the outermost first.

    A browser asks whether a page may send a request before it sends it (a preflight). It asks without the
    key, so that is answered before the key is checked. In front of that is only the check against DNS
    rebinding, since allowing a website says nothing about names that lead to this machine.

    Without a key, every page that someone opens on this machine could make it compute. It needs no preflight
    for a POST of plain text, and doesn't mind that it can't read the answer.
    """
    found = []
    if config.api_key is None and config.host in LOOPBACK:
        found.append(Middleware(RequireName, names=LOOPBACK))
    if config.allowed_origins:
        found.append(cross_origin(config.allowed_origins))
    if config.api_key is None and "*" not in config.allowed_origins:
        found.append(Middleware(RefuseOtherSites, allowed=config.allowed_origins))
    if config.api_key is not None:
        found.append(Middleware(RequireKey, api_key=config.api_key))
    return [*found, Middleware(NameIgnored)]


def cross_origin(origins: Collection[str]) -> Middleware:
    """Let pages of other websites read responses (CORS), and send the headers that clients use."""
    return Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=("GET", "POST"),
        allow_headers=("*",),
        allow_private_network=True,  # a public website may talk to a server on loopback
        expose_headers=("Retry-After", HEADER),
    )


class RequireKey:
    """Let only requests with the API key through, except for the page and the health checks.

    Args:
        app: the application behind it.
        api_key: what clients must send, as a bearer token or, as Anthropic's clients do, by itself.
    """

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self.app = app
        self._expected = {"authorization": f"Bearer {api_key}".encode(), "x-api-key": api_key.encode()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401. Comparing takes the same time wherever the keys differ."""
        if scope["type"] == "http" and not is_open(scope["path"]):
            headers = Headers(scope=scope)
            sent = {name: headers.get(name, "").encode("latin-1") for name in self._expected}
            if not any(hmac.compare_digest(sent[name], key) for name, key in self._expected.items()):
                error = ApiError(401, "the API key is missing or wrong", code="invalid_api_key")
                await error.response()(scope, receive, send)
                return
        await self.app(scope, receive, send)


class RequireName:
    """Let only requests through that name this machine as the server they want.

    A page of another website cannot read what a server on loopback answers, unless its own name is made to
    lead to this machine (DNS rebinding). Then its requests carry that name.

    Args:
        app: the application behind it.
        names: of this machine.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self.app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 400."""
        if scope["type"] == "http" and host_of(scope) not in self._names:
            message = (
                f"this server answers only requests to {', '.join(self._names)}: set --api-key for others"
            )
            await ApiError(400, message, "Host", "invalid_host").response()(scope, receive, send)
            return
        await self.app(scope, receive, send)


class RefuseOtherSites:
    """Let no request through that a page of another website sends, unless its website is allowed.

    Programs other than browsers say nothing about websites, and are let through. So are links to this server.

    Args:
        app: the application behind it.
        allowed: the websites that are allowed.
    """

    def __init__(self, app: ASGIApp, allowed: Collection[str]) -> None:
        self.app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 403."""
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        if is_of_other_site(headers) and headers.get("origin") not in self._allowed:
            message = "pages of other websites may not use this server: start it with --allowed-origins"
            await ApiError(403, message, "Origin", "origin_not_allowed").response()(scope, receive, send)
            return
        await self.app(scope, receive, send)


def is_of_other_site(headers: Headers) -> bool:
    """Whether a browser says that a page of another website, or of another port, sends this.

    Every POST of a page has an `Origin`. Other requests may lack it, but then tell how the websites compare.
    """
    origin = headers.get("origin")
    if origin is not None:
        return origin.partition("://")[2].lower() != headers.get("host", "").lower()
    is_link = headers.get("sec-fetch-mode") == "navigate"
    return headers.get("sec-fetch-site") in ("cross-site", "same-site") and not is_link


def host_of(scope: Scope) -> str | None:
    """The name or address that a request was sent to."""
    try:
        return urlsplit("//" + Headers(scope=scope).get("host", "")).hostname
    except ValueError:
        return None


def is_open(path: str) -> bool:
    """Whether a path needs no key."""
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)
