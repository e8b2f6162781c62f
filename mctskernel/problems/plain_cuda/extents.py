"""Symbolic sizes as text: C++ in a kernel, arithmetic in a launch plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from sympy.printing.precedence import PRECEDENCE
from sympy.printing.str import StrPrinter
from torch.utils._sympy.functions import CleanDiv

from mctskernel.problems.plain_cuda import PlainCudaError

ONE = sympy.Integer(1)

_HIGHEST_POWER = 8


def product(extents: Sequence[sympy.Expr]) -> sympy.Expr:
    """The number of elements."""
    return sympy.Mul(*extents)


def same(left: sympy.Expr, right: sympy.Expr) -> bool:
    """Whether two sizes are equal for all dimensions."""
    return bool(left == right or sympy.expand(_rational(left) - _rational(right)) == 0)


def _rational(size: sympy.Expr) -> sympy.Expr:
    """A size with quotients that have no remainder as fractions."""
    quotients = size.atoms(CleanDiv)
    return size.xreplace({each: each.args[0] / each.args[1] for each in quotients}) if quotients else size


def in_cpp(size: sympy.Expr) -> str:
    """A size in C++, whose integer division is the same for non-negative numbers."""
    return str(_Printer().doprint(size))


def in_plan(size: sympy.Expr) -> str | int:
    return int(size) if size.is_Integer else str(_Plan().doprint(size))


def count_in_cpp(extents: Sequence[sympy.Expr]) -> str:
    """The number of elements in C++, with factors in the order of the axes."""
    return _count(_Printer(), extents)


def count_in_plan(extents: Sequence[sympy.Expr]) -> str:
    return _count(_Plan(), extents)


def _count(printer: _Printer, extents: Sequence[sympy.Expr]) -> str:
    factors = [printer.factor(each) for each in extents if each != ONE]
    return " * ".join(factors) or "1"


def float_in_cpp(number: sympy.Expr) -> str:
    return str(_CppFloat().doprint(number))


class _Printer(StrPrinter):  # type: ignore[misc] # sympy has no types
    """The common part. `printmethod` keeps PyTorch's functions of sizes from printing themselves."""

    printmethod = "_plain"
    divides = "/"

    def _print_Mul(self, expr: Any) -> str:
        return " * ".join(self._tight(each) for each in expr.as_ordered_factors())

    def _print_floor(self, expr: Any) -> str:
        return self._quotient(*expr.args[0].as_numer_denom())

    def _print_FloorDiv(self, expr: Any) -> str:
        return self._quotient(*expr.args)

    def _quotient(self, left: Any, right: Any) -> str:
        return f"({self.parenthesize(left, PRECEDENCE['Mul'])} {self.divides} {self._tight(right)})"

    def _print_CleanDiv(self, expr: Any) -> str:
        return str(self._print_FloorDiv(expr))

    def _print_Mod(self, expr: Any) -> str:
        left, right = expr.args
        return f"({self._tight(left)} % {self._tight(right)})"

    _print_PythonMod = _print_Mod

    def _print_ModularIndexing(self, expr: Any) -> str:
        base, divisor, modulus = expr.args
        return f"({self._tight(base)} {self.divides} {self._tight(divisor)} % {self._tight(modulus)})"

    def _print_Max(self, expr: Any) -> str:
        return self._folded("max", expr.args)

    def _print_Min(self, expr: Any) -> str:
        return self._folded("min", expr.args)

    def _print_Pow(self, expr: Any, rational: bool = False) -> str:  # noqa: FBT001, FBT002, ARG002 - as sympy calls it
        base, exponent = expr.args
        if not (exponent.is_Integer and 0 < int(exponent) <= _HIGHEST_POWER):
            return self.emptyPrinter(expr)
        return "(" + " * ".join([self._tight(base)] * int(exponent)) + ")"

    _print_PowByNatural = _print_Pow

    def emptyPrinter(self, expr: Any) -> str:
        raise PlainCudaError(f"The number {expr}, which depends on sizes, can't be written.")

    def factor(self, expr: sympy.Expr) -> str:
        """An expression as an operand of a product."""
        return str(self.parenthesize(expr, PRECEDENCE["Mul"]))

    def _folded(self, name: str, args: Sequence[Any]) -> str:
        text = self._print(args[0])
        for each in args[1:]:
            text = f"{name}({text}, {self._print(each)})"
        return str(text)

    def _tight(self, expr: Any) -> str:
        return str(self.parenthesize(expr, PRECEDENCE["Pow"]))


class _Plan(_Printer):
    divides = "//"


class _CppFloat(_Printer):
    def _print_Integer(self, expr: Any) -> str:
        return f"{int(expr)}.0f"

    def _print_Float(self, expr: Any) -> str:
        return f"{float(expr)!r}f"

    _print_Rational = _print_Float
    _print_Half = _print_Float

    def _print_Symbol(self, expr: Any) -> str:
        return f"(float){expr.name}"

    def _print_ToFloat(self, expr: Any) -> str:
        return f"(float)({in_cpp(expr.args[0])})"

    def _print_IntTrueDiv(self, expr: Any) -> str:
        left, right = expr.args
        return f"((float)({in_cpp(left)}) / (float)({in_cpp(right)}))"

    def _print_FloatTrueDiv(self, expr: Any) -> str:
        left, right = expr.args
        return f"({self._tight(left)} / {self._tight(right)})"

    def _print_FloorDiv(self, expr: Any) -> str:
        return f"(float)({in_cpp(expr)})"

    def _print_Pow(self, expr: Any, rational: bool = False) -> str:  # noqa: FBT001, FBT002, ARG002 - as sympy calls it
        base, exponent = expr.args
        return f"powf({self._print(base)}, {self._print(exponent)})"

    _print_FloatPow = _print_PowByNatural = _print_Pow

    def _print_OpaqueUnaryFn_sqrt(self, expr: Any) -> str:
        return f"{type(expr).__name__.removeprefix('OpaqueUnaryFn_')}f({self._print(expr.args[0])})"

    _print_OpaqueUnaryFn_log = _print_OpaqueUnaryFn_exp = _print_OpaqueUnaryFn_sqrt
