"""The connection of this process to a Ray cluster that is running."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import ray
import ray._private.worker as ray_worker

from mctskernel.core.device import DeviceError


@dataclass(frozen=True)
class Cluster:
    """A cluster that this process is connected to. `note` says where it is."""

    note: str

    def amounts(self, resource: str) -> list[int]:
        """How many of a resource ("CPU" or "GPU") each living node has."""
        nodes = ray.nodes()  # type: ignore[no-untyped-call]
        return [int(node["Resources"].get(resource, 0)) for node in nodes if node["Alive"]]


@contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """Connect to the cluster at an address; an empty one is that of RAY_ADDRESS or `ray start`. Raises DeviceError."""
    if ray.is_initialized():
        # The caller connected this process, and disconnects it too.
        yield Cluster("The evaluations ran in the Ray cluster that this process was connected to.")
        return
    address = address or os.environ.get("RAY_ADDRESS", "") or "auto"
    # Ray would report lost processes on standard output, for which `log_to_driver` is no switch.
    with patch.object(ray_worker, "_worker_logs_enabled", False):  # noqa: FBT003 - the value
        _join(address)
        try:
            yield Cluster(
                f"The evaluations ran in the Ray cluster at {ray.get_runtime_context().gcs_address}."
            )
        finally:
            ray.shutdown()


def _join(address: str) -> None:
    """Connect, and keep this process's handler of SIGTERM: Ray's own would exit at once."""
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if main else None
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = "of `ray start` on this machine" if address == "auto" else address
        raise DeviceError(
            f"The Ray cluster {where} can't be used: {error} Start one with `ray start --head`."
        ) from error
    finally:
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)
