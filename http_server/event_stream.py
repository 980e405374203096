"""Streams of server-sent events that end, whatever their clients do."""

import logging
from collections.abc import AsyncIterator, Callable

from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from .config import ServerConfig

KEEPALIVE = ServerSentEvent(comment="keepalive", sep="\n")
log = logging.getLogger("tiny_llm.server")


class EventStream(EventSourceResponse):
    """A stream of events that cleans up after itself, however it ends: even if it is never sent.

    A client may stop reading and keep the connection open. Its answer is computed to its end, at most, and
    waits in memory. Once the client has taken nothing for `send_timeout`, the stream ends.

    Args:
        events: what to send.
        on_end: called when the stream has ended or the client has gone.
        config: has the times.
        ping: what keeps a connection open while there is nothing to send.
    """

    def __init__(
        self,
        events: AsyncIterator[ServerSentEvent],
        on_end: Callable[[], None],
        config: ServerConfig,
        ping: ServerSentEvent = KEEPALIVE,
    ) -> None:
        super().__init__(
            events,
            ping=config.keepalive,
            sep="\n",
            ping_message_factory=lambda: ping,
            send_timeout=config.send_timeout,
        )
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        except Exception as error:
            if not is_send_timeout(error):
                raise
            log.warning("a stream ended: its client took nothing for %g s", self.send_timeout)
        finally:
            self._on_end()


def is_send_timeout(error: BaseException) -> bool:
    """Whether an error says that the client took nothing; an event and a comment may both say so at once."""
    together = getattr(error, "exceptions", None)  # of a group, which Python 3.10 has no name for
    if together is not None:
        return all(map(is_send_timeout, together))
    return isinstance(error, SendTimeoutError)
