"""Read the body of a request, within limits."""

import asyncio
from typing import TypeVar

import msgspec
from starlette.requests import Request

from .errors import ApiError, of_validation
from .ignored_fields import IGNORED, type_info, unknown_fields

T = TypeVar("T")


async def read_body(http: Request, kind: type[T], max_bytes: int, timeout: float) -> T:
    """Read a body and check its fields. Note those that its type doesn't have.

    Args:
        http: the request.
        kind: what its JSON must describe.
        max_bytes: largest size of the body. What exceeds it is not read.
        timeout: seconds that the client may take to send it.

    Raises:
        ApiError: the body is too large or too slow, is not JSON, or has a field that is wrong.
    """
    length = http.headers.get("content-length", "0")
    if length.isdigit() and int(length) > max_bytes:
        raise too_large(max_bytes)
    try:
        body = await asyncio.wait_for(received(http, max_bytes), timeout)
    except asyncio.TimeoutError:  # another class before Python 3.11
        message = f"the body did not arrive within {timeout:g} s"
        raise ApiError(408, message, code="request_timeout") from None
    try:
        found = msgspec.json.decode(body, type=kind)
        http.scope[IGNORED] += unknown_fields(msgspec.json.decode(body), type_info(kind))
        return found
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise of_validation(error) from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply", code="invalid_json") from None


async def received(http: Request, max_bytes: int) -> bytearray:
    """Wait for the whole body. Raise ApiError if it is too large."""
    body = bytearray()
    async for piece in http.stream():
        body += piece
        if len(body) > max_bytes:
            raise too_large(max_bytes)
    return body


def too_large(max_bytes: int) -> ApiError:
    """The error for a body that is too large."""
    return ApiError(413, f"the body must have at most {max_bytes} bytes", code="request_too_large")
