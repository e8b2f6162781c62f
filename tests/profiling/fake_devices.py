"""Devices that behave as the source of the kernel says: for worker processes, which import this module."""

import os
import sys
import time
from pathlib import Path

import numpy as np

from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.core.evaluation import Evaluation, Outcome, Source, Timing
from mctskernel.core.kernel import Kernel


class Fake:
    """Each instance judges kernels such as `sleep 0.1`, `abort` or `report pid`."""

    def __init__(self, spec: DeviceSpec) -> None:
        self.spec = spec
        self.judged = 0

    def evaluate(self, kernel: Kernel) -> Evaluation:
        self.judged += 1
        verb, _, argument = kernel.source.partition(" ")
        return getattr(self, f"do_{verb}")(argument)

    def fingerprint(self) -> dict[str, str]:
        return {"seed": str(self.spec.seed)}

    def do_ok(self, argument: str) -> Evaluation:
        return Evaluation(Outcome.OK, Source.MODELLED, timings=(Timing(argument, 1.0, 1.0, 1.0),))

    def do_sleep(self, argument: str) -> Evaluation:
        time.sleep(float(argument))
        return self.do_ok(argument)

    def do_spin(self, argument: str) -> Evaluation:
        # One long call that never lets go of the interpreter's lock.
        return self.do_ok(str(sum(range(10**12))))

    def do_abort(self, argument: str) -> Evaluation:
        os.abort()

    def do_exit(self, argument: str) -> Evaluation:
        print("the last words", file=sys.stderr)
        os._exit(int(argument))

    def do_hog(self, argument: str) -> Evaluation:
        return self.do_ok(str(np.ones(int(argument), np.uint8).sum()))

    def do_raise(self, argument: str) -> Evaluation:
        raise KeyError(argument)

    def do_break(self, argument: str) -> Evaluation:
        raise DeviceError("the GPU fell off the bus")

    def do_flood(self, argument: str) -> Evaluation:
        return Evaluation(Outcome.OK, Source.MODELLED, log="x" * int(argument))

    def do_forge(self, argument: str) -> Evaluation:
        # The process's socket, as `channel.serve` gets it.
        os.write(int(sys.argv[1]), bytes.fromhex(argument))
        time.sleep(60)
        return self.do_ok("")

    def do_report(self, argument: str) -> Evaluation:
        reports = {
            "pid": str(os.getpid()),
            "folder": str(Path.cwd()),
            "spec": str(self.spec),
            "judged": str(self.judged),
        }
        return Evaluation(Outcome.OK, Source.MODELLED, message=reports[argument])


def unopenable(spec: DeviceSpec) -> Fake:
    raise DeviceError(f"no {spec.kind} here")


def dying(spec: DeviceSpec) -> Fake:
    os._exit(3)


def stuck(spec: DeviceSpec) -> Fake:
    time.sleep(60)
    return Fake(spec)
