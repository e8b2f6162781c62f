"""A matmul-shaped loop nest, however it was written: what all forms of a matmul kernel have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tree_sitter import Node

from mctskernel.core.launch_plan import Extent, Launch
from mctskernel.edits import syntax as cu
from mctskernel.edits.affine import definitions, polynomial
from mctskernel.edits.indexing import (
    Guarded,
    ThreadIndex,
    code,
    expression,
    guarded,
    inlined,
    replace_names,
    thread_indices,
)
from mctskernel.edits.rewrite import dedented
from mctskernel.edits.rule import Context

FLOATS = ("float", "double")

INTEGERS = frozenset(
    {"int", "unsigned", "unsigned int", "char", "unsigned char", "signed char", "short", "size_t"}
)
CONVERSIONS = frozenset({"__bfloat162float", "__half2float", "float", "static_cast<float>"})
"""Functions that turn an element into the float of the same value."""


@dataclass(frozen=True)
class Operand:
    """A factor of the products: `text` computes it in terms of its axis's variable and the summation index.

    `along_k` says whether consecutive summation indices are consecutive elements; `element` is the text of the
    one element of `buffer` behind the factor if that is all there is to it but for a conversion, and `type` its type.
    """

    buffer: str
    text: str
    axis: ThreadIndex
    along_k: bool
    type: str = ""
    element: str | None = None

    def at(self, axis_index: str, k_name: str, k_index: str) -> str:
        """The operand's text at other indices."""
        return replace_names(self.text, {self.axis.name: axis_index, k_name: k_index})

    def is_affine(self, k_name: str) -> bool:
        """Whether its elements are neighbours along its lines, which are equally far apart."""
        found = cu.accesses(expression(self.element or self.text))
        if len(found) != 1 or len(found[0].indices) != 1:
            return False
        index = polynomial(found[0].indices[0])
        along, across = (k_name, self.axis.name) if self.along_k else (self.axis.name, k_name)
        step, stride = index.coefficient(along), index.coefficient(across)
        if step is None or step.constant != 1 or stride is None:
            return False
        return not stride.names & {along, across}

    def element_at(self, axis_index: str, k_name: str, k_index: str) -> str:
        """The text of the operand's element, not converted, at other indices."""
        return replace_names(self.element or self.text, {self.axis.name: axis_index, k_name: k_index})


@dataclass(frozen=True)
class MatmulNest:
    """out(row, col) = epilogue(initial + sum over k of left(row, k) * right(k, col)); `col` runs along the output.

    `uniform` are declarations that all threads of a block evaluate alike; `epilogue` are the statements that
    use the sum; both as source lines at the left margin. `outer_grid` is the grid's extent along z.
    """

    row: ThreadIndex
    col: ThreadIndex
    k: str
    k_start: str
    k_bound: str
    left: Operand
    right: Operand
    accumulator: str
    element: str
    initial: str
    uniform: tuple[str, ...]
    epilogue: tuple[str, ...]
    outer_grid: tuple[Extent, ...]
    parameters: frozenset[str]

    @property
    def inside(self) -> str:
        """The condition under which an output exists."""
        return f"{self.row.name} < {self.row.bound} && {self.col.name} < {self.col.bound}"

    @property
    def names(self) -> frozenset[str]:
        """Names that a rewritten kernel still uses, so that it must not declare them again."""
        kept = "\n".join(
            (*self.uniform, *self.epilogue, f"{self.left.text}; {self.right.text}; {self.inside};")
        )
        return (
            cu.identifiers(cu.parse(kept).root) | {self.k, self.k_bound, self.accumulator} | self.parameters
        )

    @property
    def holes(self) -> dict[str, str | tuple[str, ...]]:
        """What templates of products call the parts of the nest."""
        return {
            "row": self.row.name,
            "col": self.col.name,
            "k": self.k,
            "k_start": self.k_start,
            "k_bound": self.k_bound,
            "element": self.element,
            "sum": self.accumulator,
            "initial": self.initial,
            "uniform": self.uniform,
            "inside": self.inside,
            "epilogue": self.epilogue,
        }

    @property
    def zero(self) -> str:
        """A literal zero of the element type."""
        return "0.0f" if self.element == "float" else "0.0"


