"""The connection of this process with a Ray cluster: one that runs, or else one of its own on this machine."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
import ray._private.worker as ray_worker

from mctskernel.core.device import DeviceError
from mctskernel.executors.ray.roster import Node
from mctskernel.profiling.processes.child_process import environment_without_secrets

OWN = "local"
"""The address of a cluster that is started here, whatever else runs; Ray's own word for it."""

STORE_BYTES = 256 << 20
"""Of a cluster of our own, for what is built and not yet judged."""

MAX_FOLDER = 40
"""Characters of the folder that a cluster of our own is in: the names of its sockets may have 107 in all."""

_QUIET: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}


@dataclass(frozen=True)
class Cluster:
    """A cluster that this process is connected with. `remark` says where it is; `own` that it can't grow."""

    remark: str
    own: bool = False

    @property
    def most_gpus(self) -> int:
        """How many GPUs the node with the most has."""
        return max((node.gpus for node in self.nodes()), default=0)

    def nodes(self) -> list[Node]:
        """Those that are alive."""
        return [
            Node(each["NodeID"], int(each["Resources"].get("CPU", 0)), int(each["Resources"].get("GPU", 0)))
            for each in ray.nodes()  # type: ignore[no-untyped-call]
            if each["Alive"]
        ]


@dataclass
class _Connection:
    """The one connection that Ray allows a process, and how many use it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0
    address: str = ""
    cluster: Cluster | None = None
    closing: ExitStack = field(default_factory=ExitStack)


_CONNECTION = _Connection()


@contextmanager
def connected(address: str, cpus: int) -> Iterator[Cluster]:
    """The cluster at an address; at an empty one that of RAY_ADDRESS or `ray start`, else a new one with `cpus`.

    Whoever asks for the same address meanwhile shares the connection. Raises DeviceError.
    """
    cluster = _enter(address or os.environ.get("RAY_ADDRESS", ""), cpus)
    try:
        yield cluster
    finally:
        _leave()


def _enter(address: str, cpus: int) -> Cluster:
    with _CONNECTION.lock:
        if _CONNECTION.users and _CONNECTION.address != address:
            raise DeviceError(
                f"This process uses the Ray cluster at {_CONNECTION.address or 'the default address'}; it can't use "
                f"the one at {address or 'the default address'} at the same time."
            )
        if _CONNECTION.cluster is None:
            with ExitStack() as stack:
                _CONNECTION.cluster = _connect(address, cpus, stack)
                _CONNECTION.closing, _CONNECTION.address = stack.pop_all(), address
        _CONNECTION.users += 1
        return _CONNECTION.cluster


def _leave() -> None:
    with _CONNECTION.lock:
        _CONNECTION.users -= 1
        if not _CONNECTION.users:
            _CONNECTION.cluster = None
            _CONNECTION.closing.close()


def _connect(address: str, cpus: int, stack: ExitStack) -> Cluster:
    if ray.is_initialized():
        # By whoever calls this package, who ends it too.
        return Cluster(
            "The evaluators were processes of the Ray cluster that this process was connected with."
        )
    stack.enter_context(_silence())
    if address != OWN and _join(address):
        stack.callback(ray.shutdown)
        where = ray.get_runtime_context().gcs_address
        return Cluster(f"The evaluators were processes of the Ray cluster at {where}.")
    _start(cpus, stack)
    return Cluster(
        "The evaluators were processes of a Ray cluster that was started here for this run.", own=True
    )


def _join(address: str) -> bool:
    """Connect with a cluster that runs; False when none was asked for and none is there."""
    try:
        _initialise(address=address or "auto")
    except (ConnectionError, RuntimeError, ValueError) as error:
        if not address and isinstance(error, ConnectionError):
            return False
        where = address or "which `ray start` has left its address of here"
        raise DeviceError(
            f"The Ray cluster {where} can't be used: {error} Start one with `ray start --head`, or leave out the "
            "address for one of this run's own."
        ) from error
    return True


def _start(cpus: int, stack: ExitStack) -> None:
    folder = Path(tempfile.mkdtemp(prefix="mctskernel-ray-", dir=_short_folder()))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    with _without_secrets():
        _initialise(
            address=OWN,
            num_cpus=cpus,
            include_dashboard=False,
            object_store_memory=STORE_BYTES,
            _temp_dir=str(folder),
        )
    stack.callback(ray.shutdown)


def _initialise(**arguments: Any) -> None:
    """Connect, and keep what this process does when it is told to stop: Ray would have it exit on the spot."""
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if main else None
    try:
        ray.init(**arguments, **_QUIET)
    finally:
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)


@contextmanager
def _silence() -> Iterator[None]:
    """Keep Ray from telling of every lost process on our standard output: whoever is lost is noticed here.

    It has a switch for what its processes print (`log_to_driver`), and none for this.
    """
    before, ray_worker._worker_logs_enabled = ray_worker._worker_logs_enabled, False
    try:
        yield
    finally:
        ray_worker._worker_logs_enabled = before


def _short_folder() -> str:
    return found if len(found := tempfile.gettempdir()) <= MAX_FOLDER else "/tmp"  # noqa: S108 - a new folder in it


@contextmanager
def _without_secrets() -> Iterator[None]:
    """No secrets for a cluster's processes, which start with the variables of this one, and no reports of theirs."""
    kept = environment_without_secrets()
    taken = {
        name: value for name, value in os.environ.items() if name not in kept and not name.startswith("RAY_")
    }
    for name in taken:
        del os.environ[name]
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        yield
    finally:
        os.environ.update(taken)
