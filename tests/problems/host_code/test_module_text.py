"""Modules as text: hostile kernels are refused or contained, and names and dimensions are right."""

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Task, Tensor
from mctskernel.core.task_file import load_task
from mctskernel.edits.syntax import parse
from mctskernel.problems.host_code import HostCodeError, host_module
from tests.conftest import KERNEL
from tests.hopper_kernels import CLUSTER, DESCRIPTORS, OVERLAPPED, SHARED_PROGRAMS, TENSOR_MAPS

TASKS = sorted(path.parent.name for path in Path("mctskernel/tasks/builtin").glob("*/task.toml"))

CUDA = KERNEL.replace("#define BLOCK 64\n", "#define BLOCK 64\n#define n_ 3\n")


def task(name: str, language: Language = Language.CUDA) -> Task:
    return load_task(Path("mctskernel/tasks/builtin") / name, language)


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
    assert kernel.source.strip() in texts["_DEVICE"]
    for text in (texts["_DEVICE"], texts["_HOST"]):
        assert text.startswith("#if")
        assert text.endswith("#endif\n")
    assert not parse(texts["_HOST"]).root.has_error
    stubs = {function.name: len(function.parameters) for function in parse(texts["_HOST"]).kernels}
    assert stubs == {each.name: len(each.parameters) for each in parse(kernel.source).kernels}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#endif\nint host;\n#ifdef __CUDA_ARCH__", "#endif without its #if"),
        ("#else\nstruct S { S() {} } s;", "#else without its #if"),
        ("#if 1", "#if without its #endif"),
        ("__device__ int counter;", "Line 17: global device variables"),
        ("namespace a { __constant__ float weights[3] = {1, 2, 3}; }", "global device variables"),
        ("#include <cstdlib>\n#include </etc/passwd>", "not allowed"),
    ],
)
def test_a_kernel_can_not_leave_the_device(text: str, said: str) -> None:
    with pytest.raises(HostCodeError, match=said):
        host_module(double(), Kernel(CUDA + text))


def test_the_host_has_a_variable_for_each_table_of_constants() -> None:
    table = "struct T { int a; };\n__constant__ const T few[] = {{1}}, more[2] = {};\n"
    host = strings(host_module(double(), Kernel(CUDA + table)))["_HOST"]
    assert "static __constant__ char few[1];\nstatic __constant__ char more[1];" in host


@pytest.mark.parametrize("quotes", ["'''", '"""', "\\", "''' + __import__('os')"])
def test_a_text_can_not_leave_its_literal_or_the_device(quotes: str) -> None:
    texts = strings(
        host_module(double(), Kernel(f"{CUDA}struct S {{ S() {{ system(1); }} }} s; // {quotes}"))
    )
    assert quotes in texts["_DEVICE"]
    assert "system" not in texts["_HOST"]


@pytest.mark.parametrize(
    "source", ['import os\nos.system("id")\n', "@triton.jit\ndef other(x=__import__('os')):\n    pass\n"]
)
def test_a_hostile_module_is_refused(source: str) -> None:
    soft = task("softmax", Language.TRITON)
    with pytest.raises(HostCodeError):
        host_module(soft, Kernel(soft.starting_kernel.source + "\n" + source, Language.TRITON))


def test_clusters_and_overlap_are_launched_with_attributes() -> None:
    kernel = Kernel(CLUSTER.source.replace("cluster = [2]", 'cluster = ["2 * ceil_div(n, n)"]'))
    host = strings(host_module(double(), kernel))["_HOST"]
    assert "attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;" in host
    assert (
        "int64_t shared, int64_t cluster_x, int64_t cluster_y, int64_t cluster_z, int64_t stream, int64_t"
        in host
    )
    assert "mctskernel_check(cudaLaunchKernelEx(&config, ::twice, reinterpret_cast<const float*>(" in host
    overlapped = strings(host_module(double(), OVERLAPPED))["_HOST"]
    first, second = overlapped.split("void launch_1")
    assert "::first<<<grid, block" in first
    assert "val.programmaticStreamSerializationAllowed = 1;" in second


def test_tensor_maps_are_refused_and_descriptors_get_an_allocator() -> None:
    with pytest.raises(HostCodeError, match="tensor maps"):
        host_module(double(), TENSOR_MAPS)
    assert "    triton.set_allocator(lambda size" in host_module(double(), DESCRIPTORS)
    assert "num_stages=3, num_ctas=2, maxnreg=64)" in host_module(double(), SHARED_PROGRAMS)
