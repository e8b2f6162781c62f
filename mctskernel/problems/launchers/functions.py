"""Triton functions of a user's module as functions of a candidate, without what only their own module knows.

Names of modules become those that candidates know, numbers of the module become literals, texts and types among the
arguments become parts of the function, and branches that these decide go.
"""

from __future__ import annotations

import ast
import copy
import inspect
import math
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType, ModuleType
from typing import Any

from mctskernel.core.task import TaskError
from mctskernel.problems.inductor.triton_helpers import jitted, parsed
from mctskernel.profiling.triton.names import HOST, LANGUAGE, LIBDEVICE, MATH
from mctskernel.profiling.triton.source import RESERVED

_CONSTEXPR = ast.parse("tl.constexpr", mode="eval").body
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_DROPPED = {"static_assert", "static_print", "device_assert", "device_print"}  # they compute nothing


class Functions:
    """The functions that a candidate needs so far, each after those that it calls: `texts` by name."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self._names: dict[tuple[Any, ...], str] = {}

    def add(self, function: Any, literals: Mapping[str, Any], pointers: Mapping[str, str]) -> str:
        """The name of a function in the candidate; `pointers` are the types of the elements of its tensors.

        `literals` are arguments that become parts of it. Raises TaskError for what candidates may not use.
        """
        key = (function, *sorted((name, repr(each)) for name, each in (*literals.items(), *pointers.items())))
        if key not in self._names:
            fresh = (function.__name__, *(f"{function.__name__}_{number}" for number in range(2, 100)))
            name = self._names[key] = next(each for each in fresh if each not in self._names.values())
            source = jitted(_parsed(function))
            source.name, source.returns = name, None
            source.body = _Rewritten(
                self, _outer(function), literals=literals, pointers=pointers, source=source
            ).function(source)
            constexprs = {each.name for each in function.params if each.is_constexpr}
            source.args.args = [each for each in source.args.args if each.arg not in literals]
            source.args.defaults = [] if pointers else source.args.defaults
            for each in source.args.args:
                each.annotation = _CONSTEXPR if each.arg in constexprs else None
                each.arg = own_name(each.arg)
            self.texts[name] = ast.unparse(ast.fix_missing_locations(source))
        return self._names[key]


def own_name(name: str) -> str:
    """A name that candidates may give to what is their own."""
    return f"{name}_" if name in RESERVED else name


class _Rewritten(ast.NodeTransformer):
    """A function's code; `given` are expressions in place of its parameters."""

    def __init__(
        self,
        functions: Functions,
        outer: Mapping[str, Any],
        *,
        literals: Mapping[str, Any] = _NOTHING,
        pointers: Mapping[str, str] = _NOTHING,
        given: Mapping[str, ast.expr] = _NOTHING,
        source: ast.FunctionDef | None = None,
    ) -> None:
        self._functions, self._outer = functions, outer
        self._literals, self._pointers, self._given = literals, pointers, given
        nodes = [*ast.walk(source)] if source else []
        self._stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        self._local = self._stored | {n.arg for n in nodes if isinstance(n, ast.arg)} - literals.keys()

    def function(self, source: ast.FunctionDef) -> list[ast.stmt]:
        """The body. A literal whose name is assigned again is assigned first."""
        again = [name for name in self._literals if name in self._stored]
        first = [
            ast.Assign([ast.Name(own_name(each), ast.Store())], self._value(self._literals[each], each))
            for each in again
        ]
        return [*first, *self._statements(source.body)] or [ast.Pass()]

    def _statements(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        return [each for statement in body for each in self._statement(statement)]

    def _statement(self, statement: ast.stmt) -> list[ast.stmt]:
        match statement:
            case ast.Expr(value=ast.Constant()) | ast.Assert():
                return []
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name))) if name in _DROPPED:
                return []
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)) if _apart(
                targets, values
            ):
                pairs = zip(targets, values, strict=True)
                return self._statements([ast.Assign([target], value) for target, value in pairs])
            case ast.If():
                statement.test = self.visit(statement.test)
                if (known := _truth(statement.test)) is not None:
                    return self._statements(statement.body if known else statement.orelse)
                statement.body = self._statements(statement.body) or [ast.Pass()]
                statement.orelse = self._statements(statement.orelse)
                return [statement]
            case ast.For(target=target, iter=over):
                statement.target, statement.iter = self.visit(target), self.visit(over)
                statement.body = self._statements(statement.body) or [ast.Pass()]
                return [statement]
            case ast.While(test=test):
                statement.test = self.visit(test)
                statement.body = self._statements(statement.body) or [ast.Pass()]
                return [statement]
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                plain = not ast.unparse(statement.annotation).endswith("constexpr")
                target, value = self.visit(target), self.visit(value)
                return [ast.Assign([target], value) if plain else ast.AnnAssign(target, _CONSTEXPR, value, 1)]
        return [self.visit(statement)]

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        known = _truth(node.test)
        return node if known is None else node.body if known else node.orelse

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        match node:
            case ast.Compare(left=ast.Name(id=name), ops=[op], comparators=[ast.Constant(value=None)]):
                if name in self._pointers:
                    return ast.Constant(isinstance(op, ast.IsNot))
        self.generic_visit(node)
        known = _truth(node)
        return node if known is None else ast.Constant(known)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.BinOp(op=ast.Pow(), left=ast.Name() as base, right=ast.Constant(value=2)):
                return ast.BinOp(base, ast.Mult(), base)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """A call; of a function that is one expression, with plain arguments, that expression."""
        function, rest = self._outside(node.func)
        found = None if rest else _one_expression(function, node)
        if found is not None:
            outer, arguments, body = found
            given = {name: self.visit(each) for name, each in arguments.items()}
            inlined: ast.expr = _Rewritten(self._functions, outer, given=given).visit(copy.deepcopy(body))
            return inlined
        self.generic_visit(node)
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="tl"), attr="constexpr"), args=[ast.Constant() as inner]
            ):
                return inner
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._given:
            return self._given[node.id]
        if node.id in self._local:
            return ast.Name(own_name(node.id), node.ctx)
        if node.id in self._literals:
            return self._value(self._literals[node.id], node.id)
        return self._value(self._outer[node.id], node.id) if node.id in self._outer else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """A name of a module, wherever the kernel's own module has it from; a pointer's type of elements."""
        match node:
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id=name), attr="dtype"), attr="element_ty"):
                if name in self._pointers:
                    return _expression(f"tl.{self._pointers[name].replace('bool', 'int1')}")
        value, rest = self._outside(node)
        if value is None:
            self.generic_visit(node)
            return node
        found = self._value(value, ast.unparse(node))
        for each in rest:
            found = ast.Attribute(found, each, ast.Load())
        return found

    def _outside(self, node: ast.expr) -> tuple[Any, list[str]]:
        """What a name of the kernel's own module stands for, and attributes of that; None for other names."""
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names, node = [node.attr, *names], node.value
        if not isinstance(node, ast.Name) or node.id in self._local or node.id in self._given:
            return None, []
        value = self._outer.get(node.id)
        while names and (isinstance(value, ModuleType) or inspect.isclass(value)):
            value, names = getattr(value, names[0]), names[1:]
        return value, names

    def _value(self, value: Any, name: str) -> ast.expr:
        from triton.language import constexpr  # noqa: PLC0415 - an extra
        from triton.runtime.jit import JITFunction  # noqa: PLC0415

        value = value.value if isinstance(value, constexpr) else value
        if isinstance(value, float) and not math.isfinite(value):
            return _expression(f'float("{value}")')
        if value is None or isinstance(value, bool | int | float | str):
            return ast.Constant(value)
        if known := in_language(value):
            return _expression(known)
        if isinstance(value, JITFunction):
            return ast.Name(self._functions.add(value, {}, {}), ast.Load())
        raise TaskError(f"A kernel uses {name}, which is neither a number nor a Triton function.")


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _parsed(function: Any) -> ast.FunctionDef:
    return parsed(textwrap.dedent(inspect.getsource(function.fn)))


