"""A search of a problem with several workloads, and its solution."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mctskernel.core.budget import Budget
from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import Language
from mctskernel.core.task_file import load_task
from mctskernel.external.messages import RepliedBlock, RepliedEdit, Reply
from mctskernel.external.session import begin_session
from mctskernel.problems.definitions import SOLUTION_FILE
from mctskernel.problems.problem import PROBLEM_FILE
from mctskernel.problems.registry import read_problem, solution_of
from mctskernel.report.view import load_view
from mctskernel.run import RunFolder
from mctskernel.tree.trajectory import edit_title
from tests.problems.definitions.folders import DEFINITION, INPUTS, workload, write_flashinfer
from tests.synthetic_run import with_configuration

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")

pytestmark = pytest.mark.slow

KERNEL = """\
/*
[[launch]]
kernel = "scale"
grid = ["ceil_div(rows * 8, BLOCK)"]
block = ["BLOCK"]
args = ["x", "weight", "y", "rows * 8", "gain"]
*/
#define BLOCK 64

extern "C" __global__ void scale(const float* x, const float* weight, float* y, int n, float gain) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) {
        y[i] = x[i] * weight[i % 8] * gain;
    }
}
"""

RIGHT_AT_ONE_WORKLOAD = RepliedEdit(
    title="leave the weights out, which are 1 in the first workload",
    patch=(RepliedBlock(search=" * weight[i % 8]", replace=""),),
)
RIGHT_AT_ONE_SIZE = RepliedEdit(
    title="leave the last rows out where there are many",
    patch=(RepliedBlock(search="if (i < n)", replace="if (i < n && (n < 2400 || i < n - 8))"),),
)
HONEST = RepliedEdit(title="larger blocks", patch=(RepliedBlock(search="BLOCK 64", replace="BLOCK 128"),))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A search with three edits: two that are only right at one workload, and a correct one."""
    root = tmp_path_factory.mktemp("set")
    workloads = []
    for number, (rows, weight) in enumerate(((4, 1.0), (4, 3.0), (300, 3.0)), 1):
        file = root / f"{number}.safetensors"
        safetensors_torch.save_file({"w": torch.full((8,), weight)}, file)
        given = {"type": "safetensors", "path": file.name, "tensor_key": "w"}
        workloads.append(workload(number, {"rows": rows}, inputs={**INPUTS, "weight": given}))
    problem = read_problem(write_flashinfer(root, DEFINITION, workloads), Language.CUDA)
    task = root / "task"
    task.mkdir()
    for name, data in {**problem.files, "kernel.cu": KERNEL.encode()}.items():
        (task / name).write_bytes(data)
    configuration = with_configuration(task="scale", proposer="outside", budget=Budget(evaluations=5))
    with begin_session(root / "run", task, configuration) as session:
        edits = (RIGHT_AT_ONE_WORKLOAD, RIGHT_AT_ONE_SIZE, HONEST)
        while asked := session.ask(1):
            session.tell([Reply(node=asked[0].node, edits=() if asked[0].node else edits)])
        session.finish()
        return session.folder


def test_a_kernel_must_be_right_at_every_workload(run: RunFolder) -> None:
    tree = load_view(run.path).tree
    outcomes = {edit_title(tree, node): node.outcome for node in tree.nodes if node.parent == 0}
    assert outcomes[RIGHT_AT_ONE_WORKLOAD.title] is Outcome.WRONG_RESULT
    assert outcomes[RIGHT_AT_ONE_SIZE.title] is Outcome.WRONG_RESULT
    assert outcomes[HONEST.title] is Outcome.OK


def test_a_solution_in_python(run: RunFolder) -> None:
    task = load_task(run.task)
    found = json.loads(solution_of(task, task.starting_kernel)[SOLUTION_FILE])
    assert (found["definition"], found["spec"]["language"]) == ("scale_h8", "python")
    assert not found["spec"]["destination_passing_style"]
    (source,) = found["sources"]
    assert f"{source['path']}::run" == found["spec"]["entry_point"]
    assert "def run(x, weight, gain):" in source["content"]
    assert "workload" not in source["content"]
    compile(source["content"], "main.py", "exec")


def test_a_solution_in_c_plus_plus_for_sol_execbench(run: RunFolder, tmp_path: Path) -> None:
    folder = tmp_path / "task"
    shutil.copytree(run.task, folder)
    file = folder / PROBLEM_FILE
    file.write_text(file.read_text().replace("flashinfer-bench", "SOL-ExecBench"))
    task = load_task(folder)
    found = json.loads(solution_of(task, task.starting_kernel)[SOLUTION_FILE])
    assert (found["spec"]["languages"], found["spec"]["entry_point"]) == (["cuda_cpp"], "kernel.cu::run")
    assert "--use_fast_math" not in found["spec"]["compile_options"]["cuda_cflags"]
    arguments = "at::Tensor tensor_0, at::Tensor tensor_1, double scalar_0, at::Tensor tensor_2"
    assert f"mctskernel_run({arguments})" in found["sources"][0]["content"]
