"""The judgement of modules: everything that counts is drawn, clocked and compared here, outside their processes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from mctskernel.core.evaluation import Check, Evaluation, Guard, Outcome, Source
from mctskernel.core.task import TaskError
from mctskernel.profiling.pytorch.echo import ECHO, echo_model
from mctskernel.profiling.pytorch.memory import HostMemory, Memory
from mctskernel.profiling.pytorch.orders import Role
from mctskernel.profiling.pytorch.processes import ForkServer, fork_server
from mctskernel.profiling.pytorch.reference import Reference, Round
from mctskernel.profiling.pytorch.seat import Call, ModuleError, Seat
from mctskernel.profiling.pytorch.source import ModuleSourceError, read_source
from mctskernel.profiling.pytorch.speedup import Speedup, Turns, compared
from mctskernel.profiling.pytorch.structures import slots
from mctskernel.profiling.pytorch.verdict import Judgement, judge_bytes, judge_call
from mctskernel.profiling.stages import Stages

MODELS = 2
"""With how many sets of weights a module is verified."""

CALLS = 3
"""How often it is called with each of them before anything is timed."""

WARM_UP_ROUNDS = 2
QUIET_ROUNDS = 5
FEWEST_ROUNDS = 5


@dataclass(frozen=True)
class Limits:
    """What a module may cost: seconds for loading and for making a model, for a call, and bytes of memory."""

    load_seconds: float = 300.0
    call_seconds: float = 60.0
    memory_bytes: int = 16 << 30


@dataclass(frozen=True)
class Terms:
    """How modules are judged. `seed` decides inputs and weights: no author of a module may know it beforehand.

    A module is timed for `runs` rounds, and for up to `most_runs`, if that is more, as long as it can't be told apart
    from the way to its process; for fewer once `seconds` have passed. `own_kernels` refuses those that define no
    kernel.
    """

    device: str = "cpu"
    seed: int = field(default_factory=lambda: secrets.randbits(48))
    runs: int = 30
    most_runs: int = 0
    seconds: float = 60.0
    own_kernels: bool = False
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class ModuleVerdict:
    """An evaluation, and the speed-up where the module was timed."""

    evaluation: Evaluation
    speedup: Speedup | None = None


@contextmanager
def referee(
    reference: str, terms: Terms | None = None, server: ForkServer | None = None
) -> Iterator[Referee]:
    """A referee for a reference's source, ready to judge modules one after another.

    Without a `server` it starts one of its own, which takes as long as importing PyTorch.
    Raises TaskError for a reference that can't be used, and DeviceError for a machine that lacks something.
    """
    terms = terms or Terms()
    with ExitStack() as stack:
        forks = server or stack.enter_context(fork_server())
        yield Referee(forks, reference, terms, stack)


class Referee:
    """A reference with the processes that stand for it.

    The baseline is the reference's own module in a host like the candidate's; the echo is a module that does nothing,
    whose time is that of the way there and back. They and the candidate take turns.
    """

    def __init__(self, server: ForkServer, reference: str, terms: Terms, stack: ExitStack) -> None:
        self._server, self._terms = server, terms
        if terms.device != "cpu":
            from mctskernel.profiling.gpu.cuda_driver import open_gpu  # noqa: PLC0415 - needs a driver

            open_gpu()
        self._rng = np.random.default_rng(np.random.SeedSequence(terms.seed).spawn(1)[0])
        process = server.fork(Role.REFERENCE, "computes the reference")
        stack.callback(process.kill)
        limits = terms.limits
        self._reference = Reference(
            process, reference, terms.device, limits.memory_bytes, limits.load_seconds
        )
        self._model = self._reference.model(self._seed(), from_seed=False)
        self._pattern = self._reference.draw(self._seed())
        self._check_repeats()
        with _on_behalf_of_the_task():
            self._baseline = self._seat(stack, "runs the reference", reference, "Model")
            self._echo = self._seat(stack, "echoes", ECHO, "Model")
            nothing = echo_model(self._pattern.outputs, self._pattern.plain)
            self._echo.construct(nothing, limits.load_seconds)
            nothing.close()
        stack.callback(self._close_model)

    def judge(self, candidate: str) -> ModuleVerdict:
        """The verdict on a module's source."""
        try:
            source = read_source(candidate, own_kernels=self._terms.own_kernels)
        except ModuleSourceError as error:
            return ModuleVerdict(Evaluation(error.outcome, Source.MEASURED, str(error), guard=error.guard))
        trial = _Trial(flags=list(source.flags), stages=Stages())
        with ExitStack() as stack:
            try:
                speedup = self._try(candidate, trial, stack)
            except ModuleError as error:
                return ModuleVerdict(trial.refused(error))
            except TaskError as error:
                stack.close()
                self._check_health()  # raises if it is the reference's own fault
                message = f"Beside this module the reference stopped working: {error}"
                return ModuleVerdict(
                    trial.refused(ModuleError(Outcome.CRASH, message, guard=Guard.SEPARATE_PROCESS))
                )
        return ModuleVerdict(trial.accepted(speedup), speedup)

    def _try(self, candidate: str, trial: _Trial, stack: ExitStack) -> Speedup:
        stages = trial.stages
        with stages.timed("baseline"):
            self._new_model(from_seed=False)
            quiet = self._quiet_rounds()
        with stages.timed("build"):
            seat = self._seat(stack, "calls the module", candidate, "ModelNew")
        with stages.timed("verify"):
            for number in range(MODELS):
                if number:
                    self._new_model(from_seed=trial.from_seed)
                self._make(seat, trial)
                self._verify(seat, trial)
        with stages.timed("time"):
            return self._time(seat, trial, quiet)

    def _make(self, seat: Seat, trial: _Trial) -> None:
        """Make the candidate's model with the reference's weights, or under its seed where they don't fit."""
        if self._construct(seat):
            return
        if not trial.from_seed:
            trial.from_seed = True
            trial.flags.append(
                "Its parameters have other names or shapes than the reference's: they got the same seed and no more."
            )
            self._new_model(from_seed=True)
            self._construct(seat)

    def _construct(self, seat: Seat) -> bool:
        with _awake(seat):
            return seat.construct(self._model, self._terms.limits.load_seconds)

    def _verify(self, seat: Seat, trial: _Trial) -> None:
        earlier: Call | None = None
        for _ in range(CALLS):
            drawn = self._draw()
            call = self._turn(seat, drawn)
            trial.add(judge_call(drawn, call, self._terms.seed))
            if earlier is not None:
                with _awake(seat):
                    again = seat.again(self._terms.limits.call_seconds)
                if not np.array_equal(again, earlier.left.outputs):
                    message = "What an earlier call gave was overwritten by a later one."
                    trial.add(_failed(message, self._terms.seed, Guard.REPETITION))
            earlier = call

    def _time(self, seat: Seat, trial: _Trial, quiet: _Quiet) -> Speedup:
        end = time.monotonic() + self._terms.seconds
        seats = (seat, self._baseline, self._echo)
        seconds: tuple[list[float], ...] = ([], [], [])
        ours, baseline, echo = seconds
        enough = self._terms.runs
        while True:
            if len(ours) >= enough or (len(ours) >= FEWEST_ROUNDS and time.monotonic() >= end):
                speedup = compared(Turns(ours, baseline, echo, quiet.baseline, quiet.echo), "as given")
                enough = min(2 * enough, max(self._terms.runs, self._terms.most_runs))
                if not speedup.doubt or len(ours) >= enough or time.monotonic() >= end:
                    return speedup
            drawn = self._draw()
            for number in self._rng.permutation(len(seats)):
                if seats[number] is seat:
                    call = self._turn(seat, drawn)
                    trial.add(judge_call(drawn, call, self._terms.seed))
                else:
                    call = self._own_turn(seats[number], drawn)
                seconds[number].append(call.seconds)

    def _quiet_rounds(self) -> _Quiet:
        quiet = _Quiet()
        for number in range(WARM_UP_ROUNDS + QUIET_ROUNDS):
            drawn = self._draw()
            for seat, seconds in ((self._baseline, quiet.baseline), (self._echo, quiet.echo)):
                call = self._own_turn(seat, drawn)
                if number >= WARM_UP_ROUNDS:
                    seconds.append(call.seconds)
        return quiet

    def _own_turn(self, seat: Seat, drawn: Round) -> Call:
        """One call of the baseline or the echo."""
        with _on_behalf_of_the_task():
            return self._turn(seat, drawn)

    def _turn(self, seat: Seat, drawn: Round) -> Call:
        """One call, with every other host stopped."""
        with _awake(seat):
            return seat.call(drawn, self._rng, self._terms.limits.call_seconds)

    def _close_model(self) -> None:
        self._model.close()

    def _new_model(self, *, from_seed: bool) -> None:
        self._model.close()
        self._model = self._reference.model(self._seed(), from_seed=from_seed)
        with _on_behalf_of_the_task(), _awake(self._baseline):
            self._baseline.construct(self._model, self._terms.limits.load_seconds)

    def _draw(self) -> Round:
        drawn = self._reference.draw(self._seed())
        if drawn.inputs != self._pattern.inputs or drawn.outputs != self._pattern.outputs:
            raise TaskError("The reference's get_inputs gives other shapes each time.")
        return drawn

    def _seat(self, stack: ExitStack, doing: str, source: str, class_name: str) -> Seat:
        process = self._server.fork(Role.HOST, doing)
        seat = Seat(process, self._pattern.outputs, self._memory())
        stack.callback(seat.close)
        limits = self._terms.limits
        seat.load(source, class_name, self._terms.device, limits.memory_bytes, limits.load_seconds)
        return seat

    def _memory(self) -> Memory:
        outputs = tuple(slots(self._pattern.outputs))
        if self._terms.device == "cpu":
            return HostMemory(outputs)
        from mctskernel.profiling.pytorch.device_memory import DeviceMemory  # noqa: PLC0415 - needs a driver

        return DeviceMemory(outputs, self._pattern.content.nbytes)

    def _check_health(self) -> None:
        drawn = self._draw()
        for seat in (self._baseline, self._echo):
            self._own_turn(seat, drawn)

    def _check_repeats(self) -> None:
        seed = self._seed()
        first, second = self._reference.draw(seed), self._reference.draw(seed)
        if not np.array_equal(first.content, second.content):
            raise TaskError("The reference's get_inputs gives other inputs under the same seed.")
        itself = replace(first, expected=first.outputs, truth=first.plain)
        if not judge_bytes(itself, second.plain, seed).check.passed:
            raise TaskError("The reference gives other outputs for the same inputs.")

    def _seed(self) -> int:
        return int(self._rng.integers(0, 1 << 62))


