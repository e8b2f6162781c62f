"""What stands between clients and a server and spoils a share of what passes: it drops, repeats and breaks off."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

SECONDS = 60.0

KINDS = (
    "request dropped",
    "reply dropped",
    "reply cut off",
    "request made twice",
    "reply said twice",
    "reply replaced by nonsense",
    "answered 502 by a proxy",
)


class FaultyProxy(ThreadingHTTPServer):
    """Passes on requests to the server at a URL; a `share` of them meets a fault, counted in `injected`."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, url: str, share: float, seed: int) -> None:
        self.target = urlsplit(url).netloc
        self.injected: Counter[str] = Counter()
        self.passed = 0
        """Results, those that were said again included."""
        self._share, self._random, self._lock = share, random.Random(seed), threading.Lock()  # noqa: S311 - no secret
        self._said: dict[str, tuple[int, bytes]] = {}
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"http://127.0.0.1:{self.server_port}"

    def draw(self, method: str) -> str:
        """The fault that a request meets; empty for none. Nothing happens before a session is open."""
        with self._lock:
            if method == "POST" or self._random.random() >= self._share:
                return ""
            return self._random.choice(KINDS)

    def count(self, fault: str) -> None:
        """A fault that was done."""
        with self._lock:
            self.injected[fault] += 1

    def said_before(self, path: str, status: int, body: bytes) -> tuple[int, bytes] | None:
        """What was answered the last time that results of a session were asked for, where there were any."""
        session = path.partition("?")[0]
        with self._lock:
            self.passed += body.count(b'"evaluation":')
            before = self._said.get(session)
            if status == 200 and body != b'{"results":[]}':
                self._said[session] = (status, body)
            return before

    def handle_error(self, *_: object) -> None:
        """Connections that end are what this is about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FaultyProxy

    def do_GET(self) -> None:
        self._pass_on()

    def do_POST(self) -> None:
        self._pass_on()

    def do_PUT(self) -> None:
        self._pass_on()

    def do_DELETE(self) -> None:
        self._pass_on()

    def log_message(self, format: str, *args: object) -> None:
        """Be quiet."""

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        fault = self.server.draw(self.command)
        if fault == "request dropped":
            self._hang_up(fault)
            return
        try:
            status, reply, headers = self._ask(body)
            if fault == "request made twice":
                self.server.count(fault)
                status, reply, headers = self._ask(body)
        except (OSError, HTTPException):
            self._hang_up("")
            return
        if "/results" in self.path:
            before = self.server.said_before(self.path, status, reply)
            if fault == "reply said twice" and before is not None:
                self.server.count(fault)
                status, reply = before
        self._answer(fault, status, reply, headers)

    def _answer(self, fault: str, status: int, reply: bytes, headers: dict[str, str]) -> None:
        match fault:
            case "reply dropped":
                self._hang_up(fault)
                return
            case "reply cut off":
                self.server.count(fault)
                self._send(status, reply[: len(reply) // 2], headers, len(reply) + 1)
                self.close_connection = True
                return
            case "reply replaced by nonsense" if self.command == "GET":
                self.server.count(fault)
                status, reply = 200, b"<html>It works!</html>"
            case "answered 502 by a proxy":
                self.server.count(fault)
                status, reply = 502, b"<html>Bad gateway</html>"
        self._send(status, reply, headers, len(reply))

    def _send(self, status: int, reply: bytes, headers: dict[str, str], length: int) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("content-length", str(length))
        self.end_headers()
        self.wfile.write(reply)

    def _ask(self, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        connection = HTTPConnection(self.server.target, timeout=SECONDS)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            kept = {
                name: value
                for name, value in answer.getheaders()
                if name.lower() in {"content-type", "retry-after"}
            }
            return answer.status, answer.read(), kept
        finally:
            connection.close()

    def _hang_up(self, fault: str) -> None:
        if fault:
            self.server.count(fault)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True


@contextmanager
def faulty_proxy(url: str, share: float, seed: int) -> Iterator[FaultyProxy]:
    """A proxy in a thread."""
    proxy = FaultyProxy(url, share, seed)
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()
