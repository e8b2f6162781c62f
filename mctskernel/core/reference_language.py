"""The language of references that nobody trusts: a small part of Python over numpy.

A reference that a language model wrote is hostile text, and its syntax tree is walked and never executed
(`mctskernel.core.interpreted_reference`). What is named here is all there is: everything else is refused with its line.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

MAX_CHARACTERS = 20_000

Function = Callable[..., object]


class RefusedReferenceError(ValueError):
    """A reference that goes beyond its language; the message is a sentence with the line."""


def checked_reference(source: str) -> ast.FunctionDef:
    """The function `reference` of a text that stays within the language. Raises RefusedReferenceError."""
    if len(source) > MAX_CHARACTERS:
        raise RefusedReferenceError(f"It has more than {MAX_CHARACTERS} characters.")
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RefusedReferenceError(f"It is not Python: {error}.") from error
    function = _only_function(module)
    _check_statements(function.body)
    return function


def described_language() -> tuple[str, ...]:
    """What the language has, for whoever is to write in it."""
    return (
        f"functions of numpy, as `np.NAME(...)`: {', '.join(NUMPY)}",
        f"functions of math, as `math.NAME(...)`: {', '.join(MATH)}",
        f"methods of arrays: {', '.join(sorted(METHODS))}; attributes: {', '.join(sorted(ATTRIBUTES))}",
        f"types: {', '.join(f'np.{name}' for name in TYPES)}; constants: {', '.join(CONSTANTS)}",
        f"built-in functions: {', '.join(BUILTINS)}, and `range` in a for loop",
        f"keyword arguments: {', '.join(sorted(KEYWORDS))}",
    )


_NUMPY_NAMES = """
    abs add all amax amin any arange arctan argmax argmin argsort array asarray atleast_2d bincount broadcast_to cbrt
    ceil clip concatenate convolve copysign cos cosh cumprod cumsum diag diff divide dot einsum empty_like equal exp
    exp2 expand_dims expm1 eye flip floor full full_like greater hypot isfinite isinf isnan less log log10 log1p log2
    logaddexp logical_and logical_not logical_or matmul max maximum maximum.accumulate mean median min minimum
    minimum.accumulate mod moveaxis multiply negative ones ones_like outer pad power prod reciprocal remainder repeat
    reshape rint roll round searchsorted sign sin sinh sort split sqrt square squeeze stack std subtract sum swapaxes
    take take_along_axis tan tanh tile trace transpose tril triu trunc unique var where zeros zeros_like
"""
_MATH_NAMES = "ceil cos exp floor isqrt log log2 sin sqrt tanh"
_TYPE_NAMES = "float32 float64 int8 int32 int64 uint8 uint32 uint64 bool_"
_METHOD_NAMES = """
    all any argmax argmin argsort astype clip copy cumprod cumsum dot flatten item max mean min prod ravel repeat
    reshape round squeeze std sum swapaxes take transpose var
