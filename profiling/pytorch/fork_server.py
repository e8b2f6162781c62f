"""A process that has imported PyTorch once and forks the processes of the PyTorch door, each in milliseconds.

Run as `python -m mctskernel.profiling.pytorch.fork_server SOCKET LIFELINE`. It holds nothing that a candidate must
not see: seeds, inputs and expected outputs come into being after the fork, elsewhere.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import traceback

import torch

from mctskernel.profiling.processes.child_service import die_with_parent
from mctskernel.profiling.pytorch import host, reference_service
from mctskernel.profiling.pytorch.orders import ORDERS, Fork, Forked, Reap, Role, Seen
from mctskernel.profiling.pytorch.protocol import receive, send


def main() -> None:
    """Fork and reap until the parent hangs up."""
    lifeline = int(sys.argv[2])
    die_with_parent(lifeline)
    connection = socket.socket(fileno=int(sys.argv[1]))
    torch.set_num_threads(1)
    gc.freeze()  # pages that a collection writes to would be copied in every fork
    while (received := receive(connection, ORDERS)) is not None:
        order, descriptors = received
        if not isinstance(order, Fork):
            send(connection, Seen(_ending(order.pid)))
            if isinstance(order, Reap):
                os.waitpid(order.pid, os.WNOHANG)
            continue
        pid = os.fork()
        if pid == 0:
            _become(order, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        send(connection, Forked(pid))


def _become(order: Fork, descriptors: tuple[int, ...]) -> None:
    """The forked process: never returns."""
    status = 1
    try:
        os.setsid()
        connection, lifeline, stderr = descriptors
        os.dup2(stderr, 2)
        os.close(stderr)
        _close_others({0, 1, 2, connection, lifeline})
        die_with_parent(lifeline)
        os.chdir(order.scratch)
        os.environ.update(_own_folders(order.scratch))
        service = host if order.role is Role.HOST else reference_service
        service.serve(socket.socket(fileno=connection))
        status = 0
    except BaseException:  # noqa: BLE001 - a fork must not go on as its parent
        traceback.print_exc()
    finally:
        os._exit(status)


def _own_folders(scratch: str) -> dict[str, str]:
    return {
        "TMPDIR": scratch,
        "HOME": scratch,
        "TORCH_EXTENSIONS_DIR": f"{scratch}/torch_extensions",
        "TRITON_CACHE_DIR": f"{scratch}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{scratch}/inductor",
    }


def _close_others(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - of ourselves, where a Path would open more
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                continue  # the one that listed them


def _ending(pid: int) -> str:
    status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if status is None:
        return ""
    if status.si_code == os.CLD_EXITED:
        return f"exited with status {status.si_status}"
    return f"was killed by {signal.Signals(status.si_status).name}"


if __name__ == "__main__":
    main()
