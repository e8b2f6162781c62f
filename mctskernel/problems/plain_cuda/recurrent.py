"""Recurrent layers: products for all steps at once, and an operator for the steps, which one kernel takes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils.flop_counter import register_flop_formula

from mctskernel.problems.plain_cuda import PlainCudaError
from mctskernel.problems.plain_cuda.body import Function, Place, numbers
from mctskernel.problems.plain_cuda.extents import in_cpp, in_plan
from mctskernel.problems.plain_cuda.rules import RULES, Kind, Rule, argument

if TYPE_CHECKING:
    from mctskernel.problems.plain_cuda.schedule import Schedule

HEADER = "recurrent.cuh"

GATES = {"Lstm": 4, "Gru": 3, "Tanh": 1, "Relu": 1}
"""Of a unit, by the struct of the header."""

THREADS, REGISTERS = 512, 64
"""Of a block, and those of a thread that hold weights."""

MOST_ROWS, MOST_BLOCKS = 8, 8
"""Rows of the batch that a cluster takes at most, and its blocks."""

ROOM = 112
"""Multiprocessors on which there is room for clusters."""


@torch.library.custom_op("mctskernel::recurrent", mutates_args=())
def recurrent(
    gates: Tensor,
    weight: Tensor,
    bias: Tensor,
    hidden: Tensor,
    cell: Tensor,
    kind: str,
    first: int,
    directions: int,
) -> Tensor:
    """The states of a layer after each step, and of an LSTM the cells: [1 or 2, steps, rows, directions * units].

    `gates`, what the input gives, is [steps, rows, lines], with units of a gate and gates of a direction beside each
    other; `weight` is [lines, units], `bias` [lines], and the states to begin with, of all layers, are [number, rows,
    units], in which `first` is this layer's first one.
    """
    raise NotImplementedError("A kernel computes this.")


@recurrent.register_fake
def _states(
    gates: Any, weight: Any, bias: Any, hidden: Any, cell: Any, kind: str, first: int, directions: int
) -> Any:
    del weight, bias, cell, first
    return gates.new_empty(1 + (kind == "Lstm"), *gates.shape[:2], directions * hidden.shape[2])


recurrent.register_autograd(  # that there are gradients is all that is asked for
    lambda kept, _: (*map(torch.zeros_like, kept.saved_tensors), None, None, None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs[:5]),
)


@register_flop_formula(torch.ops.mctskernel.recurrent)
def _work(gates: Any, weight: Any, *_: Any, **__: Any) -> int:
    return 2 * math.prod(gates) * int(weight[-1])


def _alone(*_: Any) -> str:
    raise PlainCudaError("The steps of a recurrent layer have a kernel of their own.")


RULES["mctskernel.recurrent"] = Rule(_alone, Kind.RECURRENT, repeats=True)


def layer_kernel(schedule: Schedule, node: Node, place: Place, most: int) -> tuple[str, str]:
    """The text of a layer's kernel, and its launch, with clusters of up to `most` blocks."""
    gates, weight, bias, hidden, cell = (argument(node, name) for name in _OPERANDS)
    if numbers(node) is not torch.float32:
        raise PlainCudaError("Recurrent layers need 32-bit floats.")
    kind, directions = str(argument(node, "kind")), int(argument(node, "directions"))
    _, rows, units = schedule.place("", hidden).extents
    height, width = (schedule.estimate((each,)) for each in (rows, units))
    weights, per_block = GATES[kind] * width * width, THREADS * REGISTERS
    blocks = next((each for each in (1, 2, 4) if weights <= each * per_block), MOST_BLOCKS)
    blocks = min(blocks, most)
    lanes = next((each for each in (32, 16, 8) if each * width <= THREADS * blocks), 4)
    terms = min(-(-width // (4 * lanes)), REGISTERS // (4 * GATES[kind])) * 4
    clusters = ROOM // blocks // directions
    together = next((each for each in (1, 2, 4) if each * clusters >= height), MOST_ROWS)
    of_block, of_cluster = (
        schedule.macro("LANES", lanes, 4, 8, 16, 32),
        schedule.macro("CLUSTER", blocks, 1, 2, 4, 8),
    )
    kept, of_rows = schedule.macro("TERMS", terms), schedule.macro("ROWS", together, 1, 2, 4, 8)
    schedule.require(f"{kept} % 4 == 0 && {kept} * {GATES[kind]} <= 96")
    schedule.include(HEADER)
    large = any(schedule.is_large(schedule.place("", each)) for each in (gates, node))
    body = schedule.body(place, "long long" if large else "int", depth=1)
    shared = body.fresh("shared")
    body.line(f"extern __shared__ unsigned char {shared}[];")
    body.line(f"recurrent::run<recurrent::{kind}, {of_block}, {kept}, {of_cluster}, {of_rows}>(")
    steps = body.extents(gates)[0]
    body.line(f"    {shared}, {in_cpp(steps)}, {in_cpp(rows)}, {in_cpp(units)},")
    first = body.fresh("first_state")
    state = "direction row unit"
    for operand, words in zip(
        (gates, weight, bias, hidden, cell), ("step row line", "line term", "line", state, state)
    ):
        names = [body.fresh(each) for each in words.split()]
        parameters = ", ".join(f"{body.index_type} {each}" for each in names)
        with body.block(f"    [&]({parameters}) {{", end="    },"):
            at = (f"({first} + {names[0]})", *names[1:]) if words is state else names
            body.line(f"return {body.read(operand, at)};")
    names = [body.fresh(each) for each in ("part", "step", "row", "column")]
    parameters = ", ".join(f"{body.index_type} {each}" for each in names)
    with body.block(f"    [&]({parameters}, float value) {{", end="    });"):
        body.store(place, names, "value")
    made = Function(
        schedule.fresh("recurrent_kernel"),
        schedule.described(node),
        body.text(),
        tuple(body.reads.values()),
        place,
        f"__launch_bounds__({THREADS}, 1) ",
        given=((f"int {first}", str(argument(node, "first"))),),
    )
    pitch = f"max({of_block} * {kept}, ceil_div({in_plan(units)}, 4 * {of_block}) * 4 * {of_block})"
    grid = f"{directions} * ceil_div({in_plan(rows)}, {of_rows}) * {of_cluster}"
    launch = schedule.launch(made, grid, str(THREADS), f"12 * {of_rows} * {pitch}", of_cluster)
    return schedule.function(made), launch


_OPERANDS = ("gates", "weight", "bias", "hidden", "cell")
