"""Close connections whose request never comes, or whose first lines come too slowly."""

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol


class ImpatientProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's protocol, which would wait for the first lines of a request forever.

    It gives a time limit only to connections that have had an answer and then say nothing.

    Attributes:
        head_timeout: seconds from the beginning of a connection, or of a later request on it, to the end of
            its headers.
    """

    head_timeout = 30.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take a piece, and wait for the rest if it is not a whole head."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        super().connection_lost(exc)
        self._forget()

    def _watch(self) -> None:
        if self._has_request:
            self._forget()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.head_timeout, self._give_up)

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if not self._has_request:
            self.transport.close()

    @property
    def _has_request(self) -> bool:
        """Whether a request has come that is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete
