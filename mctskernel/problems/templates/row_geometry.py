"""How many threads have a row: the macros of its kernels, for typical sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mctskernel.problems.plain_cuda.body import numbers
from mctskernel.problems.plain_cuda.rules import base_name
from mctskernel.problems.plain_cuda.schedule import Schedule
from mctskernel.problems.templates.row_space import PLACES, Reductions, lines_of, run_of

THREADS_OF_A_DEVICE = 132 * 2048
"""What a reduction to few results should be split over."""


MULTIPROCESSORS, REGISTERS, MOST_RESIDENT = 132, 1 << 16, 2048
"""Of the GPU that sizes are chosen for: multiprocessors, and the registers and threads of one."""

FEW_WAVES = 16
"""With so few blocks that take long, those of the last wave leave many multiprocessors idle."""


MOST_ITEMS, FEW_ITEMS = 64, 16
"""Registers of a thread for elements: at most, and where they leave room for enough threads to hide latency."""

FEW_VECTORS = 1024
"""Where a row has more and leads to one number, blocks of few registers take turns at parts of it."""


RING, HELD, L2_BYTES = 208 << 10, 64 << 10, 50 << 20
"""Bytes of a ring of tiles, of a row that registers of a block hold, and of the L2 cache."""

DIVISORS = tuple(each for each in range(1, MULTIPROCESSORS + 1) if MULTIPROCESSORS % each == 0)


@dataclass(frozen=True)
class Geometry:
    """Macros by what they are for, with their values. A value of 0 leaves one out."""

    lanes: int
    rows: int
    vector: int
    items: int
    parts: int
    registers: int
    """About what a thread needs."""

    stages: int = 0
    """Tiles in a ring."""

    @property
    def resident(self) -> int:
        """Blocks that a multiprocessor has room for."""
        threads = self.lanes * self.rows
        return max(min(REGISTERS // (threads * self.registers), MOST_RESIDENT // threads, 32), 1)

    @property
    def tile(self) -> int:
        """Elements of a row that a block holds at once."""
        return self.lanes * self.vector * self.items


def geometry_of(group: Reductions, schedule: Schedule) -> Geometry:
    """Macros for typical sizes."""
    space, leaves = group.space, max(len(group.leaves), 1)
    rows, (segments, run) = max(schedule.estimate(space.rows), 1), run_of(group.space)
    outer, length = schedule.estimate(segments), schedule.estimate(run)
    if space.strided:
        writes, places = group.is_whole(schedule), any(base_name(each) in PLACES for each in group.reductions)
        return _of_columns(rows, length, leaves, writes=writes, places=places)
    vector = max(16 // max((numbers(node).itemsize for node in group.leaves), default=4), 1)
    count = outer * length
    if (rows < 264 and count >= 1 << 15) or (rows < FEW_WAVES * MULTIPROCESSORS and count > 1 << 17):
        units = outer * -(-length // (256 * 4 * vector))
        slots = 4 * MULTIPROCESSORS
        parts = min(
            range(1, min(units, 2 * slots) + 1), key=lambda each: _idle(rows * each, slots) + each / 1e4
        )
        return Geometry(256, 1, vector, 4, max(parts, 2), 32 + 4 * vector * leaves)
    before = vector - 1 if length % vector else 0  # of a row's first vector
    vectors, most = -(-(length + before) // vector), max((32 if leaves == 1 else 16) // vector, 1)
    if leaves == 1 and vectors > FEW_VECTORS and not group.is_whole(schedule):
        return Geometry(256, 1, vector, 4, 1, 48)
    if vectors <= 32:
        lanes, items = power_of_two(vectors), 1
    else:
        lanes = max(power_of_two(-(-vectors // (most + 1))), 32)
        lanes = lanes if lanes <= 1024 else 512  # in several tiles, of two blocks rather than one
        items = min(-(-vectors // lanes), max(32 // vector, 1) + 1)
    return Geometry(lanes, max(128 // lanes, 1), vector, items, 1, 40 + items * vector * leaves)


def ring_of(group: Reductions, schedule: Schedule) -> Geometry | None:
    """Macros for rows that blocks hold together; None where a block can hold a row, or L2 all of them."""
    space, sizes = group.space, {numbers(node).itemsize for node in group.leaves}
    segments, run = run_of(space)
    if space.strided or len(sizes) != 1 or not group.is_whole(schedule):
        return None
    (size,), leaves = sizes, len(group.leaves)
    rows, outer, vector = max(schedule.estimate(space.rows), 1), schedule.estimate(segments), 16 // max(sizes)
    threads, items = 256, 4
    stages = RING // (threads * items * 16 * leaves)
    of_segment = -(-schedule.estimate(run) // (threads * items * vector))
    tiles, length = outer * of_segment, outer * schedule.estimate(run)
    empty = segments and 8 * length < 7 * tiles * threads * items * vector
    if empty or length * size * leaves <= HELD or rows * length * size * leaves <= L2_BYTES or stages < 4:
        return None
    roomy = [each for each in DIVISORS if 2 * tiles <= each * stages]
    if not roomy:
        return None
    uneven = {each for each in roomy if each > 2 * roomy[0] or tiles % each > 0}
    parts = min(roomy, key=lambda p: (round(_idle(rows, MULTIPROCESSORS // p), 1), p in uneven, p))
    return Geometry(threads, 1, vector, items, parts, 64, stages)


def lines_in_ring(group: Reductions, schedule: Schedule) -> Geometry | None:
    """Macros for rows that are neighbours in long lines, parts of which blocks bring to a ring."""
    lines = lines_of(group.space) if group.space.strided and len(group.leaves) == 1 else ()
    size, threads = numbers(group.leaves[0]).itemsize if lines else 8, 512
    if size > 4 or group.is_whole(schedule):
        return None
    count, length, width = (max(schedule.estimate(each), 1) for each in lines)
    chunks = range(-(-width // (threads * 12)), width // (threads * 7) + 1)  # fewer elements take too long
    idle, chunk = min(((-width % (threads * each)) / width, each) for each in chunks or [1])
    items = -(-width // (threads * chunk))
    few = count * chunk < MULTIPROCESSORS // 2 or not chunks or idle > 1 / 8
    small = count * length * width * size <= L2_BYTES or length < 256
    return None if few or small else Geometry(threads, 1, 1, items, 1, 56, 48 // items)


def neighbours_of(group: Reductions, schedule: Schedule) -> Geometry | None:
    """Macros for rows that are neighbours in long lines, of which threads hold vectors; None for others."""
    lines = lines_of(group.space) if group.space.strided and group.is_whole(schedule) else ()
    kinds, leaves = {numbers(node) for node in group.leaves}, len(group.leaves)
    size = max((kind.itemsize for kind in kinds), default=8)
    if not lines or len(kinds) > 1 or size > 4 or leaves > 2:
        return None
    _, length, width = (max(schedule.estimate(each), 1) for each in lines)
    vector = max(16 // size, 4)
    lanes = min(power_of_two(-(-length * leaves * vector // 32)), 256 // vector)
    items, columns = -(-length // lanes), max(256 // lanes, 8)
    fits = items <= FEW_ITEMS and 8 * width >= 7 * -(-width // (columns * vector)) * columns * vector
    return Geometry(lanes, columns, vector, items, 1, 32 + vector * items * leaves) if fits else None


def _of_columns(rows: int, length: int, leaves: int, *, writes: bool, places: bool) -> Geometry:
    """Macros for neighbouring rows, each of which one or a few threads walk along."""
    lanes, (items, registers) = 1, (4, 32) if places else (16, 64)
    items = min(length, items)
    if writes:
        lanes = min(power_of_two(-(-length // FEW_ITEMS)), 16)
    elif length > MOST_ITEMS and rows < 2 * THREADS_OF_A_DEVICE:
        lanes = min(power_of_two(-(-length // 32)), 16 if rows < THREADS_OF_A_DEVICE // 2 else 4)
    if writes:
        items = min(-(-length // lanes), 32)
        items = -(-items // 8) * 8 if items > 8 else items
        registers = 40 + 3 * items * leaves // (2 if items * leaves <= FEW_ITEMS else 1)
    columns = max((128 if writes else 256) // lanes, 32) if writes or rows > THREADS_OF_A_DEVICE // 2 else 32
    most = -(-length // (lanes * items))
    parts = min(THREADS_OF_A_DEVICE // (rows * lanes), most) if rows * lanes * 4 < THREADS_OF_A_DEVICE else 1
    parts = power_of_two(parts + 1) // 2 if parts > 1 else 1
    if parts > 1 and writes:  # the reduction of parts doesn't
        columns = min(max(power_of_two(rows), 32), 128)
        return Geometry(
            512 // columns, columns, 1, 8, power_of_two(THREADS_OF_A_DEVICE // (rows * 4) + 1) // 2, 32
        )
    return Geometry(lanes, columns, 1, items, parts, registers)


def _idle(blocks: int, slots: int) -> float:
    """The share of time in which places for blocks are empty, if all take equally long."""
    return 1 - blocks / (-(-blocks // slots) * slots)


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least a number."""
    return 1 << max(number - 1, 0).bit_length()


