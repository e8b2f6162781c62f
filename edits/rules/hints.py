"""Promises to the compiler: no aliasing, read-only data, and the size of a block."""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import Bottleneck
from mctskernel.core.expression import evaluate_int
from mctskernel.core.launch_plan import MAX_THREADS, Launch
from mctskernel.edits.extents import as_c
from mctskernel.edits.rule import Context, Rule, edit
from mctskernel.edits.syntax import (
    Function,
    Parameter,
    Replacement,
    accesses,
    insert_before,
    replace,
    swap,
    text_of,
    walk,
    within,
)

REGISTERS_PER_SM = 65536
THREADS_PER_SM = 2048
LEAST_REGISTERS = 24
"""With fewer registers a thread, nearly every kernel spills."""


def pointer_qualifiers(context: Context) -> Iterator[Edit]:
    """`__restrict__` on all pointers of a kernel, and `const` on those that it only reads."""
    for function in _functions(context):
        changes: list[Replacement] = []
        restricted = _distinct_buffers(context, function.name)
        for parameter in function.parameters:
            changes += _qualified(context, function, parameter, restrict=restricted)
        if not changes:
            continue
        added = " and ".join(sorted({change.text.strip() for change in changes}))
        yield edit(
            Category.COMPILER_HINTS,
            f"{added} on the pointers of {function.name}",
            replace(context.source, changes),
            rationale="Unless told that stores don't change what is loaded, the compiler keeps loads in "
            "order after stores and may not use the read-only path.",
            expected_effect="Loads issued earlier and together.",
        )


def launch_bounds(context: Context) -> Iterator[Edit]:
    """The block size as a promise, alone or with a number of blocks that must fit a multiprocessor."""
    for function in _functions(context):
        block = _block_text(context, function.name)
        if block is None:
            continue
        text, threads = block
        if function.launch_bounds is None:
            yield _bounded(context, function, text, None)
        for blocks in range(1, THREADS_PER_SM // threads + 1):
            if _squeezes(context, function, REGISTERS_PER_SM // (blocks * threads)):
                yield _bounded(context, function, text, blocks)


def _squeezes(context: Context, function: Function, registers: int) -> bool:
    """Whether a limit on registers binds, but not so tightly that most values would be spilled."""
    for found in context.evaluation.resources:
        if found.kernel == function.name:
            return found.registers > registers >= max(LEAST_REGISTERS, found.registers // 2)
    return False


def _bounded(context: Context, function: Function, threads: str, blocks: int | None) -> Edit:
    bounds = f"__launch_bounds__({threads})" if blocks is None else f"__launch_bounds__({threads}, {blocks})"
    if function.launch_bounds is not None:
        change = swap(function.launch_bounds, bounds)
    else:
        declarator = function.node.child_by_field_name("declarator") or function.node
        change = insert_before(declarator, f"{bounds} ")
    limit = (
        "" if blocks is None else f" and at most {REGISTERS_PER_SM} / ({blocks} x block) registers a thread"
    )
    return edit(
        Category.COMPILER_HINTS,
        f"{bounds} on {function.name}",
        replace(context.source, [change]),
        rationale=f"The compiler then allocates registers for the block that is launched{limit}.",
        expected_effect="More resident blocks, or fewer spills.",
        prior=1.0 if blocks is None else 0.5,
    )


def _functions(context: Context) -> list[Function]:
    """The launched functions, each once."""
    return list({function.name: function for _, function in context.launched}.values())


def _launches(context: Context, name: str) -> list[Launch]:
    return [launch for launch in context.plan.launches if launch.kernel == name]


def _distinct_buffers(context: Context, name: str) -> bool:
    """Whether no launch passes the same buffer twice."""
    for launch in _launches(context, name):
        buffers = [
            argument
            for argument in launch.args
            if isinstance(argument, str) and _is_buffer(context, argument)
        ]
        if len(set(buffers)) < len(buffers):
            return False
    return True


def _is_buffer(context: Context, name: str) -> bool:
    return name in context.task.buffer_names or any(entry.name == name for entry in context.plan.scratch)


def _qualified(
    context: Context, function: Function, parameter: Parameter, *, restrict: bool
) -> list[Replacement]:
    declarator = parameter.node.child_by_field_name("declarator")
    if declarator is None or declarator.type != "pointer_declarator" or not _plain_pointer(declarator):
        return []
    changes = []
    if restrict and not parameter.restrict:
        name = declarator.child_by_field_name("declarator") or declarator
        gap = "" if context.source.text.encode()[: name.start_byte].endswith((b" ", b"*")) else " "
        changes.append(insert_before(name, f"{gap}__restrict__ "))
    if not parameter.const and _only_read(context, function, parameter.name):
        changes.append(insert_before(parameter.node, "const "))
    return changes


def _plain_pointer(declarator: Node) -> bool:
    """Whether it is a pointer to data, not to another pointer or to an array."""
    inner = declarator.child_by_field_name("declarator")
    return inner is not None and inner.type == "identifier"


def _only_read(context: Context, function: Function, name: str) -> bool:
    """Whether every use of a pointer is an element that is read, and no macro may hide another."""
    if name in context.source.macro_words:
        return False
    read = [access.node for access in accesses(function.body) if access.array == name and not access.writes]
    uses = [node for node in walk(function.body, "identifier") if text_of(node) == name]
    shadowed = any(declaration.name == name for declaration in function.declarations)
    return bool(uses) and not shadowed and all(any(_is_base(use, node) for node in read) for use in uses)


def _is_base(use: Node, access: Node) -> bool:
    """Whether a name is the array of an access rather than part of its index."""
    return within(use, access) and use.start_byte == access.start_byte


def _block_text(context: Context, name: str) -> tuple[str, int] | None:
    """The block's size as C over macros and its value, if it is the same in every launch and shape."""
    blocks = {launch.block for launch in _launches(context, name)}
    if len(blocks) != 1:
        return None
    macros = context.kernel.macros
    terms = [as_c(extent, frozenset(macros)) for extent in blocks.pop()]
    if None in terms:
        return None
    text = " * ".join(term for term in terms if term is not None and term != "1") or "1"
    threads = evaluate_int(text.replace("/", "//"), macros)
    return (text, threads) if 1 <= threads <= MAX_THREADS else None


RULES = (
    Rule(
        "pointer-qualifiers",
        Category.COMPILER_HINTS,
        frozenset({Bottleneck.GLOBAL_LATENCY, Bottleneck.L1_THROUGHPUT, Bottleneck.INSTRUCTION_ISSUE}),
        pointer_qualifiers,
        prior=0.6,
    ),
    Rule(
        "launch-bounds",
        Category.COMPILER_HINTS,
        frozenset({Bottleneck.LOW_OCCUPANCY, Bottleneck.SPILLS}),
        launch_bounds,
        prior=0.25,
    ),
)
