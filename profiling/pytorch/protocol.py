"""Messages between the module evaluator and its processes.

One packet on a socket is one message; file descriptors travel beside it. What a candidate's worker answers is a
claim: the evaluator shows it to the user and uses it for nothing else.
"""

from __future__ import annotations

import array
import enum
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
import numpy as np

from mctskernel.core.documents import UNDECODABLE
from mctskernel.core.dtypes import DTYPE_BYTES, DType, numpy_dtype
from mctskernel.core.task import Array
from mctskernel.profiling.processes.channel import Message, ProtocolError

MAX_PACKET_BYTES = 128 << 10
MAX_DESCRIPTORS = 4
ALIGNMENT = 4096

ELEMENT_BYTES = {**DTYPE_BYTES, "bool": 1, "complex64": 8, "complex128": 16}
"""Size in bytes of each element type that tensors may have here."""


class TensorSpec(msgspec.Struct, tag="tensor", frozen=True):
    """A tensor's type and shape; its elements are in shared memory."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The size of its elements, densely packed."""
        return ELEMENT_BYTES[self.dtype] * int(np.prod(self.shape, dtype=np.int64))

    @property
    def numpy(self) -> DType:
        """The type of its elements."""
        return numpy_dtype(self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Constant(msgspec.Struct, tag="constant", frozen=True):
    """A value of plain Python."""

    value: bool | int | float | str | None

    def __str__(self) -> str:
        return repr(self.value)


class ListSpec(msgspec.Struct, tag="list", frozen=True):
    """A list or a tuple."""

    kind: Literal["list", "tuple"]
    items: tuple[Structure, ...]

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(map(str, self.items))})"


class DictSpec(msgspec.Struct, tag="dict", frozen=True):
    """A dictionary with strings for keys, in its order."""

    keys: tuple[str, ...]
    items: tuple[Structure, ...]

    def __str__(self) -> str:
        return "{" + ", ".join(f"{k}: {v}" for k, v in zip(self.keys, self.items, strict=False)) + "}"


Structure = TensorSpec | Constant | ListSpec | DictSpec


def tensor_specs(structure: Structure) -> Iterator[TensorSpec]:
    """The tensors of a structure, in order."""
    if isinstance(structure, TensorSpec):
        yield structure
    elif isinstance(structure, ListSpec | DictSpec):
        for item in structure.items:
            yield from tensor_specs(item)


