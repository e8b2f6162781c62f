"""Searches against a server that is careless, and faults that happen to some of their requests."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from mctskernel.core.backoff import Backoff
from mctskernel.core.device import DeviceSpec
from mctskernel.core.kernel import Kernel
from mctskernel.executors.remote.address import address_of
from mctskernel.executors.remote.executor import RemoteExecutor
from mctskernel.executors.remote.server import Patience
from tests.executors.careless_server import CarelessServer, Fault, Handler, Request

QUICK = Patience(
    request=0.5,
    opening=0.5,
    poll=0.2,
    first=4.0,
    outage=8.0,
    audit=0.3,
    connect=0.5,
    backoff=Backoff(first=0.005, longest=0.05, patience=0.1),
)
HASTY = replace(QUICK, first=0.5, outage=0.4)


def connect(
    server: CarelessServer, task: Path, patience: Patience = QUICK, workers: int = 0
) -> RemoteExecutor:
    spec = DeviceSpec(server.url, task, seed=7)
    return RemoteExecutor(spec, address_of(server.url), workers=workers, patience=patience)


def kernel(number: int) -> Kernel:
    return Kernel(f"kernel {number}")


def drain(executor: RemoteExecutor, count: int) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    deadline = time.monotonic() + 20
    while len(found) < count and time.monotonic() < deadline:
        found += [(ticket, evaluation.message) for ticket, evaluation in executor.wait(0.1)]
    return found


def after(requests: int, fault: Fault, kind: str = "") -> Fault:
    """A fault from so many requests of a kind on; before that, and for other kinds, all is well."""
    seen = 0

    def later(handler: Handler, request: Request) -> bool:
        nonlocal seen
        if kind and request.kind != kind:
            return False
        seen += 1
        return seen > requests and fault(handler, request)

    return later


def first(fault: Fault, kind: str) -> Fault:
    """A fault that happens to the first request of a kind alone."""
    seen = 0

    def once(handler: Handler, request: Request) -> bool:
        nonlocal seen
        seen += request.kind == kind
        return seen == 1 and request.kind == kind and fault(handler, request)

    return once
