"""What a server refuses, and with which status."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import msgspec

from mctskernel.core.kernel import Kernel
from mctskernel.executors.http_api import (
    SESSIONS,
    STATUS,
    MalformedError,
    OpenSession,
    Problem,
    SessionOpened,
    Submission,
    decode,
    encode,
    evaluation_path,
)

LIMITS: dict[str, float] = {
    "header_seconds": 1.0,
    "body_seconds": 1.0,
    "client_queue": 8,
    "burst": 60,
    "requests_per_second": 1.0,
}
"""Where the usual ones would take a client longer to reach."""


class Refusal(msgspec.Struct, frozen=True):
    """What a client did, the status that it had to have, what it was told, and after how many seconds."""

    what: str
    wanted: int
    status: int
    sentence: str
    retry_after: str
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether it was refused as it should be; 0 is a closed connection."""
        return self.status == self.wanted


def refusals(url: str, token: str, task: Path) -> list[Refusal]:
    """Try everything that has to be refused."""
    with httpx2.Client(
        base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60, trust_env=False
    ) as http:
        tried: tuple[tuple[str, int, Callable[[], httpx2.Response | _Raw]], ...] = (
            ("no token", 401, lambda: httpx2.get(url + STATUS, trust_env=False)),
            ("a wrong token", 401, lambda: http.get(STATUS, headers={"Authorization": "Bearer guessed"})),
            (
                "a body that says that it has 10 GB",
                413,
                lambda: _raw(url, _head("POST", SESSIONS, token, 10**10)),
            ),
            ("a body that isn't JSON", 400, lambda: http.post(SESSIONS, content=b"{")),
            ("a task that can't be used", 422, lambda: _open(http, {"task.toml": b"name = 1"})),
            ("a session that isn't there", 404, lambda: http.get(f"{SESSIONS}/nobody")),
            ("headers that never end", 0, lambda: _raw(url, _head("GET", STATUS, token, 0)[:-2])),
            ("a body that never comes", 408, lambda: _raw(url, _head("POST", SESSIONS, token, 100))),
            ("another kernel under the same key", 409, lambda: _same_key(http, task)),
            ("more kernels than a queue takes", 429, lambda: _full_queue(http, task)),
            ("a burst of requests", 429, lambda: _burst(http)),
        )
        return [_tried(*each) for each in tried]


class _Raw(msgspec.Struct, frozen=True):
    """What came over a socket before it was closed."""

    data: bytes


def _tried(what: str, wanted: int, attempt: Callable[[], httpx2.Response | _Raw]) -> Refusal:
    began = time.monotonic()
    answer = attempt()
    seconds = round(time.monotonic() - began, 3)
    if isinstance(answer, _Raw):
        head, _, body = answer.data.partition(b"\r\n\r\n")
        words = head.split()
        return Refusal(what, wanted, int(words[1]) if len(words) > 1 else 0, _sentence(body), "", seconds)
    retry = answer.headers.get("retry-after", "")
    return Refusal(what, wanted, answer.status_code, _sentence(answer.content), retry, seconds)


def _sentence(body: bytes) -> str:
    try:
        return decode(body, Problem).sentence
    except MalformedError:
        return ""


def _head(method: str, path: str, token: str, length: int) -> bytes:
    return (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


def _raw(url: str, data: bytes) -> _Raw:
    """What is answered to these bytes, and nothing more, until the connection is closed or an answer is whole."""
    parts = urlsplit(url)
    received = b""
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=30) as connection:
        connection.sendall(data)
        while chunk := connection.recv(65536):
            received += chunk
            if received.endswith(b"}"):
                break
    return _Raw(received)


def _open(http: httpx2.Client, files: dict[str, bytes]) -> httpx2.Response:
    return http.post(SESSIONS, content=encode(OpenSession(files)))


def _session(http: httpx2.Client, task: Path) -> str:
    files = {file.name: file.read_bytes() for file in task.iterdir() if file.is_file()}
    return decode(_open(http, files).content, SessionOpened).session


def _put(http: httpx2.Client, session: str, key: str, source: str) -> httpx2.Response:
    return http.put(evaluation_path(session, key), content=encode(Submission(Kernel(source))))


def _same_key(http: httpx2.Client, task: Path) -> httpx2.Response:
    session = _session(http, task)
    _put(http, session, "key", "one")
    return _put(http, session, "key", "another")


def _full_queue(http: httpx2.Client, task: Path) -> httpx2.Response:
    session = _session(http, task)
    answers = (_put(http, session, f"key-{number}", str(number)) for number in range(100))
    return next(answer for answer in answers if answer.status_code != 202)


def _burst(http: httpx2.Client) -> httpx2.Response:
    answers = (http.get(STATUS) for _ in range(2000))
    return next(answer for answer in answers if answer.status_code != 200)
