"""Convolutions as products.

Rows are a group's output channels, columns the pixels of an output image, and terms input channels and taps. A step has
32 channels of one tap; where there are few channels, taps are folded into the terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch.fx import Node

from mctskernel.problems.plain_cuda.body import Body, Index, Place, plus, times
from mctskernel.problems.plain_cuda.extents import ONE, count_in_cpp, in_cpp, product
from mctskernel.problems.plain_cuda.products import AXES, place_of_tap
from mctskernel.problems.plain_cuda.rules import argument
from mctskernel.problems.templates.operands import (
    STEP,
    Gathered,
    Matrix,
    Names,
    OfTerm,
    Operands,
    computed,
    matrix_operand,
    steps_of,
)

if TYPE_CHECKING:
    from mctskernel.problems.plain_cuda.schedule import Schedule

CONVOLUTION = "aten.convolution"

FOLDED = 16
"""Input channels of a group below which a step would be mostly empty."""

Shaped = tuple[sympy.Expr, sympy.Expr, sympy.Expr, sympy.Expr]
"""Batch, rows, columns and terms."""


def shape_of_convolution(
    node: Node, out: Sequence[sympy.Expr], given: Sequence[sympy.Expr], weight: Sequence[sympy.Expr]
) -> Shaped:
    """A convolution's shape as a product: a batch of images and groups."""
    groups = int(argument(node, "groups"))
    return out[0] * groups, out[1] // groups, product(out[2:]), product((given[1] // groups, *weight[2:]))


