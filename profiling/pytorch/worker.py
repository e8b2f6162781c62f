"""The processes that run modules: a worker for each candidate, one for the reference, and the server that forks them.

Run as `python -m mctskernel.profiling.pytorch.worker SOCKET LIFELINE`: the fork server, which imports PyTorch once and
forks the others in milliseconds. It holds nothing that a candidate must not see: seeds, inputs and expected outputs
are made after the fork, in other processes.

A worker shares its process with hostile code, so nothing that it says counts: the evaluator holds the clock,
publishes the inputs when it starts, and finds the outputs in its own memory.
"""

from __future__ import annotations

import copy
import gc
import importlib.util
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mctskernel.profiling.isolation.confinement import confine, hide_memory
from mctskernel.profiling.isolation.policy import Confinement, gpu_devices
from mctskernel.profiling.processes.channel import die_with_parent
from mctskernel.profiling.pytorch.protocol import (
    FORK_REQUESTS,
    REQUESTS,
    Attach,
    Construct,
    Constructed,
    DictSpec,
    Done,
    Draw,
    Drawn,
    Ended,
    Failed,
    Fork,
    Forked,
    Load,
    Prepare,
    Ready,
    Reply,
    Request,
    Reread,
    Role,
    Run,
    Structure,
    Weights,
    receive,
    send,
    tensor_specs,
)
from mctskernel.profiling.pytorch.tensors import (
    Tensors,
    UnsupportedValueError,
    flatten,
    mapped,
    unflatten,
    unpacked,
    varied_initialisation,
    vary_constants,
    views,
    window_of,
    write,
)

MAX_LOG_CHARACTERS = 20_000
MODULE_NAME = "candidate"
PROCESSES = 64
"""Compilers that a module may have running at a time."""

Answered = tuple[Reply, tuple[int, ...]]
"""A reply, and descriptors to close after it is sent."""


def serve(connection: socket.socket) -> None:
    """Run a candidate's module until the evaluator hangs up."""
    worker = Worker()
    _serve(connection, lambda request, descriptors: (worker.answer(request, descriptors), ()))


def serve_reference(connection: socket.socket) -> None:
    """Run the reference until the evaluator hangs up."""
    reference = ReferenceWorker()
    _serve(connection, lambda request, _: reference.answer(request))