def macros(schedule: Schedule, words: Sequence[str], geometry: Geometry) -> dict[str, str]:
    """Define macros; returns what each is called."""
    values = {
        "THREADS": geometry.lanes,
        "LANES": geometry.lanes,
        "ROWS": geometry.rows,
        "COLUMNS": geometry.rows,
        "VECTOR": geometry.vector,
        "ITEMS": geometry.items,
        "PARTS": geometry.parts,
        "RESIDENT": geometry.resident,
        "BLOCKS": MULTIPROCESSORS,
        "STAGES": geometry.stages,
    }
    words = words if geometry.stages else (*words, "RESIDENT")
    names = {word: schedule.macro(word, values[word]) for word in words}
    block = [names[word] for word in ("THREADS", "LANES", "ROWS", "COLUMNS") if word in names]
    threads = " * ".join(block)
    schedule.require(f"{threads} <= 1024")
    if geometry.stages:
        teams = f" && {names['PARTS']} <= {names['BLOCKS']}" if "PARTS" in names else ""
        schedule.require(f"{threads} <= {448 if teams else 512} && {names['STAGES']} >= 3{teams}")
    if "RESIDENT" in names:
        schedule.require(f"{names['RESIDENT']} >= 1 && {names['RESIDENT']} <= 32")
    schedule.require(f"{names['ITEMS']} >= 1 && {names['ITEMS']} <= {MOST_ITEMS}")
    if "THREADS" in names:
        schedule.require(f"1024 % {names['THREADS']} == 0")
    if "COLUMNS" in names and "VECTOR" in names:
        columns = names["COLUMNS"]
        schedule.require(f"(32 % {columns} == 0 || {columns} % 32 == 0) && {threads} % 32 == 0")
        schedule.require(f"{threads} * {names['VECTOR']} <= 2048")
    if "VECTOR" in names:
        schedule.require(f"{names['VECTOR']} >= 1 && {names['VECTOR']} <= 16 && 16 % {names['VECTOR']} == 0")
    return names
