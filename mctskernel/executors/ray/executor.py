"""Evaluations in a Ray cluster, whose nodes come and go: the side of the search."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError

from mctskernel.core.device import UUID, DeviceError, DeviceSpec
from mctskernel.core.evaluation import Evaluation, Guard, Outcome
from mctskernel.core.executor import CounterSet
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import task_of
from mctskernel.executors import compilers_for
from mctskernel.executors.ray.actor import (
    CLOSING,
    PRESENCE,
    Actor,
    Evaluate,
    Opened,
    Opening,
    decode_reply,
    encode,
    pack,
)
from mctskernel.executors.ray.cluster import Cluster
from mctskernel.executors.tickets import Finish, TicketedExecutor
from mctskernel.profiling.architecture import FILE_SUFFIX
from mctskernel.profiling.counters import counters_for, fewer_notes
from mctskernel.profiling.processes.channel import Broken
from mctskernel.profiling.processes.worker_process import Evaluated

OPENER = "mctskernel.executors:open_executor"

TRIES = 3
"""How often a kernel is evaluated whose actor is lost meanwhile, before the kernel is to blame."""

FAILURES = 3
"""How often actors may fail to open, or break, before there is one fewer of them."""

CLOSE_SECONDS = 3.0
"""How long actors may take to clean up before they are killed."""

# Ray's types don't know concurrency groups.
_REMOTE: Any = ray.remote(concurrency_groups={PRESENCE: 1, CLOSING: 1})(Actor)  # type: ignore[call-overload]


@dataclass(frozen=True)
class Patience:
    """Seconds: that one evaluation may take, until a first actor opens, and between two looks at the nodes.

    A candidate takes far less than `evaluation`: the rest is for a GPU's turn, which other searches may have first.
    """

    evaluation: float = 3600.0
    arrival: float = 120.0
    look: float = 1.0


@dataclass
class _Job:
    request: bytes
    deliver: Finish
    losses: int = 0


@dataclass
class _Member:
    """An actor with the jobs that it was given, each with the time when it was."""

    handle: Any
    is_open: bool = False
    jobs: dict[int, float] = field(default_factory=dict)


class RayExecutor(TicketedExecutor):
    """An actor for each GPU of the cluster, or for each CPU on `model`, fed by a thread here.

    `workers` are actors on `model`, 0 for as many as there are CPUs, and compile processes beside each GPU. Actors are
    started as nodes come, and a kernel whose actor is lost is tried elsewhere. Use it as a context manager, or call
    `close`. Not shared between threads. Raises TaskError, and DeviceError when no actor can be had.
    """

    def __init__(
        self,
        spec: DeviceSpec,
        cluster: Cluster,
        *,
        workers: int = 0,
        patience: Patience = Patience(),
        opener: str = OPENER,
        counters: CounterSet | None = None,
    ) -> None:
        super().__init__()
        task_of(spec)  # Raises TaskError before anything is started.
        self._spec, self._cluster, self._patience = spec, cluster, patience
        self._on_gpu = spec.kind == "gpu"
        self._most = 0 if self._on_gpu else workers
        compilers = (workers or compilers_for(1, spec.language)) if self._on_gpu else 1
        self._slots = compilers + 1 if self._on_gpu else 1
        chosen = counters_for(max(cluster.amounts("GPU"), default=0), counters) if self._on_gpu else None
        self._opening = encode(_opening(spec, opener, compilers, chosen))
        self._notes = {cluster.note: None}
        self._fewer = fewer_notes(chosen, counters) if chosen is not None else ()
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._members: dict[int, _Member] = {}
        self._jobs: dict[int, _Job] = {}
        self._waiting: deque[int] = deque()
        self._first: Future[dict[str, str]] = Future()
        self._failures = 0
        self._complaint = ""
        self._broken: DeviceError | None = None
        self._looked_at, self._manned_at = -1.0, time.monotonic()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="ray", daemon=True)
        self._thread.start()
        try:
            self._first.result()
        except BaseException:
            self.close()
            raise

    @property
    def capacity(self) -> int:
        """How many evaluations can be in flight now, at least one: without an actor it waits for one to come."""
        return max(1, self._slots * sum(member.is_open for member in list(self._members.values())))

    def final_validation(self, kernel: Kernel, baseline: Kernel) -> Evaluation:
        """Evaluate a kernel at the held-out shapes, on one actor and with a fresh seed; waits for it."""
        result: Future[Evaluation | Exception] = Future()
        self._events.put(partial(self._queue, _Job(encode(Evaluate(kernel, baseline)), result.set_result)))
        found = result.result()
        if isinstance(found, Exception):
            raise found
        return found

    def fingerprint(self) -> dict[str, str]:
        """That of the first actor's device, without its UUID: the others are of its kind."""
        return dict(self._first.result())

    @property
    def notes(self) -> tuple[str, ...]:
        """Where the evaluations ran, what the devices lack, and which were left out."""
        return (*list(self._notes), *self._fewer)

    def close(self) -> None:
        """Stop at once, and leave nothing of this search in the cluster."""
        self._closing = True
        self._events.put(lambda: None)
        self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            try:
                self._look()
                self._assign()
                self._events.get(timeout=self._patience.look)()
            except queue.Empty:
                continue
            except Exception as error:  # noqa: BLE001 - raised again by `wait`, in its caller's thread
                self._break(f"The Ray cluster failed: {type(error).__name__}: {error}")
        handles = [member.handle for member in self._members.values()]
        if handles:
            closing = [handle.close.options(concurrency_group=CLOSING).remote() for handle in handles]
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
        for handle in handles:
            ray.kill(handle)

    def _look(self) -> None:
        """Start actors where there is room, and give up those that take too long."""
        now = time.monotonic()
        if self._broken is not None or now - self._looked_at < self._patience.look:
            return
        self._looked_at = now
        room = sum(self._cluster.amounts("GPU" if self._on_gpu else "CPU"))
        wanted = min(room, self._most or room) - self._failures // FAILURES
        while len(self._members) < wanted:
            self._start()
        for number, member in list(self._members.items()):
            if any(now - began > self._patience.evaluation for began in member.jobs.values()):
                self._lose(number, f"it did not answer within {self._patience.evaluation:.0f} s")
        if any(member.is_open for member in self._members.values()):
            self._manned_at = now
        elif now - self._manned_at > self._patience.arrival or (
            not self._members and (self._cluster.own or (self._complaint and not self._first.done()))
        ):
            reason = self._complaint or f"no {'GPU' if self._on_gpu else 'CPU'} of it is free"
            self._break(f"The Ray cluster can't evaluate kernels for this run: {reason.rstrip('.')}.")

    def _start(self) -> None:
        number = next(self._numbers)
        # Compile processes beside a GPU are not counted against the cluster's CPUs.
        handle = _REMOTE.options(
            num_cpus=0 if self._on_gpu else 1,
            num_gpus=1 if self._on_gpu else 0,
            max_restarts=0,
            max_concurrency=self._slots + 1,
            scheduling_strategy="SPREAD",
        ).remote(self._opening)
        self._members[number] = _Member(handle)
        opening = handle.open.remote().future()
        opening.add_done_callback(lambda done: self._events.put(partial(self._opened, number, done)))
        presence = handle.stay.options(concurrency_group=PRESENCE).remote().future()
        presence.add_done_callback(
            lambda done: self._events.put(partial(self._lose, number, _first_line(done.exception())))
        )

    def _opened(self, number: int, opening: Future[object]) -> None:
        member = self._members.get(number)
        if member is None:
            return
        error = opening.exception()
        reply = Broken(_first_line(error)) if error is not None else decode_reply(opening.result())
        if not isinstance(reply, Opened):
            self._fail(number, reply.message if isinstance(reply, Broken) else "It sent a wrong reply.")
            return
        fingerprint = {name: value for name, value in reply.fingerprint.items() if name != UUID}
        if not self._first.done():
            self._notes |= dict.fromkeys(reply.notes)
            self._first.set_result(fingerprint)
        # One that differs is kept, unused, so that no further actor is started in its place.
        if difference := _difference(self._first.result(), fingerprint):
            self._notes[difference] = None
        else:
            member.is_open = True

    def _assign(self) -> None:
        """Give waiting jobs to the actor that has the fewest."""
        while self._waiting:
            able = [
                each for each in self._members.items() if each[1].is_open and len(each[1].jobs) < self._slots
            ]
            if not able:
                return
            number, member = min(able, key=lambda each: len(each[1].jobs))
            job = self._waiting.popleft()
            member.jobs[job] = time.monotonic()
            reply = member.handle.evaluate.remote(self._jobs[job].request).future()
            reply.add_done_callback(self._on_reply(number, job))

    def _on_reply(self, number: int, job: int) -> Callable[[Future[object]], None]:
        return lambda reply: self._events.put(partial(self._replied, number, job, reply))

    def _begin(self, kernel: Kernel, finish: Finish) -> None:
        self._events.put(partial(self._queue, _Job(encode(Evaluate(kernel)), finish)))

    def _queue(self, job: _Job) -> None:
        if self._broken is not None:
            job.deliver(self._broken)
            return
        number = next(self._numbers)
        self._jobs[number] = job
        self._waiting.append(number)

    def _replied(self, number: int, job: int, reply: Future[object]) -> None:
        member = self._members.get(number)
        if member is None or job not in member.jobs:
            return  # It was given to another actor meanwhile.
        error = reply.exception()
        if isinstance(error, RayActorError):
            self._lose(number, _first_line(error))
            return
        answer = Broken(_first_line(error)) if error is not None else decode_reply(reply.result())
        if isinstance(answer, Evaluated):
            del member.jobs[job]
            self._jobs.pop(job).deliver(answer.evaluation)
        else:
            self._fail(number, answer.message if isinstance(answer, Broken) else "It sent a wrong reply.")

    def _fail(self, number: int, complaint: str) -> None:
        """Drop an actor whose machine can't evaluate; its jobs are not to blame."""
        self._failures += 1
        self._complaint = complaint
        if self._failures % FAILURES == 0:
            self._notes[f"One actor of the cluster was left out after {FAILURES} failures: {complaint}"] = (
                None
            )
        self._waiting.extendleft(self._drop(number))

    def _lose(self, number: int, why: str) -> None:
        """Drop an actor whose process or node is gone; its jobs are tried elsewhere."""
        for job in self._drop(number):
            state = self._jobs[job]
            state.losses += 1
            if state.losses < TRIES:
                self._waiting.appendleft(job)
            else:
                message = (
                    f"The process that evaluated this kernel was lost {TRIES} times; the last time {why}."
                )
                del self._jobs[job]
                guard = Guard.SEPARATE_PROCESS
                state.deliver(Evaluation(Outcome.CRASH, self._spec.source, message, guard=guard))

    def _drop(self, number: int) -> list[int]:
        """Remove an actor; the jobs that it had, the newest first."""
        member = self._members.pop(number, None)
        if member is None:
            return []
        ray.kill(member.handle)
        return list(reversed(member.jobs))

    def _break(self, sentence: str) -> None:
        """End the run: nothing can be evaluated any more."""
        self._broken = DeviceError(sentence)
        if not self._first.done():
            self._first.set_exception(self._broken)
        for job in self._jobs.values():
            job.deliver(self._broken)
        self._jobs.clear()
        self._waiting.clear()


def _opening(spec: DeviceSpec, opener: str, workers: int, counters: CounterSet | None) -> Opening:
    described = spec.architecture.endswith(FILE_SUFFIX)
    description = Path(spec.architecture).read_bytes() if described else b""
    return Opening(spec, pack(spec.task_folder), opener, workers, counters, description)


def _difference(first: dict[str, str], other: dict[str, str]) -> str:
    names = sorted(first.keys() | other.keys())
    name = next((name for name in names if first.get(name) != other.get(name)), None)
    if name is None:
        return ""
    return (
        "A device of the cluster was left out, because its times can't be compared with the others': its "
        f"{name} is {other.get(name, 'nothing')}, theirs {first.get(name, 'nothing')}."
    )


def _first_line(error: BaseException | None) -> str:
    """The first line of Ray's messages, which go on for a page."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
