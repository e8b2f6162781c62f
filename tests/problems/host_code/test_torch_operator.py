"""Kernels as operators of PyTorch: in eager code, on fake tensors and in torch.compile; nothing is launched."""

import ast
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Tensor
from mctskernel.problems.host_code import HostCodeError, host_module, torch_operator
from tests.hopper_kernels import CLUSTER, TENSOR_MAPS
from tests.problems.host_code.test_module_text import TASKS, double, task

CUDA = double().starting_kernel
TWICE = Kernel(
    """/*
[[launch]]
kernel = "twice"
grid = ["ceil_div(n, 64)"]
block = [64]
args = ["x", "out", "n", "factor"]
*/
#include <cstdint>
__global__ void twice(const float* x, float* out, int32_t n, float factor) {
    int32_t i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = factor * x[i];
}
"""
)
DOUBLE = double(scalars={"factor": 2.0})


def loaded(source: str) -> tuple[dict[str, Any], Any, list[tuple[Any, ...]]]:
    """A module's names, its operator, and its launches, which double here."""
    names: dict[str, Any] = {}
    exec(compile(source, "module.py", "exec"), names)  # noqa: S102 - what is tested
    launches: list[tuple[Any, ...]] = []

    def launch(_: torch.device, *launched: Any) -> None:
        *extents, (x, out, *numbers) = launched
        launches.append((*extents, *numbers))
        out.copy_(2 * x)

    operator = names["double"]
    names["_run"].__globals__["_launch"] = launch
    return names, operator, launches


def test_it_launches_on_tensors_as_its_plan_says() -> None:
    _, operator, launches = loaded(torch_operator(DOUBLE, TWICE))
    x = torch.arange(130.0)
    assert torch.equal(operator(x[::2]), 2 * x[::2])
    assert launches == [("twice", (2, 1, 1), (64, 1, 1), 0, 65, 2.0)]
    with pytest.raises(ValueError, match=r"x must hold torch.float32, not torch.float64"):
        operator(x.double())


def test_a_tensor_of_the_cpu_is_refused_before_anything_is_compiled() -> None:
    names: dict[str, Any] = {}
    exec(torch_operator(DOUBLE, TWICE), names)  # noqa: S102 - as above
    with pytest.raises(ValueError, match=r"The tensors are on cpu; this operator needs an NVIDIA GPU"):
        names["double"](torch.ones(4))


def test_fake_tensors_get_the_results_extents_and_pytorchs_own_checks_pass() -> None:
    _, operator, launches = loaded(torch_operator(DOUBLE, TWICE))
    with FakeTensorMode():
        assert operator(torch.empty(7)).shape == (7,)
        with pytest.raises(ValueError, match="must have 1 dimension"):
            operator(torch.empty(7, 2))
    assert not launches
    torch.library.opcheck(
        operator,
        (torch.rand(9),),
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )


@pytest.mark.slow
def test_torch_compile_keeps_it_in_one_graph_at_every_size() -> None:
    _, operator, launches = loaded(torch_operator(DOUBLE, TWICE))

    @torch.compile(fullgraph=True, dynamic=True, backend="aot_eager")
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(operator(x - 1)) + 1

    with torch.no_grad():
        for count in (3, 65, 200):
            x = torch.randn(count)
            assert torch.allclose(model(x), torch.relu(2 * (x - 1)) + 1)
    assert [each[1] for each in launches] == [(1, 1, 1), (2, 1, 1), (4, 1, 1)]


def test_a_gradient_is_refused_with_a_sentence() -> None:
    _, operator, _ = loaded(torch_operator(DOUBLE, TWICE))
    found = operator(torch.ones(3, requires_grad=True))
    with pytest.raises(NotImplementedError, match=r"double has no gradient: call it under torch.no_grad\(\)"):
        found.sum().backward()


def test_several_outputs_and_an_input_that_changes() -> None:
    kernel = Kernel(TWICE.source.replace('"out", "n"', '"out", "n"').replace("twice", "scaled"))
    both = replace(DOUBLE, outputs=(Tensor("out", "float32", ("n",)), Tensor("more", "float32", ("n",))))
    _, operator, _ = loaded(torch_operator(both, kernel))
    assert [each.shape for each in operator(torch.ones(5))] == [(5,), (5,)]
    changed = replace(DOUBLE, outputs=(Tensor("x", "float32", ("n",)),))
    in_place = Kernel(TWICE.source.replace('"x", "out"', '"x", "x"'))
    _, operator, _ = loaded(torch_operator(changed, in_place))
    x = torch.ones(4)
    assert operator(x) is None
    assert torch.equal(x, 2 * torch.ones(4))
    torch.library.opcheck(operator, (x,), test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("language", [Language.CUDA, Language.TRITON])
@pytest.mark.parametrize("name", TASKS)
def test_every_built_in_kernel_becomes_an_operator(name: str, language: Language) -> None:
    found = task(name, language)
    text = torch_operator(found, found.starting_kernel)
    ast.parse(text)
    assert "mctskernel." not in text


def test_what_a_module_can_not_launch_is_refused() -> None:
    with pytest.raises(HostCodeError, match="tensor maps"):
        torch_operator(double(), TENSOR_MAPS)
    with pytest.raises(HostCodeError, match=r"can't pass a parameter of the type half"):
        torch_operator(DOUBLE, Kernel(TWICE.source.replace("float factor", "half factor")))
    assert "cluster=(2, 1, 1))" in torch_operator(double(), CLUSTER)
    optional = Kernel(TENSOR_MAPS.source.replace("box = [64]", "box = [64]\noptional = true"))
    assert "(_map(x, [], [64], [], 0, 0, 'zero'), _map(out, [" in torch_operator(double(), optional)
    assert "::twice<<<grid" in host_module(double(), optional)


@pytest.mark.slow
def test_a_module_needs_pytorch_alone(tmp_path: Path) -> None:
    (tmp_path / "operator_of_double.py").write_text(torch_operator(DOUBLE, TWICE))
    code = "import sys, operator_of_double; assert not any(each.startswith('mctskernel') for each in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
