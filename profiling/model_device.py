"""The `model` device: judges kernels on a machine without a GPU.

The compiler's PTX is emulated, which decides whether the kernel is right; a model prices its machine code on
the named GPU. Every number is modelled, and says so.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import msgspec
import numpy as np

from mctskernel.core.device import DeviceError
from mctskernel.core.evaluation import (
    Check,
    Diagnosis,
    Evaluation,
    Guard,
    LaunchTerms,
    Outcome,
    Source,
    Timing,
)
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Shape, Task, shape_label
from mctskernel.profiling.architecture import Architecture, ArchitectureError, load_architecture
from mctskernel.profiling.candidate import RefusedError
from mctskernel.profiling.ceilings import architecture_ceilings
from mctskernel.profiling.emulable import Emulable
from mctskernel.profiling.emulation import emulate
from mctskernel.profiling.guardrails import flags, quarantine_reason
from mctskernel.profiling.machine_code.nvdisasm import DisassemblerError
from mctskernel.profiling.model.explanation import explain_launches, sentences
from mctskernel.profiling.model.modelled import Modelled
from mctskernel.profiling.model.price import Term, imbalance
from mctskernel.profiling.pricing import Pricing, identity_of_code
from mctskernel.profiling.roofline import roofline
from mctskernel.profiling.stages import Stages
from mctskernel.profiling.timed_shapes import TimedInputs, check_timed_shape
from mctskernel.profiling.verify import HELD_OUT_SEED, draw_cases, draw_verification
from mctskernel.profiling.versions import package_versions

CHANCE = 2.0
"""Standard errors within which a price from blocks at random lies, as good as always."""


class ModelDevice:
    """Judges kernels of one task as the named GPU would, as far as an emulator and a model can tell.

    Raises DeviceError for an architecture that isn't known. Inputs follow from `seed` alone. At the last gate, where
    `task` is what was held out, `searched` is the whole task: values are looked at where the search has timed, too.
    """

    def __init__(
        self, task: Task, architecture: str = "H100", seed: int = 0, searched: Task | None = None
    ) -> None:
        try:
            self._gpu = load_architecture(architecture)
        except ArchitectureError as error:
            raise DeviceError(str(error)) from error
        self._task, self._seed = task, seed
        self._pricing = Pricing(task, self._gpu, seed)
        self._judged: dict[str, Evaluation] = {}
        self._seed = seed
        self._searched = searched
        shapes = searched.search_shapes if searched is not None else ()
        self._timed = [TimedInputs(searched or task, shape, seed) for shape in shapes]
        self._cases = draw_verification(task, seed)

    def evaluate(self, kernel: Kernel) -> Evaluation:
        """Guard, build, verify and price one kernel; the first of these that fails decides the outcome."""
        stages = Stages()
        try:
            prepared = self._pricing.prepare(kernel, stages)
            code = identity_of_code(prepared.candidate)
            if code not in self._judged:
                self._judged[code] = self._judge(prepared, stages)
            evaluation = self._judged[code]
        except RefusedError as refusal:
            evaluation = refusal.evaluation(Source.MODELLED)
        return replace(evaluation, stage_seconds=stages.seconds)

    def final_check(self, kernel: Kernel) -> tuple[Check, ...]:
        """Verify once more and price nothing: at the held-out shapes, or the verify shapes where there are none.

        On inputs that no evaluation here has used. The last gate of a search is a device of its own.
        """
        try:
            prepared = self._pricing.prepare(kernel, Stages())
            shapes = self._task.held_out_shapes or self._task.verify_shapes
            cases = draw_cases(self._task, shapes, self._seed + HELD_OUT_SEED)
            return emulate(self._task, prepared.candidate, prepared.modules, cases).checks
        except RefusedError as refusal:
            return (refusal.check(),)

    def fingerprint(self) -> dict[str, str]:
        """What a modelled time depends on: the modelled GPU, its constants, and the versions of what models it."""
        return {
            "device": "model",
            "gpu": self._gpu.name,
            "architecture": self._gpu.architecture,
            "constants": hashlib.sha256(msgspec.json.encode(self._gpu)).hexdigest()[:12],
            **package_versions("nvidia-cuda-nvrtc", "nvidia-cuda-nvdisasm", "numpy"),
        }

    def _judge(self, prepared: Emulable, stages: Stages) -> Evaluation:
        candidate, modules = prepared.candidate, prepared.modules
        remarks = (prepared.remark,) if prepared.remark else ()
        try:
            with self._pricing.disassembling(prepared) as disassemblies:
                with stages.timed("verify"):
                    verified = emulate(self._task, candidate, modules, self._cases)
                evaluation = Evaluation(
                    verified.outcome,
                    Source.MODELLED,
                    verified.message,
                    checks=verified.checks,
                    resources=(prepared.native or prepared).candidate.resources,
                    log=candidate.log,
                    flags=remarks,
                    guard=verified.guard,
                )
                if not evaluation.ok:
                    return evaluation
                prices = self._pricing.price(prepared, disassemblies, stages)
        except DisassemblerError as error:
            raise DeviceError(str(error)) from error
        launches = _launches(prices[0], self._gpu)
        evaluation = replace(
            evaluation,
            timings=tuple(map(timing, self._task.search_shapes, prices)),
            counters=dict(prices[0].counters),
            terms=dict(prices[0].terms),
            launches=launches,
            diagnosis=_explained(prices[0].diagnosis, launches),
        )
        peaks = roofline(
            self._task,
            [made.ptx for made in candidate.builds],
            evaluation.counters,
            architecture_ceilings(self._gpu),
            self._gpu.memory.l2_bytes,
        )
        reason = quarantine_reason(self._task, evaluation.timings, peaks)
        if not reason:
            try:
                evaluation = self._verified_where_timed(evaluation, candidate.kernel, stages)
            except DisassemblerError as error:
                raise DeviceError(str(error)) from error
            if not evaluation.ok:
                return evaluation
        notes = dict.fromkeys(launch.note for each in prices for launch in each.launches if launch.note)
        guard = Guard.ROOFLINE if reason else None
        return replace(
            evaluation, quarantine=reason, guard=guard, flags=(*evaluation.flags, *notes, *flags(evaluation))
        )

    def _verified_where_timed(self, evaluation: Evaluation, kernel: Kernel, stages: Stages) -> Evaluation:
        """With a check at each shape that the search times at, which decides the outcome, or a remark that none was.

        And with times at them from other blocks and other inputs than those of the search, which everybody may know.
        """
        if self._searched is None:
            return evaluation
        inputs = {shape_label(each.shape): each.inputs for each in self._timed}
        pricing = Pricing(self._searched, self._gpu, self._seed, inputs)
        prepared = pricing.prepare(kernel, stages)
        rng = np.random.default_rng(self._seed)
        with pricing.disassembling(prepared) as disassemblies:
            for drawn in self._timed:
                with stages.timed("verify"):
                    found = check_timed_shape(drawn, prepared.candidate, prepared.modules, rng)
                if isinstance(found, str):
                    remark = f"not verified at {shape_label(drawn.shape)}, where it is timed: {found}"
                    evaluation = replace(evaluation, flags=(*evaluation.flags, remark))
                    continue
                evaluation = replace(evaluation, checks=(*evaluation.checks, found))
                if not found.passed:
                    return replace(
                        evaluation, outcome=Outcome.WRONG_RESULT, message=found.message, guard=found.guard
                    )
            prices = pricing.price(prepared, disassemblies, stages, rng)
        return replace(evaluation, retimed=tuple(map(timing_by_chance, self._searched.search_shapes, prices)))


def timing(shape: Shape, modelled: Modelled) -> Timing:
    """A price that is always the same."""
    return Timing(shape_label(shape), modelled.seconds, modelled.seconds, modelled.seconds)


def timing_by_chance(shape: Shape, modelled: Modelled) -> Timing:
    """A price from blocks at random, with what their choice may make of it."""
    chance = CHANCE * modelled.sampling_error * modelled.seconds
    return Timing(shape_label(shape), modelled.seconds, modelled.seconds - chance, modelled.seconds + chance)


def _launches(modelled: Modelled, gpu: Architecture) -> tuple[LaunchTerms, ...]:
    """The launches, each but the first with what one behind another takes to launch."""
    launches = []
    for index, each in enumerate(modelled.launches):
        gap = gpu.overheads.launch_gap if index else 0.0
        terms = {term.value: seconds for term, seconds in each.price.terms.items()}
        terms[Term.LAUNCH.value] += gap
        busiest = imbalance(each.work.blocks, gpu.chip.sms)
        launches.append(LaunchTerms(each.work.kernel, each.price.seconds + gap, terms, busiest))
    return tuple(launches)


def _explained(diagnosis: Diagnosis, launches: tuple[LaunchTerms, ...]) -> Diagnosis:
    """With what binds the plan, what is next, and what relieving it would bring."""
    return replace(diagnosis, explanation=" ".join(sentences(explain_launches(launches))))
