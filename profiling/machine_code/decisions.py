"""How often an undecided branch goes either way, from how often the PTX emulator saw lines of PTX run.

ptxas's line table says which PTX line each instruction comes from. What stands on one side of a branch ran as often
as its lines did; compared with the lines around the branch that is the share of warps that went there. Branches that
ptxas made itself, inside what is one PTX instruction (a division's special cases), go where the common case goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from mctskernel.profiling.machine_code.functions import Function
from mctskernel.profiling.machine_code.pieces import Piece
from mctskernel.profiling.machine_code.relevance import Decision


@dataclass(frozen=True)
class Odds:
    """Shares of the warps that take a branch (or make an access), and that don't; both, where lanes differ."""

    taken: float
    other: float
    note: str = ""


def odds(
    function: Function,
    pieces: Sequence[Piece],
    decisions: Sequence[Decision],
    line_counts: Mapping[int, float],
) -> tuple[Odds, ...]:
    """The answer to each question, in order."""
    if not decisions:
        return ()
    evidence = _Evidence(function, pieces, line_counts)
    return tuple(evidence.of(decision) for decision in decisions)


class _Evidence:
    def __init__(self, function: Function, pieces: Sequence[Piece], line_counts: Mapping[int, float]) -> None:
        self.code = function.instructions
        self.pieces = pieces
        self.line_counts = line_counts
        reached = {index for piece in pieces for index in range(piece.first, piece.last)}
        self.copies = Counter((self.code[i].ptx_line, self.code[i].mnemonic) for i in reached)
        self.sources: dict[int, set[int]] = {}
        for piece in pieces:
            for target in piece.block.targets:
                self.sources.setdefault(target, set()).add(piece.block.number)

    def of(self, decision: Decision) -> Odds:
        block = self.pieces[decision.block].block
        here = self._frequency(decision.block, frozenset())
        if block.final is None or block.final.line != decision.index or block.end != "branch":
            mine = self._instruction(decision.index)
            share = 1.0 if mine is None or not here else min(1.0, mine / here)
            return Odds(share, 1.0 - share)
        taken, other = block.targets
        own = frozenset({self.code[decision.index].ptx_line})
        slow = self._slow_side(decision, own)
        if slow is not None:
            return Odds(float(slow == other), float(slow == taken))
        shares = [
            self._frequency(side, own) if self._only_from(side, decision.block) else None
            for side in (taken, other)
        ]
        rates = [None if f is None or not here else min(1.0, f / here) for f in shares]
        if rates[0] is None and rates[1] is None:
            where = self.code[decision.index].line
            note = (
                f"The branch at line {where} depends on data; it is taken to fall through."
                if where
                else ("A branch depends on data; it is taken to fall through.")
            )
            return Odds(0.0, 1.0, note)
        if rates[0] is None:
            return Odds(1.0 - rates[1], rates[1])  # type: ignore[operator,arg-type]
        if rates[1] is None:
            return Odds(rates[0], 1.0 - rates[0])
        total = max(1.0, rates[0] + rates[1])
        if rates[0] + rates[1] < 1.0:
            return Odds(rates[0], 1.0 - rates[0])
        del total
        return Odds(rates[0], rates[1])

    def _only_from(self, block: int, source: int) -> bool:
        return self.sources.get(block, set()) == {source}

    def _slow_side(self, decision: Decision, own: frozenset[int | None]) -> int | None:
        """The side of the rare case, if the branch is within one PTX instruction."""
        block = self.pieces[decision.block].block
        sides = [side for side in block.targets if self._only_from(side, decision.block)]
        calls = [side for side in sides if self._calls(side)]
        if len(calls) == 1:
            return calls[0]
        if block.targets[0] <= block.number and self._all_of(block.targets[0], own):
            return block.targets[0]
        inner = [side for side in sides if self._all_of(side, own)]
        if not inner:
            return None
        # The common case falls through; ptxas moves the other one out of the way.
        return inner[0] if block.targets[0] in inner else inner[-1]

    def _calls(self, block: int) -> bool:
        piece = self.pieces[block]
        if any(self.code[i].mnemonic == "CALL" for i in range(piece.first, piece.last)):
            return True
        following = piece.block.targets
        if piece.block.end != "jump" or len(following) != 1:
            return False
        after = self.pieces[following[0]]
        return after.last - after.first == 1 and self.code[after.first].mnemonic == "CALL"

    def _all_of(self, block: int, lines: frozenset[int | None]) -> bool:
        piece = self.pieces[block]
        found = {
            self.code[i].ptx_line
            for i in range(piece.first, piece.last)
            if self.code[i].mnemonic not in _MARKS
        }
        return bool(found) and found <= lines

    def _instruction(self, index: int) -> float | None:
        instruction = self.code[index]
        count = self.line_counts.get(instruction.ptx_line or 0)
        return (
            None if count is None else count / max(self.copies[instruction.ptx_line, instruction.mnemonic], 1)
        )

    def _frequency(self, block: int, without: frozenset[int | None]) -> float | None:
        """Executions of a block per warp, from the lines of its unguarded instructions."""
        piece = self.pieces[block]
        found = [
            rate
            for i in range(piece.first, piece.last)
            if not self.code[i].predicate
            and self.code[i].mnemonic not in _MARKS
            and self.code[i].ptx_line not in without
            and (rate := self._instruction(i)) is not None
        ]
        return median(found) if found else None


_MARKS = frozenset(("BSSY", "BSYNC", "BRA", "NOP", "WARPSYNC", "MOV", "IMAD"))
