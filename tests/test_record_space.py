"""A task's tunables recorded as a search space: every combination, in the face of failures and other files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mctskernel.core.evaluation import Evaluation, Outcome, Source, Timing
from mctskernel.core.kernel import Kernel
from mctskernel.core.space import Parameter, SearchSpace
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.experiments.kernel_folders import Wanted
from mctskernel.experiments.record import record_space
from mctskernel.profiling.spaces import read_space
from mctskernel.run import RunError
from tests.conftest import KERNEL, TASK_TOML, WriteTask
from tests.landscape import InProcess, Interrupted

TWINS = KERNEL.replace("#define BLOCK 64\n", "#define BLOCK 64\n#define UNROLL 1\n")

SPACE = {"BLOCK": (32, 64, 2048, 128), "UNROLL": (1, 2)}
"""A block of 2048 can't be launched."""

POSSIBLE = {(block, unroll) for block in (32, 64, 128) for unroll in (1, 2)}


def judged(kernel: Kernel) -> Evaluation:
    """128 unrolled by 2 races, 32 unrolled by 2 is too good to be true."""
    block, unroll = kernel.macros["BLOCK"], kernel.macros["UNROLL"]
    stages = {"build": 0.5, "verify": 0.25, "time": 0.125, "price": 0.0625, "count": 0.0625}
    if (block, unroll) == (128, 2):
        return Evaluation(Outcome.RACE, Source.MEASURED, "a race", stage_seconds={"build": 0.5})
    times = (1e-6 * block * unroll, 4e-6 * block * unroll)
    return Evaluation(
        Outcome.OK,
        Source.MEASURED,
        timings=tuple(
            Timing(shape, time, time, time) for shape, time in zip(("n=4096", "n=64"), times, strict=True)
        ),
        quarantine="faster than light" if (block, unroll) == (32, 2) else "",
        stage_seconds=stages,
    )


@pytest.fixture
def task(write_task: WriteTask) -> Task:
    toml = TASK_TOML.replace("search = [{ n = 4096 }]", "search = [{ n = 4096 }, { n = 64 }]")
    return load_task(write_task(toml=toml, kernel=TWINS))


def recorded(task: Task, out: Path, executor: InProcess | None = None, **changes: Any) -> SearchSpace:
    wanted = Wanted(task.starting_kernel, **({"space": SPACE, "limit": 8} | changes))
    return record_space(task, wanted, out, executor or InProcess(1, judged))


@pytest.mark.parametrize("workers", [1, 3])
def test_every_combination_that_can_be_launched_is_recorded(task: Task, tmp_path: Path, workers: int) -> None:
    space = recorded(task, tmp_path / "out.json", InProcess(workers, judged))
    assert space == read_space(tmp_path / "out.json")
    assert space.parameters == (Parameter("BLOCK", (32, 64, 2048, 128)), Parameter("UNROLL", (1, 2)))
    assert set(space.by_values) == POSSIBLE
    assert (space.name, space.kernel, space.device) == ("out", "double", "unknown GPU")


def test_what_an_entry_holds(task: Task, tmp_path: Path) -> None:
    found = recorded(task, tmp_path / "out.json").by_values
    assert found[64, 1].seconds == pytest.approx(2 * 64e-6)
    assert found[64, 2].seconds == pytest.approx(2 * 128e-6)
    assert found[64, 2].stage_seconds == {
        "compile": 0.5,
        "verification": 0.25,
        "benchmark": 0.125,
        "strategy": 0.0,
        "framework": 0.125,
    }
    assert (found[128, 2].outcome, found[128, 2].cost_seconds) == (Outcome.RACE, 0.5)
    assert (found[32, 2].outcome, found[32, 2].seconds) == (Outcome.REJECTED, None)


def test_the_same_command_goes_on_where_it_was_cut_off(task: Task, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    first, second, third = Interrupted(1, judged), InProcess(1, judged), InProcess(1, judged)
    with pytest.raises(KeyboardInterrupt):
        recorded(task, out, first)
    assert set(recorded(task, out, second).by_values) == POSSIBLE
    assert len(first.judged) + len(second.judged) == len(POSSIBLE)
    whole = out.read_bytes()
    recorded(task, out, third)
    assert (third.judged, out.read_bytes()) == ([], whole)


def test_another_device_or_space_needs_another_file(task: Task, tmp_path: Path) -> None:
    class Other(InProcess):
        def fingerprint(self) -> dict[str, str]:
            return {"device": "model", "gpu": "H100"}

    out = tmp_path / "out.json"
    recorded(task, out, limit=1)
    before = out.read_bytes()
    for executor, space in ((Other(1, judged), SPACE), (InProcess(1, judged), {"BLOCK": (32,)})):
        with pytest.raises(RunError, match="another --out"):
            recorded(task, out, executor, space=space)
    assert out.read_bytes() == before
    assert recorded(task, tmp_path / "other.json", Other(1, judged)).device == "H100 (modelled)"
