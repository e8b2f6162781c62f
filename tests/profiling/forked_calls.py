"""What is called in forked processes, which import this module and little else."""

import os
import signal
import sys

from mctskernel.profiling.processes.forked import Caller


def doubled(caller: Caller, number: int) -> int:
    caller.say("begun")
    sys.stdout.write("printed\n")
    sys.stdout.flush()
    return 2 * number + int(caller.receive())


def fails(_: Caller, kind: type[Exception]) -> None:
    raise kind("because of this")


def dies(_: Caller) -> None:
    os.abort()


def hangs(caller: Caller) -> None:
    caller.say(os.getpid())
    signal.pause()
