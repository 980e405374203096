"""Errors as OpenAI's clients expect them: one object with four keys."""

import re

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tiny_llm.server.admission import QueueFullError

JSON = "application/json"
ANTHROPIC = "/v1/messages"
"""Where the paths of Anthropic's protocol begin."""
UNSUPPORTED = re.compile(
    r"Expected `null`,|Expected `(array|object)` of length <= 0|Invalid enum value (True|False)"
)
MISSING_FIELD = re.compile(r"Object missing required field `(?P<name>.*?)`")
PLACE = re.compile(r" - at (`key` in )?`(?P<path>.*)`$")


class ErrorBody(msgspec.Struct):
    """The value of the key `error`."""

    message: str
    type: str
    param: str | None
    code: str | None


class AnthropicError(msgspec.Struct):
    """The value of the key `error` in Anthropic's protocol. Only the message names the field at fault."""

    type: str
    message: str

    @classmethod
    def of(cls, error: "ApiError") -> "AnthropicError":
        """The same error under Anthropic's names."""
        message, param = error.body.message, error.body.param
        kind = ANTHROPIC_TYPES.get(error.status)
        kind = kind or ("invalid_request_error" if error.status < 500 else "api_error")
        return cls(kind, message if param is None or param in message else f"{param}: {message}")


ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Types of errors in Anthropic's protocol."""


class AnthropicErrorBody(msgspec.Struct):
    """The body of every response of Anthropic's protocol that is no success."""

    error: AnthropicError
    type: str = "error"


class ApiError(Exception):
    """A request that gets an error for an answer.

    Args:
        status: of HTTP.
        message: one sentence: what is wrong, and what to do.
        param: the field at fault, such as "messages[0].role".
        code: a word for programs.
        retry_after: seconds after which to try again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(status)
        kind = kind or ("invalid_request_error" if status < 500 else "server_error")
        self.body = ErrorBody(message, kind, param, code)
        self.retry_after = retry_after

    @property
    def content(self) -> bytes:
        """The body of the response, in JSON."""
        return msgspec.json.encode({"error": self.body})

    def response(self) -> Response:
        """The response of HTTP."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.status == 408:
            headers["Connection"] = "close"  # the rest of the body would be taken for another request
        return ErrorResponse(self, headers)


class ErrorResponse(Response):
    """An error, in the protocol of the path that was asked for.

    Args:
        error: what to say.
        headers: of the response.
    """

    def __init__(self, error: ApiError, headers: dict[str, str]) -> None:
        super().__init__(error.content, error.status, headers, JSON)
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        if scope["path"].startswith(ANTHROPIC):
            self.body = msgspec.json.encode(AnthropicErrorBody(AnthropicError.of(self._error)))
            self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


def of_validation(error: msgspec.DecodeError | UnicodeDecodeError, within: str = "") -> ApiError:
    """Say which field of a request is wrong.

    Args:
        error: what msgspec raised; of the subclass ValidationError if the JSON itself is right.
        within: where the object that it speaks of is.
    """
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return ApiError(400, f"the body is not valid JSON: {text}", code="invalid_json")
    place = PLACE.search(text)
    path = place["path"].removeprefix("$").removeprefix(".").replace("[...]", "") if place else ""
    reason = PLACE.sub("", text)
    missing = MISSING_FIELD.match(reason)
    path = ".".join(filter(None, (within, path, missing and missing["name"])))
    if missing is not None:
        return ApiError(400, f"{path} is missing", path, "missing_required_parameter")
    if UNSUPPORTED.match(reason):
        message = f"this server does not support {path} with this value: leave it out"
        return ApiError(400, message, path, "unsupported_value")
    return ApiError(400, f"{path or 'the body'} is invalid: {reason}", path or None, "invalid_value")


def of_queue(error: QueueFullError) -> ApiError:
    """Ask the client to come back later."""
    return ApiError(429, str(error), code="queue_full", retry_after=error.retry_after)


async def on_api_error(request: Request, error: Exception) -> Response:
    """Handle an `ApiError` that an endpoint raised."""
    assert isinstance(error, ApiError)
    return error.response()


async def on_http_error(request: Request, error: Exception) -> Response:
    """Handle what Starlette itself raises, for unknown paths and wrong methods."""
    assert isinstance(error, HTTPException)
    path = f"{request.method} {request.url.path}"
    response = ApiError(error.status_code, f"{error.detail}: {path}").response()
    response.headers.update(error.headers or {})
    return response


async def on_other_error(request: Request, error: Exception) -> Response:
    """Handle a mistake in the server itself."""
    return ApiError(500, "the server failed to handle this request", code="internal_error").response()
