"""The processes that run modules: a worker for each candidate, one for the reference, and the server that forks them.

Run as `python -m mctskernel.profiling.pytorch.worker SOCKET LIFELINE`: the fork server, which imports PyTorch once and
forks the others in milliseconds. It holds nothing that a candidate must not see: seeds, inputs and expected outputs
are made after the fork, in other processes.

A worker shares its process with hostile code, so nothing that it says counts: the evaluator holds the clock,
publishes the inputs when it starts, and finds the outputs in its own memory.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import gc
import importlib.util
import mmap
import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.utils import _pytree as pytree

from mctskernel.profiling.isolation.confinement import confine, hide_memory
from mctskernel.profiling.isolation.policy import Confinement, gpu_devices
from mctskernel.profiling.processes.channel import Channel, Ready, die_with_parent, requests
from mctskernel.profiling.processes.child_process import how_ended
from mctskernel.profiling.processes.shared_window import SharedWindow
from mctskernel.profiling.pytorch import protocol

MAX_LOG_CHARACTERS = 20_000
MODULE_NAME = "candidate"
PROCESSES = 64  # compilers that a module may have running at a time
MAX_DESCRIPTORS = 8

NOISE = 0.1

Tensors = list[Any]

_KINDS = (torch.Tensor, torch.nn.Parameter)


def serve(channel: Channel, answer: Callable[[protocol.Request], protocol.Reply]) -> None:
    for request in requests(channel, protocol.REQUESTS):
        try:
            reply = answer(request)
        except Exception as error:  # noqa: BLE001 - whatever a module raises is its outcome
            log = "".join(traceback.format_exception(error))[-MAX_LOG_CHARACTERS:]
            reply = protocol.Failed(f"{type(error).__name__}: {error}"[:2000], log)
        channel.send(reply)


@dataclass
class Worker:
    """One module with a model; `memories` are the outputs' and inputs' descriptors, `kept` the last two outputs."""

    window: SharedWindow
    memories: tuple[int, ...]
    loaded: protocol.Load | None = None
    model_class: Callable[..., Any] | None = None
    model: Any = None
    outputs: Any = None
    inputs: tuple[Any, ...] = ()
    kept: list[Any] = field(default_factory=list)

    def answer(self, request: protocol.Request) -> protocol.Reply:
        """The reply to a request. Raises whatever the module raises."""
        if isinstance(request, protocol.Load):
            return self._load(request)
        if self.loaded is None or self.model_class is None:
            raise UnsupportedValueError("no module is loaded")
        match request:
            case protocol.Construct():
                return self._construct(request, self.model_class, self.loaded.device)
            case protocol.Prepare():
                self._synchronize(self.loaded.device)
                return Ready()
            case protocol.Run():
                return self._run(request, self.loaded)
            case protocol.Reread():
                return self._written(self.kept[0], self.loaded)
            case protocol.Create() | protocol.Draw():
                raise UnsupportedValueError("a candidate draws no inputs and no weights")

    def _load(self, request: protocol.Load) -> Ready:
        on_gpu = request.device == "cuda"
        if on_gpu:
            # Before it is confined: CUDA can't be initialised afterwards. No candidate is here yet.
            from mctskernel.profiling.pytorch.memory import mapped_on_device  # noqa: PLC0415 - needs a driver

            self.outputs, *inputs = map(mapped_on_device, self.memories, request.sizes)
        else:
            self.outputs, *inputs = map(mapped, self.memories)
        self.inputs, self.loaded = tuple(inputs), request
        devices = gpu_devices() if on_gpu else ()
        confine(
            Confinement(Path.cwd(), devices=devices, processes=PROCESSES, memory_bytes=request.memory_bytes)
        )
        self.model_class = load_class(request)
        return Ready()

    def _construct(
        self, request: protocol.Construct, model_class: Callable[..., Any], device: str
    ) -> protocol.Constructed:
        arguments = stored_value(self.window, request.arguments, device)
        weights = stored_value(self.window, request.weights)
        model = construct(model_class, arguments, request.seed)
        own = {name: tensor.shape for name, tensor in model.state_dict().items()}
        loaded = all(own.get(name) == tensor.shape for name, tensor in weights.items())
        if loaded:
            model.load_state_dict(weights, strict=False)
        self.model = model.to(device)
        return protocol.Constructed(loaded)

    def _run(self, request: protocol.Run, loaded: protocol.Load) -> protocol.Done:
        inputs = unflatten(loaded.inputs, views(self.inputs[request.memory], loaded.inputs.tensors))
        with torch.no_grad():
            if not request.is_echo:
                self.kept = [*self.kept[-1:], self.model(*inputs)]
            return self._written(self.kept[-1], loaded)

    def _written(self, outputs: Any, loaded: protocol.Load) -> protocol.Done:
        given, tensors = flatten(outputs)
        if any(tensor.device.type != loaded.device for tensor in tensors):
            raise UnsupportedValueError(f"an output that isn't on the device {loaded.device}")
        if given == loaded.outputs:
            write(self.outputs, given.tensors, tensors)
            self._synchronize(loaded.device)
        return protocol.Done(given)

    def _synchronize(self, device: str) -> None:
        if device == "cuda":
            torch.cuda.synchronize()


@dataclass
class ReferenceWorker:
    """The reference's module: it makes weights that no candidate has made, draws inputs and computes their outputs."""

    window: SharedWindow
    model_class: Callable[..., Any] | None = None
    get_inputs: Callable[[], Any] = list
    get_init_inputs: Callable[[], Any] = list
    model: Any = None
    device: str = "cpu"

    def answer(self, request: protocol.Request) -> protocol.Reply:
        """The reply to a request. Raises whatever the module raises."""
        match request:
            case protocol.Load():
                hide_memory()
                self.device, self.model_class = request.device, load_class(request)
                module = sys.modules[MODULE_NAME]
                self.get_inputs = module.get_inputs
                self.get_init_inputs = getattr(module, "get_init_inputs", list)
                return Ready()
            case protocol.Create() if self.model_class is not None:
                return self._create(request, self.model_class)
            case protocol.Draw():
                return self._draw(request)
            case _:
                raise UnsupportedValueError("the reference is timed in a worker")

    def _create(self, request: protocol.Create, model_class: Callable[..., Any]) -> protocol.Weights:
        torch.manual_seed(request.seed + 1)
        structure, tensors = flatten(_arguments(self.get_init_inputs()))
        arguments = unflatten(structure, [tensor.to(self.device) for tensor in tensors])
        self.model = construct(model_class, arguments, request.seed)
        if not request.from_seed:
            vary_constants(self.model)
        weights = {name: tensor.detach().cpu() for name, tensor in self.model.state_dict().items()}
        self.model.to(self.device)
        self.window.clear()
        return protocol.Weights(store(self.window, structure, tensors), store(self.window, *flatten(weights)))

    def _draw(self, request: protocol.Draw) -> protocol.Drawn:
        torch.manual_seed(request.seed)
        structure, tensors = flatten(list(self.get_inputs()))
        tensors = [tensor.to(self.device) for tensor in tensors]
        if request.widened:
            tensors = self._widened(structure, tensors)
        own = [tensor.clone() for tensor in tensors]
        torch.seed()  # a model that draws numbers must not seem to repeat itself
        with torch.no_grad():
            plain, plain_tensors = flatten(copy.deepcopy(self.model)(*unflatten(structure, own)))
            before, after = (
                [each.contiguous().reshape(-1).view(torch.uint8) for each in group]
                for group in (tensors, own)
            )
            changed = not all(map(torch.equal, before, after))
            expected, truth = self._in_float64(structure, tensors) or (plain, plain_tensors)
        self.window.clear()
        return protocol.Drawn(
            store(self.window, structure, tensors),
            store(self.window, expected, truth),
            store(self.window, plain, plain_tensors),
            changed,
        )

    def _widened(self, structure: protocol.Structure, tensors: Tensors) -> Tensors:
        """Inputs three times as large around another middle, each whose outputs are then numbers.

        Whole numbers may be indices, and what has zeros is shifted nowhere: they may be a structure.
        """
        for index, tensor in enumerate(tensors):
            if not tensor.is_floating_point() or not tensor.numel() or bool((tensor == tensor.round()).all()):
                continue
            middle = 0.0 if bool((tensor == 0).any()) else (tensor.amin() + tensor.amax()) / 2
            wider = [*tensors[:index], -3 * (tensor - middle), *tensors[index + 1 :]]
            with torch.no_grad(), contextlib.suppress(RuntimeError):
                _, found = flatten(
                    copy.deepcopy(self.model)(*unflatten(structure, [t.clone() for t in wider]))
                )
                if all(bool(each.isfinite().all()) for each in found):
                    tensors = wider
        return tensors

    def _in_float64(
        self, structure: protocol.Structure, tensors: Tensors
    ) -> tuple[protocol.Structure, Tensors] | None:
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


