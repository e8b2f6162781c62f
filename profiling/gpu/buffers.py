"""A candidate's buffers and machine code on the GPU: guarded, and reset to the same contents before every run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mctskernel.core.launch_plan import ResolvedLaunch, ResolvedPlan
from mctskernel.core.task import Array
from mctskernel.profiling.gpu.cuda_driver import (
    CudaError,
    DeviceBuffer,
    LoadedModule,
    PreparedLaunch,
    copy_on_device,
    fill_words,
    read_rows,
)
from mctskernel.profiling.gpu.device_kernels import Segment
from mctskernel.profiling.gpu.drawing import Drawer
from mctskernel.profiling.gpu.protocol import Code, Packed, Plan, Read, ScratchPlace, TensorPlace
from mctskernel.profiling.gpu.tensor_maps import encoded
from mctskernel.profiling.processes.shared_window import SharedWindow

if TYPE_CHECKING:
    from mctskernel.profiling.candidate import Candidate

GUARD_BYTES = 1 << 16  # the smallest guard on either side of a buffer

PAGE_BYTES = 2 << 20
"""The driver maps whole pages. A buffer's last guard reaches to the end of its page, so that every byte is checked."""

GUARD_WORD = 0xA5A5A5A5
SCRATCH_POISON = 0xCBCBCBCB  # the contents of a scratch buffer before its kernel has written it

_BYTES = np.dtype(np.uint8)

FEWEST_SCRATCH_BYTES, MOST_SCRATCH_BYTES = 1 << 24, 1 << 30
"""Of a scratch buffer, for which so much is kept at least, or nothing above."""


class ScratchMemory:
    """Memory for scratch buffers, kept from one kernel to the next. Nobody may write to what is `unused`.

    A kernel is bound dozens of times for an evaluation, and the driver may take a tenth of a second to map memory while
    another process opens the GPU.
    """

    def __init__(self) -> None:
        self._kept: list[DeviceBuffer] = []
        self._taken: list[int] = []

    @property
    def unused(self) -> list[Segment]:
        """Every byte that nobody has taken."""
        pairs = zip(self._kept, (*self._taken, *(0 for _ in self._kept)), strict=False)
        return [Segment(each.address + start, each.nbytes - start) for each, start in pairs]

    @contextmanager
    def buffers(self, places: Iterable[ScratchPlace]) -> Iterator[dict[str, GuardedBuffer]]:
        """Buffers by name, overwritten at the end, beside those that others have. Raises CudaError."""
        before, found = len(self._taken), dict[str, GuardedBuffer]()
        try:
            for each in places:
                found[each.name] = GuardedBuffer(
                    each.name, each.nbytes, self._take(guarded_bytes(each.nbytes))
                )
            yield found
        finally:
            while len(self._taken) > before:
                nbytes, kept = self._taken.pop(), self._kept[len(self._taken)]
                with suppress(CudaError):  # the context may be lost
                    kept.part(0, nbytes).fill(GUARD_WORD)
                if nbytes > MOST_SCRATCH_BYTES:
                    self._kept.pop(len(self._taken)).free()

    def _take(self, nbytes: int) -> DeviceBuffer:
        place = len(self._taken)
        if place < len(self._kept) and self._kept[place].nbytes < nbytes:
            self._kept.pop(place).free()
        if place == len(self._kept) or self._kept[place].nbytes < nbytes:
            self._kept.insert(place, DeviceBuffer(max(nbytes, FEWEST_SCRATCH_BYTES)))
        self._taken.append(nbytes)
        return self._kept[place].part(0, nbytes)


