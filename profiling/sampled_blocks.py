"""Check thread blocks of a kernel at a shape that is too large to emulate in full.

Such are the shapes that are timed, which a kernel can tell from the small ones of the verification, and verify shapes
where nothing small exists. Blocks of each launch are emulated on fresh inputs: the first, the last, those at other
corners of the grid, and random ones. What they wrote is compared with the reference. Where blocks exchange results
through memory, a few of them decide nothing but that no access and no race was wrong, and the note says so instead.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mctskernel.core.dtypes import numpy_dtype
from mctskernel.core.evaluation import Check, Guard, Outcome
from mctskernel.core.launch_plan import ResolvedLaunch
from mctskernel.core.task import Array, Shape, Task, TaskError, Tensor, shape_label
from mctskernel.profiling.candidate import Candidate
from mctskernel.profiling.emulation import most_important, place
from mctskernel.profiling.emulator import Execution, GlobalMemory, Limits, Module
from mctskernel.profiling.emulator.ptx import Instruction
from mctskernel.profiling.input_values import Scattered
from mctskernel.profiling.sampling import Bands
from mctskernel.profiling.verify import Case, check_outputs, expect, expect_propagated

LIMITS = Limits(lane_instructions=400_000_000, block_executions=300_000, seconds=15.0)
"""What one emulation may take before the check gives up."""

WHOLE = 200_000_000  # lane instructions up to which launches are emulated in full, all of a plan together

GROUPS, GROUP = 4, 6
"""How many groups of random blocks of the last launch are emulated, and how many blocks are in one at most."""

LANES = 20_000_000  # lane instructions of the random blocks of a launch, unless single blocks take more

MOST_LANES = 200_000_000
"""Lane instructions of a plan after which no further launch is emulated where no values can be compared."""

LEAST_WRITTEN = 0.95
"""The fraction of an output that all blocks must come to, estimated from the emulated ones; edge tiles write less."""

MOST_ELEMENTS = 1 << 16  # about how many elements of an output are compared


class _Undecided(Exception):  # noqa: N818 - not an error: nothing can be said
    """Why emulating some of the blocks decides nothing."""


class _Failed(Exception):  # noqa: N818 - a verdict
    """A failed check, and its outcome."""

    def __init__(self, check: Check, outcome: Outcome = Outcome.WRONG_RESULT) -> None:
        super().__init__(check.message)
        self.check, self.outcome = check, outcome


@dataclass(frozen=True)
class Sampled:
    """The verdict on sampled blocks (`note` says which, if not all); no `check` if no value could be compared."""

    outcome: Outcome
    check: Check | None
    note: str


def check_blocks(
    task: Task,
    shape: Shape,
    seed: int,
    candidate: Candidate,
    modules: Sequence[Module],
    *,
    timed: bool = False,
    special: Scattered | None = None,
) -> Sampled:
    """The verdict at a large shape, timed or verified, with `special` put into inputs that `seed` draws."""
    try:
        run = _Run(task, shape, seed, candidate, modules, timed=timed, special=special)
        try:
            check = run.check()
            sampled = run.emulated < run.total
            return Sampled(Outcome.OK, check, f"verified on {run.extent}" if sampled else "")
        except _Failed as failed:
            return Sampled(failed.outcome, failed.check, "")
        except _Undecided as reason:
            note = f"{run.extent} were emulated, and no values compared: {reason}"
            return Sampled(Outcome.OK, None, note)
    except MemoryError:
        return Sampled(Outcome.OK, None, "emulating it takes too much memory")


@dataclass(frozen=True)
class _Written:
    """An output, and which of its elements are final."""

    values: Array
    mask: Array


class _Run:
    """A plan at one shape in the emulator's memory."""

    def __init__(
        self,
        task: Task,
        shape: Shape,
        seed: int,
        candidate: Candidate,
        modules: Sequence[Module],
        *,
        timed: bool,
        special: Scattered | None,
    ) -> None:
        self.task, self.shape, self.seed, self.timed, self.special = task, shape, seed, timed, special
        self.rng = np.random.default_rng(seed)
        self.inputs = task.draw_inputs(shape, seed)
        if special is not None:
            special.put(self.inputs)
        self.placed = place(task, candidate, modules, shape, self.inputs, GlobalMemory())
        self.memory = self.placed.memory
        self.affordable = WHOLE
        self.emulated = self.total = self.spent = 0
        self.incomplete = ""

    @property
    def extent(self) -> str:
        """How many blocks were emulated."""
        return f"{self.emulated:,} of {self.total:,} blocks"

    def check(self) -> Check:
        """Emulate the launches before the last in full and blocks of the last, and check_outputs what they left."""
        *earlier, last = self.placed.plan.launches
        for launch in earlier:
            if self._launch(launch, 1) and not self.incomplete:
                self.incomplete = launch.kernel
            if self.spent > MOST_LANES:
                self._require_values()
        before = {each.name: self._state(each) for each in self.task.outputs}
        written: dict[str, list[tuple[int, int]]] = {name: [] for name in before if name in last.arguments}
        sampled = self._launch(last, GROUPS, lambda blocks: self._count(written, blocks))
        self._require_values()
        if sampled and _has_global_atomics(self.placed.module(last), self.placed.candidate.entry_of(last)):
            raise _Undecided(f"blocks of '{last.kernel}' work together through atomics")
        if self.task.in_place:
            raise _Undecided("it works in place")
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
                raise self._failure(f"its blocks write too little: about {share:.1%} of '{name}'.")
        return self._compare(finished)

    def _launch(
        self, launch: ResolvedLaunch, groups: int, follow: Callable[[int], None] = lambda _: None
    ) -> bool:
        """Emulate blocks, and the others if there is time; whether some were left out. Raises _Failed.

        The random ones run in so many groups; `follow` is called after each of them with its number of blocks.
        """
        done: set[int] = set()
        spent = self.spent

        def emulate(blocks: Sequence[int]) -> int:
            fresh = [each for each in blocks if each not in done]
            if fresh:
                execution = self.placed.run(launch, fresh, limits=LIMITS)
                self._check(launch, execution, partial=len(done) + len(fresh) < launch.blocks)
                self.spent += execution.lane_instructions
                done.update(fresh)
            return len(fresh)

        corners = _corners(launch.grid)
        emulate(corners[:2])
        size = max(1, min(GROUP, LANES * len(done) // (groups * max(1, self.spent - spent))))
        emulate(corners[2 : 2 + size])
        follow(0)
        random = self.rng.choice(launch.blocks, min(groups * size, launch.blocks), replace=False).tolist()
        for start in range(0, len(random), size):
            follow(emulate(random[start : start + size]))
        in_full = (self.spent - spent) * launch.blocks // len(done)
        if not self.incomplete and in_full <= self.affordable:
            self.affordable -= in_full
            emulate(range(launch.blocks))
        self.emulated, self.total = self.emulated + len(done), self.total + launch.blocks
        return len(done) < launch.blocks

    def _require_values(self) -> None:
        """Raise _Undecided where launches worked on values that others didn't finish."""
        if self.incomplete:
            raise _Undecided(f"'{self.incomplete}' takes too long to emulate in full")

    def _check(self, launch: ResolvedLaunch, execution: Execution, *, partial: bool) -> None:
        """Raise _Failed for a finding, unless blocks that were left out could have prevented it."""
        # What an unfinished launch left may be any number: an index of a later one that is out of bounds shows nothing.
        if not execution.findings or self.incomplete:
            return
        finding, outcome, guard = most_important(execution.findings)
        absent = [
            each.buffer
            for each in execution.findings
            if each.kind == "uninitialised_read" and each.buffer in self.placed.addresses
        ]
        if absent and partial:
            raise _Undecided(f"blocks of '{launch.kernel}' need what others leave in '{absent[0]}'")
        if self.timed and finding.kind == "limit":
            raise _Undecided(f"a block of '{launch.kernel}' takes too long to emulate")
        raise self._failure(f"'{launch.kernel}': {finding.message}.", guard, outcome)

    def _failure(
        self, message: str, guard: Guard = Guard.TIMED_OUTPUTS, outcome: Outcome = Outcome.WRONG_RESULT
    ) -> _Failed:
        label = shape_label(self.shape)
        where = ", where it is timed" if self.timed else ""
        sentence = f"At {label} (seed {self.seed}){where}: {message}"
        if not self.timed and guard is Guard.TIMED_OUTPUTS:
            guard = Guard.COMPARISON
        check = Check(label, self.seed, passed=False, error=float("inf"), message=sentence, guard=guard)
        return _Failed(check, outcome)

    def _state(self, output: Tensor) -> _Written:
        """What an output holds, and which elements were written."""
        dtype, extents = numpy_dtype(output.dtype), output.extents(self.shape)
        valid = self.memory[output.name].valid
        written = np.zeros(math.prod(extents), bool) if valid is None else valid.view(dtype.itemsize) != 0
        mask = written.reshape(extents)
        return _Written(self.memory.array(output.name, dtype).reshape(extents).copy(), mask)

    def _changed(self, output: Tensor, before: Mapping[str, _Written]) -> _Written:
        """An output and what of it has been written since."""
        now, then = self._state(output), before[output.name]
        bits = f"u{now.values.itemsize}"
        return _Written(
            now.values, (now.mask & ~then.mask) | (now.values.view(bits) != then.values.view(bits))
        )

    def _count(self, written: Mapping[str, list[tuple[int, int]]], blocks: int) -> None:
        """Note how many elements of each output the blocks that have just run wrote first."""
        for output in self.task.outputs:
            if output.name in written:
                found = int(np.count_nonzero(self.memory.written(output.name)))
                elements = found // numpy_dtype(output.dtype).itemsize
                before = sum(count for count, _ in written[output.name])
                written[output.name].append((elements - before, blocks))

    def _compare(self, written: Mapping[str, _Written]) -> Check:
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
            part = {**self.shape, task.independent: len(chosen)}
            if self.special is None:
                case = expect(task, part, self.seed, taken, part_of=self.shape)
            else:
                axis = axes[self.special.name]
                case = self._expected(
                    self.special, part, taken, Bands(axis, tuple((int(i), 1) for i in chosen))
                )
        else:
            case = expect(task, self.shape, self.seed, self.inputs)
            expected, plain = (
                {name: array[few[name]] for name, array in each.items()}
                for each in (case.expected, case.plain)
            )
            noise = case.noise and replace(
                case.noise, truth=expected, part=lambda name, array: array[few[name]]
            )
            case = replace(case, expected=expected, plain=plain, noise=noise)
        check = check_outputs(
            replace(case, shape=self.shape, inputs={}), self._outputs(case, written, few, axes)
        )
        if check.passed:
            return check
        raise _Failed(replace(check, guard=Guard.TIMED_OUTPUTS) if self.timed else check)

    def _expected(self, special: Scattered, part: Shape, taken: Mapping[str, Array], bands: Bands) -> Case:
        """The case of some indices of the independent dimension, with special values."""
        places = bands.places(self.inputs[special.name].shape)
        given = special.name, special.at(places)
        try:
            case = expect_propagated(self.task, part, self.seed, taken, given, part_of=self.shape)
        except TaskError as error:
            raise _Undecided(str(error)) from error
        if check_outputs(case, case.plain).passed:
            return case
        raise _Undecided(f"the reference itself is wrong with {special.values} inputs")

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


def _corners(grid: tuple[int, int, int]) -> list[int]:
    """The first block, the last, and those at the other corners of the grid."""
    x, y, z = (tuple(dict.fromkeys((0, extent - 1))) for extent in grid)
    found = [i + grid[0] * (j + grid[1] * k) for k, j, i in itertools.product(z, y, x)]
    return list(dict.fromkeys([found[0], found[-1], *found]))


def _touched(mask: Array, axis: int) -> Array:
    """Indices along an axis at which something was written."""
    return np.flatnonzero(mask.any(axis=tuple(each for each in range(mask.ndim) if each != axis)))


def _share(groups: Sequence[tuple[int, int]], blocks: int, size: int) -> float:
    """The share of an output that all blocks write, plus three standard errors; `groups`: elements and blocks."""
    means = [elements / number for elements, number in groups if number]
    error = float(np.std(means, ddof=1)) / math.sqrt(len(means)) if len(means) > 1 else 0.0
    return (float(np.mean(means)) + 3.0 * error) * blocks / size if means else 1.0


def _has_global_atomics(module: Module, entry: str) -> bool:
    return any(
        isinstance(each, Instruction) and each.parts[0] in ("atom", "red") and "shared" not in each.parts
        for each in module.entries[entry].body
    )
