"""Evaluations in a Ray cluster, whose nodes come and go: the side of the search."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ray.exceptions import RayActorError

from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.core.evaluation import Evaluation, Guard, Outcome
from mctskernel.core.executor import CounterSet
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import task_of
from mctskernel.executors.ray.assignment import TRIES, Assignments, Call, Stage
from mctskernel.executors.ray.cluster import Cluster
from mctskernel.executors.ray.messages import (
    Broken,
    Built,
    Finalist,
    Judged,
    Opening,
    Ready,
    Reply,
    encode,
    reply_of,
)
from mctskernel.executors.ray.roster import Role
from mctskernel.executors.ray.staff import Event, Staff, first_line
from mctskernel.executors.task_files import pack
from mctskernel.executors.tickets import Tickets
from mctskernel.profiling.architecture import FILE_SUFFIX
from mctskernel.profiling.counter_sets import counters_for, fewer_remarks
from mctskernel.profiling.devices import open_device
from mctskernel.profiling.gpu.session import GPU_SERVICE
from mctskernel.profiling.processes.workers import Opener

UNASKED = "it answered what it wasn't asked"


@dataclass(frozen=True)
class Patience:
    """How many seconds are waited for what: a call of each stage, any sign of an evaluator, a first one, and news.

    An evaluator that takes longer over a call counts as lost, and long before that one that has a call and isn't heard
    of for `silence` seconds, as behind a cut network; those that are well are heard of every `pulse` seconds. What a
    candidate may take is far less than a call: the rest is for the GPU's turn, which evaluators of other searches may
    have first, and their last gates. A run ends when it had nobody to ask for `arrival` seconds.
    """

    judge: float = 1800.0
    gate: float = 3600.0
    build: float = 120.0
    silence: float = 120.0
    pulse: float = 5.0
    arrival: float = 120.0
    news: float = 1.0

    @property
    def limits(self) -> dict[Stage, float]:
        """By stage."""
        return {Stage.JUDGE: self.judge, Stage.GATE: self.gate, Stage.BUILD: self.build}


PATIENCE = Patience()


@dataclass
class _Order:
    """What a job begins with, who is given its result, and what was built for it so far."""

    data: bytes
    deliver: Callable[[Evaluation | Exception], None]
    built: Any = None


class RayExecutor:
    """Evaluators in a cluster, fed by a thread here. Use it as a context manager, or call `close`.

    On `gpu` each GPU has an evaluator, and `workers` others build for them; on `model` there are `workers` of them; 0
    is as many as the cluster has room for. They are started and dismissed as nodes come and go. A kernel that is lost
    with its evaluator is tried once more elsewhere. Not shared between threads. Raises TaskError, and DeviceError when
    no evaluator can be had.
    """

    def __init__(
        self,
        spec: DeviceSpec,
        cluster: Cluster,
        *,
        workers: int = 0,
        patience: Patience = PATIENCE,
        opener: Opener = open_device,
        service: str = GPU_SERVICE,
        counters: CounterSet | None = None,
    ) -> None:
        if workers < 0:
            raise ValueError(f"An executor can't have {workers} workers.")
        self._spec, self._cluster, self._patience = spec, cluster, patience
        self._route = (Stage.BUILD, Stage.JUDGE) if spec.kind == "gpu" else (Stage.JUDGE,)
        self._tickets = Tickets()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._assignments = Assignments(patience.limits)
        chosen = counters_for(cluster.most_gpus, counters)
        self._remarks = fewer_remarks(chosen, counters) if spec.kind == "gpu" else ()
        opening = _opening(spec, opener, service, chosen)
        self._staff = Staff(
            cluster,
            opening,
            workers,
            self._events.put,
            pulse=patience.pulse,
            joined=self._join,
            lost=self._lose,
        )
        self._jobs = itertools.count()
        self._orders: dict[int, _Order] = {}
        self._broken: DeviceError | None = None
        self._opened: Future[Ready] = Future()
        self._staffed_at = time.monotonic()
        self._news_at = 0.0
        self._capacity = 1
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="ray", daemon=True)
        self._thread.start()
        try:
            self._first = self._opened.result()
        except BaseException:
            self.close()
            raise

    @property
    def capacity(self) -> int:
        """How many evaluations can be in flight: one for each evaluator that is open now, but never none.

        While there is no evaluator an evaluation waits for one to come.
        """
        return self._capacity

    def submit(self, ticket: int, kernel: Kernel) -> None:
        """Begin an evaluation. `ticket`, not in flight already, comes back with its result."""
        self._tickets.begin(ticket)
        order = _Order(encode(kernel), lambda result: self._tickets.run(ticket, partial(_unwrapped, result)))
        self._events.put(partial(self._begin, order, self._route))

    def wait(self, timeout: float | None = None) -> list[tuple[int, Evaluation]]:
        """The evaluations that have finished since the last call, waiting for the first of them.

        Empty when nothing is in flight, or when nothing finished in `timeout` seconds. Raises DeviceError
        when no evaluator is left, and none has come for a while.
        """
        return self._tickets.wait(timeout)

    def last_gate(self, kernel: Kernel, baseline: Kernel) -> Evaluation:
        """Evaluate a kernel at what was held out, on one evaluator and with a fresh seed; waits for it."""
        result: Future[Evaluation | Exception] = Future()
        order = _Order(encode(Finalist(kernel, baseline)), result.set_result)
        self._events.put(partial(self._begin, order, (Stage.GATE,)))
        return _unwrapped(result.result())

    def fingerprint(self) -> dict[str, str]:
        """That of the first evaluator's device; the others' are of its kind."""
        return dict(self._first.fingerprint)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the user should know: where the evaluators were, what they lack, and which were left out."""
        return (*self._staff.remarks, *self._remarks)

    def close(self) -> None:
        """Stop at once, and leave nothing of this search in the cluster."""
        self._closing = True
        self._events.put(lambda: None)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        while not self._closing:
            try:
                self._hear_news()
                self._hand_out()
                self._events.get(timeout=self._patience.news)()
            except queue.Empty:
                continue
            except Exception as error:  # noqa: BLE001 - raised again by `wait`, in its caller's thread
                self._break(f"The Ray cluster failed: {type(error).__name__}: {error}")
        self._staff.close()

    def _hear_news(self) -> None:
        """Who has come and who is gone, every now and then."""
        now = time.monotonic()
        if self._broken is not None or now - self._news_at < self._patience.news:
            return
        self._news_at = now
        for number in self._staff.look():
            self._lose(number, "its node left the cluster")
        for call in self._assignments.overdue(now):
            self._lose(call.evaluator, f"it did not answer within {now - call.began:.0f} s")
        for call in self._assignments.calls:
            silence = now - max(call.began, self._staff.heard(call.evaluator))
            if silence > self._patience.silence:
                self._lose(call.evaluator, f"it was not heard of for {silence:.0f} s")
        if all(self._assignments.serving(stage) for stage in self._route):
            self._staffed_at = now
        elif self._is_hopeless() or now - self._staffed_at > self._patience.arrival:
            self._break(self._nobody())

    def _is_hopeless(self) -> bool:
        """Whether nobody will come: none is about to open, and the cluster can't grow or has refused from the start."""
        settled = self._cluster.own or (not self._opened.done() and bool(self._staff.complaint))
        return settled and not self._staff.expects_more

    def _nobody(self) -> str:
        what = "GPU" if self._spec.kind == "gpu" and not self._assignments.serving(Stage.JUDGE) else "CPU"
        reason = self._staff.complaint or f"no {what} of it is free"
        return f"The Ray cluster has no evaluator for this run: {reason.rstrip('.')}."

    def _hand_out(self) -> None:
        if self._broken is None:
            for call in self._assignments.hand_out(time.monotonic()):
                order = self._orders[call.job]
                data = order.data if order.built is None else order.built
                ask = self._staff.handle(call.evaluator).ask.options(num_returns=2)
                reply, product = ask.remote(call.number, int(call.stage), data)
                reply.future().add_done_callback(self._hearer(call, product))

    def _hearer(self, call: Call, product: Any) -> Callable[[Future[object]], None]:
        """What a thread of Ray's calls with the reply."""
        return lambda reply: self._events.put(partial(self._hear, call, reply, product))

    def _begin(self, order: _Order, route: tuple[Stage, ...]) -> None:
        if self._broken is not None:
            order.deliver(self._broken)
            return
        job = next(self._jobs)
        self._orders[job] = order
        self._assignments.begin(job, route)

    def _hear(self, call: Call, future: Future[object], product: Any) -> None:
        error = future.exception()
        if isinstance(error, RayActorError):
            self._lose(call.evaluator, first_line(error))
        elif self._assignments.answered(call.number) is None:
            return
        elif error is not None:
            # What was built is gone with its node, say.
            self._try_again(call.job, first_line(error))
        else:
            self._take(call, reply_of(future.result()), product)

    def _take(self, call: Call, reply: Reply, product: Any) -> None:
        match reply:
            case Judged(evaluation):
                self._end(call.job, evaluation)
            case Built():
                self._orders[call.job].built = product
                self._assignments.advance(call.job)
            case Broken(message):
                # The machine's fault, and no kernel's.
                self._assignments.leave(call.evaluator)
                self._count()
                self._staff.failed(call.evaluator, message)
                self._begin_again(call.job)
            case _:
                self._lose(call.evaluator, UNASKED)
                self._try_again(call.job, UNASKED)

    def _join(self, number: int, role: Role) -> None:
        self._assignments.join(number, role.serves)
        self._count()
        if self._staff.first is not None and not self._opened.done():
            self._opened.set_result(self._staff.first)

    def _lose(self, number: int, why: str) -> None:
        """Do without an evaluator; what it was doing is tried once more elsewhere."""
        call = self._assignments.leave(number)
        began = call is not None and self._staff.has_begun(number, call.number)
        self._staff.dismiss(number)
        self._count()
        if call is not None and began:
            self._try_again(call.job, why)
        elif call is not None:
            self._begin_again(call.job)

    def _begin_again(self, job: int) -> None:
        """Have a job done elsewhere that had no part in what went wrong."""
        self._orders[job].built = None
        self._assignments.retry(job)

    def _try_again(self, job: int, why: str) -> None:
        """Have a job done elsewhere, unless that has been tried."""
        self._orders[job].built = None
        if not self._assignments.lost(job):
            message = f"The evaluator of this kernel was lost {TRIES} times; the last time {why}."
            order = self._orders.pop(job)
            order.deliver(Evaluation(Outcome.CRASH, self._spec.source, message, guard=Guard.SEPARATE_PROCESS))

    def _end(self, job: int, evaluation: Evaluation) -> None:
        self._assignments.end(job)
        self._orders.pop(job).deliver(evaluation)

    def _break(self, sentence: str) -> None:
        """End the run: nobody is there to ask."""
        self._broken = DeviceError(sentence)
        if not self._opened.done():
            self._opened.set_exception(self._broken)
        for job in self._assignments.jobs:
            self._assignments.end(job)
            self._orders.pop(job).deliver(self._broken)

    def _count(self) -> None:
        self._capacity = max(1, sum(self._assignments.serving(stage) for stage in self._route))


def _unwrapped(result: Evaluation | Exception) -> Evaluation:
    if isinstance(result, Exception):
        raise result
    return result


def _opening(spec: DeviceSpec, opener: Opener, service: str, counters: CounterSet) -> Opening:
    """What every evaluator opens. Raises TaskError for a task that can't be used, here or anywhere."""
    task_of(spec)
    described = spec.architecture.endswith(FILE_SUFFIX)
    return Opening(
        role="",
        kind=spec.kind,
        architecture="" if described else spec.architecture,
        seed=spec.seed,
        language=spec.language,
        trial=spec.trial,
        files=pack(spec.task_folder),
        description=Path(spec.architecture).read_bytes() if described else b"",
        opener=f"{opener.__module__}:{opener.__qualname__}",
        service=service,
        counters=counters,
    )
