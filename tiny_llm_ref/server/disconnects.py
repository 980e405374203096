"""Notice that a client has gone, so that no one computes an answer that no one will read."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar

T = TypeVar("T")
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
"""Of ASGI: returns the next message from the client."""


class ClientGoneError(Exception):
    """The client closed the connection before it had its answer."""


async def unless_disconnected(receive: Receive, work: Awaitable[T]) -> T:
    """Wait for some work, but stop waiting when the client closes the connection.

    A server does not cancel a handler whose client has gone. A handler that sends as it goes would notice
    with its next write. One that first builds the whole answer has to watch the connection meanwhile.

    Args:
        receive: of the request, whose body has been read.
        work: what the answer is made of. It is cancelled if the client goes.

    Returns:
        The result of the work.

    Raises:
        ClientGoneError: the client closed the connection before the work was done.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError("the client closed the connection")
    finally:
        await cancel(working, watching)


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancel(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel tasks, and wait until each has cleaned up."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
