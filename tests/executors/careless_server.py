"""A server of the HTTP API that does what real ones do: it forgets, repeats, breaks off, hangs and talks nonsense."""

from __future__ import annotations

import contextlib
import random
import secrets
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from mctskernel.core.evaluation import Evaluation, Outcome, Source, Timing
from mctskernel.core.kernel import Kernel
from mctskernel.executors.http_api import (
    GateSubmission,
    OpenSession,
    Problem,
    Result,
    Results,
    ServerStatus,
    SessionOpened,
    SessionStatus,
    Submission,
    decode,
    encode,
)

TOKEN = "a-token-that-only-the-client-knows"  # noqa: S105 - of these tests
FINGERPRINT = {"device": "model", "gpu": "a model of nothing"}


def judge(kernel: Kernel) -> Evaluation:
    """Says which kernel it was of."""
    timing = Timing("", 1e-3, 1e-3, 1e-3)
    return Evaluation(Outcome.OK, Source.MODELLED, kernel.source, (timing,), counters={"odd": float("inf")})


@dataclass
class Session:
    """What was put, what was judged, and what was said of it."""

    opening: OpenSession
    put: dict[str, bytes] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    acknowledged: int = 0


@dataclass
class Request:
    """What a fault may look at."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        """`open`, `put`, `results`, `session`, `close` or `status`."""
        if self.path == "/v1/status":
            return "status"
        if self.method == "GET":
            return "results" if "/results" in self.path else "session"
        return {"POST": "open", "PUT": "put", "DELETE": "close"}[self.method]


Answer = tuple[int, bytes]
Fault = Callable[["Handler", Request], bool]
"""What happens in place of an answer; False to have an answer after all."""


@dataclass
class CarelessServer(ThreadingHTTPServer):
    """Answers as a good server does, unless `fault` does something else."""

    fault: Fault = lambda handler, request: False
    judge: Callable[[Kernel], Evaluation] = judge
    capacity: int = 4
    fingerprint: dict[str, str] = field(default_factory=lambda: dict(FINGERPRINT))
    source: str = "modelled"
    sessions: dict[str, Session] = field(default_factory=dict)
    judged: Counter[str] = field(default_factory=Counter)
    requests: list[Request] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    request_queue_size = 128
    daemon_threads = True
    block_on_close = False

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """Clients that go away are part of the tests."""

    def forget(self) -> None:
        """Every session, as after a restart."""
        with self.lock:
            self.sessions.clear()

    def answer(self, request: Request) -> Answer:
        """What a good server says."""
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return refusal(401, "There is no such token.")
        parts = urlsplit(request.path).path.strip("/").split("/")
        if request.kind == "status":
            return 200, encode(ServerStatus("0", self.fingerprint["device"], self.fingerprint, 0, 0, 0))
        if request.kind == "open":
            return self._open(decode(request.body, OpenSession))
        session = self.sessions.get(parts[2])
        if session is None:
            return refusal(404, "There is no such session.")
        if request.kind == "put":
            return self._put(session, parts[4], request.body, is_gate=parts[3] == "gates")
        if request.kind == "results":
            return self._results(session, parse_qs(urlsplit(request.path).query))
        if request.kind == "close":
            del self.sessions[parts[2]]
            return 204, b""
        return 200, encode(SessionStatus(self.capacity, 0, 0, len(session.results)))

    def _open(self, opening: OpenSession) -> Answer:
        with self.lock:
            name = secrets.token_hex(8)
            self.sessions[name] = Session(opening)
        opened = SessionOpened(name, self.capacity, self.fingerprint, ("No counters.",), self.source, "0")
        return 201, encode(opened)

    def _put(self, session: Session, key: str, body: bytes, *, is_gate: bool) -> Answer:
        with self.lock:
            if key in session.put:
                return (
                    (200, b"") if session.put[key] == body else refusal(409, "Another kernel has this key.")
                )
            session.put[key] = body
        message = decode(body, GateSubmission if is_gate else Submission)
        threading.Thread(target=self._judge, args=(session, key, message, is_gate), daemon=True).start()
        return 202, b""

    def _judge(self, session: Session, key: str, message: Any, is_gate: bool) -> None:
        evaluation = self.judge(message.kernel)
        with self.lock:
            self.judged[message.kernel.source] += 1
            session.results.append(Result(len(session.results) + 1, key, is_gate, evaluation))

    def _results(self, session: Session, query: dict[str, list[str]]) -> Answer:
        after, until = int(query["after"][0]), time.monotonic() + float(query["wait"][0])
        assert after <= len(session.results), "nobody acknowledges what was never said"
        session.acknowledged = max(session.acknowledged, after)
        while len(session.results) <= after and time.monotonic() < until and not self.stopping.is_set():
            time.sleep(0.005)
        return 200, encode(Results(tuple(session.results[after:])))


class Handler(BaseHTTPRequestHandler):
    """Lets the server's fault happen, or answers."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: CarelessServer

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, self.path, headers, body)
        self.server.requests.append(request)
        if not self.server.fault(self, request):
            self.send(*self.server.answer(request))

    def do_GET(self) -> None:
        self.do_PUT()

    def do_POST(self) -> None:
        self.do_PUT()

    def do_DELETE(self) -> None:
        self.do_PUT()

    def log_message(self, format: str, *args: object) -> None:
        """Be quiet."""

    def send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def hang_up(self) -> None:
        """End the connection as a crashed process does."""
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()
        self.close_connection = True


