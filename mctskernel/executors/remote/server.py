"""Requests to a server, made again until they are answered or patience ends."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import httpx2

from mctskernel.core.backoff import Backoff, retry_after
from mctskernel.core.device import DeviceError
from mctskernel.executors.http_api import MEDIA_TYPE, MalformedError, Problem, decode
from mctskernel.executors.remote.address import TOKEN_VARIABLE, Address

Answer = TypeVar("Answer")

MOST_BYTES = 64 << 20
"""Of a reply: results of many kernels with their compilers' logs come to a fraction of it."""

MOST_PROBLEM_BYTES = 1 << 16
MOST_WORDS = 400
"""Characters of what a server says of a refusal that are passed on."""

RETRIES = Backoff(first=0.1, longest=5.0, patience=60.0)

_DONE = frozenset({200, 201, 202, 204})
_LATER = frozenset({408, 425, 429})


@dataclass(frozen=True)
class Patience:
    """How long to wait for what, in seconds.

    A request may take `request`, one that opens a session `opening`, since a GPU takes a while; a server waits `poll`
    for results before it says that there are none. A request that fails is made again with the waits of `backoff`, for
    `outage` in all, and for `first` as long as nothing was ever answered: the user is there, and the address may be
    mistyped. After `audit` without a result the server is told once more what it is to judge, and asked how much it
    can; after `stall` it is given up. A server that keeps us waiting is worth a word after `telling`.
    """

    request: float = 30.0
    opening: float = 320.0
    poll: float = 10.0
    first: float = 5.0
    outage: float = 600.0
    audit: float = 15.0
    stall: float = 3600.0
    connect: float = 10.0
    telling: float = 2.0
    backoff: Backoff = RETRIES


@dataclass(frozen=True)
class Request:
    """What is asked, and how long the answer may take, in seconds."""

    method: str
    path: str
    seconds: float
    body: bytes = b""


@dataclass(frozen=True)
class Reply:
    """A status that the caller acts on, with the body that came with it."""

    status: int
    body: bytes = b""

    @property
    def words(self) -> str:
        """What the server says of a refusal; empty where it is none of its own."""
        try:
            sentence = decode(self.body, Problem).sentence if len(self.body) <= MOST_PROBLEM_BYTES else ""
        except MalformedError:
            return ""
        words = " ".join("".join(c if c.isprintable() else " " for c in sentence).split())
        return words if len(words) <= MOST_WORDS else f"{words[:MOST_WORDS]}..."


@dataclass(frozen=True)
class Trouble:
    """Why a request brought no reply, for a sentence that begins with the server, and when it may be made again.

    `status` is 0 where there was no answer at all.
    """

    event: str
    words: str = ""
    wait: float | None = None
    status: int = 0


