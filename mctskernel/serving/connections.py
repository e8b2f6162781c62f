"""A connection of the server: uvicorn's, with limits that it lacks on how slowly a client may write and read."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from mctskernel.executors.http_api import MEDIA_TYPE, Problem, encode
from mctskernel.serving.settings import Limits

_SENTENCE = encode(Problem("This server has as many connections as it takes."))
_TOO_MANY = (
    b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 5\r\nconnection: close\r\n"
    b"content-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (MEDIA_TYPE.encode(), len(_SENTENCE), _SENTENCE)
)


class Connection(H11Protocol):
    """Closed when the head of a request, or the reading of an answer, takes too long; refused beyond a number."""

    limits: ClassVar[Limits]
    _head: asyncio.TimerHandle | None = None
    _answer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """Expect a request, unless there are too many connections."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            transport.write(_TOO_MANY)
            transport.close()
        else:
            self._await_head()

    def data_received(self, data: bytes) -> None:
        """Take what has come of a request."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._await_head()
        elif self._head is not None:
            self._head.cancel()
            self._head = None

    def on_response_complete(self) -> None:
        """Give the client some time to read the answer, which may still be here."""
        super().on_response_complete()
        if self._answer is not None:
            self._answer.cancel()
        self._answer = self.loop.call_later(self.limits.body_seconds, self._abandon_unread)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        for timer in (self._head, self._answer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._head is None:
            self._head = self.loop.call_later(self.limits.header_seconds, self.transport.abort)

    def _abandon_unread(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()


def connections(limits: Limits) -> type[Connection]:
    """The class of connections under these limits, for `uvicorn.Config(http=...)`."""
    return type("LimitedConnection", (Connection,), {"limits": limits})
