"""A plan at a shape that is timed, in an emulator's memory, of which blocks can be run and counted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np

from mctskernel.core.dtypes import numpy_dtype
from mctskernel.core.launch_plan import ResolvedLaunch
from mctskernel.core.task import Array, Tensor
from mctskernel.profiling.candidate import Candidate
from mctskernel.profiling.emulator import Execution, Geometry, GlobalMemory, Limits, Module, execute
from mctskernel.profiling.emulator.control_flow import Block
from mctskernel.profiling.emulator.launch import flow_of
from mctskernel.profiling.emulator.tallies import Tallies
from mctskernel.profiling.emulator.trail import Trail
from mctskernel.profiling.emulator.turns import Place
from mctskernel.profiling.priced_blocks import PricedBlocks, count_priced
from mctskernel.profiling.timed_values import TimedInputs

LIMITS = Limits(lane_instructions=400_000_000, block_executions=300_000, seconds=3.0)
"""What emulating some blocks of a launch may take before nothing is said."""


class Executor(Protocol):
    """Runs blocks of a launch, one call after another on the same memory; what they do is added to the tallies."""

    def __call__(self, blocks: Sequence[int], tallies: Tallies | None = None) -> Execution:
        """Run them."""
        ...


class TimedRun:
    """One run of a candidate's plan, of which not everything is done. Outputs hold nothing at first."""

    def __init__(self, drawn: TimedInputs, candidate: Candidate, modules: Sequence[Module]) -> None:
        self.drawn, self.candidate = drawn, candidate
        self.plan = candidate.at(drawn.task, drawn.shape)
        self.memory = GlobalMemory()
        self._modules = modules
        self._addresses = {
            name: self.memory.add(name, array, writable=False) for name, array in drawn.inputs.items()
        }
        for output in drawn.task.outputs:
            self._addresses[output.name] = self.memory.add(output.name, output.nbytes(drawn.shape))
        for scratch in self.plan.scratch:
            self._addresses[scratch.name] = self.memory.add(
                scratch.name, scratch.nbytes, initialised=scratch.zero
            )

    def module_of(self, launch: ResolvedLaunch) -> Module:
        """The PTX of a launch."""
        return self._modules[self.candidate.index_of(launch)]

    def flow_of(self, launch: ResolvedLaunch) -> Sequence[Block]:
        """The basic blocks of a launch's PTX."""
        return flow_of(self.module_of(launch), self.candidate.entry_of(launch)).blocks

    def executor(self, launch: ResolvedLaunch, counters: Collection[Place], trail: Trail) -> Executor:
        """What runs blocks of a launch."""
        module, entry = self.module_of(launch), self.candidate.entry_of(launch)
        geometry = Geometry(launch.grid, launch.block, launch.shared_bytes)
        arguments = self.candidate.arguments(launch, self._addresses)

        def execute_blocks(blocks: Sequence[int], tallies: Tallies | None = None) -> Execution:
            return execute(
                module,
                entry,
                geometry,
                arguments,
                self.memory,
                blocks=blocks,
                limits=LIMITS,
                tallies=tallies,
                counters=counters,
                trail=trail,
            )

        return execute_blocks

    def priced(self, launch: ResolvedLaunch) -> PricedBlocks | None:
        """What the launch's price is made from, on the same inputs."""
        drawn = self.drawn
        tensors = (*drawn.task.inputs, *drawn.task.outputs)
        outputs = {tensor.name: tensor for tensor in drawn.task.outputs}

        def contents(name: str) -> Array:
            if name in drawn.inputs:
                return drawn.inputs[name]
            return np.zeros(outputs[name].extents(drawn.shape), numpy_dtype(outputs[name].dtype))

        return count_priced(
            self.candidate,
            launch,
            self.module_of(launch),
            self.plan,
            buffers={tensor.name: tensor.nbytes(drawn.shape) for tensor in tensors},
            contents=contents,
        )

    def written(self, output: Tensor) -> Array:
        """Which elements of an output were written, in its shape."""
        valid = self.memory[output.name].valid
        assert valid is not None  # noqa: S101 - outputs are placed without contents
        found = valid.view(f"u{numpy_dtype(output.dtype).itemsize}") != 0
        return np.asarray(found.reshape(output.extents(self.drawn.shape)))

    def values(self, output: Tensor) -> Array:
        """What an output holds, in its shape."""
        values = self.memory.array(output.name, numpy_dtype(output.dtype))
        return np.asarray(values.reshape(output.extents(self.drawn.shape)))


def buffers_of(launch: ResolvedLaunch) -> set[str]:
    """The names of the buffers that a launch is given."""
    return {argument for argument in launch.arguments if isinstance(argument, str)}
