"""PyTorch's operators compute what the tasks' references do, so that their times may stand side by side."""

import pytest

from mctskernel.core.dtypes import numpy_dtype
from mctskernel.core.task import Array
from mctskernel.core.task_file import load_task
from mctskernel.problems.pytorch_timing import has_operator
from mctskernel.problems.torch_reference import tensor_of
from mctskernel.profiling.verify import check_outputs, draw_case
from mctskernel.tasks.builtin import builtin_tasks

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason="the extra `gpu` is not installed")
operators = pytest.importorskip("mctskernel.problems.operators")


ALLOWED = 4.0
"""Eager PyTorch rounds to 16 bits between two operators, so it may be off by more than a task allows one kernel."""


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("name", builtin_tasks())
def test_the_operator_computes_the_task(name: str) -> None:
    task = load_task(builtin_tasks()[name])
    assert has_operator(task)
    for seed, shape in enumerate(task.verify_shapes):
        case = draw_case(task, shape, seed)
        tensors = (as_tensor(case.inputs[each.name], each.dtype) for each in task.inputs)
        made = operators.operator_of(task, shape)(*tensors)
        (output,) = task.outputs
        found = {output.name: as_array(made, output.dtype)}
        assert found[output.name].shape == output.extents(shape)
        verdict = check_outputs(case, found)
        assert verdict.error <= ALLOWED, f"{shape}: {verdict.message}"


def as_tensor(array: Array, dtype: str) -> torch.Tensor:
    return tensor_of(array, getattr(torch, dtype))  # type: ignore[no-any-return] # a tensor


def as_array(tensor: torch.Tensor, dtype: str) -> Array:
    kind = numpy_dtype(dtype)
    if dtype == "bfloat16":
        assert tensor.dtype is torch.bfloat16
        return tensor.contiguous().view(torch.int16).numpy().view(kind)
    found = tensor.numpy()
    assert found.dtype == kind
    return found
