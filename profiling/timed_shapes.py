"""Whether a kernel is right at the shapes that it is timed at, where emulating all of it would take too long.

Verification runs at small shapes, the price is made at large ones, and a kernel can tell them apart. So some blocks of
the large launch are emulated on real inputs, those that the price is made from among them, and what they wrote is
compared, as is how much they did. What blocks hand to each other through memory can't be followed from a few of them:
then nothing is said.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from mctskernel.core.dtypes import numpy_dtype
from mctskernel.core.evaluation import Check, Guard
from mctskernel.core.launch_plan import ResolvedLaunch, ResolvedPlan
from mctskernel.core.task import Array, Shape, Task, Tensor, shape_label
from mctskernel.profiling.candidate import Candidate
from mctskernel.profiling.emulation import GUARDS
from mctskernel.profiling.emulator import Execution, Finding, Geometry, GlobalMemory, Limits, Module, execute
from mctskernel.profiling.emulator.ptx import Instruction
from mctskernel.profiling.emulator.trail import Trail
from mctskernel.profiling.emulator.turns import Place
from mctskernel.profiling.model.choice_of_blocks import middle_block
from mctskernel.profiling.priced_blocks import PricedBlocks, count_priced
from mctskernel.profiling.verify import Case, expect, judge

AT_RANDOM = 3
"""Blocks of each launch beside the first, the middle and the last one, which are those that a price is made from."""

LONG = 20_000_000
"""Lane instructions of a block beyond which one at random has to do beside it."""

MOST_ELEMENTS = 1 << 16
"""About how many elements of an output are compared."""

DRAWN_ELEMENTS = 4_194_301
"""As many elements of an input are drawn, a prime number, and repeated as often as it takes."""

LEAST_WRITTEN = 0.5
"""The least fraction of an output that is written if every block writes as much as the middle one, which is priced."""

WHOLE = 5_000_000
"""Lane instructions of a launch up to which all of it is emulated, where it needs nothing that was left out."""

AWAITED = 60_000_000
"""The same of a launch on which more depends: what later ones execute, or whether an output is finished."""

SECOND_LOOKS = 6
"""Times that an output is looked at which another launch may still change, and seems to leave alone."""

LIMITS = Limits(lane_instructions=400_000_000, block_executions=300_000, seconds=3.0)
"""What emulating some blocks of a launch may take before nothing is said."""


@dataclass(frozen=True)
class TimedInputs:
    """Fresh inputs at one timed shape, drawn when they are first asked for."""

    task: Task
    shape: Shape
    seed: int

    @cached_property
    def inputs(self) -> Mapping[str, Array]:
        """Large ones repeat themselves, unless the task makes its inputs itself."""
        task, shape = self.task, self.shape
        if task.make_inputs is not None:
            return task.draw_inputs(shape, self.seed)
        extents = {tensor.name: tensor.extents(shape) for tensor in task.inputs}
        short = tuple(
            replace(tensor, shape=(min(math.prod(extents[tensor.name]), DRAWN_ELEMENTS),))
            for tensor in task.inputs
        )
        drawn = replace(task, inputs=short).draw_inputs(shape, self.seed)
        return {name: np.resize(array, extents[name]) for name, array in drawn.items()}

    @cached_property
    def whole(self) -> Case:
        """With everything that they must give; only for a task without an independent dimension."""
        return expect(self.task, self.shape, self.seed, self.inputs)


def check_timed_shape(
    drawn: TimedInputs, candidate: Candidate, modules: Sequence[Module], rng: np.random.Generator
) -> Check | str:
    """The verdict at a timed shape, or why nothing can be told. `rng` chooses blocks and elements."""
    if drawn.task.in_place:
        return "it works in place"
    try:
        ran = _run(drawn, candidate, modules, rng)
    except MemoryError:
        return "emulating any of it takes too much memory"
    if isinstance(ran, str):
        return ran
    if ran.finding is not None:
        launch, finding = ran.finding
        return _failed(drawn, f"'{launch.kernel}': {finding.message}.", GUARDS[finding.kind])
    if ran.other_work:
        return _failed(drawn, ran.other_work, Guard.TIMED_OUTPUTS)
    for name, share in ran.shares.items():
        if share < LEAST_WRITTEN:
            message = (
                f"the block that is taken for all others writes too little: if they did as it does, {share:.1%} "
                f"of '{name}' would be written."
            )
            return _failed(drawn, message, Guard.TIMED_OUTPUTS)
    return _verdict(drawn, ran, rng)


@dataclass(frozen=True)
class _Written:
    """An output as some blocks left it, and which of its elements they should have written."""

    values: Array
    mask: Array


@dataclass
class _Ran:
    """What some blocks of every launch did.

    `other_work` says in a sentence that they do more than was priced. `shares` are the fraction of each output that
    would be written if every block wrote as much as the middle one. `tentative` are outputs that may be changed by a
    launch of which no block that was looked at changes them.
    """

    finding: tuple[ResolvedLaunch, Finding] | None = None
    other_work: str = ""
    shares: dict[str, float] = field(default_factory=dict)
    written: dict[str, _Written] = field(default_factory=dict)
    tentative: set[str] = field(default_factory=set)


def _run(
    drawn: TimedInputs, candidate: Candidate, modules: Sequence[Module], rng: np.random.Generator
) -> _Ran | str:
    """Run blocks that `rng` chooses of each launch; a sentence says what they depend on that was left out."""
    plan = candidate.at(drawn.task, drawn.shape)
    memory, addresses = _place(drawn, plan)
    ran, partial = _Ran(), set[str]()
    # What several launches write is only final when all of them have run.
    takers = Counter(name for launch in plan.launches for name in _buffers(launch))
    several = {tensor.name for tensor in drawn.task.outputs if takers[tensor.name] > 1}
    taken, unfinished = set[str](), set[str]()
    priced = [_priced(drawn, candidate, modules, launch, plan) for launch in plan.launches]
    for index, (launch, price) in enumerate(zip(plan.launches, priced, strict=True)):
        counters = price.counters if price is not None else frozenset[Place]()
        trail = Trail()
        execute_blocks = _executor(candidate, modules, launch, addresses, memory, counters, trail)
        before = {name: memory[name].data.copy() for name in several & taken & _buffers(launch)}
        middle = middle_block(launch.grid)
        found = [execute_blocks([middle])]
        lanes = found[0].lane_instructions
        names = {name for name in _buffers(launch) if takers[name] == 1}
        if price is None or not price.idle_middle:
            module, entry = modules[candidate.index_of(launch)], candidate.entry_of(launch)
            least = launch.blocks if _draws_tickets(module, entry) else 1
            ran.shares |= _shares(drawn, memory, names, launch.blocks, least)
        others = _others(launch, middle, rng, 1 if lanes > LONG else AT_RANDOM)
        found += [execute_blocks([block]) for block in others if not found[0].findings]
        decisive = set[str]().union(*(each.decisive for each in priced[index + 1 :] if each is not None))
        affordable = AWAITED if (decisive | several) & _buffers(launch) else WHOLE
        rest = sorted(set(range(launch.blocks)) - {middle, *others})
        # An output that several launches take is judged only if all that come behind the first are followed.
        # Blocks that draw their work from a counter have each drawn from it as if they were the only one to run.
        followed = not partial & _buffers(launch) - several and not counters
        if rest and followed and lanes * launch.blocks <= affordable:
            found.append(execute_blocks(rest))
        elif rest:
            left = {name for name, data in before.items() if np.array_equal(data, memory[name].data)}
            ran.tentative |= left
            trail.forget_the_rest(memory, taken)
            partial |= _buffers(launch) | trail.buffers
            unfinished |= _buffers(launch) & taken - left
        taken |= _buffers(launch)
        findings = [finding for each in found for finding in each.findings]
        guessed = price.decisive & (partial - drawn.inputs.keys()) if price is not None else None
        if findings:
            stopped = _stopped(launch, findings, partial)
            return _guessed(launch, guessed) if guessed and isinstance(stopped, str) else stopped
        executed = [each.lane_instructions for each in found[1 : len(others) + 1]]
        if price is not None and (apart := price.apart(lanes, executed)):
            return _Ran(other_work=f"'{launch.kernel}': {apart}")
    for output in drawn.task.outputs:
        whole = output.name not in partial
        if output.name not in unfinished:
            mask = _mask(memory, output, drawn.shape)
            if whole or mask.any():
                values = memory.array(output.name, numpy_dtype(output.dtype)).reshape(mask.shape)
                ran.written[output.name] = _Written(values, mask | whole)
    return ran if ran.written or ran.shares else "no output is finished by one launch"


def _priced(
    drawn: TimedInputs,
    candidate: Candidate,
    modules: Sequence[Module],
    launch: ResolvedLaunch,
    plan: ResolvedPlan,
) -> PricedBlocks | None:
    """What the launch's price is made from, on the same inputs."""
    tensors = (*drawn.task.inputs, *drawn.task.outputs)
    outputs = {tensor.name: tensor for tensor in drawn.task.outputs}

    def contents(name: str) -> Array:
        if name in drawn.inputs:
            return drawn.inputs[name]
        return np.zeros(outputs[name].extents(drawn.shape), numpy_dtype(outputs[name].dtype))

    return count_priced(
        candidate,
        launch,
        modules[candidate.index_of(launch)],
        plan,
        buffers={tensor.name: tensor.nbytes(drawn.shape) for tensor in tensors},
        contents=contents,
    )


