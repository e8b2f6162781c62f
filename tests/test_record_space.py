"""A task's tunables recorded as a search space: every combination, in the face of failures and interruptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mctskernel.core.evaluation import Evaluation, Outcome, Source, Timing
from mctskernel.core.kernel import Kernel
from mctskernel.core.space import Configuration, Parameter, SpaceError
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.experiments.record_space import Wanted, record_space
from mctskernel.experiments.tunables import TunableError
from mctskernel.profiling.spaces import read_space
from mctskernel.run import RunError
from tests.conftest import KERNEL, WriteTask
from tests.landscape import InProcess

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
    seconds = 1e-6 * block * unroll
    return Evaluation(
        Outcome.OK,
        Source.MEASURED,
        timings=(Timing("a", seconds, seconds, seconds), Timing("b", 4 * seconds, seconds, seconds)),
        quarantine="faster than light" if (block, unroll) == (32, 2) else "",
        stage_seconds=stages,
    )


@pytest.fixture
def task(write_task: WriteTask) -> Task:
    return load_task(write_task(kernel=TWINS))


def wanted(task: Task, **changes: Any) -> Wanted:
    return Wanted(task.starting_kernel, **({"space": SPACE} | changes))


def values(executor: InProcess) -> list[Configuration]:
    return [(kernel.macros["BLOCK"], kernel.macros["UNROLL"]) for kernel in executor.judged]


@pytest.mark.parametrize("workers", [1, 3])
def test_every_combination_that_can_be_launched_is_recorded(task: Task, tmp_path: Path, workers: int) -> None:
    followed: list[str] = []
    executor = InProcess(workers, judged)
    space = record_space(
        task, wanted(task), tmp_path / "out.json", executor, lambda label, _: followed.append(label)
    )
    assert space == read_space(tmp_path / "out.json")
    assert space.parameters == (Parameter("BLOCK", (32, 64, 2048, 128)), Parameter("UNROLL", (1, 2)))
    assert set(space.by_values) == POSSIBLE
    assert (space.name, space.kernel, space.device) == ("out", "double", "unknown GPU")
    assert sorted(followed) == sorted(f"BLOCK={block}, UNROLL={unroll}" for block, unroll in POSSIBLE)


def test_what_an_entry_holds(task: Task, tmp_path: Path) -> None:
    found = record_space(task, wanted(task), tmp_path / "out.json", InProcess(1, judged)).by_values
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


def test_a_sample_is_drawn_by_the_seed_and_begins_with_the_kernel_as_it_is(
    task: Task, tmp_path: Path
) -> None:
    executors = [InProcess(1, judged) for _ in range(3)]
    for number, (executor, seed) in enumerate(zip(executors, (1, 1, 4), strict=True)):
        record_space(task, wanted(task, limit=3, seed=seed), tmp_path / f"{number}.json", executor)
    first, same, other = map(values, executors)
    assert first[0] == (64, 1)
    assert len(first) == len(set(first)) == 3
    assert first == same != other


def test_the_same_command_goes_on_where_it_was_cut_off(task: Task, tmp_path: Path) -> None:
    class Interrupted(InProcess):
        def wait(self, timeout: float | None = None) -> list[tuple[int, Evaluation]]:
            if len(self.judged) == 2:
                raise KeyboardInterrupt
            return super().wait(timeout)

    out = tmp_path / "out.json"
    first, second, third = Interrupted(1, judged), InProcess(1, judged), InProcess(1, judged)
    with pytest.raises(KeyboardInterrupt):
        record_space(task, wanted(task), out, first)
    assert len(read_space(out).entries) == 2
    record_space(task, wanted(task), out, second)
    assert {*values(first), *values(second)} == POSSIBLE
    assert len(first.judged) + len(second.judged) == len(POSSIBLE)
    whole = out.read_bytes()
    record_space(task, wanted(task), out, third)
    assert (third.judged, out.read_bytes()) == ([], whole)


@pytest.mark.parametrize("kept", [0, 100, -1, -3, -40])
def test_a_file_that_a_crash_cut_off_is_gone_on_with(task: Task, tmp_path: Path, kept: int) -> None:
    out = tmp_path / "out.json"
    record_space(task, wanted(task, limit=4), out, InProcess(1, judged))
    header = out.read_text().index('"cache"') + len('"cache": {')
    whole = out.read_bytes()
    out.write_bytes(whole[: header + kept] if kept == 100 else whole[:kept] if kept else whole[:header])
    space = record_space(task, wanted(task), out, InProcess(1, judged))
    assert set(space.by_values) == POSSIBLE
    assert space.notes == ()


def test_another_device_or_space_needs_another_file(task: Task, tmp_path: Path) -> None:
    class Other(InProcess):
        def fingerprint(self) -> dict[str, str]:
            return {"device": "gpu", "gpu": "another"}

    out = tmp_path / "out.json"
    record_space(task, wanted(task, limit=1), out, InProcess(1, judged))
    before = out.read_bytes()
    for executor, space in ((Other(1, judged), SPACE), (InProcess(1, judged), {"BLOCK": (32,)})):
        with pytest.raises(RunError, match="another --out"):
            record_space(task, wanted(task, space=space), out, executor)
    assert out.read_bytes() == before


def test_a_file_of_something_else_is_left_alone(task: Task, tmp_path: Path) -> None:
    out = tmp_path / "thesis.json"
    out.write_text("my only copy")
    with pytest.raises(SpaceError, match="not JSON"):
        record_space(task, wanted(task), out, InProcess(1, judged))
    assert out.read_text() == "my only copy"


def test_nothing_to_vary_or_to_launch_is_a_sentence(task: Task, tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="nothing that could be varied"):
        record_space(task, wanted(task, space={}), tmp_path / "a.json", InProcess(1, judged))
    with pytest.raises(SpaceError, match="can be launched"):
        record_space(task, wanted(task, space={"BLOCK": (2048,)}), tmp_path / "b.json", InProcess(1, judged))
    with pytest.raises(TunableError, match="no tunable 'TILE'"):
        record_space(task, wanted(task, space={"TILE": (2,)}), tmp_path / "c.json", InProcess(1, judged))


def test_a_modelled_space_says_so(task: Task, tmp_path: Path) -> None:
    class Modelled(InProcess):
        def fingerprint(self) -> dict[str, str]:
            return {"device": "model", "gpu": "H100"}

    space = record_space(task, wanted(task, limit=1), tmp_path / "out.json", Modelled(1, judged))
    assert space.device == "H100 (modelled)"
