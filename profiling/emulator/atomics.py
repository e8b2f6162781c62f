"""Atomic operations on many lanes at once, as if one after another by ascending lane; PTX ISA, "atom"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import numpy as np

from mctskernel.profiling.emulator import floating
from mctskernel.profiling.emulator.memory import Buffer, Storage

_OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": lambda old, b, _: old + b,
    "min": lambda old, b, _: np.minimum(old, b),
    "max": lambda old, b, _: np.maximum(old, b),
    "and": lambda old, b, _: old & b,
    "or": lambda old, b, _: old | b,
    "xor": lambda old, b, _: old ^ b,
    "exch": lambda _, b, __: b,
    "cas": lambda old, b, c: np.where(old == b, c, old),
    "inc": lambda old, b, _: np.where(old >= b, old.dtype.type(0), old + old.dtype.type(1)),
    "dec": lambda old, b, _: np.where((old == 0) | (old > b), b, old - old.dtype.type(1)),
    "f16x2.add": lambda old, b, _: _packed(old, b, "f16"),
    "bf16x2.add": lambda old, b, _: _packed(old, b, "bf16"),
    "f16.add": lambda old, b, _: (old.view("f2") + b.view("f2")).view("u2"),
    "bf16.add": lambda old, b, _: floating.float_to_bfloat(
        floating.bfloat_to_float(old) + floating.bfloat_to_float(b)
    ),
}
"""What a place holds then: functions of what it held and of the operands, for scalars and for arrays."""

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
    function = _OPERATIONS[operation]
    if rank.max() < _MAX_ROUNDS:
        # No two lanes of a round share an address.
        for round_ in range(int(rank.max()) + 1):
            lanes = order[rank == round_]
            old[lanes] = target[index[lanes]]
            target[index[lanes]] = function(old[lanes], b[lanes], None if c is None else c[lanes])
        return old
    for lane in range(n):
        at = index[lane]
        found = target[at]
        old[lane] = found
        target[at] = function(found, b[lane], None if c is None else c[lane])
    return old


_MAX_ROUNDS = 64
_MAX_PLACES = 16


def _swaps(held: Any, expected: np.ndarray, desired: np.ndarray) -> tuple[Any, np.ndarray]:
    """Compare-and-swap of lanes in turn at one place: what it holds then, and what each lane found."""
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


def _packed(old: np.ndarray, b: np.ndarray, kind: str) -> np.ndarray:
    narrow = floating.float_to_half if kind == "f16" else floating.float_to_bfloat
    sums = [narrow(x + y) for x, y in zip(floating.halves(old, kind), floating.halves(b, kind), strict=True)]
    both: np.ndarray = floating.join(sums[0], sums[1])
    return both


_MOST = 64
"""Places that one atomic instruction adds to beyond which it counts something else than pieces of work."""


class Turns:
    """Atomic operations of a block as if all `blocks` blocks executed them together, as they draw from a work queue."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._held: dict[tuple[str, int], tuple[np.ndarray, int, np.generic]] = {}

    def restore(self) -> None:
        """Counters hold again what they held."""
        for target, index, held in self._held.values():
            target[index] = held
        self._held.clear()

    def apply(  # noqa: PLR0917 - what an atomic operation is made of
        self,
        storage: Storage,
        target: np.ndarray,
        index: np.ndarray,
        operation: str,
        b: np.ndarray | None,
        c: np.ndarray | None,
    ) -> np.ndarray:
        """Update `target[index]` lane by lane, for the other blocks too; what each lane found there."""
        if b is None or not b.any() or not _is_counter(storage, target, operation):
            return apply_atomic(target, index, operation, b, c)
        places = np.unique(index).tolist()
        if len(places) > _MOST:
            return apply_atomic(target, index, operation, b, c)
        for at in places:
            self._held.setdefault((storage.name, at * target.dtype.itemsize), (target, at, target[at]))
        old = apply_atomic(target, index, operation, b, c)
        for at in places:
            _advance(target, at, operation, b[index == at], self._blocks - 1)
        return old


def _is_counter(storage: Storage, target: np.ndarray, operation: str) -> TypeGuard[Buffer]:
    return isinstance(storage, Buffer) and operation in ("add", "inc") and target.dtype.kind in "iu"


def _advance(target: np.ndarray, at: int, operation: str, b: np.ndarray, times: int) -> None:
    """Draw from a counter so many times as lanes with the operands `b` do."""
    if operation == "add":
        end = int(target[at]) + times * int(b.sum(dtype=np.int64))
    else:
        end = (int(target[at]) + times * len(b)) % (int(b[0]) + 1)
    target[at] = np.uint64(end & (2**64 - 1)).astype(target.dtype)
