"""What would certainly fail to launch: checked before an evaluation is paid for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from mctskernel.core.expression import ExpressionError, Number, evaluate_int
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import LaunchPlanError, plan_of, resolve
from mctskernel.core.task import Shape, Task
from mctskernel.edits.syntax import Declaration, Function, parse, text_of

STATIC_SHARED_BYTES = 48 << 10
"""What ptxas accepts as static shared memory of one kernel."""

TYPE_BYTES: Mapping[str, int] = {
    "char": 1,
    "bool": 1,
    "half": 2,
    "__half": 2,
    "__nv_bfloat16": 2,
    "short": 2,
    "int": 4,
    "unsigned": 4,
    "unsigned int": 4,
    "float": 4,
    "half2": 4,
    "__half2": 4,
    "double": 8,
    "long long": 8,
    "float2": 8,
    "int2": 8,
    "float4": 16,
    "int4": 16,
    "double2": 16,
}
"""Sizes of the types that shared arrays are usually made of."""


def launchable(task: Task, kernel: Kernel, shapes: Iterable[Shape]) -> bool:
    """Whether the plan resolves at each shape, within launch bounds and static shared memory."""
    try:
        plan = plan_of(kernel)
        resolved = [resolve(plan, task.names(shape, kernel), task.buffer_names) for shape in shapes]
    except LaunchPlanError:
        return False
    if kernel.language is not Language.CUDA:
        return True
    if "__shared__" not in kernel.source and "__launch_bounds__" not in kernel.source:
        return True
    for function in parse(kernel.source).kernels:
        threads = [
            launch.threads
            for entry in resolved
            for launch in entry.launches
            if launch.kernel == function.name
        ]
        if not threads:
            continue
        if max(threads) > _largest_block(function, kernel.macros):
            return False
        if static_shared_bytes(function, kernel.macros) > STATIC_SHARED_BYTES:
            return False
    return True


def static_shared_bytes(function: Function, macros: Mapping[str, int]) -> int:
    """Bytes of the shared arrays whose size is plain arithmetic over macros; the others count as nothing."""
    return sum(_bytes(declaration, macros) for declaration in function.declarations if declaration.shared)


def _bytes(declaration: Declaration, macros: Mapping[str, Number]) -> int:
    if declaration.extern or None in declaration.extents:
        return 0
    try:
        extents = [evaluate_int(text_of(extent), macros) for extent in declaration.extents if extent]
    except ExpressionError:
        return 0
    return TYPE_BYTES.get(declaration.type, 4) * prod(extents)


def _largest_block(function: Function, macros: Mapping[str, Number]) -> int:
    bounds = function.launch_bounds
    if bounds is None or not bounds.named_children:
        return 1024
    try:
        return evaluate_int(text_of(bounds.named_children[0]), macros)
    except ExpressionError:
        return 1024
