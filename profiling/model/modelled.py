"""A kernel's time without a GPU: count sampled blocks, price every launch of the plan, say what binds it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mctskernel.core.evaluation import Diagnosis
from mctskernel.core.launch_plan import ResolvedLaunch, ResolvedPlan
from mctskernel.core.task import Array
from mctskernel.profiling.architecture import Architecture, occupancy
from mctskernel.profiling.candidate import Candidate
from mctskernel.profiling.counters import combined_counters, modelled_counters
from mctskernel.profiling.diagnosis import combined_diagnosis, diagnose
from mctskernel.profiling.emulator import Module
from mctskernel.profiling.machine_code.cubin import Disassembly
from mctskernel.profiling.model.counting import BlockCounter, count_launch
from mctskernel.profiling.model.price import Price, Term, behind, price, zeroing_seconds
from mctskernel.profiling.model.work import KernelWork, kernel_work


@dataclass(frozen=True)
class LaunchPrice:
    """One launch with everything that its price was made from."""

    work: KernelWork
    price: Price
    counters: Mapping[str, float]
    diagnosis: Diagnosis


@dataclass(frozen=True)
class Modelled:
    """Modelled seconds of one run of the plan, their terms in seconds, and counters by Nsight Compute's names.

    The time is the launches', less what one behind another saves, and that of clearing scratch; `stage_seconds` is what
    modelling cost.
    """

    seconds: float
    terms: Mapping[str, float]
    counters: Mapping[str, float]
    diagnosis: Diagnosis
    launches: tuple[LaunchPrice, ...]
    stage_seconds: Mapping[str, float]


@dataclass(frozen=True)
class Unmodelled:
    """Why a kernel can't be priced; the message is a sentence."""

    message: str
    launch_error: bool = False


def model_kernel(
    candidate: Candidate,
    module: Callable[[ResolvedLaunch], Module],
    disassembly: Callable[[ResolvedLaunch], Disassembly],
    plan: ResolvedPlan,
    gpu: Architecture,
    *,
    buffers: Mapping[str, int],
    contents: Callable[[str], Array],
) -> Modelled | Unmodelled:
    """Price a plan at one shape.

    `module` and `disassembly` give the PTX and the machine code of a launch; the latter is asked for after
    counting, since it may still be under way. `buffers` gives the bytes of each of the task's tensors at that
    shape; `contents(name)` gives an array, and is only called for buffers whose contents decide addresses or
    branches.
    """
    stages = dict.fromkeys(("disassemble", "count", "price"), 0.0)
    prices: list[LaunchPrice] = []
    for launch in plan.launches:
        build = candidate.build_of(launch)
        resources = build.resources_of(launch.kernel)
        fits = occupancy(
            gpu, launch.threads, resources.registers, resources.shared_bytes + launch.shared_bytes
        )
        if not fits.blocks:
            return Unmodelled(
                _too_large(launch, resources.registers, fits.limited_by, gpu), launch_error=True
            )
        counter = BlockCounter(
            module(launch),
            candidate.entry_of(launch),
            launch,
            plan,
            buffers=buffers,
            contents=contents,
        )
        began = time.perf_counter()
        function = disassembly(launch).functions[counter.entry]
        disassembled = time.perf_counter()
        counted = count_launch(counter, build, function)
        ended = time.perf_counter()
        if isinstance(counted, str):
            return Unmodelled(f"The kernel '{launch.kernel}' can't be counted: {counted}.")
        work = kernel_work(launch, resources, function, gpu, counted=counted, buffers=counter.ranges)
        found = behind(price(work, gpu), 0.0 if prices else _zeroing(plan, gpu))
        counters = modelled_counters(work, found, gpu)
        prices.append(LaunchPrice(work, found, counters, diagnose(work, found, gpu, counters)))
        stages["disassemble"] += disassembled - began
        stages["count"] += ended - disassembled
        stages["price"] += time.perf_counter() - ended
    return _combined(prices, gpu, stages)


def _zeroing(plan: ResolvedPlan, gpu: Architecture) -> float:
    """Seconds in which the plan's scratch buffers are cleared that are to hold zeros."""
    return math.fsum(zeroing_seconds(scratch.nbytes, gpu) for scratch in plan.scratch if scratch.zero)


def _too_large(launch: ResolvedLaunch, registers: int, limited_by: str, gpu: Architecture) -> str:
    return (
        f"The kernel '{launch.kernel}' can't be launched: one block of {launch.threads} threads with {registers} "
        f"registers each and {launch.shared_bytes} bytes of dynamic shared memory asks for more {limited_by} than "
        f"an SM of the {gpu.name} has."
    )


def _combined(prices: Sequence[LaunchPrice], gpu: Architecture, stages: Mapping[str, float]) -> Modelled:
    gaps = (len(prices) - 1) * gpu.overheads.launch_gap
    terms: dict[str, float] = {}
    for launch in prices:
        for term, seconds in launch.price.terms.items():
            terms[term.value] = terms.get(term.value, 0.0) + seconds
    terms[Term.LAUNCH.value] += gaps
    seconds = sum(launch.price.seconds for launch in prices) + gaps
    return Modelled(
        seconds,
        terms,
        combined_counters([launch.counters for launch in prices]),
        combined_diagnosis(
            [(launch.diagnosis, launch.price.seconds) for launch in prices],
            [launch.work.kernel for launch in prices],
        ),
        tuple(prices),
        stages,
    )
