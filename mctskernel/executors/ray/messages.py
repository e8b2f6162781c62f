"""What crosses between a search and the evaluators of a cluster: MessagePack, decoded into types that each side names.

Ray pickles what it carries, so only bytes of these are given to it, and everything in them is checked on arrival.
"""

from __future__ import annotations

import msgspec

from mctskernel.core.device import Trial
from mctskernel.core.documents import UNDECODABLE, excerpt
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.executor import CounterSet
from mctskernel.core.kernel import Kernel, Language
from mctskernel.profiling.processes.compile_process import Prepared


class Opening(msgspec.Struct, frozen=True):
    """What an evaluator opens: `DeviceSpec` without its folder, which is `files` by relative path, and its `role`.

    `opener` and `service` name what judges on a CPU and on a GPU, `target` the architecture that is built for.
    `description` is the file of the modelled GPU where `architecture` isn't the name of a known one. `counters` are
    read on a GPU.
    """

    role: str
    kind: str
    architecture: str
    seed: int
    language: Language
    trial: Trial
    files: dict[str, bytes]
    description: bytes = b""
    opener: str = ""
    service: str = ""
    target: str = ""
    counters: CounterSet = CounterSet.ALL


class Finalist(msgspec.Struct, frozen=True):
    """A kernel for the last gate, and the baseline whose times stand beside its own."""

    kernel: Kernel
    baseline: Kernel


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The evaluator is open: its device's fingerprint, which has to be the same everywhere, and its remarks."""

    fingerprint: dict[str, str]
    remarks: tuple[str, ...] = ()


class Judged(msgspec.Struct, tag=True, frozen=True):
    """A kernel's evaluation, which ends with this."""

    evaluation: Evaluation


class Built(msgspec.Struct, tag=True, frozen=True):
    """A kernel was built; what was made of it goes from one evaluator to the next."""


class Broken(msgspec.Struct, tag=True, frozen=True):
    """Nothing can be judged or built there."""

    message: str


Reply = Ready | Judged | Built | Broken

OPENINGS = msgspec.msgpack.Decoder(Opening)
KERNELS = msgspec.msgpack.Decoder(Kernel)
FINALISTS = msgspec.msgpack.Decoder(Finalist)
CANDIDATES = msgspec.msgpack.Decoder(Prepared)
_REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)

encode = msgspec.msgpack.encode


def reply_of(data: object) -> Reply:
    """What an evaluator said; what is no reply says that it is broken."""
    try:
        return _REPLIES.decode(data) if isinstance(data, bytes) else Broken("It sent no bytes.")
    except UNDECODABLE as error:
        return Broken(f"It sent a malformed message: {excerpt(error)}")