def _place(drawn: TimedInputs, plan: ResolvedPlan) -> tuple[GlobalMemory, dict[str, int]]:
    memory = GlobalMemory()
    addresses = {name: memory.add(name, array, writable=False) for name, array in drawn.inputs.items()}
    for output in drawn.task.outputs:
        addresses[output.name] = memory.add(output.name, output.nbytes(drawn.shape))
    for scratch in plan.scratch:
        addresses[scratch.name] = memory.add(scratch.name, scratch.nbytes, initialised=scratch.zero)
    return memory, addresses


def _stopped(launch: ResolvedLaunch, findings: Sequence[Finding], partial: set[str]) -> _Ran | str:
    """A finding tells of the kernel, unless blocks that were left out could have prevented it."""
    found = findings[0]
    if found.kind == "limit":
        return f"a block of '{launch.kernel}' takes too long to emulate"
    unwritten = [each for each in findings if each.kind == "uninitialised_read"]
    if unwritten and (partial & _buffers(launch) or unwritten[0].buffer in partial):
        return f"'{launch.kernel}' needs what all blocks of earlier launches leave"
    return _Ran(finding=(launch, found))


def _guessed(launch: ResolvedLaunch, unknown: Collection[str]) -> _Ran:
    sentence = (
        f"'{launch.kernel}': what it executes depends on what earlier launches leave in '{min(unknown)}', which takes "
        f"too long to follow: its price is a guess."
    )
    return _Ran(other_work=sentence)


