"""The gauntlet's PyTorch modules: modules that cheat and unusual honest ones, run by the module evaluator."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import groupby

from mctskernel.experiments.gauntlet.corpus import NO_GAIN, Entry
from mctskernel.experiments.gauntlet.run import Result, Verdict, result_of
from mctskernel.profiling.pytorch.client import ForkServer
from mctskernel.profiling.pytorch.evaluator import ModuleVerdict, Settings, open_evaluator

LOAD_SECONDS, CALL_SECONDS = 120.0, 5.0
RUNS = 5


def run_modules(
    entries: Sequence[Entry], device: str, follow: Callable[[Result], None], server: ForkServer | None = None
) -> list[Result]:
    """Evaluate modules on the CPU in place of the `model`, or on a `gpu`; `follow` gets each result.

    Raises DeviceError for a machine that lacks something.
    """
    if server is None and entries:
        with closing(ForkServer()) as opened:
            return run_modules(entries, device, follow, opened)
    results = []
    for (_, own_kernels), group in groupby(sorted(entries, key=_group), _group):
        alike = list(group)
        settings = Settings(
            "cuda" if device == "gpu" else "cpu",
            runs=RUNS,
            own_kernels=own_kernels,
            load_seconds=LOAD_SECONDS,
            call_seconds=CALL_SECONDS,
        )
        with open_evaluator(alike[0].task.read_text(), settings, server) as evaluator:
            for entry in alike:
                started = time.monotonic()
                verdict = evaluator.evaluate(entry.file.read_text())
                results.append(_result(entry, device, verdict, time.monotonic() - started))
                follow(results[-1])
    return results


def _group(entry: Entry) -> tuple[str, bool]:
    return str(entry.task), entry.own_kernels


def _result(entry: Entry, device: str, verdict: ModuleVerdict, seconds: float) -> Result:
    evaluation, speedup = verdict.evaluation, verdict.speedup
    may_pass = NO_GAIN in entry.guards and (speedup is None or speedup.low <= 1.0)
    if entry.honest:
        came_to = Verdict.ACCEPTED if evaluation.ok else Verdict.WRONGLY_REFUSED
    else:
        came_to = Verdict.LET_THROUGH if evaluation.ok and not may_pass else Verdict.CAUGHT
    caught_by = str(evaluation.guard or evaluation.outcome)
    return result_of(
        entry,
        "gpu" if device == "gpu" else "cpu",
        verdict=came_to,
        outcome=str(evaluation.outcome),
        guard=evaluation.guard,
        stage="" if evaluation.ok else "evaluation",
        message=evaluation.message or evaluation.quarantine,
        seconds=seconds,
        unexpected=came_to is Verdict.CAUGHT and not {caught_by, NO_GAIN} & {*entry.guards},
        log_gain=math.log(speedup.ratio) if speedup is not None and speedup.ratio > 0 else None,
    )
