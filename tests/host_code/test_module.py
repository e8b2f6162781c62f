"""Modules as text: their signatures, what they check, and what a hostile kernel can't do to them."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Task, Tensor
from mctskernel.core.task_file import load_task
from mctskernel.edits.syntax import parse
from mctskernel.host_code import HostCodeError, host_module, host_module_into
from mctskernel.host_code.dimensions import solve

TASKS = sorted(path.parent.name for path in Path("mctskernel/tasks").glob("*/task.toml"))

CUDA = """\
/*
[[launch]]
kernel = "twice"
grid = ["ceil_div(n, BLOCK)"]
block = ["BLOCK"]
args = ["x", "out", "n"]
*/
#define BLOCK 64
#define n_ 3

extern "C" __global__ void twice(const float* x, float* out, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) {
        out[i] = 2.0f * x[i];
    }
}
"""


def task(name: str, language: Language = Language.CUDA) -> Task:
    return load_task(Path("mctskernel/tasks") / name, language)


def double(**changes: Any) -> Task:
    """A task of one vector."""
    shape = {"n": 128}
    return replace(
        task("sum"),
        name="double",
        inputs=(Tensor("x", "float32", ("n",)),),
        outputs=(Tensor("out", "float32", ("n",)),),
        search_shapes=(shape,),
        verify_shapes=({"n": 7},),
        held_out_shapes=(),
        held_out_timed_shapes=(),
        **changes,
    )


class Extension:
    """What a built extension would be: it says what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, *arguments))


def loaded(source: str) -> tuple[dict[str, Any], Extension]:
    """A module, whose extension is never built."""
    names: dict[str, Any] = {}
    exec(compile(source, "module.py", "exec"), names)  # noqa: S102 - what is tested
    extension = Extension()
    names["extension"] = lambda: extension
    return names, extension


def strings(source: str) -> dict[str, str]:
    return {
        statement.targets[0].id: ast.literal_eval(statement.value)
        for statement in ast.parse(source).body
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
    }


@pytest.mark.parametrize("name", TASKS)
def test_the_host_of_each_built_in_kernel_is_written(name: str) -> None:
    kernel = task(name).starting_kernel
    texts = strings(host_module(task(name), kernel))
    assert kernel.source.strip() in texts["DEVICE"]
    for text in (texts["DEVICE"], texts["HOST"]):
        assert text.startswith("#if")
        assert text.endswith("#endif\n")
    assert not parse(texts["HOST"]).root.has_error
    stubs = {function.name: len(function.parameters) for function in parse(texts["HOST"]).kernels}
    assert stubs == {each.name: len(each.parameters) for each in parse(kernel.source).kernels}


def test_a_launch_gets_what_its_plan_says() -> None:
    names, extension = loaded(host_module(double(), Kernel(CUDA)))
    x = torch.ones(130)
    out = names["run"](x)
    assert extension.calls == [("launch_0", 3, 1, 1, 64, 1, 1, 0, x, out, 130)]
    assert (out.shape, out.dtype) == ((130,), torch.float32)