def _executor(  # noqa: PLR0917 - where blocks run, and what is to be known of them
    candidate: Candidate,
    modules: Sequence[Module],
    launch: ResolvedLaunch,
    addresses: Mapping[str, int],
    memory: GlobalMemory,
    counters: Collection[Place],
    trail: Trail,
) -> Callable[[Sequence[int]], Execution]:
    """What runs blocks of a launch, one call after another on the same memory."""
    module, entry = modules[candidate.index_of(launch)], candidate.entry_of(launch)
    geometry = Geometry(launch.grid, launch.block, launch.shared_bytes)
    arguments = candidate.arguments(launch, addresses)

    def execute_blocks(blocks: Sequence[int]) -> Execution:
        return execute(
            module,
            entry,
            geometry,
            arguments,
            memory,
            blocks=blocks,
            limits=LIMITS,
            counters=counters,
            trail=trail,
        )

    return execute_blocks


def _draws_tickets(module: Module, entry: str) -> bool:
    """Whether an atomic operation may tell a block which it is, as in a reduction that the last block ends."""
    return any(
        isinstance(each, Instruction) and each.parts[0] == "atom" and "shared" not in each.parts
        for each in module.entries[entry].body
    )


def _shares(
    drawn: TimedInputs, memory: GlobalMemory, names: set[str], blocks: int, least: int
) -> dict[str, float]:
    """What one block wrote of each output of at least so many elements, times the blocks, as a fraction."""
    shares = {}
    for output in drawn.task.outputs:
        if output.name in names:
            mask = _mask(memory, output, drawn.shape)
            if mask.size < least:
                continue
            shares[output.name] = float(mask.sum()) * blocks / mask.size
    return shares


def _others(launch: ResolvedLaunch, middle: int, rng: np.random.Generator, number: int) -> list[int]:
    """Other blocks than the middle one: the ends and some at random, all of few, or just some of long ones."""
    total = launch.blocks
    if total <= number + 3:
        return [block for block in range(total) if block != middle]
    ends = {0, total - 1} if number > 1 else set[int]()
    return sorted(ends | {int(block) for block in rng.integers(0, total, number)} - {middle})