def _serve(connection: socket.socket, answer: Callable[[Request, tuple[int, ...]], Answered]) -> None:
    while (received := receive(connection, REQUESTS)) is not None:
        try:
            reply, descriptors = answer(*received)
        except Exception as error:  # noqa: BLE001 - whatever a module raises is its outcome
            log = "".join(traceback.format_exception(error))[-MAX_LOG_CHARACTERS:]
            reply, descriptors = Failed(f"{type(error).__name__}: {error}"[:2000], log), ()
        send(connection, reply, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


@dataclass
class Worker:
    """One module and one model of it.

    `window` is the memory for outputs, `inputs` on a GPU the two for inputs; `kept` are the outputs of the last two
    calls.
    """

    device: str = "cpu"
    model_class: Callable[..., Any] | None = None
    model: Any = None
    window: Any = None
    inputs: tuple[Any, ...] = ()
    kept: list[Any] = field(default_factory=list)

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
            case Prepare():
                self._synchronize()
                return Ready()
            case Run():
                return self._run(request, descriptors)
            case Reread(outputs):
                return self._written(self.kept[0], outputs)
            case Draw():
                raise UnsupportedValueError("a candidate draws no inputs")

    def _attach(self, request: Attach, descriptors: tuple[int, ...]) -> Ready:
        self.device = request.device
        if self.device == "cuda":
            # Before it is confined: CUDA can't be initialised afterwards. No candidate is here yet.
            from mctskernel.profiling.pytorch.memory import mapped_on_device  # noqa: PLC0415 - needs a driver

            self.window, *inputs = map(mapped_on_device, descriptors, request.sizes)
            self.inputs = tuple(inputs)
        else:
            self.window = mapped(descriptors[0])
        devices = gpu_devices() if self.device == "cuda" else ()
        confine(
            Confinement(Path.cwd(), devices=devices, processes=PROCESSES, memory_bytes=request.memory_bytes)
        )
        return Ready()

    def _construct(self, request: Construct, descriptors: tuple[int, ...]) -> Constructed:
        if self.model_class is None:
            raise UnsupportedValueError("no module is loaded")
        arguments = unpacked(request.arguments, descriptors[0], self.device)
        weights = unpacked(request.weights, descriptors[1])
        model = construct(self.model_class, arguments, request.seed)
        own = {name: tensor.shape for name, tensor in model.state_dict().items()}
        loaded = all(own.get(name) == tensor.shape for name, tensor in weights.items())
        if loaded:
            model.load_state_dict(weights, strict=False)
        self.model, self.kept = model.to(self.device), []
        return Constructed(loaded)

    def _run(self, request: Run, descriptors: tuple[int, ...]) -> Done:
        memory = mapped(descriptors[0]) if descriptors else self.inputs[request.buffer]
        inputs = unflatten(request.inputs, views(memory, list(tensor_specs(request.inputs))))
        with torch.no_grad():
            outputs = self.model(*inputs)
            self.kept = [*self.kept[-1:], outputs]
            return self._written(outputs, request.outputs)

    def _written(self, outputs: Any, wanted: Structure) -> Done:
        given, tensors = flatten(outputs)
        if any(tensor.device.type != self.device for tensor in tensors):
            raise UnsupportedValueError(f"an output that isn't on the device {self.device}")
        if given == wanted:
            write(self.window, list(tensor_specs(wanted)), tensors)
            self._synchronize()
        return Done(given)

    def _synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


@dataclass
class ReferenceWorker:
    """The reference's module: it makes weights that no candidate has made, draws inputs and computes their outputs."""

    model_class: Callable[..., Any] | None = None
    get_inputs: Callable[[], Any] = list
    get_init_inputs: Callable[[], Any] = list
    model: Any = None
    device: str = "cpu"

    def answer(self, request: Request) -> Answered:
        """The reply to a request. Raises whatever the module raises."""
        match request:
            case Attach():
                hide_memory()
                self.device = request.device
            case Load(source, class_name):
                self.model_class = load_class(source, class_name)
                module = sys.modules[MODULE_NAME]
                self.get_inputs = module.get_inputs
                self.get_init_inputs = getattr(module, "get_init_inputs", list)
            case Construct():
                return self._construct(request)
            case Draw(seed):
                return self._draw(seed)
            case _:
                raise UnsupportedValueError("the reference is timed in a worker")
        return Ready(), ()

    def _construct(self, request: Construct) -> Answered:
        if self.model_class is None:
            raise UnsupportedValueError("no reference is loaded")
        torch.manual_seed(request.seed + 1)
        structure, tensors = flatten(_arguments(self.get_init_inputs()))
        arguments = unflatten(structure, [tensor.to(self.device) for tensor in tensors])
        self.model = construct(self.model_class, arguments, request.seed)
        if not request.from_seed:
            vary_constants(self.model)
        weights = {name: tensor.detach().cpu() for name, tensor in self.model.state_dict().items()}
        described = DictSpec(tuple(weights), tuple(flatten(tensor)[0] for tensor in weights.values()))
        self.model.to(self.device)
        return Weights(structure, described), (window_of(tensors), window_of(list(weights.values())))

    def _draw(self, seed: int) -> Answered:
        torch.manual_seed(seed)
        structure, tensors = flatten(list(self.get_inputs()))
        tensors = [tensor.to(self.device) for tensor in tensors]
        own = [tensor.clone() for tensor in tensors]
        torch.seed()  # a model that draws numbers must not seem to repeat itself
        with torch.no_grad():
            plain, plain_tensors = flatten(copy.deepcopy(self.model)(*unflatten(structure, own)))
            changed = any(not _same_bits(a, b) for a, b in zip(own, tensors, strict=True))
            expected, truth = self._in_float64(structure, tensors) or (plain, plain_tensors)
        windows = (window_of(tensors), window_of(truth), window_of(plain_tensors))
        return Drawn(structure, expected, plain, changed), windows

    def _in_float64(self, structure: Structure, tensors: Tensors) -> tuple[Structure, Tensors] | None:
        """The model's outputs in 64-bit floats; None where its code insists on another precision."""
        wide = [each.double() if each.is_floating_point() else each.clone() for each in tensors]
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return flatten(copy.deepcopy(self.model).double()(*unflatten(structure, wide)))
        except RuntimeError:
            return None
        finally:
            torch.set_default_dtype(before)


def load_class(source: str, name: str) -> Callable[..., Any]:
    """Run a source text as a module, with a file in the working folder, and find a class in it."""
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


def _arguments(given: Any) -> tuple[list[Any], dict[str, Any]]:
    """Positional arguments and those by name, as `get_init_inputs` may give either or both."""
    if isinstance(given, dict):
        return [], given
    both = len(given) == 2 and isinstance(given[0], list | tuple) and isinstance(given[1], dict)
    return (list(given[0]), given[1]) if both else (list(given), {})


def _same_bits(ours: Any, theirs: Any) -> bool:
    ours, theirs = (each.contiguous().reshape(-1).view(torch.uint8) for each in (ours, theirs))
    return bool(torch.equal(ours, theirs))


def main() -> None:
    """Fork and reap until the parent hangs up."""
    die_with_parent(int(sys.argv[2]))
    connection = socket.socket(fileno=int(sys.argv[1]))
    torch.set_num_threads(1)
    gc.freeze()  # pages that a collection writes to would be copied in every fork
    while (received := receive(connection, FORK_REQUESTS)) is not None:
        request, descriptors = received
        if not isinstance(request, Fork):
            send(connection, Ended(_stop_reason(request.pid)))
            if request.reap:
                os.waitpid(request.pid, os.WNOHANG)
            continue
        pid = os.fork()
        if pid == 0:
            _become(request, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        send(connection, Forked(pid))


def _become(request: Fork, descriptors: tuple[int, ...]) -> None:
    """The forked process: never returns."""
    status, scratch = 1, request.scratch
    try:
        os.setsid()
        connection, lifeline, stderr = descriptors
        os.dup2(stderr, 2)
        os.close(stderr)
        _close_others({0, 1, 2, connection, lifeline})
        die_with_parent(lifeline)
        os.chdir(scratch)
        os.environ.update(
            TMPDIR=scratch,
            HOME=scratch,
            TORCH_EXTENSIONS_DIR=f"{scratch}/torch_extensions",
            TRITON_CACHE_DIR=f"{scratch}/triton",
            TORCHINDUCTOR_CACHE_DIR=f"{scratch}/inductor",
        )
        serve_role = serve if request.role is Role.WORKER else serve_reference
        serve_role(socket.socket(fileno=connection))
        status = 0
    except BaseException:  # noqa: BLE001 - a fork must not go on as its parent
        traceback.print_exc()
    finally:
        os._exit(status)


def _close_others(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - of ourselves, where a Path would open more
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                continue  # the one that listed them


def _stop_reason(pid: int) -> str:
    status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if status is None:
        return ""
    if status.si_code == os.CLD_EXITED:
        return f"exited with status {status.si_status}"
    return f"was killed by {signal.Signals(status.si_status).name}"


if __name__ == "__main__":
    main()