class GuardedBuffer:
    """A buffer between guards that show writes beyond its ends; the one behind begins with the next 32-bit word."""

    def __init__(self, name: str, nbytes: int, whole: DeviceBuffer | None = None) -> None:
        self.name = name
        self.nbytes = nbytes
        self._words = -(-nbytes // 4)
        self._whole = whole or DeviceBuffer(guarded_bytes(nbytes))
        self.address = self._whole.address + GUARD_BYTES
        self._whole.fill(GUARD_WORD)

    @property
    def contents(self) -> Segment:
        """Its own bytes."""
        return Segment(self.address, self.nbytes)

    @property
    def guards(self) -> tuple[Segment, Segment]:
        """The bytes before and behind."""
        end, behind = self._whole.address + self._whole.nbytes, self.address + 4 * self._words
        return Segment(self._whole.address, GUARD_BYTES), Segment(behind, end - behind)

    def fill(self, word: int) -> None:
        """Fill with a 32-bit pattern, in stream order."""
        fill_words(self.address, word, self._words)

    def write(self, array: Array) -> None:
        """Copy bytes into it."""
        self._whole.write(array, GUARD_BYTES)

    def overrun(self) -> str:
        """A sentence about a guard that was written, if one was; restores the guards. Waits for earlier launches."""
        before = self._whole.read(_BYTES, GUARD_BYTES)
        start = GUARD_BYTES + 4 * self._words
        behind = self._whole.read(_BYTES, self._whole.nbytes - start, start)
        for where, distances in (
            ("before", GUARD_BYTES - _written(before)),
            ("behind", 1 + _written(behind)),
        ):
            if len(distances):
                fill_words(self._whole.address, GUARD_WORD, GUARD_BYTES // 4)
                fill_words(self._whole.address + start, GUARD_WORD, (self._whole.nbytes - start) // 4)
                return f"it writes {distances.min()} bytes {where} the buffer '{self.name}' of {self.nbytes} bytes."
        return ""


def guarded_bytes(nbytes: int) -> int:
    """The size of a buffer of so many bytes with its guards."""
    return -(-(2 * GUARD_BYTES + 4 * -(-nbytes // 4)) // PAGE_BYTES) * PAGE_BYTES


def _written(guard: np.ndarray) -> np.ndarray:
    return np.flatnonzero(guard != GUARD_WORD & 0xFF)


@dataclass(frozen=True)
class Tensor:
    """A tensor of an arena, and its contents before a run: an input's bytes, by variant, or a pattern."""

    buffer: GuardedBuffer
    pristine: Sequence[GuardedBuffer]
    poison: int
    output: bool

    def restore(self, variant: int) -> None:
        """Reset its contents, in stream order."""
        if self.pristine:
            copy_on_device(self.buffer.address, self.pristine[variant].address, self.buffer.nbytes)
        else:
            self.buffer.fill(self.poison)


@dataclass(frozen=True)
class Arena:
    """The tensors at one shape, kept on the GPU until the process ends."""

    tensors: Mapping[str, Tensor]

    @property
    def variants(self) -> int:
        """How many variants of its inputs there are."""
        return max((len(tensor.pristine) for tensor in self.tensors.values()), default=0) or 1

    def restore(self, variant: int = 0) -> None:
        """Inputs fresh and outputs poisoned, in stream order."""
        for tensor in self.tensors.values():
            tensor.restore(variant)

    @property
    def outputs(self) -> list[Segment]:
        """The bytes that a run should write."""
        return [each.buffer.contents for each in self.tensors.values() if each.output]

    @property
    def inputs(self) -> list[Segment]:
        """The bytes that a run must not change."""
        return [each.buffer.contents for each in self.tensors.values() if not each.output]

    def fresh_inputs(self, variant: int) -> list[Segment]:
        """The contents of `inputs` before a run."""
        return [
            each.pristine[variant].contents
            for each in self.tensors.values()
            if each.pristine and not each.output
        ]

    @property
    def guards(self) -> list[Segment]:
        """The guards around the tensors."""
        return [guard for each in self.tensors.values() for guard in each.buffer.guards]

    @property
    def kept(self) -> list[Segment]:
        """The copies that inputs are restored from, and their guards."""
        return [
            segment
            for tensor in self.tensors.values()
            for each in tensor.pristine
            for segment in (each.contents, *each.guards)
        ]

    @property
    def everything(self) -> list[Segment]:
        """Every byte."""
        return [*self.inputs, *self.outputs, *self.guards, *self.kept]

    def overrun(self) -> str:
        """A sentence about the first buffer that was written beyond its ends."""
        return next((found for each in self.tensors.values() if (found := each.buffer.overrun())), "")

    def fetch(self, read: Read, window: SharedWindow) -> None:
        """Copy some bytes of a tensor to the window. Waits for earlier launches."""
        buffer = self.tensors[read.tensor].buffer
        if read.start < 0 or read.start + (read.rows - 1) * read.pitch + read.width > buffer.nbytes:
            raise ValueError(f"'{read.tensor}' has no such bytes: {read}.")
        target = window.bytes_at(read.offset, read.rows * read.width)
        read_rows(target, buffer.address + read.start, read.rows, read.width, read.pitch)


def place(tensors: Iterable[TensorPlace], window: SharedWindow, draw: Drawer) -> Arena:
    """Put tensors on the GPU, or draw them there. Raises CudaError when its memory is full."""
    placed: dict[str, Tensor] = {}
    for each in tensors:
        pristine = [GuardedBuffer(each.name, each.nbytes) for _ in (*each.offsets, *each.drawings)]
        if each.drawings:
            for buffer, drawing in zip(pristine, each.drawings, strict=True):
                draw(drawing, buffer.address, each.nbytes)
        else:
            for buffer, offset in zip(pristine, each.offsets, strict=True):
                buffer.write(window.bytes_at(offset, each.nbytes))
        placed[each.name] = Tensor(GuardedBuffer(each.name, each.nbytes), pristine, each.poison, each.output)
    arena = Arena(placed)
    arena.restore()
    return arena


@dataclass(frozen=True)
class Variable:
    """A `__device__` or `__constant__` variable, and its contents when its module was loaded."""

    address: int
    pristine: DeviceBuffer

    def restore(self) -> None:
        """Reset its contents, in stream order."""
        copy_on_device(self.address, self.pristine.address, self.pristine.nbytes)


class LoadedKernel:
    """The modules of one kernel. Raises CudaError when the GPU can't load them."""

    def __init__(self, codes: Sequence[Code]) -> None:
        self.modules: list[LoadedModule] = []
        self.variables: list[Variable] = []
        self.local_bytes = 0
        """The most local memory of a thread of any of its kernels."""
        for code in codes:
            module = LoadedModule(code.cubin)
            self.modules.append(module)
            found = (_variable(module, name) for name in code.variables)
            self.variables += [variable for variable in found if variable is not None]
            self.local_bytes = max([self.local_bytes, *map(module.local_bytes, code.entries)])

    @property
    def kept(self) -> list[Segment]:
        """The copies that its variables are restored from."""
        return [Segment(each.pristine.address, each.pristine.nbytes) for each in self.variables]

    def max_threads(self, codes: Sequence[Code]) -> dict[str, int]:
        """The most threads of a block of each kernel, by its registers and launch bounds."""
        return {
            entry: module.max_threads(entry)
            for module, code in zip(self.modules, codes, strict=True)
            for entry in code.entries
        }

    def unload(self) -> None:
        """Free everything."""
        for variable in self.variables:
            variable.pristine.free()
        for module in self.modules:
            module.unload()


@dataclass(frozen=True)
class BoundPlan:
    """A plan with addresses, ready to run on an arena."""

    arena: Arena
    kernel: LoadedKernel
    launches: Sequence[PreparedLaunch]
    scratch: Sequence[GuardedBuffer]
    zeroed: Sequence[GuardedBuffer]
    memory: ScratchMemory

    def restore(self, variant: int = 0) -> None:
        """Reset inputs, outputs, scratch and variables, in stream order."""
        self.arena.restore(variant)
        self.restore_own()

    def restore_own(self) -> None:
        """Reset scratch and variables, in stream order."""
        self.restore_scratch()
        for variable in self.kernel.variables:
            variable.restore()

    def restore_scratch(self) -> None:
        """Reset scratch, in stream order."""
        for buffer in self.scratch:
            buffer.fill(SCRATCH_POISON)

    def run(self) -> None:
        """Run once, in stream order."""
        for buffer in self.zeroed:
            buffer.fill(0)
        for launch in self.launches:
            launch()

    @property
    def guards(self) -> list[Segment]:
        """The guards around the buffers that it may write, and scratch memory that nobody has."""
        guards = (guard for each in self.scratch for guard in each.guards)
        return [*self.arena.guards, *guards, *self.memory.unused]

    def overrun(self) -> str:
        """A sentence about the first buffer that was written beyond its ends."""
        return self.arena.overrun() or next((found for each in self.scratch if (found := each.overrun())), "")


@contextmanager
def bound(plan: Plan, arena: Arena, kernel: LoadedKernel, memory: ScratchMemory) -> Iterator[BoundPlan]:
    """Bind a plan, with scratch buffers that are given back at the end."""
    with memory.buffers(plan.scratch) as scratch:
        buffers = {**{name: tensor.buffer for name, tensor in arena.tensors.items()}, **scratch}
        named = {name: buffer.address.to_bytes(8, "little") for name, buffer in buffers.items()}
        for each in plan.tensor_maps:
            buffer = buffers[each.tensor]
            if each.nbytes > buffer.nbytes:
                raise ValueError(f"The tensor map '{each.name}' reaches beyond '{each.tensor}'.")
            named[each.name] = encoded(each, buffer.address)
        launches = [
            _prepared(
                planned.launch,
                kernel.modules[planned.code],
                planned.entry,
                [each.data if isinstance(each, Packed) else named[each] for each in planned.arguments],
            )
            for planned in plan.launches
        ]
        zeroed = [scratch[each.name] for each in plan.scratch if each.zero]
        yield BoundPlan(arena, kernel, launches, list(scratch.values()), zeroed, memory)


def prepared(
    candidate: Candidate, plan: ResolvedPlan, modules: Sequence[LoadedModule], addresses: Mapping[str, int]
) -> list[PreparedLaunch]:
    """The launches of a candidate's plan, given its machine code and where its buffers are. Raises CudaError."""
    maps = {each.name: encoded(each, addresses[each.tensor]) for each in plan.tensor_maps}
    return [
        _prepared(
            launch,
            modules[candidate.index_of(launch)],
            candidate.entry_of(launch),
            candidate.arguments(launch, {**addresses, **maps}),
        )
        for launch in plan.launches
    ]


def _prepared(
    launch: ResolvedLaunch, module: LoadedModule, entry: str, arguments: Sequence[bytes]
) -> PreparedLaunch:
    return PreparedLaunch(
        module,
        entry,
        grid=launch.grid,
        block=launch.block,
        shared_bytes=launch.shared_bytes,
        arguments=arguments,
        cluster=launch.cluster,
        programmatic=launch.programmatic,
    )


def _variable(module: LoadedModule, name: str) -> Variable | None:
    """A variable of a module; None for an unused one, which the machine code doesn't have."""
    try:
        address, nbytes = module.variable(name)
    except CudaError as error:
        if error.name == "CUDA_ERROR_NOT_FOUND":
            return None
        raise
    pristine = DeviceBuffer(nbytes)
    copy_on_device(pristine.address, address, nbytes)
    return Variable(address, pristine)
