"""The process of the reference: it makes the model that others must equal, draws inputs and says what they give."""

from __future__ import annotations

import copy
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mctskernel.profiling.isolation.privileges import hide_memory
from mctskernel.profiling.pytorch.host import construct, failure, load_class
from mctskernel.profiling.pytorch.protocol import (
    REQUESTS,
    Attach,
    Construct,
    Draw,
    Drawn,
    Load,
    Ready,
    Reply,
    Request,
    Weights,
    receive,
    send,
)
from mctskernel.profiling.pytorch.structures import Table
from mctskernel.profiling.pytorch.tensors import StructureError, Tensors, put_together, take_apart, window_of
from mctskernel.profiling.pytorch.weights import vary_constants

Answered = tuple[Reply, tuple[int, ...]]


def serve(connection: socket.socket) -> None:
    """Answer until the referee hangs up."""
    reference = Reference()
    while (received := receive(connection, REQUESTS)) is not None:
        try:
            reply, descriptors = reference.answer(received[0])
        except Exception as error:  # noqa: BLE001 - a reference that fails is told as a sentence
            reply, descriptors = failure(error), ()
        send(connection, reply, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


@dataclass
class Reference:
    """The reference's module, and a model of it whose weights nobody else has made."""

    model_class: Callable[..., Any] | None = None
    get_inputs: Callable[[], Any] | None = None
    get_init_inputs: Callable[[], Any] | None = None
    model: Any = None
    device: str = "cpu"

    def answer(self, request: Request) -> Answered:
        """The reply to a request, with descriptors to close after it is sent. Raises what the module raises."""
        match request:
            case Attach():
                hide_memory()
                self.device = request.device
                return Ready(), ()
            case Load():
                self._load(request)
                return Ready(), ()
            case Construct():
                return self._construct(request)
            case Draw(seed):
                return self._draw(seed)
            case _:
                raise StructureError("the reference is not timed here")

    def _load(self, request: Load) -> None:
        self.model_class = load_class(request.source, request.class_name)
        module = sys.modules[self.model_class.__module__]
        self.get_inputs = module.get_inputs
        self.get_init_inputs = getattr(module, "get_init_inputs", list)

    def _construct(self, request: Construct) -> Answered:
        if self.model_class is None or self.get_init_inputs is None:
            raise StructureError("no reference is loaded")
        torch.manual_seed(request.seed + 1)
        structure, tensors = take_apart(_arguments(self.get_init_inputs()))
        arguments = put_together(structure, [tensor.to(self.device) for tensor in tensors])
        self.model = construct(self.model_class, arguments, request.seed)
        if not request.from_seed:
            vary_constants(self.model)
        weights = {name: tensor.detach().cpu() for name, tensor in self.model.state_dict().items()}
        table = Table(tuple(weights), tuple(take_apart(tensor)[0] for tensor in weights.values()))
        self.model.to(self.device)
        return Weights(structure, table), (window_of(tensors), window_of(list(weights.values())))

    def _draw(self, seed: int) -> Answered:
        if self.get_inputs is None:
            raise StructureError("no reference is loaded")
        torch.manual_seed(seed)
        inputs = self.get_inputs()
        structure, tensors = take_apart(list(inputs))
        tensors = [tensor.to(self.device) for tensor in tensors]
        own = [tensor.clone() for tensor in tensors]
        torch.seed()  # a model that draws numbers must not seem to repeat itself
        with torch.no_grad():
            plain, plain_tensors = take_apart(copy.deepcopy(self.model)(*put_together(structure, own)))
            changed = any(not _same_bits(a, b) for a, b in zip(own, tensors, strict=True))
            expected, truth = self._in_float64(put_together(structure, tensors)) or (plain, plain_tensors)
        windows = (window_of(tensors), window_of(truth), window_of(plain_tensors))
        return Drawn(structure, expected, plain, changed), windows

    def _in_float64(self, inputs: Any) -> tuple[Any, Tensors] | None:
        """What the model gives in 64-bit floats; None where its code insists on another precision."""
        structure, tensors = take_apart(inputs)
        wide = [each.double() if each.is_floating_point() else each.clone() for each in tensors]
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return take_apart(copy.deepcopy(self.model).double()(*put_together(structure, wide)))
        except RuntimeError:
            return None
        finally:
            torch.set_default_dtype(before)


def _arguments(given: Any) -> tuple[list[Any], dict[str, Any]]:
    """Positional arguments and those by name, as `get_init_inputs` may give either or both."""
    if isinstance(given, dict):
        return [], given
    both = len(given) == 2 and isinstance(given[0], list | tuple) and isinstance(given[1], dict)
    return (list(given[0]), given[1]) if both else (list(given), {})


def _same_bits(ours: Any, theirs: Any) -> bool:
    ours, theirs = (each.contiguous().reshape(-1).view(torch.uint8) for each in (ours, theirs))
    return bool(torch.equal(ours, theirs))
