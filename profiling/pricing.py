"""Pricing: kernels of one task built for a GPU that needn't be there, and their modelled time at each shape."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache, partial

import numpy as np

from mctskernel.core.dtypes import numpy_dtype
from mctskernel.core.evaluation import Guard, Outcome
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import LaunchPlanError, ResolvedLaunch
from mctskernel.core.task import Array, Shape, Task, shape_label
from mctskernel.profiling.architecture import Architecture
from mctskernel.profiling.candidate import Candidate, RefusedError, prepare
from mctskernel.profiling.emulable import Emulable, emulable
from mctskernel.profiling.launch_limits import check_launch
from mctskernel.profiling.machine_code.disassembly import PendingDisassembly, start_disassembly
from mctskernel.profiling.model.modelled import Modelled, Unmodelled, model_kernel
from mctskernel.profiling.stages import Stages

Disassemblies = Mapping[int, PendingDisassembly]
"""Machine code by the number of its build."""


class Pricing:
    """Builds kernels of one task for a GPU and prices them at the search shapes.

    Inputs follow from `seed` alone, but those that were `drawn` already, by their shape's label.
    """

    def __init__(
        self,
        task: Task,
        gpu: Architecture,
        seed: int,
        drawn: Mapping[str, Mapping[str, Array]] | None = None,
    ) -> None:
        self.gpu = gpu
        self._task = task
        self._seed = seed
        self._drawn = {label: dict(inputs) for label, inputs in (drawn or {}).items()}

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
        """Machine code of what runs at the search shapes, read beside what the block does. Raises DisassemblerError."""
        candidate = (prepared.native or prepared).candidate
        plans = [candidate.at(self._task, shape) for shape in self._task.search_shapes]
        timed = dict.fromkeys(candidate.index_of(launch) for plan in plans for launch in plan.launches)
        with ExitStack() as stack:
            yield {
                index: stack.enter_context(start_disassembly(candidate.builds[index].cubin))
                for index in timed
            }

    def price(
        self,
        prepared: Emulable,
        disassemblies: Disassemblies,
        stages: Stages,
        rng: np.random.Generator | None = None,
    ) -> list[Modelled]:
        """The price at each search shape. Raises RefusedError and DisassemblerError.

        Of a kernel with a native build that; of the one that is emulated where the native one can't be counted.
        With `rng` it is made from blocks at random.
        """
        if prepared.native is not None:
            try:
                return self._price(prepared.native, disassemblies, stages, rng)
            except RefusedError:
                emulated = Emulable(prepared.candidate, prepared.modules)
                with self.disassembling(emulated) as others:
                    return self._price(emulated, others, stages, rng)
        return self._price(prepared, disassemblies, stages, rng)

    def _price(
        self,
        prepared: Emulable,
        disassemblies: Disassemblies,
        stages: Stages,
        rng: np.random.Generator | None,
    ) -> list[Modelled]:
        candidate, modules = prepared.candidate, prepared.modules
        prices = []
        disassembled = cache(lambda index: disassemblies[index].result())
        for shape in self._task.search_shapes:
            found = model_kernel(
                candidate,
                lambda launch: modules[candidate.index_of(launch)],
                lambda launch: disassembled(candidate.index_of(launch)),
                candidate.at(self._task, shape),
                self.gpu,
                buffers={t.name: t.nbytes(shape) for t in (*self._task.inputs, *self._task.outputs)},
                contents=partial(self._contents, shape),
                rng=rng,
            )
            if isinstance(found, Unmodelled):
                outcome = Outcome.LAUNCH_ERROR if found.launch_error else Outcome.REJECTED
                guard = Guard.LAUNCH_LIMITS if found.launch_error else Guard.EMULATOR
                raise RefusedError(outcome, guard, f"At {shape_label(shape)}: {found.message}", candidate)
            stages.add(found.stage_seconds)
            prices.append(found)
        return prices

    def _contents(self, shape: Shape, name: str) -> Array:
        """A buffer's contents at a search shape, drawn once; an output holds zeros, unless it is in place."""
        for output in self._task.outputs:
            if output.name == name and name not in self._task.in_place:
                return np.zeros(output.extents(shape), numpy_dtype(output.dtype))
        drawn = self._drawn.setdefault(shape_label(shape), {})
        if name not in drawn:
            drawn |= self._task.draw_inputs(shape, self._seed, only=(name,))
        return drawn[name]


def identity_of_code(candidate: Candidate) -> str:
    """What a candidate's verdict and price follow from: PTX, source lines included, and every launch of it.

    About every third edit of the rules (a qualifier, a pragma) changes the text and not this.
    """
    ptx = "\n".join(made.ptx for made in candidate.builds)
    return hashlib.sha256(f"{candidate.plans}\n{candidate.built}\n{ptx}".encode()).hexdigest()


def _most_threads(found: Emulable, launch: ResolvedLaunch) -> int | None:
    """The `__launch_bounds__` of a launch's kernel; Triton's fit their launches by their making."""
    candidate = found.candidate
    if candidate.kernel.language is Language.TRITON:
        return None
    return found.modules[candidate.index_of(launch)].entries[candidate.entry_of(launch)].max_threads
