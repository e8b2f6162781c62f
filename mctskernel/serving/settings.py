"""What a server is told to be: what it judges on, and how much it takes from whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from mctskernel.core.executor import LOCAL, ExecutorOptions
from mctskernel.serving.session_protocol import EXECUTOR


@dataclass(frozen=True)
class Limits:
    """How much a server takes; seconds, bytes and counts.

    `queue` are kernels of all clients that wait or are being judged, `client_queue` those of one, counted with its
    results that it hasn't acknowledged; `result_bytes` are those of one session. `sessions` have a process at the same
    time, `client_sessions` of one client. A session without work loses its process after `idle_seconds`, and its task
    after `kept_seconds`; `client_kept` are kept of one client. A kernel that is judged for `stalled_seconds` costs its
    session's process. `body_seconds` and `header_seconds` are how long a client may take to send these, and at shutdown
    what is being judged has `grace_seconds`.
    """

    queue: int = 1024
    client_queue: int = 256
    result_bytes: int = 64 << 20
    sessions: int = 8
    client_sessions: int = 4
    client_kept: int = 32
    idle_seconds: float = 300.0
    kept_seconds: float = 24 * 3600.0
    stalled_seconds: float = 900.0
    task_bytes: int = 64 << 20
    kernel_bytes: int = 4 << 20
    body_seconds: float = 30.0
    header_seconds: float = 10.0
    connections: int = 256
    requests_per_second: float = 200.0
    burst: int = 400
    failures_per_minute: int = 20
    grace_seconds: float = 30.0


@dataclass(frozen=True)
class Settings:
    """What a server judges on (`gpu` or `model`), with how many `workers` in each session, and its limits.

    `reads` are files that sessions may read besides their tasks; `opener` opens a session's executor, as in
    `mctskernel.serving.session_protocol`.
    """

    kind: str
    architecture: str = "H100"
    workers: int = 1
    options: ExecutorOptions = LOCAL
    limits: Limits = field(default_factory=Limits)
    reads: tuple[Path, ...] = ()
    opener: str = EXECUTOR
