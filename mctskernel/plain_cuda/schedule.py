"""Which nodes of a graph lie in memory, and the kernels that write them."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
from torch.fx import Node

from mctskernel.core.launch_plan import MAX_LAUNCHES, MAX_PLAN_CHARACTERS
from mctskernel.core.task import Shape, Tensor
from mctskernel.plain_cuda import (  # noqa: F401 - they fill the table of rules
    elementwise,
    gathers,
    products,
    reductions,
    views,
    windows,
)
from mctskernel.plain_cuda.body import Body, Index, Place, numbers
from mctskernel.plain_cuda.element_types import converted, header, literal, stored_type
from mctskernel.plain_cuda.error import PlainCudaError
from mctskernel.plain_cuda.extents import ONE, count_in_cpp, count_in_plan, in_plan, product
from mctskernel.plain_cuda.rules import Kind, argument, axis, is_tensor, operator_name, rule_of
from mctskernel.plain_cuda.tracing import Traced, trace

BLOCK = 256
"""Threads in a block."""

HEAVIEST = 24
"""Operators that are computed again wherever their result is read, rather than kept in memory."""

LARGE = 1 << 30
"""From as many elements on, places in a buffer are 64-bit numbers."""

_AXES = {1: ("i",), 2: ("row", "col"), 3: ("batch", "row", "col"), 4: ("image", "channel", "row", "col")}
_AXES[5] = ("image", "channel", "depth", "row", "col")

_KEYWORDS = frozenset(
    [
        "alignas",
        "alignof",
        "and",
        "asm",
        "auto",
        "bool",
        "break",
        "case",
        "catch",
        "char",
        "class",
        "const",
        "constexpr",
        "continue",
        "decltype",
        "default",
        "delete",
        "do",
        "double",
        "else",
        "enum",
        "explicit",
        "export",
        "extern",
        "false",
        "float",
        "for",
        "friend",
        "goto",
        "half",
        "if",
        "inline",
        "int",
        "long",
        "mutable",
        "namespace",
        "new",
        "noexcept",
        "not",
        "nullptr",
        "operator",
        "or",
        "private",
        "protected",
        "public",
        "register",
        "requires",
        "return",
        "short",
        "signed",
        "sizeof",
        "static",
        "struct",
        "switch",
        "template",
        "this",
        "throw",
        "true",
        "try",
        "typedef",
        "typeid",
        "typename",
        "union",
        "unsigned",
        "using",
        "virtual",
        "void",
        "volatile",
        "while",
        "xor",
        "BLOCK",
        "blockIdx",
        "blockDim",
        "threadIdx",
        "gridDim",
        "warpSize",
        "max",
        "min",
        "abs",
        "y0",
        "y1",
        "j0",
        "j1",
    ]
)


@dataclass(frozen=True)
class _Written:
    """A kernel's text and its launch."""

    text: str
    launch: str


def written(
    function: Callable[..., Any], inputs: Sequence[Tensor], outputs: Sequence[str], sizes: Shape
) -> str:
    """As `kernel_source`."""
    traced = trace(function, inputs, sizes)
    if len(traced.outputs) != len(outputs):
        raise PlainCudaError(
            f"This function gives {len(traced.outputs)} tensors, and the task has {len(outputs)} outputs."
        )
    return _Schedule(traced, [*inputs], outputs, sizes).text()


