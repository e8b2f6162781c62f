"""Modules and operators on a GPU, against the references of their tasks."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from mctskernel.core.kernel import Language
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.problems.host_code import host_module, torch_operator

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


def given_and_expected(task: Task) -> tuple[list[torch.Tensor], np.ndarray]:
    shape = SHAPES[task.name]
    drawn = task.draw_inputs(shape, 0)
    wide = {name: array.astype(np.float64) for name, array in drawn.items()}
    (expected,) = task.expected(wide, shape).values()
    return [torch.from_numpy(array).cuda() for array in drawn.values()], expected


@pytest.mark.timeout(600)
@pytest.mark.parametrize("language", [Language.TRITON, Language.CUDA])
@pytest.mark.parametrize("name", SHAPES)
def test_a_module_computes_on_the_gpu_what_its_task_asks(
    name: str, language: Language, tmp_path: Path
) -> None:
    task = load_task(Path("mctskernel/tasks/builtin") / name, language)
    inputs, expected = given_and_expected(task)
    module = module_of(host_module(task, task.starting_kernel), tmp_path / f"{name}_{language}.py")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = module.run(*inputs)
    torch.cuda.synchronize()
    np.testing.assert_allclose(found.cpu().double().numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("language", [Language.TRITON, Language.CUDA])
@pytest.mark.parametrize("name", SHAPES)
def test_an_operator_computes_the_same_in_eager_code_compiled_and_in_a_cuda_graph(
    name: str, language: Language, tmp_path: Path
) -> None:
    task = load_task(Path("mctskernel/tasks/builtin") / name, language)
    inputs, expected = given_and_expected(task)
    path = tmp_path / f"{name}_{language}_operator.py"
    module = module_of(torch_operator(task, task.starting_kernel), path)
    operator = getattr(module, name, None) or getattr(module, f"{name}_")

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
