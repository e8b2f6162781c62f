"""The evaluator's benchmark where there is no GPU: what is generated, summed up and said."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import plan_of, resolve
from mctskernel.experiments.evaluator_cost import main, summarise
from mctskernel.experiments.extension_route import Judged, host_source, ncu_command
from tests.conftest import WriteTask

TWO_LAUNCHES = """\
/*
[[launch]]
kernel = "first"
grid = ["n", 2]
block = [32, 4]
shared = "n * 65536"
args = ["x", "partial", "n", "scale"]

[[launch]]
kernel = "second"
grid = [1]
block = [64]
args = ["partial", "out"]

[[scratch]]
name = "partial"
dtype = "float32"
shape = ["n"]
zero = true
*/
extern "C" __global__ void first(const float* x, float* partial, int n, float scale) {}
extern "C" __global__ void second(const float* partial, float* out) {}
"""


def test_a_launch_plan_becomes_a_host_function() -> None:
    kernel = Kernel(TWO_LAUNCHES)
    plan = resolve(plan_of(kernel), {"n": 3, "scale": 0.5}, ("x", "out"))
    source = host_source(kernel, plan, ("x", "out", "partial"))
    assert kernel.source in source
    pointer = "Pointer{{tensors[{}].data_ptr()}}".format
    host = [line.strip() for line in source[source.index("void run(") :].splitlines()]
    assert "tensors[2].zero_();" in host
    assert "cudaFuncSetAttribute(first, cudaFuncAttributeMaxDynamicSharedMemorySize, 196608);" in host
    launched = [line for line in host if "<<<" in line]
    assert launched == [
        f"first<<<dim3(3, 2, 1), dim3(32, 4, 1), 196608, stream>>>({pointer(0)}, {pointer(2)}, 3, 0.5);",
        f"second<<<dim3(1, 1, 1), dim3(64, 1, 1), 0, stream>>>({pointer(2)}, {pointer(1)});",
    ]


def test_ncu_looks_at_the_kernels_of_the_plan_alone() -> None:
    command = ncu_command(("a.sum", "b.avg"), ("first", "second", "first"), ("python", "x.py"))
    pattern = command[command.index("--kernel-name") + 1].removeprefix("regex:")
    assert [name for name in ("first", "second", "first_fill", "copy") if re.search(pattern, name)] == [
        "first",
        "second",
    ]
    assert command[command.index("--metrics") + 1] == "a.sum,b.avg"
    assert command[-2:] == ["python", "x.py"]


def test_only_variants_that_came_through_count_for_the_total() -> None:
    whole = Judged({"build": 50.0, "verify": 1.0, "time": 1.0, "counters": 8.0}, 1e-4)
    failed = Judged({"build": 52.0}, None, "OSError: ncu is not on the PATH")
    route = summarise("usual", [whole, failed])
    assert route.total_seconds == 60.0
    assert route.stages["build"] == 51.0
    assert route.problem == "OSError: ncu is not on the PATH"
    assert summarise("usual", [failed]).total_seconds is None


def test_what_this_machine_lacks_is_a_sentence_in_the_table(tmp_path: Path, write_task: WriteTask) -> None:
    out = tmp_path / "cost.json"
    arguments = ("--task", str(write_task()), "--budget", "2", "--language", "cuda", "--device", "model")
    result = CliRunner().invoke(main, [*arguments, "--out", str(out)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    ours, usual = json.loads(out.read_text())["routes"]
    assert ours["candidates"] == 2
    assert ours["total_seconds"] > 0
    assert ours["machine"]["device"] == "model"
    assert usual["total_seconds"] is None
    assert usual["problem"]
    assert usual["problem"][:20] in result.output


def test_a_search_that_fails_is_a_sentence(tmp_path: Path) -> None:
    arguments = ["--task", "nowhere", "--language", "cuda", "--device", "model", "--variants", "0"]
    result = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path / "cost.json")])
    assert result.exit_code == 0
    assert "neither a folder" in result.output


@pytest.mark.gpu
def test_every_stage_is_timed_on_a_gpu(tmp_path: Path) -> None:
    out = tmp_path / "cost.json"
    arguments = ["--budget", "4", "--variants", "0", "--out", str(out)]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    for route in json.loads(out.read_text())["routes"]:
        assert route["problem"] == ""
        assert {"build", "verify", "time", "counters"} <= route["stages"].keys()
        assert route["metrics"] >= 2
