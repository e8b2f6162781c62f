"""The Python of a GPU MODE task, run on the CPU: its inputs, its reference, and what its check lets differ."""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from mctskernel.core.task import TaskError
from mctskernel.problems.gpu_mode.file import Arguments

MOST_SEED = 1 << 16
"""Seeds are small, as in the tasks' own files: some tasks add them to their numbers."""

_NEEDED = ("generate_input", "ref_kernel", "check_implementation")


@dataclass(frozen=True)
class Compared:
    """A comparison that a check made: how far an element may be, relative to its own size and absolutely."""

    relative: float
    absolute: float


@dataclass(frozen=True)
class Program:
    """The modules of a task, loaded. Its functions are called with everything on one device, whichever they name."""

    modules: Mapping[str, types.ModuleType]
    device: str = "cpu"

    def generate(self, arguments: Arguments, seed: int) -> Any:
        """What `generate_input` makes, from a seed of ours in place of the case's. Raises TaskError."""
        given = {**arguments, **({"seed": seed} if "seed" in arguments else {})}
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        return self._call("generate_input", **given)

    def reference(self, data: Any) -> Any:
        """What `ref_kernel` gives. Raises TaskError."""
        return self._call("ref_kernel", data)

    def comparisons(self, data: Any, output: Any) -> tuple[Compared, ...]:
        """The comparisons that `check_implementation` makes of an output, none of which is carried out.

        Raises TaskError if it refuses the reference's own output all the same.
        """
        made: list[Compared] = []
        with ExitStack() as stack:
            for module in (*self.modules.values(), torch, torch.testing):
                for name, spy in _spies(made).items():
                    if callable(getattr(module, name, None)):
                        stack.enter_context(patch.object(module, name, spy))
            verdict = self._call("check_implementation", data, output)
        passed = verdict[0] if isinstance(verdict, tuple) else not verdict
        if not passed:
            raise TaskError("Its check_implementation refuses what its own ref_kernel gives.")
        return tuple(made)

    def _call(self, name: str, *arguments: Any, **named: Any) -> Any:
        function = getattr(self.modules["reference"], name)
        try:
            with _finding(self.modules), _on(self.device), torch.no_grad():
                return function(*arguments, **named)
        except TaskError:
            raise
        except (Exception, SystemExit) as error:
            raise TaskError(f"Its {name} raised {type(error).__name__}: {str(error)[:500]}") from error


def load_program(texts: Mapping[str, str]) -> Program:
    """Run the modules of a task, by the names under which they import each other. Raises TaskError."""
    modules: dict[str, types.ModuleType] = {}
    finder = _Finder(texts, modules)
    with _importing(finder, texts), _on("cpu"):
        try:
            __import__("reference")
        except (Exception, SystemExit) as error:
            raise TaskError(f"reference.py can't be loaded: {type(error).__name__}: {error}") from error
    missing = [name for name in _NEEDED if not callable(getattr(modules["reference"], name, None))]
    if missing:
        raise TaskError(f"reference.py defines no function called '{missing[0]}'.")
    return Program(modules)


def _spies(made: list[Compared]) -> Mapping[str, Callable[..., Any]]:
    def close(_: Any, __: Any, rtol: Any = 1e-5, atol: Any = 1e-8, **___: Any) -> list[str]:
        made.append(Compared(float(rtol), float(atol)))
        return []

    def near(_: Any, __: Any, rtol: Any = 1e-5, atol: Any = 1e-8, **___: Any) -> bool:
        made.append(Compared(float(rtol), float(atol)))
        return True

    def asserted(_: Any, __: Any, *, rtol: Any = None, atol: Any = None, **___: Any) -> None:
        made.append(Compared(float(rtol or 0.0), float(atol or 0.0)))

    def equal(_: Any, __: Any, **___: Any) -> list[str]:
        made.append(Compared(0.0, 0.0))
        return []

    def same(_: Any, __: Any) -> bool:
        made.append(Compared(0.0, 0.0))
        return True

    return {
        "verbose_allclose": close,
        "verbose_allequal": equal,
        "allclose": near,
        "equal": same,
        "assert_close": asserted,
    }


@dataclass
class _Finder(MetaPathFinder, Loader):
    """Imports a task's modules from their texts, and nothing else."""

    texts: Mapping[str, str]
    modules: dict[str, types.ModuleType] = field(default_factory=dict)

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """The module of that name, if it is the task's."""
        return spec_from_loader(fullname, self) if fullname in self.texts else None

    def exec_module(self, module: types.ModuleType) -> None:
        """Run a module's text."""
        self.modules[module.__name__] = module
        code = compile(self.texts[module.__name__], f"{module.__name__}.py", "exec")
        exec(code, module.__dict__)  # noqa: S102 - the user's own task, run as loading a task does


@contextmanager
def _importing(finder: _Finder, names: Mapping[str, Any]) -> Iterator[None]:
    """The finder is asked first, and what it finds is forgotten afterwards."""
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(before)


@contextmanager
def _finding(modules: Mapping[str, types.ModuleType]) -> Iterator[None]:
    """Functions that import as they run find the task's modules."""
    before = {name: sys.modules[name] for name in modules if name in sys.modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            sys.modules.pop(name, None)
        sys.modules.update(before)


@contextmanager
def _on(device: str) -> Iterator[None]:
    """Everything is made and stays on one device, whatever device is named."""
    with (
        patch.object(torch, "Generator", _Generator),
        patch.object(torch.cuda, "synchronize", lambda *_: None),
        torch.device(device),
        _Moved(device),
    ):
        yield


class _Generator(torch.Generator):
    """A generator of random numbers on the CPU, whatever device it is asked for."""

    def __new__(cls, device: Any = "cpu") -> _Generator:  # noqa: ARG004 - which is asked for
        """Make one."""
        return super().__new__(cls, "cpu")  # type: ignore[call-arg] # PyTorch types it as an __init__


class _Moved(TorchFunctionMode):
    """Maps every device that is named to one."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = torch.device(device)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of PyTorch with the device in place of others."""
        if func in {torch.Tensor.cuda, torch.Tensor.cpu, torch.Tensor.pin_memory}:
            return args[0]
        named = {name: self._mapped(value) for name, value in (kwargs or {}).items()}
        if named.get("device") is not None:
            named["device"] = self._device
        if self._device.type == "meta":
            named.pop("generator", None)
        return func(*(self._mapped(value) for value in args), **named)

    def _mapped(self, value: Any) -> Any:
        if isinstance(value, torch.device):
            return self._device
        is_name = isinstance(value, str) and value.partition(":")[0] in {"cuda", "cpu"}
        return self._device if is_name else value
