"""A search of a problem with two workloads, from the definition to the solution and its traces."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from mctskernel.asks import RepliedBlock, RepliedEdit, Reply
from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import Language
from mctskernel.core.task import TaskError
from mctskernel.core.task_file import load_task
from mctskernel.problems.definitions.solution import SOLUTION_FILE, read_solution
from mctskernel.problems.definitions.traces import read_traces, scored, trace_of, write_traces
from mctskernel.problems.problem import PROBLEM_FILE
from mctskernel.problems.registry import read_problem, solution_of
from mctskernel.problems.scores import mean_speedup
from mctskernel.run import Budget, Configuration, RunFolder
from mctskernel.session import Told, begin_session
from mctskernel.tree.policy import Policy
from tests.problems.definitions.folders import DEFINITION, INPUTS, workload, write_flashinfer

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")

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
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, tuple[Told, ...]]:
    """A search whose edits are told: two that are right at one workload, and an honest one."""
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
    configuration = Configuration(
        task="scale",
        device="model",
        architecture="H100",
        proposer="outside",
        seed=0,
        workers=1,
        budget=Budget(evaluations=4),
        policy=Policy(strategy="mcts"),
    )
    with begin_session(root / "run", task, configuration) as session:
        session.ask(1)
        edits = (RIGHT_AT_ONE_WORKLOAD, RIGHT_AT_ONE_SIZE, HONEST)
        told = session.tell([Reply(node=0, edits=edits)])
        session.ask(1)
        told = session.tell([Reply(node=0, edits=edits)])
        session.conclude()
        return session.folder, told


def test_a_kernel_that_is_right_at_one_workload_is_refused(run: tuple[RunFolder, tuple[Told, ...]]) -> None:
    outcomes = {each.title: each for each in run[1]}
    assert outcomes[RIGHT_AT_ONE_WORKLOAD.title].outcome is Outcome.WRONG_RESULT
    assert outcomes[RIGHT_AT_ONE_SIZE.title].outcome is Outcome.WRONG_RESULT
    assert outcomes[HONEST.title].outcome is Outcome.OK


def test_a_solution_is_read_as_it_was_written(run: tuple[RunFolder, tuple[Told, ...]]) -> None:
    task = load_task(run[0].task)
    text = solution_of(task, task.starting_kernel)[SOLUTION_FILE]
    found = read_solution(text.encode())
    assert (found.definition, found.spec.language) == ("scale_h8", "python")
    assert not found.spec.destination_passing_style
    assert "def run(x, weight, gain):" in found.sources[0].content
    assert "workload" not in found.sources[0].content
    compile(found.sources[0].content, "main.py", "exec")
    for path in ("../main.py", "/main.py"):
        with pytest.raises(TaskError, match="leads out"):
            read_solution(text.replace("main.py", path).encode())
    with pytest.raises(TaskError, match="no file for its entry point"):
        read_solution(text.replace("main.py::run", "other.py::run").encode())
    with pytest.raises(TaskError, match="no solution"):
        read_solution(b"{}")


def test_sol_execbench_gets_host_code_in_c_plus_plus(
    run: tuple[RunFolder, tuple[Told, ...]], tmp_path: Path
) -> None:
    folder = tmp_path / "task"
    shutil.copytree(run[0].task, folder)
    file = folder / PROBLEM_FILE
    file.write_text(file.read_text().replace("flashinfer-bench", "SOL-ExecBench"))
    task = load_task(folder)
    found = read_solution(solution_of(task, task.starting_kernel)[SOLUTION_FILE].encode())
    assert (found.spec.languages, found.spec.entry_point) == (("cuda_cpp",), "kernel.cu::run")
    assert found.spec.destination_passing_style
    assert found.spec.compile_options is not None
    assert "--use_fast_math" not in found.spec.compile_options.cuda_cflags
    text = found.sources[0].content
    assert (
        "mctskernel_run(at::Tensor tensor_0, at::Tensor tensor_1, double scalar_0, at::Tensor tensor_2)"
        in text
    )


def test_a_run_has_a_trace_for_each_workload(run: tuple[RunFolder, tuple[Told, ...]]) -> None:
    traces = trace_of(run[0], {"workload-1": 1.0, "workload-2": 1.0, "workload-3": 1.0})
    assert [each.workload.uuid for each in traces] == ["workload-1", "workload-2", "workload-3"]
    again = read_traces(write_traces(traces).encode(), "traces")
    assert again == traces
    for each in json.loads(f"[{','.join(write_traces(traces).splitlines())}]"):
        evaluation = each["evaluation"]
        assert evaluation["status"] == "PASSED"
        performance = evaluation["performance"]
        assert performance["speedup_factor"] == pytest.approx(1e3 / performance["latency_ms"])
        assert "modelled" in evaluation["log"]
        assert "modelled" in evaluation["environment"]["hardware"]
        assert set(each["workload"]) == {"uuid", "axes", "inputs"}, (
            "no field that is null, which theirs can't be"
        )
    (results,) = scored(again).values()
    assert len(results) == 3
    speedup = mean_speedup(results)
    assert speedup is not None
    assert math.isfinite(speedup)


def test_a_speedup_that_nobody_measured_is_none(run: tuple[RunFolder, tuple[Told, ...]]) -> None:
    (results,) = scored(trace_of(run[0])).values()
    assert all(each.correct and each.speedup is None for each in results)


def test_traces_of_others_are_read() -> None:
    """As a harness writes them: with fields that we don't know, errors that are no numbers, and failures."""
    one = {"uuid": "w", "axes": {"rows": 1}, "inputs": {"x": {"type": "random"}}}
    passed = {
        "status": "PASSED",
        "environment": {"hardware": "NVIDIA_H100", "libs": {"torch": "2.9"}},
        "timestamp": "2026-01-01T00:00:00",
        "correctness": {"max_relative_error": "NaN", "max_absolute_error": 1e-3, "has_nan": False},
        "performance": {
            "latency_ms": 0.5,
            "reference_latency_ms": 1.0,
            "speedup_factor": 2.0,
            "profile": None,
        },
    }
    slower = json.loads(json.dumps(passed).replace("2.0", "1.5"))
    failed = {**passed, "status": "TIMEOUT", "correctness": None, "performance": None}
    lines = [
        {"definition": "d", "workload": one, "solution": None, "evaluation": None},
        {"definition": "d", "workload": one, "solution": "a", "evaluation": failed},
        {"definition": "d", "workload": one, "solution": "a", "evaluation": passed},
        {"definition": "d", "workload": one, "solution": "a", "evaluation": slower},
        {"definition": "d", "workload": {**one, "uuid": "v"}, "solution": "b", "evaluation": failed},
    ]
    traces = read_traces("\n".join(map(json.dumps, lines)).encode(), "traces.jsonl")
    found = scored(traces)
    assert [each.speedup for each in found["a"]] == [2.0], "the best of a workload's traces"
    assert mean_speedup(found["b"]) == 0
    for bad in (b"{", b'{"definition": "d"}', b"\xff", b'{"definition": NaN}'):
        with pytest.raises(TaskError, match="line 1 is no trace"):
            read_traces(bad, "traces.jsonl")
