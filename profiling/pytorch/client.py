"""The module evaluator's processes as it sees them: the server that forks them, a candidate's worker, the reference."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec
import numpy as np

from mctskernel.core.device import DeviceError
from mctskernel.core.evaluation import Guard, Outcome
from mctskernel.core.task import Array, TaskError
from mctskernel.profiling.processes import child_process
from mctskernel.profiling.processes.channel import Ready
from mctskernel.profiling.processes.child_process import ChildProcess, Launched, LostError
from mctskernel.profiling.processes.shared_window import SharedWindow
from mctskernel.profiling.pytorch import protocol
from mctskernel.profiling.pytorch.memory import Memory, Snapshot

FORKING_SECONDS = 180.0  # how long a fork may take, the first time with PyTorch's import

Expected = TypeVar("Expected", bound=msgspec.Struct)


class ModuleError(RuntimeError):
    """A module that can't be evaluated any further, with its outcome."""

    def __init__(self, outcome: Outcome, message: str, log: str = "", guard: Guard | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.log = log
        self.guard = guard


@contextlib.contextmanager
def blaming_the_task() -> Iterator[None]:
    """Turn a module's failure into a TaskError: it is the reference that failed."""
    try:
        yield
    except ModuleError as error:
        raise TaskError(f"The reference can't be used: {error.message}") from error


class ForkServer:
    """A process with PyTorch imported that those that run modules are forked from, and end with; for one thread."""

    def __init__(self) -> None:
        self._child = child_process.start("mctskernel.profiling.pytorch.worker", "forks modules' processes")

    def fork(self, doing: str, memories: tuple[int, ...], *, is_reference: bool) -> ChildProcess:
        """Fork with descriptors of memories; `doing` is for messages (`calls the module`). Raises DeviceError."""

        def launch(scratch: Path, descriptors: tuple[int, ...], stderr: BinaryIO) -> Launched:
            inherited = (*descriptors, stderr.fileno(), *memories)
            pid = self._ask(protocol.Fork(is_reference, str(scratch)), inherited).pid
            return (
                pid,
                lambda: self._ask(protocol.Wait(pid)).how,
                lambda: self._ask(protocol.Wait(pid, reap=True)),
            )

        return child_process.launched(doing, launch)

    def close(self) -> None:
        self._child.kill()

    def _ask(
        self, request: protocol.Fork | protocol.Wait, descriptors: tuple[int, ...] = ()
    ) -> protocol.Forked:
        try:
            self._child.channel.send(request, descriptors)
            return self._child.receive(protocol.FORK_REPLIES, FORKING_SECONDS)
        except (OSError, LostError) as error:
            log = self._child.last_words()[-2000:]
            raise DeviceError(f"PyTorch's processes can't be started: {error} {log}".strip()) from error


@dataclass(frozen=True)
class Value:
    """A value: its structure, and the bytes of its tensors as they lie in shared memory."""

    structure: protocol.Structure
    content: Array


@dataclass(frozen=True)
class Model:
    """What a model is made from: a seed, the constructor's arguments, and the reference's weights."""

    seed: int
    arguments: Value
    weights: Value

    @property
    def nbytes(self) -> int:
        """The room that it takes in a worker's memory."""
        return self.arguments.content.nbytes + self.weights.content.nbytes


@dataclass(frozen=True)
class Round:
    """Fresh inputs and their right outputs: in 64-bit floats, and as the reference computes them."""

    inputs: Value
    truth: Value
    plain: Value
    changed: bool
    widened: bool = False


class Client:
    """A forked process with a window of some bytes, or one that grows. Raises ModuleError for what its module does."""

    def __init__(
        self, server: ForkServer, doing: str, memory: Memory | None = None, window_bytes: int = 0
    ) -> None:
        self._window = SharedWindow(nbytes=window_bytes)
        descriptors = (self._window.fd, *(memory.descriptors if memory else ()))
        self._process = server.fork(doing, descriptors, is_reference=memory is None)

    def load(self, request: protocol.Load, seconds: float) -> None:
        self._ask(request, Ready, Outcome.BUILD_ERROR, seconds)

    def close(self) -> None:
        self._process.kill()
        self._window.close()

    def _ask(
        self, request: msgspec.Struct, expected: type[Expected], outcome: Outcome, seconds: float
    ) -> Expected:
        return self._checked(self._reply(request, seconds), expected, outcome)

    def _reply(self, request: msgspec.Struct, seconds: float) -> msgspec.Struct:
        if self._process.channel.has_unread():
            raise _unasked()
        try:
            return self._process.ask(request, protocol.REPLIES, seconds)
        except LostError as error:
            raise ModuleError(error.outcome, error.message, _printable(error.log), error.guard) from error

    def _checked(self, reply: msgspec.Struct, expected: type[Expected], outcome: Outcome) -> Expected:
        if isinstance(reply, protocol.Failed):
            raise ModuleError(outcome, _printable(reply.message), _printable(reply.log))
        if not isinstance(reply, expected):
            raise _unasked()
        return reply


class WorkerClient(Client):
    """A worker's process, with the memory for its inputs and outputs, and room for models as large as `model`."""

    def __init__(
        self, server: ForkServer, doing: str, outputs: protocol.Structure, memory: Memory, model: Model
    ) -> None:
        super().__init__(server, doing, memory, model.nbytes)
        self._outputs, self._memory, self._room = outputs, memory, model.nbytes

    def construct(self, model: Model, seconds: float) -> bool:
        """Make a model; whether the worker says that the weights fit. Raises TaskError for one that is larger."""
        if model.nbytes > self._room:
            raise TaskError("The reference's get_init_inputs gives other shapes each time.")
        self._window.clear()
        arguments, weights = (
            protocol.Stored(each.structure, self._window.put(each.content))
            for each in (model.arguments, model.weights)
        )
        request = protocol.Construct(model.seed, arguments, weights)
        return self._ask(request, protocol.Constructed, Outcome.BUILD_ERROR, seconds).loaded

    def call(
        self, drawn: Round, rng: np.random.Generator, seconds: float, *, is_echo: bool = False
    ) -> tuple[float, Snapshot]:
        """Call the model on fresh inputs, and give seconds and the memory after it; of an echo, see `Run`.

        The clock runs from when the inputs are given until elements at random places are read, after the worker said
        that it is done: what isn't there by then is missing. The rest is read once the worker is stopped.
        """
        memory = self._memory
        memory.prepare(drawn.inputs.content, rng)
        self._ask(protocol.Prepare(), Ready, Outcome.CRASH, seconds)
        began = time.perf_counter()
        memory.publish()
        reply = self._reply(protocol.Run(memory.inputs, is_echo), seconds)
        memory.probe()
        ended = time.perf_counter()
        self._process.pause()
        snapshot = memory.collect()
        self._check_structure(self._checked(reply, protocol.Done, Outcome.LAUNCH_ERROR))
        return ended - began, snapshot

    def reread(self, seconds: float) -> Array:
        """The bytes of the outputs of the call before the last, as they are now."""
        self._memory.poison()
        self._check_structure(self._ask(protocol.Reread(), protocol.Done, Outcome.LAUNCH_ERROR, seconds))
        return self._memory.outputs()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Let the process run; before and after it is stopped, so that it can't disturb others."""
        self._process.resume()
        try:
            yield
        finally:
            self._process.pause()

    def close(self) -> None:
        super().close()
        self._memory.close()

    def _check_structure(self, done: protocol.Done) -> None:
        if done.given != self._outputs:
            message = f"The module returns {_printable(str(done.given)[:500])}, not {self._outputs}."
            raise ModuleError(Outcome.WRONG_RESULT, message, guard=Guard.COMPARISON)


class ReferenceClient(Client):
    """The reference's process. Whatever fails in it is the task's fault: TaskError."""

    def __init__(self, server: ForkServer, seconds: float) -> None:
        super().__init__(server, "computes the reference")
        self._seconds = seconds

    def model(self, seed: int, *, from_seed: bool) -> Model:
        """Make the model anew; `from_seed` for a candidate that takes no weights."""
        made = self._asked(protocol.Create(seed, from_seed), protocol.Weights)
        return Model(seed, self._value(made.arguments), self._value(made.weights))

    def draw(self, seed: int, *, widened: bool = False) -> Round:
        """Fresh inputs for the model that was made last, as `Draw` says."""
        drawn = self._asked(protocol.Draw(seed, widened), protocol.Drawn)
        inputs, truth, plain = map(self._value, (drawn.inputs, drawn.expected, drawn.plain))
        return Round(inputs, truth, plain, drawn.changed, widened)

    def _value(self, stored: protocol.Stored) -> Value:
        return Value(stored.structure, self._window.bytes_at(stored.offset, stored.nbytes).copy())

    def _asked(self, request: msgspec.Struct, expected: type[Expected]) -> Expected:
        with blaming_the_task():
            return self._ask(request, expected, Outcome.CRASH, self._seconds)


def _unasked() -> ModuleError:
    message = "The module's process gave an answer to another question."
    return ModuleError(Outcome.REJECTED, message, guard=Guard.SEPARATE_PROCESS)


def _printable(text: str) -> str:
    """Without what a terminal would take for a command: a candidate wrote the text."""
    return "".join(
        each if each.isprintable() or each == "\n" else "\N{REPLACEMENT CHARACTER}" for each in text
    )
