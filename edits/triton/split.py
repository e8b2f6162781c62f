"""Split-K: several programs for each tile of a product, each with a part of the sums, which a second launch adds up."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import Bottleneck
from mctskernel.core.launch_plan import Launch, LaunchPlan, Scratch, TritonOptions
from mctskernel.edits.rule import Rule, edit
from mctskernel.edits.triton.context import LaunchedFunction, TritonContext
from mctskernel.edits.triton.module import (
    Replacement,
    argument,
    called,
    calls,
    names_assigned,
    names_read,
    parameters,
)

SPLITS = (4, 2, 8)
MULTIPROCESSORS = 132
FILLED = 4 * MULTIPROCESSORS
"""With as many programs there is nothing to gain from more of them."""
PART = 1024
"""Outputs of a program that adds up parts."""
LARGEST_OFFSET = 1 << 31

ADDED_UP = """

# Adds the parts of {parts} for each output.
@triton.jit
def {name}(parts, out, count, {splits}: tl.constexpr, {part}: tl.constexpr):
    i = tl.program_id(0) * {part} + tl.arange(0, {part})
    total = tl.load(parts + i, mask=i < count, other=0.0)
    for split in range(1, {splits}):
        total += tl.load(parts + split * count + i, mask=i < count, other=0.0)
    tl.store(out + i, total, mask=i < count)
"""


@dataclass(frozen=True)
class Product:
    """A loop that adds products of tiles to `total` from zero, and the only store, of the total to an output."""

    loop: ast.For
    store: ast.Call
    pointer: ast.BinOp
    out: str
    buffer: str


def split_sums(context: TritonContext) -> Iterator[Edit]:
    """More programs for each tile where there are too few to fill the device."""
    for launched in context.launched_once:
        found = _product(context, launched)
        count = _elements(context, found.buffer) if found is not None else None
        programs = context.resolved[0].launches[launched.index].blocks
        if found is None or count is None or programs >= FILLED or len(launched.launch.grid) > 2:
            continue
        sizes = context.values(count)
        for splits in SPLITS:
            if sizes is None or max(sizes) * splits >= LARGEST_OFFSET or programs * splits > 4 * FILLED:
                continue
            text = _split(context, launched, found, count, splits)
            if text is not None:
                yield edit(
                    Category.PARALLELISM,
                    f"{launched.function.name}: {splits} programs for each tile",
                    text,
                    rationale=f"{programs} programs don't fill the device; the sums of a tile can be made in parts by "
                    "several of them, and added up by a second launch, always in the same order.",
                    expected_effect=f"{splits} times the programs, for partial sums written and read once.",
                    prior=1.0 if splits == SPLITS[0] else 0.7,
                )


def _product(context: TritonContext, launched: LaunchedFunction) -> Product | None:
    function = launched.function
    places = [place for place, each in enumerate(function.body) if isinstance(each, ast.For)]
    if len(places) != 1 or any(True for _ in calls(function, "num_programs", "swizzle2d", "atomic_add")):
        return None
    if any(
        not (call.args and ast.unparse(call.args[0]) in {"0", "1"}) for call in calls(function, "program_id")
    ):
        return None
    loop = function.body[places[0]]
    before, after = function.body[: places[0]], function.body[places[0] + 1 :]
    assert isinstance(loop, ast.For)  # noqa: S101 - as it was found
    match after:
        case [ast.Expr(value=ast.Call(args=[ast.BinOp(op=ast.Add()) as pointer, value]) as store)]:
            pass
        case _:
            return None
    total = _total(loop)
    if (
        called(store) != "store"
        or total is None
        or not _stores(value, total)
        or not _from_zero(before, total)
    ):
        return None
    out = _base(pointer)
    uses = sum(isinstance(node, ast.Name) and node.id == out for node in ast.walk(function))
    buffer = launched.bound.get(out)
    stored_type = 1 if isinstance(value, ast.Call) and out in names_read(value) else 0
    if uses != 1 + stored_type or not isinstance(buffer, str) or not context.is_output(buffer):
        return None
    if list(launched.bound.values()).count(buffer) != 1:
        return None
    reads_out = {out} & frozenset[str]().union(*map(names_read, [*before, *loop.body, loop.iter]))
    if reads_out or frozenset(names_read(store)) & (names_assigned(loop) - {total}):
        return None
    return Product(loop, store, pointer, out, buffer)


def _total(loop: ast.For) -> str | None:
    """The name that a loop adds products to, if that is all that it carries from turn to turn."""
    match loop:
        case ast.For(
            target=ast.Name(id=start),
            iter=ast.Call(
                func=ast.Name(id="range"), args=[ast.Constant(value=0), _, ast.Name()], keywords=[]
            ),
            orelse=[],
        ):
            known = {start}
        case _:
            return None
    total = ""
    assigned = names_assigned(ast.Module(loop.body, []))
    for statement in loop.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name != start:
                if _adds_product(value, name):
                    if total not in {"", name} or name in known:
                        return None
                    total = name
                elif (names_read(value) & assigned) - known or total in names_read(value):
                    return None
                else:
                    known.add(name)
            case _:
                return None
    return total if total and total not in known else None


def _adds_product(value: ast.expr, name: str) -> bool:
    """Whether an expression is `tl.dot(a, b, name)`, with neither factor made of the name."""
    match value:
        case ast.Call(args=[left, right, ast.Name(id=held)]) if called(value) == "dot":
            others = names_read(left) | names_read(right)
            options = frozenset[str]().union(*(names_read(each.value) for each in value.keywords))
            return held == name and name not in others | options
    return False


def _stores(value: ast.expr, total: str) -> bool:
    """Whether what is stored is the total, as it is or converted to the output's type."""
    match value:
        case ast.Name(id=name):
            return name == total
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="to"), args=[kind], keywords=[]):
            return name == total and ast.unparse(kind).endswith(".dtype.element_ty")
    return False