def load_class(request: protocol.Load) -> Callable[..., Any]:
    """Run a source text as a module, with a file in the working folder, and find its class."""
    path = Path.cwd() / f"{MODULE_NAME}.py"
    path.write_text(request.source)
    spec = importlib.util.spec_from_file_location(MODULE_NAME, path)
    assert spec is not None and spec.loader is not None  # noqa: S101 - a file that ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE_NAME] = module
    spec.loader.exec_module(module)
    return getattr(module, request.class_name)  # type: ignore[no-any-return] # anything that can be called


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


class UnsupportedValueError(TypeError):
    """A value that can't be sent; the message says which."""


def flatten(value: Any) -> tuple[protocol.Structure, Tensors]:
    """A value's structure and its tensors in order. Raises UnsupportedValueError."""
    found: Tensors = []
    text = repr(_without_tensors(value, found))
    return protocol.Structure(text, tuple(map(spec_of, found))), found


def unflatten(structure: protocol.Structure, tensors: Sequence[Any]) -> Any:
    """The value that `flatten` flattened."""
    left = iter(tensors)
    return pytree.tree_map(lambda leaf: next(left) if leaf is ... else leaf, ast.literal_eval(structure.text))


def store(window: SharedWindow, structure: protocol.Structure, tensors: Sequence[Any]) -> protocol.Stored:
    """Copy a value's tensors into a window."""
    stored = protocol.Stored(structure, window.reserve(protocol.places(structure.tensors)[1]))
    write(_bytes_of(window, stored), structure.tensors, tensors)
    return stored


