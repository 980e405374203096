"""Read the body of a request, within limits."""

from typing import TypeVar

import msgspec
from starlette.requests import Request

from .errors import ApiError, of_validation
from .ignored_fields import IGNORED, type_info, unknown_fields

T = TypeVar("T")


async def read_body(http: Request, kind: type[T], max_bytes: int) -> T:
    """Read a body and check its fields. Note those that its type doesn't have.

    Args:
        http: the request.
        kind: what its JSON must describe.
        max_bytes: largest size of the body. What exceeds it is not read.

    Raises:
        ApiError: the body is too large, is not JSON, or has a field that is wrong.
    """
    length = http.headers.get("content-length", "0")
    if length.isdigit() and int(length) > max_bytes:
        raise too_large(max_bytes)
    body = bytearray()
    async for piece in http.stream():
        body += piece
        if len(body) > max_bytes:
            raise too_large(max_bytes)
    try:
        found = msgspec.json.decode(body, type=kind)
        http.scope[IGNORED] += unknown_fields(msgspec.json.decode(body), type_info(kind))
        return found
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise of_validation(error) from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply", code="invalid_json") from None


def too_large(max_bytes: int) -> ApiError:
    """The error for a body that is too large."""
    return ApiError(413, f"the body must have at most {max_bytes} bytes", code="request_too_large")
