"""Whether a kernel is right at the shapes that it is timed at, where emulating all of it would take too long.

Verification runs at small shapes, the price is made at large ones, and a kernel can tell them apart. So some blocks of
the large launch are emulated on real inputs, those that the price is made from among them, and what they wrote is
compared, as is how much they did. What blocks hand to each other through memory can't be followed from a few of them:
then nothing is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from mctskernel.core.evaluation import Check
from mctskernel.core.launch_plan import ResolvedLaunch
from mctskernel.profiling.candidate import Candidate
from mctskernel.profiling.emulation import GUARDS
from mctskernel.profiling.emulator import Execution, Finding, Module
from mctskernel.profiling.emulator.ptx import Instruction
from mctskernel.profiling.emulator.tallies import Tallies, cycles_executed
from mctskernel.profiling.emulator.trail import Trail
from mctskernel.profiling.emulator.turns import Place
from mctskernel.profiling.model.choice_of_blocks import middle_block
from mctskernel.profiling.needed_values import check_needed
from mctskernel.profiling.priced_blocks import PricedBlocks
from mctskernel.profiling.timed_run import TimedRun, buffers_of
from mctskernel.profiling.timed_values import TimedInputs, Written, verdict

__all__ = ["TimedInputs", "check_timed_shape"]

AT_RANDOM = 3
"""Blocks of each launch beside the first, the middle and the last one, which are those that a price is made from."""

LONG = 20_000_000
"""Lane instructions of a block beyond which one at random has to do beside it."""

LEAST_WRITTEN = 0.5
"""The least fraction of an output that is written if every block writes as much as the middle one, which is priced."""

ALL_WRITTEN = 0.95
"""The same with what others write, as far as they write less or more: tiles don't always come out even."""

FOR_SHARES = 24
"""Blocks at random that are counted to see how much they store."""

TEAM = 16
"""Blocks in a row of the grid, at the most, of which the last to arrive may finish an output for all."""

WHOLE = 5_000_000
"""Lane instructions of a launch up to which all of it is emulated, where it needs nothing that was left out."""

AWAITED = 60_000_000
"""The same of a launch on which more depends: what later ones execute, or whether an output is finished."""


def check_timed_shape(
    drawn: TimedInputs, candidate: Candidate, modules: Sequence[Module], rng: np.random.Generator
) -> Check | str:
    """The verdict at a timed shape, or why nothing can be told. `rng` chooses blocks and elements."""
    if drawn.task.in_place:
        return "it works in place"
    try:
        following = _Following(TimedRun(drawn, candidate, modules), rng)
        ran = following.all_launches()
        if isinstance(ran, str) or ran.guess:
            needed = check_needed(TimedRun(drawn, candidate, modules), following.priced, rng)
            untold = f"{ran}, and {needed}" if isinstance(ran, str) else drawn.failed(ran.guess)
            return needed if isinstance(needed, Check) else untold
    except MemoryError:
        return "emulating any of it takes too much memory"
    return _verdict(drawn, ran, rng)


def _verdict(drawn: TimedInputs, ran: _Ran, rng: np.random.Generator) -> Check | str:
    if ran.finding is not None:
        launch, finding = ran.finding
        return drawn.failed(f"'{launch.kernel}': {finding.message}.", GUARDS[finding.kind])
    if ran.other_work:
        return drawn.failed(ran.other_work)
    for name, share in ran.shares.items():
        if share < ALL_WRITTEN:
            message = (
                f"blocks write too little: if all did as those that were looked at, {share:.1%} of '{name}' "
                f"would be written."
            )
            return drawn.failed(message)
    return verdict(drawn, ran.written, ran.tentative, rng)


@dataclass
class _Ran:
    """What some blocks of every launch did.

    `other_work` says in a sentence that they do more than was priced, `guess` that nobody can tell. `shares` are the
    fraction of each output that would be written if every block wrote as much as the middle one. `tentative` are
    outputs that may be changed by a launch of which no block that was looked at changes them.
    """

    finding: tuple[ResolvedLaunch, Finding] | None = None
    other_work: str = ""
    guess: str = ""
    shares: dict[str, float] = field(default_factory=dict)
    written: dict[str, Written] = field(default_factory=dict)
    tentative: set[str] = field(default_factory=set)


