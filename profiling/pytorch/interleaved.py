"""Kernels and PyTorch functions interleaved in one process, timed by CUDA events with a cold L2 cache. Needs a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from mctskernel.core.task import Shape, Task
from mctskernel.profiling.candidate import Candidate
from mctskernel.profiling.gpu.buffers import LoadedKernel, prepared
from mctskernel.profiling.gpu.cuda_driver import PreparedLaunch
from mctskernel.profiling.gpu.protocol import Code

FLUSHED_BYTES = 1 << 28  # written before each run, so that nothing of the last one is left in the L2 cache


LAUNCH_CYCLES = 2_000_000
"""The GPU waits so long before each run, about a millisecond, in which a busy machine has launched all of it too."""

SECONDS, WARM_UP, FEWEST, MOST = 0.1, 3, 5, 100
"""Of each contender: the time of its samples, runs before them, and how many samples at least and at most."""

Run = Callable[[], float]  # runs a contender once and returns its seconds

Call = Callable[[], object]  # one run of a contender on PyTorch's stream


def interleaved(runs: Mapping[str, Run], seed: int = 0) -> dict[str, tuple[float, ...]]:
    """The samples of each contender, in seconds. Every round runs each of them once, in a random order."""
    for run in runs.values():
        for _ in range(WARM_UP):
            run()
    rng = np.random.default_rng(seed)
    samples: dict[str, list[float]] = {name: [] for name in runs}

    def goes_on(name: str) -> bool:
        taken = samples[name]
        return len(taken) < FEWEST or (len(taken) < MOST and sum(taken) < SECONDS)

    while left := [name for name in runs if goes_on(name)]:
        for place in rng.permutation(len(left)):
            samples[left[place]].append(runs[left[place]]())
    return {name: tuple(taken) for name, taken in samples.items()}


def timed(call: Call) -> Run:
    """Seconds of one call by the GPU's clock, with nothing of the last one in the L2 cache."""
    flushed = _flush_buffer()
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]

    def run() -> float:
        flushed.zero_()
        torch.cuda._sleep(LAUNCH_CYCLES)  # type: ignore[no-untyped-call]
        before.record()
        call()
        after.record()
        torch.cuda.synchronize()
        return float(before.elapsed_time(after)) * 1e-3

    return run


@dataclass(frozen=True)
class _LaunchPlan:
    """A kernel's launches, after zeroing scratch; `memory` keeps what they point into from being reused."""

    launches: tuple[PreparedLaunch, ...]
    zeroed: tuple[Tensor, ...]
    memory: tuple[Tensor, ...]

    def __call__(self) -> None:
        for buffer in self.zeroed:
            buffer.zero_()
        for launch in self.launches:
            launch()


def bound_plan(
    task: Task, shape: Shape, candidate: Candidate, module: LoadedKernel, tensors: Mapping[str, Tensor]
) -> tuple[Call, Tensor]:
    """One run of a kernel's launch plan on tensors, and its first output."""
    resolved = candidate.at(task, shape)
    outputs = {
        each.name: torch.zeros(each.extents(shape), dtype=getattr(torch, each.dtype), device="cuda")
        for each in task.outputs
    }
    scratch = {
        each.name: torch.zeros(each.nbytes, dtype=torch.uint8, device="cuda") for each in resolved.scratch
    }
    zeroed = tuple(scratch[each.name] for each in resolved.scratch if each.zero)
    memory = {**tensors, **outputs, **scratch}
    addresses = {each: tensor.data_ptr() for each, tensor in memory.items()}
    launches = prepared(candidate, resolved, module.modules, addresses)
    return _LaunchPlan(tuple(launches), zeroed, tuple(memory.values())), outputs[task.outputs[0].name]


def loaded(candidate: Candidate) -> LoadedKernel:
    """The machine code of a kernel on the GPU. Raises CudaError."""
    return LoadedKernel([Code(made.cubin, tuple(made.entries.values()), ()) for made in candidate.builds])


@cache
def _flush_buffer() -> Tensor:
    return torch.empty(FLUSHED_BYTES // 4, dtype=torch.int32, device="cuda")
