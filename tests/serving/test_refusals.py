"""Whom the server refuses, and how: each with the status that says why."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import time

import httpx2
import pytest

from mctskernel.core.kernel import Kernel
from mctskernel.executors.http_api import (
    SESSIONS,
    STATUS,
    Problem,
    Submission,
    decode,
    encode,
    evaluation_path,
)
from tests.serving.conftest import TOKENS, Serve, Served

OWN = {"authorization": f"Bearer {TOKENS['alice']}"}


def sentence(answer: httpx2.Response) -> str:
    return decode(answer.content, Problem).sentence


def said(served: Served, *parts: bytes, pause: float = 0.0) -> bytes:
    """What the server answers to bytes that come with pauses, until it hangs up."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(pause)
        answer = b""
        while more := connection.recv(1 << 16):
            answer += more
        return answer


def test_whoever_has_no_right_token_learns_nothing(served: Served) -> None:
    wrong = [
        "",
        "Bearer wrong",
        "Bearer",
        f"Basic {TOKENS['alice']}",
        TOKENS["alice"],
        f"Bearer {TOKENS['alice']}x",
    ]
    for authorization, path in [
        (each, path) for each in wrong for path in (STATUS, "/openapi.json", "/nowhere")
    ]:
        answer = httpx2.get(served.url + path, headers={"authorization": authorization}, trust_env=False)

        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert sentence(answer) == "A right token is needed: `Authorization: Bearer TOKEN`."


def test_who_guesses_tokens_is_slowed_down_and_nobody_else(serve: Serve) -> None:
    served = serve(failures_per_minute=3)
    with httpx2.Client(base_url=served.url, trust_env=False) as stranger:
        answers = [stranger.get(STATUS) for _ in range(5)]

    assert [answer.status_code for answer in answers] == [401, 401, 401, 429, 429]
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert served.client().http.get(STATUS).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{"host": "evil.example"}, {"host": "127.0.0.1.evil.example:80"}, {"origin": "http://evil.example"}],
)
def test_a_page_of_another_site_gets_nothing(served: Served, headers: dict[str, str]) -> None:
    answer = httpx2.get(served.url + STATUS, headers={**OWN, **headers}, trust_env=False)

    assert answer.status_code == 400
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:1", "LOCALHOST", "127.0.0.1:80", "[::1]:80", "[::1]"]
)
def test_this_machine_has_several_names(served: Served, host: str) -> None:
    assert httpx2.get(served.url + STATUS, headers={**OWN, "host": host}, trust_env=False).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", SESSIONS, b"", 400),
        ("POST", SESSIONS, b"{", 400),
        ("POST", SESSIONS, b"[" * 100_000, 400),
        ("POST", SESSIONS, b'{"task": {"a": "\xff"}}', 400),
        ("POST", SESSIONS, b'{"task": {"a": "?"}}', 400),
        ("POST", SESSIONS, b'{"task": {}, "more": 1}', 400),
        ("PUT", evaluation_path("none", "../key"), b"{}", 404),
        ("PUT", evaluation_path("none", "a%20b"), encode(Submission(Kernel(""))), 400),
        ("PUT", evaluation_path("none", "k" * 65), encode(Submission(Kernel(""))), 400),
        ("PUT", evaluation_path("none", "key"), encode(Submission(Kernel(""))), 404),
        ("GET", f"{SESSIONS}/none/results?after=-1", b"", 400),
        ("GET", f"{SESSIONS}/none/results?after=one", b"", 400),
        ("GET", f"{SESSIONS}/none/results?wait=31", b"", 400),
        ("GET", f"{SESSIONS}/none/results?wait=nan", b"", 400),
        ("GET", f"{SESSIONS}/none/results", b"", 404),
        ("GET", "/nowhere", b"", 404),
        ("GET", "/", b"", 404),
        ("PATCH", SESSIONS, b"", 405),
    ],
)
def test_what_is_malformed_is_said_to_be(
    served: Served, method: str, path: str, body: bytes, status: int
) -> None:
    answer = served.client().http.request(method, path, content=body)

    assert answer.status_code == status
    assert sentence(answer)
    assert len(answer.content) < 1000


def test_a_body_that_is_too_large_is_refused_before_it_is_read(served: Served) -> None:
    head = (
        b"PUT /v1/sessions/a/evaluations/b HTTP/1.1\r\nhost: localhost\r\nauthorization: %b\r\n"
        % OWN["authorization"].encode()
    )

    announced = said(served, head + b"content-length: 1000000000000\r\n\r\n")
    assert announced.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in announced


def test_a_body_without_a_length_is_read_no_further_than_it_may_be(serve: Serve) -> None:
    served = serve(kernel_bytes=1000)
    chunks = (b"x" * 100 for _ in range(20))

    answer = served.client().http.put(evaluation_path("a", "b"), content=chunks)

    assert answer.status_code == 413
    assert sentence(answer) == "The body is too large."


def test_a_large_task_may_be_larger_than_a_kernel(serve: Serve) -> None:
    client = serve(kernel_bytes=1000).client()
    client.open("x" * 5000)

    assert client.put("key", "x" * 2000).status_code == 413


def test_a_body_that_comes_slowly_is_waited_for_so_long(serve: Serve) -> None:
    served = serve(body_seconds=0.3)
    head = f"PUT /v1/sessions/a/evaluations/b HTTP/1.1\r\nhost: localhost\r\nauthorization: {OWN['authorization']}\r\n"

    answer = said(served, f"{head}content-length: 100\r\n\r\n".encode(), b"{", b'"', b"k", pause=0.05)

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"sentence":' in answer


@pytest.mark.parametrize("before", [b"", f"GET {STATUS} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()])
def test_a_head_that_comes_slowly_is_not_waited_for(serve: Serve, before: bytes) -> None:
    served = serve(header_seconds=0.3)
    began = time.monotonic()

    with contextlib.suppress(ConnectionError):
        said(served, before, b"GET / HTTP/1.1\r\n", b"a: b\r\n", pause=0.4)

    assert time.monotonic() - began < 5


def test_so_many_connections_and_no_more(serve: Serve) -> None:
    served = serve(connections=2)
    first, second = (socket.create_connection(("127.0.0.1", served.port)) for _ in range(2))
    with first, second:
        time.sleep(0.2)
        answer = said(served)

    assert answer.startswith(b"HTTP/1.1 429 ")
    assert b"retry-after: 5\r\n" in answer
    time.sleep(0.2)
    assert served.client().http.get(STATUS).status_code == 200


def test_a_burst_is_refused_and_other_clients_are_not(serve: Serve) -> None:
    served = serve(burst=5, requests_per_second=1.0)
    client = served.client("alice")
    answers = [client.http.get(STATUS) for _ in range(8)]

    assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 3
    assert answers[-1].headers["retry-after"] == "1"
    assert served.client("bob").http.get(STATUS).status_code == 200


def test_the_access_log_says_who_asked_for_what_and_holds_no_token(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "mctskernel.serving.access"):
        served.client().http.get(f"{STATUS}?a=b%0Ac")
        httpx2.get(served.url + STATUS, headers={"authorization": "Bearer guess"}, trust_env=False)
        # Written down once the answer has gone.
        deadline = time.monotonic() + 10
        while f"- GET {STATUS} 401" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.01)

    assert [re.sub(r"\d+\.\d+ s", "T", message) for message in caplog.messages if "/v1" in message] == [
        f"alice GET {STATUS} 200 T",
        f"- GET {STATUS} 401 T",
    ]
    assert "secret" not in caplog.text
    assert "guess" not in caplog.text