def _buffers(launch: ResolvedLaunch) -> set[str]:
    return {argument for argument in launch.arguments if isinstance(argument, str)}


def _mask(memory: GlobalMemory, output: Tensor, shape: Shape) -> Array:
    """Which elements of an output were written."""
    valid = memory[output.name].valid
    assert valid is not None  # noqa: S101 - outputs are placed without contents
    written = valid.view(f"u{numpy_dtype(output.dtype).itemsize}") != 0
    return np.asarray(written.reshape(output.extents(shape)))


def _verdict(drawn: TimedInputs, ran: _Ran, rng: np.random.Generator) -> Check | str:
    """Of what is finished. What a later launch may mend here and there is wrong if it is so wherever one looks."""
    check = _judged(drawn, ran.written, MOST_ELEMENTS, rng)
    if check.passed or not ran.tentative:
        return check
    finished = {name: each for name, each in ran.written.items() if name not in ran.tentative}
    if finished and not (certain := _judged(drawn, finished, MOST_ELEMENTS, rng)).passed:
        return certain
    if any(_judged(drawn, ran.written, 0, rng).passed for _ in range(SECOND_LOOKS)):
        return "a later launch mends what an earlier one leaves"
    return check


def _judged(
    drawn: TimedInputs, written: Mapping[str, _Written], most: int, rng: np.random.Generator
) -> Check:
    """Compare what was written at some indices of the independent dimension, or of the first one of each output.

    That is at about so many elements, and at two indices at the least.
    """
    task = drawn.task
    if task.independent:
        axes = {
            tensor.name: tensor.shape.index(task.independent)
            for tensor in (*task.inputs, *task.outputs)
            if task.independent in tensor.shape
        }
        touched = np.unique(np.concatenate([_touched(each, axes[name]) for name, each in written.items()]))
        widest = max(each.mask.size // each.mask.shape[axes[name]] for name, each in written.items())
        few = _few(touched, most // widest, rng)
        inputs = {
            name: np.take(array, few, axes[name]) if name in axes else array
            for name, array in drawn.inputs.items()
        }
        case = expect(task, {**drawn.shape, task.independent: len(few)}, drawn.seed, inputs)
        parts = {name: _part(each, few, axes[name]) for name, each in written.items()}
    else:
        rows = {
            name: _few(_touched(each, 0), most * len(each.mask) // each.mask.size, rng)
            for name, each in written.items()
        }
        case = drawn.whole
        case = replace(case, expected=_rows(case.expected, rows), plain=_rows(case.plain, rows), places=rows)
        parts = {name: _part(each, rows[name], 0) for name, each in written.items()}
    outputs = {}
    for tensor in task.outputs:
        right = case.expected[tensor.name].astype(numpy_dtype(tensor.dtype))
        part = parts.get(tensor.name)
        outputs[tensor.name] = right if part is None else np.where(part.mask, part.values, right)
    check = judge(replace(case, shape=drawn.shape, inputs={}), outputs)
    return check if check.passed else replace(check, guard=Guard.TIMED_OUTPUTS)


def _part(written: _Written, indices: Array, axis: int) -> _Written:
    return _Written(np.take(written.values, indices, axis), np.take(written.mask, indices, axis))


def _rows(truth: Mapping[str, Array], rows: Mapping[str, Array]) -> dict[str, Array]:
    """Rows of outputs; none of those that nothing is known of."""
    return {name: array[rows.get(name, slice(0))] for name, array in truth.items()}


def _touched(written: _Written, axis: int) -> Array:
    """Indices along an axis at which something was written."""
    others = tuple(each for each in range(written.mask.ndim) if each != axis)
    return np.flatnonzero(written.mask.any(axis=others))


def _few(indices: Array, most: int, rng: np.random.Generator) -> Array:
    """So many of the indices at random, two at the least."""
    most = max(2, most)
    return indices if len(indices) <= most else np.sort(rng.choice(indices, most, replace=False))


def _failed(drawn: TimedInputs, message: str, guard: Guard) -> Check:
    label = shape_label(drawn.shape)
    sentence = f"At {label} (seed {drawn.seed}), where it is timed: {message}"
    return Check(label, drawn.seed, passed=False, error=float("inf"), message=sentence, guard=guard)
