"""The connection of this process to a Ray cluster: one that is running, or one of its own on this machine."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray._private.worker as ray_worker

from mctskernel.core.device import DeviceError
from mctskernel.profiling.processes.child_process import environment_without_secrets

OWN = "local"
"""The address that always starts a new cluster on this machine; Ray's own word for it."""

STORE_BYTES = 256 << 20
"""The object store of a cluster of our own."""

MAX_FOLDER = 40
"""Characters in the path of a cluster of our own: the names of its sockets may have 107 in all."""


@dataclass(frozen=True)
class Cluster:
    """A cluster that this process is connected to. `note` says where it is; `own` that it can't grow."""

    note: str
    own: bool = False

    def amounts(self, resource: str) -> list[int]:
        """How many of a resource ("CPU" or "GPU") each living node has."""
        nodes = ray.nodes()  # type: ignore[no-untyped-call]
        return [int(node["Resources"].get(resource, 0)) for node in nodes if node["Alive"]]


@contextmanager
def connected(address: str, cpus: int) -> Iterator[Cluster]:
    """Connect to the cluster at an address.

    An empty address is that of RAY_ADDRESS or `ray start`, or else a new cluster with `cpus`, which ends with the
    context. Raises DeviceError.
    """
    if ray.is_initialized():
        # The caller connected this process, and disconnects it too.
        yield Cluster("The evaluations ran in the Ray cluster that this process was connected to.")
        return
    address = address or os.environ.get("RAY_ADDRESS", "")
    with ExitStack() as stack:
        stack.enter_context(_no_worker_logs())
        if address != OWN and _join(address):
            stack.callback(ray.shutdown)
            where = ray.get_runtime_context().gcs_address
            yield Cluster(f"The evaluations ran in the Ray cluster at {where}.")
        else:
            _start(cpus, stack)
            yield Cluster(
                "The evaluations ran in a Ray cluster that was started here for this run.", own=True
            )


def _join(address: str) -> bool:
    """Connect to a running cluster; False when none was named and none is there."""
    try:
        _initialise(address=address or "auto")
    except (ConnectionError, RuntimeError, ValueError) as error:
        if not address and isinstance(error, ConnectionError):
            return False
        raise DeviceError(
            f"The Ray cluster {address or 'of `ray start` on this machine'} can't be used: {error} Start one with "
            "`ray start --head`, or leave out the address for a new one."
        ) from error
    return True


def _start(cpus: int, stack: ExitStack) -> None:
    temporary = tempfile.gettempdir()
    short = temporary if len(temporary) <= MAX_FOLDER else "/tmp"  # noqa: S108 - a new folder in it
    folder = Path(tempfile.mkdtemp(prefix="mctskernel-ray-", dir=short))
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
    """Connect, and keep this process's handler of SIGTERM: Ray's own would exit at once."""
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if main else None
    try:
        ray.init(**arguments, logging_level=logging.ERROR, log_to_driver=False)
    finally:
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)


@contextmanager
def _no_worker_logs() -> Iterator[None]:
    """Keep Ray from reporting lost processes on standard output, for which `log_to_driver` is no switch."""
    before, ray_worker._worker_logs_enabled = ray_worker._worker_logs_enabled, False
    try:
        yield
    finally:
        ray_worker._worker_logs_enabled = before


@contextmanager
def _without_secrets() -> Iterator[None]:
    """Hide secrets from a cluster's processes, which inherit this one's environment, and turn usage reports off."""
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