class _Following:
    """Some blocks of one launch after another, on one memory.

    Of `several` launches outputs are only final when all of these have run. `taken` are buffers that launches were
    given, `partial` those that blocks have changed while others were left out, `unfinished` those that changed since.
    """

    def __init__(self, run: TimedRun, rng: np.random.Generator) -> None:
        self.run, self.rng = run, rng
        self.drawn, self.plan, self.memory = run.drawn, run.plan, run.memory
        self.priced = [run.priced(launch) for launch in run.plan.launches]
        takers = Counter(name for launch in run.plan.launches for name in buffers_of(launch))
        self.several = {tensor.name for tensor in run.drawn.task.outputs if takers[tensor.name] > 1}
        self.taken: set[str] = set()
        self.partial: set[str] = set()
        self.unfinished: set[str] = set()
        self.ran = _Ran()

    def all_launches(self) -> _Ran | str:
        """What blocks of all launches did; a sentence says what they depend on that was left out."""
        for index in range(len(self.plan.launches)):
            stopped = self.launch(index)
            if stopped is not None:
                return stopped
        return self.finished()

    def launch(self, index: int) -> _Ran | str | None:
        """Run blocks of a launch, all if there is time; what ends the whole, if anything does."""
        launch, price = self.plan.launches[index], self.priced[index]
        counters = price.counters if price is not None else frozenset[Place]()
        trail = Trail()
        execute_blocks = self.run.executor(launch, counters, trail)
        before = {
            name: self.memory[name].data.copy() for name in self.several & self.taken & buffers_of(launch)
        }
        middle = middle_block(launch.grid)
        looked = [_Looked(middle, tallies := Tallies(), execute_blocks([middle], tallies))]
        lanes = looked[0].execution.lane_instructions
        self._note_shares(launch, price)
        team = self._team(launch, price, middle)
        together = [execute_blocks([block]) for block in team if not looked[0].execution.findings]
        if together:
            self._note_shares(launch, price, 1 + len(team))
        others = _others(launch, middle, self.rng, 1 if lanes > LONG else AT_RANDOM)
        if not looked[0].execution.findings:
            looked += [
                _Looked(block, tallies := Tallies(), execute_blocks([block], tallies))
                for block in others
                if block not in team
            ]
        findings = [finding for each in looked for finding in each.execution.findings]
        findings += [finding for each in together for finding in each.findings]
        rest = sorted(set(range(launch.blocks)) - {middle, *others, *team})
        # An output that several launches take is judged only if all that come behind the first are followed.
        # Blocks that draw their work from a counter have each drawn from it as if they were the only one to run.
        followed = not self.partial & buffers_of(launch) - self.several and not counters
        if rest and followed and lanes * launch.blocks <= self._affordable(index):
            findings += execute_blocks(rest).findings
        elif rest:
            left = {name for name, data in before.items() if np.array_equal(data, self.memory[name].data)}
            self.ran.tentative |= left
            trail.forget_the_rest(self.memory, self.taken)
            self.partial |= buffers_of(launch) | trail.buffers
            self.unfinished |= buffers_of(launch) & self.taken - left
        self.taken |= buffers_of(launch)
        if findings:
            return self._stopped(launch, price, findings)
        executed = [lanes, *(each.lane_instructions for each in together)]
        if together and price is not None and (apart := price.apart_together(executed)):
            return _Ran(other_work=f"'{launch.kernel}': {apart}")
        return self._other_work(launch, price, looked)

    def finished(self) -> _Ran | str:
        """What is final of all that was written."""
        for output in self.drawn.task.outputs:
            whole = output.name not in self.partial
            if output.name not in self.unfinished:
                mask = self.run.written(output)
                if whole or mask.any():
                    self.ran.written[output.name] = Written(self.run.values(output), mask | whole)
        return self.ran if self.ran.written or self.ran.shares else "no output is finished by one launch"

    def _affordable(self, index: int) -> int:
        """Lane instructions that a launch may take to be followed whole."""
        decisive = set[str]().union(*(each.decisive for each in self.priced[index + 1 :] if each is not None))
        awaited = (decisive | self.several) & buffers_of(self.plan.launches[index])
        return AWAITED if awaited else WHOLE

    def _team(self, launch: ResolvedLaunch, price: PricedBlocks | None, middle: int) -> list[int]:
        """Blocks that may have left it to one of them to write what they and the middle one have computed.

        They are in one row of the grid with it, as where a sum is split over blocks.
        """
        wanting = any(self.ran.shares.get(name, 1.0) < LEAST_WRITTEN for name in buffers_of(launch))
        tickets = _draws_tickets(self.run.module_of(launch), self.run.candidate.entry_of(launch))
        if price is None or price.counters or not wanting or not tickets:
            return []
        found: set[int] = set()
        stride = 1
        for extent in launch.grid:
            if extent <= TEAM:
                first = middle - middle // stride % extent * stride
                found |= {first + each * stride for each in range(extent)}
            stride *= extent
        return sorted(found - {middle})

    def _note_shares(self, launch: ResolvedLaunch, price: PricedBlocks | None, of: int = 1) -> None:
        """Of outputs that only this launch takes, of which so many blocks have just written their share."""
        blocks = self.rng.integers(0, launch.blocks, FOR_SHARES).tolist()
        names = buffers_of(launch) - self.several
        if price is not None and price.idle_middle:
            outputs = [output for output in self.drawn.task.outputs if output.name in names]
            stored, whole = price.stored_bytes(blocks), sum(each.nbytes(self.drawn.shape) for each in outputs)
            if stored is not None and whole:
                self.ran.shares |= {output.name: stored * launch.blocks / whole for output in outputs}
            return
        module, entry = self.run.module_of(launch), self.run.candidate.entry_of(launch)
        least = launch.blocks if _draws_tickets(module, entry) else 1
        found = _shares(self.run, names, launch.blocks / of, least)
        for name, share in found.items():
            self.ran.shares[name] = share
            if of == 1 and share >= LEAST_WRITTEN and price is not None:
                self.ran.shares[name] = share * price.stored_by_others(blocks)

    def _stopped(
        self, launch: ResolvedLaunch, price: PricedBlocks | None, findings: Sequence[Finding]
    ) -> _Ran | str:
        guessed = price.decisive & (self.partial - self.drawn.inputs.keys()) if price is not None else None
        stopped = _stopped(launch, findings, self.partial)
        return _guessed(launch, guessed) if guessed and isinstance(stopped, str) else stopped

    def _other_work(
        self, launch: ResolvedLaunch, price: PricedBlocks | None, looked: Sequence[_Looked]
    ) -> _Ran | None:
        """That the blocks do more, or something dearer, than was counted for the price."""
        if price is None:
            return None
        flow = self.run.flow_of(launch)
        middle, *executed = (each.execution.lane_instructions for each in looked)
        dearer = (price.dearer(each.block, cycles_executed(each.tallies, flow)) for each in looked)
        apart = price.apart(middle, executed) or next(filter(None, dearer), "")
        return _Ran(other_work=f"'{launch.kernel}': {apart}") if apart else None


