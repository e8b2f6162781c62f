"""Recurrent layers: products for all steps at once, and an operator for the steps, which one kernel takes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node
from torch.utils.flop_counter import register_flop_formula

from mctskernel.problems.plain_cuda import PlainCudaError
from mctskernel.problems.plain_cuda.body import Function, Place
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


_LIBRARY = torch.library.Library("mctskernel", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(  # type: ignore[no-untyped-call] # PyTorch has no types there
    "recurrent(Tensor gates, Tensor weight, Tensor bias, Tensor hidden, Tensor cell, str kind, int first, int "
    "directions) -> Tensor"
)
recurrent = torch.ops.mctskernel.recurrent
"""The states of a layer after each step, and of an LSTM the cells: [1 or 2, steps, rows, directions * units].

`gates`, what the input gives, is [steps, rows, lines], with units of a gate and gates of a direction beside each other;
`weight` is [lines, units], `bias` [lines], and the states to begin with, of all layers, are [number, rows, units], in
which `first` is this layer's first one.
"""


@torch.library.register_fake("mctskernel::recurrent")  # type: ignore[untyped-decorator]
def _states(gates: Any, *given: Any) -> Any:
    _, _, hidden, _, kind, _, directions = given
    return gates.new_empty(1 + (kind == "Lstm"), *gates.shape[:2], directions * hidden.shape[2])


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    del output
    ctx.save_for_backward(*inputs[:5])


torch.library.register_autograd(  # that there are gradients is all that is asked for
    "mctskernel::recurrent",
    lambda ctx, _: (*map(torch.zeros_like, ctx.saved_tensors), None, None, None),
    setup_context=_keep,
)


@register_flop_formula(recurrent)
def _work(gates: Any, weight: Any, *_: Any, **__: Any) -> int:
    return int(2 * math.prod(gates) * weight[-1])


def _alone(*_: Any) -> str:
    raise PlainCudaError("The steps of a recurrent layer have a kernel of their own.")


RULES["mctskernel.recurrent"] = Rule(_alone, Kind.RECURRENT, repeats=True)


_INDICES = ("step row line", "line term", "line", *["direction row unit"] * 2, "part step row column")
"""Of the operands, and of the result, as the header has them."""


def layer_kernel(schedule: Schedule, node: Node, place: Place, most: int) -> tuple[str, str]:
    """The text of a layer's kernel, and its launch, with clusters of up to `most` blocks."""
    operands = [argument(node, name) for name in "gates weight bias hidden cell".split()]
    kind, directions = str(argument(node, "kind")), int(argument(node, "directions"))
    steps = schedule.place("", node).extents[1]
    _, rows, units = schedule.place("", operands[3]).extents
    height, width = (schedule.estimate((each,)) for each in (rows, units))
    per_block = THREADS * REGISTERS
    enough = (each for each in (1, 2, 4) if GATES[kind] * width * width <= each * per_block)
    blocks = min(next(enough, MOST_BLOCKS), most)
    lanes = next((each for each in (32, 16, 8) if each * width <= THREADS * blocks), 4)
    terms = min(-(-width // (4 * lanes)), REGISTERS // (4 * GATES[kind])) * 4
    clusters = ROOM // blocks // directions
    together = next((each for each in (1, 2, 4) if each * clusters >= height), MOST_ROWS)
    lanes_, blocks_ = (
        schedule.macro("LANES", lanes, 4, 8, 16, 32),
        schedule.macro("CLUSTER", blocks, 1, 2, 4, 8),
    )
    terms_, rows_ = schedule.macro("TERMS", terms), schedule.macro("ROWS", together, 1, 2, 4, 8)
    schedule.require(f"{terms_} % 4 == 0 && {terms_} * {GATES[kind]} <= 96")
    schedule.include(HEADER)
    large = any(schedule.is_large(schedule.place("", each)) for each in (operands[0], node))
    body = schedule.body(place, "long long" if large else "int", depth=1)
    shared, first, value = map(body.fresh, ("shared", "first_state", "value"))
    body.line(f"extern __shared__ unsigned char {shared}[];")
    body.line(f"recurrent::run<recurrent::{kind}, {lanes_}, {terms_}, {blocks_}, {rows_}>(")
    body.line(f"    {', '.join((shared, *map(in_cpp, (steps, rows, units))))},")
    for operand, words in zip((*operands, None), _INDICES, strict=True):
        names = [body.fresh(each) for each in words.split()]
        given = [*(f"{body.index_type} {each}" for each in names), *([] if operand else [f"float {value}"])]
        with body.block(f"    [&]({', '.join(given)}) {{", end="    }," if operand else "    });"):
            if operand is None:
                body.store(place, names, value)
            else:
                at = [f"({first} + {names[0]})", *names[1:]] if words.startswith("direction") else names
                body.line(f"return {body.read(operand, at)};")
    made = Function(
        schedule.fresh("recurrent_kernel"),
        schedule.described(node),
        body.text(),
        tuple(body.reads.values()),
        place,
        f"__launch_bounds__({THREADS}, 1) ",
        given=((f"int {first}", str(argument(node, "first"))),),
    )
    pitch = f"max({lanes_} * {terms_}, ceil_div({in_plan(units)}, 4 * {lanes_}) * 4 * {lanes_})"
    grid = f"{directions} * ceil_div({in_plan(rows)}, {rows_}) * {blocks_}"
    launch = schedule.launch(made, grid, str(THREADS), f"12 * {rows_} * {pitch}", blocks_)
    return schedule.function(made), launch