def naive_nest(context: Context, launch: Launch, function: cu.Function) -> MatmulNest | None:
    """The nest of a kernel in which one thread sums one output straight from global memory."""
    body = guarded(function)
    if body is None or len(body.bounds) != 2 or _synchronises(function):
        return None
    found = _loop_and_sum(body, function)
    if found is None:
        return None
    total, loop, epilogue = found
    known = definitions(function)
    product = _accumulated_product(loop.body, total.name, known)
    if product is None:
        return None
    axes = _axes(context, launch, function, body)
    if axes is None or loop.comparison != "<" or loop.step != "1":
        return None
    parameters = frozenset(p.name for p in function.parameters) | context.source.macro_names
    reads = [
        read_operand(node, axes, loop.variable, known, parameters=parameters, function=function)
        for node in product
    ]
    left, right = reads
    if left is None or right is None or left.axis == right.axis:
        return None
    written = {access.array for access in function.accesses if access.writes}
    if written & {left.buffer, right.buffer} or not _distinct(
        launch, function, written, {left.buffer, right.buffer}
    ):
        return None
    col = output_axis(epilogue, axes, known) or right.axis
    if left.axis == col:
        left, right = right, left
    uniform = _uniform(body, axes, known)
    if not _self_contained(
        epilogue, function, body, kept=uniform, renamed={total.name, *(a.name for a in axes)}
    ):
        return None
    if not cu.identifiers(loop.start) | cu.identifiers(loop.bound) <= parameters:
        return None
    return MatmulNest(
        row=left.axis,
        col=right.axis,
        k=loop.variable,
        k_start=cu.text_of(loop.start),
        k_bound=cu.text_of(loop.bound),
        left=left,
        right=right,
        accumulator=total.name,
        element=total.type,
        initial=cu.text_of(total.value) if total.value is not None else "0",
        uniform=tuple(line for node in uniform for line in dedented(context.source, [node])),
        epilogue=dedented(context.source, epilogue),
        outer_grid=launch.grid[2:],
        parameters=frozenset(p.name for p in function.parameters),
    )


def _accumulated_product(body: Node, total: str, known: Mapping[str, Node]) -> tuple[Node, Node] | None:
    """The two factors of `total += a * b` (or `total = total + a * b`, `total = fmaf(a, b, total)`)."""
    statements = [node for node in code(body) if node.type != "declaration"]
    parts = cu.assignment(statements[0]) if len(statements) == 1 else None
    if parts is None or cu.text_of(parts[0]) != total:
        return None
    operator, value = parts[1], cu.strip_parentheses(parts[2])
    if operator == "=":
        fused = cu.calls(value, "fmaf", "fma")
        if value.type == "call_expression" and fused and fused[0] == value:
            return _fused_factors(value, total, known)
        rest = _without_addend(value, total)
        if rest is None:
            return None
        value = rest
    elif operator != "+=":
        return None
    a, sign, b = cu.operands(_definition(value, known)) or (value, "", value)
    return (_definition(a, known), _definition(b, known)) if sign == "*" else None


def _loop_and_sum(
    body: Guarded, function: cu.Function
) -> tuple[cu.Declaration, cu.Loop, tuple[Node, ...]] | None:
    statements = [node for node in body.statements if node.type != "preproc_call"]
    position = next((i for i, node in enumerate(statements) if node.type == "for_statement"), None)
    if position is None or any(node.type != "declaration" for node in statements[:position]):
        return None
    loop = cu.as_loop(statements[position])
    epilogue = tuple(statements[position + 1 :])
    if loop is None or not epilogue:
        return None
    if any(cu.has(node, "for_statement", "while_statement", "return_statement") for node in epilogue):
        return None
    assigned = cu.assigned_names(loop.body)
    sums = [d for d in function.declarations if d.name in assigned and d.type in FLOATS and not d.extents]
    if len(sums) != 1 or len(assigned) != 1:
        return None
    total = sums[0]
    if total.value is None or total.value.type != "number_literal" or total.pointer:
        return None
    before = [node for node in statements[:position] if node != total.node]
    if total.node not in (*body.prologue, *statements[:position]) or not total.alone:
        return None
    return total, loop, (*before, *epilogue)


