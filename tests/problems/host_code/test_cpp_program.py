"""A kernel with host code in C++: its launch at each shape of the task."""

from dataclasses import replace

import pytest
import tree_sitter_cuda
from tree_sitter import Language as Grammar
from tree_sitter import Parser

from mctskernel.core.kernel import Language
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.problems.host_code.cpp_program import cpp_program
from mctskernel.problems.host_code.expressions import HostCodeError
from mctskernel.tasks.builtin import find_task


@pytest.fixture(scope="module")
def layernorm() -> Task:
    return load_task(find_task("layernorm"), Language.CUDA)


def test_each_shape_of_the_task_is_launched_with_its_numbers(layernorm: Task) -> None:
    order = [*(tensor.name for tensor in layernorm.inputs), *layernorm.scalars]
    text = cpp_program(layernorm, layernorm.starting_kernel, order)
    tree = Parser(Grammar(tree_sitter_cuda.language())).parse(
        text.split("PYBIND11_MODULE")[0].encode() + b"#endif\n"
    )
    assert not tree.root_node.has_error
    assert 'module.def("run", &mctskernel_run);' in text
    host = text[text.index("void mctskernel_run") :]
    assert "double scalar_0" in host
    assert (
        host.index("at::Tensor tensor_0") < host.index("double scalar_0") < host.index("at::Tensor tensor_3")
    )
    for shape in layernorm.shapes:
        (launch,) = layernorm.resolved(layernorm.starting_kernel, shape).launches
        extents = ", ".join(f"INT64_C({each})" for each in layernorm.inputs[0].extents(shape))
        case = text.partition(f"if (tensor_0.sizes() == at::IntArrayRef{{{extents}}}")[2].partition(
            "return;"
        )[0]
        grid = ", ".join(f"INT64_C({each})" for each in (*launch.grid, *launch.block))
        assert f"launch_0({grid}, " in case
        assert ", 1e-05);" in case


def test_a_task_in_place_is_refused(layernorm: Task) -> None:
    place = replace(layernorm, outputs=layernorm.inputs[:1])
    with pytest.raises(HostCodeError, match="in place"):
        cpp_program(place, layernorm.starting_kernel, ["x"])