class Server:
    """The server at an address. Not shared between event loops; `waiting` may be read by any thread."""

    def __init__(self, address: Address, patience: Patience) -> None:
        self.address, self.patience = address, patience
        self.waiting = ""
        """What keeps a request waiting, in a sentence; empty when nothing does."""
        self._has_answered = False
        self._troubles: dict[int, str] = {}
        # No redirection, which could carry the token elsewhere; no compression, whose size isn't known beforehand; and
        # what stays on this machine goes through no proxy.
        self._http = httpx2.AsyncClient(
            headers={
                "Authorization": f"Bearer {address.token}",
                "Content-Type": MEDIA_TYPE,
                "Accept-Encoding": "identity",
            },
            follow_redirects=False,
            verify=_trust(address),
            mounts={"http://": None, "https://": None} if address.is_loopback else None,
        )

    async def ask(self, request: Request, read: Callable[[bytes], Answer]) -> Answer | Reply:
        """A successful answer as `read` reads it, or a 404, 409, 413 or 422, which the caller acts on.

        Raises DeviceError for any other refusal, and when patience ends. What `read` finds malformed is asked again.
        """
        number, began, retries = id(request), time.monotonic(), 0
        try:
            while True:
                found = await self._answer(request, read)
                if not isinstance(found, Trouble):
                    self._has_answered = True
                    return found
                backoff, elapsed = self.patience.backoff, time.monotonic() - began
                wait = backoff.seconds(retries, min(found.wait or 0.0, backoff.patience)) or 0.0
                retries += 1
                if elapsed + wait > self._limit:
                    raise DeviceError(self._given_up(found, elapsed))
                self._tell(number, found, elapsed)
                await asyncio.sleep(wait)
        finally:
            self._troubles.pop(number, None)
            self.waiting = next(iter(self._troubles.values()), "")

    async def tell(self, request: Request) -> None:
        """Make a request once; nobody waits for what becomes of it."""
        await self._once(request)

    async def close(self) -> None:
        """Give the connections back."""
        await self._http.aclose()

    @property
    def _limit(self) -> float:
        return self.patience.outage if self._has_answered else self.patience.first

    def _tell(self, number: int, trouble: Trouble, elapsed: float) -> None:
        if elapsed >= self.patience.telling:
            self._troubles[number] = self.waiting = (
                f"Waiting for the server at {self.address.url}: it {self._said(trouble)}."
            )

    def _given_up(self, trouble: Trouble, seconds: float) -> str:
        what = f"The server at {self.address.url} {self._said(trouble)}"
        if self._has_answered:
            return f"{what}, for {seconds:.0f} s now. Nothing is lost: `mctskernel resume` goes on when it is back."
        if trouble.status:
            return f"{what}. Try again later."
        return f"{what}. Is `mctskernel serve` running there, and is the port right?"

    def _said(self, trouble: Trouble) -> str:
        words = f": {self._hidden(trouble.words)}" if trouble.words else ""
        return f"{trouble.event}{words}".rstrip(".")

    def _hidden(self, words: str) -> str:
        """A server that quotes what it was sent must not have the token printed."""
        return words.replace(self.address.token, "[token]")

    async def _answer(self, request: Request, read: Callable[[bytes], Answer]) -> Answer | Reply | Trouble:
        found = await self._once(request)
        if isinstance(found, Trouble) or found.status not in _DONE:
            return found
        try:
            return read(found.body)
        except MalformedError as error:
            return Trouble("answered with something else than was asked", str(error), status=found.status)

    async def _once(self, request: Request) -> Reply | Trouble:
        try:
            async with (
                asyncio.timeout(request.seconds),
                self._http.stream(
                    request.method,
                    self.address.url + request.path,
                    content=request.body or None,
                    timeout=httpx2.Timeout(request.seconds, connect=self.patience.connect),
                ) as response,
            ):
                body = await _body(response)
        except TimeoutError:
            return Trouble(f"didn't answer within {request.seconds:g} s")
        except httpx2.HTTPError as error:
            self._refuse_certificate(error)
            return _connection_trouble(error)
        return self._judged(Reply(response.status_code, body), retry_after(response.headers))

    def _judged(self, reply: Reply, wait: float | None) -> Reply | Trouble:
        """A status that the caller acts on, or one that passes. Raises DeviceError for what only the user can mend."""
        status = reply.status
        if status in _DONE or status in (404, 409, 413, 422):
            return reply
        if status in _LATER or (status >= 500 and not (status == 503 and reply.words and wait is None)):
            return Trouble(f"answered {status}", reply.words, wait, status)
        raise DeviceError(self.refusal(reply))

    def refusal(self, reply: Reply) -> str:
        """A sentence on a refusal, and what to do."""
        words = f": {self._hidden(reply.words)}" if reply.words else "."
        url = self.address.url
        match reply.status:
            case 401 | 403:
                return f"The server at {url} refuses the token in {TOKEN_VARIABLE}{words}"
            case 404:
                return (
                    f"{url} answers as no server of this version does: look whether the address is right, and "
                    "install the same version of mctskernel on both machines."
                )
            case 413:
                return f"The server at {url} takes nothing as large as this{words}"
            case 503:
                return f"The server at {url} can't judge anything{words}"
            case status if 300 <= status < 400:
                return f"{url} answers {status}, a redirection, which isn't followed: use the address that it names."
            case status:
                return f"The server at {url} refuses ({status}){words}"

    def _refuse_certificate(self, error: Exception) -> None:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise DeviceError(
                    f"The certificate of {self.address.url} can't be trusted ({cause.verify_message}): name its "
                    "authority's file in the environment variable SSL_CERT_FILE."
                ) from error
            cause = cause.__cause__ or cause.__context__


def _trust(address: Address) -> ssl.SSLContext | bool:
    """The system's authorities, or those that the environment names; reading them takes a while, and http has none."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if address.url.startswith("http://") else True


async def _body(response: httpx2.Response) -> bytes:
    """The bytes of a reply, which are not too many and not compressed."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.DecodingError("compressed its reply, though asked not to", request=response.request)
    most = MOST_PROBLEM_BYTES if response.is_error else MOST_BYTES
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > most:
            if response.is_error:
                return b""
            raise httpx2.DecodingError(
                f"sent more than the {most} bytes that are read of a reply", request=response.request
            )
    return bytes(body)


def _connection_trouble(error: httpx2.HTTPError) -> Trouble:
    match error:
        case httpx2.DecodingError():
            return Trouble(str(error))
        case httpx2.ConnectTimeout() | httpx2.PoolTimeout():
            return Trouble("can't be reached in time")
        case httpx2.ConnectError() | httpx2.ProxyError():
            return Trouble("can't be reached")
        case httpx2.TimeoutException():
            return Trouble("fell silent")
        case _:
            return Trouble("ended the connection before its reply was whole")
