"""Atomic operations on many lanes at once, as if one after another by ascending lane; PTX ISA, "atom"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mctskernel.profiling.emulator import floating

_SCALAR: dict[str, Callable[..., Any]] = {
    "add": lambda old, b, _: old + b,
    "min": lambda old, b, _: min(old, b),
    "max": lambda old, b, _: max(old, b),
    "and": lambda old, b, _: old & b,
    "or": lambda old, b, _: old | b,
    "xor": lambda old, b, _: old ^ b,
    "exch": lambda _, b, __: b,
    "cas": lambda old, b, c: c if old == b else old,
    "inc": lambda old, b, _: old.dtype.type(0) if old >= b else old + old.dtype.type(1),
    "dec": lambda old, b, _: b if old == 0 or old > b else old - old.dtype.type(1),
    "f16x2.add": lambda old, b, _: _packed(old, b, "f16"),
    "bf16x2.add": lambda old, b, _: _packed(old, b, "bf16"),
    "f16.add": lambda old, b, _: (old.view("f2") + b.view("f2")).view("u2"),
    "bf16.add": lambda old, b, _: floating.float_to_bfloat(
        floating.bfloat_to_float(old) + floating.bfloat_to_float(b)
    ),
}
_CUMULATIVE = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}


def apply_atomic(
    target: np.ndarray, index: np.ndarray, operation: str, b: np.ndarray | None, c: np.ndarray | None
) -> np.ndarray:
    """Update `target[index]` lane by lane and return what each lane found there."""
    n = len(index)
    if b is None or n == 0:
        return np.zeros(n, target.dtype)
    single = n > 1 and bool((index == index[0]).all())
    if single and operation in _CUMULATIVE:
        chain = np.empty(n + 1, target.dtype)
        chain[0] = target[index[0]]
        chain[1:] = b
        chain = _CUMULATIVE[operation].accumulate(chain)
        target[index[0]] = chain[-1]
        return chain[:-1]
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    fresh = np.r_[True, ordered[1:] != ordered[:-1]]
    rank = np.arange(n) - np.maximum.accumulate(np.where(fresh, np.arange(n), 0))
    old = np.empty(n, target.dtype)
    if operation == "cas" and c is not None and np.count_nonzero(fresh) < _MAX_PLACES:
        for lanes in np.split(order, np.flatnonzero(fresh)[1:]):
            target[index[lanes[0]]], old[lanes] = _swaps(target[index[lanes[0]]], b[lanes], c[lanes])
        return old
    if rank.max() < _MAX_ROUNDS:
        for round_ in range(int(rank.max()) + 1):
            lanes = order[rank == round_]
            _together(target, index[lanes], lanes, operation, b, c, old)
        return old
    function = _SCALAR[operation]
    for lane in range(n):
        at = index[lane]
        found = target[at]
        old[lane] = found
        target[at] = function(found, b[lane], None if c is None else c[lane])
    return old


_MAX_ROUNDS = 64
_MAX_PLACES = 16


def _swaps(held: Any, expected: np.ndarray, desired: np.ndarray) -> tuple[Any, np.ndarray]:
    """Compare-and-swap of lanes one after another at one place: what it holds then, and what each lane found.

    Most fail, since they come with a value that is gone; those are passed at once.
    """
    found = np.empty_like(expected)
    at = 0
    while at < len(expected):
        equal = expected[at:] == held
        first = int(np.argmax(equal))
        if not equal[first]:
            found[at:] = held
            break
        found[at : at + first + 1] = held
        held = desired[at + first]
        at += first + 1
    return held, found


def _together(  # noqa: PLR0917 - the operands of one instruction
    target: np.ndarray,
    at: np.ndarray,
    lanes: np.ndarray,
    operation: str,
    b: np.ndarray,
    c: np.ndarray | None,
    old: np.ndarray,
) -> None:
    """One round: no two of these lanes share an address."""
    found, operand = target[at], b[lanes]
    old[lanes] = found
    vectorised: dict[str, Callable[[], Any]] = {
        "min": lambda: np.minimum(found, operand),
        "max": lambda: np.maximum(found, operand),
        "cas": lambda: np.where(found == operand, c[lanes], found),  # type: ignore[index] # cas has it
        "inc": lambda: np.where(found >= operand, found.dtype.type(0), found + found.dtype.type(1)),
        "dec": lambda: np.where((found == 0) | (found > operand), operand, found - found.dtype.type(1)),
    }
    target[at] = (
        vectorised[operation]() if operation in vectorised else _SCALAR[operation](found, operand, None)
    )


def _packed(old: np.ndarray, b: np.ndarray, kind: str) -> np.ndarray:
    narrow = floating.float_to_half if kind == "f16" else floating.float_to_bfloat
    sums = [narrow(x + y) for x, y in zip(floating.halves(old, kind), floating.halves(b, kind), strict=True)]
    both: np.ndarray = floating.join(sums[0], sums[1])
    return both
