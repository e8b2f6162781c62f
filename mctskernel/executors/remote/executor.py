"""An executor whose evaluations are done by a server."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from types import TracebackType
from typing import Self

from mctskernel.core.background import Background
from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Kernel
from mctskernel.core.links import stray_link
from mctskernel.executors.http_api import (
    STATUS,
    GateSubmission,
    OpenSession,
    ServerStatus,
    Submission,
    decode,
)
from mctskernel.executors.remote.address import Address, address_of
from mctskernel.executors.remote.server import Patience, Reply, Request, Server
from mctskernel.executors.remote.session import Session
from mctskernel.executors.tickets import Tickets
from mctskernel.profiling.architecture import FILE_SUFFIX

_LOG = logging.getLogger(__name__)

PATIENCE = Patience()


def open_remote(spec: DeviceSpec, workers: int = 0) -> RemoteExecutor:
    """What evaluates kernels on the server whose URL is the kind of the device; use it as a context manager.

    `workers` are evaluations in flight, at the most; 0 leaves that to the server. Raises DeviceError.
    """
    return RemoteExecutor(spec, address_of(spec.kind), workers=workers)


def server_status(url: str, patience: Patience = PATIENCE) -> ServerStatus:
    """What a server judges on. Raises DeviceError when it can't be asked."""
    server = Server(address_of(url), patience)
    background = Background("server-status", at_end=server.close)
    try:
        return background.run(_status(server))
    finally:
        background.close()


class RemoteExecutor:
    """Evaluations on a server, in a session that outlives dropped connections and the server itself.

    Use it as a context manager, or call `close`. Not shared between threads.
    """

    def __init__(
        self, spec: DeviceSpec, address: Address, *, workers: int = 0, patience: Patience = PATIENCE
    ) -> None:
        if workers < 0:
            raise ValueError(f"An executor can't have {workers} workers.")
        self._workers = workers
        self._tickets = Tickets()
        self._server = Server(address, patience)
        self._session = Session(self._server, _opening(spec))
        self._background = Background("remote", at_end=self._session.close)
        try:
            self._opened = self._background.run(self._session.open())
        except BaseException:
            self.close()
            raise

    @property
    def capacity(self) -> int:
        """How many evaluations can be in flight: as many as the server's machine has, or fewer if so was asked.

        Never none: a server that has no room for the moment lets an evaluation wait.
        """
        return min(self._workers or self._session.capacity, self._session.capacity)

    def submit(self, ticket: int, kernel: Kernel) -> None:
        """Begin an evaluation. `ticket`, not in flight already, comes back with its result."""
        self._tickets.begin(ticket)
        self._background.begin(self._evaluate(ticket, kernel))

    def wait(self, timeout: float | None = None) -> list[tuple[int, Evaluation]]:
        """The evaluations that have finished since the last call, waiting for the first of them.

        Empty when nothing is in flight, or when nothing finished in `timeout` seconds. Raises DeviceError
        when the server is gone for good, or refuses.
        """
        return self._tickets.wait(timeout)

    def last_gate(self, kernel: Kernel, baseline: Kernel) -> Evaluation:
        """Evaluate a kernel at what was held out, on the server; waits for it.

        Nobody asks for remarks meanwhile, so what it keeps us waiting for is logged. Raises DeviceError.
        """
        return self._background.run(self._at_last_gate(GateSubmission(kernel, baseline)))

    def fingerprint(self) -> dict[str, str]:
        """That of the server's device."""
        return dict(self._opened.fingerprint)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the user should know of the server's machine, and what it keeps us waiting for."""
        waiting = self._server.waiting
        return (*self._opened.remarks, *((waiting,) if waiting else ()))

    def close(self) -> None:
        """End what is in flight, and the session if the server is there to hear it."""
        self._background.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _evaluate(self, ticket: int, kernel: Kernel) -> None:
        try:
            result: Evaluation | Exception = await self._session.evaluate(Submission(kernel))
        except Exception as error:  # noqa: BLE001 - raised again by `wait`, in its caller's thread
            result = error
        self._tickets.finish(ticket, result)

    async def _at_last_gate(self, finalist: GateSubmission) -> Evaluation:
        telling = asyncio.create_task(_tell_waiting(self._server))
        try:
            return await self._session.evaluate(finalist)
        finally:
            telling.cancel()


async def _tell_waiting(server: Server) -> None:
    """Log what keeps a request waiting, each sentence once."""
    told = {""}
    while True:
        if (waiting := server.waiting) not in told:
            told.add(waiting)
            _LOG.warning("%s", waiting)
        await asyncio.sleep(server.patience.telling)


async def _status(server: Server) -> ServerStatus:
    request = Request("GET", STATUS, server.patience.request)
    found = await server.ask(request, partial(decode, kind=ServerStatus))
    if isinstance(found, Reply):
        raise DeviceError(server.refusal(found))
    return found


def _opening(spec: DeviceSpec) -> OpenSession:
    """The task, as a run keeps it: the files of its folder, and none of folders in it. Raises DeviceError."""
    try:
        if (stray := stray_link(spec.task_folder)) is not None:
            raise DeviceError(
                f"{stray} is a link that leads out of the task's folder: no file from there is sent."
            )
        files = {
            each.name: each.read_bytes() for each in sorted(spec.task_folder.iterdir()) if each.is_file()
        }
    except OSError as error:
        raise DeviceError(f"{error.filename or spec.task_folder} can't be read: {error.strerror}.") from error
    # A file describes a GPU that is modelled here, and no server has it.
    architecture = "" if spec.architecture.endswith(FILE_SUFFIX) else spec.architecture
    return OpenSession(files, spec.language, spec.seed, architecture, spec.trial)
