"""Check thread blocks of a kernel at the shape that it is timed at.

Verification emulates small shapes in full, and the modelled time is of a large one: a kernel can tell them apart. So
random blocks of the large launch are emulated on fresh inputs, and what they wrote is compared with the reference.
Where blocks exchange results through memory, a few of them decide nothing, and the check says so instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mctskernel.core.dtypes import numpy_dtype
from mctskernel.core.evaluation import Check, Guard
from mctskernel.core.launch_plan import ResolvedLaunch
from mctskernel.core.task import Array, Shape, Task, Tensor, shape_label
from mctskernel.profiling.candidate import Candidate
from mctskernel.profiling.emulation import VERDICTS, place
from mctskernel.profiling.emulator import Execution, GlobalMemory, Limits, Module
from mctskernel.profiling.emulator.ptx import Instruction
from mctskernel.profiling.verify import Case, expect, judge

LIMITS = Limits(lane_instructions=400_000_000, block_executions=300_000, seconds=3.0)
"""What one emulation may take before the check gives up."""

WHOLE = 60_000_000
"""Lane instructions up to which a launch is emulated in full."""

BLOCKS = (4, 24)
"""The least and the most blocks of the last launch that are emulated."""

LANES = 20_000_000
"""Lane instructions of these blocks together, as far as the least number allows."""

LEAST_WRITTEN = 0.95
"""The fraction of an output that all blocks must come to, judged by the emulated ones; edge tiles write less."""

MOST_ELEMENTS = 1 << 16
"""About how many elements of an output are compared."""


class _Undecided(Exception):  # noqa: N818 - not an error: nothing can be said
    """Why emulating some of the blocks decides nothing."""


def check_timed_shape(
    task: Task, shape: Shape, seed: int, candidate: Candidate, modules: Sequence[Module]
) -> Check | str:
    """The verdict at a timed shape, or a sentence's end on why there is none. `seed` draws inputs and blocks."""
    if task.in_place:
        return "it works in place"
    try:
        return _Run(task, shape, seed, candidate, modules).check()
    except _Undecided as reason:
        return str(reason)
    except MemoryError:
        return "emulating it takes too much memory"


@dataclass(frozen=True)
class _Written:
    """An output, and which of its elements are final."""

    values: Array
    mask: Array