def _axes(
    context: Context, launch: Launch, function: cu.Function, body: Guarded
) -> tuple[ThreadIndex, ThreadIndex] | None:
    """The two indices of an output, if each is the thread's place along another axis of the grid."""
    found = thread_indices(context, launch, function, body.bounds)
    return (found[0], found[1]) if {index.axis for index in found} == {"x", "y"} else None


def output_axis(
    epilogue: tuple[Node, ...], axes: tuple[ThreadIndex, ThreadIndex], known: Mapping[str, Node]
) -> ThreadIndex | None:
    """The axis along which consecutive outputs are consecutive elements, if a store shows one."""
    names = {axis.name for axis in axes}
    stable = {name: value for name, value in known.items() if name not in names}
    for statement in epilogue:
        for access in cu.accesses(statement):
            if access.writes and len(access.indices) == 1:
                index = polynomial(access.indices[0], stable)
                for axis in axes:
                    step = index.coefficient(axis.name)
                    if step is not None and step.constant == 1:
                        return axis
    return None


def _uniform(
    body: Guarded, axes: tuple[ThreadIndex, ThreadIndex], known: Mapping[str, Node]
) -> tuple[Node, ...]:
    """Declarations of the prologue besides the two indices that don't depend on the thread."""
    names = {axis.name for axis in axes}
    kept = []
    for node in body.prologue:
        declared = {
            cu.text_of(d)
            for init in node.children_by_field_name("declarator")
            for d in cu.walk(init, "identifier")
        }
        value_names: set[str] = set()
        for init in node.children_by_field_name("declarator"):
            value = init.child_by_field_name("value")
            if value is not None:
                value_names |= polynomial(value, known).names
        if not declared & names and not any(is_geometry(name) for name in value_names):
            kept.append(node)
    return tuple(kept)


def _self_contained(
    epilogue: tuple[Node, ...],
    function: cu.Function,
    body: Guarded,
    *,
    kept: tuple[Node, ...],
    renamed: set[str],
) -> bool:
    """Whether the epilogue uses only what the rewritten kernel still declares."""
    lost = {d.name for d in function.declarations if d.node in body.prologue and d.node not in kept} - renamed
    used = frozenset[str]().union(*(cu.identifiers(node) for node in epilogue))
    return not used & lost and not any(is_geometry(name) for name in used)


def _distinct(launch: Launch, function: cu.Function, first: set[str], second: set[str]) -> bool:
    arguments = {p.name: a for p, a in zip(function.parameters, launch.args, strict=False)}
    return not {arguments.get(name) for name in first} & {arguments.get(name) for name in second}


def _synchronises(function: cu.Function) -> bool:
    return bool(cu.calls(function.body, "__syncthreads", "__syncwarp")) or any(
        d.shared for d in function.declarations
    )


def _definition(node: Node, known: Mapping[str, Node]) -> Node:
    node = cu.strip_parentheses(node)
    while node.type == "identifier" and cu.text_of(node) in known:
        node = cu.strip_parentheses(known[cu.text_of(node)])
    return node


def _without_addend(value: Node, total: str) -> Node | None:
    a, sign, b = cu.operands(value) or (value, "", value)
    if sign != "+":
        return None
    if cu.text_of(a) == total:
        return cu.strip_parentheses(b)
    return cu.strip_parentheses(a) if cu.text_of(b) == total else None


def _fused_factors(call: Node, total: str, known: Mapping[str, Node]) -> tuple[Node, Node] | None:
    arguments = call.child_by_field_name("arguments")
    values = arguments.named_children if arguments is not None else []
    if len(values) != 3 or cu.text_of(values[2]) != total:
        return None
    return _definition(values[0], known), _definition(values[1], known)