@contextmanager
def _awake(seat: Seat) -> Iterator[None]:
    """While this lasts a host runs; before and after it is stopped, so that it can't disturb the others."""
    seat.resume()
    try:
        yield
    finally:
        seat.pause()


@dataclass
class _Quiet:
    """Seconds of calls before the candidate's process began."""

    baseline: list[float] = field(default_factory=list)
    echo: list[float] = field(default_factory=list)


@dataclass
class _Trial:
    """What has been found about one module so far."""

    flags: list[str]
    stages: Stages
    from_seed: bool = False
    checks: list[Check] = field(default_factory=list)

    def add(self, judgement: Judgement) -> None:
        """Keep a check. Raises ModuleError for one that fails."""
        self.checks.append(judgement.check)
        if not judgement.check.passed:
            raise ModuleError(Outcome.WRONG_RESULT, judgement.check.message, guard=judgement.guard)

    def refused(self, error: ModuleError) -> Evaluation:
        """The evaluation of a module that failed."""
        return Evaluation(
            error.outcome,
            Source.MEASURED,
            error.message,
            checks=tuple(self.checks),
            flags=tuple(self.flags),
            log=error.log,
            guard=error.guard,
            stage_seconds=self.stages.seconds,
        )

    def accepted(self, speedup: Speedup) -> Evaluation:
        """The evaluation of a module that is right."""
        return Evaluation(
            Outcome.OK,
            Source.MEASURED,
            timings=(speedup.timing,),
            checks=tuple(self.checks),
            flags=(*self.flags, *speedup.flags),
            quarantine=speedup.doubt,
            stage_seconds=self.stages.seconds,
        )


def _failed(message: str, seed: int, guard: Guard) -> Judgement:
    return Judgement(Check("as given", seed, passed=False, error=float("inf"), message=message), guard)


@contextmanager
def _on_behalf_of_the_task() -> Iterator[None]:
    """What fails in here fails because of the reference."""
    try:
        yield
    except ModuleError as error:
        raise TaskError(f"The reference can't be used: {error.message}") from error
