"""The reference, seen from the referee: a process that makes weights, draws inputs and says what they must give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import msgspec

from mctskernel.core.task import Array, TaskError
from mctskernel.profiling.processes.conversation import LostError
from mctskernel.profiling.pytorch.memory import Window, opened
from mctskernel.profiling.pytorch.processes import ModuleProcess
from mctskernel.profiling.pytorch.protocol import Attach, Construct, Draw, Drawn, Failed, Load, Ready, Weights
from mctskernel.profiling.pytorch.structures import Constant, Structure

Expected = TypeVar("Expected")

NOTHING = Constant(None)


@dataclass(frozen=True)
class Model:
    """What a model is made of: a seed, the constructor's arguments, and the reference's weights."""

    seed: int
    from_seed: bool
    arguments: Structure
    weights: Structure
    windows: tuple[Window, Window]

    @property
    def request(self) -> Construct:
        """What a host is asked, with `windows` beside it."""
        return Construct(self.seed, self.arguments, self.weights, self.from_seed)

    def close(self) -> None:
        """Give the windows back."""
        for window in self.windows:
            window.close()


@dataclass(frozen=True)
class Round:
    """Fresh inputs, and what they must give: in 64-bit floats, and plainly, as bytes of windows."""

    inputs: Structure
    content: Array
    expected: Structure
    truth: Array
    outputs: Structure
    plain: Array
    changed: bool


class Reference:
    """Asks the process of the reference. Whatever fails in it is the task's fault: TaskError."""

    def __init__(
        self, process: ModuleProcess, source: str, device: str, memory_bytes: int, seconds: float
    ) -> None:
        self._process = process
        self._seconds = seconds
        self._ask(Attach(device, memory_bytes), Ready)
        self._ask(Load(source, "Model"), Ready)

    def model(self, seed: int, *, from_seed: bool) -> Model:
        """Make the model anew; `from_seed` for a candidate that takes no weights."""
        made, (arguments, weights) = self._ask(Construct(seed, NOTHING, NOTHING, from_seed), Weights)
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
            raise TaskError("The reference can't be used: its process answered what it wasn't asked.")
        return reply, descriptors
