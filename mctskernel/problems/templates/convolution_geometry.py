"""The taps of a convolution: which inputs a result is computed of, in tables as `convolutions.cuh` describes them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

OF_BLOCK, MOST_ROWS, WORDS = 64 * 256, 128, 8
"""Of a block and a stage, as the header has them."""

FAR = 3
"""Dilation of rows from which it takes less to load each of them again than what lies between."""

MOST_STACKED = 16
"""Phases that a block computes: as many as a warp has rows."""


class Section(NamedTuple):
    """Taps with one origin of the input: along depth, rows and columns."""

    phase: int
    origins: tuple[int, int, int]
    taps: tuple[tuple[int, int, tuple[int, ...]], ...]
    """Rows and columns of the input from the origin on, and the weights of each phase in a block; -1 for none."""


@dataclass(frozen=True)
class Geometry:
    """What a convolution does along depth, rows and columns, as `convolutions.cuh` describes it."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    stacked: bool = True
    beside: int = 1
    """Columns of a plain convolution's result that are phases, too, so that a block of few outputs computes several."""
    folded: bool = False
    """Whether the columns of the kernel are as channels of their own, so that fewer products are of empty ones."""

    @property
    def fold(self) -> int:
        """The channels that an input is, one for each column of the kernel."""
        return self.kernel[2] if self.folded else 1

    @property
    def stack(self) -> int:
        """Phases that a block computes, of columns beside each other."""
        return self.out[2] if self.out[2] <= MOST_STACKED and self.stacked else 1

    @property
    def steps(self) -> tuple[int, ...]:
        """Inputs for a place of the result along each axis."""
        return (1, 1, 1) if self.transposed else (*self.stride[:2], self.stride[2] * self.beside)

    @property
    def out(self) -> tuple[int, ...]:
        """Results for a place of a phase along each axis."""
        return self.stride if self.transposed else (1, 1, self.beside)

    def in_pairs(self) -> Geometry:
        """The same with pairs of columns where that takes fewer products than 64 rows of which half are empty."""
        taps = [tap * self.dilation[2] for tap in range(self.kernel[2])]
        both = {*taps, *(self.stride[2] + each for each in taps)}
        return replace(self, beside=2) if not self.transposed and len(both) < 2 * len(taps) else self

    def with_fewest(self, inputs: float, rows: float, words: int) -> Geometry:
        """The same with columns as channels, or in pairs, where that takes fewer products."""
        one, all_ = math.ceil(inputs / words) * self.kernel[2], math.ceil(inputs * self.kernel[2] / words)
        if not self.transposed and 2 * all_ <= one:
            return replace(self, folded=True)
        return self.in_pairs() if rows <= MOST_ROWS // 4 else self

    def sections(self, most: int) -> Iterator[Section]:
        """The sections of all phases in order, of at most so many taps unless one row has more."""
        across = range(self.out[2] // self.stack)
        for number, phase in enumerate(itertools.product(*map(range, self.out[:2]), across)):
            depths, rows = (self._classes(axis, phase[axis]) for axis in (0, 1))
            for depth, *axes in itertools.product(depths, rows, self._columns(phase[2])):
                for tap, at in depth.taps:
                    yield from self._split(number, depth.base + self.steps[0] * at, tap, (axes, most))

    def _columns(self, phase: int) -> Iterator[_Class]:
        """The taps of columns: one for each phase of a block, -1 for none."""
        classes = [self._classes(2, phase + number) for number in range(self.stack)]
        for base in dict.fromkeys(each.base for found in classes for each in found):
            taps = [
                {at: tap for each in found if each.base == base for tap, at in each.taps} for found in classes
            ]
            places = dict.fromkeys(at for each in taps for at in each)
            yield _Class(base, [(tuple(each.get(at, -1) for each in taps), at) for at in places])

    def _classes(self, axis: int, phase: int) -> list[_Class]:
        """The taps of an axis, of a phase, by what they have in common: input step * (place + at) + base."""
        stride, padding, dilation = self.stride[axis], self.padding[axis], self.dilation[axis]
        found: dict[int, list[tuple[int, int]]] = {}
        for tap in range(1 if axis == 2 and self.folded else self.kernel[axis]):
            if self.transposed:
                at, rest = divmod(phase + padding - tap * dilation, stride)
                if rest == 0:
                    found.setdefault(0, []).append((tap, at))
            else:
                at, rest = divmod(phase * stride + tap * dilation, self.steps[axis])
                found.setdefault(rest, []).append((tap, at))
        return [_Class(rest - (0 if self.transposed else padding), taps) for rest, taps in found.items()]

    def _split(self, phase: int, depth: int, depth_tap: int, given: Any) -> Iterator[Section]:
        (rows, columns), most = given
        parts = math.ceil(len(rows.taps) * len(columns.taps) / most)
        if not self.transposed and self.dilation[1] >= FAR:
            parts = len(rows.taps)
        size = math.ceil(len(rows.taps) / parts)
        left = min(at for _, at in columns.taps)
        for start in range(0, len(rows.taps), size):
            part = rows.taps[start : start + size]
            top = min(at for _, at in part)
            taps = tuple(
                (
                    row - top,
                    column - left,
                    tuple(
                        -1 if x < 0 else (depth_tap * self.kernel[1] + y) * self.kernel[2] + x
                        for x in stacked
                    ),
                )
                for (y, row), (stacked, column) in itertools.product(part, columns.taps)
            )
            origins = depth, rows.base + self.steps[1] * top, columns.base + self.steps[2] * left
            yield Section(phase, origins, taps)


class _Class(NamedTuple):
    base: int
    taps: list[tuple[Any, int]]
    """Numbers of taps, for columns one for each phase of a block; and where they fall, in places."""


@dataclass(frozen=True)
class Tables:
    """The sections of a geometry, and what its blocks need to know at compile time."""

    geometry: Geometry
    sections: tuple[Section, ...]
    exact: bool

    @property
    def most_taps(self) -> int:
        """Of a section."""
        return max(len(each.taps) for each in self.sections)

    @property
    def halo(self) -> tuple[int, int]:
        """Rows and columns of inputs beyond those of places; columns are even, so that two are stored at once."""
        taps = [tap for each in self.sections for tap in each.taps]
        columns = max(column for _, column, _ in taps)
        return max(row for row, _, _ in taps), columns + (columns % 2 if self.geometry.stack == 1 else 0)

    @property
    def is_even(self) -> bool:
        """Whether what 8 rows compute are all phases of some outputs."""
        return 8 % self.geometry.stack == 0

    @property
    def phases(self) -> int:
        """Of blocks."""
        return math.prod(self.geometry.out) // self.geometry.stack

    def lines(self, rows: int, strip: int) -> int:
        """Lines of a stage of so many rows, with so many columns in a strip."""
        down, across = self.halo
        return math.ceil((OF_BLOCK // rows + down * (strip + across) + across) / 32) * 32

    def stage(self, rows: int, strip: int, deep: int) -> int:
        """Bytes of a stage."""
        return (1 + self.exact) * deep * (self.lines(rows, strip) + self.most_taps * rows) * WORDS * 4

    def text(self, name: str, *, by_image: bool) -> str:
        """The definitions in C++; parts of blocks may be of one image each."""
        geometry, (rows, columns) = self.geometry, self.halo
        phases = [0] * (self.phases + 1)
        for each in self.sections:
            phases[each.phase + 1] += 1
        phases = list(itertools.accumulate(phases))
        first = list(itertools.accumulate((len(each.taps) for each in self.sections), initial=0))
        sections = ", ".join(
            f"{{{', '.join(map(str, (*each.origins, first[number], len(each.taps))))}}}"
            for number, each in enumerate(self.sections)
        )
        taps = ", ".join(
            f"{{{row}, {column}, {number}, {{{', '.join(map(str, weights))}}}}}"
            for number, each in enumerate(self.sections)
            for row, column, weights in each.taps
        )
        return (
            f"// Origins along depth, rows and columns, first tap, taps.\n"
            f"__constant__ const convolutions::Section {name}_sections[] = {{{sections}}};\n"
            f"// Row and column from the origin, section, weights.\n"
            f"__constant__ const convolutions::Tap<{geometry.stack}> {name}_taps[] = {{{taps}}};\n"
            f"__constant__ const int {name}_phases[] = {{{', '.join(map(str, phases))}}};\n\n"
            f"struct {name}_geometry {{\n"
            f"    static constexpr bool BY_IMAGE = {str(by_image).lower()};\n"
            f"    static constexpr int TAPS = {first[-1]}, PHASES = {self.phases}, STACK = {geometry.stack};\n"
            f"    static constexpr int MOST_TAPS = {self.most_taps};\n"
            f"    static constexpr bool EXACT = {str(self.exact).lower()};\n"
            f"    static constexpr int HALO_ROWS = {rows}, HALO_COLUMNS = {columns};\n"
            f"{arrays({'STEPS': geometry.steps, 'OUT': geometry.out})}"
            f"    static constexpr int FOLD = {geometry.fold}, FOLD_APART = {geometry.dilation[2]};\n}};"
        )


def arrays(listed: Mapping[str, Sequence[int]]) -> str:
    """Members of a struct in C++: arrays of numbers, by name."""
    return "".join(
        f"    static constexpr int {word}[] = {{{', '.join(map(str, each))}}};\n"
        for word, each in listed.items()
    )