def _outer(function: Any) -> dict[str, Any]:
    return {**function.fn.__globals__, **inspect.getclosurevars(function.fn).nonlocals}


def _one_expression(
    function: Any, call: ast.Call
) -> tuple[Mapping[str, Any], dict[str, ast.expr], ast.expr] | None:
    """What a Triton function's own module has, its arguments by name, and the one expression that it returns."""
    from triton.runtime.jit import JITFunction  # noqa: PLC0415 - an extra

    if not isinstance(function, JITFunction) or in_language(function):
        return None
    given = dict(zip(function.arg_names, call.args, strict=False))
    given |= {each.arg: each.value for each in call.keywords if each.arg}
    plain = all(isinstance(each, ast.Name | ast.Constant) for each in given.values())
    match [each for each in _parsed(function).body if not isinstance(each, ast.Expr)]:
        case [ast.Return(value=ast.expr() as body)] if plain and given.keys() == {*function.arg_names}:
            return _outer(function), given, body
    return None


def _apart(targets: Sequence[ast.expr], values: Sequence[ast.expr]) -> bool:
    """Whether values can be assigned one after another."""
    names = {each.id for each in targets if isinstance(each, ast.Name)}
    read = {each.id for value in values for each in ast.walk(value) if isinstance(each, ast.Name)}
    return len(targets) == len(values) == len(names) and not names & read


def _truth(test: ast.expr) -> bool | None:
    """What a test of constants and types is; None where it isn't known."""
    match test:
        case ast.Constant(value=value):
            return bool(value)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            found = _truth(inner)
            return None if found is None else not found
        case ast.BoolOp(op=op, values=values):
            parts, decisive = [_truth(each) for each in values], isinstance(op, ast.Or)
            return decisive if decisive in parts else None if None in parts else not decisive
        case ast.Compare(
            left=left, ops=[ast.Eq() | ast.Is() | ast.NotEq() | ast.IsNot() as op], comparators=[right]
        ):
            if all(
                isinstance(each, ast.Constant) or ast.unparse(each).startswith("tl.")
                for each in (left, right)
            ):
                return (ast.unparse(left) == ast.unparse(right)) == isinstance(op, ast.Eq | ast.Is)
    return None


def in_language(value: object) -> str:
    """What candidates call a function, type or module of Triton; empty for other values."""
    return _language().get(id(value), "")


@cache
def _language() -> dict[int, str]:
    import triton  # noqa: PLC0415 - an extra
    import triton.language as tl  # noqa: PLC0415
    from triton.language.extra import cuda, libdevice  # noqa: PLC0415

    modules = {
        libdevice: "libdevice",
        cuda.libdevice: "libdevice",
        triton: "triton",
        tl.math: "tl.math",
        tl: "tl",
    }
    known = {"libdevice": LIBDEVICE, "triton": HOST, "tl.math": MATH, "tl": LANGUAGE}
    found = {id(module): name for module, name in modules.items()}
    for module, name in modules.items():
        found |= {
            id(getattr(module, each)): f"{name}.{each}" for each in known[name] if hasattr(module, each)
        }
    return found
