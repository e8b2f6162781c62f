"""References that nobody trusts, interpreted: they are walked and never executed.

So a reference that a language model wrote can compute, and can't reach a file, a process, a module or an attribute that
`mctskernel.core.reference_language` doesn't name. Inputs can't be written to; sizes and time are bounded.
"""

from __future__ import annotations

import ast
import inspect
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mctskernel.core.reference_language import (
    ATTRIBUTES,
    BUILTINS,
    CONSTANTS,
    METHODS,
    MODULES,
    NUMPY,
    OPERATORS,
    PLAIN_TYPES,
    SIZED,
    TYPES,
    Function,
    canonical,
    checked_reference,
    dotted_name,
    refusal,
)
from mctskernel.core.reference_sizes import elements_made

MAX_ELEMENTS = 1 << 29
"""Of an array; besides that it has at most MAX_GROWTH times the elements of all inputs, or LEAST_ROOM."""

MAX_GROWTH = 64
LEAST_ROOM = 1 << 26

MAX_PARTS = 4096
"""Of a tuple."""

MAX_SECONDS = 300.0
"""Of a call, as far as it is many steps: a single one is bounded by the sizes."""

_MAX_WHOLE = 1 << 63
_GROWING = (ast.Pow, ast.LShift)
_NAMES: Mapping[type[ast.AST], str] = {ast.MatMult: "matmul"}


class InterpretedReference:
    """A function `reference`, to be called with arrays and numbers by the names of its parameters.

    Raises RefusedReferenceError for text that is outside the language, and when it is called for what shows only then:
    values of another kind, too large, too slow.
    """

    __name__ = "reference"

    def __init__(self, source: str) -> None:
        function = checked_reference(source)
        self._body = function.body
        self.__signature__ = inspect.Signature(
            [
                inspect.Parameter(parameter.arg, inspect.Parameter.POSITIONAL_OR_KEYWORD)
                for parameter in function.args.args
            ]
        )

    def __call__(self, **arguments: object) -> object:
        """What the reference returns."""
        values = {name: _read_only(value) for name, value in arguments.items()}
        returned = _Walk(values, time.monotonic() + MAX_SECONDS).run(self._body)
        return returned.value if returned is not None else None


@dataclass(frozen=True)
class _Returned:
    value: object


def _read_only(value: object) -> object:
    if not isinstance(value, np.ndarray):
        return value
    view = value.view()
    view.flags.writeable = False
    return view


