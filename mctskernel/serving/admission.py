"""What stands before the routes: who may come in, how often, and how long they may take to say what they want.

Nothing of a request but its head is looked at before its token was found to be right.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from mctskernel.executors.http_api import MEDIA_TYPE, Problem, encode
from mctskernel.serving.pace import Pace
from mctskernel.serving.refusals import RefusalError, too_much
from mctskernel.serving.settings import Limits
from mctskernel.serving.tokens import Clients

ACCESS = logging.getLogger("mctskernel.serving.access")
"""A line for each request: who, what, the status, the time. No headers, which hold the token."""

_HOST = re.compile(r"(\[[^]]*\]|[^:]*)(?::\d+)?")

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[..., Awaitable[None]]


class Admission:
    """An ASGI application that lets a request through to another one, under its client's name as `scope["user"]`.

    `hosts` are the names by which the server may be called, None for any: a page of another site could otherwise come
    here under a name of its own (DNS rebinding).
    """

    def __init__(
        self, application: Application, clients: Clients, limits: Limits, hosts: frozenset[str] | None
    ) -> None:
        self._application, self._clients, self._limits, self._hosts = application, clients, limits, hosts
        self._requests = Pace(limits.requests_per_second, limits.burst)
        self._failures = Pace(limits.failures_per_minute / 60, limits.failures_per_minute)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let the application answer."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        visit = _Visit(scope, receive, send, self._limits.body_seconds)
        try:
            scope["user"] = visit.client = self._admitted(scope)
            await self._application(scope, visit.receive, visit.send)
        except RefusalError as refusal:
            await refuse(visit.send, refusal)
        finally:
            visit.write_down()

    def _admitted(self, scope: Scope) -> str:
        """The client's name. Raises RefusalError."""
        headers = dict(scope["headers"])
        if self._hosts is not None and _host(headers) not in self._hosts:
            raise RefusalError(400, "This server isn't called by that name.")
        if b"origin" in headers:
            raise RefusalError(400, "This server is for programs, and not for pages of a browser.")
        client, now = self._clients.who(headers.get(b"authorization", b"")), time.monotonic()
        if client is None:
            delay = self._failures.delay(str((scope.get("client") or ("",))[0]), now)
            if delay:
                raise too_much("Too many requests without a right token.", delay)
            raise RefusalError(401, "A right token is needed: `Authorization: Bearer TOKEN`.")
        if delay := self._requests.delay(client, now):
            raise too_much("You ask too often.", delay)
        return client


async def refuse(send: Send, refusal: RefusalError) -> None:
    """Answer with a Problem."""
    body = encode(Problem(refusal.sentence))
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in refusal_headers(refusal).items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def refusal_headers(refusal: RefusalError) -> dict[str, str]:
    """What a refusal says besides its Problem."""
    if refusal.status == 401:
        return {"www-authenticate": "Bearer"}
    if refusal.retry_after is None:
        return {}
    return {"retry-after": str(max(1, math.ceil(refusal.retry_after)))}


class _Visit:
    """One request: its body must be there in time, and nobody goes on reading one that was refused."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, seconds: float) -> None:
        self.client = "-"
        self._scope, self._receive, self._send = scope, receive, send
        self._began = time.monotonic()
        self._deadline = asyncio.get_running_loop().time() + seconds
        self._status = 0
        self._whole = not any(
            name in {b"content-length", b"transfer-encoding"} for name, _ in scope["headers"]
        )

    async def receive(self) -> Message:
        if self._whole:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError as error:
            raise RefusalError(408, "The body of the request took too long to come.") from error
        self._whole = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            if not self._whole:
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await self._send(message)

    def write_down(self) -> None:
        seconds = time.monotonic() - self._began
        path = self._scope["raw_path"].decode("ascii", "replace")
        ACCESS.info("%s %s %s %d %.3f s", self.client, self._scope["method"], path, self._status, seconds)


def _host(headers: Mapping[bytes, bytes]) -> str:
    """The name by which the server was called, without its port."""
    host = _HOST.fullmatch(headers.get(b"host", b"").decode("latin-1").lower())
    return host[1] if host else ""
