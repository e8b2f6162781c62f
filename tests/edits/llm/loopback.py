"""An OpenAI-compatible server on the loopback device that behaves as it is told."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USAGE = {"prompt_tokens": 120, "completion_tokens": 30}


@dataclass
class Received:
    """A request: its parameters, and the headers in lower case."""

    body: dict[str, Any]
    headers: dict[str, str]
    path: str


class Handler(BaseHTTPRequestHandler):
    """Answers a request with the next behaviour of its server."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        body = json.loads(self.rfile.read(length))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.next_behaviour(Received(body, headers, self.path))(self)

    def log_message(self, format: str, *args: object) -> None:
        """Be quiet."""

    def send(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


Behaviour = Callable[[Handler], None]


@dataclass
class Server(ThreadingHTTPServer):
    """Behaves as each of `behaviours` in turn, and from then on as the last."""

    behaviours: Sequence[Behaviour]
    received: list[Received] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    daemon_threads = True
    block_on_close = False

    def __post_init__(self) -> None:
        self._arrived = threading.Condition()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def next_behaviour(self, request: Received) -> Behaviour:
        with self._arrived:
            self.received.append(request)
            self._arrived.notify_all()
            return self.behaviours[min(len(self.received), len(self.behaviours)) - 1]

    def wait_for(self, requests: int) -> None:
        """Wait until so many requests have arrived."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.received) >= requests, 60)

    def handle_error(self, *_: object) -> None:
        """Clients that go away are part of the tests."""


@contextmanager
def serving(*behaviours: Behaviour) -> Iterator[Server]:
    """A server that behaves so."""
    server = Server(behaviours)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stopping.set()
        server.shutdown()
        thread.join()
        server.server_close()


def completion(
    content: object = "fine", *, usage: object = USAGE, finish: str = "stop", **message: object
) -> dict[str, Any]:
    """The body of a chat completion."""
    choice = {
        "index": 0,
        "finish_reason": finish,
        "message": {"role": "assistant", "content": content, **message},
    }
    body: dict[str, Any] = {"id": "x", "object": "chat.completion", "choices": [choice]}
    return body if usage is None else {**body, "usage": usage}


def replies(content: object = "fine", **details: Any) -> Behaviour:
    """A chat completion."""
    return lambda handler: handler.send(json.dumps(completion(content, **details)).encode())


def says(body: bytes, **headers: str) -> Behaviour:
    """Any bytes, with status 200."""
    return lambda handler: handler.send(body, **headers)


def fails(status: int, message: str = "no", **details: str) -> Behaviour:
    """An error as OpenAI writes it: `param` and `code` go into it, everything else is a header."""
    named = {name: details.pop(name) for name in ("param", "code") if name in details}
    body = json.dumps({"error": {"message": message, "type": "error", **named}}).encode()
    return lambda handler: handler.send(body, status, **details)


def hangs(handler: Handler) -> None:
    """Says nothing until the test is over."""
    handler.server.stopping.wait(30)
    handler.close_connection = True


def resets(handler: Handler) -> None:
    """Ends the connection as a crashed process does."""
    linger = struct.pack("ii", 1, 0)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    handler.connection.close()
    handler.close_connection = True


def cuts_off(handler: Handler) -> None:
    """Promises a reply and closes in the middle of it."""
    body = json.dumps(completion("half of a kernel")).encode()
    handler.send_response(200)
    handler.send_header("content-length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body[: len(body) // 2])
    handler.close_connection = True


def drips(handler: Handler) -> None:
    """A byte every twentieth of a second, for as long as someone listens."""
    handler.send_response(200)
    handler.send_header("content-length", "100000")
    handler.end_headers()
    while not handler.server.stopping.is_set():
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)
