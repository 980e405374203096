"""Which fields of a request were ignored, for the log and for the response."""

import json
import logging
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from typing import Any

from msgspec import inspect
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("tiny_llm.server")

HEADER = "X-Ignored-Fields"
IGNORED = "ignored_fields"
"""Where a request's scope has the names."""
MAX_NAMES, MAX_NAME = 32, 64
"""How many names a response has at most, and of how many characters."""
MAX_LOGGED = 256
"""How many names are logged, by whichever requests: a client could invent any number."""

type_info: Callable[[Any], inspect.Type] = cache(inspect.type_info)


def unknown_fields(value: Any, kind: inspect.Type, place: str = "") -> Iterator[str]:
    """Yield the places of all fields that the types don't have, such as `messages[].id`.

    Args:
        value: JSON that is valid by its type.
        kind: the type.
        place: of the value.
    """
    if isinstance(kind, inspect.Metadata):
        yield from unknown_fields(value, kind.type, place)
    elif isinstance(kind, inspect.UnionType):
        for each in kind.types:
            if is_of(value, each):
                yield from unknown_fields(value, each, place)
    elif isinstance(kind, inspect.ListType):
        for each in value if isinstance(value, list) else ():
            yield from unknown_fields(each, kind.item_type, f"{place}[]")
    elif isinstance(kind, inspect.StructType) and isinstance(value, dict):
        types = {field.encode_name: field.type for field in kind.fields}
        for name, each in value.items():
            inner = f"{place}.{name}".removeprefix(".")
            if name in types:
                yield from unknown_fields(each, types[name], inner)
            elif name != kind.tag_field:
                yield inner


def is_of(value: Any, kind: inspect.Type) -> bool:
    """Whether a value is of this type rather than of another one in a union."""
    if isinstance(kind, inspect.Metadata):
        return is_of(value, kind.type)
    if isinstance(kind, inspect.StructType):
        return isinstance(value, dict) and (kind.tag_field is None or value.get(kind.tag_field) == kind.tag)
    return isinstance(kind, inspect.ListType) and isinstance(value, list)


class NameIgnored:
    """Name the ignored fields of each request in a header of its response, and each one once in the log.

    Args:
        app: the application behind it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._logged: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with an empty list of names."""
        names: list[str] = []

        async def send_with_names(message: Message) -> None:
            if message["type"] == "http.response.start" and names:
                shown = list(islice(dict.fromkeys(map(printable, names)), MAX_NAMES))
                MutableHeaders(scope=message)[HEADER] = ", ".join(shown)
                self._log(shown)
            await send(message)

        await self.app({**scope, IGNORED: names}, receive, send_with_names)

    def _log(self, names: list[str]) -> None:
        for name in names:
            if name not in self._logged and len(self._logged) < MAX_LOGGED:
                self._logged.add(name)
                log.warning("ignored the field %s, which this server does not know", name)


def printable(name: str) -> str:
    """A name as a header may have it: in ASCII, on one line, with no space at its ends, and not too long."""
    return json.dumps(name)[1:-1][:MAX_NAME].strip() or '""'
