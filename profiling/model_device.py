"""The `model` device: judges kernels on a machine without a GPU.

The compiler's PTX is emulated, which decides whether the kernel is right; a model prices its machine code on
the named GPU. Every number is modelled, and says so.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial

import numpy as np

from mctskernel.core.device import DeviceError
from mctskernel.core.dtypes import numpy_dtype
from mctskernel.core.evaluation import Check, Diagnosis, Evaluation, LaunchTerms, Outcome, Source, Timing
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import LaunchPlanError, ResolvedLaunch
from mctskernel.core.task import Array, Shape, Task, shape_label
from mctskernel.profiling.architecture import ArchitectureError, load_architecture
from mctskernel.profiling.candidate import Candidate, RefusedError, prepare
from mctskernel.profiling.ceilings import architecture_ceilings
from mctskernel.profiling.emulable import Emulable, emulable
from mctskernel.profiling.emulation import emulate
from mctskernel.profiling.emulator import Module
from mctskernel.profiling.guardrails import flags, quarantine_reason
from mctskernel.profiling.launch_limits import check_launch
from mctskernel.profiling.machine_code.nvdisasm import (
    DisassemblerError,
    PendingDisassembly,
    start_disassembly,
)
from mctskernel.profiling.model.explanation import explain_launches, sentences
from mctskernel.profiling.model.modelled import Modelled, Unmodelled, model_kernel
from mctskernel.profiling.model.price import Term
from mctskernel.profiling.roofline import roofline
from mctskernel.profiling.stages import Stages
from mctskernel.profiling.verify import draw_cases, draw_held_out_cases
from mctskernel.profiling.versions import package_versions


class ModelDevice:
    """Judges kernels of one task as the named GPU would, as far as an emulator and a model can tell.

    Raises DeviceError for an architecture that isn't known. Inputs follow from `seed` alone.
    """

    def __init__(self, task: Task, architecture: str = "H100", seed: int = 0) -> None:
        try:
            self._gpu = load_architecture(architecture)
        except ArchitectureError as error:
            raise DeviceError(str(error)) from error
        self._task = task
        self._seed = seed
        self._drawn: dict[str, dict[str, Array]] = {}
        self._judged: dict[str, Evaluation] = {}
        self._cases = draw_cases(task, task.verify_shapes, seed)
        self._held_out = draw_held_out_cases(task, seed)

    def evaluate(self, kernel: Kernel) -> Evaluation:
        """Guard, build, verify and price one kernel; the first of these that fails decides the outcome."""
        stages = Stages()
        try:
            prepared = self._prepare(kernel, stages)
            code = self._identity_of_code(prepared.candidate)
            if code not in self._judged:
                self._judged[code] = self._judge(prepared, stages)
            evaluation = self._judged[code]
        except RefusedError as refusal:
            evaluation = refusal.evaluation(Source.MODELLED)
        return replace(evaluation, stage_seconds=stages.seconds)

    def final_check(self, kernel: Kernel) -> tuple[Check, ...]:
        """Verify on the held-out shapes, or on the verify shapes where there are none, with fresh seeds."""
        try:
            prepared = self._prepare(kernel, Stages())
            return emulate(self._task, prepared.candidate, prepared.modules, self._held_out).checks
        except RefusedError as refusal:
            return (Check("", 0, passed=False, error=float("inf"), message=refusal.message),)

    def fingerprint(self) -> dict[str, str]:
        """What a modelled time depends on: the GPU that is modelled, and the versions of what models it."""
        return {
            "device": "model",
            "gpu": self._gpu.name,
            "architecture": self._gpu.architecture,
            **package_versions("nvidia-cuda-nvrtc", "nvidia-cuda-nvdisasm", "numpy"),
        }

    def _prepare(self, kernel: Kernel, stages: Stages) -> Emulable:
        """A candidate that the GPU would launch, in a form that can be emulated. Raises RefusedError."""
        candidate = prepare(self._task, kernel, self._gpu.architecture, stages)
        found = emulable(self._task, candidate, stages)
        for launch, index in candidate.built:
            resources = candidate.builds[index].resources_of(launch.kernel)
            try:
                check_launch(launch, resources, self._most_threads(found, launch), self._gpu)
            except LaunchPlanError as error:
                raise RefusedError(Outcome.LAUNCH_ERROR, str(error), candidate) from error
        return found

    @staticmethod
    def _most_threads(found: Emulable, launch: ResolvedLaunch) -> int | None:
        """The `__launch_bounds__` of a launch's kernel; Triton's fit their launches by their making."""
        candidate = found.candidate
        if candidate.kernel.language is Language.TRITON:
            return None
        return found.modules[candidate.index_of(launch)].entries[candidate.entry_of(launch)].max_threads

    def _identity_of_code(self, candidate: Candidate) -> str:
        """What the verdict follows from: PTX, source lines included, and every launch of it.

        About every third edit of the rules (a qualifier, a pragma) changes the text and not this.
        """
        ptx = "\n".join(made.ptx for made in candidate.builds)
        return hashlib.sha256(f"{candidate.plans}\n{candidate.built}\n{ptx}".encode()).hexdigest()

    def _judge(self, prepared: Emulable, stages: Stages) -> Evaluation:
        candidate, modules = prepared.candidate, prepared.modules
        remarks = (prepared.remark,) if prepared.remark else ()
        try:
            with ExitStack() as stack:
                disassemblies = {
                    index: stack.enter_context(start_disassembly(candidate.builds[index].cubin))
                    for index in self._timed_builds(candidate)
                }
                with stages.timed("verify"):
                    verified = emulate(self._task, candidate, modules, self._cases)
                evaluation = Evaluation(
                    verified.outcome,
                    Source.MODELLED,
                    verified.message,
                    checks=verified.checks,
                    resources=candidate.resources,
                    log=candidate.log,
                    flags=remarks,
                )
                if not evaluation.ok:
                    return evaluation
                prices = self._price(candidate, modules, disassemblies, stages)
        except DisassemblerError as error:
            raise DeviceError(str(error)) from error
        evaluation = replace(
            evaluation,
            timings=tuple(map(_timing, self._task.search_shapes, prices)),
            counters=dict(prices[0].counters),
            terms=dict(prices[0].terms),
            launches=_launches(prices[0]),
            diagnosis=_explained(prices[0]),
        )
        peaks = roofline(
            self._task,
            [made.ptx for made in candidate.builds],
            evaluation.counters,
            architecture_ceilings(self._gpu),
            self._gpu.memory.l2_bytes,
        )
        reason = quarantine_reason(self._task, evaluation.timings, peaks)
        return replace(evaluation, quarantine=reason, flags=(*remarks, *flags(evaluation)))

    def _timed_builds(self, candidate: Candidate) -> dict[int, None]:
        """The builds that run at the search shapes."""
        plans = [candidate.at(self._task, shape) for shape in self._task.search_shapes]
        return dict.fromkeys(candidate.index_of(launch) for plan in plans for launch in plan.launches)

    def _price(
        self,
        candidate: Candidate,
        modules: Sequence[Module],
        disassemblies: Mapping[int, PendingDisassembly],
        stages: Stages,
    ) -> list[Modelled]:
        """The price at each search shape. Raises RefusedError."""
        prices = []
        disassembled = cache(lambda index: disassemblies[index].result())
        for shape in self._task.search_shapes:
            found = model_kernel(
                candidate,
                lambda launch: modules[candidate.index_of(launch)],
                lambda launch: disassembled(candidate.index_of(launch)),
                candidate.at(self._task, shape),
                self._gpu,
                buffers={t.name: t.nbytes(shape) for t in (*self._task.inputs, *self._task.outputs)},
                contents=partial(self._contents, shape),
            )
            if isinstance(found, Unmodelled):
                outcome = Outcome.LAUNCH_ERROR if found.launch_error else Outcome.REJECTED
                raise RefusedError(outcome, f"At {shape_label(shape)}: {found.message}", candidate)
            stages.add(found.stage_seconds)
            prices.append(found)
        return prices

    def _contents(self, shape: Shape, name: str) -> Array:
        """A buffer's contents at a search shape, drawn once; an output holds zeros."""
        for output in self._task.outputs:
            if output.name == name:
                return np.zeros(output.extents(shape), numpy_dtype(output.dtype))
        drawn = self._drawn.setdefault(shape_label(shape), {})
        if name not in drawn:
            drawn |= self._task.draw_inputs(shape, self._seed, only=(name,))
        return drawn[name]


def _timing(shape: Shape, modelled: Modelled) -> Timing:
    return Timing(shape_label(shape), modelled.seconds, modelled.seconds, modelled.seconds)


def _launches(modelled: Modelled) -> tuple[LaunchTerms, ...]:
    """The launches with the gaps between them, which each launch but the first begins with."""
    launches = [
        LaunchTerms(
            each.work.kernel, each.price.seconds, {str(name): s for name, s in each.price.terms.items()}
        )
        for each in modelled.launches
    ]
    gaps = modelled.seconds - math.fsum(launch.seconds for launch in launches)
    gap = gaps / max(len(launches) - 1, 1)
    return (launches[0], *(_after(gap, launch) for launch in launches[1:]))


def _after(gap: float, launch: LaunchTerms) -> LaunchTerms:
    terms = {**launch.terms, Term.LAUNCH.value: launch.terms.get(Term.LAUNCH, 0.0) + gap}
    return replace(launch, seconds=launch.seconds + gap, terms=terms)


def _explained(modelled: Modelled) -> Diagnosis:
    """The diagnosis with what binds the plan, what is next, and what relieving it would bring."""
    return replace(modelled.diagnosis, explanation=" ".join(sentences(explain_launches(_launches(modelled)))))
