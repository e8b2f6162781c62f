"""Modules and operators on a GPU, against the references of their tasks."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.library import CustomOpDef
from torch.utils import cpp_extension

from mctskernel.core.kernel import Language
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.problems.host_code import host_module, torch_operator
from mctskernel.problems.host_code.cpp_program import cpp_program
from mctskernel.problems.host_code.cuda import COMPILER_FLAGS

pytestmark = pytest.mark.gpu

SHAPES = {"softmax": {"rows": 67, "cols": 130}, "matmul": {"M": 65, "N": 33, "K": 70}}


def module_of(source: str, path: Path) -> ModuleType:
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def given_and_expected(task: Task, shape: dict[str, int]) -> tuple[list[torch.Tensor], np.ndarray]:
    drawn = task.draw_inputs(shape, 0)
    wide = {name: array.astype(np.float64) for name, array in drawn.items()}
    (expected,) = task.expected(wide, shape).values()
    given = [
        torch.from_numpy(drawn[each.name].astype(np.float32)).to("cuda", getattr(torch, each.dtype))
        for each in task.inputs
    ]
    return given, expected


@pytest.mark.timeout(600)
@pytest.mark.parametrize("language", [Language.TRITON, Language.CUDA])
@pytest.mark.parametrize("name", SHAPES)
def test_a_module_computes_on_the_gpu_what_its_task_asks(
    name: str, language: Language, tmp_path: Path
) -> None:
    task = load_task(Path("mctskernel/tasks/builtin") / name, language)
    inputs, expected = given_and_expected(task, SHAPES[name])
    module = module_of(host_module(task, task.starting_kernel), tmp_path / f"{name}_{language}.py")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = module.run(*inputs)
    torch.cuda.synchronize()
    np.testing.assert_allclose(found.cpu().double().numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Inductor's own
@pytest.mark.timeout(600)
@pytest.mark.parametrize("language", [Language.TRITON, Language.CUDA])
@pytest.mark.parametrize("name", SHAPES)
def test_an_operator_computes_the_same_in_eager_code_compiled_and_in_a_cuda_graph(
    name: str, language: Language, tmp_path: Path
) -> None:
    task = load_task(Path("mctskernel/tasks/builtin") / name, language)
    inputs, expected = given_and_expected(task, SHAPES[name])
    path = tmp_path / f"{name}_{language}_operator.py"
    module = module_of(torch_operator(task, task.starting_kernel), path)
    (operator,) = (each for each in vars(module).values() if isinstance(each, CustomOpDef))

    def twice(*given: torch.Tensor) -> torch.Tensor:
        return 2 * operator(*given)

    with torch.no_grad():
        found = [twice(*inputs), torch.compile(twice, fullgraph=True)(*inputs)]
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            found.append(twice(*inputs))
        graph.replay()
    torch.cuda.synchronize()
    for each in found:
        np.testing.assert_allclose(each.cpu().double().numpy(), 2 * expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_program_in_cpp_fills_the_outputs(tmp_path: Path) -> None:
    task = load_task(Path("mctskernel/tasks/builtin/layernorm"), Language.CUDA)
    shape = task.verify_shapes[-1]
    inputs, expected = given_and_expected(task, shape)
    order = [*(tensor.name for tensor in task.inputs), *task.scalars]
    path = tmp_path / "program.cu"
    path.write_text(cpp_program(task, task.starting_kernel, order))
    built = cpp_extension.load("mctskernel_program", [str(path)], extra_cuda_cflags=list(COMPILER_FLAGS))
    (output,) = task.outputs
    found = torch.empty(output.extents(shape), dtype=getattr(torch, output.dtype), device="cuda")
    built.run(*inputs, *task.scalars.values(), found)
    np.testing.assert_allclose(found.cpu().double().numpy(), expected, rtol=2e-2, atol=2e-2)
    with pytest.raises(ValueError, match="none of those"):
        built.run(*inputs, *task.scalars.values(), found[1:])
