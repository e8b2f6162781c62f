"""The table of operators: each rule writes the code for one element of an operator's result."""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from mctskernel.problems.plain_cuda import PlainCudaError
from mctskernel.problems.plain_cuda.body import Body, Index, numbers
from mctskernel.problems.plain_cuda.element_types import computed_type, converted, literal
from mctskernel.problems.plain_cuda.extents import ONE, float_in_cpp, in_cpp

Compute = Callable[[Body, Node, Index], str]
"""Writes the code for the element of a node at an index, and returns its C++ expression."""


class Kind(enum.Enum):
    """How a node is computed."""

    VIEW = enum.auto()
    """A view: reading its elements reads those of another node."""
    ELEMENT = enum.auto()
    """Computed where it is read, if that is cheap."""
    STORED = enum.auto()
    """Computed by a kernel of its own and kept in memory."""
    WHOLE_ROW = enum.auto()
    """Like `STORED`, but each thread writes all elements along an axis."""
    SCATTERED = enum.auto()
    """Like `STORED`, but a copy of the first operand, to which each thread then adds an element of another one."""
    RECURRENT = enum.auto()
    """Like `STORED`, by blocks of threads that wait for each other."""


@dataclass(frozen=True)
class Rule:
    """The rule of an operator. `repeats` says that many threads read the same elements of its operands."""

    compute: Compute
    kind: Kind
    repeats: bool = False


RULES: dict[str, Rule] = {}
"""By operator without its overload: `aten.add`."""


def rule(*names: str, kind: Kind, repeats: bool = False) -> Callable[[Compute], Compute]:
    """Add a function to the table."""

    def enter(compute: Compute) -> Compute:
        RULES.update({f"aten.{name}": Rule(compute, kind, repeats) for name in names})
        return compute

    return enter


def rule_of(node: Node) -> Rule:
    """The rule for a node. Raises PlainCudaError if there is none."""
    found = RULES.get(operator_name(node))
    if found is None:
        raise PlainCudaError(_refusal(node))
    return found


def operator_name(node: Node) -> str:
    """The operator of a node, such as `aten.add`, also for one of several results."""
    if node.target is operator.getitem:
        return operator_name(node.args[0])  # type: ignore[arg-type]
    return ".".join(str(node.target).split(".")[:2])


def base_name(node: Node) -> str:
    """The name of a node's operator without its namespace, such as `add`."""
    return operator_name(node).partition(".")[2]


def takes(node: Node, name: str) -> bool:
    schema = getattr(node.target, "_schema", None)  # one of several results has none
    return schema is not None and any(each.name == name for each in schema.arguments)


def source_of(node: Node) -> tuple[Node, int]:
    """The node of the operator, and the number of its result."""
    if node.target is operator.getitem:
        source, part = node.args
        assert isinstance(source, Node)  # noqa: S101 - of a tuple that another node gave
        return source, int(part)  # type: ignore[arg-type]
    return node, 0


def argument(node: Node, name: str) -> Any:
    """An argument by its name in the operator's signature, or its default; also for one of several results."""
    node, _ = source_of(node)
    for place, each in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if each.name == name:
            if name in node.kwargs:
                return node.kwargs[name]
            return node.args[place] if place < len(node.args) else each.default_value
    raise KeyError(name)


def is_tensor(value: object) -> bool:
    return isinstance(value, Node) and isinstance(value.meta.get("val"), torch.Tensor)


def broadcast(body: Body, node: Node, index: Index) -> Index:
    """The index into a tensor for an index into what it is broadcast to."""
    extents = body.extents(node)
    return tuple(
        "0" if extent == ONE else each
        for each, extent in zip(index[len(index) - len(extents) :], extents, strict=True)
    )


def operand(body: Body, value: Any, index: Index, dtype: torch.dtype) -> str:
    """An operand (tensor or number) for an element of the result, in a computation type."""
    if is_tensor(value):
        return converted(body.read(value, broadcast(body, value, index)), numbers(value), dtype)
    return scalar(body, value, dtype)


def scalar(body: Body, value: Any, dtype: torch.dtype) -> str:
    """A number, or a node of a number that depends on sizes."""
    if not isinstance(value, Node) and not hasattr(value, "node"):
        return literal(value, dtype)
    number = body.expression(value)
    if number.is_number:
        return literal(float(number) if dtype.is_floating_point else int(number), dtype)
    if dtype.is_floating_point:
        text = f"(float)({in_cpp(number)})" if number.is_integer else float_in_cpp(number)
        if "(" in text and not number.is_integer:
            text = body.constant("float", "factor", text)
        return text if computed_type(dtype) == "float" else f"({computed_type(dtype)})({text})"
    return converted(f"({in_cpp(number)})", torch.int32, dtype)


def tensors(node: Node) -> list[Node]:
    """The tensors that a node reads."""
    if node.target is operator.getitem:
        return tensors(node.args[0])  # type: ignore[arg-type]
    return [each for each in node.all_input_nodes if is_tensor(each)]


def behind(
    nodes: Iterable[Node],
    ends: Callable[[Node], bool] = lambda _: False,
    step: Callable[[Node], Iterable[Node]] = tensors,
) -> Iterator[Node]:
    """Nodes, and those that a step leads to from them, and so on, but for what is only behind some `ends`."""
    waiting, seen = list(nodes), set[Node]()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            yield node
            waiting += [] if ends(node) else step(node)


def readers(node: Node) -> list[Node]:
    """The nodes that read a tensor's elements; a number that depends on its sizes reads none."""
    found: list[Node] = []
    for user in node.users:
        several = isinstance(user.meta.get("val"), tuple | list)
        found += filter(is_tensor, user.users if several else (user,))
    return found


def axis(node: Node, dim: Any) -> int:
    """A dimension as a non-negative number."""
    rank = node.meta["val"].dim()
    return int(dim) % rank if rank else 0


def _refusal(node: Node) -> str:
    name = str(source_of(node)[0].target)
    where = next(
        (line.strip() for line in reversed((node.stack_trace or "").splitlines()) if line.strip()), ""
    )
    called = f" (in `{where[:100]}`)" if where else ""
    if any(word in name for word in ("rand", "bernoulli", "dropout", "multinomial", "normal.", "uniform")):
        return f"This function draws random numbers, {name}{called}, which a kernel can't reproduce."
    return f"There is no plain CUDA C++ for the operator {name}{called}."
