"""The parent of a process that holds a GPU: one task's tensors and kernels on it.

The process gets inputs, launches and machine code, and returns bytes, times and counters. When it is lost it is
replaced, and the tensors and the baseline are copied and loaded again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from mctskernel.core.device import DeviceError
from mctskernel.core.evaluation import Guard, Outcome
from mctskernel.core.launch_plan import ResolvedPlan
from mctskernel.core.task import Task, shape_label
from mctskernel.profiling.candidate import Candidate, RefusedError, unbound
from mctskernel.profiling.gpu.arenas import (
    Arena,
    Arenas,
    draw_timed,
    draw_verified,
    know_products,
    timed_bytes,
)
from mctskernel.profiling.gpu.lock import GpuLock
from mctskernel.profiling.gpu.protocol import (
    GPU_REPLIES,
    Code,
    Count,
    Counted,
    Failed,
    GpuReply,
    GpuRequest,
    Load,
    Loaded,
    Opened,
    OpenGpu,
    Packed,
    Plan,
    PlannedLaunch,
    Ran,
    Recheck,
    Rechecked,
    ReleaseCounters,
    Run,
    ScratchPlace,
    Step,
    Time,
    Timed,
    Wear,
)
from mctskernel.profiling.gpu.reference_device import (
    give_back_memory,
    hold,
    holding,
    reference_device,
)
from mctskernel.profiling.gpu.timing import FEWEST_VARIANTS
from mctskernel.profiling.processes.channel import Ready
from mctskernel.profiling.processes.child_process import LostError
from mctskernel.profiling.processes.conversation import Conversation
from mctskernel.profiling.processes.shared_window import SharedWindow
from mctskernel.profiling.ptx_text import variables

GPU_SERVICE = "mctskernel.profiling.gpu.service:GpuService"

RUN_SECONDS = 10.0
"""How long all verification runs may take together. A starting kernel takes a thousandth of it."""

TIME_SECONDS = 20.0
COUNT_SECONDS = 20.0
PLACE_SECONDS = 60.0
MEMORY_BYTES = 6 << 30

BASELINE, CANDIDATE = 0, 1
"""The slots of the kernel that times are interleaved with, and of the one that is evaluated."""

Process = tuple[SharedWindow, Conversation[GpuReply]]
"""A process that holds a GPU, and the memory that is shared with it."""

_ahead: dict[OpenGpu, Process] = {}
"""Processes that were started before anybody needs them."""

Expected = TypeVar("Expected")
Reply = TypeVar("Reply", Ran, Timed, Rechecked, Counted)


@contextmanager
def started_ahead(gpus: Sequence[str], metrics: Sequence[str]) -> Iterator[None]:
    """Have the first workers of these GPUs in this block find their processes open, which takes seconds."""
    requests = [OpenGpu(GPU_SERVICE, MEMORY_BYTES, tuple(metrics), gpu) for gpu in gpus]
    _ahead.update((request, _started(request)) for request in requests)
    try:
        yield
    finally:
        for request in requests:
            if (unused := _ahead.pop(request, None)) is not None:
                unused[1].close()
                unused[0].close()


def _started(request: OpenGpu) -> Process:
    window = SharedWindow()
    module, role = "mctskernel.profiling.gpu.process", "ran the kernel"
    return window, Conversation(module, role, request, GPU_REPLIES, shared=(window.fd,))


class GpuWorker:
    """A GPU with the tensors of one task on it. For one thread, besides `interrupt`.

    `service` names what runs in the GPU process, `gpu` is the GPU's UUID, empty for the first visible one. Inputs
    follow from `seed`. `place` comes before all other requests. They raise LostError when the process is lost,
    RefusedError when the GPU refuses the kernel, and DeviceError when the GPU can't be used at all.
    """

    def __init__(
        self, task: Task, seed: int, metrics: Sequence[str], service: str = GPU_SERVICE, gpu: str = ""
    ) -> None:
        self.task, self._seed = task, seed
        self._baseline: Candidate | None = None
        self._counts = False
        self._opened: Opened | None = None
        self.arenas = Arenas(())
        request = OpenGpu(service, MEMORY_BYTES, tuple(metrics), gpu)
        self._window, self._process = _ahead.pop(request) if request in _ahead else _started(request)
        self._process.opened = self._set_up

    @property
    def has_baseline(self) -> bool:
        """Whether times are interleaved with a baseline, and not with the candidate itself."""
        return self._baseline is not None

    def draw_verified(self) -> tuple[Arena, ...]:
        """Draw the cases that candidates are verified on, from any thread; the GPU isn't used. Raises TaskError."""
        verified = draw_verified(self.task, self._seed, self._window)
        know_products(verified)
        return verified

    def place(self, verified: tuple[Arena, ...], lock: GpuLock | None = None) -> None:
        """Put all cases on the GPU, drawn there where it can, by turns as `holding` gives them. Raises TaskError."""
        opened = self.opened
        self._require_memory(opened)
        device = reference_device(self.task, opened.gpu.uuid)
        with holding(lock, device):
            try:
                timed = draw_timed(self.task, self._seed, self._window, len(verified), device)
                know_products(timed)
            finally:
                give_back_memory(device)
            self.arenas = Arenas(verified, timed)
            try:
                for arena in self.arenas:
                    hold()
                    self._place(arena)
            except LostError:
                # Its replacement gets all of them.
                self._process.open()

    @property
    def opened(self) -> Opened:
        """The GPU, once it was opened."""
        if self._opened is None:
            self._process.open()
        assert self._opened is not None  # noqa: S101 - set by `_set_up`
        return self._opened

    def load(self, candidate: Candidate) -> Loaded:
        """Put the candidate on the GPU, in place of the last one."""
        return self._load(CANDIDATE, candidate)

    def renew(self, candidate: Candidate) -> None:
        """Load the candidate in a new process, in which it has seen no inputs."""
        self._process.renew()
        self.load(candidate)

    def load_baseline(self, candidate: Candidate) -> None:
        """Load the kernel that times are interleaved with from now on."""
        self._load(BASELINE, candidate)
        self._baseline = candidate

    def run(self, candidate: Candidate, arenas: Sequence[Arena]) -> Ran:
        """Run the loaded candidate once on each arena, and fetch its outputs."""
        steps = tuple(Step(self._plan(CANDIDATE, candidate, arena), arena.reads[0]) for arena in arenas)
        return self._own(self._ask(Run(steps), RUN_SECONDS, Ran, candidate), candidate)

    def wear(self, candidate: Candidate, before: Arena, times: int, arena: Arena) -> Ran:
        """Run the candidate `times` times on an arena, its variables kept, then on another one; fetch its outputs."""
        step = Step(self._plan(CANDIDATE, candidate, arena), arena.reads[0])
        request = Wear(self._plan(CANDIDATE, candidate, before), times, step)
        return self._own(self._ask(request, RUN_SECONDS, Ran, candidate), candidate)

    def time(
        self,
        candidate: Candidate,
        arena: Arena,
        seconds: float,
        baseline_runs: int,
        hopeless_seconds: float = math.inf,
    ) -> Timed:
        """Time the loaded candidate for about `seconds` of its own runs; without a baseline, against itself.

        The baseline makes at least `baseline_runs` runs, as far as they fit into as many seconds. A slow candidate that
        takes more than `hopeless_seconds` runs twice, and the baseline doesn't.
        """
        request = Time(
            *self._plans(candidate, arena),
            seconds,
            baseline_runs,
            arena.reads,
            hopeless_seconds,
            arena.checked_only,
        )
        timed = self._own(self._ask(request, TIME_SECONDS, Timed, candidate), candidate)
        hopeless = bool(timed.samples) and not timed.baseline and timed.samples[0] > hopeless_seconds
        fewest = min(FEWEST_VARIANTS, len(arena.variants)) if hopeless else len(arena.variants)
        if not timed.samples or not (timed.baseline or hopeless) or len(timed.fetched) < fewest:
            raise self._process.unexpected()
        self._check_variants(arena, (*timed.fetched, *(run.variant for run in timed.runs)), timed.fetched)
        return timed

    def recheck(self, candidate: Candidate, arena: Arena) -> Rechecked:
        """Run the loaded candidate as when it is timed, and fetch the outputs of any of the runs."""
        request = Recheck(*self._plans(candidate, arena), arena.reads)
        rechecked = self._own(self._ask(request, TIME_SECONDS, Rechecked, candidate), candidate)
        self._check_variants(arena, [rechecked.run.variant])
        return rechecked

    def count(self, candidate: Candidate, arena: Arena, *, brief: bool = False) -> Counted:
        """Count one run of the loaded candidate in hardware; `brief` leaves out what would need it to run again."""
        self._counts = True
        request = Count(self._plan(CANDIDATE, candidate, arena), brief)
        return self._own(self._ask(request, COUNT_SECONDS, Counted, candidate), candidate)

    def release_counters(self) -> None:
        """Let other processes read counters on this GPU; the next count sets them up again."""
        if not self._counts:
            return
        self._counts = False
        # A process that is lost here has nothing left to release.
        with suppress(LostError):
            self._process.ask(ReleaseCounters(), COUNT_SECONDS)

    def pause(self) -> None:
        """End the GPU process, with all of its memory and counters, until it is needed again."""
        self._counts = False
        self._process.pause()

    def interrupt(self) -> None:
        """End the GPU process for good, from any thread."""
        self._process.interrupt()

    def close(self) -> None:
        """End the GPU process and free the tensors."""
        self._process.close()
        self._window.close()

    def _set_up(self, reply: GpuReply) -> None:
        """Bring a new process to the state of the last one."""
        if not isinstance(reply, Opened):
            raise self._process.unexpected()
        self._opened = reply
        for arena in self.arenas:
            self._place(arena)
        if self._baseline is not None:
            self._load(BASELINE, self._baseline)

    def _place(self, arena: Arena) -> None:
        match self._process.ask(arena.place, PLACE_SECONDS):
            case Ready():
                pass
            case Failed(message, lost=True):
                # No candidate has run in this process: the machine failed, and another process may succeed.
                self._process.renew()
                raise LostError(Outcome.CRASH, message)
            case Failed(message):
                raise DeviceError(
                    f"The GPU has no room for the tensors of '{self.task.name}' at {shape_label(arena.shape)}: "
                    f"{message} Perhaps another process is using it."
                )
            case _:
                raise self._process.unexpected()

    def _require_memory(self, opened: Opened) -> None:
        """Raise DeviceError, before anything large is drawn, where it would not fit."""
        needed = timed_bytes(self.task)
        if opened.free_bytes and needed > opened.free_bytes:
            raise DeviceError(
                f"'{self.task.name}' needs {needed / 1e9:.1f} GB of the GPU's memory for its inputs, copies of them "
                f"and outputs, and {opened.free_bytes / 1e9:.1f} GB are free: use smaller sizes or another GPU, or end "
                "other processes on it."
            )

    def _load(self, slot: int, candidate: Candidate) -> Loaded:
        return self._ask(Load(slot, _codes(candidate)), RUN_SECONDS, Loaded, candidate)

    def _plans(self, candidate: Candidate, arena: Arena) -> tuple[Plan, Plan]:
        """The candidate's, and the baseline's."""
        plan = self._plan(CANDIDATE, candidate, arena)
        return plan, self._plan(BASELINE, self._baseline, arena) if self._baseline is not None else plan

    def _plan(self, slot: int, candidate: Candidate, arena: Arena) -> Plan:
        resolved = candidate.at(self.task, arena.shape)
        scratch = tuple(ScratchPlace(each.name, each.nbytes, each.zero) for each in resolved.scratch)
        launches = _launches(candidate, resolved, self.task)
        return Plan(slot, arena.index, launches, scratch, resolved.tensor_maps)

    def _own(self, reply: Reply, candidate: Candidate) -> Reply:
        """The reply of a kernel that wrote to its own memory only. Raises RefusedError for any other."""
        if not reply.foreign_write:
            return reply
        # Inputs and other data of the evaluator may be overwritten.
        self._process.renew()
        raise RefusedError(Outcome.WRONG_RESULT, Guard.GUARD_BYTES, reply.foreign_write, candidate)

    def _ask(
        self,
        request: GpuRequest,
        seconds: float,
        expected: type[Expected],
        candidate: Candidate,
    ) -> Expected:
        """The expected reply. Raises RefusedError for a kernel that the GPU refused, and LostError."""
        reply = self._process.ask(request, seconds)
        if isinstance(reply, expected):
            return reply
        if not isinstance(reply, Failed):
            raise self._process.unexpected()
        if reply.lost:
            self._process.renew()
            raise RefusedError(Outcome.CRASH, Guard.SEPARATE_PROCESS, reply.message, candidate)
        raise RefusedError(Outcome.LAUNCH_ERROR, Guard.LAUNCH_LIMITS, reply.message, candidate)

    def _check_variants(
        self, arena: Arena, variants: Sequence[int], fetched: Collection[int] | None = None
    ) -> None:
        """Raise LostError for runs on inputs that don't exist, or whose outputs weren't fetched."""
        known = range(len(arena.variants))
        if any(each not in known or (fetched is not None and each not in fetched) for each in variants):
            raise self._process.unexpected()


def _codes(candidate: Candidate) -> tuple[Code, ...]:
    return tuple(
        Code(made.cubin, tuple(made.entries.values()), variables(made.ptx)) for made in candidate.builds
    )


def _launches(candidate: Candidate, resolved: ResolvedPlan, task: Task) -> tuple[PlannedLaunch, ...]:
    empty = unbound(task, resolved)
    return tuple(
        PlannedLaunch(
            candidate.index_of(launch),
            candidate.entry_of(launch),
            launch,
            tuple(
                argument if isinstance(argument, str) else Packed(packed)
                for argument, packed in zip(launch.arguments, candidate.arguments(launch, empty), strict=True)
            ),
        )
        for launch in resolved.launches
    )
