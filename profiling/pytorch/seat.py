"""One host at work: a module that is made, called against the referee's clock, and looked at afterwards."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import msgspec
import numpy as np

from mctskernel.core.evaluation import Guard, Outcome
from mctskernel.core.task import Array
from mctskernel.profiling.processes.conversation import LostError
from mctskernel.profiling.pytorch.memory import Left, Memory
from mctskernel.profiling.pytorch.processes import ModuleProcess
from mctskernel.profiling.pytorch.protocol import (
    Again,
    Attach,
    Constructed,
    Done,
    Failed,
    Go,
    Load,
    Ready,
    Reply,
    Wake,
)
from mctskernel.profiling.pytorch.reference import Model, Round
from mctskernel.profiling.pytorch.structures import Structure


class ModuleError(RuntimeError):
    """A module that can't be judged any further, with the outcome that this is."""

    def __init__(self, outcome: Outcome, message: str, log: str = "", guard: Guard | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.log = log
        self.guard = guard


@dataclass(frozen=True)
class Call:
    """What one call left behind: seconds by the referee's clock, and bytes."""

    seconds: float
    left: Left


class Seat:
    """A host's process with the memory for its outputs."""

    def __init__(self, process: ModuleProcess, outputs: Structure, memory: Memory) -> None:
        self._process = process
        self._structure = outputs
        self._memory = memory

    def load(self, source: str, class_name: str, device: str, memory_bytes: int, seconds: float) -> None:
        """Run the source. Raises ModuleError."""
        attach, descriptors = Attach(device, memory_bytes, self._memory.sizes), self._memory.descriptors
        self._settled(attach, descriptors, Ready, Outcome.LAUNCH_ERROR, seconds)
        self._settled(Load(source, class_name), (), Ready, Outcome.BUILD_ERROR, seconds)

    def construct(self, model: Model, seconds: float) -> bool:
        """Make a model; whether the host says that it took the weights. Raises ModuleError."""
        windows = tuple(window.descriptor for window in model.windows)
        reply = self._settled(model.request, windows, Constructed, Outcome.BUILD_ERROR, seconds)
        return isinstance(reply, Constructed) and reply.loaded

    def call(self, drawn: Round, rng: np.random.Generator, seconds: float) -> Call:
        """Call the model on fresh inputs. Raises ModuleError.

        The clock runs from the word go until elements that nobody could guess are read, after the host said that
        it is done: what isn't there by then is missing.
        """
        memory = self._memory
        memory.prepare(drawn.content, rng)
        go = Go(drawn.inputs, self._structure, memory.turn)
        self._settled(Wake(), (), Ready, Outcome.CRASH, seconds)
        began = time.perf_counter()
        self._process.send(go, memory.lend())
        reply = self._received(seconds)
        memory.probe()
        ended = time.perf_counter()
        left = memory.collect()
        self._check(reply, Done, Outcome.LAUNCH_ERROR)
        return Call(ended - began, left)

    def again(self, seconds: float) -> Array:
        """The bytes of the outputs of the call before the last, as they are now. Raises ModuleError."""
        self._memory.poison()
        self._settled(Again(self._structure), (), Done, Outcome.LAUNCH_ERROR, seconds)
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

    def _settled(
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
            message = "The module's process answered what it wasn't asked."
            raise ModuleError(Outcome.REJECTED, message, guard=Guard.SEPARATE_PROCESS)
        if isinstance(reply, Done) and reply.given != self._structure:
            message = f"The module gives {_printable(str(reply.given))[:500]}, not {self._structure}."
            raise ModuleError(Outcome.WRONG_RESULT, message, guard=Guard.COMPARISON)


def _printable(text: str) -> str:
    """Without what a terminal would take for an order: the text was written by a candidate."""
    return "".join(
        each if each.isprintable() or each == "\n" else "\N{REPLACEMENT CHARACTER}" for each in text
    )