def stored_value(window: SharedWindow, stored: protocol.Stored, device: str = "cpu") -> Any:
    """A value with copies of its tensors on a device."""
    found = views(_bytes_of(window, stored), stored.structure.tensors)
    return unflatten(stored.structure, [each.clone().to(device) for each in found])


def _bytes_of(window: SharedWindow, stored: protocol.Stored) -> Any:
    return torch.from_numpy(window.bytes_at(stored.offset, stored.nbytes))


def mapped(descriptor: int) -> Any:
    """The bytes of shared memory, every page of them present; closes the descriptor."""
    size = os.fstat(descriptor).st_size
    memory = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    os.close(descriptor)
    return torch.frombuffer(memory, dtype=torch.uint8)


def views(memory: Any, wanted: Sequence[protocol.TensorSpec]) -> Tensors:
    """The tensors in shared memory, in place."""
    return [
        memory[offset : offset + spec.nbytes].view(getattr(torch, spec.dtype)).view(spec.shape)
        for offset, spec in zip(protocol.places(wanted)[0], wanted, strict=True)
    ]


def write(memory: Any, wanted: Sequence[protocol.TensorSpec], tensors: Sequence[Any]) -> None:
    """Copy tensors into shared memory. Raises UnsupportedValueError for one of another type or shape."""
    if len(wanted) != len(tensors):
        raise UnsupportedValueError(f"{len(tensors)} tensors, not {len(wanted)}")
    for view, spec, tensor in zip(views(memory, wanted), wanted, tensors, strict=True):
        if spec_of(tensor) != spec:
            raise UnsupportedValueError(f"a tensor {spec_of(tensor)}, not {spec}")
        view.copy_(tensor)


