"""The process that a candidate owns: it loads a module's source, makes a model, and calls it when it is told to.

Everything here runs beside hostile code in one process, so nothing here is believed: the referee holds the clock,
brings the inputs when it says go, and looks for the outputs in its own memory.
"""

from __future__ import annotations

import importlib.util
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mctskernel.profiling.isolation.confinement import confine
from mctskernel.profiling.isolation.policy import Confinement, gpu_devices
from mctskernel.profiling.pytorch.protocol import (
    REQUESTS,
    Again,
    Attach,
    Construct,
    Constructed,
    Done,
    Draw,
    Failed,
    Go,
    Load,
    Ready,
    Reply,
    Request,
    Wake,
    receive,
    send,
)
from mctskernel.profiling.pytorch.structures import Structure, slots
from mctskernel.profiling.pytorch.tensors import (
    StructureError,
    mapped,
    put_together,
    take_apart,
    unpacked,
    views,
    write,
)
from mctskernel.profiling.pytorch.weights import varied_initialisation

MAX_LOG_CHARACTERS = 20_000
MODULE_NAME = "candidate"
PROCESSES = 64
"""Compilers that a module may have running at a time."""


def serve(connection: socket.socket) -> None:
    """Answer until the referee hangs up."""
    host = Host()
    while (received := receive(connection, REQUESTS)) is not None:
        request, descriptors = received
        send(connection, _answered(host, request, descriptors))


@dataclass
class Host:
    """One module and one model of it.

    `window` and `inputs` are the bytes of its memory, the latter by turns; `held` are the outputs of the last two
    calls.
    """

    device: str = "cpu"
    model_class: Callable[..., Any] | None = None
    model: Any = None
    window: Any = None
    inputs: tuple[Any, ...] = ()
    held: list[Any] = field(default_factory=list)

    def answer(self, request: Request, descriptors: tuple[int, ...]) -> Reply:
        """The reply to a request. Raises whatever the module raises."""
        match request:
            case Attach():
                return self._attach(request, descriptors)
            case Load(source, class_name):
                self.model_class = load_class(source, class_name)
                return Ready()
            case Construct():
                return self._construct(request, descriptors)
            case Wake():
                self._wait_for_device()
                return Ready()
            case Go():
                return self._call(request, descriptors)
            case Again(outputs):
                return self._written(self.held[0], outputs)
            case Draw():
                raise StructureError("a host draws no inputs")

    def _attach(self, request: Attach, descriptors: tuple[int, ...]) -> Ready:
        self.device = request.device
        if self.device == "cuda":
            # Before it is confined: CUDA can't be initialised afterwards. Nothing of a candidate is here yet.
            from mctskernel.profiling.pytorch.device_tensors import mapped_on_device  # noqa: PLC0415 - needs a driver

            self.window, *turns = map(mapped_on_device, descriptors, request.sizes)
            self.inputs = tuple(turns)
        else:
            self.window = mapped(descriptors[0])
        confine(policy(request))
        return Ready()

    def _construct(self, request: Construct, descriptors: tuple[int, ...]) -> Constructed:
        if self.model_class is None:
            raise StructureError("no module is loaded")
        arguments = unpacked(request.arguments, descriptors[0], self.device)
        weights = unpacked(request.weights, descriptors[1])
        model = construct(self.model_class, arguments, request.seed)
        own = {name: tensor.shape for name, tensor in model.state_dict().items()}
        loaded = all(own.get(name) == tensor.shape for name, tensor in weights.items())
        if loaded:
            model.load_state_dict(weights, strict=False)
        self.model, self.held = model.to(self.device), []
        return Constructed(loaded)

    def _call(self, request: Go, descriptors: tuple[int, ...]) -> Done:
        memory = mapped(descriptors[0]) if descriptors else self.inputs[request.turn]
        inputs = put_together(request.inputs, views(memory, list(slots(request.inputs))))
        with torch.no_grad():
            outputs = self.model(*inputs)
            self.held = [*self.held[-1:], outputs]
            return self._written(outputs, request.outputs)

    def _written(self, outputs: Any, wanted: Structure) -> Done:
        given, tensors = take_apart(outputs)
        if any(tensor.device.type != self.device for tensor in tensors):
            raise StructureError(f"an output that isn't on the device {self.device}")
        if given == wanted:
            write(self.window, list(slots(wanted)), tensors)
            self._wait_for_device()
        return Done(given)

    def _wait_for_device(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def policy(request: Attach) -> Confinement:
    """What a module may do: write in its folder, use the GPU where it is judged on one, run compilers."""
    devices = gpu_devices() if request.device == "cuda" else ()
    return Confinement(Path.cwd(), devices=devices, processes=PROCESSES, memory_bytes=request.memory_bytes)


def load_class(source: str, name: str) -> Callable[..., Any]:
    """Run a source text as a module of its own, with a file in the working folder, and find a class in it."""
    path = Path.cwd() / f"{MODULE_NAME}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(MODULE_NAME, path)
    assert spec is not None and spec.loader is not None  # noqa: S101 - a file that ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE_NAME] = module
    spec.loader.exec_module(module)
    return getattr(module, name)  # type: ignore[no-any-return] # anything that can be called


def construct(model_class: Callable[..., Any], arguments: Any, seed: int) -> Any:
    """A model under a seed, on the CPU; `arguments` are the positional ones and those by name."""
    positional, named = arguments
    torch.manual_seed(seed)
    with varied_initialisation():
        return model_class(*positional, **named)


def failure(error: BaseException) -> Failed:
    """An exception as a message."""
    log = "".join(traceback.format_exception(error))[-MAX_LOG_CHARACTERS:]
    return Failed(f"{type(error).__name__}: {error}"[:2000], log)


def _answered(host: Host, request: Request, descriptors: tuple[int, ...]) -> Reply:
    try:
        return host.answer(request, descriptors)
    except Exception as error:  # noqa: BLE001 - whatever a module raises is its outcome
        return failure(error)
