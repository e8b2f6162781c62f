"""Definitions of both benchmarks become tasks, and hostile ones are refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mctskernel.core.kernel import Language
from mctskernel.core.task import Task, TaskError
from mctskernel.core.task_file import load_task
from mctskernel.problems.definitions import read
from mctskernel.problems.definitions.definition import find_definition, read_workloads
from mctskernel.problems.problem import Problem
from mctskernel.problems.registry import BENCHMARKS
from tests.problems.definitions.folders import (
    CUSTOM,
    DEFINITION,
    INPUTS,
    changed,
    workload,
    write_flashinfer,
    write_sol,
)

TWO = [
    workload(1, {"rows": 4}, tolerance={"max_atol": 1e-3, "max_rtol": 1e-2, "max_error_cap": 0.5}),
    workload(
        2, {"rows": 300}, tolerance={"max_atol": 1e-2, "max_rtol": 1e-2, "required_matched_ratio": 0.99}
    ),
]


def loaded(problem: Problem, folder: Path) -> Task:
    folder.mkdir()
    for name, data in problem.files.items():
        (folder / name).write_bytes(data)
    if not any(name.startswith("kernel") for name in problem.files):
        (folder / "kernel.cu").write_text("")
    return load_task(folder)


@pytest.mark.slow
def test_each_workload_is_a_shape_with_its_own_tolerance(tmp_path: Path) -> None:
    problem = read(write_sol(tmp_path / "sol", DEFINITION, TWO), Language.CUDA)
    assert problem.benchmark == "SOL-ExecBench"
    task = loaded(problem, tmp_path / "task")
    assert task.search_shapes == ({"rows": 4}, {"rows": 300})
    assert all(shape in task.verify_shapes for shape in task.search_shapes), "both are small"
    assert task.scalars == {"gain": 2.0}
    assert task.independent == "rows"
    bounds = [task.tolerance_of("y", shape).element for shape in task.search_shapes]
    assert [(b.relative, b.absolute, b.most) for b in bounds if b] == [
        (1e-2, 1e-3, 0.5),
        (1e-2, 1e-2, np.inf),
    ]
    assert any("share" in note for note in problem.notes)
    inputs = task.draw_inputs({"rows": 3}, 0)
    expected = task.expected(inputs, {"rows": 3})["y"]
    assert np.allclose(expected, inputs["x"] * inputs["weight"] * 2)
    assert (
        task.expected({n: a.astype(np.float64) for n, a in inputs.items()}, {"rows": 3})["y"].dtype
        == np.float64
    )


@pytest.mark.slow
def test_a_data_set_of_flashinfer_bench_is_read(tmp_path: Path) -> None:
    file = write_flashinfer(tmp_path, DEFINITION, TWO)
    assert BENCHMARKS["flashinfer-bench"].recognises(file)
    assert BENCHMARKS["flashinfer-bench"].recognises(tmp_path)
    assert not BENCHMARKS["SOL-ExecBench"].recognises(file)
    with pytest.raises(TaskError, match="name the file of one"):
        find_definition(tmp_path)
    task = loaded(read(file, Language.CUDA), tmp_path / "task")
    assert task.search_shapes == ({"rows": 4}, {"rows": 300})
    bound = task.tolerance_of("y", {"rows": 300}).element
    assert bound is not None
    assert (bound.relative, bound.absolute) == (5e-3, 5e-3), (
        "within the larger of both parts, whichever that is"
    )


@pytest.mark.slow
def test_custom_inputs_are_made_by_the_definition(tmp_path: Path) -> None:
    custom = {"table": {"type": "custom"}, "index": {"type": "custom"}}
    one = workload(1, {"rows": 6, "each": 2}, inputs=custom)
    problem = read(write_sol(tmp_path / "sol", CUSTOM, [one]), Language.CUDA)
    task = loaded(problem, tmp_path / "task")
    drawn = task.draw_inputs({"rows": 6, "each": 2}, 0)
    assert drawn["index"].shape == (12,)
    assert drawn["index"].dtype == np.int32
    assert drawn["index"].max() < 6
    again, other = task.draw_inputs({"rows": 6, "each": 2}, 0), task.draw_inputs({"rows": 6, "each": 2}, 1)
    assert np.array_equal(drawn["table"], again["table"])
    assert not np.array_equal(drawn["table"], other["table"])
    assert np.array_equal(task.expected(drawn, {"rows": 6, "each": 2})["out"], drawn["table"][drawn["index"]])
    assert len(task.verify_shapes) > 1, "its sizes may vary"


@pytest.mark.slow
def test_inputs_from_files_are_those_of_their_workload(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    save_file = pytest.importorskip("safetensors.torch").save_file
    root = tmp_path / "set"
    workloads = []
    for number in (1, 2):
        path = root / "blob" / f"{number}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({"w": torch.full((8,), float(number))}, path)
        source = {"type": "safetensors", "path": f"blob/{number}.safetensors", "tensor_key": "w"}
        workloads.append(workload(number, {"rows": 4}, inputs={**INPUTS, "weight": source}))
    task = loaded(read(write_flashinfer(root, DEFINITION, workloads), Language.CUDA), tmp_path / "task")
    for number, shape in enumerate(task.search_shapes, 1):
        drawn = task.draw_inputs(shape, 5)
        assert drawn["weight"].tolist() == [float(number)] * 8
        assert drawn["x"].std() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("path", ["../secret.safetensors", "/etc/passwd", "link/secret.safetensors"])
def test_no_file_is_read_that_is_not_in_the_folder(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret.safetensors").write_bytes(b"secret")
    folder = tmp_path / "sol"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    given = {"type": "safetensors", "path": path, "tensor_key": "w"}
    one = workload(1, {"rows": 4}, inputs={**INPUTS, "weight": given})
    with pytest.raises(TaskError, match="leads out of"):
        read(write_sol(folder, DEFINITION, [one]), Language.CUDA)


BROKEN: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"axes__hidden": {"type": "const", "value": 10**12}}, {}, "GB"),
    (
        {"axes__hidden": {"type": "expr", "expression": "__import__('os').system('true')"}},
        {},
        "integer arithmetic",
    ),
    ({"axes__hidden": {"type": "expr", "expression": "9**9**9"}}, {}, "integer arithmetic"),
    ({"inputs__x": {"shape": ["rows", "hidden"], "dtype": "int32"}}, {}, "of an unknown range"),
    ({"inputs__x": {"shape": ["rows", "hidden"], "dtype": "float8_e4m3fn"}}, {}, "64-bit floats"),
    ({"outputs__y": {"shape": None, "dtype": "float32"}}, {}, "a Python number"),
    ({"reference": "def run(x, weight): return x"}, {}, "run() takes 2 positional"),
    (
        {"reference": "import torch\ndef run(x, weight, gain): return x + torch.rand_like(x)"},
        {},
        "called again",
    ),
    ({}, {"tolerance": {"max_atol": -1}}, "no workload"),
    ({}, {"inputs": {**INPUTS, "x": {"type": "custom"}}}, "no custom_inputs_entrypoint"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("fields", "more", "sentence"), BROKEN, ids=map(str, range(len(BROKEN))))
def test_unsupported_definitions_are_refused(
    tmp_path: Path, fields: Mapping[str, Any], more: Mapping[str, Any], sentence: str
) -> None:
    one = {**workload(1, {"rows": 4}), **more}
    with pytest.raises(TaskError) as raised:
        read(write_sol(tmp_path / "sol", changed(DEFINITION, **fields), [one]), Language.CUDA)
    assert sentence in str(raised.value)


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    folder = write_sol(tmp_path / "sol", DEFINITION, TWO)
    file = folder / "workload.jsonl"
    for bad in (
        '{"uuid": 1}',
        "{",
        "[]",
        "NaN",
        '{"uuid": "w", "axes": {"rows": NaN}, "inputs": {}}',
        "[" * 100_000,
    ):
        file.write_text(json.dumps(TWO[0]) + "\n\n" + bad)
        with pytest.raises(TaskError, match="line 3 is no workload"):
            read_workloads(file)
    file.write_text("\n")
    with pytest.raises(TaskError, match="holds no workload"):
        read_workloads(file)
    file.unlink()
    with pytest.raises(TaskError, match="is missing"):
        read_workloads(file)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["../../out", "-x", "x\ny"])
def test_no_name_leads_anywhere(tmp_path: Path, name: str) -> None:
    problem = read(write_sol(tmp_path / "sol", changed(DEFINITION, name=name), TWO[:1]), Language.CUDA)
    assert Path(problem.name).name == problem.name
    assert (tmp_path / "tasks" / problem.name).parent == tmp_path / "tasks"
    assert not problem.name.startswith((".", "-"))
    assert loaded(problem, tmp_path / "task").name == problem.name