def spec_of(tensor: Any) -> protocol.TensorSpec:
    """A tensor's type and shape. Raises UnsupportedValueError for a type that can't be sent."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in protocol.ELEMENT_BYTES:
        raise UnsupportedValueError(f"a tensor of {dtype}, which can't be compared here")
    return protocol.TensorSpec(dtype, tuple(tensor.shape))


class _Ellipsis:
    def __repr__(self) -> str:
        return "..."


def _without_tensors(value: Any, found: Tensors) -> Any:
    """The value with an ellipsis for each tensor, which is appended to `found`."""
    if type(value) in _KINDS:
        found.append(value.detach())
        return _Ellipsis()
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and isfinite(value)):
        return value
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(_without_tensors(each, found) for each in value)
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _without_tensors(each, found) for key, each in value.items()}
    raise UnsupportedValueError(f"a value of type {type(value).__name__}, which can't be compared here")


@contextlib.contextmanager
def varied_initialisation() -> Iterator[None]:
    """While this lasts, parameters that modules would fill with a constant get noise from PyTorch's generator.

    Modules begin with biases of zero and scales of one, and a candidate that leaves them out would look right.
    """
    norm = torch.nn.modules.batchnorm._NormBase
    with contextlib.ExitStack() as stack:
        for name in ("zeros_", "ones_", "constant_"):
            stack.enter_context(patch.object(torch.nn.init, name, _noisy(getattr(torch.nn.init, name))))
        noisy = _noisy_statistics(norm.reset_running_stats)
        stack.enter_context(patch.object(norm, "reset_running_stats", noisy))
        yield


def vary_constants(model: Any) -> None:
    """Add noise to the floating-point parameters that are constant all the same."""
    with torch.no_grad():
        for parameter in model.parameters():
            constant = parameter.numel() and bool((parameter == parameter.flatten()[0]).all())
            if parameter.is_floating_point() and constant:
                add_noise(parameter)


def add_noise(tensor: Any) -> Any:
    """Noise of a tenth of each value, or of one where it is zero; no sign changes."""
    if not tensor.is_floating_point():
        return tensor
    with torch.no_grad():
        noise = torch.rand(tensor.shape, dtype=torch.float32, device="cpu").mul_(2).sub_(1).to(tensor)
        return tensor.add_(NOISE * noise * torch.where(tensor == 0, torch.ones_like(tensor), tensor.abs()))


def _noisy(fill: Callable[..., Any]) -> Callable[..., Any]:
    def filled(tensor: Any, *values: Any, **named: Any) -> Any:
        return add_noise(fill(tensor, *values, **named))

    return filled


def _noisy_statistics(reset: Callable[..., None]) -> Callable[..., None]:
    def filled(module: Any) -> None:
        reset(module)
        if module.track_running_stats:
            add_noise(module.running_mean)
            add_noise(module.running_var)

    return filled


def main() -> None:
    """Fork and reap until the parent hangs up."""
    die_with_parent(int(sys.argv[2]))
    channel = Channel(socket.socket(fileno=int(sys.argv[1])), MAX_DESCRIPTORS)
    torch.set_num_threads(1)
    gc.freeze()  # pages that a collection writes to would be copied in every fork
    for request in requests(channel, protocol.FORK_REQUESTS):
        if isinstance(request, protocol.Fork):
            descriptors, channel.descriptors = channel.descriptors, []
            pid = os.fork()
            if pid == 0:
                _become(request, *descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            channel.send(protocol.Forked(pid))
        else:
            if request.reap:
                os.waitpid(request.pid, 0)
            channel.send(protocol.Forked(request.pid, "" if request.reap else how_ended(request.pid)))


def _become(
    request: protocol.Fork, connection: int, lifeline: int, stderr: int, window: int, *memories: int
) -> None:
    """The forked process: never returns."""
    status, scratch = 1, request.scratch
    try:
        os.setsid()
        os.dup2(stderr, 2)
        os.close(stderr)
        kept = {0, 1, 2, connection, lifeline, window, *memories}
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - of ourselves, where a Path would open more
            if int(name) not in kept:
                with contextlib.suppress(OSError):  # of the one that listed them
                    os.close(int(name))
        die_with_parent(lifeline)
        os.chdir(scratch)
        os.environ.update(
            TMPDIR=scratch,
            HOME=scratch,
            TORCH_EXTENSIONS_DIR=f"{scratch}/torch_extensions",
            TRITON_CACHE_DIR=f"{scratch}/triton",
            TORCHINDUCTOR_CACHE_DIR=f"{scratch}/inductor",
        )
        shared = SharedWindow(window)
        worker = ReferenceWorker(shared) if request.is_reference else Worker(shared, memories)
        serve(Channel(socket.socket(fileno=connection)), worker.answer)
        status = 0
    except BaseException:  # noqa: BLE001 - a fork must not go on as its parent
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