def _from_zero(before: list[ast.stmt], total: str) -> bool:
    """Whether the total is a tile of float32 zeros before the loop, and nothing is stored."""
    zeros = 0
    for statement in before:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if name == total:
                    dtype = argument(value, 1, "dtype") if isinstance(value, ast.Call) else None
                    if called(value) != "zeros" or dtype is None or ast.unparse(dtype) != "tl.float32":
                        return False
                    zeros += 1
                elif total in names_read(value):
                    return False
            case _:
                return False
    return zeros == 1


def _base(pointer: ast.BinOp) -> str:
    """The first of the terms that a pointer is the sum of."""
    node: ast.expr = pointer
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        node = node.left
    return node.id if isinstance(node, ast.Name) else ""


def _elements(context: TritonContext, buffer: str) -> str | None:
    """How many elements an output has, in the plan's words."""
    shapes = [tensor.shape for tensor in context.task.outputs if tensor.name == buffer]
    return (
        " * ".join(f"({extent})" if not str(extent).isidentifier() else str(extent) for extent in shapes[0])
        or None
    )


def _split(
    context: TritonContext, launched: LaunchedFunction, found: Product, count: str, splits: int
) -> str | None:
    module, function = context.module, launched.function
    constants = {each.name for each in module.constants}
    buffers = {*context.task.buffer_names, *(each.name for each in context.plan.scratch)}
    taken = constants | set(module.functions) | buffers | set(context.task.scalars) | set(context.shapes[0])
    parts, name, splits_name, part_name = f"{found.buffer}_parts", "add_parts", "SPLITS", "PART"
    size = "output_elements"
    used = names_read(function) | names_assigned(function) | set(parameters(function))
    if {parts, name, splits_name, part_name} & taken or size in used or not launched.bound:
        return None
    assert isinstance(found.loop.iter, ast.Call)  # noqa: S101 - as the total was found
    _, _, step = found.loop.iter.args
    block = module.text_of(step)
    value = found.store.args[1]
    total = value if isinstance(value, ast.Name) else value.func.value  # type: ignore[attr-defined]
    plain = [each for each in function.args.args if each.arg in launched.bound]
    end_of_plain = module.span(plain[-1])[1]
    end_of_base = _end_of_base(context, found)
    changes = [
        module.replace(found.loop.iter.args[0], f"tl.program_id(2) * {block}"),
        module.replace(step, f"{block} * tl.num_programs(2)"),
        Replacement(end_of_base, end_of_base, f" + tl.program_id(2) * {size}"),
        *([] if total is value else [module.replace(value, module.text_of(total))]),
        Replacement(end_of_plain, end_of_plain, f", {size}"),
        module.define(splits_name, splits),
        module.define(part_name, PART),
        Replacement(
            len(module.text),
            len(module.text),
            ADDED_UP.format(parts=parts, name=name, splits=splits_name, part=part_name),
        ),
    ]
    plan = _plan(context, launched, found, count, (parts, name, splits_name, part_name))
    return context.written(changes, plan)


def _end_of_base(context: TritonContext, found: Product) -> int:
    node: ast.expr = found.pointer
    while isinstance(node, ast.BinOp):
        node = node.left
    return context.module.span(node)[1]


def _plan(
    context: TritonContext,
    launched: LaunchedFunction,
    found: Product,
    count: str,
    names: tuple[str, str, str, str],
) -> LaunchPlan:
    """The plan with the parts' buffer, a third axis of the grid, and the launch that adds the parts up."""
    parts, name, splits, part = names
    before = launched.launch
    grid = (*before.grid, *([1] * (2 - len(before.grid))), splits)
    args = tuple(parts if each == found.buffer else each for each in before.args)
    products = replace(before, grid=grid, args=(*args, count))
    sums = Launch(
        kernel=name,
        grid=(f"ceil_div({count}, {part})",),
        block=(),
        args=(parts, found.buffer, count),
        triton=TritonOptions(((splits, splits), (part, part)), num_warps=4),
    )
    launches = list(context.plan.launches)
    launches[launched.index : launched.index + 1] = [products, sums]
    scratch = Scratch(parts, "float32", (splits, count))
    return replace(context.plan, launches=tuple(launches), scratch=(*context.plan.scratch, scratch))


RULES: tuple[Rule[TritonContext], ...] = (
    Rule(
        "triton-split-sums",
        Category.PARALLELISM,
        frozenset(
            {Bottleneck.TOO_FEW_BLOCKS, Bottleneck.TAIL, Bottleneck.LOW_OCCUPANCY, Bottleneck.GLOBAL_LATENCY}
        ),
        split_sums,
        prior=0.6,
    ),
)
