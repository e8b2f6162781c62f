"""The module evaluator: whether PyTorch modules are right, and how much faster than their reference.

Everything that counts is drawn, clocked and compared here, outside the processes that run modules.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mctskernel.core.evaluation import Check, Evaluation, Guard, Outcome, Source
from mctskernel.core.task import TaskError
from mctskernel.profiling.build_cache import cache_folder
from mctskernel.profiling.pytorch.client import (
    Client,
    ForkServer,
    Model,
    ModuleError,
    ReferenceClient,
    Round,
    WorkerClient,
    blaming_the_task,
)
from mctskernel.profiling.pytorch.memory import DeviceMemory, HostMemory, Snapshot
from mctskernel.profiling.pytorch.protocol import Load
from mctskernel.profiling.pytorch.verdict import (
    Speedup,
    check_call,
    check_outputs,
    check_source,
    failed,
    speedup_of,
)
from mctskernel.profiling.stages import Stages

MODELS = 2  # with how many sets of weights a module is verified

CALLS = 3
"""How often it is called with each of them before anything is timed, the last time on widened inputs."""

KEY_BYTES = 32

WARM_UP_ROUNDS = 2
QUIET_ROUNDS = 5
FEWEST_ROUNDS = 5


@dataclass(frozen=True)
class Settings:
    """How modules are evaluated, and what they may take.

    Inputs and weights follow from `seed`, which no author of a module may know beforehand. A module is timed for
    `runs` rounds, and for up to `most_runs`, if that is more, as long as it can't be told apart from the round trip
    to its process; for fewer once `seconds` have passed. `own_kernels` refuses modules that define no kernel.
    `load_seconds` are for loading a source and for making a model, each.
    """

    device: str = "cpu"
    seed: int = field(default_factory=lambda: secrets.randbits(48))
    runs: int = 30
    most_runs: int = 0
    seconds: float = 60.0
    own_kernels: bool = False
    load_seconds: float = 300.0
    call_seconds: float = 60.0
    memory_bytes: int = 16 << 30


@dataclass(frozen=True)
class ModuleVerdict:
    """An evaluation, and the speed-up where the module was timed."""

    evaluation: Evaluation
    speedup: Speedup | None = None


@contextmanager
def open_evaluator(
    reference: str, settings: Settings | None = None, server: ForkServer | None = None
) -> Iterator[ModuleEvaluator]:
    """An evaluator for a reference's source, for one module after another.

    Without a `server` it starts one of its own, which takes as long as importing PyTorch.
    Raises TaskError for a reference that can't be used, and DeviceError for a machine that lacks something.
    """
    with ExitStack() as stack:
        forks = server or stack.enter_context(contextlib.closing(ForkServer()))
        yield ModuleEvaluator(forks, reference, settings or Settings(), stack)


class ModuleEvaluator:
    """A reference with its processes, whose module is timed interleaved with the candidate's as the baseline."""

    def __init__(self, server: ForkServer, reference: str, settings: Settings, stack: ExitStack) -> None:
        self._server, self._settings = server, settings
        if settings.device != "cpu":
            from mctskernel.profiling.gpu.cuda_driver import open_gpu  # noqa: PLC0415 - needs a driver

            open_gpu()
        self._key, self._seeds = secret_key(), itertools.count()
        self._rng = np.random.default_rng(self._seed())
        with blaming_the_task():
            self._reference = ReferenceClient(server, settings.load_seconds)
            stack.callback(self._reference.close)
            self._load(self._reference, reference, "Model")
            self._model = self._reference.model(self._seed(), from_seed=False)
            self._pattern = self._reference.draw(self._seed())
            self._check_repeats()
            self._baseline = self._worker(stack, "runs the reference", reference, "Model", self._model)

    def evaluate(self, candidate: str) -> ModuleVerdict:
        trial = _Trial()
        with ExitStack() as stack:
            try:
                check_source(candidate, own_kernels=self._settings.own_kernels)
                speedup = self._try(candidate, trial, stack)
            except ModuleError as error:
                return ModuleVerdict(trial.refused(error))
            except TaskError as error:
                stack.close()
                self._own_seconds(self._draw())  # raises if it is the reference's own fault
                message = f"Beside this module the reference stopped working: {error}"
                lost = ModuleError(Outcome.CRASH, message, guard=Guard.SEPARATE_PROCESS)
                return ModuleVerdict(trial.refused(lost))
        return ModuleVerdict(trial.accepted(speedup), speedup)

    def _try(self, candidate: str, trial: _Trial, stack: ExitStack) -> Speedup:
        stages = trial.stages
        with stages.timed("baseline"):
            self._new_model(from_seed=False)
            quiet = self._quiet_rounds()
        with stages.timed("build"):
            worker = self._worker(stack, "calls the module", candidate, "ModelNew", self._model)
        with stages.timed("verify"):
            for number in range(MODELS):
                if number:
                    self._new_model(from_seed=trial.from_seed)
                self._make(worker, trial)
                self._verify(worker, trial)
        with stages.timed("time"):
            return self._time(worker, trial, quiet)

    def _make(self, worker: WorkerClient, trial: _Trial) -> None:
        """Make the candidate's model with the reference's weights, or under its seed where they don't fit."""
        if self._construct(worker) or trial.from_seed:
            return
        trial.from_seed = True
        trial.flags.append(
            "Its parameters have other names or shapes than the reference's: it got the same seed, not the weights."
        )
        self._new_model(from_seed=True)
        self._construct(worker)

    def _construct(self, worker: WorkerClient) -> bool:
        with worker.running():
            return worker.construct(self._model, self._settings.load_seconds)

    def _verify(self, worker: WorkerClient, trial: _Trial) -> None:
        earlier: Snapshot | None = None
        for number in range(CALLS):
            drawn = self._draw(widened=number == CALLS - 1)
            _, snapshot = self._call(worker, drawn)
            trial.add(check_call(drawn, snapshot, self._settings.seed))
            if earlier is not None:
                with worker.running():
                    again = worker.reread(self._settings.call_seconds)
                if not np.array_equal(again, earlier.outputs):
                    message = "The outputs of an earlier call were overwritten by a later one."
                    trial.add(failed(message, self._settings.seed, Guard.REPETITION))
            earlier = snapshot

    def _time(self, worker: WorkerClient, trial: _Trial, quiet: tuple[list[float], list[float]]) -> Speedup:
        end = time.monotonic() + self._settings.seconds
        ours, baseline, echo = seconds = [list[float]() for _ in range(3)]
        enough = self._settings.runs
        while True:
            if len(ours) >= enough or (len(ours) >= FEWEST_ROUNDS and time.monotonic() >= end):
                speedup = speedup_of(ours, (baseline, echo), quiet)
                enough = min(2 * enough, max(self._settings.runs, self._settings.most_runs))
                if not speedup.doubt or len(ours) >= enough or time.monotonic() >= end:
                    return speedup
            drawn = self._draw()
            for number in self._rng.permutation(len(seconds)).tolist():
                if number == 0:
                    taken, snapshot = self._call(worker, drawn)
                    trial.add(check_call(drawn, snapshot, self._settings.seed))
                else:
                    taken = self._own_seconds(drawn, is_echo=number == 2)
                seconds[number].append(taken)

    def _quiet_rounds(self) -> tuple[list[float], list[float]]:
        """Seconds of the baseline's and the echo's calls before the candidate's process begins."""
        seconds: list[list[float]] = []
        for _ in range(WARM_UP_ROUNDS + QUIET_ROUNDS):
            drawn = self._draw()
            seconds.append([self._own_seconds(drawn, is_echo=is_echo) for is_echo in (False, True)])
        baseline, echo = map(list, zip(*seconds[WARM_UP_ROUNDS:], strict=True))
        return baseline, echo

    def _own_seconds(self, drawn: Round, *, is_echo: bool = False) -> float:
        """Of one call of the baseline, or its echo."""
        with blaming_the_task():
            return self._call(self._baseline, drawn, is_echo=is_echo)[0]

    def _call(self, worker: WorkerClient, drawn: Round, *, is_echo: bool = False) -> tuple[float, Snapshot]:
        """One call, with every other worker stopped."""
        with worker.running():
            return worker.call(drawn, self._rng, self._settings.call_seconds, is_echo=is_echo)

    def _new_model(self, *, from_seed: bool) -> None:
        self._model = self._reference.model(self._seed(), from_seed=from_seed)
        with blaming_the_task():
            self._construct(self._baseline)

    def _draw(self, *, widened: bool = False) -> Round:
        drawn, pattern = self._reference.draw(self._seed(), widened=widened), self._pattern
        if (drawn.inputs.structure, drawn.plain.structure) != (
            pattern.inputs.structure,
            pattern.plain.structure,
        ):
            raise TaskError("The reference's get_inputs gives other shapes each time.")
        return drawn

    def _worker(
        self, stack: ExitStack, doing: str, source: str, class_name: str, model: Model
    ) -> WorkerClient:
        """A worker that has loaded a source, with room for models as large as `model`."""
        pattern = self._pattern
        kind = HostMemory if self._settings.device == "cpu" else DeviceMemory
        memory = kind(pattern.plain.structure.tensors, pattern.inputs.content.nbytes)
        worker = WorkerClient(self._server, doing, pattern.plain.structure, memory, model)
        stack.callback(worker.close)
        structures = pattern.inputs.structure, pattern.plain.structure, memory.sizes
        self._load(worker, source, class_name, *structures)
        return worker

    def _load(self, client: Client, source: str, class_name: str, *shared: Any) -> None:
        settings = self._settings
        request = Load(settings.device, settings.memory_bytes, source, class_name, *shared)
        client.load(request, settings.load_seconds)

    def _check_repeats(self) -> None:
        seed = self._seed()
        first, second = self._reference.draw(seed), self._reference.draw(seed)
        if not np.array_equal(first.inputs.content, second.inputs.content):
            raise TaskError("The reference's get_inputs gives other inputs under the same seed.")
        itself = replace(first, truth=first.plain)
        if not check_outputs(itself, second.plain.content, seed).passed:
            raise TaskError("The reference gives other outputs for the same inputs.")

    def _seed(self) -> int:
        """The next seed. From those that a candidate gets, or finds by trial, no other follows."""
        text = f"{self._settings.seed} {next(self._seeds)}".encode()
        return int.from_bytes(hashlib.blake2b(text, key=self._key, digest_size=8).digest(), "big") >> 2


