"""Workers and the reference's process, as the module evaluator sees them."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np

from mctskernel.core.evaluation import Guard, Outcome
from mctskernel.core.task import Array, TaskError
from mctskernel.profiling.processes.conversation import LostError
from mctskernel.profiling.pytorch.memory import Memory, Snapshot, Window, opened, window_of
from mctskernel.profiling.pytorch.processes import ModuleProcess
from mctskernel.profiling.pytorch.protocol import (
    Attach,
    Constant,
    Construct,
    Constructed,
    DictSpec,
    Done,
    Draw,
    Drawn,
    Failed,
    ListSpec,
    Load,
    Prepare,
    Ready,
    Reply,
    Reread,
    Run,
    Structure,
    Weights,
)

ECHO = """\
import torch


class Model(torch.nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.outputs = outputs

    def forward(self, *inputs):
        return self.outputs
"""
"""A module that computes nothing: its calls take as long as the round trip to a worker, copies of outputs included."""

Expected = TypeVar("Expected")


class ModuleError(RuntimeError):
    """A module that can't be evaluated any further, with its outcome."""

    def __init__(self, outcome: Outcome, message: str, log: str = "", guard: Guard | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.log = log
        self.guard = guard


@dataclass(frozen=True)
class Model:
    """What a model is made from: a seed, the constructor's arguments, and the reference's weights."""

    seed: int
    from_seed: bool
    arguments: Structure
    weights: Structure
    windows: tuple[Window, Window]

    @property
    def request(self) -> Construct:
        """The request to a worker, with `windows` beside it."""
        return Construct(self.seed, self.arguments, self.weights, self.from_seed)

    def close(self) -> None:
        """Free the windows."""
        for window in self.windows:
            window.close()


@dataclass(frozen=True)
class Round:
    """Fresh inputs and their right outputs, in 64-bit floats and plain, as bytes of windows."""

    inputs: Structure
    content: Array
    expected: Structure
    truth: Array
    outputs: Structure
    plain: Array
    changed: bool


@dataclass(frozen=True)
class Call:
    """One call: seconds by the evaluator's clock, and the memory after it."""

    seconds: float
    snapshot: Snapshot


class WorkerClient:
    """A worker's process with the memory for its outputs."""

    def __init__(self, process: ModuleProcess, outputs: Structure, memory: Memory) -> None:
        self._process = process
        self._structure = outputs
        self._memory = memory

    def load(self, source: str, class_name: str, device: str, memory_bytes: int, seconds: float) -> None:
        """Run the source. Raises ModuleError."""
        attach, descriptors = Attach(device, memory_bytes, self._memory.sizes), self._memory.descriptors
        self._ask(attach, descriptors, Ready, Outcome.LAUNCH_ERROR, seconds)
        self._ask(Load(source, class_name), (), Ready, Outcome.BUILD_ERROR, seconds)

    def construct(self, model: Model, seconds: float) -> bool:
        """Make a model; whether the worker says that the weights fit. Raises ModuleError."""
        windows = tuple(window.descriptor for window in model.windows)
        reply = self._ask(model.request, windows, Constructed, Outcome.BUILD_ERROR, seconds)
        return isinstance(reply, Constructed) and reply.loaded

    def call(self, drawn: Round, rng: np.random.Generator, seconds: float) -> Call:
        """Call the model on fresh inputs. Raises ModuleError.

        The clock runs from the request until elements at random places are read, after the worker said that it is
        done: what isn't there by then is missing.
        """
        memory = self._memory
        memory.prepare(drawn.content, rng)
        run = Run(drawn.inputs, self._structure, memory.buffer)
        self._ask(Prepare(), (), Ready, Outcome.CRASH, seconds)
        began = time.perf_counter()
        self._process.send(run, memory.publish())
        reply = self._received(seconds)
        memory.probe()
        ended = time.perf_counter()
        snapshot = memory.collect()
        self._check(reply, Done, Outcome.LAUNCH_ERROR)
        return Call(ended - began, snapshot)

    def reread(self, seconds: float) -> Array:
        """The bytes of the outputs of the call before the last, as they are now. Raises ModuleError."""
        self._memory.poison()
        self._ask(Reread(self._structure), (), Done, Outcome.LAUNCH_ERROR, seconds)
        return self._memory.outputs()

    def pause(self) -> None:
        """Stop its process."""
        self._process.pause()

    def resume(self) -> None:
        """Let its process go on."""
        self._process.resume()

    def close(self) -> None:
        """End its process."""
        self._process.kill()
        self._memory.close()

    def _ask(
        self,
        request: msgspec.Struct,
        descriptors: tuple[int, ...],
        expected: type[msgspec.Struct],
        outcome: Outcome,
        seconds: float,
    ) -> Reply:
        self._process.send(request, descriptors)
        reply = self._received(seconds)
        self._check(reply, expected, outcome)
        return reply

    def _received(self, seconds: float) -> Reply:
        try:
            reply, descriptors = self._process.receive(seconds)
        except LostError as error:
            guard = Guard.TIME_LIMIT if error.outcome is Outcome.TIMEOUT else Guard.SEPARATE_PROCESS
            raise ModuleError(error.outcome, error.message, _printable(error.log), guard) from error
        for descriptor in descriptors:
            os.close(descriptor)
        return reply

    def _check(self, reply: Reply, expected: type[msgspec.Struct], outcome: Outcome) -> None:
        if isinstance(reply, Failed):
            raise ModuleError(outcome, _printable(reply.message), _printable(reply.log))
        if not isinstance(reply, expected):
            message = "The module's process gave an answer to another question."
            raise ModuleError(Outcome.REJECTED, message, guard=Guard.SEPARATE_PROCESS)
        if isinstance(reply, Done) and reply.given != self._structure:
            message = f"The module returns {_printable(str(reply.given))[:500]}, not {self._structure}."
            raise ModuleError(Outcome.WRONG_RESULT, message, guard=Guard.COMPARISON)


class ReferenceClient:
    """The reference's process. Whatever fails in it is the task's fault: TaskError."""

    def __init__(
        self, process: ModuleProcess, source: str, device: str, memory_bytes: int, seconds: float
    ) -> None:
        self._process = process
        self._seconds = seconds
        self._ask(Attach(device, memory_bytes), Ready)
        self._ask(Load(source, "Model"), Ready)

    def model(self, seed: int, *, from_seed: bool) -> Model:
        """Make the model anew; `from_seed` for a candidate that takes no weights."""
        request = Construct(seed, Constant(None), Constant(None), from_seed)
        made, (arguments, weights) = self._ask(request, Weights)
        return Model(seed, from_seed, made.arguments, made.weights, (opened(arguments), opened(weights)))

    def draw(self, seed: int) -> Round:
        """Fresh inputs for the model that was made last."""
        drawn, descriptors = self._ask(Draw(seed), Drawn)
        content = []
        for descriptor in descriptors:
            window = opened(descriptor)
            window.close()
            content.append(window.bytes)
        inputs, truth, plain = content
        return Round(drawn.inputs, inputs, drawn.expected, truth, drawn.plain, plain, drawn.changed)

    def _ask(self, request: msgspec.Struct, expected: type[Expected]) -> tuple[Expected, tuple[int, ...]]:
        try:
            reply, descriptors = self._process.ask(request, seconds=self._seconds)
        except LostError as error:
            raise TaskError(f"The reference can't be used: {error.message} {error.log}".strip()) from error
        if isinstance(reply, Failed):
            raise TaskError(f"The reference can't be used: {reply.message}")
        if not isinstance(reply, expected):
            raise TaskError("The reference can't be used: its process gave an answer to another question.")
        return reply, descriptors


def echo_model(outputs: Structure, content: Array) -> Model:
    """A model of `ECHO` that returns the same outputs every time; `content` is the window of their tensors."""
    nothing = DictSpec((), ())
    arguments = ListSpec("tuple", (ListSpec("list", (outputs,)), nothing))
    windows = window_of(content), window_of(np.zeros(4096, np.uint8))
    return Model(0, from_seed=True, arguments=arguments, weights=nothing, windows=windows)


def _printable(text: str) -> str:
    """Without what a terminal would take for a command: a candidate wrote the text."""
    return "".join(
        each if each.isprintable() or each == "\n" else "\N{REPLACEMENT CHARACTER}" for each in text
    )
