"""A server on loopback with stubs for executors, and its clients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from mctskernel.core.kernel import Kernel
from mctskernel.executors.http_api import (
    SESSIONS,
    GateSubmission,
    OpenSession,
    Result,
    Results,
    SessionOpened,
    Submission,
    decode,
    encode,
    evaluation_path,
    gate_path,
    results_path,
)
from mctskernel.serving.server import Address, Server
from mctskernel.serving.settings import Limits, Settings
from mctskernel.serving.tokens import clients_of

TOKENS = {"alice": "alice-secret", "bob": "bob-secret"}
STUB = "tests.serving.stub:open_stub"


@pytest.fixture(scope="session", autouse=True)
def stubs_found() -> Iterator[None]:
    """Have the processes of sessions find the stubs, wherever the tests are started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2]))
        yield


@dataclass
class Client:
    """One client of a server, as plain HTTP."""

    http: httpx2.Client
    session: str = ""

    def open(self, words: str = "") -> str:
        answer = self.http.post(SESSIONS, content=encode(OpenSession({"stub": words.encode()})))
        assert answer.status_code == 201, answer.text
        self.session = decode(answer.content, SessionOpened).session
        return self.session

    def put(self, key: str, source: str) -> httpx2.Response:
        return self.http.put(evaluation_path(self.session, key), content=encode(Submission(Kernel(source))))

    def put_gate(self, key: str, source: str, baseline: str) -> httpx2.Response:
        body = encode(GateSubmission(Kernel(source), Kernel(baseline)))
        return self.http.put(gate_path(self.session, key), content=body)

    def results(self, after: int = 0, wait: float = 10.0) -> tuple[Result, ...]:
        answer = self.http.get(results_path(self.session, after, wait))
        assert answer.status_code == 200, answer.text
        return decode(answer.content, Results).results

    def judged(self, count: int) -> list[Result]:
        """So many results, each acknowledged."""
        found: list[Result] = []
        while len(found) < count:
            news = self.results(found[-1].number if found else 0)
            assert news, found
            found += news
        return found


@dataclass
class Served:
    """A running server."""

    server: Server
    url: str
    port: int
    said: list[str]
    thread: threading.Thread
    open_clients: ExitStack = field(default_factory=ExitStack)

    def client(self, name: str = "alice", **options: Any) -> Client:
        headers = {"authorization": f"Bearer {TOKENS[name]}"}
        http = httpx2.Client(base_url=self.url, headers=headers, timeout=30, trust_env=False, **options)
        return Client(self.open_clients.enter_context(http))


@contextmanager
def serving(settings: Settings, certificate: Path | None = None, key: Path | None = None) -> Iterator[Served]:
    """A server in a thread."""
    said: list[str] = []
    address = Address("127.0.0.1", 0, certificate, key)
    listening = address.listen()
    url, port = address.url(listening), listening.getsockname()[1]
    server = Server(settings, clients_of(TOKENS), address, said.append)
    thread = threading.Thread(target=server.run, args=(listening,))
    thread.start()
    served = Served(server, url, port, said, thread)
    try:
        yield served
    finally:
        served.open_clients.close()
        server.stop()
        server.stop()
        thread.join(30)
        assert not thread.is_alive()


Serve = Callable[..., Served]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers with limits that differ from the usual ones."""
    with ExitStack() as stack:
        yield lambda workers=2, **limits: stack.enter_context(
            serving(Settings("model", workers=workers, limits=replace(Limits(), **limits), opener=STUB))
        )


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """A server with the usual limits, shared by all tests that leave it as it is."""
    limits = Limits(burst=10_000, failures_per_minute=1000)
    with serving(Settings("model", workers=2, limits=limits, opener=STUB)) as found:
        yield found