@contextmanager
def careless_server(
    fault: Fault = lambda handler, request: False, **details: Any
) -> Iterator[CarelessServer]:
    """A server with a fault, until the block ends."""
    server = CarelessServer(fault, **details)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stopping.set()
        server.shutdown()
        thread.join()
        server.server_close()


def refusal(status: int, sentence: str) -> Answer:
    return status, encode(Problem(sentence))


def says(status: int, body: bytes = b"", **headers: str) -> Fault:
    """The same answer to everything."""

    def fault(handler: Handler, request: Request) -> bool:
        handler.send(status, body, **headers)
        return True

    return fault


def refuses(status: int, sentence: str = "No.", **headers: str) -> Fault:
    return says(*refusal(status, sentence), **headers)


def resets(handler: Handler, request: Request) -> bool:
    handler.hang_up()
    return True


def hangs(handler: Handler, request: Request) -> bool:
    handler.server.stopping.wait(20)
    handler.close_connection = True
    return True


def does_it_and_resets(handler: Handler, request: Request) -> bool:
    handler.server.answer(request)
    return resets(handler, request)


def does_it_and_hangs(handler: Handler, request: Request) -> bool:
    handler.server.answer(request)
    return hangs(handler, request)


def cuts_off(handler: Handler, request: Request) -> bool:
    status, body = handler.server.answer(request)
    handler.send_response(status)
    handler.send_header("content-length", str(len(body) + 10))
    handler.end_headers()
    handler.wfile.write(body[: len(body) // 2])
    handler.close_connection = True
    return True


def truncates(handler: Handler, request: Request) -> bool:
    """A reply that is whole, of a body that isn't."""
    status, body = handler.server.answer(request)
    handler.send(status, body[: len(body) // 2])
    return True


def compresses(handler: Handler, request: Request) -> bool:
    handler.send(200, b"\x1f\x8b\x08", content_encoding="gzip")
    return True


def pours(handler: Handler, request: Request) -> bool:
    """Bytes without end."""
    handler.send_response(200)
    handler.send_header("transfer-encoding", "chunked")
    handler.end_headers()
    with contextlib.suppress(OSError):
        while not handler.server.stopping.is_set():
            handler.wfile.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
    handler.close_connection = True
    return True


def drips(handler: Handler, request: Request) -> bool:
    """A byte every twentieth of a second, for as long as someone listens."""
    handler.send_response(200)
    handler.send_header("content-length", "100000")
    handler.end_headers()
    with contextlib.suppress(OSError):
        while not handler.server.stopping.wait(0.05):
            handler.wfile.write(b" ")
    handler.close_connection = True
    return True


def forgets(handler: Handler, request: Request) -> bool:
    handler.server.forget()
    return False


def repeats(handler: Handler, request: Request) -> bool:
    """Every result of the session, those too that were acknowledged, in any order, and some of nobody's."""
    with handler.server.lock:
        session = (
            handler.server.sessions.get(request.path.split("/")[3]) if request.kind == "results" else None
        )
        if session is None or not session.results:
            return False
        results = [*session.results, *session.results[-2:]]
    strangers = [msgspec.structs.replace(each, key=f"x{each.key}"[:32]) for each in results[:2]]
    gates = [msgspec.structs.replace(each, gate=not each.gate) for each in results[:2]]
    told = [*results, *strangers, *gates]
    random.shuffle(told)
    handler.send(200, encode(Results(tuple(told))))
    return True


PASSING: tuple[Fault, ...] = (
    resets,
    does_it_and_resets,
    does_it_and_hangs,
    cuts_off,
    truncates,
    compresses,
    repeats,
    forgets,
    says(200, b"<html>It works!</html>"),
    says(200, b"[]" * 1000),
    says(500),
    says(502, b"<html>Bad gateway</html>"),
    says(503, b"<html>Later</html>"),
    refuses(503, "Closing.", retry_after="0"),
    refuses(429, "Too many at once.", retry_after="0.05"),
    says(408),
)
"""What happens and passes."""


def now_and_then(share: float, seed: int) -> Fault:
    """One of all faults that pass, for a share of the requests."""
    draw = random.Random(seed)  # noqa: S311 - faults, not secrets

    def fault(handler: Handler, request: Request) -> bool:
        with handler.server.lock:
            chosen = draw.choice(PASSING) if draw.random() < share else None
        return chosen is not None and chosen(handler, request)

    return fault
