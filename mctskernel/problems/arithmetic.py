"""How many operations the products and convolutions of a task's PyTorch reference take."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from mctskernel.core.expression import evaluate
from mctskernel.core.task import Task, shape_label
from mctskernel.problems.pytorch_timing import counted_flops, function_of, has_pytorch_reference
from mctskernel.problems.torch_task import called


def product_flops(task: Task) -> Mapping[str, float]:
    """Operations by search shape's label, stated ones first; found without computing, and left out where that fails."""
    if task.flops is not None:
        names = task.scalars
        return {
            shape_label(each): float(evaluate(task.flops, {**names, **each})) for each in task.search_shapes
        }
    if not has_pytorch_reference(task):
        return {}
    found = {}
    for shape in task.search_shapes:
        try:
            with function_of(task, shape, "meta") as function:
                flops = counted_flops(partial(called, function, task.inputs, shape, "meta"))
            found[shape_label(shape)] = sum(flops.values())
        except Exception:  # noqa: BLE001, S112 - a problem's own code; without it a sentence is missing
            continue
    return found
