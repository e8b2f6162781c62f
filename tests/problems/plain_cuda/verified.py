"""Whether a function's plain kernel computes what the function does, emulated, at sizes it wasn't made for."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Numerics, Operator, Shape, Task, Tensor, Tolerance
from mctskernel.problems.templates import Sources, kernel_sources
from mctskernel.problems.torch_reference import dtype_name, in_numpy
from mctskernel.problems.torch_task import called, listed
from mctskernel.profiling.candidate import RefusedError, prepare
from mctskernel.profiling.emulated_verification import Drawn, emulate
from mctskernel.profiling.emulation import emulable
from mctskernel.profiling.input_values import Values
from mctskernel.profiling.stages import Stages
from mctskernel.profiling.verify import draw_case

SIZES = {"rows": 61, "cols": 127, "n": 37, "k": 53, "m": 71, "h": 41, "w": 43, "d": 31}
"""What kernels are made for: other sizes than those that they are verified at."""

SHAPE = {"rows": 3, "cols": 5, "n": 2, "k": 4, "m": 6, "h": 7, "w": 9, "d": 4}

FLOAT, HALF = Tolerance(1e-5, 1e-6, 64.0), Tolerance(2e-2, 1e-2, 64.0)


def tensor(name: str, extents: str, dtype: str = "float32", high: int | None = None) -> Tensor:
    """An input: its extents in words; whole numbers up to `high`, or else normal ones."""
    shape = tuple(int(each) if each.isdigit() else each for each in extents.split())
    if high is None:
        return Tensor(name, dtype, shape)
    return Tensor(name, dtype, shape, distribution="integers", low=0, high=high)


def source_of(function: Callable[..., Any], *inputs: Tensor, sizes: Shape | None = None) -> str:
    """The plain kernel of a function."""
    return sources_of(function, *inputs, sizes=sizes).plain


def sources_of(function: Callable[..., Any], *inputs: Tensor, sizes: Shape | None = None) -> Sources:
    """The kernels of a function."""
    return kernel_sources(function, inputs, _outputs(function, inputs), _used(inputs, sizes or SIZES))


def wrong(function: Callable[..., Any], *inputs: Tensor, source: str = "", shape: Shape | None = None) -> str:
    """In what the kernel of a function differs from it, or an empty text."""
    shape = _used(inputs, {**SHAPE, **(shape or {})})
    source = source or source_of(function, *inputs)
    task = _task(function, inputs, shape, source)
    try:
        # A convolution of several phases at once must keep a NaN of one from the others.
        several = "Tap<" in source and "Tap<1>" not in source
        further = [draw_case(task, shape, 1, Values.NAN)] if several else []
        stages = Stages()
        # PTX is all that is emulated, and half the work of compiling.
        prepared = emulable(task, prepare(task, task.starting_kernel, "compute_90", stages), stages)
        judged = emulate(
            task, prepared.candidate, prepared.modules, Drawn((draw_case(task, shape, 0), *further))
        )
    except RefusedError as refusal:
        return f"{refusal.message}\n{source}"
    return "" if judged.outcome is Outcome.OK else f"{judged.outcome}: {judged.message}\n{source}"


def _task(function: Callable[..., Any], inputs: Sequence[Tensor], shape: Shape, source: str) -> Task:
    given = listed(called(function, inputs, shape, "cpu"))
    outputs = tuple(
        Tensor(name, dtype_name(each), tuple(each.shape) or (1,))
        for name, each in zip(_outputs(function, inputs), given, strict=True)
    )
    narrow = any("16" in each.dtype or "float8" in each.dtype for each in inputs)
    flags = {
        Operator.CONVOLUTION: torch.backends.cudnn.allow_tf32,
        Operator.MATMUL: torch.backends.cuda.matmul.allow_tf32,
    }
    return Task(
        name="plain",
        inputs=tuple(inputs),
        outputs=outputs,
        search_shapes=(shape,),
        verify_shapes=(shape,),
        tolerance=HALF if narrow else FLOAT,
        starting_kernel=Kernel(source),
        numerics=Numerics(tf32=frozenset(each for each, allowed in flags.items() if allowed)),
        reference=_reference(function, inputs),
    )


def _reference(function: Callable[..., Any], inputs: Sequence[Tensor]) -> Callable[..., Any]:
    def reference(**arrays: Any) -> Any:
        return in_numpy(function, *(arrays[each.name] for each in inputs))

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(each.name, kind) for each in inputs]
    reference.takes_tensors = True  # type: ignore[attr-defined]
    reference.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return reference


def _outputs(function: Callable[..., Any], inputs: Sequence[Tensor]) -> list[str]:
    count = len(listed(called(function, inputs, _used(inputs, SIZES), "cpu")))
    return ["out"] if count == 1 else [f"out{number}" for number in range(count)]


def _used(inputs: Sequence[Tensor], sizes: Mapping[str, int]) -> dict[str, int]:
    words = {extent for each in inputs for extent in each.shape if isinstance(extent, str)}
    return {name: size for name, size in sizes.items() if name in words}
