"""What a function does that launches Triton kernels: recorded on fake tensors, in place of run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from mctskernel.core.task import Shape, TaskError, Tensor
from mctskernel.problems.torch_reference import dtype_name

MULTIPROCESSORS = 132  # of an H100 and an H200, for launchers that ask where there is no GPU
ZEROS = {"zeros", "zeros_like", "new_zeros", "zero_"}

_EMPTY = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}


@dataclass(frozen=True)
class Storage:
    """A tensor that a launch is given: the number of its storage, and the type of its elements."""

    number: int
    dtype: str


@dataclass(frozen=True)
class Launched:
    """A launch at one shape. `at` gives those numbers for other block sizes that are functions of them.

    Extents of the grid are among these numbers, under their axes.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    options: Mapping[str, Any]
    at: Callable[[Mapping[str, Any]], Mapping[str | int, Any]]

    @property
    def constexprs(self) -> frozenset[str]:
        return frozenset(each.name for each in self.kernel.params if each.is_constexpr)

    @property
    def tensors(self) -> dict[str, Storage]:
        return {name: each for name, each in self.arguments.items() if isinstance(each, Storage)}


@dataclass
class Recorded:
    """A call of the launcher at one shape. Storages are numbered as they are seen, the inputs' first.

    `made_by` are PyTorch's functions that made or changed them; `configs` counts an autotuned kernel's.
    """

    launches: list[Launched] = field(default_factory=list)
    made_by: dict[int, str] = field(default_factory=dict)
    returned: tuple[int, ...] = ()
    configs: int = 1
    _seen: list[tuple[Any, Any]] = field(default_factory=list)

    @property
    def kernels(self) -> list[Any]:
        return [each.kernel for each in self.launches]

    def dtype(self, number: int) -> str:
        return dtype_name(self._seen[number][1])

    def elements(self, number: int) -> int:
        storage, tensor = self._seen[number]
        return int(storage.nbytes() // tensor.element_size())

    def number(self, tensor: Any, made_by: str = "") -> int:
        """The number of a tensor's storage; `made_by` is what made it, or changed it in place."""
        storage = tensor.untyped_storage()
        known = (n for n, (each, _) in enumerate(self._seen) if each._cdata == storage._cdata)  # noqa: SLF001
        found = next(known, len(self._seen))
        if found == len(self._seen) or made_by.endswith("_"):
            self.made_by[found] = made_by
        if found == len(self._seen):
            self._seen.append((storage, tensor))
        return found

    def given(self, tensor: Any) -> Storage:
        """A tensor whose values kernels alone make. Raises TaskError for others."""
        found = self.number(tensor)
        if self.made_by[found] not in {"", *_EMPTY, *ZEROS}:
            made = self.made_by[found]
            raise TaskError(
                f"The launcher computes a tensor by PyTorch's {made}, which is no kernel of its own."
            )
        if tensor.storage_offset():
            raise TaskError(
                "The launcher gives a kernel a part of a tensor that doesn't begin where it begins."
            )
        return Storage(found, dtype_name(tensor))


def recorded(
    launcher: Callable[..., Any], inputs: Sequence[Tensor], shape: Shape, choice: int = 0
) -> Recorded:
    """A call of the launcher; of autotuned configurations the `choice`-th is taken. Raises TaskError where it fails."""
    import torch  # noqa: PLC0415 - an extra
    from torch._subclasses import fake_tensor  # noqa: PLC0415
    from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC0415
    from triton.runtime.autotuner import Autotuner, Heuristics  # noqa: PLC0415
    from triton.runtime.jit import JITFunction, KernelInterface  # noqa: PLC0415

    found = Recorded()

    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            for each in result if isinstance(result, tuple | list) else [result]:
                if isinstance(each, torch.Tensor):
                    found.number(each, func.overloadpacket.__name__)
            return result

    def launch(
        kernel: Any, grid: Any, *args: Any, derived: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Record what is beneath decorators, with what they add."""
        if isinstance(kernel, JITFunction):
            found.launches.append(_launched(found, kernel, grid, args, kwargs, derived or {}))
            return
        if isinstance(kernel, Autotuner):
            found.configs = max(found.configs, len(kernel.configs))
            kwargs |= kernel.configs[choice % len(kernel.configs)].all_kwargs()
        if isinstance(kernel, Heuristics):
            derived = {**(derived or {}), **kernel.values}
            for name, value in kernel.values.items():
                kwargs[name] = value({**dict(zip(kernel.arg_names, args, strict=False)), **kwargs})
        launch(kernel.fn, grid, *args, derived=derived, **kwargs)

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:  # noqa: FBT001 - Triton's
        options = {name: value for name, value in kwargs.items() if name not in kernel.arg_names}
        return (
            _Compiled(partial(launch, kernel), options) if warmup else launch(kernel, grid, *args, **kwargs)
        )

    with ExitStack() as stack, torch.no_grad():
        # Fake tensors would open the GPU, which keeps other processes waiting.
        stack.enter_context(patch.object(fake_tensor, "init_gpu_context", lambda *_: None))
        stack.enter_context(
            patch.object(KernelInterface, "__getitem__", lambda *kernel: partial(launch, *kernel))
        )
        stack.enter_context(patch.object(JITFunction, "run", run))
        stack.enter_context(machine())
        stack.enter_context(fake_tensor.FakeTensorMode(allow_non_fake_inputs=True))
        dtypes = [getattr(torch, each.dtype) for each in inputs]
        extents = [each.extents(shape) for each in inputs]
        tensors = [torch.empty(e, dtype=d, device="cuda") for e, d in zip(extents, dtypes, strict=True)]
        for tensor in tensors:
            found.number(tensor)
        stack.enter_context(Watched())
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


def _launched(
    found: Recorded,
    kernel: Any,
    grid: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    derived: Mapping[str, Callable[[Mapping[str, Any]], Any]],
) -> Launched:
    defaults = {each.name: each.default for each in kernel.params if each.has_default}
    named = {**defaults, **dict(zip(kernel.arg_names, args, strict=False)), **kwargs}

    def at(values: Mapping[str, Any]) -> Mapping[str | int, Any]:
        given = {**named, **values}
        changed = {name: value(given) for name, value in derived.items()}
        return changed | (dict(enumerate(_extents(grid({**given, **changed})))) if callable(grid) else {})

    arguments = {name: named.get(name) for name in kernel.arg_names}
    plain = {
        name: found.given(each) if hasattr(each, "untyped_storage") else each
        for name, each in arguments.items()
    }
    return Launched(kernel, _extents(grid(named) if callable(grid) else grid), plain, kwargs, at)


def _extents(grid: Any) -> tuple[int, ...]:
    return tuple(int(each) for each in (grid if isinstance(grid, tuple | list) else (grid,)))


class _Compiled(SimpleNamespace):
    """A kernel that `warmup` compiled, as far as launchers look at it."""

    def __init__(self, launch: Callable[..., None], options: Mapping[str, Any]) -> None:
        metadata = SimpleNamespace(shared=0, num_warps=options.get("num_warps", 4))
        super().__init__(n_regs=32, n_spills=0, metadata=metadata, _init_handles=lambda: None)
        self._launch, self._options = launch, options

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return partial(self._launch, grid, **self._options)


@contextmanager
def machine() -> Iterator[None]:
    """What modules and launchers of kernels ask of the machine, where it has no GPU."""
    import torch  # noqa: PLC0415 - an extra
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.runtime import driver  # noqa: PLC0415

    asked = {
        "multiprocessor_count": MULTIPROCESSORS,
        "max_shared_mem": 232448,
        "warpSize": 32,
        "max_num_regs": 65536,
    }
    properties = SimpleNamespace(
        name="NVIDIA H100", multi_processor_count=MULTIPROCESSORS, major=9, minor=0, warp_size=32
    )
    active = SimpleNamespace(
        get_active_torch_device=lambda: torch.device("cuda", 0),
        get_current_device=lambda: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_device_interface=lambda: torch.cuda,
        utils=SimpleNamespace(get_device_properties=lambda *_: asked),
    )
    answers = {
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
