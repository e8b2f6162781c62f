"""What is called in forked processes, which import this module and little else."""

import os
import signal
import sys

from mctskernel.profiling.processes.forked import Told


def doubled(told: Told, number: int) -> int:
    told("begun")
    sys.stdout.write("printed\n")
    sys.stdout.flush()
    return 2 * number + int(told.receive())


def fails(_: Told, kind: type[Exception]) -> None:
    raise kind("because of this")


def dies(_: Told) -> None:
    os.abort()


def hangs(told: Told) -> None:
    told(os.getpid())
    signal.pause()
