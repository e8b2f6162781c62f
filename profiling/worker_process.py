"""The worker process: opens one device and judges the kernels that its parent sends, until it is killed.

Run as `python -m mctskernel.profiling.worker_process SOCKET LIFELINE`, two inherited file descriptors.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import resource
import select
import signal
import socket
import sys
import traceback

from mctskernel.core.device import Device, DeviceError, DeviceLostError
from mctskernel.core.evaluation import Evaluation, Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import TaskError
from mctskernel.profiling.worker_protocol import (
    REQUESTS,
    Broken,
    Channel,
    Checked,
    Evaluate,
    Evaluated,
    FinalCheck,
    Fingerprint,
    Fingerprinted,
    Open,
    Ready,
    Reply,
    Request,
)

MAX_FILE_BYTES = 1 << 30


def main() -> None:
    """Serve requests from the socket until the parent hangs up."""
    connection, lifeline = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(lifeline)
    channel = Channel(socket.socket(fileno=connection))
    device: Device | None = None
    opened: Open | None = None
    while (request := _next_request(channel)) is not None:
        if isinstance(request, Open):
            opened = request
            try:
                device = open_limited(request)
            except (TaskError, DeviceError) as error:
                channel.send(Broken(str(error)))
                return
            channel.send(Ready())
            continue
        if device is None or opened is None:
            return
        reply = _answer(device, request, opened)
        channel.send(reply)
        if isinstance(reply, Broken) or (isinstance(reply, Evaluated | Checked) and reply.leaving):
            # No tidying up: what a broken CUDA context holds can't be given back, and trying may hang.
            os._exit(0)


def die_with_parent(lifeline: int) -> None:
    """End this process as soon as the other end of the pipe `lifeline` is closed, whatever it is doing.

    The kernel sends SIGIO, whose default action needs no Python to run: a thread that watches would wait for
    the interpreter's lock, and PR_SET_PDEATHSIG fires when the parent's *thread* ends.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
    closed, _, _ = select.select([lifeline], [], [], 0)
    if closed:
        os._exit(1)


def open_limited(request: Open) -> Device:
    """Open the requested device, then lower this process's limits for good."""
    module, _, name = request.opener.partition(":")
    device: Device = getattr(importlib.import_module(module), name)(request.spec)
    # Data, not address space: a CUDA context reserves far more addresses than it uses memory.
    for limit, value in (
        (resource.RLIMIT_DATA, request.memory_bytes),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(limit)
        lowest = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (lowest, lowest))
    return device


def _next_request(channel: Channel) -> Request | None:
    while (request := channel.next_message(REQUESTS)) is None:
        if not channel.receive_available():
            return None
    return request


def _answer(device: Device, request: Request, opened: Open) -> Reply:
    try:
        match request:
            case Evaluate(kernel):
                return _evaluated(device, kernel, opened)
            case FinalCheck(kernel):
                return Checked(device.final_check(kernel))
            case Fingerprint():
                return Fingerprinted(device.fingerprint())
            case _:
                return Broken("The device is open already.")
    except DeviceLostError as error:
        if isinstance(request, Evaluate):
            return Evaluated(error.evaluation, leaving=True)
        return Checked(error.evaluation.checks, leaving=True)
    except (DeviceError, TaskError) as error:
        return Broken(str(error))


def _evaluated(device: Device, kernel: Kernel, opened: Open) -> Evaluated:
    try:
        return Evaluated(device.evaluate(kernel))
    except (DeviceLostError, DeviceError, TaskError):
        raise
    except MemoryError:
        message = f"The evaluation needed more than its limit of {opened.memory_bytes >> 20} MiB of memory."
        return Evaluated(Evaluation(Outcome.CRASH, opened.spec.source, message), leaving=True)
    except Exception as error:  # noqa: BLE001 - one candidate that trips over a defect here costs one node
        message = f"The evaluator itself failed: {type(error).__name__}: {error}"
        log = traceback.format_exc()
        return Evaluated(Evaluation(Outcome.CRASH, opened.spec.source, message, log=log), leaving=True)


if __name__ == "__main__":
    main()