def index_of_result(body: Body, node: Node, names: Names) -> Index:
    """The index of an element of the result."""
    extents, groups = body.extents(node), int(argument(node, "groups"))
    image, channel = names.batch, names.row
    if groups != 1:
        group = times(f"({names.batch} % {groups})", in_cpp(extents[1] // groups))
        image, channel = f"({names.batch} / {groups})", plus(group, names.row)
    words = _words("out", len(extents) - 2)
    return ("0" if extents[0] == ONE else image, channel, *body.unflat(names.column, extents[2:], words))


@dataclass(frozen=True)
class Convolution:
    """A convolution with its extents: of a group's channels, taps, and the pixels of images and results."""

    node: Node
    groups: int
    images: sympy.Expr
    rows: sympy.Expr
    channels: sympy.Expr
    taps: tuple[sympy.Expr, ...]
    pixels: tuple[sympy.Expr, ...]
    results: tuple[sympy.Expr, ...]
    folded: bool

    @staticmethod
    def of(node: Node, schedule: Schedule) -> Convolution:
        """The convolution of a node."""
        body, groups = schedule.body(Place("", torch.float32, ())), int(argument(node, "groups"))
        tensor, weight, out = (
            body.extents(each) for each in (argument(node, "input"), argument(node, "weight"), node)
        )
        channels = tensor[1] // groups
        folded = schedule.estimate((channels,)) < FOLDED
        return Convolution(
            node, groups, out[0], out[1] // groups, channels, weight[2:], tensor[2:], out[2:], folded
        )

    def operands(self) -> Operands:
        """The weights and the images, and the steps of the product."""
        batch, group = self.images * self.groups, sympy.Integer(self.groups)
        a = matrix_operand(
            "a", None, group, self.rows, self.terms, matrix=self._weights, in_product=self._group
        )
        if self.folded:
            b = matrix_operand("b", None, batch, product(self.results), self.terms, matrix=self._windows)
        else:
            b = matrix_operand("b", None, batch, product(self.pixels), self.channels, matrix=self._pixels)
            # Neighbouring pixels are terms of the same sums, so an image has one range.
            b = replace(
                b,
                gathered=Gathered(
                    (batch,), lambda names: names.batch, lambda _, names: names.batch, self._place_of_tap
                ),
            )
        return Operands(a, b, steps_of(self.terms))

    @property
    def terms(self) -> sympy.Expr:
        """Terms of a line; without folding, whole steps of each tap."""
        return product((*self.taps, self.channels if self.folded else STEP * steps_of(self.channels)))

    @property
    def _words(self) -> tuple[str, ...]:
        return (*_words("tap", len(self.taps)), "channel")

    def _group(self, names: Names) -> str:
        return "0" if self.groups == 1 else f"({names.batch} % {self.groups})"

    def _channel(self, group: str, channel: str) -> str:
        return plus(times(group, in_cpp(self.channels)), channel)

    def _weights(self, schedule: Schedule, target: Place, names: Names) -> Matrix:
        padded = self.terms / product(self.taps)

        def value(body: Body, of_term: OfTerm) -> None:
            weight: Any = argument(self.node, "weight")
            group = "0" if self.groups == 1 else names.batch
            with of_term():
                *tap, channel = body.unflat(names.term, (*self.taps, padded), self._words)
                index = (plus(times(group, in_cpp(self.rows)), names.line), channel)
                if argument(self.node, "transposed"):
                    index = (self._channel(group, channel), names.line)
                inside = "" if padded == self.channels else f"{channel} < {in_cpp(self.channels)}"
                body.line(f"return {_if(inside, body.read(weight, (*index, *tap)), '0.0f')};")

        return computed(schedule, target, names, (self.rows, self.terms), value)

    def _pixels(self, schedule: Schedule, target: Place, names: Names) -> Matrix:
        """Lines are the pixels of an image, terms a group's channels."""
        tensor: Any = argument(self.node, "input")
        place = schedule.places.get(tensor)
        if place is not None and place.dtype is torch.float32:
            size, offset = count_in_cpp(self.pixels), count_in_cpp((self.channels, *self.pixels))
            start = f"{schedule.parameter(place.name)} + (long long){names.batch} * {offset}"
            return Matrix(f"blocks::ByLine{{{start}, {size}, {in_cpp(self.channels)}, {size}}}", (place,))

        def value(body: Body, of_term: OfTerm) -> None:
            at = body.unflat(names.line, self.pixels, _words("in", len(self.pixels)))
            with of_term():
                channel = self._channel(self._group(names), names.term)
                body.line(f"return {body.read(tensor, (self._image(names), channel, *at))};")

        return computed(schedule, target, names, (product(self.pixels), self.channels), value)

    def _windows(self, schedule: Schedule, target: Place, names: Names) -> Matrix:
        """Lines are the pixels of the result, terms what a window has at them."""
        tensor: Any = argument(self.node, "input")

        def value(body: Body, of_term: OfTerm) -> None:
            here = body.unflat(names.line, self.results, _words("out", len(self.results)))
            with of_term():
                *tap, channel = body.unflat(names.term, (*self.taps, self.channels), self._words)
                places, inside = _window(body, self.node, here, tap)
                index = (self._image(names), self._channel(self._group(names), channel), *places)
                body.line(f"return {_if(inside, body.read(tensor, index), '0.0f')};")

        return computed(schedule, target, names, (product(self.results), self.terms), value)

    def _place_of_tap(self, body: Body, names: Names, of_step: OfTerm) -> None:
        """Where the pixel is, in the packed image, that a tap of a pixel of the result falls on."""
        here = body.unflat(names.column, self.results, _words("out", len(self.results)))
        blocks = steps_of(self.channels)
        with of_step():
            *tap, block = body.unflat(names.step, (*self.taps, blocks), (*self._words[:-1], "block"))
            places, inside = _window(body, self.node, here, tap)
            flat = body.flat((names.batch, *places, block), (self.images * self.groups, *self.pixels, blocks))
            body.line(f"return {_if(inside, flat, '-1')};")

    def _image(self, names: Names) -> str:
        if self.images == ONE:
            return "0"
        return names.batch if self.groups == 1 else f"({names.batch} / {self.groups})"


def _window(body: Body, node: Node, here: Sequence[str], taps: Sequence[str]) -> tuple[list[str], str]:
    """Where taps fall in the input, and what must be true for that to lie inside of it."""
    found = [place_of_tap(body, node, axis, *each) for axis, each in enumerate(zip(here, taps, strict=True))]
    return [place for place, _ in found], " && ".join(test for _, tests in found for test in tests)


def _words(prefix: str, rank: int) -> tuple[str, ...]:
    return tuple(f"{prefix}_{each}" for each in AXES[rank])


def _if(condition: str, value: str, otherwise: str) -> str:
    return f"{condition} ? {value} : {otherwise}" if condition else value