def places(tensors: Sequence[TensorSpec]) -> tuple[tuple[int, ...], int]:
    """Where in a window of shared memory each tensor begins, and the window's size, in bytes."""
    offsets, end = [], 0
    for tensor in tensors:
        offsets.append(end)
        end += -(-max(tensor.nbytes, 1) // ALIGNMENT) * ALIGNMENT
    return tuple(offsets), max(end, ALIGNMENT)


def arrays(window: Array, tensors: Sequence[TensorSpec]) -> tuple[Array, ...]:
    """Views of the tensors in a window of bytes."""
    offsets, _ = places(tensors)
    return tuple(
        window[offset : offset + tensor.nbytes].view(tensor.numpy).reshape(tensor.shape)
        for offset, tensor in zip(offsets, tensors, strict=True)
    )


class Attach(msgspec.Struct, tag=True, frozen=True):
    """The first request: confine yourself and map memory. Answered by Ready or Failed.

    Beside it: memory for the outputs of all calls, and on a GPU two memories for inputs, which calls use alternately;
    `sizes` are their bytes there.
    """

    device: str
    memory_bytes: int
    sizes: tuple[int, ...] = ()


class Load(msgspec.Struct, tag=True, frozen=True):
    """Run a source text as a module and find its class. Answered by Ready or Failed."""

    source: str
    class_name: str


class Construct(msgspec.Struct, tag=True, frozen=True):
    """Make a model of `arguments` under a seed, with the reference's weights. Beside it: a window of each.

    Answered by Constructed or Failed. The reference gets neither and answers with Weights; `from_seed` asks it for
    weights that follow from the seed alone.
    """

    seed: int
    arguments: Structure
    weights: Structure
    from_seed: bool


class Prepare(msgspec.Struct, tag=True, frozen=True):
    """Get ready for a call whose inputs are still hidden. Answered by Ready."""


class Run(msgspec.Struct, tag=True, frozen=True):
    """Call the model once. Beside it on a CPU: a window of inputs. Answered by Done or Failed.

    `buffer` says on a GPU which of the two memories holds the inputs.
    """

    inputs: Structure
    outputs: Structure
    buffer: int = 0


class Reread(msgspec.Struct, tag=True, frozen=True):
    """Write the outputs of the call before the last once more, as they are now. Answered as Run is."""

    outputs: Structure


class Draw(msgspec.Struct, tag=True, frozen=True):
    """For the reference: draw inputs and compute their outputs. Answered by Drawn or Failed."""

    seed: int


class Ready(msgspec.Struct, tag=True, frozen=True):
    """Done; there is nothing to say."""


class Constructed(msgspec.Struct, tag=True, frozen=True):
    """A model was made. `loaded` says whether all the weights fit it by name and shape."""

    loaded: bool


class Weights(msgspec.Struct, tag=True, frozen=True):
    """The reference's model was made. Beside it: a window of its arguments, one of its weights."""

    arguments: Structure
    weights: Structure


class Done(msgspec.Struct, tag=True, frozen=True):
    """The outputs are written; `given` is their structure."""

    given: Structure


class Drawn(msgspec.Struct, tag=True, frozen=True):
    """Fresh inputs. Beside it windows of the inputs, of the outputs in 64-bit floats, and of the plain outputs.

    `changed` says that the reference changed its inputs in place.
    """

    inputs: Structure
    expected: Structure
    plain: Structure
    changed: bool


class Failed(msgspec.Struct, tag=True, frozen=True):
    """An exception, as a sentence, with its traceback."""

    message: str
    log: str = ""


class Role(enum.StrEnum):
    """What a forked process does."""

    WORKER = "worker"
    REFERENCE = "reference"


class Fork(msgspec.Struct, tag=True, frozen=True):
    """For the fork server: start a process. Beside it: its socket, lifeline and standard error. Answered by Forked."""

    role: Role
    scratch: str


class Wait(msgspec.Struct, tag=True, frozen=True):
    """For the fork server: how did a process end? Answered by Ended. `reap` frees its number."""

    pid: int
    reap: bool = False


class Forked(msgspec.Struct, tag=True, frozen=True):
    """A process was started, the leader of a session of its own."""

    pid: int


class Ended(msgspec.Struct, tag=True, frozen=True):
    """How a process ended, `exited with status 3`; empty while it runs."""

    how: str


Request = Attach | Load | Construct | Prepare | Run | Reread | Draw
Reply = Ready | Constructed | Weights | Done | Drawn | Failed

REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
FORK_REQUESTS: msgspec.msgpack.Decoder[Fork | Wait] = msgspec.msgpack.Decoder(Fork | Wait)
FORK_REPLIES: msgspec.msgpack.Decoder[Forked | Ended] = msgspec.msgpack.Decoder(Forked | Ended)


def send(connection: socket.socket, message: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message with its descriptors. Raises OSError when the other side is gone or the message too large."""
    socket.send_fds(connection, [msgspec.msgpack.encode(message)], descriptors)


def receive(
    connection: socket.socket, decoder: msgspec.msgpack.Decoder[Message]
) -> tuple[Message, tuple[int, ...]] | None:
    """The next message and its descriptors, which are ours to close; None when the other side is gone.

    Raises ProtocolError for anything else, and TimeoutError as the socket does.
    """
    size = MAX_DESCRIPTORS * array.array("i").itemsize
    try:
        packet, ancillary, flags, _ = connection.recvmsg(MAX_PACKET_BYTES, socket.CMSG_SPACE(size))
    except ConnectionError:
        return None
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    try:
        if not packet:
            message = None
        elif flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ProtocolError("a message that is too large")
        else:
            message = decoder.decode(packet)
    except (ProtocolError, *UNDECODABLE) as error:
        _close(found)
        if isinstance(error, ProtocolError):
            raise
        raise ProtocolError(f"a malformed message: {error}") from error
    if message is None:
        _close(found)
        return None
    return message, tuple(found)


def _close(descriptors: array.array[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
