"""Checks Triton candidates before they are compiled, without running their modules.

A candidate is hostile text, and Triton runs Python while it compiles: it calls any function and reads any attribute
that a kernel's body can reach. So a module may hold a docstring (the launch plan), `import triton` and
`triton.language`, constants and functions under a bare `@triton.jit`, and bodies may use only the names and attributes
listed in `triton.names`. Only the `def` statements of a module are executed.
"""

from __future__ import annotations

import ast
import builtins
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from mctskernel.core.expression import ExpressionError, Number, evaluate
from mctskernel.profiling.triton.names import (
    FUNCTIONS,
    HOST,
    LANGUAGE,
    LIBDEVICE,
    MATH,
    MEMBERS,
    POWERFUL,
    PROPAGATION,
)

MAX_DEPTH = 80
"""Levels of nesting in the syntax tree; Triton's code generator takes several Python frames for each."""


_MODULES = {"triton": HOST, "tl": LANGUAGE, "libdevice": LIBDEVICE}
_IMPORTS = {
    "import triton",
    "import triton.language as tl",
    "from triton import language as tl",
    "from triton.language.extra import libdevice",
    "from triton.language.extra.cuda import libdevice",
}

RESERVED = FUNCTIONS | _MODULES.keys() | POWERFUL


@dataclass(frozen=True)
class TritonModule:
    """A checked module. `constants` have their value, and whether they are constexprs."""

    source: str
    functions: Mapping[str, ast.FunctionDef]
    constants: Mapping[str, tuple[Number, bool]]


