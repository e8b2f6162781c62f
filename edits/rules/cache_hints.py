"""Cache hints: what is written or read once leaves the caches first; what nobody writes may take the read-only path."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import Bottleneck
from mctskernel.edits.rule import Context, Rule, edit
from mctskernel.edits.syntax import (
    Function,
    Replacement,
    accesses,
    replace,
    swap,
    text_of,
    walk,
    within,
)

TYPES = frozenset(
    {"float", "int", "unsigned", "unsigned int", "float4", "int4", "uint4", "float2", "int2", "uint2"}
)
"""Types that `__stcs` takes without a further header."""
LOADS = {
    "__ldg": (
        "read through the read-only path",
        "The compiler keeps loads in order after stores that might change what they read; what no store changes can "
        "be said to be so, load by load.",
        "Loads issued earlier and together.",
    ),
    "__ldcs": (
        "stream what is read",
        "What is read once pushes other data out of the caches; with a streaming hint it is the first to go.",
        "More hits for what is read again.",
    ),
}
"""Functions that load with a hint: what they do, why, and what for."""
_CONST_VECTOR = re.compile(r"\*\s*reinterpret_cast<\s*const\s+(\w+)\s*\*\s*>\((&(\w+)\[[^\[\]]*\])\)")
_ALIGNED = re.compile(r"\w*aligned\w*\(&\w+\[[^\[\]]*\]\)")
_VECTOR = re.compile(r"\*\s*reinterpret_cast<\s*(?:const\s+)?(\w+)\s*\*\s*>\((&(\w+)\[[^\[\]]*\])\)")


def stream(context: Context) -> Iterator[Edit]:
    """`__stcs` on stores to what a kernel only writes."""
    for function in {function.name: function for _, function in context.launched}.values():
        stores = list(_stores(function))
        if not stores:
            continue
        yield edit(
            Category.COMPILER_HINTS,
            f"stream what {function.name} writes",
            replace(context.source, stores),
            rationale=(
                "What is written and not read again pushes other data out of the caches; with a streaming hint it "
                "is the first to go."
            ),
            expected_effect="More hits for what is read again, such as the weights of every row.",
        )


def read_only(context: Context) -> Iterator[Edit]:
    """`__ldg` or `__ldcs` on loads of what no launch of the kernel writes."""
    for launch, function in {
        function.name: (launch, function) for launch, function in context.launched
    }.values():
        arguments = list(map(str, launch.args))
        names = [each.kernel for each in context.plan.launches]
        if names.count(launch.kernel) != 1 or len(set(arguments)) != len(arguments):
            continue
        for hint, (what, why, effect) in LOADS.items():
            loads = list(_loads(function, hint))
            if loads:
                yield edit(
                    Category.COMPILER_HINTS,
                    f"{what} in {function.name}",
                    replace(context.source, loads),
                    rationale=why,
                    expected_effect=effect,
                    prior=1.0 if hint == "__ldg" else 0.7,
                )


def _loads(function: Function, hint: str) -> Iterator[Replacement]:
    """Loads of elements and vectors of parameters that are read and nothing else."""
    for parameter in function.parameters:
        name = parameter.name
        if not parameter.pointer or not any(text_of(n) == name for n in walk(function.body, "identifier")):
            continue
        vectors = [
            node
            for node in walk(function.body, "pointer_expression")
            if (match := _CONST_VECTOR.fullmatch(text_of(node))) and match[3] == name and match[1] in TYPES
        ]
        asked = [node for node in walk(function.body, "call_expression") if _ALIGNED.fullmatch(text_of(node))]
        elements = [
            access
            for access in function.accesses
            if access.array == name and not any(within(access.node, node) for node in (*vectors, *asked))
        ]
        if any(d.name == name for d in function.declarations) or not _is_only_named_in(function, name):
            continue
        plain = all(not access.writes and len(access.indices) == 1 for access in elements)
        if not plain or (elements and parameter.type not in TYPES):
            continue
        yield from (swap(node, f"{hint}({text_of(node).removeprefix('*').strip()})") for node in vectors)
        # An element inside another's index is left to the next time.
        outer = [
            access.node
            for access in elements
            if not any(within(access.node, other.node) and access != other for other in function.accesses)
        ]
        yield from (swap(node, f"{hint}(&{text_of(node)})") for node in outer)


def _stores(function: Function) -> Iterator[Replacement]:
    """`__stcs` for plain assignments to elements or vectors of parameters that are nowhere read."""
    for assignment in walk(function.body, "assignment_expression"):
        left, right = assignment.child_by_field_name("left"), assignment.child_by_field_name("right")
        operator = assignment.child_by_field_name("operator")
        parent = assignment.parent
        if left is None or right is None or operator is None or text_of(operator) != "=":
            continue
        target = _target(function, left)
        if target is None or parent is None or parent.type != "expression_statement":
            continue
        address, array = target
        uses = [access for access in function.accesses if access.array == array]
        if _is_only_named_in(function, array) and all(access.writes for access in uses):
            yield swap(assignment, f"__stcs({address}, {text_of(right)})")


def _target(function: Function, node: Node) -> tuple[str, str] | None:
    """The address and the array of an element or vector of a parameter, if hints exist for its type."""
    match = _VECTOR.fullmatch(text_of(node))
    if match is not None:
        pointer = text_of(node).removeprefix("*").strip()
        return (pointer, match[3]) if match[1] in TYPES and _is_pointer(function, match[3]) else None
    found = accesses(node)
    if len(found) < 1 or found[0].node != node or len(found[0].indices) != 1:
        return None
    parameter = function.parameter(found[0].array)
    if parameter is None or not parameter.pointer or parameter.type not in TYPES:
        return None
    return f"&{text_of(node)}", parameter.name


def _is_pointer(function: Function, name: str) -> bool:
    parameter = function.parameter(name)
    return parameter is not None and parameter.pointer


def _is_only_named_in(function: Function, array: str) -> bool:
    """Whether an array is named in accesses only, so that no other pointer to it is made."""
    named = [node for node in walk(function.body, "identifier") if text_of(node) == array]
    inside = [access.node for access in function.accesses if access.array == array]
    return all(any(within(node, access) for access in inside) for node in named)


RULES = (
    Rule(
        "streaming-hints",
        Category.COMPILER_HINTS,
        frozenset({Bottleneck.DRAM_BANDWIDTH, Bottleneck.L2_BANDWIDTH, Bottleneck.L1_THROUGHPUT}),
        stream,
        prior=0.4,
    ),
    Rule(
        "read-only-loads",
        Category.COMPILER_HINTS,
        frozenset({Bottleneck.GLOBAL_LATENCY, Bottleneck.L1_THROUGHPUT, Bottleneck.L2_BANDWIDTH}),
        read_only,
        prior=0.3,
    ),
)
