"""Running the server: listening, and closing so that nothing that was judged is lost."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn

from mctskernel.core.device import DeviceError
from mctskernel.executors.http_api import ServerStatus
from mctskernel.serving.admission import LOOPBACK_NAMES, Admission
from mctskernel.serving.connections import connections
from mctskernel.serving.orphans import Nursery
from mctskernel.serving.routes import make_application
from mctskernel.serving.service import Follow, Service
from mctskernel.serving.settings import Settings
from mctskernel.serving.tokens import Clients

KEEP_ALIVE_SECONDS = 75
LAST_ANSWERS_SECONDS = 5
TICK_SECONDS = 0.05
REPORT_SECONDS = 0.5


@dataclass(frozen=True)
class Address:
    """Where a server listens, with a certificate and its key where it speaks TLS."""

    host: str = "127.0.0.1"
    port: int = 8765
    certificate: Path | None = None
    key: Path | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether nobody but this machine reaches it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def listen(self) -> socket.socket:
        """A socket that listens there. Raises DeviceError for an address that can't be had."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            listening = socket.create_server((self.host, self.port), family=family)
        except OSError as error:
            reason = error.strerror or os.strerror(error.errno or 0)
            raise DeviceError(f"Port {self.port} of {self.host} can't be served: {reason}.") from error
        # asyncio leaves Nagle's algorithm on for a socket that doesn't name its protocol: answers then take 40 ms more.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening

    def url(self, listening: socket.socket) -> str:
        """What a client is told."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.certificate else 'http'}://{host}:{listening.getsockname()[1]}"


class Server:
    """Serves until it is told to `stop`, by SIGINT or SIGTERM if it runs in the main thread; a second one ends it.

    `follow` is told in sentences what sessions come and go, `watch` twice a second how busy the machine is. `nursery`
    starts the processes of sessions.
    """

    def __init__(
        self,
        settings: Settings,
        clients: Clients,
        address: Address,
        follow: Follow = lambda _: None,
        watch: Callable[[ServerStatus], None] = lambda _: None,
        *,
        nursery: Nursery | None = None,
    ) -> None:
        self._settings, self._clients, self._address = settings, clients, address
        self._follow, self._watch = follow, watch
        self._nursery = nursery or Nursery()
        self._stops = 0
        self._web: uvicorn.Server | None = None

    def run(self, listening: socket.socket) -> None:
        """Serve a socket until the end. Raises DeviceError for a certificate that can't be used."""
        with listening:
            asyncio.run(self._run(listening))

    def stop(self) -> None:
        """Take no more work and end when what is being judged is done, from any thread; at once when told again."""
        self._stops += 1
        if self._stops > 1 and self._web is not None:
            self._web.should_exit = self._web.force_exit = True

    async def _run(self, listening: socket.socket) -> None:
        async with Service(self._settings, self._nursery, self._follow) as service:
            hosts = LOOPBACK_NAMES if self._address.is_loopback else None
            application = make_application(service, self._settings.limits)
            admission = Admission(application, self._clients, self._settings.limits, hosts)
            self._web = web = _Web(self._config(admission), self.stop)
            followers = asyncio.gather(self._close(service, web), self._report(service))
            try:
                await web.serve(sockets=[listening])
            finally:
                followers.cancel()
                await asyncio.gather(followers, return_exceptions=True)

    def _config(self, admission: Admission) -> uvicorn.Config:
        config = uvicorn.Config(
            admission,
            http=connections(self._settings.limits),
            ws="none",
            lifespan="off",
            # Whoever sends what isn't HTTP would fill a log.
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            # Nobody stands between: what a client says of its address is its own invention.
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=LAST_ANSWERS_SECONDS,
            ssl_certfile=self._address.certificate,
            ssl_keyfile=self._address.key,
        )
        try:
            config.load()
        except OSError as error:
            raise DeviceError(
                f"The certificate {self._address.certificate} can't be used: {error}."
            ) from error
        return config

    async def _close(self, service: Service, web: uvicorn.Server) -> None:
        while not self._stops:
            await asyncio.sleep(TICK_SECONDS)
        self._follow(
            "No more work is taken; what is being judged is waited for. Ctrl-C again ends it at once."
        )
        await service.drain(self._settings.limits.grace_seconds)
        web.should_exit = True

    async def _report(self, service: Service) -> None:
        while True:
            self._watch(service.status)
            await asyncio.sleep(REPORT_SECONDS)


class _Web(uvicorn.Server):
    """Leaves to another what a signal means."""

    def __init__(self, config: uvicorn.Config, signalled: Callable[[], None]) -> None:
        super().__init__(config)
        self._signalled = signalled

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        self._signalled()
