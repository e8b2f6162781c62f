"""A session on a server, for as long as it is needed: opened again when the server forgot it, and its results counted.

What was submitted comes back once, whatever happens on the way: a key of ours holds one kernel, so that it can be put
again as often as nothing was heard of it; results are said again until they are acknowledged, and taken by their keys;
and in a new session everything that is still out gets a new key, so that nothing of the old one counts any more.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from mctskernel.core.device import DeviceError
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.executors.http_api import (
    SESSIONS,
    GateSubmission,
    OpenSession,
    Result,
    Results,
    SessionOpened,
    SessionStatus,
    Submission,
    decode,
    encode,
    evaluation_path,
    gate_path,
    results_path,
    session_path,
)
from mctskernel.executors.remote.credible import incredible
from mctskernel.executors.remote.server import Reply, Request, Server

REOPENINGS = 8
"""Sessions in a row that a server may forget without a result from any of them."""

EAGER_SECONDS = 0.2
"""How long to leave a server alone that says too soon that there is nothing new."""

GOODBYE_SECONDS = 0.5

MOST_NUMBERS = 1 << 14
"""Results that are remembered because an earlier one is missing; a server that skips numbers is told them again."""


@dataclass
class _Flight:
    """A kernel that is out to be judged."""

    path: Callable[[str, str], str]
    body: bytes
    key: str
    result: asyncio.Future[Evaluation]
    putting: asyncio.Task[None] | None = None


@dataclass
class _Opened:
    """A session of the server, and what is known of its results: all numbers to `after`, and those in `later`."""

    name: str
    after: int = 0
    later: set[int] = field(default_factory=set)

    def count(self, number: int) -> None:
        """Acknowledge a result, with the next request if none before it is missing."""
        if number > self.after and len(self.later) < MOST_NUMBERS:
            self.later.add(number)
        while self.after + 1 in self.later:
            self.after += 1
            self.later.remove(self.after)


class Session:
    """Kernels of one task, judged by a server. For one event loop; `capacity` and `opened` are for any thread."""

    def __init__(self, server: Server, opening: OpenSession) -> None:
        self._server, self._patience = server, server.patience
        self._body = encode(opening)
        self._now = _Opened("")
        self._generation = 0
        self._forgotten = 0
        self._reopening = asyncio.Lock()
        self._flights: dict[str, _Flight] = {}
        self._has_flights = asyncio.Event()
        self._heard = 0.0
        self._listener: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._source = Source.MEASURED
        self.opened: SessionOpened | None = None
        self.capacity = 1

    async def open(self) -> SessionOpened:
        """Open the session. Raises DeviceError."""
        found = await self._open()
        if isinstance(found, Reply):
            raise DeviceError(self._server.refusal(found))
        self.opened = found
        self._listener = asyncio.create_task(self._listen())
        return found

    async def evaluate(self, message: Submission | GateSubmission) -> Evaluation:
        """What the server makes of a kernel. Raises DeviceError when it can't go on."""
        if self._failure is not None:
            raise self._failure
        path = gate_path if isinstance(message, GateSubmission) else evaluation_path
        flight = _Flight(path, encode(message), _new_key(), asyncio.Future())
        if not self._flights:
            self._heard = time.monotonic()
        self._flights[flight.key] = flight
        self._has_flights.set()
        self._put(flight)
        try:
            return await flight.result
        finally:
            self._land(flight)

    async def close(self) -> None:
        """Say goodbye, if the server is there to hear it."""
        if self._now.name:
            await self._server.tell(Request("DELETE", session_path(self._now.name), GOODBYE_SECONDS))
        await self._server.close()

    def _land(self, flight: _Flight) -> None:
        if flight.putting is not None:
            flight.putting.cancel()
        self._flights.pop(flight.key, None)
        if not self._flights:
            self._has_flights.clear()

    def _put(self, flight: _Flight) -> None:
        """Tell the server of a kernel; told again, it does nothing anew."""
        flight.putting = asyncio.create_task(self._putting(flight))

    async def _putting(self, flight: _Flight) -> None:
        try:
            while True:
                generation = self._generation
                path = flight.path(self._now.name, flight.key)
                found = await self._server.ask(
                    Request("PUT", path, self._patience.request, flight.body), bytes
                )
                if not isinstance(found, Reply):
                    return
                if found.status == 413:
                    _settle(flight, _too_large(found, self._source))
                    return
                if found.status == 409:
                    raise DeviceError(self._server.refusal(found))
                await self._open_again(generation)
        except Exception as error:  # noqa: BLE001 - raised again by `evaluate`
            _fail(flight, error)

    async def _listen(self) -> None:
        """Take results for as long as there are kernels out; what ends this, ends all of them."""
        try:
            while True:
                await self._has_flights.wait()
                await self._hear()
        except Exception as error:  # noqa: BLE001 - raised again by every `evaluate`
            self._failure = error
            for flight in self._flights.values():
                _fail(flight, error)

    async def _hear(self) -> None:
        """One long poll, and what follows from it."""
        generation, began = self._generation, time.monotonic()
        wait = self._patience.poll
        path = results_path(self._now.name, self._now.after, wait)
        seconds = wait + self._patience.request
        found = await self._server.ask(Request("GET", path, seconds), partial(decode, kind=Results))
        if isinstance(found, Reply):
            await self._open_again(generation)
            return
        if generation != self._generation:
            return
        news = [self._take(result) for result in found.results]
        if any(news):
            self._heard, self._forgotten = time.monotonic(), 0
            return
        if (silence := time.monotonic() - self._heard) > self._patience.stall:
            raise DeviceError(
                f"The server at {self._server.address.url} has finished nothing for {silence:.0f} s: look there what "
                "it is at. `mctskernel resume` goes on."
            )
        if time.monotonic() - began < min(EAGER_SECONDS, wait):
            await asyncio.sleep(EAGER_SECONDS)
        if silence > self._patience.audit:
            await self._audit(generation)

    def _take(self, result: Result) -> bool:
        """Whether a result is that of a kernel which is out, and the first of it."""
        self._now.count(result.number)
        flight = self._flights.get(result.key)
        if flight is None or flight.result.done():
            return False
        reason = incredible(result.evaluation, self._source)
        if reason:
            raise DeviceError(
                f"The server at {self._server.address.url} says of a kernel what can't be: {reason}. Install the same "
                "version of mctskernel on both machines."
            )
        _settle(flight, result.evaluation)
        return True

    async def _audit(self, generation: int) -> None:
        """Ask what the server can do by now, and tell it again what it is to do: it may have lost a kernel."""
        path = session_path(self._now.name)
        found = await self._server.ask(
            Request("GET", path, self._patience.request), partial(decode, kind=SessionStatus)
        )
        if isinstance(found, Reply):
            await self._open_again(generation)
            return
        self.capacity = max(1, found.capacity)
        for flight in tuple(self._flights.values()):
            if _is_put(flight) and found.queued + found.running < len(self._flights):
                self._put(flight)

    async def _open(self) -> SessionOpened | Reply:
        request = Request("POST", SESSIONS, self._patience.opening, self._body)
        found = await self._server.ask(request, partial(decode, kind=SessionOpened))
        if isinstance(found, Reply):
            return found
        self._source = _source(found, self._server.address.url)
        self._now = _Opened(found.session)
        self.capacity = max(1, found.capacity)
        return found

    async def _open_again(self, generation: int) -> None:
        """A new session in place of one that the server forgot, unless somebody else has opened it meanwhile."""
        async with self._reopening:
            if generation != self._generation:
                return
            self.opened = await self._opened_again()
            self._generation += 1
            flights = tuple(self._flights.values())
            for flight in flights:
                flight.key = _new_key()
            self._flights = {flight.key: flight for flight in flights}
            for flight in flights:
                if _is_put(flight):
                    self._put(flight)

    async def _opened_again(self) -> SessionOpened:
        self._forgotten += 1
        if self._forgotten > REOPENINGS:
            raise DeviceError(
                f"The server at {self._server.address.url} forgets every session: look there what it says."
            )
        await asyncio.sleep(self._patience.backoff.seconds(self._forgotten) or 0.0)
        found = await self._open()
        if isinstance(found, Reply):
            raise DeviceError(self._server.refusal(found))
        self._refuse_other_device(found.fingerprint)
        return found

    @property
    def _fingerprint(self) -> Mapping[str, str]:
        return self.opened.fingerprint if self.opened is not None else {}

    def _refuse_other_device(self, now: Mapping[str, str]) -> None:
        then = self._fingerprint
        for name in sorted(then.keys() | now.keys()):
            if then.get(name) != now.get(name):
                raise DeviceError(
                    f"The server at {self._server.address.url} came back with {name} = {now.get(name, 'nothing')}; it "
                    f"was {then.get(name, 'nothing')}. Times of the two can't be compared: begin a new run."
                )


def _source(opened: SessionOpened, url: str) -> Source:
    try:
        return Source(opened.source)
    except ValueError as error:
        raise DeviceError(
            f"The server at {url} gives numbers of a kind that isn't known here: install the same version of "
            f"mctskernel on both machines (the server's is {opened.version[:40]})."
        ) from error


def _new_key() -> str:
    return secrets.token_hex(16)


def _is_put(flight: _Flight) -> bool:
    return flight.putting is not None and flight.putting.done() and not flight.result.done()


def _settle(flight: _Flight, evaluation: Evaluation) -> None:
    """A kernel is judged once, so nobody tells the server of it any more."""
    if not flight.result.done():
        flight.result.set_result(evaluation)
    if flight.putting is not None and flight.putting is not asyncio.current_task():
        flight.putting.cancel()


def _fail(flight: _Flight, error: Exception) -> None:
    if not flight.result.done():
        flight.result.set_exception(error)


def _too_large(reply: Reply, source: Source) -> Evaluation:
    words = reply.words or "no reason is given"
    return Evaluation(Outcome.REJECTED, source, f"The server takes no kernel as large as this: {words}")