class _Run:
    """A plan at one shape in the emulator's memory."""

    def __init__(
        self, task: Task, shape: Shape, seed: int, candidate: Candidate, modules: Sequence[Module]
    ) -> None:
        self.task, self.shape, self.seed = task, shape, seed
        self.rng = np.random.default_rng(seed)
        self.inputs = task.draw_inputs(shape, seed)
        self.placed = place(task, candidate, modules, shape, self.inputs, GlobalMemory())
        self.memory = self.placed.memory

    def check(self) -> Check:
        """Emulate the launches before the last in full and blocks of the last, and judge what they left."""
        *earlier, last = self.placed.plan.launches
        for launch in earlier:
            failed, sampled = self._launch(launch)
            if failed:
                return failed
            if sampled:
                raise _Undecided(f"'{launch.kernel}' takes too long to emulate in full")
        before = {each.name: self._state(each) for each in self.task.outputs}
        written: dict[str, list[int]] = {name: [] for name in before if name in last.arguments}
        failed, sampled = self._launch(last, lambda: self._count(written))
        if failed:
            return failed
        if sampled and _has_global_atomics(self.placed.module(last), self.placed.candidate.entry_of(last)):
            raise _Undecided(f"blocks of '{last.kernel}' work together through atomics")
        finished = {
            each.name: self._changed(each, before) if sampled and each.name in written else self._state(each)
            for each in self.task.outputs
        }
        for name, each in finished.items():
            share = float(each.mask.mean())
            if sampled and name in written:
                whole = before[name].mask.any()
                share = 1.0 if whole else _share(written[name], last.blocks, each.mask.size)
            if share < (LEAST_WRITTEN if sampled else 1.0):
                return self._check(f"its blocks write too little: about {share:.1%} of '{name}'.")
        return self._judge(finished)

    def _launch(
        self, launch: ResolvedLaunch, follow: Callable[[], None] = lambda: None
    ) -> tuple[Check | None, bool]:
        """Emulate random blocks, and the others if there is time: a failed check, and whether some were left out.

        `follow` is called after each of the random blocks.
        """
        least, most = BLOCKS
        lanes: list[int] = []
        chosen = [int(b) for b in self.rng.choice(launch.blocks, min(most, launch.blocks), replace=False)]
        for block in chosen:
            execution = self.placed.run(launch, [block], limits=LIMITS)
            if failed := self._failed(launch, execution, partial=launch.blocks > 1):
                return failed, True
            follow()
            lanes.append(execution.lane_instructions)
            if sum(lanes) > LANES and len(lanes) >= least:
                break
        others = sorted(set(range(launch.blocks)) - set(chosen[: len(lanes)]))
        if not others or max(lanes) * launch.blocks > WHOLE:
            return None, bool(others)
        return self._failed(launch, self.placed.run(launch, others, limits=LIMITS), partial=False), False

    def _failed(self, launch: ResolvedLaunch, execution: Execution, *, partial: bool) -> Check | None:
        """A failed check for a finding, unless blocks that were left out could have prevented it."""
        if not execution.findings:
            return None
        finding = execution.findings[0]
        if finding.kind == "limit":
            raise _Undecided(f"a block of '{launch.kernel}' takes too long to emulate")
        if partial and finding.kind == "uninitialised_read" and finding.buffer in self.placed.addresses:
            raise _Undecided(f"blocks of '{launch.kernel}' need what others leave in '{finding.buffer}'")
        return self._check(f"'{launch.kernel}': {finding.message}.", VERDICTS[finding.kind][1])

    def _check(self, message: str, guard: Guard = Guard.TIMED_OUTPUTS) -> Check:
        label = shape_label(self.shape)
        sentence = f"At {label} (seed {self.seed}), where it is timed: {message}"
        return Check(label, self.seed, passed=False, error=float("inf"), message=sentence, guard=guard)

    def _state(self, output: Tensor) -> _Written:
        """What an output holds, and which elements were written."""
        dtype, extents = numpy_dtype(output.dtype), output.extents(self.shape)
        valid = self.memory[output.name].valid
        assert valid is not None  # noqa: S101 - outputs are placed without contents
        mask = (valid.view(dtype.itemsize) != 0).reshape(extents)
        return _Written(self.memory.array(output.name, dtype).reshape(extents).copy(), mask)

    def _changed(self, output: Tensor, before: Mapping[str, _Written]) -> _Written:
        """An output and what of it has been written since."""
        now, then = self._state(output), before[output.name]
        bits = f"u{now.values.itemsize}"
        return _Written(
            now.values, (now.mask & ~then.mask) | (now.values.view(bits) != then.values.view(bits))
        )

    def _count(self, written: Mapping[str, list[int]]) -> None:
        """Note how many elements of each output the block that has just run wrote first."""
        for output in self.task.outputs:
            if output.name in written:
                found = int(np.count_nonzero(self.memory.written(output.name)))
                elements = found // numpy_dtype(output.dtype).itemsize
                written[output.name].append(elements - sum(written[output.name]))

    def _judge(self, written: Mapping[str, _Written]) -> Check:
        """Compare what was written at some indices of the independent dimension, or of each output's first one."""
        task = self.task
        axes = {
            tensor.name: tensor.shape.index(task.independent)
            for tensor in (*task.inputs, *task.outputs)
            if task.independent and task.independent in tensor.shape
        }
        rows = {name: _touched(each.mask, axes.get(name, 0)) for name, each in written.items()}
        if not any(map(len, rows.values())):
            raise _Undecided("no output is finished by the emulated blocks")
        few = {name: self._few(found, written[name].mask, axes.get(name, 0)) for name, found in rows.items()}
        if task.independent:
            chosen = np.unique(np.concatenate(list(few.values())))
            few = dict.fromkeys(few, chosen)
            taken = {n: np.take(a, chosen, axes[n]) if n in axes else a for n, a in self.inputs.items()}
            case = expect(
                task, {**self.shape, task.independent: len(chosen)}, self.seed, taken, part_of=self.shape
            )
        else:
            case = expect(task, self.shape, self.seed, self.inputs)
            case = replace(
                case,
                expected={name: array[few[name]] for name, array in case.expected.items()},
                plain={name: array[few[name]] for name, array in case.plain.items()},
                places=few,
            )
        check = judge(replace(case, shape=self.shape, inputs={}), self._outputs(case, written, few, axes))
        return check if check.passed else replace(check, guard=Guard.TIMED_OUTPUTS)

    def _outputs(
        self, case: Case, written: Mapping[str, _Written], few: Mapping[str, Array], axes: Mapping[str, int]
    ) -> dict[str, Array]:
        """The chosen part of each output, with the truth where nothing was to be written."""
        outputs = {}
        for output in self.task.outputs:
            each, at, axis = written[output.name], few[output.name], axes.get(output.name, 0)
            right = case.expected[output.name].astype(numpy_dtype(output.dtype))
            outputs[output.name] = np.where(
                np.take(each.mask, at, axis), np.take(each.values, at, axis), right
            )
        return outputs

    def _few(self, indices: Array, mask: Array, axis: int) -> Array:
        most = max(2, MOST_ELEMENTS * mask.shape[axis] // mask.size)
        return indices if len(indices) <= most else np.sort(self.rng.choice(indices, most, replace=False))


def _touched(mask: Array, axis: int) -> Array:
    """Indices along an axis at which something was written."""
    return np.flatnonzero(mask.any(axis=tuple(each for each in range(mask.ndim) if each != axis)))


def _share(counts: Sequence[int], blocks: int, size: int) -> float:
    """The fraction of an output that all blocks write, from what some do, with three standard errors to spare."""
    error = float(np.std(counts, ddof=1)) / math.sqrt(len(counts)) if len(counts) > 1 else 0.0
    return (float(np.mean(counts)) + 3.0 * error) * blocks / size


def _has_global_atomics(module: Module, entry: str) -> bool:
    return any(
        isinstance(each, Instruction) and each.parts[0] in ("atom", "red") and "shared" not in each.parts
        for each in module.entries[entry].body
    )
