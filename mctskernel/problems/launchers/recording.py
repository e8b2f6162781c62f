"""What a function does that launches Triton kernels: recorded on fake tensors, in place of run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses import fake_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.jit import JITFunction, KernelInterface

from mctskernel.core.task import Shape, TaskError, Tensor
from mctskernel.problems.torch_reference import dtype_name

MULTIPROCESSORS = 132  # of an H100 and an H200, for launchers that ask where there is no GPU
ZEROS = {"zeros", "zeros_like", "new_zeros", "zero_"}

_FRESH = {"", "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", *ZEROS}


@dataclass(frozen=True)
class Storage:
    """A tensor that a launch is given: the number of its storage, and the type of its elements."""

    number: int
    dtype: str


@dataclass(frozen=True)
class Launched:
    """A launch at one shape. `derived` are functions of all arguments that give constexprs, `extents` the grid's."""

    kernel: Any
    arguments: Mapping[str, Any]
    options: Mapping[str, Any]
    derived: Mapping[str, Callable[[Mapping[str, Any]], Any]]
    grid: Any

    @property
    def constexprs(self) -> frozenset[str]:
        return frozenset(each.name for each in self.kernel.params if each.is_constexpr)

    @property
    def tensors(self) -> dict[str, Storage]:
        return {name: each for name, each in self.arguments.items() if isinstance(each, Storage)}

    def numbers(self, **blocks: int) -> dict[str | int, Any]:
        """The derived constexprs by name and the grid by axis, with other block sizes."""
        given: dict[str, Any] = {**self.arguments, **self.options, **blocks}
        derived = {name: value(given) for name, value in self.derived.items()}
        grid = self.grid(given | derived) if callable(self.grid) else self.grid
        found = dict[str | int, Any](derived.items())
        found.update(enumerate(map(int, grid if isinstance(grid, tuple | list) else (grid,))))
        return found


