"""The surrogate: what the model says of a kernel's time, asked without verifying the kernel.

It prices what it is given and never says whether that is right. A kernel that doesn't build for the GPU, or that
the model can't price, has no prediction.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mctskernel.core.device import Device, DeviceError, DeviceSpec
from mctskernel.core.evaluation import Evaluation, Outcome, Source, Timing
from mctskernel.core.kernel import Kernel
from mctskernel.core.surrogate import Prediction
from mctskernel.core.task import Shape, Task, shape_label
from mctskernel.core.task_file import load_task
from mctskernel.profiling.architecture import (
    Architecture,
    ArchitectureError,
    architecture_of,
    known_architectures,
    load_architecture,
)
from mctskernel.profiling.candidate import RefusedError
from mctskernel.profiling.machine_code.nvdisasm import DisassemblerError
from mctskernel.profiling.model.modelled import Modelled
from mctskernel.profiling.pricing import Pricing, identity_of_code
from mctskernel.profiling.stages import Stages

NICENESS = 10
"""Predictions take what evaluations leave of the CPU: the processes that launch, time and compile come first."""


class PricingDevice:
    """A device that prices kernels and verifies nothing; `ok` says no more than that there is a price."""

    def __init__(self, task: Task, gpu: Architecture, seed: int = 0) -> None:
        self._shapes = task.search_shapes
        self._pricing = Pricing(task, gpu, seed)
        self._priced: dict[str, Evaluation] = {}

    def evaluate(self, kernel: Kernel) -> Evaluation:
        """Build and price one kernel. Raises DeviceError on a machine that can't do either."""
        stages = Stages()
        try:
            prepared = self._pricing.prepare(kernel, stages)
            code = identity_of_code(prepared.candidate)
            if code not in self._priced:
                with self._pricing.disassembling(prepared) as disassemblies:
                    prices = self._pricing.price(prepared, disassemblies, stages)
                self._priced[code] = _evaluation(self._shapes, prices)
            evaluation = self._priced[code]
        except RefusedError as refusal:
            evaluation = refusal.evaluation(Source.MODELLED)
        except DisassemblerError as error:
            raise DeviceError(str(error)) from error
        return replace(evaluation, stage_seconds=stages.seconds)

    def fingerprint(self) -> dict[str, str]:
        """The GPU that is modelled."""
        return {"device": "surrogate", "gpu": self._pricing.gpu.name}


def open_pricing_device(spec: DeviceSpec) -> Device:
    """The pricing device of a task, in a process that gives way to others.

    Raises TaskError for a task that can't be used and DeviceError for an architecture that isn't known.
    """
    os.nice(NICENESS)
    try:
        gpu = load_architecture(spec.architecture)
    except ArchitectureError as error:
        raise DeviceError(str(error)) from error
    return PricingDevice(load_task(spec.task_folder, spec.language), gpu, spec.seed)


def prediction_of(evaluation: Evaluation | None) -> Prediction | None:
    """The modelled time of an evaluation, with the terms of its first search shape; None where there is none."""
    if evaluation is None or not evaluation.ok or evaluation.source is not Source.MODELLED:
        return None
    seconds = [timing.seconds for timing in evaluation.timings]
    if not seconds or min(seconds) <= 0:
        return None
    return Prediction(math.exp(math.fsum(map(math.log, seconds)) / len(seconds)), evaluation.terms)


def architecture_for(gpu: str, code: str) -> str:
    """The short name of the description that fits a GPU best: its driver's name for it, and its code (`sm_90`).

    Raises DeviceError where none runs that code.
    """
    found = architecture_of(code, gpu)
    if found is None:
        known = ", ".join(known_architectures())
        raise DeviceError(
            f"No description fits the GPU '{gpu}' ({code}), so nothing predicts its times (known: {known}; "
            "`mctskernel calibrate` writes one, for --architecture)."
        )
    return next(name for name in known_architectures() if load_architecture(name) == found)


def _evaluation(shapes: Sequence[Shape], prices: Sequence[Modelled]) -> Evaluation:
    return Evaluation(
        Outcome.OK,
        Source.MODELLED,
        timings=tuple(
            Timing(shape_label(shape), found.seconds, found.seconds, found.seconds)
            for shape, found in zip(shapes, prices, strict=True)
        ),
        terms=_plain(prices[0].terms),
    )


def _plain(terms: Mapping[str, float]) -> dict[str, float]:
    return {str(name): float(seconds) for name, seconds in terms.items()}
