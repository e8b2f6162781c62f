"""Fake GPUs of one kind that differ: one that is slower, one whose clock falls, one that is slowed down for a while."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from fake_gpu import FakeGpu

from mctskernel.core.evaluation import ClockEvent, Conditions, GpuState
from mctskernel.profiling.gpu.protocol import GpuReply, Opened, OpenGpu, Plan, Read, Timed
from mctskernel.profiling.gpu.timing import Runs, Schedule, interleaved
from mctskernel.profiling.processes.channel import Broken

FULL_MHZ = 1980
STEADY = GpuState(FULL_MHZ, 2619, 40, 300.0)


def slower(reply: GpuReply, factor: float) -> GpuReply:
    """The reply of a GPU on which every run takes so many times as long."""
    if not isinstance(reply, Timed):
        return reply
    return msgspec.structs.replace(
        reply,
        samples=tuple(factor * each for each in reply.samples),
        baseline=tuple(factor * each for each in reply.baseline),
        runs=tuple(msgspec.structs.replace(run, seconds=factor * run.seconds) for run in reply.runs),
    )


class SlowerGpu(FakeGpu):
    """Takes a tenth longer for everything, and tells nothing of its state."""

    def open(self, request: OpenGpu) -> Opened | Broken:
        opened = super().open(request)
        assert isinstance(opened, Opened)
        gpu = replace(opened.gpu, uuid="11" * 16)
        return msgspec.structs.replace(opened, gpu=gpu, state="No state here.")

    def time(self, plan: Plan, baseline: Plan, reads: tuple[tuple[Read, ...], ...]) -> GpuReply:
        return slower(super().time(plan, baseline, reads), 1.1)


class DriftingGpu(FakeGpu):
    """Its clock falls by a fifth after the first four kernels, for good."""

    def time(self, plan: Plan, baseline: Plan, reads: tuple[tuple[Read, ...], ...]) -> GpuReply:
        state = STEADY if self.timed < 4 else GpuState(FULL_MHZ * 4 // 5, 2619, 70, 300.0)
        reply = slower(super().time(plan, baseline, reads), FULL_MHZ / (state.sm_mhz or FULL_MHZ))
        if isinstance(reply, Timed):
            return msgspec.structs.replace(reply, conditions=Conditions(state, state))
        return reply


class HotAtFirstGpu(FakeGpu):
    """Is slowed down to half its clock all the time that it takes for its first kernel, and never tells its clock."""

    def time(self, plan: Plan, baseline: Plan, reads: tuple[tuple[Read, ...], ...]) -> GpuReply:
        reply = super().time(plan, baseline, reads)
        if not isinstance(reply, Timed):
            return reply
        ours, theirs = (self.samples(each)[0] for each in (plan, baseline))
        turns = interleaved(self.heating(ours), self.heating(theirs), Schedule(0.05), self)
        return msgspec.structs.replace(
            reply,
            samples=turns.samples,
            baseline=turns.baseline,
            conditions=turns.conditions,
            disturbed=turns.disturbed,
        )

    @property
    def is_hot(self) -> bool:
        return self.timed == 1

    def heating(self, seconds: float) -> Runs:
        """Runs that take longer while the GPU is slowed down."""
        return lambda times: [seconds * (2 if self.is_hot else 1)] * times

    def glance(self) -> GpuState:
        """The state of now."""
        return GpuState(events=(ClockEvent.HARDWARE_THERMAL,) if self.is_hot else ())

    read = glance