@dataclass
class Recorded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A call of a launcher at one shape. Storages are numbered as they are seen, the inputs' first.

    `choice` is the configuration taken of autotuned kernels, `configs` counts them; `made_by` are PyTorch's functions
    that made or changed storages.
    """

    choice: int = 0
    configs: int = 1
    launches: list[Launched] = field(default_factory=list)
    made_by: dict[int, str] = field(default_factory=dict)
    returned: tuple[int, ...] = ()
    seen: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @property
    def kernels(self) -> list[Any]:
        return [each.kernel for each in self.launches]

    def elements(self, number: int) -> int:
        return int(self.seen[number].untyped_storage().nbytes() // self.seen[number].element_size())

    def number(self, tensor: Any, made_by: str = "") -> int:
        """The number of a tensor's storage; `made_by` is what made it, or changed it in place."""
        address = tensor.untyped_storage()._cdata
        known = (n for n, each in enumerate(self.seen) if each.untyped_storage()._cdata == address)
        found = next(known, len(self.seen))
        if found == len(self.seen) or made_by.endswith("_"):
            self.made_by[found] = made_by
        if found == len(self.seen):
            self.seen.append(tensor)
        return found

    def given(self, tensor: Any) -> Storage:
        """A tensor whose values kernels alone make. Raises TaskError for others."""
        found = self.number(tensor)
        if self.made_by[found] not in _FRESH:
            raise TaskError(
                f"The launcher computes a tensor by PyTorch's {self.made_by[found]}, no kernel of its own."
            )
        if tensor.storage_offset():
            raise TaskError(
                "The launcher gives a kernel a part of a tensor that doesn't begin where it begins."
            )
        return Storage(found, dtype_name(tensor))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else [result]:
            if isinstance(each, torch.Tensor):
                self.number(each, func.overloadpacket.__name__)
        return result

    def launch(self, kernel: Any, grid: Any, *args: Any, **kwargs: Any) -> None:
        """Record what is beneath decorators, with the arguments that they add."""
        derived: dict[str, Any] = {}
        while not isinstance(kernel, JITFunction):
            if isinstance(kernel, Autotuner):
                self.configs = max(self.configs, len(kernel.configs))
                kwargs |= kernel.configs[self.choice % len(kernel.configs)].all_kwargs()
            if isinstance(kernel, Heuristics):
                derived |= kernel.values
                for name, value in kernel.values.items():
                    kwargs[name] = value({**dict(zip(kernel.arg_names, args, strict=False)), **kwargs})
            kernel = kernel.fn
        defaults = {each.name: each.default for each in kernel.params if each.has_default}
        named = {
            **dict.fromkeys(kernel.arg_names),
            **defaults,
            **dict(zip(kernel.arg_names, args, strict=False)),
            **kwargs,
        }
        plain = {
            name: self.given(each) if isinstance(each, torch.Tensor) else each
            for name, each in named.items()
            if name in kernel.arg_names
        }
        options = {name: each for name, each in kwargs.items() if name not in kernel.arg_names}
        arguments = {name: plain[name] for name in kernel.arg_names}
        self.launches.append(Launched(kernel, arguments, options, derived, grid))

    def run(self, kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        """Record a launch, or give a compiled kernel as far as launchers look at it."""
        if not warmup:
            return self.launch(kernel, grid, *args, **kwargs)
        options = {name: value for name, value in kwargs.items() if name not in kernel.arg_names}
        compiled = _Compiled(
            n_regs=32, n_spills=0, metadata=SimpleNamespace(shared=0), _init_handles=lambda: None
        )
        compiled.launched = lambda extents: partial(self.launch, kernel, extents, **options)
        return compiled


class _Compiled(SimpleNamespace):
    def __getitem__(self, grid: Any) -> Any:
        return self.launched(grid)


def recorded(
    launcher: Callable[..., Any], inputs: Sequence[Tensor], shape: Shape, choice: int = 0
) -> Recorded:
    """A call of the launcher. Raises TaskError where it fails."""
    found = Recorded(choice)
    with ExitStack() as stack, torch.no_grad():
        # Fake tensors would open the GPU, which keeps other processes waiting.
        stack.enter_context(patch.object(fake_tensor, "init_gpu_context", lambda *_: None))
        stack.enter_context(
            patch.object(KernelInterface, "__getitem__", lambda *kernel: partial(found.launch, *kernel))
        )
        stack.enter_context(
            patch.object(JITFunction, "run", lambda *a, **k: found.run(*a, **k))  # noqa: PLW0108 - a method of kernels
        )
        stack.enter_context(machine())
        stack.enter_context(fake_tensor.FakeTensorMode(allow_non_fake_inputs=True))
        dtypes = {each.name: getattr(torch, each.dtype) for each in inputs}
        tensors = [
            torch.empty(each.extents(shape), dtype=dtypes[each.name], device="cuda") for each in inputs
        ]
        for tensor in tensors:
            found.number(tensor)
        stack.enter_context(found)
        try:
            result = launcher(*tensors)
        except TaskError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise TaskError(f"The launcher fails: {type(error).__name__}: {error}") from error
        given = result if isinstance(result, tuple | list) else [result]
        if not all(isinstance(each, torch.Tensor) for each in given):
            raise TaskError("The launcher returns something else than tensors.")
        found.returned = tuple(found.given(each).number for each in given)
    return found


@contextmanager
def machine() -> Iterator[None]:
    """What modules and launchers of kernels ask of the machine, where it has no GPU."""
    asked = {
        "multiprocessor_count": MULTIPROCESSORS,
        "max_shared_mem": 232448,
        "warpSize": 32,
        "max_num_regs": 65536,
    }
    properties = SimpleNamespace(name="NVIDIA H100", multi_processor_count=MULTIPROCESSORS, major=9, minor=0)
    active = SimpleNamespace(
        get_active_torch_device=lambda: torch.device("cuda", 0),
        get_current_device=lambda: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_device_interface=lambda: torch.cuda,
        utils=SimpleNamespace(get_device_properties=lambda *_: asked),
    )
    answers: dict[str, Any] = {
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "set_device": lambda *_: None,
        "device": lambda *_: ExitStack(),
        "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: (9, 0),
    }
    with ExitStack() as stack:
        if not torch.cuda.is_available():
            stack.enter_context(patch.multiple(torch.cuda, **answers))
            stack.enter_context(patch.object(driver, "_active", active, create=True))
        yield
