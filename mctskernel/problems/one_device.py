"""Run PyTorch code with every tensor on one device, whichever device the code names."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class OnDevice(TorchFunctionMode):
    """Within this mode every named device is replaced by one; enter `torch.device(...)` as well for the default."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.call(function, args, kwargs or {})

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function with this device in place of any other."""
        if function in {torch.Tensor.cuda, torch.Tensor.cpu, torch.Tensor.pin_memory}:
            return args[0]
        kwargs = {name: self._mapped(value) for name, value in kwargs.items()}
        if kwargs.get("device") is not None:
            kwargs["device"] = self.device
        if self.device == "meta":
            kwargs.pop("generator", None)
        return function(*(self._mapped(value) for value in args), **kwargs)

    def _mapped(self, value: Any) -> Any:
        is_name = isinstance(value, str) and value.partition(":")[0] in {"cuda", "cpu"}
        return self.device if is_name or isinstance(value, torch.device) else value