def test_outputs_that_are_given_are_filled() -> None:
    names, extension = loaded(host_module_into(double(), Kernel(CUDA), function="fill"))
    x, out = torch.ones(5), torch.empty(5)
    assert names["fill"](x, out) is None
    assert extension.calls[0][-2] is out
    with pytest.raises(ValueError, match="contiguous"):
        names["fill"](x, torch.empty(10)[::2])


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (torch.ones(3, 4), "dimension"),
        (torch.ones(3, dtype=torch.float64), "must hold torch.float32"),
        (torch.ones(0), "no elements"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_in_words(x: torch.Tensor, said: str) -> None:
    names, extension = loaded(host_module(double(), Kernel(CUDA)))
    with pytest.raises(ValueError, match=said):
        names["run"](x)
    assert not extension.calls


def test_tensors_that_disagree_are_refused_in_words() -> None:
    names, _ = loaded(host_module(task("matmul"), task("matmul").starting_kernel))
    with pytest.raises(
        ValueError, match=r"b has the shape \(5, 6\); with the other tensors it must be \(4, 6\)"
    ):
        names["run"](torch.ones(3, 4), torch.ones(5, 6))


def test_scalars_are_keyword_arguments() -> None:
    names, extension = loaded(host_module(task("stencil"), task("stencil").starting_kernel))
    names["run"](torch.ones(4, 5), center=0.5)
    assert extension.calls[0][-2:] == (0.5, 0.1)


def test_a_dimension_that_does_not_follow_is_a_keyword_argument() -> None:
    asked = replace(
        double(),
        outputs=(Tensor("out", "float32", ("k",)),),
        search_shapes=({"n": 128, "k": 4},),
        verify_shapes=({"n": 7, "k": 2},),
    )
    names, _ = loaded(host_module(asked, Kernel(CUDA)))
    assert names["run"](torch.ones(9), k=3).shape == (3,)
    with pytest.raises(TypeError):
        names["run"](torch.ones(9))


def test_a_scratch_buffer_is_made_as_the_plan_says() -> None:
    source = CUDA.replace('"n"]', '"count", "n"]', 1).replace(
        "*/", '[[scratch]]\nname = "count"\ndtype = "int32"\nshape = ["ceil_div(n, 2)"]\nzero = true\n*/', 1
    )
    source = source.replace("float* out,", "float* out, int* count,")
    names, extension = loaded(host_module(double(), Kernel(source)))
    names["run"](torch.ones(5))
    assert extension.calls[0][-2].tolist() == [0, 0, 0]


def test_extents_are_solved_for_dimensions() -> None:
    tensors = (Tensor("a", "float32", ("n + 1", "K // group", "2 * (m - 3)")), Tensor("b", "float32", ("K",)))
    found = {each.name: (each.expression, each.divides) for each in solve(tensors, ["n", "K", "group", "m"])}
    assert found == {
        "n": ("__size__ - 1", ""),
        "K": ("__size__", ""),
        "group": ("K // __size__", "K"),
        "m": ("__size__ // 2 + 3", ""),
    }
    assert solve((Tensor("a", "float32", ("n * n", "k // 2")),), ["n", "k"]) == ()


def test_a_group_that_does_not_divide_is_refused() -> None:
    names, _ = loaded(host_module(task("int4_matmul"), task("int4_matmul").starting_kernel))
    x = torch.ones(2, 10, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="group doesn't follow"):
        names["run"](x, torch.ones(4, 5, dtype=torch.uint8), torch.ones(4, 3, dtype=torch.bfloat16))


def test_names_of_a_task_never_hide_those_of_the_module() -> None:
    named = replace(
        double(),
        inputs=(Tensor("torch", "float32", ("min",)),),
        outputs=(Tensor("lambda", "float32", ("min",)),),
        search_shapes=({"min": 128},),
        verify_shapes=({"min": 7},),
    )
    source = CUDA.replace('"x", "out", "n"]', '"torch", "lambda", "min"]').replace(
        "ceil_div(n,", "ceil_div(min,"
    )
    names, extension = loaded(host_module(named, Kernel(source)))
    names["run"](torch.ones(3))
    assert extension.calls[0][-1] == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#endif\nint host;\n#ifdef __CUDA_ARCH__", "#endif without its #if"),
        ("#else\nstruct S { S() {} } s;", "#else without its #if"),
        ("#if 1", "#if without its #endif"),
        ("__device__ int counter;", "Line 17: a variable of the device"),
        ("namespace a { __constant__ float weights[3] = {1, 2, 3}; }", "a variable of the device"),
        ("#include <cstdlib>\n#include </etc/passwd>", "not allowed"),
    ],
)
def test_a_kernel_can_not_leave_the_device(text: str, said: str) -> None:
    with pytest.raises(HostCodeError, match=said):
        host_module(double(), Kernel(CUDA + text))


def test_code_of_the_host_stays_in_the_device_text() -> None:
    hostile = CUDA + 'struct S { S() { system("id"); } } s;\n'
    assert "system" not in strings(host_module(double(), Kernel(hostile)))["HOST"]


