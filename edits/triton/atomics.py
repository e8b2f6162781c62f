"""Atomic additions: counted within a program first."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import Bottleneck
from mctskernel.edits.rule import Rule, edit
from mctskernel.edits.triton.context import LaunchedFunction, TritonContext
from mctskernel.edits.triton.module import Replacement, called, calls, names_assigned, names_read
from mctskernel.edits.triton.tuning import block_constants

LARGEST_HISTOGRAM = 1024
VALUES_PER_BIN = 8


def counted_first(context: TritonContext) -> Iterator[Edit]:
    """A histogram of a program's own values, added to the whole one bin by bin."""
    for launched in context.launched:
        for call in calls(launched.function, "atomic_add"):
            found = _count(context, launched, call)
            if found is not None:
                counts, value, mask, bins = found
                new = (
                    f"tl.atomic_add({counts} + tl.arange(0, {bins}), "
                    f"tl.histogram({value}, {bins}, mask={mask}))"
                )
                changes = [context.module.replace(call, new), *_larger_blocks(context, launched, bins)]
                yield edit(
                    Category.PARALLELISM,
                    f"{launched.function.name}: count in each program first",
                    context.written(changes),
                    rationale="Additions to one address take turns; a program can count its own values in shared "
                    f"memory and add each of the {bins} counts once.",
                    expected_effect="As many atomic additions as bins, not as values.",
                )


def _larger_blocks(context: TritonContext, launched: LaunchedFunction, bins: int) -> Iterator[Replacement]:
    """Blocks that are long enough for a histogram of their own to pay."""
    names = set(launched.constexprs.values())
    for constant in block_constants(context):
        if constant.name in names and constant.value < VALUES_PER_BIN * bins:
            yield Replacement(constant.start, constant.end, str(VALUES_PER_BIN * bins))


def _count(
    context: TritonContext, launched: LaunchedFunction, call: ast.Call
) -> tuple[str, str, str, int] | None:
    """The counts, the value, the mask and the number of bins of `tl.atomic_add(counts + value, 1, mask=mask)`.

    Only where each value is one of the bins because it was loaded from bytes, all 256 of which have one.
    """
    match call:
        case ast.Call(
            args=[
                ast.BinOp(left=ast.Name(id=counts), op=ast.Add(), right=ast.Name(id=value)),
                ast.Constant(value=1),
            ],
            keywords=[ast.keyword(arg="mask", value=mask)],
        ):
            pass
        case _:
            return None
    output = next((each for each in context.task.outputs if each.name == launched.bound.get(counts)), None)
    if output is None or output.dtype != "int32" or not _is_byte(context, launched, value):
        return None
    match output.shape:
        case (int() as bins,) if 256 <= bins <= LARGEST_HISTOGRAM and bins & (bins - 1) == 0:
            return counts, value, context.module.text_of(mask), bins
    return None


def _is_byte(context: TritonContext, launched: LaunchedFunction, name: str) -> bool:
    """Whether a name holds what was loaded from unsigned bytes, converted to int32 and nothing else."""
    assigned = [
        node
        for node in ast.walk(launched.function)
        if isinstance(node, ast.stmt)
        and not isinstance(node, ast.FunctionDef)
        and name in names_assigned(node)
    ]
    match assigned:
        case [ast.Assign(value=ast.Call(func=ast.Attribute(value=load, attr="to"), args=[kind]))]:
            pass
        case _:
            return False
    if called(load) != "load" or ast.unparse(kind) != "tl.int32" or not isinstance(load, ast.Call):
        return False
    pointers = {bound for each, bound in launched.bound.items() if each in names_read(load.args[0])}
    buffers = {each for each in pointers if context.is_buffer(each)}
    bytes_ = {tensor.name for tensor in context.task.inputs if tensor.dtype == "uint8"}
    return len(buffers) == 1 and buffers <= bytes_


RULES: tuple[Rule[TritonContext], ...] = (
    Rule(
        "triton-counted-first",
        Category.PARALLELISM,
        frozenset({Bottleneck.ATOMICS}),
        counted_first,
        prior=3.0,
    ),
)
