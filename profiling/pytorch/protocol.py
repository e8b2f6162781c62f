"""What the processes of the PyTorch door are asked, and what they answer; file descriptors travel beside messages.

A socket carries one message a packet. Whatever a candidate's host answers is a claim: the referee uses it for
messages to the user and for nothing else.
"""

from __future__ import annotations

import array
import os
import socket

import msgspec

from mctskernel.core.documents import UNDECODABLE
from mctskernel.profiling.processes.channel import Message, ProtocolError
from mctskernel.profiling.pytorch.structures import Structure

MAX_PACKET_BYTES = 128 << 10
MAX_DESCRIPTORS = 4


class Load(msgspec.Struct, tag=True, frozen=True):
    """Run a source text as a module and find its class. Answered by Ready or Failed."""

    source: str
    class_name: str


class Attach(msgspec.Struct, tag=True, frozen=True):
    """The first request: get confined, and map memory. Answered by Ready or Failed.

    Beside it: memory for the outputs of all calls, and on a GPU for the inputs of every other call and of those in
    between; `sizes` are their bytes there.
    """

    device: str
    memory_bytes: int
    sizes: tuple[int, ...] = ()


class Construct(msgspec.Struct, tag=True, frozen=True):
    """Make a model of `arguments` under a seed. Beside it: a window of the arguments, one of the weights.

    `weights` is what the reference's `state_dict` holds. Answered by Constructed or Failed. The reference gets
    neither and answers with Weights; `from_seed` asks it for weights that follow from the seed alone.
    """

    seed: int
    arguments: Structure
    weights: Structure
    from_seed: bool


class Wake(msgspec.Struct, tag=True, frozen=True):
    """Get ready for a call, whose inputs are still hidden. Answered by Ready."""


class Go(msgspec.Struct, tag=True, frozen=True):
    """Call the model once. Beside it on a CPU: a window of inputs. Answered by Done or Failed.

    `turn` says on a GPU which of the mapped memories holds the inputs.
    """

    inputs: Structure
    outputs: Structure
    turn: int = 0


class Again(msgspec.Struct, tag=True, frozen=True):
    """Write the outputs of the call before the last once more, as they are now. Answered as Go is."""

    outputs: Structure


class Draw(msgspec.Struct, tag=True, frozen=True):
    """The reference alone: fresh inputs and what they must give. Answered by Drawn or Failed."""

    seed: int


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The module is loaded."""


class Constructed(msgspec.Struct, tag=True, frozen=True):
    """A model was made. `loaded` says whether it has all of the weights by their names."""

    loaded: bool


class Weights(msgspec.Struct, tag=True, frozen=True):
    """The reference alone: its model was made. Beside it: a window of the arguments, one of the weights."""

    arguments: Structure
    weights: Structure


class Done(msgspec.Struct, tag=True, frozen=True):
    """The outputs are written; `given` is what they are said to be."""

    given: Structure


class Drawn(msgspec.Struct, tag=True, frozen=True):
    """Fresh inputs. Beside it windows of the inputs, of the outputs in 64-bit floats, and of the plain outputs.

    `changed` says that the reference itself changed its inputs.
    """

    inputs: Structure
    expected: Structure
    plain: Structure
    changed: bool


class Failed(msgspec.Struct, tag=True, frozen=True):
    """An exception, as a sentence, with its traceback."""

    message: str
    log: str = ""


Request = Attach | Load | Construct | Wake | Go | Again | Draw
Reply = Ready | Constructed | Weights | Done | Drawn | Failed

REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def send(connection: socket.socket, message: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message with its descriptors. Raises OSError when nobody listens or the message is too large."""
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
    found = _descriptors(ancillary)
    if not packet:
        _close(found)
        return None
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        _close(found)
        raise ProtocolError("a message that is too large")
    try:
        return decoder.decode(packet), found
    except UNDECODABLE as error:
        _close(found)
        raise ProtocolError(f"a malformed message: {error}") from error


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, ...]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return tuple(found)


def _close(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