@pytest.mark.parametrize("quotes", ["'''", '"""', "\\", "''' + __import__('os')"])
def test_a_text_can_not_leave_its_literal(quotes: str) -> None:
    source = CUDA + f"// {quotes}"
    module = host_module(double(), Kernel(source))
    assert quotes in strings(module)["DEVICE"]


def test_a_parameter_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(HostCodeError, match="'Evil', which its host doesn't know"):
        host_module(double(), Kernel(CUDA.replace("int n)", "Evil n)")))


def test_types_that_have_other_names_are_known() -> None:
    source = CUDA.replace("int n)", "Count n)").replace(
        "#define BLOCK", "using Count = long long;\n#define BLOCK"
    )
    assert "twice(const float*, float*, long long)" in strings(host_module(double(), Kernel(source)))["HOST"]


def test_a_mangled_kernel_is_declared_with_its_types() -> None:
    source = CUDA.replace('extern "C" ', "")
    host = strings(host_module(double(), Kernel(source)))["HOST"]
    assert "__global__ void twice(const float*, float*, int) {}" in host
    assert 'extern "C"' not in host


@pytest.mark.parametrize("name", ["run", "ModelNew"])
def test_a_name_that_is_wanted_may_not_be_the_kernels(name: str) -> None:
    soft = task("softmax", Language.TRITON)
    source = soft.starting_kernel.source.replace("BLOCK", name)
    with pytest.raises(HostCodeError, match=f"defines '{name}'"):
        host_module(soft, Kernel(source, Language.TRITON), reserved=["ModelNew"])


def test_a_constant_of_the_kernel_keeps_its_name() -> None:
    soft = task("softmax", Language.TRITON)
    source = soft.starting_kernel.source.replace("BLOCK = 128", "BLOCK = 128\ntorch = 4\nlaunch = 2")
    module = host_module(soft, Kernel(source, Language.TRITON))
    assert "import torch as torch_" in module
    assert "def launch_(" in module


@pytest.mark.parametrize(
    "source",
    [
        'import os\nos.system("id")\n',
        "@triton.jit\ndef other(x=__import__('os')):\n    pass\n",
    ],
)
def test_a_hostile_module_is_refused(source: str) -> None:
    soft = task("softmax", Language.TRITON)
    with pytest.raises(HostCodeError):
        host_module(soft, Kernel(soft.starting_kernel.source + "\n" + source, Language.TRITON))


def test_a_plan_that_does_not_fit_the_task_is_refused() -> None:
    with pytest.raises(HostCodeError, match="unknown name 'm'"):
        host_module(double(), Kernel(CUDA.replace("ceil_div(n,", "ceil_div(m,")))


def test_what_only_tells_inputs_apart_is_no_dimension_of_the_function() -> None:
    told = double(inputs_by="workload")
    told = replace(told, search_shapes=({"n": 128, "workload": 1},), verify_shapes=({"n": 7, "workload": 0},))
    names, extension = loaded(host_module(told, Kernel(CUDA)))
    names["run"](torch.ones(5))
    assert extension.calls[0][-1] == 5


def test_an_output_that_is_in_place_is_the_input() -> None:
    changed = double()
    changed = replace(changed, outputs=(Tensor("x", "float32", ("n",)),))
    source = CUDA.replace('"x", "out", "n"', '"x", "x", "n"')
    names, extension = loaded(host_module(changed, Kernel(source)))
    x = torch.ones(5)
    assert names["run"](x) is x
    assert extension.calls[0][-3:-1] == (x, x)
    with pytest.raises(ValueError, match="contiguous"):
        names["run"](torch.ones(10)[::2])


def test_an_input_may_lie_anywhere() -> None:
    names, extension = loaded(host_module(double(), Kernel(CUDA)))
    names["run"](torch.arange(10.0)[::2])
    given = extension.calls[0][-3]
    assert given.is_contiguous()
    assert given.tolist() == [0, 2, 4, 6, 8]