class _Schedule:
    def __init__(
        self, traced: Traced, inputs: Sequence[Tensor], outputs: Sequence[str], sizes: Shape
    ) -> None:
        self._traced = traced
        self._sizes = sizes
        self._taken = {*sizes, *outputs, *(tensor.name for tensor in inputs), *_KEYWORDS}
        self._order = _order(traced.outputs)
        self._places = {
            node: self._place(name, node) for node, name in traced.inputs.items() if is_tensor(node)
        }
        self._names = {
            name: self._fresh(name) if name in _KEYWORDS else name
            for name in (*sizes, *outputs, *traced.inputs.values())
        }
        self._results = list(zip(outputs, traced.outputs, strict=True))
        self._headers: set[str] = set()

    def text(self) -> str:
        kept = self._kept()
        results = {}
        for name, node in self._results:
            if node in kept and node not in results:
                results[node] = name
        own = {}
        for node in kept:
            name = results.get(node) or self._fresh(node.name)
            own[node] = self._place(name, node)
        kernels = [
            self._kernel(node, place) for node, place in own.items() if not self._places.update({node: place})
        ]
        for name, node in self._results:
            if results.get(node) != name:
                kernels.append(self._kernel(node, self._place(name, node), copies=True))
        if len(kernels) > MAX_LAUNCHES:
            raise PlainCudaError(
                f"This function takes {len(kernels)} kernels, and a launch plan has at most {MAX_LAUNCHES}."
            )
        scratch = [_scratch(place) for node, place in own.items() if node not in results]
        plan = "\n".join((*(kernel.launch for kernel in kernels), *scratch))
        if len(plan) > MAX_PLAN_CHARACTERS:
            raise PlainCudaError(
                f"This function's launch plan would have {len(plan)} characters; the limit is {MAX_PLAN_CHARACTERS}."
            )
        text = "\n\n".join(kernel.text for kernel in kernels)
        if "CUDART_" in text:
            self._headers.add("math_constants.h")
        includes = "".join(f"#include <{each}>\n" for each in sorted(self._headers))
        return f"/*\n{plan}*/\n{includes}\n#define BLOCK {BLOCK}\n\n{text}\n"

    # What is kept in memory

    def _kept(self) -> list[Node]:
        """The nodes that get a kernel, in the order in which they are computed."""
        rules = {node: rule_of(node) for node in self._order if node.op == "call_function"}
        kept = {node for node, each in rules.items() if each.kind in {Kind.STORED, Kind.WHOLE_ROW}}
        weights: dict[Node, int] = {}
        for node in self._order:
            if node in rules:
                own = 1 if rules[node].kind is Kind.ELEMENT and "_to_copy" not in str(node.target) else 0
                weights[node] = own + sum(weights[each] for each in _tensors(node) if each not in kept)
                if weights[node] > HEAVIEST:
                    kept.add(node)
                if rules[node].repeats:
                    kept |= {
                        each
                        for source in _tensors(node)
                        if (each := self._worth(source, rules, weights, kept))
                    }
            else:
                weights[node] = 0
        kept |= {node for _, node in self._results if node in rules and rules[node].kind is not Kind.VIEW}
        return [node for node in self._order if node in kept]

    def _worth(
        self, node: Node, rules: Mapping[Node, Any], weights: Mapping[Node, int], kept: set[Node]
    ) -> Node | None:
        """The node behind views that is worth keeping, where its elements are read over and over again."""
        while node in rules and node not in kept:
            if rules[node].kind is not Kind.VIEW or "cat" in str(node.target):
                return node if weights[node] > 0 else None
            sources = _tensors(node)
            if not sources:
                return None
            node = sources[0]
        return None

    # A kernel

    def _kernel(self, node: Node, place: Place, *, copies: bool = False) -> _Written:
        name = self._fresh(f"{operator_name(node).split('.')[-1].strip('_')}_kernel")
        body = self._body(node, place, "int")
        if any(
            self._traced.estimate(product(each.extents)) >= LARGE for each in (*body.reads.values(), place)
        ):
            body = self._body(node, place, "long long")
        inside = body.text()
        used = set(re.findall(r"[A-Za-z_]\w*", inside))
        bound = count_in_cpp(self._space(node, place))
        dimensions = [
            each for each in self._sizes if self._names[each] in used | set(re.findall(r"\w+", bound))
        ]
        parameters = [
            *(
                f"const {stored_type(each.dtype)}* {self._parameter(each.name)}"
                for each in body.reads.values()
            ),
            f"{stored_type(place.dtype)}* {self._parameter(place.name)}",
            *(f"int {self._names[each]}" for each in dimensions),
        ]
        for each in (*body.reads.values(), place):
            self._headers |= {header(each.dtype)} - {""}
        cast = "(long long)" if body.index_type == "long long" else ""
        text = (
            f"// {_described(node, self._places)}\n"
            f'extern "C" __global__ void {name}({", ".join(parameters)}) {{\n'
            f"    {body.index_type} {body.thread} = {cast}blockIdx.x * blockDim.x + threadIdx.x;\n"
            f"    if ({body.thread} < {bound}) {{\n{inside}\n    }}\n}}"
        )
        args = ", ".join(f'"{each}"' for each in (*body.reads, place.name, *dimensions))
        launch = (
            f'[[launch]]\nkernel = "{name}"\ngrid = ["ceil_div({count_in_plan(self._space(node, place))}, BLOCK)"]\nblock = ["BLOCK"]\n'
            f"args = [{args}]\n"
        )
        return _Written(text, launch)

    def _body(self, node: Node, place: Place, index_type: str) -> Body:
        places = {each: where for each, where in self._places.items() if where != place}
        body = Body(
            places, self._compute, self._expression, self._parameter, index_type, set(self._taken), place
        )
        body.thread = body.fresh("i")
        extents = self._space(node, place)
        names = _AXES.get(len(extents), tuple(f"i{axis}" for axis in range(len(extents))))
        index = body.unflat(body.thread, extents, names if len(extents) > 1 else ())
        value = body.read(node, index)
        if value:
            body.store(place, index, converted(value, numbers(node), place.dtype))
        return body

    def _space(self, node: Node, place: Place) -> tuple[sympy.Expr, ...]:
        """The extents that threads are counted over: one for each element, or each row."""
        if (
            node.op != "call_function"
            or rule_of(node).kind is not Kind.WHOLE_ROW
            or (node in self._places and self._places[node] != place)
        ):
            return place.extents
        dim = axis(node, argument(node, "dim"))
        return (*place.extents[:dim], ONE, *place.extents[dim + 1 :])

    def _compute(self, body: Body, node: Node, index: Index) -> str:
        if node.op == "get_attr":
            return self._constant(node)
        return rule_of(node).compute(body, node, index)

    def _constant(self, node: Node) -> str:
        value = self._traced.constants[node]
        if value.numel() != 1:
            raise PlainCudaError(
                f"This function holds a tensor of {value.numel()} elements that is none of its inputs; make it one."
            )
        return literal(value.item(), value.dtype)

    def _expression(self, value: Any) -> sympy.Expr:
        return self._traced.expression(value)

    def _parameter(self, name: str) -> str:
        return self._names.get(name, name)

    def _place(self, name: str, node: Node) -> Place:
        extents = tuple(self._traced.expression(size) for size in node.meta["val"].shape)
        return Place(name, numbers(node), extents)

    def _fresh(self, name: str) -> str:
        number, found = 1, name
        while found in self._taken:
            number += 1
            found = f"{name}_{number}"
        self._taken.add(found)
        return found


