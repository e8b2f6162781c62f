"""Shuffles, votes, matches and warp reductions against the PTX ISA's pseudocode, lane by lane."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

WARPS = 4
LANES = 32 * WARPS
FULL = 0xFFFFFFFF


def words(seed: int, top: int = 1 << 32) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, top, LANES, dtype=np.uint64).astype(np.uint32)


def source_lane(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """The pseudocode of `shfl.sync`: which lane is read, and the predicate."""
    b, limit, segment = b & 31, c & 31, c >> 8 & 31
    highest = (lane & segment) | (limit & ~segment)
    lowest = lane & segment
    if mode == "up":
        j = lane - b
        inside = j >= highest
    elif mode == "down":
        j = lane + b
        inside = j <= highest
    elif mode == "bfly":
        j = lane ^ b
        inside = j <= highest
    else:
        j = lowest | (b & ~segment)
        inside = j <= highest
    return (j if inside else lane), inside


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("width", [32, 16, 8, 4, 1])
@pytest.mark.parametrize("shared", [True, False])
def test_shuffle(lanes: Any, mode: str, width: int, shared: bool) -> None:
    a, b = words(width), words(width + 1, 40)
    given: Any = np.uint32(b[0] % 32) if shared else b
    c = (32 - width) << 8 | (0 if mode == "up" else 31)
    body = f"shfl.sync.{mode}.b32 %d0|%p0, %a0, %a1, {c}, {FULL}; selp.u32 %d1, 1, 0, %p0;"
    found, inside = lanes(body, [("b32", a), ("u32", given)], ["b32", "u32"], lanes=LANES, block=64)
    distance = np.broadcast_to(given, LANES).tolist()
    for i in range(LANES):
        lane, valid = source_lane(mode, i % 32, distance[i], c)
        assert (found[i], inside[i]) == (a[i // 32 * 32 + lane], valid)


HALF = "mov.u32 %t1, %laneid; setp.lt.u32 %p3, %t1, 16; mov.u32 %d0, 99; mov.u32 %d1, 99;"


def test_a_shuffle_of_half_a_warp(lanes: Any) -> None:
    """Lanes that a branch left out neither take part nor are disturbed."""
    a = words(1)
    body = f"{HALF} @!%p3 bra over; shfl.sync.bfly.b32 %d0, %a0, 5, 31, 65535; over:"
    (found, _) = lanes(body, [("b32", a)], ["b32", "u32"], lanes=LANES)
    wanted = [a[i // 32 * 32 + (i % 32 ^ 5)] if i % 32 < 16 else 99 for i in range(LANES)]
    assert found.tolist() == wanted


VOTES: dict[str, Callable[[list[bool]], bool]] = {
    "all": all,
    "any": any,
    "uni": lambda votes: all(votes) or not any(votes),
}


@pytest.mark.parametrize("bound", [0, 1, 3, 6, 7])
def test_votes(lanes: Any, bound: int) -> None:
    a = words(bound, 7)
    body = f"setp.lt.u32 %p0, %a0, {bound}; vote.sync.ballot.b32 %d0, %p0, {FULL}; mov.u32 %d1, 0;"
    for i, mode in enumerate(VOTES):
        body += f"vote.sync.{mode}.pred %p1, %p0, {FULL}; @%p1 or.b32 %d1, %d1, {1 << i};"
    ballot, rest = lanes(body, [("u32", a)], ["u32", "u32"], lanes=LANES, block=64)
    for w in range(WARPS):
        votes = [bool(x < bound) for x in a[32 * w : 32 * w + 32]]
        assert set(ballot[32 * w : 32 * w + 32].tolist()) == {sum(v << i for i, v in enumerate(votes))}
        assert set(rest[32 * w : 32 * w + 32].tolist()) == {
            sum(f(votes) << i for i, f in enumerate(VOTES.values()))
        }


def test_votes_of_half_a_warp(lanes: Any) -> None:
    a = words(5, 2)
    body = (
        f"{HALF} setp.eq.u32 %p0, %a0, 1; @!%p3 bra over;"
        "vote.sync.ballot.b32 %d0, %p0, 65535; activemask.b32 %d1; over:"
    )
    ballot, active = lanes(body, [("u32", a)], ["u32", "u32"], lanes=LANES)
    for i in range(LANES):
        half = a[i // 32 * 32 : i // 32 * 32 + 16].tolist()
        assert ballot[i] == (sum(v << n for n, v in enumerate(half)) if i % 32 < 16 else 99)
        assert active[i] == (65535 if i % 32 < 16 else 99)


@pytest.mark.parametrize("type_", ["b32", "b64"])
@pytest.mark.parametrize("top", [1, 2, 40])
def test_match(lanes: Any, type_: str, top: int) -> None:
    a = words(top, top).astype(f"u{int(type_[1:]) // 8}")
    a[64:96] = 3
    body = (
        f"match.any.sync.{type_} %d0, %a0, {FULL};"
        f"match.all.sync.{type_} %d1|%p0, %a0, {FULL}; selp.u32 %d2, 1, 0, %p0;"
    )
    like, everyone, agree = lanes(body, [(type_, a)], ["b32", "b32", "u32"], lanes=LANES)
    for i in range(LANES):
        warp = a[i // 32 * 32 : i // 32 * 32 + 32]
        assert like[i] == sum(1 << n for n in range(32) if warp[n] == a[i])
        assert (everyone[i], agree[i]) == ((FULL, 1) if (warp == warp[0]).all() else (0, 0))


def signed(x: int) -> int:
    return x - (1 << 32) if x >> 31 else x


REDUCTIONS: dict[str, Callable[[list[int]], int]] = {
    "add.u32": sum,
    "add.s32": sum,
    "min.u32": min,
    "max.u32": max,
    "min.s32": lambda xs: min(xs, key=signed),
    "max.s32": lambda xs: max(xs, key=signed),
    "and.b32": lambda xs: int(np.bitwise_and.reduce(np.array(xs, np.uint32))),
    "or.b32": lambda xs: int(np.bitwise_or.reduce(np.array(xs, np.uint32))),
    "xor.b32": lambda xs: int(np.bitwise_xor.reduce(np.array(xs, np.uint32))),
}


@pytest.mark.parametrize("operation", REDUCTIONS)
def test_redux(lanes: Any, operation: str) -> None:
    """Whole warps, and two halves of a warp that name masks of their own."""
    a = words(3) | np.uint32(0x80) if operation.startswith("and") else words(3)
    body = (
        f"redux.sync.{operation} %d0, %a0, {FULL}; mov.u32 %t1, %laneid; setp.lt.u32 %p0, %t1, 16;"
        f"selp.b32 %t2, 65535, 4294901760, %p0; redux.sync.{operation} %d1, %a0, %t2;"
    )
    whole, half = lanes(body, [("b32", a)], ["b32", "b32"], lanes=LANES)
    function = REDUCTIONS[operation]
    for i in range(LANES):
        warp = a[i // 32 * 32 : i // 32 * 32 + 32].tolist()
        assert whole[i] == function(warp) & FULL
        assert half[i] == function(warp[:16] if i % 32 < 16 else warp[16:]) & FULL


def test_lane_masks_and_indices(lanes: Any) -> None:
    masks = {"eq": lambda n, i: n == i, "lt": lambda n, i: n < i, "le": lambda n, i: n <= i}
    masks |= {"gt": lambda n, i: n > i, "ge": lambda n, i: n >= i}
    body = "".join(f"mov.u32 %d{n}, %lanemask_{name};" for n, name in enumerate(masks))
    body += "mov.u32 %t1, %warpid; mov.u32 %t2, %laneid; mad.lo.u32 %d5, %t1, 100, %t2;"
    *found, index = lanes(body, [("b32", words(0))], ["b32"] * 6, lanes=LANES, block=64)
    for i in range(LANES):
        for values, holds in zip(found, masks.values(), strict=True):
            assert values[i] == sum(1 << n for n in range(32) if holds(n, i % 32))
        assert index[i] == i % 64 // 32 * 100 + i % 32
