"""Messages between the module evaluator and its processes.

Tensors are in memory that both sides map. What a candidate's worker answers is a claim: the evaluator shows it to
the user and uses it for nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from mctskernel.core.dtypes import DTYPE_BYTES, DType, numpy_dtype
from mctskernel.core.task import Array
from mctskernel.profiling.processes.channel import Ready
from mctskernel.profiling.processes.shared_window import ALIGNMENT

ELEMENT_BYTES = {**DTYPE_BYTES, "complex64": 8, "complex128": 16}
"""Size in bytes of each element type that tensors may have here."""


class TensorSpec(msgspec.Struct, frozen=True):
    """A tensor's type and shape; its elements are in shared memory."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return ELEMENT_BYTES[self.dtype] * int(np.prod(self.shape, dtype=np.int64))

    @property
    def numpy(self) -> DType:
        return numpy_dtype(self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Structure(msgspec.Struct, frozen=True):
    """Nested lists, tuples and dictionaries as a Python literal, with `...` for each of the tensors, in order."""

    text: str = "[]"
    tensors: tuple[TensorSpec, ...] = ()

    def __str__(self) -> str:
        first, *others = self.text.split("...")
        return first + "".join(f"{spec}{text}" for spec, text in zip(self.tensors, others, strict=False))


def places(tensors: Sequence[TensorSpec]) -> tuple[tuple[int, ...], int]:
    """Where in shared memory each tensor begins, and the memory's size, in bytes."""
    offsets, end = [], 0
    for tensor in tensors:
        offsets.append(end)
        end += -(-max(tensor.nbytes, 1) // ALIGNMENT) * ALIGNMENT
    return tuple(offsets), max(end, ALIGNMENT)


def arrays(memory: Array, tensors: Sequence[TensorSpec]) -> tuple[Array, ...]:
    offsets, _ = places(tensors)
    return tuple(
        memory[offset : offset + tensor.nbytes].view(tensor.numpy).reshape(tensor.shape)
        for offset, tensor in zip(offsets, tensors, strict=True)
    )


class Stored(msgspec.Struct, frozen=True):
    """A value whose tensors are in the process's `SharedWindow`, from an offset on."""

    structure: Structure
    offset: int

    @property
    def nbytes(self) -> int:
        return places(self.structure.tensors)[1]


class Load(msgspec.Struct, tag=True, frozen=True):
    """The first request: map the memories, confine yourself, run a source text as a module and find its class.

    Answered by Ready or Failed. `inputs` and `outputs` are those of every call. `sizes` are the bytes of the memories,
    which the process inherits behind its `SharedWindow`: one for the outputs of all calls, two for inputs, which calls
    use alternately. The reference has none.
    """

    device: str
    memory_bytes: int
    source: str
    class_name: str
    inputs: Structure = Structure()
    outputs: Structure = Structure()
    sizes: tuple[int, ...] = ()


class Create(msgspec.Struct, tag=True, frozen=True):
    """For the reference: make a model, its weights `from_seed` alone or not. Answered by Weights or Failed."""

    seed: int
    from_seed: bool


class Construct(msgspec.Struct, tag=True, frozen=True):
    """Make a model of `arguments` under a seed, with the reference's weights. Answered by Constructed or Failed."""

    seed: int
    arguments: Stored
    weights: Stored


class Prepare(msgspec.Struct, tag=True, frozen=True):
    """Get ready for a call whose inputs are still hidden. Answered by Ready."""


class Run(msgspec.Struct, tag=True, frozen=True):
    """Call the model on one of two memories, or echo the last outputs (a round trip). Answered by Done or Failed."""

    memory: int
    is_echo: bool = False


class Reread(msgspec.Struct, tag=True, frozen=True):
    """Write the outputs of the call before the last once more, as they are now. Answered as Run is."""


class Draw(msgspec.Struct, tag=True, frozen=True):
    """For the reference: draw inputs, `widened` where it can, and their outputs. Answered by Drawn or Failed."""

    seed: int
    widened: bool = False


class Constructed(msgspec.Struct, tag=True, frozen=True):
    """A model was made. `loaded` says whether all the weights fit it by name and shape."""

    loaded: bool


class Weights(msgspec.Struct, tag=True, frozen=True):
    """The reference's model was made of these arguments, and has these weights."""

    arguments: Stored
    weights: Stored


class Done(msgspec.Struct, tag=True, frozen=True):
    """The outputs are written; `given` is their structure."""

    given: Structure


class Drawn(msgspec.Struct, tag=True, frozen=True):
    """Fresh inputs, float64 and plain outputs; `changed` says that the reference changed its inputs."""

    inputs: Stored
    expected: Stored
    plain: Stored
    changed: bool


class Failed(msgspec.Struct, tag=True, frozen=True):
    """An exception, as a sentence, with its traceback."""

    message: str
    log: str = ""


class Fork(msgspec.Struct, tag=True, frozen=True):
    """Start a process and session, given descriptors: its socket, lifeline, standard error and memories."""

    is_reference: bool
    scratch: str


class Wait(msgspec.Struct, tag=True, frozen=True):
    """For the fork server: how did a process end? `reap` waits for that and frees its number."""

    pid: int
    reap: bool = False


class Forked(msgspec.Struct, frozen=True):
    """A forked process, and how it ended, `exited with status 3`; empty while it runs."""

    pid: int
    how: str = ""


Request = Load | Create | Construct | Prepare | Run | Reread | Draw
Reply = Ready | Constructed | Weights | Done | Drawn | Failed

REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
FORK_REQUESTS: msgspec.msgpack.Decoder[Fork | Wait] = msgspec.msgpack.Decoder(Fork | Wait)
FORK_REPLIES: msgspec.msgpack.Decoder[Forked] = msgspec.msgpack.Decoder(Forked)