def _order(outputs: Sequence[Node]) -> list[Node]:
    """All nodes of tensors that outputs depend on, each after those that it depends on."""
    needed: set[Node] = set()
    waiting = list(outputs)
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += _tensors(node)
    return [node for node in outputs[0].graph.nodes if node in needed]


def _tensors(node: Node) -> list[Node]:
    """The tensors that a node reads; of a part of a result, those that the whole is made of."""
    if node.target is operator.getitem:
        return _tensors(node.args[0])  # type: ignore[arg-type]
    return [each for each in node.all_input_nodes if is_tensor(each)]


def _described(node: Node, places: Mapping[Node, Place]) -> str:
    """The operators of a kernel, in the order in which they are computed."""
    found: dict[str, None] = {}

    def walk(each: Node, root: bool = False) -> None:
        if each.op == "call_function" and (root or each not in places):
            for source in _tensors(each):
                walk(source)
            found[operator_name(each)] = None

    walk(node, True)
    return ", ".join(found) or "a copy"


def _scratch(place: Place) -> str:
    shape = ", ".join(str(e) if isinstance(e, int) else f'"{e}"' for e in map(in_plan, place.extents)) or "1"
    dtype = str(place.dtype).removeprefix("torch.")
    return f'\n[[scratch]]\nname = "{place.name}"\ndtype = "{dtype}"\nshape = [{shape}]\n'
