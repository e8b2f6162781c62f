"""Accesses that walk along a variable, one element a step, so that several steps make a vector."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tree_sitter import Node

from mctskernel.edits import syntax as cu
from mctskernel.edits.affine import polynomial
from mctskernel.edits.device_code import ELEMENT_BYTES
from mctskernel.edits.indexing import inlined


@dataclass(frozen=True)
class Along:
    """Accesses of one array of `type` at one `index`, an expression over names that exist before the body.

    With a `modulus` the index is a remainder, and steps are neighbours where that is a multiple of their number.
    """

    array: str
    type: str
    index: str
    accesses: tuple[cu.Access, ...]
    modulus: str | None = None

    @property
    def reads(self) -> bool:
        return any(access.reads for access in self.accesses)

    @property
    def writes(self) -> bool:
        return any(access.writes for access in self.accesses)

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(access.node for access in self.accesses)


def along(
    function: cu.Function,
    accesses: Sequence[cu.Access],
    known: Mapping[str, Node],
    local: Collection[str],
    modulus: str | None = None,
) -> Along | None:
    """Accesses at one index; None if it can't be written without the names that are `local` to the body."""
    array, index = accesses[0].array, accesses[0].indices[0]
    parameter = function.parameter(array)
    inside = {name: value for name, value in known.items() if name in local}
    text = inlined(index, inside, frozenset(cu.identifiers(function.node) - set(local)))
    if text is None or parameter is None:
        return None
    return Along(array, parameter.type, text, tuple(accesses), modulus)


def step_along(
    function: cu.Function, access: cu.Access, variable: str, known: Mapping[str, Node]
) -> str | None:
    """The index of an element that is the next one when `variable` is one more; None for any other access."""
    parameter = function.parameter(access.array)
    if parameter is None or parameter.type not in ELEMENT_BYTES or len(access.indices) != 1:
        return None
    index = polynomial(access.indices[0], known)
    step = index.coefficient(variable)
    return str(index) if parameter.pointer and step is not None and step.constant == 1 else None
