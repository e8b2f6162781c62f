"""A device whose process does what a subverted one might: for workers, which import this module."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.kernel import Kernel
from mctskernel.profiling.processes.channel import Channel
from mctskernel.profiling.processes.worker_process import Evaluated
from mctskernel.profiling.stages import Stages


class Hostile:
    """Does what the source of a kernel says: `fill 1000000`."""

    def __init__(self, spec: DeviceSpec) -> None:
        self.spec = spec

    def evaluate(self, kernel: Kernel) -> Evaluation:
        verb, _, argument = kernel.source.partition(" ")
        return Evaluation(Outcome.OK, Source.MODELLED, message=str(getattr(self, verb)(argument)))

    def fingerprint(self) -> dict[str, str]:
        return {}

    def pid(self, _: str) -> int:
        return os.getpid()

    def praise_the_next(self, _: str) -> str:
        """Say twice that all is well: once for this kernel, once for the next."""
        channel = Channel(socket.socket(fileno=os.dup(int(sys.argv[1]))))
        channel.send(Evaluated(Evaluation(Outcome.OK, Source.MODELLED, message="praised")))
        return "praised"

    def fill(self, nbytes: str) -> str:
        """Fill the folder with files that are each small enough."""
        for number in range(int(nbytes) >> 20):
            Path(f"file{number}").write_bytes(os.urandom(1 << 20))
        time.sleep(60)
        return ""

    def leave_behind(self, mark: str) -> int:
        """Start a program that leaves our group, ignores what it can, and would go on for ever."""
        code = (
            f"import os, signal, time; signal.signal({signal.SIGIO.value}, signal.SIG_IGN); time.sleep(120)"
        )
        child = subprocess.Popen([sys.executable, "-S", "-c", code, mark], process_group=0)
        return child.pid

    def read(self, path: str) -> str:
        """What is in a file, or why it can't be read."""
        try:
            return Path(path).read_text()
        except OSError as error:
            return type(error).__name__

    def write(self, path: str) -> str:
        """Plant a file, or say why not."""
        try:
            Path(path).write_text("planted")
        except OSError as error:
            return type(error).__name__
        return "written"

    def end_with_a_link(self, path: str) -> str:
        """Put a link to a file in the place of what its parent will read, and end."""
        for name in ("stderr", "stage"):
            Path(name).unlink(missing_ok=True)
            Path(name).symlink_to(path)
        os._exit(3)

    def hang_at(self, stage: str) -> str:
        """Never come back from a stage of the evaluation."""
        with Stages().timed(stage):
            time.sleep(60)
        return ""

    def descriptors(self, _: str) -> str:
        """What is open."""
        links = [Path(f"/proc/self/fd/{number}") for number in range(1024)]
        return " ".join(str(each.readlink()) for each in links if each.is_symlink())
