"""How a warp's addresses become sectors and shared-memory wavefronts."""

from __future__ import annotations

import numpy as np

SECTOR_SHIFT = 5
LINE_SHIFT = 7
_BANKS = 32
_ABSENT = -1


def sectors_by_warp(addresses: np.ndarray) -> np.ndarray:
    """Sector numbers that each request touches, warp after warp, ascending within a warp.

    `addresses` is (warps, 32) in bytes, negative for inactive lanes; an aligned access never straddles sectors.
    """
    table = np.sort(addresses >> SECTOR_SHIFT, axis=1)
    fresh = np.empty(table.shape, bool)
    np.not_equal(table[:, 1:], table[:, :-1], out=fresh[:, 1:])
    fresh[:, 0] = True
    if table[:, 0].min() < 0:
        fresh &= table >= 0
    return table[fresh]


def lines(addresses: np.ndarray) -> int:
    """Lines of 128 bytes that the requests touch, each request's counted by itself.

    `addresses` is (warps, 32) in bytes, negative for inactive lanes; an aligned access never straddles lines.
    """
    table = np.sort(addresses >> LINE_SHIFT, axis=1)
    fresh = np.empty(table.shape, bool)
    np.not_equal(table[:, 1:], table[:, :-1], out=fresh[:, 1:])
    fresh[:, 0] = True
    return int(np.count_nonzero(fresh & (table >= 0)))


def wavefronts(addresses: np.ndarray, size: int) -> tuple[int, int]:
    """Shared-memory wavefronts of the requests, and how many there would be without bank conflicts.

    Accesses of up to 8 bytes are served by warp, 16 bytes by half warp, each in as many wavefronts as the busiest bank
    has distinct words: lanes that read the same word share it. `addresses` is (warps, 32), negative for inactive lanes.
    """
    words = max(size // 4, 1)
    parts = addresses.reshape(-1, 16) if words > 2 else addresses
    present = (parts >= 0).any(axis=1)
    if not present.all():
        parts = parts[present]
    if not len(parts):
        return 0, 0
    table = parts >> 2
    if words > 1:
        table = np.where(parts[:, :, None] < 0, _ABSENT, table[:, :, None] + np.arange(words)).reshape(
            len(parts), -1
        )
    table = np.sort(table, axis=1)
    fresh = np.empty(table.shape, bool)
    np.not_equal(table[:, 1:], table[:, :-1], out=fresh[:, 1:])
    fresh[:, 0] = True
    fresh &= table >= 0
    row = np.broadcast_to(np.arange(len(table))[:, None] * _BANKS, table.shape)[fresh]
    degree = np.bincount(row + (table[fresh] & (_BANKS - 1)), minlength=len(table) * _BANKS)
    return int(degree.reshape(-1, _BANKS).max(axis=1).sum()), int((-(-fresh.sum(axis=1) // _BANKS)).sum())


def same_address_lanes(addresses: np.ndarray) -> int:
    """Sum over requests of the largest number of lanes that share one address (how atomics serialise)."""
    table = np.sort(addresses, axis=1)
    total = 0
    for row in table:
        active = row[row >= 0]
        if len(active):
            total += int(np.unique(active, return_counts=True)[1].max())
    return total