class SourceError(Exception):
    """A module that is not valid Python, or that is forbidden; the message is a sentence."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(f"Line {line}: {message}" if line else message)


class ForbiddenError(SourceError):
    """A module that holds something that candidates may not hold."""


def read_module(source: str) -> TritonModule:
    """Parse and check a module. Raises ForbiddenError, or SourceError for text that is not valid Python."""
    _check_characters(source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd spellings
            tree = ast.parse(source)
        _check_depth(tree)
        return _module(source, tree)
    except SyntaxError as error:
        raise SourceError(f"Syntax error: {error.msg}.", error.lineno) from error
    except (RecursionError, MemoryError) as error:
        raise ForbiddenError("The source is nested too deeply.") from error
    except ValueError as error:
        raise SourceError(f"The source is not valid Python: {error}.") from error


def _check_characters(source: str) -> None:
    """Refuse characters that only some parsers take for line breaks: Triton finds functions by line number."""
    found = re.search(r"[^\n\t\x20-\x7e\xa0-\u2027\u202a-\U0010ffff]|[\u2066-\u2069\u202a-\u202e]", source)
    if found:
        line = source.count("\n", 0, found.start()) + 1
        raise ForbiddenError(
            f"the control character U+{ord(found[0]):04X} is not allowed in a candidate.", line
        )


def _check_depth(tree: ast.AST) -> None:
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return
    line = next((node.lineno for node in level if isinstance(node, ast.stmt | ast.expr)), None)
    raise ForbiddenError(f"the source is nested more than {MAX_DEPTH} levels deep.", line)


def _module(source: str, tree: ast.Module) -> TritonModule:
    functions: dict[str, ast.FunctionDef] = {}
    constants: dict[str, tuple[Number, bool]] = {}
    for index, statement in enumerate(tree.body):
        match statement:
            case ast.Expr(value=ast.Constant(value=str())) if index == 0:
                pass
            case ast.Import() | ast.ImportFrom():
                _check_import(statement)
            case ast.FunctionDef(name=name):
                _check_new(name, statement.lineno, functions, constants)
                functions[name] = statement
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                _check_new(name, statement.lineno, functions, constants)
                constants[name] = _constant(value, constants, statement.lineno)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value, annotation=annotation):
                _check_new(name, statement.lineno, functions, constants)
                if not _is_constexpr(annotation):
                    raise ForbiddenError(
                        "a constant's annotation may only be tl.constexpr.", statement.lineno
                    )
                constants[name] = (_constant(value, constants, statement.lineno)[0], True)
            case _:
                raise ForbiddenError(
                    "host code is never run here; a module may hold constants and @triton.jit functions.",
                    statement.lineno,
                )
    if not functions:
        raise ForbiddenError("The source has no @triton.jit function, so there is no kernel to launch.")
    for function in functions.values():
        _check_function(function, frozenset(functions))
    return TritonModule(source, functions, constants)


def _check_import(statement: ast.Import | ast.ImportFrom) -> None:
    text = ast.unparse(statement)
    if text not in _IMPORTS:
        raise ForbiddenError(
            f"'{text[:80]}' is not allowed; a candidate may import triton, triton.language as tl, and libdevice "
            "from triton.language.extra.",
            statement.lineno,
        )


def _check_new(name: str, line: int, *taken: Mapping[str, object]) -> None:
    _check_name(name, line)
    if any(name in names for names in taken):
        raise ForbiddenError(f"'{name}' is defined twice.", line)


def _check_name(name: str, line: int) -> None:
    if not name.isascii() or name.startswith("__") or name in RESERVED:
        raise ForbiddenError(f"'{name}' can't be redefined in a candidate.", line)


def _constant(
    value: ast.expr, constants: Mapping[str, tuple[Number, bool]], line: int
) -> tuple[Number, bool]:
    constexpr = False
    match value:
        case ast.Call(func=function, args=[wrapped], keywords=[]) if _is_constexpr(function):
            value, constexpr = wrapped, True
    try:
        return evaluate(
            ast.unparse(value), {name: found for name, (found, _) in constants.items()}
        ), constexpr
    except ExpressionError as error:
        raise ForbiddenError(
            f"host code is never run here; a constant is a number or arithmetic of numbers: {error}", line
        ) from error


def _is_constexpr(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="tl"), attr="constexpr"):
            return True
    return False


def _check_function(function: ast.FunctionDef, functions: frozenset[str]) -> None:
    match function.decorator_list:
        case [ast.Attribute(value=ast.Name(id="triton"), attr="jit")]:
            pass
        case _:
            raise ForbiddenError(
                f"'{function.name}' must have the one decorator @triton.jit, without arguments; other host code "
                "is never run here.",
                function.lineno,
            )
    if function.returns is not None or getattr(function, "type_params", []):
        raise ForbiddenError(
            f"'{function.name}' may have neither a return annotation nor type parameters.", function.lineno
        )
    arguments = function.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs:
        raise ForbiddenError(
            f"'{function.name}' may have plain parameters alone, no * or /.", function.lineno
        )
    for parameter in arguments.args:
        _check_name(parameter.arg, parameter.lineno)
        if parameter.annotation is not None and not _is_constexpr(parameter.annotation):
            raise ForbiddenError(
                f"the parameter '{parameter.arg}' may be annotated with tl.constexpr alone.", parameter.lineno
            )
    for default in arguments.defaults:
        if not _is_literal(default):
            raise ForbiddenError(f"a default of '{function.name}' is not a literal number.", default.lineno)
    bound = {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    bound.update(parameter.arg for parameter in arguments.args)
    _Body(functions, frozenset(bound)).check(function.body)


def _is_literal(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=None | bool() | int() | float()):
            return True
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
            return True
    return False


class _Body:
    """Checks a function's body against a list of allowed syntax; everything else is forbidden."""

    def __init__(self, functions: frozenset[str], bound: frozenset[str]) -> None:
        self._functions = functions
        self._bound = bound

    def check(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Pass() | ast.Return(value=None) | ast.Expr(value=ast.Constant(value=str())):
                pass
            case ast.Expr(value=value) | ast.Return(value=ast.expr() as value):
                self._value(value)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._target(target)
                self._value(value)
            case ast.AugAssign(target=target, value=value):
                self._target(target)
                self._value(value)
            case ast.AnnAssign(target=target, value=ast.expr() as value, annotation=annotation):
                if not _is_constexpr(annotation):
                    raise ForbiddenError("an annotation may be tl.constexpr alone.", node.lineno)
                self._target(target)
                self._value(value)
            case ast.If(test=test, body=body, orelse=orelse) | ast.While(test=test, body=body, orelse=orelse):
                self._value(test)
                self.check(body)
                self.check(orelse)
            case ast.For(target=target, iter=over, body=body, orelse=[]):
                self._target(target)
                self._loop(over)
                self.check(body)
            case _:
                raise ForbiddenError(f"{_described(node)} is not allowed in a kernel here.", node.lineno)

    def _target(self, node: ast.expr) -> None:
        match node:
            case ast.Name(id=name):
                _check_name(name, node.lineno)
                if name in self._functions:
                    raise ForbiddenError(
                        f"'{name}' is a function of this module and can't be assigned.", node.lineno
                    )
            case ast.Tuple(elts=elements):
                for element in elements:
                    self._target(element)
            case _:
                raise ForbiddenError("only names can be assigned in a kernel here.", node.lineno)

    def _loop(self, node: ast.expr) -> None:
        match node:
            case ast.Call(func=ast.Name(id="range")):
                pass
            case ast.Call(func=ast.Attribute(value=ast.Name(id="tl"), attr="range" | "static_range")):
                pass
            case _:
                raise ForbiddenError("a loop goes over range, tl.range or tl.static_range.", node.lineno)
        self._value(node)

    def _value(self, node: ast.expr) -> None:
        """Check an expression whose result must be a value of the kernel: no module, function or text."""
        match node:
            case ast.Constant(value=None | bool() | int() | float()):
                pass
            case ast.Name(id=name):
                self._name(name, node.lineno)
            case ast.Attribute():
                self._attribute(node)
            case ast.Call():
                self._call(node)
            case ast.BinOp(left=left, op=op, right=right):
                if isinstance(op, ast.Pow | ast.MatMult):
                    raise ForbiddenError(
                        "the operators ** and @ are not allowed in a kernel here.", node.lineno
                    )
                self._value(left)
                self._value(right)
            case _ if _is_plain(node):
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self._value(child)
            case _:
                raise ForbiddenError(f"{_described(node)} is not allowed in a kernel here.", node.lineno)

    def _name(self, name: str, line: int) -> None:
        if name in _MODULES or name in FUNCTIONS or name in self._functions:
            raise ForbiddenError(f"'{name}' is not a value: call it, or use one of its attributes.", line)
        # Any other name is a local or a constant; the compiler reports one that is undefined.
        if (
            not name.isascii()
            or name.startswith("__")
            or (hasattr(builtins, name) and name not in self._bound)
        ):
            raise ForbiddenError(f"'{name}' is not allowed in a kernel here.", line)

    def _attribute(self, node: ast.Attribute) -> None:
        match node.value:
            case ast.Name(id=module) if module in _MODULES:
                known = _MODULES[module]
            case ast.Attribute(value=ast.Name(id="tl"), attr="math"):
                known = MATH
            case ast.Attribute(value=ast.Name(id="tl"), attr="PropagateNan"):
                known = PROPAGATION
            case base:
                self._value(base)
                known = MEMBERS
        if node.attr not in known:
            raise ForbiddenError(
                f"{_text(node)} is not allowed in a kernel here{_hint(node.attr)}.", node.lineno
            )

    def _call(self, node: ast.Call) -> None:
        match node.func:
            case ast.Name(id=name) if name in FUNCTIONS or name in self._functions:
                pass
            case ast.Name(id=name):
                self._name(name, node.lineno)
            case ast.Attribute() as function:
                self._attribute(function)
            case _:
                raise ForbiddenError("only named functions can be called in a kernel here.", node.lineno)
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            self._argument(argument)
        if any(keyword.arg is None or keyword.arg.startswith("_") for keyword in node.keywords):
            raise ForbiddenError("arguments are given one by one, and none begins with _.", node.lineno)

    def _argument(self, node: ast.expr) -> None:
        """Check an argument: a value, a short text, or a function to reduce or scan with."""
        match node:
            case ast.Constant(value=str(text)) if len(text) <= 200:
                pass
            case ast.Name(id=name) if name in self._functions:
                pass
            case _:
                self._value(node)


def _is_plain(node: ast.expr) -> bool:
    return isinstance(
        node,
        ast.UnaryOp | ast.BoolOp | ast.Compare | ast.IfExp | ast.Subscript | ast.Slice | ast.Tuple | ast.List,
    )


_DESCRIPTIONS: Mapping[type[ast.AST], str] = {
    ast.Import: "an import",
    ast.ImportFrom: "an import",
    ast.FunctionDef: "a function inside a function",
    ast.AsyncFunctionDef: "a function inside a function",
    ast.ClassDef: "a class",
    ast.Lambda: "a lambda",
    ast.JoinedStr: "an f-string",
    ast.NamedExpr: "an assignment inside an expression",
    ast.Starred: "a starred expression",
    ast.ListComp: "a comprehension",
    ast.SetComp: "a comprehension",
    ast.DictComp: "a comprehension",
    ast.GeneratorExp: "a comprehension",
    ast.Constant: "a text or an odd constant",
}


def _described(node: ast.AST) -> str:
    return _DESCRIPTIONS.get(type(node), f"'{type(node).__name__.lower()}'")


def _text(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 60 else f"...{text[-57:]}"


def _hint(name: str) -> str:
    if "descriptor" in name:
        return " (tensor descriptors are made in the kernel, by tl.make_tensor_descriptor)"
    return " (nothing can be printed from a kernel)" if name.endswith("print") else ""
