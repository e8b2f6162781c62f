"""What a machine that evaluates for others says and is told over HTTP, version 1: paths, bodies, and their JSON.

A client opens a session with a whole task folder, puts kernels under keys of its own choosing, and asks for results.
Every request can be made again: a key holds one kernel and is judged once however often it is put, and results are said
again until the client acknowledges them. A refusal has a `Problem` for its body:

400 malformed    401 no or wrong token    404 no such session    408 too slow    409 this key holds another kernel
413 body too large    422 this task can't be used    429 too many at once, try again after `Retry-After` seconds
500 the server failed, or a session's process as it opened; its log says more
503 closing if there is a `Retry-After`, otherwise this machine or session is broken, and the sentence says how
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from mctskernel.core.device import Trial
from mctskernel.core.documents import UNDECODABLE, excerpt
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Kernel, Language
from mctskernel.tree.storable import storable

SESSIONS = "/v1/sessions"
STATUS = "/v1/status"
SCHEMA = "/openapi.json"

MEDIA_TYPE = "application/json"

NAME_PATTERN = "^[A-Za-z0-9_-]{1,64}$"
"""Of a session, and of the key that a client gives a kernel."""

MAX_WAIT_SECONDS = 30.0
"""How long a server may be asked to wait for a result before it says that there is none."""

Name = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class OpenSession(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A task to judge kernels of: `task` is its folder, the bytes of each file (base64 in JSON) by its relative path.

    `architecture` is the modelled GPU where the server models one; empty for the server's own.
    """

    task: dict[str, bytes]
    language: Language = Language.CUDA
    seed: Count = 0
    architecture: str = ""
    trial: Trial = Trial.SEARCH


class SessionOpened(msgspec.Struct, frozen=True):
    """A session of this name judges kernels of the task.

    `capacity` is how many evaluations the machine has in flight without one waiting for another, `fingerprint`,
    `remarks` and `source` are those of the executor behind it, and `version` is the server's mctskernel.
    """

    session: Name
    capacity: Count
    fingerprint: dict[str, str]
    remarks: tuple[str, ...]
    source: str
    version: str


class SessionStatus(msgspec.Struct, frozen=True):
    """How many kernels of a session wait, are being judged, and were judged since it was opened."""

    capacity: Count
    queued: Count
    running: Count
    finished: Count


class Submission(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kernel to evaluate."""

    kernel: Kernel


class GateSubmission(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kernel for the last gate, whose times are to stand beside the baseline's."""

    kernel: Kernel
    baseline: Kernel


class Result(msgspec.Struct, frozen=True):
    """The evaluation of the kernel that the client put under `key`, or its last gate.

    Numbers begin at one and grow by one in each session.
    """

    number: Count
    key: Name
    gate: bool
    evaluation: Evaluation


class Results(msgspec.Struct, frozen=True):
    """What finished and was not yet acknowledged, by number."""

    results: tuple[Result, ...] = ()


class ServerStatus(msgspec.Struct, frozen=True):
    """What the server judges on, and how busy it is: open sessions, kernels that wait, kernels being judged.

    The fingerprint is empty until a first session has been opened.
    """

    version: str
    device: str
    fingerprint: dict[str, str]
    sessions: Count
    queued: Count
    running: Count


class Problem(msgspec.Struct, frozen=True):
    """Why a request was refused."""

    sentence: str


Message = TypeVar("Message")


class MalformedError(ValueError):
    """Bytes that are no message of the kind that was asked for; the message says where they go wrong."""


def session_path(session: str) -> str:
    """Where a session is asked after and closed."""
    return f"{SESSIONS}/{session}"


def evaluation_path(session: str, key: str) -> str:
    """Where a `Submission` is put."""
    return f"{SESSIONS}/{session}/evaluations/{key}"


def gate_path(session: str, key: str) -> str:
    """Where a `GateSubmission` is put."""
    return f"{SESSIONS}/{session}/gates/{key}"


def results_path(session: str, after: int, wait: float) -> str:
    """Where results are asked for, waiting up to `wait` seconds; those up to the number `after` are acknowledged."""
    return f"{SESSIONS}/{session}/results?after={after}&wait={wait:g}"


def encode(message: msgspec.Struct) -> bytes:
    """The message as JSON. What JSON can't hold is replaced as in a journal (`mctskernel.tree.storable`)."""
    return msgspec.json.encode(storable(msgspec.to_builtins(message)))


def decode(data: bytes, kind: type[Message]) -> Message:
    """The message of this kind; raises MalformedError for any other bytes."""
    try:
        return msgspec.json.decode(data, type=kind)
    except UNDECODABLE as error:
        raise MalformedError(f"The body is no {kind.__name__}: {excerpt(error)}.") from error
