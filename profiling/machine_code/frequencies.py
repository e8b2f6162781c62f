"""How often each basic block of the machine code runs, from what the emulator counted in the PTX.

ptxas unrolls, peels, merges and predicates, so its blocks are not PTX's. But its line table says which PTX
line every instruction came from, and loads, stores, barriers and floating-point operations survive one for
one: however many copies of such an instruction there are, together they run as often as the PTX did. With
the rule that what flows into a block flows out of it, this is a small least-squares problem in the flow over
each edge, none of which may be negative. Where several flows agree with the counts (the main part of an
unrolled loop and its remainder) the cheapest is taken, because that is what unrolling is for.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from mctskernel.profiling.machine_code.functions import Function

Floats = npt.NDArray[np.float64]

MAX_EDGES = 400
_FLOW_WEIGHT = 100.0
_CHEAPNESS = 1e-3
_LOOSE = 1e-2

_MEMORY = "LDG STG LDS STS ATOM ATOMG ATOMS RED REDG LDSM LDGSTS SHFL BAR"
_ARITHMETIC = "FFMA FADD FMUL MUFU DFMA DADD DMUL HMMA IMMA DMMA HADD2 HMUL2"
_ANCHORS = frozenset(_MEMORY.split()) | frozenset(_ARITHMETIC.split())
"""Instructions that ptxas keeps one for one."""
_PREDICATED = 0.01  # weight of a predicated instruction: it is issued at least as often as the PTX runs it


def block_frequencies(function: Function, line_counts: Mapping[int, float]) -> dict[int, float]:
    """Executions per warp of each reachable block (entry: 1), by those of PTX lines; missing lines say nothing."""
    blocks = sorted(function.successors)
    anchors = _anchors(function, line_counts)
    rough = _rough_frequencies(blocks, anchors)
    edges = [(block, each) for block, following in function.successors.items() for each in following]
    if len(edges) > MAX_EDGES or not anchors:
        return rough
    # A block without evidence may run often even if the one before it never does: no block is trusted to be rare.
    scale = {block: max(frequency, 1.0) for block, frequency in rough.items()}
    sources, targets = [scale[edge[0]] for edge in edges], [scale[edge[1]] for edge in edges]
    columns = np.minimum(np.array(sources), np.array(targets)) if edges else np.empty(0)
    inflow = np.zeros((len(blocks), len(edges)))
    outflow = np.zeros((len(blocks), len(edges)))
    row_of = {block: row for row, block in enumerate(blocks)}
    for column, (source, target) in enumerate(edges):
        inflow[row_of[target], column] = columns[column]
        outflow[row_of[source], column] = columns[column]
    entered = np.array([1.0 if block == 0 else 0.0 for block in blocks])
    weights = np.array([_flow_weight(function, block) / scale[block] for block in blocks])
    rows = [(outflow - inflow) * weights[:, None]]
    right = [entered * weights]
    for copies, count, trust in anchors:
        weight = math.sqrt(trust) / max(count, 1e-3 * max(scale[block] for block in copies), 1e-9)
        row = np.zeros(len(edges))
        known = 0.0
        for block, number in copies.items():
            row += number * inflow[row_of[block]]
            known += number * entered[row_of[block]]
        rows.append(weight * row[None, :])
        right.append(np.array([weight * (count - known)]))
    sizes = np.array([len(function.code(block)) for block in blocks], dtype=float)
    cost = sizes @ inflow
    total = cost.sum() or 1.0
    rows.append(_CHEAPNESS * cost[None, :] / total)
    right.append(np.zeros(1))
    flows = nonnegative_least_squares(np.concatenate(rows), np.concatenate(right))
    frequencies = entered + inflow @ flows
    return dict(zip(blocks, frequencies.tolist(), strict=True))


def _anchors(
    function: Function, line_counts: Mapping[int, float]
) -> list[tuple[Mapping[int, int], float, float]]:
    """Groups of PTX lines with the same copies and count: copies per block, executions, weight as evidence."""
    copies: dict[int, Counter[int]] = {}
    trust: dict[int, float] = {}
    for block in function.successors:
        for instruction in function.code(block):
            line = instruction.ptx_line
            if line is not None and line in line_counts and instruction.mnemonic in _ANCHORS:
                copies.setdefault(line, Counter())[block] += 1
                trust[line] = min(trust.get(line, 1.0), _PREDICATED if instruction.predicate else 1.0)
    groups: dict[tuple[tuple[tuple[int, int], ...], float], float] = {}
    for line, where in copies.items():
        key = (tuple(sorted(where.items())), round(line_counts[line], 9))
        groups[key] = groups.get(key, 0.0) + trust[line]
    return [(dict(where), count, weight) for (where, count), weight in groups.items()]


def _rough_frequencies(
    blocks: Sequence[int], anchors: Sequence[tuple[Mapping[int, int], float, float]]
) -> dict[int, float]:
    """The mean over a block's anchors of count by copies; the block before where there are none."""
    sums: dict[int, tuple[float, float]] = {}
    for copies, count, weight in anchors:
        for block in copies:
            executions, weights = sums.get(block, (0.0, 0.0))
            sums[block] = (executions + weight * count / sum(copies.values()), weights + weight)
    rough: dict[int, float] = {}
    latest = 1.0
    for block in blocks:
        if block in sums:
            latest = max(sums[block][0] / sums[block][1], 1e-6)
        rough[block] = latest if block else 1.0
    return rough