def read_operand(
    node: Node,
    axes: tuple[ThreadIndex, ThreadIndex],
    k: str,
    known: Mapping[str, Node],
    *,
    parameters: frozenset[str],
    function: cu.Function,
) -> Operand | None:
    """A factor in terms of one of the axes and the summation index; None if it isn't a pure function of the two."""
    read = cu.accesses(node)
    if not read or not _is_pure(node) or not _keeps_types(node, known, function):
        return None
    names = frozenset(axis.name for axis in axes)
    used: set[ThreadIndex] = set()
    along_k = True
    for access in read:
        pointer = function.parameter(access.array)
        if pointer is None or not pointer.pointer or len(access.indices) != 1:
            return None
        value = polynomial(access.indices[0], {n: v for n, v in known.items() if n not in names})
        own = [axis for axis in axes if axis.name in value.names]
        if len(own) != 1 or any(is_geometry(name) for name in value.names):
            return None
        used.add(own[0])
        step, across = value.coefficient(k), value.coefficient(own[0].name)
        if k in value.names and access == read[0]:
            neighbours = across is not None and across.constant == 1
            along_k = step is not None and step.constant == 1 if not neighbours else False
    text = inlined(node, known, names | {k} | parameters | CONVERSIONS)
    mentioned = cu.identifiers(cu.parse(text).root) if text is not None else frozenset()
    if text is None or len(used) != 1 or k not in mentioned or names & mentioned != {a.name for a in used}:
        return None
    first = function.parameter(read[0].array)
    element = (
        inlined(read[0].node, known, names | {k} | parameters) if _is_converted(node, read[0].node) else None
    )
    kind = first.type if first is not None else ""
    return Operand(read[0].array, text, used.pop(), along_k, kind, element)


def _is_pure(node: Node) -> bool:
    """Whether an expression changes nothing and calls nothing but conversions."""
    changes = cu.has(node, "assignment_expression", "update_expression", "pointer_expression")
    return not changes and len(cu.calls(node)) == len(cu.calls(node, *CONVERSIONS))


def _keeps_types(node: Node, known: Mapping[str, Node], function: cu.Function) -> bool:
    """Whether what a node's names are declared as can replace them: no float is cut to a whole number on the way."""
    types = {d.name: d.type for d in function.declarations}
    for name in cu.identifiers(node) & known.keys():
        value = known[name]
        whole = types[name] in INTEGERS
        fractions = [
            cu.text_of(n) for n in cu.walk(value, "number_literal") if cu.whole_number(cu.text_of(n)) is None
        ]
        read = {
            p.type for access in cu.accesses(value) if (p := function.parameter(access.array)) is not None
        }
        floats = {types[n] for n in cu.identifiers(value) if n in types} - INTEGERS
        if whole and (fractions or floats or cu.calls(value) or not read <= INTEGERS):
            return False
        if types[name] not in INTEGERS | {"float"} or not _keeps_types(value, known, function):
            return False
    return True


def _is_converted(node: Node, element: Node) -> bool:
    """Whether an expression is an element, as it is or converted to float."""
    node = cu.strip_parentheses(node)
    if node == element:
        return True
    inner = node.child_by_field_name("value" if node.type == "cast_expression" else "arguments")
    if inner is None or node.type not in {"cast_expression", "call_expression"}:
        return False
    converts = node.type == "cast_expression" or cu.text_of(node.children[0]) in CONVERSIONS
    values = inner.named_children if inner.type == "argument_list" else [inner]
    return converts and len(values) == 1 and cu.strip_parentheses(values[0]) == element


def is_geometry(name: str) -> bool:
    """Whether a name's value depends on how blocks and threads are laid out; a batch along z may stay."""
    return name.startswith(("threadIdx", "blockDim", "gridDim")) or name in {"blockIdx.x", "blockIdx.y"}
