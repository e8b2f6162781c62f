"""Build kernels of one task for a GPU that need not be present, and model their time at each shape.

A modelled time is never below what moving the compulsory bytes (each input read once, each output written once) takes
at the GPU's copy bandwidth, and modelled traffic of DRAM and L2 is never below these bytes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from mctskernel.core.device import DeviceError
from mctskernel.core.dtypes import numpy_dtype
from mctskernel.core.evaluation import Diagnosis, Evaluation, Guard, LaunchTerms, Outcome, Source, Timing
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import LaunchPlanError, ResolvedLaunch, ResolvedPlan
from mctskernel.core.task import Array, Shape, Task, shape_label
from mctskernel.profiling.architecture import Architecture
from mctskernel.profiling.candidate import Candidate, RefusedError, check_launch, prepare
from mctskernel.profiling.causes import combined_diagnosis
from mctskernel.profiling.counters import (
    DRAM_BYTES,
    DRAM_READ,
    DRAM_THROUGHPUT,
    DRAM_WRITE,
    L2_READS,
    L2_SECTORS,
    L2_WRITES,
    TIME,
    combined_counters,
    modelled_counters,
)
from mctskernel.profiling.diagnosis import diagnose
from mctskernel.profiling.emulation import Emulable, emulable
from mctskernel.profiling.emulator import Module
from mctskernel.profiling.machine_code.cubin import DisassemblerError, disassembling
from mctskernel.profiling.machine_code.functions import Function
from mctskernel.profiling.model.counting import BlockCounter, count_launch
from mctskernel.profiling.model.explanation import summed
from mctskernel.profiling.model.price import Term, behind, imbalance, price, zeroing_seconds
from mctskernel.profiling.model.work import kernel_work
from mctskernel.profiling.stages import Stages

Functions = Mapping[str, Function]  # machine code by the name of its entry

Disassemblies = Mapping[int, Callable[[], Functions]]
"""What waits for the machine code of a build, by the build's number."""


MAX_CONTENTS = 1 << 30  # bytes of a tensor that is drawn where its contents decide what a kernel does


class Pricing:
    """Builds a task's kernels for a GPU and models their times at the search shapes, on inputs from `seed` alone."""

    def __init__(self, task: Task, gpu: Architecture, seed: int) -> None:
        self.gpu = gpu
        self._task = task
        self._seed = seed
        self._drawn: dict[str, dict[str, Array]] = {}
        self._evaluated: dict[str, Evaluation] = {}

    def evaluate(self, kernel: Kernel, evaluated: Callable[[Emulable, Stages], Evaluation]) -> Evaluation:
        """What `evaluated` says of a kernel, which it is asked once for each machine code. Raises DeviceError."""
        stages = Stages()
        try:
            prepared = self.prepare(kernel, stages)
            code = identity_of_code(prepared.candidate)
            if code not in self._evaluated:
                self._evaluated[code] = evaluated(prepared, stages)
            evaluation = self._evaluated[code]
        except RefusedError as refusal:
            evaluation = refusal.evaluation(Source.MODELLED)
        except DisassemblerError as error:
            raise DeviceError(str(error)) from error
        return replace(evaluation, stage_seconds=stages.seconds)

    def prepare(self, kernel: Kernel, stages: Stages) -> Emulable:
        """A candidate that the GPU would launch, in a form that can be emulated. Raises RefusedError."""
        candidate = prepare(self._task, kernel, self.gpu.architecture, stages)
        found = emulable(self._task, candidate, stages)
        native = (found.native or found).candidate
        for launch, index in native.built:
            resources = native.builds[index].resources_of(launch.kernel)
            try:
                check_launch(launch, resources, _most_threads(found, launch), self.gpu)
            except LaunchPlanError as error:
                raise RefusedError(
                    Outcome.LAUNCH_ERROR, Guard.LAUNCH_LIMITS, str(error), candidate
                ) from error
        return found

    @contextmanager
    def disassembling(self, prepared: Emulable) -> Iterator[Disassemblies]:
        """Disassemble what runs at the search shapes while the block runs. Raises DisassemblerError."""
        candidate = prepared.candidate
        plans = [candidate.at(self._task, shape) for shape in self._task.search_shapes]
        timed = dict.fromkeys(candidate.index_of(launch) for plan in plans for launch in plan.launches)
        with ExitStack() as stack:
            yield {
                index: stack.enter_context(disassembling(candidate.builds[index].cubin)) for index in timed
            }

    def price(self, prepared: Emulable, disassemblies: Disassemblies, stages: Stages) -> list[Modelled]:
        """The modelled time at each search shape. Raises RefusedError and DisassemblerError."""
        try:
            return self._price(prepared, disassemblies, stages)
        except MemoryError as error:
            if prepared.note:
                raise
            older = emulable(
                self._task, prepared.candidate, stages, f"counting it takes much memory: {error}"
            )
        with self.disassembling(older) as found:
            return [replace(each, note=older.note) for each in self.price(older, found, stages)]

    def _price(self, prepared: Emulable, disassemblies: Disassemblies, stages: Stages) -> list[Modelled]:
        candidate, modules = prepared.candidate, prepared.modules
        prices = []
        disassembled = cache(lambda index: disassemblies[index]())
        for shape in self._task.search_shapes:
            found = model_kernel(
                candidate,
                lambda launch: modules[candidate.index_of(launch)],
                lambda launch: disassembled(candidate.index_of(launch)),
                candidate.at(self._task, shape),
                self.gpu,
                stages=stages,
                buffers={t.name: t.nbytes(shape) for t in (*self._task.inputs, *self._task.outputs)},
                contents=partial(self._contents, shape),
            )
            if isinstance(found, str):
                message = f"At {shape_label(shape)}: {found}"
                raise RefusedError(Outcome.REJECTED, Guard.EMULATOR, message, candidate)
            prices.append(_at_least(found, self._task, shape, self.gpu))
        return prices

    def _contents(self, shape: Shape, name: str) -> Array:
        """A buffer's contents at a search shape, drawn once; an output holds zeros, unless it is in place."""
        for output in self._task.outputs:
            if output.name == name and name not in self._task.in_place:
                return np.zeros(output.extents(shape), numpy_dtype(output.dtype))
        if sum(each.nbytes(shape) for each in self._task.inputs if each.name == name) > MAX_CONTENTS:
            raise MemoryError(f"what it does depends on '{name}', which is too large to draw")
        drawn = self._drawn.setdefault(shape_label(shape), {})
        if name not in drawn:
            drawn |= self._task.draw_inputs(shape, self._seed, only=(name,))
        return drawn[name]


