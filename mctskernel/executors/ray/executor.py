"""Evaluations in a Ray cluster: the side of the search."""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from mctskernel.core.device import UUID, DeviceError, DeviceSpec
from mctskernel.core.evaluation import Evaluation, Guard, Outcome
from mctskernel.core.executor import CounterSet
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import task_of
from mctskernel.executors import GPU_COMPILERS
from mctskernel.executors.ray.actor import (
    CLOSING,
    Actor,
    Evaluate,
    Opened,
    Opening,
    decode_reply,
    encode,
    pack,
)
from mctskernel.executors.ray.cluster import Cluster
from mctskernel.executors.tickets import Finish, TicketedExecutor, run
from mctskernel.profiling.architecture import FILE_SUFFIX
from mctskernel.profiling.counters import counters_for, fewer_notes
from mctskernel.profiling.processes.channel import Broken
from mctskernel.profiling.processes.worker_process import Evaluated

OPENER = "mctskernel.executors:open_executor"
TRIES = 3  # how often a kernel is evaluated whose actor is lost meanwhile, before the kernel is to blame
OPENING_SECONDS = 120.0  # how long all actors together may take to open; those that are late are left out

EVALUATION_SECONDS = 3600.0
"""How long an evaluation may take. A candidate takes far less: the rest is for a GPU's turn."""

CLOSE_SECONDS = 3.0  # how long actors may take to clean up before they are killed

# Ray's types don't know concurrency groups.
_REMOTE: Any = ray.remote(concurrency_groups={CLOSING: 1})(Actor)  # type: ignore[call-overload]