@dataclass(frozen=True)
class _Looked:
    """A block that ran by itself."""

    block: int
    tallies: Tallies
    execution: Execution


def _stopped(launch: ResolvedLaunch, findings: Sequence[Finding], partial: set[str]) -> _Ran | str:
    """A finding tells of the kernel, unless blocks that were left out could have prevented it."""
    found = findings[0]
    if found.kind == "limit":
        return f"a block of '{launch.kernel}' takes too long to emulate"
    unwritten = [each for each in findings if each.kind == "uninitialised_read"]
    if unwritten and (partial & buffers_of(launch) or unwritten[0].buffer in partial):
        return f"'{launch.kernel}' needs what all blocks of earlier launches leave"
    return _Ran(finding=(launch, found))


def _guessed(launch: ResolvedLaunch, unknown: Collection[str]) -> _Ran:
    sentence = (
        f"'{launch.kernel}': what it executes depends on what earlier launches leave in '{min(unknown)}', which takes "
        f"too long to follow: its price is a guess."
    )
    return _Ran(guess=sentence)


def _draws_tickets(module: Module, entry: str) -> bool:
    """Whether an atomic operation may tell a block which it is, as in a reduction that the last block ends."""
    return any(
        isinstance(each, Instruction) and each.parts[0] == "atom" and "shared" not in each.parts
        for each in module.entries[entry].body
    )


def _shares(run: TimedRun, names: set[str], blocks: float, least: int) -> dict[str, float]:
    """What one block wrote of each output of at least so many elements, times the blocks, as a fraction."""
    shares = {}
    for output in run.drawn.task.outputs:
        if output.name in names:
            mask = run.written(output)
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