def secret_key() -> bytes:
    """The user's key of input seeds, made when first needed, or this process's; no candidate may read it."""
    folder = cache_folder()
    if folder is not None:
        file = folder.with_name("key")
        with contextlib.suppress(OSError):
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                made = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                os.write(made, secrets.token_bytes(KEY_BYTES))
                os.close(made)
            if key := file.read_bytes():
                return key
    return secrets.token_bytes(KEY_BYTES)


@dataclass
class _Trial:
    """What has been found about one module so far."""

    flags: list[str] = field(default_factory=list)
    stages: Stages = field(default_factory=Stages)
    from_seed: bool = False
    checks: list[Check] = field(default_factory=list)

    def add(self, check: Check) -> None:
        """Keep a check. Raises ModuleError for one that fails."""
        self.checks.append(check)
        if not check.passed:
            raise ModuleError(Outcome.WRONG_RESULT, check.message, guard=check.guard)

    def refused(self, error: ModuleError) -> Evaluation:
        return self._evaluation(error.outcome, message=error.message, log=error.log, guard=error.guard)

    def accepted(self, speedup: Speedup) -> Evaluation:
        self.flags += speedup.flags
        return self._evaluation(Outcome.OK, timings=(speedup.timing,), quarantine=speedup.doubt)

    def _evaluation(self, outcome: Outcome, **found: Any) -> Evaluation:
        checks, flags, seconds = tuple(self.checks), tuple(self.flags), self.stages.seconds
        return Evaluation(
            outcome, Source.MEASURED, checks=checks, flags=flags, stage_seconds=seconds, **found
        )
