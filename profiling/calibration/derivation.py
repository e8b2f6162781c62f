"""Constants that follow from measurements of something else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from mctskernel.profiling.calibration.arithmetic import is_filled_by_mma
from mctskernel.profiling.calibration.fit import Measured
from mctskernel.profiling.calibration.memory import LONG_RUN, SHORT_RUN, runs_of
from mctskernel.profiling.calibration.microbenchmark import Board

Found = Mapping[str, Measured]


def derived(found: Found, board: Board) -> dict[str, Measured]:
    """Those that the measurements are enough for."""
    rules: tuple[Callable[[Found, Board], Measured | None], ...] = (
        schedulers,
        tensor_fma,
        dram_bytes_per_run,
    )
    made = (rule(found, board) for rule in rules)
    return {each.constant: each for each in made if each is not None}


def schedulers(found: Found, _: Board) -> Measured | None:
    """Each issues at most one warp instruction a cycle, and comes close to it."""
    issue = found.get("issue")
    if issue is None or round(issue.value) < 1:
        return None
    why = f"{issue.value:.3g} warp instructions are issued a cycle"
    return Measured("chip.schedulers", round(issue.value), issue.spread, why)


def tensor_fma(found: Found, board: Board) -> Measured | None:
    """Without wider instructions than `mma.sync`, its rate is that of the tensor cores."""
    mma = found.get("throughput.tensor_sync_fma")
    return (
        replace(mma, constant="throughput.tensor_fma")
        if mma is not None and is_filled_by_mma(board)
        else None
    )


def dram_bytes_per_run(found: Found, _: Board) -> Measured | None:
    """Moving b bytes in runs of r takes as long as b (1 + lost / r) bytes in one run: two lengths give `lost`."""
    short, long = found.get(runs_of(SHORT_RUN)), found.get(runs_of(LONG_RUN))
    if short is None or long is None or not short.value < long.value < 10 * short.value:
        return None
    ratio = long.value / short.value
    lost = (ratio - 1) / (1 / SHORT_RUN - ratio / LONG_RUN)
    why = f"what a copy in runs of {SHORT_RUN} bytes takes beyond one in runs of {LONG_RUN}"
    return Measured("memory.dram_bytes_per_run", lost, short.spread + long.spread, why)