@dataclass(frozen=True)
class Modelled:
    """Modelled seconds of a run (overlaps saved, scratch cleared), its launches, and Nsight Compute's counters."""

    seconds: float
    launches: tuple[LaunchTerms, ...]
    counters: Mapping[str, float]
    diagnosis: Diagnosis
    note: str = ""

    @property
    def terms(self) -> dict[str, float]:
        """The seconds that each term would take alone, over all launches."""
        return summed(self.launches)


def model_kernel(
    candidate: Candidate,
    module: Callable[[ResolvedLaunch], Module],
    functions: Callable[[ResolvedLaunch], Functions],
    plan: ResolvedPlan,
    gpu: Architecture,
    *,
    stages: Stages,
    buffers: Mapping[str, int],
    contents: Callable[[str], Array],
) -> Modelled | str:
    """Count sampled blocks and price every launch of a plan at one shape; a sentence says why that can't be done.

    `module` and `functions` give the PTX and the machine code of a launch. `buffers` gives the bytes of each of the
    task's tensors at that shape; `contents(name)` gives an array, and is only called for buffers whose contents decide
    addresses or branches.
    """
    launches: list[LaunchTerms] = []
    counters: list[dict[str, float]] = []
    diagnoses: list[tuple[Diagnosis, float]] = []
    zeroing = math.fsum(zeroing_seconds(each.nbytes, gpu) for each in plan.scratch if each.zero)
    for launch in plan.launches:
        build, entry = candidate.build_of(launch), candidate.entry_of(launch)
        counter = BlockCounter(module(launch), entry, launch, plan, buffers=buffers, contents=contents)
        with stages.timed("disassemble"):
            function = functions(launch)[entry]
        with stages.timed("count"):
            counted = count_launch(counter, build, function)
        if isinstance(counted, str):
            return f"The kernel '{launch.kernel}' can't be counted: {counted}."
        with stages.timed("price"):
            resources = build.resources_of(launch.kernel)
            work = kernel_work(launch, resources, function, gpu, counted=counted, buffers=counter.ranges)
            found = behind(price(work, gpu), 0.0 if launches else zeroing)
            counters.append(modelled_counters(work, found, gpu))
            diagnoses.append((diagnose(work, found, gpu, counters[-1]), found.seconds))
            gap = gpu.overheads.launch_gap if launches else 0.0
            terms = {term.value: seconds for term, seconds in found.terms.items()}
            terms[Term.LAUNCH.value] += gap
            busiest = imbalance(work.blocks, gpu.chip.sms)
            launches.append(LaunchTerms(work.kernel, found.seconds + gap, terms, busiest))
    return Modelled(
        sum(launch.seconds for launch in launches),
        tuple(launches),
        combined_counters(counters),
        combined_diagnosis(diagnoses, [launch.kernel for launch in launches], gpu.overheads.launch_gap),
    )


def _at_least(modelled: Modelled, task: Task, shape: Shape, gpu: Architecture) -> Modelled:
    """The modelled run with its time and its traffic raised to what the task's tensors make compulsory."""
    read, written = (
        sum(tensor.nbytes(shape) for tensor in tensors) for tensors in (task.inputs, task.outputs)
    )
    counters = dict(modelled.counters)
    for total, part, least in (
        (DRAM_BYTES, DRAM_READ, read),
        (DRAM_BYTES, DRAM_WRITE, written),
        (L2_SECTORS, L2_READS, read / gpu.memory.sector_bytes),
        (L2_SECTORS, L2_WRITES, written / gpu.memory.sector_bytes),
    ):
        missing = max(0.0, least - counters[part])
        counters[part] += missing
        counters[total] += missing
    rate = gpu.memory.dram_bytes_per_second
    seconds = max(modelled.seconds, task.compulsory_bytes(shape) / rate)
    counters[TIME] = seconds
    counters[DRAM_THROUGHPUT] = 100.0 * counters[DRAM_BYTES] / (rate * seconds)
    return replace(modelled, seconds=seconds, counters=counters)


def identity_of_code(candidate: Candidate) -> str:
    """A digest of all that the evaluation depends on: PTX and launches. A third of the rules' edits leave it."""
    ptx = "\n".join(made.ptx for made in candidate.builds)
    return hashlib.sha256(f"{candidate.plans}\n{candidate.built}\n{ptx}".encode()).hexdigest()


def _most_threads(found: Emulable, launch: ResolvedLaunch) -> int | None:
    """The `__launch_bounds__` of a launch's kernel; Triton's fit their launches by their making."""
    candidate = found.candidate
    if candidate.kernel.language is Language.TRITON:
        return None
    return found.modules[candidate.index_of(launch)].entries[candidate.entry_of(launch)].max_threads


def timing_of(shape: Shape, seconds: float) -> Timing:
    """A modelled time, which never varies."""
    return Timing(shape_label(shape), seconds, seconds, seconds)