class RayExecutor(TicketedExecutor):
    """An actor for each GPU of the cluster, or for each CPU on `model`, and a thread here for each of its evaluations.

    `workers` are actors on `model`, 0 for as many as there are CPUs, and compile processes beside each GPU. Ray starts
    an actor again whose process or node is lost. Use it as a context manager, or call `close`. Not shared between
    threads. Raises TaskError, and DeviceError when no actor can be had.
    """

    def __init__(
        self,
        spec: DeviceSpec,
        cluster: Cluster,
        *,
        workers: int = 0,
        opener: str = OPENER,
        counters: CounterSet | None = None,
    ) -> None:
        super().__init__()
        task_of(spec)  # Raises TaskError before anything is started.
        on_gpu, self._source = spec.kind == "gpu", spec.source
        rooms = cluster.amounts("GPU" if on_gpu else "CPU")
        compilers = (workers or GPU_COMPILERS) if on_gpu else 1
        slots = compilers + 1 if on_gpu else 1
        chosen = counters_for(max(rooms, default=0), counters) if on_gpu else None
        wanted = sum(rooms) if on_gpu else min(sum(rooms), workers or sum(rooms))
        described = spec.architecture.endswith(FILE_SUFFIX)
        description = Path(spec.architecture).read_bytes() if described else b""
        opening = encode(Opening(spec, pack(spec.task_folder), opener, compilers, chosen, description))
        # Compile processes beside a GPU are not counted against the cluster's CPUs.
        self._actors = [
            _REMOTE.options(
                num_cpus=0 if on_gpu else 1,
                num_gpus=1 if on_gpu else 0,
                max_restarts=-1,
                max_task_retries=TRIES - 1,
                max_concurrency=slots + 1,
                scheduling_strategy="SPREAD",
            ).remote(opening)
            for _ in range(wanted)
        ]
        self._notes = [cluster.note]
        try:
            self._fingerprint, usable = self._open("GPU" if on_gpu else "CPU")
        except BaseException:
            self._end_actors()
            raise
        self._fewer = fewer_notes(chosen, counters) if chosen is not None else ()
        self._capacity = slots * len(usable)
        self._usable: dict[int, Any] = dict(enumerate(usable))
        # The number of an actor for each evaluation that it can make; None ends a thread that waits for one.
        self._idle: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        for number in list(self._usable) * slots:
            self._idle.put(number)
        self._threads = ThreadPoolExecutor(self._capacity, "ray")

    @property
    def capacity(self) -> int:
        return self._capacity

    def final_validation(self, kernel: Kernel, baseline: Kernel) -> Evaluation:
        """Evaluate a kernel at the held-out shapes, on one actor and with a fresh seed; waits for it."""
        return self._threads.submit(self._evaluate, encode(Evaluate(kernel, baseline))).result()

    def fingerprint(self) -> dict[str, str]:
        """That of the actors' devices, without a UUID: they are of one kind."""
        return dict(self._fingerprint)

    @property
    def notes(self) -> tuple[str, ...]:
        """Where the evaluations ran, what the devices lack, and which were left out."""
        return (*dict.fromkeys(self._notes), *self._fewer)

    def close(self) -> None:
        """Stop at once, and leave nothing of this search in the cluster."""
        self._end_actors()
        self._end_waiting()
        self._threads.shutdown(cancel_futures=True)

    def _open(self, unit: str) -> tuple[dict[str, str], list[Any]]:
        """The fingerprint that most actors have, and these actors."""
        opened = {actor.open.remote(): actor for actor in self._actors}
        ready, late = (
            ray.wait(list(opened), num_returns=len(opened), timeout=OPENING_SECONDS) if opened else ([], [])
        )
        complaints = [f"an actor was not open after {OPENING_SECONDS:.0f} s" for _ in late]
        found: list[tuple[Any, dict[str, str]]] = []
        for reference in ready:
            reply = _reply(reference)
            if isinstance(reply, Opened):
                fingerprint = {name: value for name, value in reply.fingerprint.items() if name != UUID}
                found.append((opened[reference], fingerprint))
                self._notes += reply.notes
            else:
                complaints.append(reply.message if isinstance(reply, Broken) else "it sent a wrong reply")
        if not found:
            reason = next(iter(complaints), f"no {unit} of it is free").rstrip(".")
            raise DeviceError(f"The Ray cluster can't evaluate kernels for this run: {reason}.")
        most = max((each for _, each in found), key=lambda each: sum(each == other for _, other in found))
        self._notes += [text for _, each in found if (text := _difference(most, each))]
        self._notes += [f"An actor of the cluster was left out: {complaint}" for complaint in complaints]
        return most, [actor for actor, each in found if each == most]

    def _begin(self, kernel: Kernel, finish: Finish) -> None:
        self._threads.submit(run, lambda: self._evaluate(encode(Evaluate(kernel))), finish)

    def _evaluate(self, request: bytes) -> Evaluation:
        """What an actor answers; one that is broken is used no more. Raises DeviceError when none is left."""
        while True:
            number = self._idle.get()
            if number is None:
                raise DeviceError("No actor of the Ray cluster is left that can evaluate kernels.")
            actor = self._usable.get(number)
            if actor is None:
                continue
            try:
                reply = _reply(actor.evaluate.remote(request))
            except (RayActorError, GetTimeoutError) as error:
                self._idle.put(number)
                message = (
                    f"The process that evaluated this kernel was lost {TRIES} times: {_first_line(error)}"
                )
                return Evaluation(Outcome.CRASH, self._source, message, guard=Guard.SEPARATE_PROCESS)
            if isinstance(reply, Evaluated):
                self._idle.put(number)
                return reply.evaluation
            self._leave_out(number, reply.message if isinstance(reply, Broken) else "it sent a wrong reply")

    def _leave_out(self, number: int, complaint: str) -> None:
        self._notes.append(f"An actor of the cluster was left out: {complaint}")
        self._usable.pop(number, None)
        if not self._usable:
            self._end_waiting()
            raise DeviceError(f"No actor of the Ray cluster can evaluate kernels any more: {complaint}")

    def _end_waiting(self) -> None:
        for _ in range(self._capacity):
            self._idle.put(None)

    def _end_actors(self) -> None:
        closing = [actor.close.options(concurrency_group=CLOSING).remote() for actor in self._actors]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
        for actor in self._actors:
            ray.kill(actor)


def _reply(reference: Any) -> Opened | Evaluated | Broken:
    """The reply of an actor. Raises RayActorError for one that is lost, and GetTimeoutError."""
    try:
        return decode_reply(ray.get(reference, timeout=EVALUATION_SECONDS))
    except (RayActorError, GetTimeoutError):
        raise
    except RayError as error:
        return Broken(_first_line(error))


def _difference(first: dict[str, str], other: dict[str, str]) -> str:
    names = sorted(first.keys() | other.keys())
    name = next((name for name in names if first.get(name) != other.get(name)), None)
    if name is None:
        return ""
    return (
        "A device of the cluster was left out, because its times can't be compared with the others': its "
        f"{name} is {other.get(name, 'nothing')}, theirs {first.get(name, 'nothing')}."
    )


def _first_line(error: BaseException) -> str:
    """The first line of Ray's messages, which go on for a page."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