"""
_KEYWORD_NAMES = "axes axis axis1 axis2 ddof dtype fill_value k keepdims minlength shift"
_SIZED_NAMES = "arange bincount broadcast_to eye full ones outer pad repeat tile zeros"

NUMPY: Mapping[str, Function] = {name: operator.attrgetter(name)(np) for name in _NUMPY_NAMES.split()}
MATH: Mapping[str, Function] = {name: getattr(math, name) for name in _MATH_NAMES.split()}
TYPES: Mapping[str, type] = {name: getattr(np, name) for name in _TYPE_NAMES.split()}
PLAIN_TYPES: Mapping[str, type] = {"bool": bool, "float": float, "int": int}
"""Those that stand for themselves where a type is asked for."""

CONSTANTS: Mapping[str, object] = {
    "np.pi": np.pi,
    "np.e": np.e,
    "np.inf": np.inf,
    "np.newaxis": None,
    "math.pi": math.pi,
    "math.e": math.e,
    "math.inf": math.inf,
}
BUILTINS: Mapping[str, Function] = {
    function.__name__: function for function in (abs, bool, float, int, len, max, min, round, sum, tuple)
}
METHODS = frozenset(_METHOD_NAMES.split())
ATTRIBUTES = frozenset({"T", "dtype", "ndim", "shape", "size"})
KEYWORDS = frozenset(_KEYWORD_NAMES.split())
SIZED = frozenset(_SIZED_NAMES.split())
"""Functions whose result is as large as a number that they are given says."""

OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.MatMult: operator.matmul,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.UAdd: lambda value, _: +value,
    ast.USub: lambda value, _: -value,
    ast.Invert: lambda value, _: ~value,
    ast.Not: lambda value, _: not value,
}
_SYNTAX = (
    *(ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.For, ast.If, ast.Return, ast.Pass),
    *(
        ast.Name,
        ast.Constant,
        ast.BinOp,
        ast.UnaryOp,
        ast.BoolOp,
        ast.Compare,
        ast.IfExp,
        ast.Tuple,
        ast.List,
    ),
    *(ast.Subscript, ast.Slice, ast.Attribute, ast.Call, ast.keyword, ast.And, ast.Or, ast.Load, ast.Store),
    *OPERATORS,
)
MODULES = {"np": NUMPY, "numpy": NUMPY, "math": MATH}
_IMPORTS = {("numpy", None), ("numpy", "np"), ("math", None)}


def refusal(node: ast.AST, what: str) -> RefusedReferenceError:
    """What is wrong, with the line."""
    return RefusedReferenceError(f"Line {getattr(node, 'lineno', 1)}: {what}")


def _only_function(module: ast.Module) -> ast.FunctionDef:
    found: list[ast.FunctionDef] = []
    for statement in module.body:
        match statement:
            case ast.Expr(ast.Constant(str())):
                pass
            case ast.Import(names) if all((each.name, each.asname) in _IMPORTS for each in names):
                pass
            case ast.FunctionDef(name="reference", decorator_list=[], args=parameters):
                if parameters.posonlyargs or parameters.kwonlyargs or parameters.vararg or parameters.kwarg:
                    raise refusal(statement, "The parameters must be plain names.")
                if parameters.defaults:
                    raise refusal(statement, "The parameters can't have defaults.")
                found.append(statement)
            case _:
                raise refusal(
                    statement,
                    "Beside `import numpy as np`, `import math` and one function `reference` there may be nothing.",
                )
    if len(found) != 1:
        raise RefusedReferenceError("It must define one function called 'reference'.")
    return found[0]


def _check_statements(body: Sequence[ast.stmt]) -> None:
    """Refuse everything that `_Walk` doesn't know, before anything is computed."""
    for node in _nodes(body):
        if not isinstance(node, _SYNTAX):
            raise refusal(node, f"{type(node).__name__} is not part of the language of references.")
        match node:
            case ast.Attribute(attr=name) if dotted_name(node).partition(".")[0] not in MODULES:
                if name not in METHODS | ATTRIBUTES:
                    raise refusal(node, f"'.{name}' is not available.")
            case ast.Attribute() if not _is_known(dotted_name(node)):
                raise refusal(node, f"'{dotted_name(node)}' is not available.")
            case ast.Call(func=ast.Name(id=name)) if name not in BUILTINS and name != "range":
                raise refusal(node, f"'{name}' can't be called.")
            case ast.keyword(arg=name) if name not in KEYWORDS:
                raise refusal(node.value, f"The keyword argument '{name}' is not available.")
            case ast.Name(id=name, ctx=ast.Store()) if name in MODULES or name in BUILTINS:
                raise refusal(node, f"'{name}' can't be given another meaning.")


def _nodes(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """Every node below these statements; annotations mean nothing and are passed over."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        yield node
        ignored = node.annotation if isinstance(node, ast.AnnAssign) else None
        waiting += [child for child in ast.iter_child_nodes(node) if child is not ignored]


def dotted_name(node: ast.expr) -> str:
    """`np.maximum.accumulate` of such an expression; empty for others."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            before = dotted_name(value)
            return f"{before}.{name}" if before else ""
        case _:
            return ""


def _is_known(dotted: str) -> bool:
    module, _, name = dotted.partition(".")
    is_type = MODULES[module] is NUMPY and name in TYPES
    return name in MODULES[module] or is_type or canonical(dotted) in CONSTANTS


def canonical(dotted: str) -> str:
    """A dotted name as `CONSTANTS` spells it."""
    return dotted.replace("numpy.", "np.", 1)