def _flow_weight(function: Function, block: int) -> float:
    """Blocks that end the warp let nothing out; those that may, something."""
    if not function.successors[block]:
        return 0.0
    last = function.code(block)[-1]
    return _LOOSE if last.mnemonic in {"EXIT", "RET"} else _FLOW_WEIGHT


MOST_EXCHANGES = 40


def nonnegative_least_squares(matrix: Floats, right: Floats) -> Floats:
    """An x >= 0 of nearly least |matrix x - right|, by block pivoting (Portugal, Judice and Vicente, 1994)."""
    free = np.ones(matrix.shape[1], dtype=bool)
    tolerance = 1e-10 * max(1.0, float(np.abs(matrix.T @ right).max(initial=0.0)))
    best, least = np.zeros(len(free)), float(np.linalg.norm(right))
    for _ in range(MOST_EXCHANGES):
        x = _restricted(matrix, right, free)
        clipped = np.maximum(x, 0.0)
        residual = right - matrix @ clipped
        if (error := float(np.linalg.norm(residual))) < least:
            best, least = clipped, error
        leaving = free & (x < 0.0)
        entering = ~free & (matrix.T @ residual > tolerance) if not leaving.any() else np.zeros_like(free)
        if not leaving.any() and not entering.any():
            break
        free = (free & ~leaving) | entering
    return best


def _restricted(matrix: Floats, right: Floats, free: npt.NDArray[np.bool_]) -> Floats:
    """The least-squares solution in which only the free variables differ from zero."""
    solution = np.zeros(len(free))
    solution[free] = np.linalg.lstsq(matrix[:, free], right, rcond=None)[0]
    return solution


_ENTRY = re.compile(r"^\s*(?:\.\w+\s+)*\.entry\s+(?P<name>[\w$]+)", re.MULTILINE)
_STATEMENT = re.compile(r"^\s*\{?\s*(?:@!?%\w+\s+)?[a-z][\w.:]*(?:\s[^;]*)?;", re.MULTILINE)


def instruction_lines(ptx: str, entry: str) -> list[int]:
    """The PTX line of each of an entry's instructions, in textual order, counted from 1."""
    starts = list(_ENTRY.finditer(ptx))
    for start, end in zip(starts, [*(s.start() for s in starts[1:]), len(ptx)], strict=True):
        if start["name"] == entry:
            return list(_lines(ptx, start.end(), end))
    return []


def _lines(ptx: str, begin: int, end: int) -> Iterator[int]:
    body = ptx.index("{", begin, end)
    first = ptx.count("\n", 0, body) + 1
    for number, text in enumerate(ptx[body:end].split("\n"), first):
        if text.startswith("}"):
            break
        if _STATEMENT.match(text):
            for _ in range(text.count(";")):
                yield number
