"""A matmul-shaped loop nest, however it was written: what the forms of a matmul kernel have in common."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """One index of the output: its variable, its bound in the kernel's words and in the launch plan's."""

    name: str
    bound: str
    extent: str


@dataclass(frozen=True)
class Operand:
    """A factor of the products: `text` reads it in terms of `axis` and the summation index.

    `along_k` says whether its consecutive elements lie along the summation index.
    """

    buffer: str
    text: str
    axis: Axis
    element: str
    along_k: bool

    def at(self, axis_index: str, k_name: str, k_index: str) -> str:
        """The operand's text at other indices."""
        return replace_names(self.text, {self.axis.name: axis_index, k_name: k_index})


@dataclass(frozen=True)
class MatmulNest:
    """out(row, col) = epilogue(initial + sum over k of left(row, k) * right(k, col)).

    `uniform` are declarations that every thread of a block evaluates alike (a batch's base pointer);
    `epilogue` are the statements that use the sum; both as source lines without indentation.
    """

    row: Axis
    col: Axis
    k: str
    k_start: str
    k_bound: str
    left: Operand
    right: Operand
    accumulator: str
    accumulator_type: str
    initial: str
    uniform: tuple[str, ...]
    epilogue: tuple[str, ...]

    @property
    def inside(self) -> str:
        """The condition under which an output exists."""
        return f"{self.row.name} < {self.row.bound} && {self.col.name} < {self.col.bound}"


def replace_names(text: str, replacements: Mapping[str, str]) -> str:
    """Replace whole identifiers all at once; one that isn't a plain name is wrapped in parentheses."""

    def replacement(match: re.Match[str]) -> str:
        new = replacements[match[0]]
        return new if re.fullmatch(r"\w+(\[[^\[\]]*\])*", new) else f"({new})"

    if not replacements:
        return text
    names = "|".join(map(re.escape, replacements))
    return re.sub(rf"(?<![\w.])(?:{names})\b", replacement, text)