class _Walk:
    """One call of a reference."""

    def __init__(self, names: dict[str, object], deadline: float) -> None:
        self._names = names
        self._deadline = deadline
        given = sum(value.size for value in names.values() if isinstance(value, np.ndarray))
        self._room = min(MAX_ELEMENTS, max(LEAST_ROOM, MAX_GROWTH * given))

    def run(self, statements: Sequence[ast.stmt]) -> _Returned | None:
        """What the statements return, None where they come to their end."""
        for statement in statements:
            returned = self._step(statement)
            if returned is not None:
                return returned
        return None

    def _step(self, statement: ast.stmt) -> _Returned | None:
        if time.monotonic() > self._deadline:
            raise refusal(statement, f"The reference takes more than {MAX_SECONDS:g} s.")
        match statement:
            case ast.Return(value=value):
                return _Returned(self._value(value) if value is not None else None)
            case ast.Assign(targets=[target], value=value):
                self._assign(target, self._value(value))
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, self._value(value))
            case ast.AugAssign(target=target, op=op, value=value):
                self._update(target, op, self._value(value))
            case ast.If(test=test, body=body, orelse=orelse):
                return self.run(body if self._value(test) else orelse)
            case ast.For(orelse=[]):
                return self._loop(statement)
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                pass
            case _:
                raise refusal(statement, "This statement is not part of the language of references.")
        return None

    def _update(self, target: ast.expr, op: ast.operator, value: object) -> None:
        before = self._value(_loaded(target))
        after = self._combined(target, op, before, value)
        if not isinstance(before, np.ndarray) or isinstance(target, ast.Subscript):
            self._assign(target, after)
        elif not before.flags.writeable:
            raise refusal(target, "An input can't be changed in place.")
        else:
            np.copyto(before, after, casting="same_kind")  # type: ignore[arg-type]

    def _loop(self, loop: ast.For) -> _Returned | None:
        for number in self._range(loop.iter):
            self._assign(loop.target, number)
            returned = self.run(loop.body)
            if returned is not None:
                return returned
        return None

    def _range(self, node: ast.expr) -> range:
        match node:
            case ast.Call(func=ast.Name(id="range"), args=arguments, keywords=[]) if arguments:
                return range(*(_whole(node, self._value(each)) for each in arguments))
        raise refusal(node, "A loop goes over a `range`.")

    def _assign(self, target: ast.expr, value: object) -> None:
        match target:
            case ast.Name(id=name):
                self._names[name] = value
            case ast.Tuple(elts=targets) if isinstance(value, tuple) and len(value) == len(targets):
                for each, part in zip(targets, value, strict=True):
                    self._assign(each, part)
            case ast.Subscript(value=array, slice=index):
                into = self._value(array)
                if not isinstance(into, np.ndarray):
                    raise refusal(target, "Only elements of arrays can be assigned to.")
                into[self._value(index)] = value  # type: ignore[call-overload]
            case _:
                raise refusal(target, "This can't be assigned to.")

    def _value(self, node: ast.expr) -> object:  # noqa: C901, PLR0912 - a case for each kind of expression
        match node:
            case ast.Constant(value=value) if value is None or isinstance(value, int | float):
                return self._checked(node, value)
            case ast.Name(id=name):
                if name not in self._names and name not in PLAIN_TYPES:
                    raise refusal(node, f"'{name}' is unknown here.")
                return self._names[name] if name in self._names else PLAIN_TYPES[name]
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return tuple(self._value(part) for part in parts)
            case ast.BinOp(left=left, op=op, right=right):
                return self._combined(node, op, self._value(left), self._value(right))
            case ast.UnaryOp(op=op, operand=operand):
                return self._combined(node, op, self._value(operand), 0)
            case ast.BoolOp(op=op, values=values):
                return self._any_or_all(op, values)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._combined(node, op, self._value(left), self._value(right))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._value(body if self._value(test) else orelse)
            case ast.Slice(lower=lower, upper=upper, step=step):
                return slice(*(None if each is None else self._value(each) for each in (lower, upper, step)))
            case ast.Subscript(value=array, slice=index):
                return self._element(node, self._value(array), self._value(index))
            case ast.Attribute():
                return self._attribute(node)
            case ast.Call():
                return self._call(node)
        raise refusal(node, "This is not part of the language of references.")

    def _any_or_all(self, op: ast.boolop, values: Sequence[ast.expr]) -> object:
        value: object = None
        for each in values:
            value = self._value(each)
            if bool(value) is isinstance(op, ast.Or):
                break
        return value

    def _combined(self, node: ast.AST, op: ast.AST, left: object, right: object) -> object:
        apply = OPERATORS.get(type(op))
        if apply is None:
            raise refusal(node, f"{type(op).__name__} is not part of the language of references.")
        if isinstance(op, ast.Add) and isinstance(left, tuple) and isinstance(right, tuple):
            return self._checked(node, left + right)
        if isinstance(op, ast.Eq | ast.NotEq) and (left is None or right is None):
            return (left is right) is isinstance(op, ast.Eq)
        if isinstance(left, tuple | type | None) or isinstance(right, tuple | type | None):
            raise refusal(node, "Only numbers and arrays can be computed with.")
        if isinstance(op, _GROWING) and isinstance(left, int) and isinstance(right, int):
            grows = left.bit_length() * right if isinstance(op, ast.Pow) else left.bit_length() + right
            if grows > 64:
                raise refusal(node, "A whole number exceeds 64 bits.")
        self._check_size(node, elements_made(_NAMES.get(type(op), ""), (left, right)))
        return self._checked(node, apply(left, right))

    def _element(self, node: ast.AST, value: object, index: object) -> object:
        if isinstance(value, np.ndarray | tuple):
            return self._checked(node, value[index])  # type: ignore[call-overload]
        raise refusal(node, "Only arrays and tuples have elements.")

    def _attribute(self, node: ast.Attribute) -> object:
        dotted = dotted_name(node)
        module, _, name = dotted.partition(".")
        if module in MODULES and module not in self._names:
            if MODULES[module] is NUMPY and name in TYPES:
                return TYPES[name]
            if canonical(dotted) in CONSTANTS:
                return CONSTANTS[canonical(dotted)]
            raise refusal(node, f"'{dotted}' must be called.")
        value = self._value(node.value)
        if node.attr in ATTRIBUTES and isinstance(value, np.ndarray | np.generic):
            found = getattr(value, node.attr)
            return found.type if isinstance(found, np.dtype) else found
        raise refusal(node, f"'.{node.attr}' is not an attribute here.")

    def _call(self, node: ast.Call) -> object:
        function, name = self._function(node.func)
        first, rest = node.args[:1], node.args
        arguments: list[object] = []
        match first:
            case [ast.Constant(value=str(text))] if name == "einsum" and "." not in text:
                arguments, rest = [text], node.args[1:]
        arguments += [self._value(each) for each in rest]
        named = {str(each.arg): self._value(each.value) for each in node.keywords}
        owner = getattr(function, "__self__", None)
        given = [owner, *arguments] if isinstance(owner, np.ndarray) else arguments
        self._check_size(node, elements_made(name, [*given, *named.values()] if name in SIZED else given))
        return self._checked(node, function(*arguments, **named))

    def _function(self, node: ast.expr) -> tuple[Function, str]:
        dotted = dotted_name(node)
        module, _, name = dotted.partition(".")
        if module in MODULES and module not in self._names:
            found: Function | None = MODULES[module].get(name)
            if found is None and MODULES[module] is NUMPY:
                found = TYPES.get(name)
            if found is not None:
                return found, name
        elif isinstance(node, ast.Name) and node.id in BUILTINS:
            return BUILTINS[node.id], node.id
        elif isinstance(node, ast.Attribute) and node.attr in METHODS:
            value = self._value(node.value)
            if isinstance(value, np.ndarray | np.generic):
                method: Function = getattr(value, node.attr)
                return method, node.attr
        raise refusal(node, f"'{ast.unparse(node)[:60]}' can't be called.")

    def _check_size(self, node: ast.AST, elements: int) -> None:
        if elements > self._room:
            raise refusal(node, f"It makes more than {self._room} elements.")

    def _checked(self, node: ast.AST, value: object) -> object:
        """A value of a kind that the language has."""
        match value:
            case None | float() | np.bool_() | np.floating() | np.integer() | slice():
                return value
            case int() if abs(value) < _MAX_WHOLE:
                return value
            case type() if value in (*TYPES.values(), *PLAIN_TYPES.values()):
                return value
            case np.ndarray() if value.dtype.kind in "biuf" or value.dtype.name == "bfloat16":
                self._check_size(node, value.size)
                return value
            case tuple() | list():
                if len(value) > MAX_PARTS:
                    raise refusal(node, f"A tuple has more than {MAX_PARTS} parts.")
                return tuple(self._checked(node, each) for each in value)
        raise refusal(node, f"It makes a value that isn't part of the language: {type(value).__name__}.")


def _loaded(target: ast.expr) -> ast.expr:
    """A target, read."""
    match target:
        case ast.Name(id=name):
            return ast.copy_location(ast.Name(name, ast.Load()), target)
        case ast.Subscript(value=value, slice=index):
            return ast.copy_location(ast.Subscript(value, index, ast.Load()), target)
    raise refusal(target, "This can't be assigned to.")


def _whole(node: ast.AST, value: object) -> int:
    if isinstance(value, int | np.integer):
        return int(value)
    raise refusal(node, "A `range` is of whole numbers.")
