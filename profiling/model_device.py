"""The `model` device: evaluates kernels on a machine without a GPU.

The compiler's PTX is emulated, which decides whether the kernel is correct; a model predicts the time of its machine
code on the named GPU. Every number is labelled as modelled.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import msgspec

from mctskernel.core.device import DeviceError
from mctskernel.core.evaluation import Evaluation, Guard, Outcome, Source
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Shape, Task, shape_label
from mctskernel.profiling.architecture import ArchitectureError, load_architecture
from mctskernel.profiling.ceilings import architecture_ceilings, roofline
from mctskernel.profiling.emulated_verification import draw, emulate
from mctskernel.profiling.emulation import Emulable
from mctskernel.profiling.guardrails import flags, quarantine_reason
from mctskernel.profiling.input_values import Values
from mctskernel.profiling.model.explanation import explain_launches, sentences
from mctskernel.profiling.pricing import Pricing, timing_of
from mctskernel.profiling.sampled_blocks import check_blocks
from mctskernel.profiling.stages import Stages
from mctskernel.profiling.verify import scattered_values, widened_task
from mctskernel.profiling.versions import package_versions


class ModelDevice:
    """Evaluates kernels of one task for the named GPU with an emulator and a model.

    Raises DeviceError for an unknown architecture. Inputs follow from `seed` alone. At the final validation `task`
    has the held-out shapes, and `searched` is the whole task, whose timed shapes are checked too.
    """

    def __init__(
        self, task: Task, architecture: str = "H100", seed: int = 0, searched: Task | None = None
    ) -> None:
        try:
            self._gpu = load_architecture(architecture)
        except ArchitectureError as error:
            raise DeviceError(str(error)) from error
        self._task, self._seed, self._searched = task, seed, searched
        self._pricing = Pricing(task, self._gpu, seed)
        self._drawn = draw(task, seed)

    def evaluate(self, kernel: Kernel) -> Evaluation:
        """Check the source, build, verify and model one kernel; the first step that fails decides the outcome."""
        return self._pricing.evaluate(kernel, self._evaluate)

    def fingerprint(self) -> dict[str, str]:
        """What a modelled time depends on: the modelled GPU, its constants, and the versions of the tools."""
        return {
            "device": "model",
            "gpu": self._gpu.name,
            "architecture": self._gpu.architecture,
            "constants": hashlib.sha256(msgspec.json.encode(self._gpu)).hexdigest()[:12],
            **package_versions("nvidia-cuda-nvrtc", "nvidia-cuda-nvdisasm", "numpy"),
        }

    def _evaluate(self, prepared: Emulable, stages: Stages) -> Evaluation:
        candidate, modules = prepared.candidate, prepared.modules
        with self._pricing.disassembling(prepared) as disassemblies:
            with stages.timed("verify"):
                verified = emulate(self._task, candidate, modules, self._drawn)
            evaluation = Evaluation(
                verified.outcome,
                Source.MODELLED,
                verified.message,
                checks=verified.checks,
                resources=(prepared.native or prepared).candidate.resources,
                log=candidate.log,
                flags=(*([prepared.note] if prepared.note else []), *verified.notes),
                guard=verified.guard,
            )
            if not evaluation.ok:
                return evaluation
            modelled = self._pricing.price(prepared, disassemblies, stages)
        first, shapes = modelled[0], self._task.search_shapes
        explanation = " ".join(sentences(explain_launches(first.launches)))
        evaluation = replace(
            evaluation,
            timings=tuple(map(timing_of, shapes, [each.seconds for each in modelled])),
            flags=(*evaluation.flags, *filter(None, [first.note])),
            counters=dict(first.counters),
            terms=first.terms,
            launches=first.launches,
            diagnosis=replace(first.diagnosis, explanation=explanation),
        )
        peaks = roofline(
            self._task,
            [made.ptx for made in candidate.builds],
            evaluation.counters,
            architecture_ceilings(self._gpu),
            self._gpu.memory.l2_bytes,
        )
        # Without the floor under modelled times: a kernel that stays far below it has left out work.
        counted = [sum(launch.seconds for launch in each.launches) for each in modelled]
        reason = quarantine_reason(self._task, [*map(timing_of, shapes, counted)], peaks)
        if self._searched is not None and not reason:
            evaluation = self._checked_where_timed(self._searched, evaluation, candidate.kernel, stages)
            if not evaluation.ok:
                return evaluation
        return replace(
            evaluation,
            quarantine=reason,
            guard=Guard.ROOFLINE if reason else None,
            flags=(*evaluation.flags, *flags(evaluation)),
        )

    def _checked_where_timed(
        self, task: Task, evaluation: Evaluation, kernel: Kernel, stages: Stages
    ) -> Evaluation:
        """With a check at each timed shape of the search, which decides the outcome, or a note that there is none."""
        prepared = Pricing(task, self._gpu, self._seed).prepare(kernel, stages)
        smallest = min(task.verify_shapes, key=task.compulsory_bytes)
        wider = widened_task(task, smallest, self._seed)
        # Sizes that the search hasn't seen, where there are any, get infinities.
        kinds = [
            *((shape, wider, Values.NAN) for shape in task.search_shapes),
            *((shape, task, Values.INFINITY) for shape in self._task.search_shapes),
        ]
        undecided: list[Shape] = []
        for number, (shape, drawn, values) in enumerate(kinds):
            special = scattered_values(task, shape, values, self._seed)
            again = special is None and (shape, drawn) in [each[:2] for each in kinds[:number]]
            if again or shape in undecided:
                continue
            with stages.timed("verify"):
                found = check_blocks(
                    drawn,
                    shape,
                    self._seed,
                    prepared.candidate,
                    prepared.modules,
                    timed=True,
                    special=special,
                )
            if found.check is None:
                undecided.append(shape)
                note = f"not verified at {shape_label(shape)}, where it is timed: {found.note}"
                evaluation = replace(evaluation, flags=(*evaluation.flags, note))
                continue
            check = found.check
            evaluation = replace(evaluation, checks=(*evaluation.checks, check))
            if not check.passed:
                return replace(
                    evaluation, outcome=Outcome.WRONG_RESULT, message=check.message, guard=check.guard
                )
        return evaluation
