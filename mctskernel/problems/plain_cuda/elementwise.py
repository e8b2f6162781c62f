"""Element-wise operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTION
from torch._prims_common import elementwise_dtypes
from torch.fx import Node

from mctskernel.problems.plain_cuda.body import Body, Index, node_type, numbers
from mctskernel.problems.plain_cuda.element_types import (
    computed_type,
    converted,
    is_fp8,
    literal,
    loaded,
    stored,
)
from mctskernel.problems.plain_cuda.rules import (
    Kind,
    argument,
    base_name,
    is_tensor,
    operand,
    rule,
    scalar,
    takes,
)

_SAME_NAME = (
    "acos acosh asin asinh atan atanh ceil cos cosh erf erfc erfinv exp exp2 expm1 floor lgamma log log10 log1p log2 "
    "rsqrt sin sinh sqrt tan tanh trunc"
)
"""Functions of one number that CUDA calls as PyTorch does."""

_UNARY: Mapping[str, str] = {
    **{name: f"{name}{{f}}({{0}})" for name in _SAME_NAME.split()},
    "abs": "fabs{f}({0})",
    "i0": "cyl_bessel_i0{f}({0})",
    "neg": "-{0}",
    "reciprocal": "{one} / {0}",
    "relu": "{0} < {zero} ? {zero} : {0}",
    "round": "rint{f}({0})",
    "sigmoid": "{over}({one}, {one} + exp{f}(-{0}))",
    "sign": "({kind})(({zero} < {0}) - ({0} < {zero}))",
    "silu": "{over}({0}, {one} + exp{f}(-{0}))",
    "square": "{0} * {0}",
}
"""For floating-point numbers. `relu` keeps NaN, as in PyTorch."""

_UNARY_WHOLE: Mapping[str, str] = {
    "abs": "({0} < 0 ? -{0} : {0})",
    "neg": "-{0}",
    "relu": "max({0}, ({kind})0)",
    "sign": "({kind})((0 < {0}) - ({0} < 0))",
    "square": "{0} * {0}",
    "bitwise_not": "~{0}",
    **dict.fromkeys(("ceil", "floor", "round", "trunc"), "{0}"),
}

_BINARY: Mapping[str, str] = {
    **{name: f"{name}{{f}}({{0}}, {{1}})" for name in "atan2 copysign fmod hypot fmax fmin pow".split()},
    "add": "{0} + {1}",
    "div": "{0} / {1}",
    "maximum": "{0} > {1} || {0} != {0} ? {0} : {1}",
    "minimum": "{0} < {1} || {0} != {0} ? {0} : {1}",
    "mul": "{0} * {1}",
    "remainder": "{0} - floor{f}({0} / {1}) * {1}",
    "sub": "{0} - {1}",
}

_BINARY_WHOLE: Mapping[str, str] = {
    "add": "{0} + {1}",
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "bitwise_xor": "{0} ^ {1}",
    "bitwise_left_shift": "{0} << {1}",
    "bitwise_right_shift": "{0} >> {1}",
    "__lshift__": "{0} << {1}",
    "__rshift__": "{0} >> {1}",
    "fmod": "{0} % {1}",
    "maximum": "{0} > {1} ? {0} : {1}",
    "minimum": "{0} < {1} ? {0} : {1}",
    "mul": "{0} * {1}",
    "pow": "({kind})llrint(pow((double){0}, (double){1}))",
    "remainder": "({0} % {1} + {1}) % {1}",
    "sub": "{0} - {1}",
}

_TRUTH: Mapping[str, str] = {
    "add": "{0} || {1}",
    "mul": "{0} && {1}",
    "maximum": "{0} || {1}",
    "minimum": "{0} && {1}",
    "bitwise_and": "{0} && {1}",
    "bitwise_or": "{0} || {1}",
    "bitwise_xor": "{0} != {1}",
    "bitwise_not": "!{0}",
    "sub": "{0} != {1}",
}
"""For booleans."""

_COMPARED: Mapping[str, str] = {
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "isnan": "{0} != {0}",
    "isinf": "{0} == {inf} || {0} == -{inf}",
    "logical_and": "{0} != {zero} && {1} != {zero}",
    "logical_or": "{0} != {zero} || {1} != {zero}",
    "logical_xor": "({0} != {zero}) != ({1} != {zero})",
    "logical_not": "{0} == {zero}",
}
"""Operators with a boolean result."""


@rule(*_UNARY, *_UNARY_WHOLE, *_BINARY, *_BINARY_WHOLE, kind=Kind.ELEMENT)
def _arithmetic(body: Body, node: Node, index: Index) -> str:
    dtype, name = numbers(node), base_name(node)
    operands = [operand(body, value, index, dtype) for value in _operands(node)]
    alpha = node.kwargs.get("alpha", 1)
    if alpha != 1:
        operands[1] = f"{scalar(body, alpha, dtype)} * {operands[1]}"
    if name == "div" and node.kwargs.get("rounding_mode"):
        text = _rounded_quotient(str(node.kwargs["rounding_mode"]), operands, dtype)
    elif name == "pow" and (power := _small_power(node, operands[0])):
        text = power
    elif name == "mul" and computed_type(dtype) == "float" and _is_compared(node):
        text = _filled("__fmul_rn({0}, {1})", operands, dtype)
    else:
        text = _filled(_table(dtype)[name], operands, dtype)
    return body.let(computed_type(dtype), node.name, text)


def _is_compared(node: Node) -> bool:
    """Whether a maximum is taken of a product, or of a sum that it is in, and subtracted later, as softmax does.

    Each kernel computes it anew. Where one fuses it with the subtraction, and another doesn't, the weights don't add up
    to 1 by the rounding error of the product.
    """
    sums = [user for user in node.users if base_name(user) in {"add", "sub"}]
    return any(base_name(user) == "amax" for each in (node, *sums) for user in each.users)


@rule(*_COMPARED, kind=Kind.ELEMENT)
def _comparison(body: Body, node: Node, index: Index) -> str:
    values = _operands(node)
    given = [value.meta["val"] if isinstance(value, Node) else value for value in values]
    dtype = elementwise_dtypes(*given, type_promotion_kind=PROMOTION.DEFAULT)[0]
    operands = [operand(body, value, index, dtype) for value in values]
    return body.let("bool", node.name, _filled(_COMPARED[base_name(node)], operands, dtype))


@rule("where", kind=Kind.ELEMENT)
def _where(body: Body, node: Node, index: Index) -> str:
    condition, left, right = (argument(node, name) for name in ("condition", "self", "other"))
    dtype = numbers(node)
    chosen = operand(body, condition, index, torch.bool)
    text = f"{chosen} ? {operand(body, left, index, dtype)} : {operand(body, right, index, dtype)}"
    return body.let(computed_type(dtype), node.name, text)


@rule("clamp", "clamp_min", "clamp_max", kind=Kind.ELEMENT)
def _clamp(body: Body, node: Node, index: Index) -> str:
    dtype, kind = numbers(node), node_type(node)
    value = operand(body, argument(node, "self"), index, dtype)
    for name, sign in (("min", "<"), ("max", ">")):
        if takes(node, name) and (bound := argument(node, name)) is not None:
            limit = operand(body, bound, index, dtype)
            value = body.let(kind, node.name, f"{value} {sign} {limit} ? {limit} : {value}")
    return value


@rule("gelu", kind=Kind.ELEMENT)
def _gelu(body: Body, node: Node, index: Index) -> str:
    dtype = numbers(node)
    value = operand(body, argument(node, "self"), index, dtype)
    text = (
        "{half} * {0} * ({one} + tanh{f}({c} * ({0} + {d} * {0} * {0} * {0})))"
        if argument(node, "approximate") == "tanh"
        else "{half} * {0} * ({one} + erf{f}({0} * {e}))"
    )
    constants = {"half": 0.5, "c": 0.7978845608028654, "d": 0.044715, "e": 0.7071067811865476}
    given = {name: literal(number, dtype) for name, number in constants.items()}
    return body.let(node_type(node), node.name, _filled(text, [value], dtype, given))


@rule("mish", kind=Kind.ELEMENT)
def _mish(body: Body, node: Node, index: Index) -> str:
    """With e = exp(x), tanh(log(1 + e)) is n / (n + 2) of n = e (e + 2)."""
    dtype = numbers(node)
    value = operand(body, argument(node, "self"), index, dtype)
    power = _filled("exp{f}(fmin{f}({0}, ({kind})20))", [value], dtype)
    power = body.let(node_type(node), f"{node.name}_exp", power)
    text = "{0} * {over}({1} * ({1} + ({kind})2), {1} * ({1} + ({kind})2) + ({kind})2)"
    return body.let(node_type(node), node.name, _filled(text, [value, power], dtype))


@rule("_to_copy", kind=Kind.ELEMENT)
def _cast(body: Body, node: Node, index: Index) -> str:
    source = argument(node, "self")
    value = converted(body.read(source, index), numbers(source), numbers(node))
    return loaded(numbers(node), stored(numbers(node), value)) if is_fp8(numbers(node)) else value


@rule("addcmul", kind=Kind.ELEMENT)
def _addcmul(body: Body, node: Node, index: Index) -> str:
    dtype = numbers(node)
    base, left, right = (operand(body, node.args[place], index, dtype) for place in range(3))
    return body.let(
        node_type(node),
        node.name,
        f"{base} + {scalar(body, argument(node, 'value'), dtype)} * {left} * {right}",
    )


@rule("copy", "fill", kind=Kind.ELEMENT)
def _second(body: Body, node: Node, index: Index) -> str:
    return operand(body, node.args[1], index, numbers(node))


def _table(dtype: torch.dtype) -> Mapping[str, str]:
    if dtype == torch.bool:
        return _TRUTH
    if dtype.is_floating_point:
        return {**_UNARY, **_BINARY}
    return {**_UNARY_WHOLE, **_BINARY_WHOLE}


def _operands(node: Node) -> list[Any]:
    names = ("self", "other", "exponent", "input")
    return [argument(node, name) for name in names if takes(node, name)]


def _small_power(node: Node, base: str) -> str:
    """Powers that are products or roots; empty for others."""
    exponent = argument(node, "exponent")
    if isinstance(exponent, Node) or is_tensor(argument(node, "self")) is False:
        return ""
    if exponent in {2, 3}:
        return " * ".join([base] * int(exponent))
    if not numbers(node).is_floating_point:
        return ""
    suffix = _suffix(numbers(node))
    return {0.5: f"sqrt{suffix}({base})", -0.5: f"rsqrt{suffix}({base})"}.get(exponent, "")


def _rounded_quotient(mode: str, operands: list[str], dtype: torch.dtype) -> str:
    left, right = operands
    if dtype.is_floating_point:
        rounding = "floor" if mode == "floor" else "trunc"
        return f"{rounding}{_suffix(dtype)}({left} / {right})"
    if mode == "trunc":
        return f"{left} / {right}"
    return f"{left} / {right} - ({left} % {right} != 0 && ({left} < 0) != ({right} < 0))"


def _filled(
    text: str, operands: list[str], dtype: torch.dtype, given: Mapping[str, str] | None = None
) -> str:
    operands = [each if _is_plain(each) else f"({each})" for each in operands]
    words = {
        "f": _suffix(dtype),
        "over": "__fdividef" if _suffix(dtype) else "fdivide",
        "kind": computed_type(dtype),
        "zero": literal(0, dtype),
        "one": literal(1, dtype),
        "inf": literal(float("inf"), dtype) if dtype.is_floating_point else "0",
    }
    return text.format(*operands, **words, **(given or {}))


def _is_plain(text: str) -> bool:
    return text.replace("_", "").replace(".", "").isalnum() or (text.startswith("(") and text.count("(") == 1)


def _suffix(dtype: torch.dtype) -> str:
    return "" if dtype == torch.float64 else "f"
