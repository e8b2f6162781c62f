"""What is wrong with a kernel, in a sentence and with its source line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal[
    "out_of_bounds",
    "misaligned",
    "uninitialised_read",
    "write_to_readonly",
    "race",
    "divergent_barrier",
    "divergent_warp",
    "trap",
    "unsupported",
    "limit",
]


@dataclass(frozen=True, slots=True)
class Finding:
    """A defect's first occurrence on its line; a race also has an `other_line`, an uninitialised read a `buffer`."""

    kind: Kind
    message: str
    line: int | None = None
    other_line: int | None = None
    buffer: str = ""


@dataclass
class Findings:
    """Collects at most one finding of each kind a source line."""

    found: dict[tuple[str, int | None], Finding] = field(default_factory=dict)

    def add(self, finding: Finding) -> None:
        self.found.setdefault((finding.kind, finding.line), finding)

    def known(self, kind: Kind, line: int | None) -> bool:
        return (kind, line) in self.found

    def all(self) -> tuple[Finding, ...]:
        return tuple(self.found.values())
