"""The process of one session: it holds the executor for one client's task, whose reference is code.

Run as `python -m mctskernel.serving.session_process SOCKET LIFELINE`. It encloses itself before it imports whatever
starts threads, so that all of them are enclosed, and before it looks at the task.
"""

from __future__ import annotations

import importlib
import select
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mctskernel.core.device import DeviceError
from mctskernel.profiling.isolation.confinement import enclose
from mctskernel.profiling.isolation.policy import DEVICES, Confinement, counter_capabilities, gpu_devices
from mctskernel.profiling.processes.channel import Channel
from mctskernel.profiling.processes.child_service import die_with_parent, next_request
from mctskernel.serving.session_protocol import (
    OPENINGS,
    REQUESTS,
    Broken,
    Evaluate,
    Judged,
    LastGate,
    Open,
    Opened,
)

if TYPE_CHECKING:
    from mctskernel.core.executor import Executor

POLL_SECONDS = 0.005
"""How long a kernel that arrives may go unnoticed while others are in flight."""

PROGRAMS = 1024
"""How many workers, compilers and their threads may run at a time."""

FILE_BYTES = 1 << 40
"""The tensors of a task lie in a file in memory, which is larger than any file that a candidate may write."""


def confinement(opening: Open, scratch: Path) -> Confinement:
    """What judging one client's kernels takes: the task, and the GPUs if it is judged on them."""
    on_gpu = opening.kind == "gpu"
    return Confinement(
        scratch=scratch,
        # What it starts looks into its own folder of /proc. That of a process outside says no more than `ps` does.
        reads=(Path(opening.task_folder), Path("/proc"), *map(Path, opening.reads)),
        # What it starts looks for the GPUs' nodes to allow itself no others.
        lists=(DEVICES,) if on_gpu else (),
        devices=gpu_devices() if on_gpu else (),
        processes=PROGRAMS,
        file_bytes=FILE_BYTES,
        capabilities=counter_capabilities() if on_gpu else (),
        names_threads=on_gpu,
    )


def main() -> None:
    """Judge what the socket asks for, until it is closed."""
    connection, lifeline = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(lifeline)
    channel = Channel(socket.socket(fileno=connection))
    opening = next_request(channel, OPENINGS)
    if opening is None:
        return
    enclose(confinement(opening, Path.cwd()))
    # Only now: numpy starts threads, and what they are allowed was decided when they began.
    from mctskernel.core.space import SpaceError  # noqa: PLC0415 - as said above
    from mctskernel.core.task import TaskError  # noqa: PLC0415 - as said above

    try:
        module, _, name = opening.opener.partition(":")
        opener = getattr(importlib.import_module(module), name)
        with opener(opening.spec, opening.workers, opening.options) as executor:
            judge(channel, executor, opening)
    except (TaskError, SpaceError) as error:
        channel.send(Broken(str(error), task_at_fault=True))
    except DeviceError as error:
        channel.send(Broken(str(error)))


def judge(channel: Channel, executor: Executor, opening: Open) -> None:
    """Pass requests on to an executor, and its evaluations back, until the socket is closed."""
    in_flight, said = 0, None
    fingerprint, source = executor.fingerprint(), opening.spec.source
    while True:
        state = Opened(executor.capacity, fingerprint, executor.remarks, source)
        if state != said:
            channel.send(said := state)
        if select.select([channel], [], [], 0 if in_flight else None)[0] and not channel.receive_available():
            return
        while (request := channel.next_message(REQUESTS)) is not None:
            match request:
                case Evaluate(ticket, kernel):
                    executor.submit(ticket, kernel)
                    in_flight += 1
                case LastGate(ticket, kernel, baseline):
                    channel.send(Judged(ticket, executor.last_gate(kernel, baseline)))
        for ticket, evaluation in executor.wait(POLL_SECONDS) if in_flight else ():
            channel.send(Judged(ticket, evaluation))
            in_flight -= 1


if __name__ == "__main__":
    main()
