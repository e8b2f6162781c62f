"""Values at a timed shape where launches hand results to each other: of the blocks alone that have a hand in some.

So a plan of several long launches can be judged, as far as blocks follow a pattern.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mctskernel.core.dtypes import numpy_dtype
from mctskernel.core.evaluation import Check
from mctskernel.profiling.emulator.tallies import Tallies, cycles_executed
from mctskernel.profiling.emulator.trail import UNIT, Trail
from mctskernel.profiling.priced_blocks import PricedBlocks
from mctskernel.profiling.producers import Needed, UntoldError, needed_blocks
from mctskernel.profiling.timed_run import TimedRun
from mctskernel.profiling.timed_values import Written, verdict

NEEDED_LANES = 150_000_000
"""Lane instructions of all blocks that have a hand in what is looked at, at the most."""

SECTOR = 32
"""Bytes."""


def check_needed(
    run: TimedRun, priced: Sequence[PricedBlocks | None], rng: np.random.Generator
) -> Check | str:
    """Judge what few blocks of the last launch leave, from a `run` that hasn't begun; or why nothing can be told."""
    outputs = {tensor.name for tensor in run.drawn.task.outputs}
    inputs = set(run.drawn.inputs)
    known = [price for price in priced if price is not None and not price.counters]
    if len(known) < len(run.plan.launches):
        return "who hands what to whom can't be counted"
    scattering = [price.decisive - inputs for price in known]
    if any(scattering[:-1]):
        return "where blocks write depends on what others leave"
    try:
        needed = needed_blocks([price.counter for price in known], frozenset(outputs), frozenset(inputs), rng)
    except UntoldError as error:
        return str(error)
    lanes = sum(price.middle * len(blocks) for price, blocks in zip(known, needed.blocks, strict=True))
    if lanes > NEEDED_LANES:
        return "what has a hand in a result takes too long to emulate"
    ran = _run(run, known, needed)
    if not isinstance(ran, Trail):
        return ran
    trail = ran
    if scattering[-1] and trail.updated & outputs:
        return "where blocks write depends on what others leave"
    written = _written(run, needed, trail)
    if not any(each.mask.any() for each in written.values()):
        return "what is computed to be written isn't"
    return verdict(run.drawn, written, set(written), rng)


def _run(run: TimedRun, priced: Sequence[PricedBlocks], needed: Needed) -> Trail | Check | str:
    """Run the blocks in order; what the last launch of them has written."""
    trail = Trail()
    for launch, price, blocks in zip(run.plan.launches, priced, needed.blocks, strict=True):
        if not blocks:
            continue
        trail = Trail()
        execute_blocks = run.executor(launch, (), trail)
        one, rest = blocks[len(blocks) // 2], [*blocks[: len(blocks) // 2], *blocks[len(blocks) // 2 + 1 :]]
        findings = execute_blocks(rest).findings if rest else ()
        tallies = Tallies()
        findings += execute_blocks([one], tallies).findings
        if findings:
            return f"'{launch.kernel}' needs more than what is computed for it"
        if dearer := price.dearer(one, cycles_executed(tallies, run.flow_of(launch))):
            return run.drawn.failed(f"'{launch.kernel}': {dearer}")
    return trail


def _written(run: TimedRun, needed: Needed, trail: Trail) -> Mapping[str, Written]:
    """What is final of the outputs: the sectors that the chosen blocks were to write, and have."""
    found = {}
    for output in run.drawn.task.outputs:
        if output.name not in needed.final:
            continue
        mask = run.written(output)
        chosen = np.zeros(run.memory[output.name].size, bool)
        chosen[
            (needed.final[output.name][:, None] * SECTOR + np.arange(SECTOR)).clip(max=chosen.size - 1)
        ] = True
        stored = trail.stored.get(output.name)
        if stored is not None and output.name not in trail.updated:
            chosen &= np.repeat(stored, UNIT)[: chosen.size]
        elements = chosen[:: numpy_dtype(output.dtype).itemsize].reshape(mask.shape)
        found[output.name] = Written(run.values(output), mask & elements)
    return found
