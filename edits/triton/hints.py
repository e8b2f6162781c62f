"""Hints of Triton kernels: streaming stores, eviction, and the precision of products."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from mctskernel.core.contract_words import narrowest_tolerance
from mctskernel.core.edit import Category
from mctskernel.edits.rule import Proposal
from mctskernel.edits.triton import module as py


@py.rule(Category.COMPILER_HINTS, 0.4, "dram_bandwidth l2_bandwidth")
def streaming_stores(context: py.TritonContext) -> Iterator[Proposal]:
    """Outputs written past the caches, for a kernel that doesn't read them again."""
    for launched in context.launched:
        stores = [call for call in py.calls(launched.function, "store") if _plain(call)]
        if stores:
            yield Proposal(
                f"streaming stores (cache_modifier='.cs'){context.where(launched.function.name)}",
                context.written(_with(context, call, 'cache_modifier=".cs"') for call in stores),
                rationale="What is written isn't read again, so it needn't push anything else out of the cache.",
                expected_effect="More of the L2 cache for what is read.",
            )


@py.rule(Category.COMPILER_HINTS, 0.4, "dram_bandwidth l2_bandwidth l1_throughput")
def eviction(context: py.TritonContext) -> Iterator[Proposal]:
    """`eviction_policy` of loads by whether this program or another reads their data again."""
    for launched in context.launched:
        function = launched.function
        if any(True for _ in py.calls(function, "swizzle2d")):
            continue
        loads = sorted((call for call in py.calls(function, "load") if _plain(call)), key=context.module.span)
        axes = _axes(function)
        grid = frozenset(range(len(launched.launch.grid)))
        changes = [
            _with(context, call, f'eviction_policy="{_policy(call, loads[place + 1 :], axes, grid)}"')
            for place, call in enumerate(loads)
        ]
        if changes:
            yield Proposal(
                f"set eviction_policy of loads by reuse{context.where(function.name)}",
                context.written(changes),
                rationale="What only this program reads, and for the last time, can leave the caches first; what it or "
                "others read again should leave them last.",
                expected_effect="More hits for what is read again.",
            )


def _policy(
    call: ast.Call, later: list[ast.Call], axes: Mapping[str, frozenset[int]], grid: frozenset[int]
) -> str:
    """How long to keep what a load reads: what programs share, or a program loads again, leaves last."""
    pointer = py.argument(call, 0, "pointer")
    if pointer is None or not grid <= frozenset[int]().union(
        *(axes.get(n, ()) for n in py.names_read(pointer))
    ):
        return "evict_last"
    again = any(py.same(found, pointer) for each in later if (found := py.argument(each, 0, "pointer")))
    return "evict_last" if again else "evict_first"


def _axes(function: ast.FunctionDef) -> Mapping[str, frozenset[int]]:
    """The axes of the grid that names depend on."""
    found: dict[str, frozenset[int]] = {}
    while True:
        before = dict(found)
        for node in ast.walk(function):
            match node:
                case ast.Assign(value=value) | ast.AugAssign(value=value):
                    names = py.names_assigned(node)
                case ast.For(target=target, iter=value):
                    names = py.names_assigned(target)
                case _:
                    continue
            asked = {
                int(ast.unparse(call.args[0]))
                for call in py.calls(value, "program_id")
                if call.args and isinstance(call.args[0], ast.Constant)
            }
            inherited = (found.get(name, frozenset[int]()) for name in py.names_read(value))
            own = frozenset(asked).union(*inherited)
            for name in names:
                found[name] = found.get(name, frozenset()) | own
        if found == before:
            return found


def _plain(call: ast.Call) -> bool:
    """Whether a load or store carries no hint yet, and has its arguments written out."""
    names = {keyword.arg for keyword in call.keywords}
    return (
        bool(call.args)
        and None not in names
        and not names & {"cache_modifier", "eviction_policy", "volatile"}
    )


def _with(context: py.TritonContext, call: ast.Call, hint: str) -> py.Replacement:
    _, end = context.module.span(call)
    last = max(context.module.span(each)[1] for each in (*call.args, *(k.value for k in call.keywords)))
    return py.Replacement(last, end, f", {hint})")


COARSEST_TOLERANCE = {"tf32x3": 1e-5, "tf32": 1e-2}
"""The least tolerance, relative and absolute, at which a precision is proposed.

TF32 keeps 11 bits of a factor, so that a product is off by 2^-10 of itself at most, and a sum in which much cancels by
more; three products of the parts of two factors (Ootomo and Yokota, 2022, arXiv:2203.03341) leave out 2^-22 of it.
"""


@py.rule(Category.TENSOR_CORES, 1.5, "instruction_issue fp32_pipe tensor_pipe")
def dot_precision(context: py.TritonContext) -> Iterator[Proposal]:
    """Tensor cores in place of float32 multiplications."""
    for launched in context.launched:
        found = [
            keyword.value
            for call in py.calls(launched.function, "dot")
            for keyword in call.keywords
            if keyword.arg == "input_precision"
            and isinstance(keyword.value, ast.Constant)
            and keyword.value.value == "ieee"
        ]
        for precision, tolerance in COARSEST_TOLERANCE.items():
            if found and narrowest_tolerance(context.task) >= tolerance:
                yield Proposal(
                    f"set input_precision={precision} of tl.dot{context.where(launched.function.name)}",
                    context.written(context.module.replace(each, f'"{precision}"') for each in found),
                    rationale="Tensor cores multiply float32 in parts of 11 bits; how many parts it takes is for the "
                    "tolerance to say.",
                    expected_effect="Products at a third of the tensor cores' rate."
                    if precision == "tf32x3"
                    else "Products at the tensor cores' rate.",
                    prior=1.0 if precision == "tf32x3" else 1.5,
                )
