"""The bench: which problems, what the table says, and how it goes on after failures and interruptions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from mctskernel.config import read_config
from mctskernel.core.kernel import Language
from mctskernel.core.user_errors import MisuseError, RunError
from mctskernel.experiments.bench import pipeline as pipelines
from mctskernel.experiments.bench.pipeline import Pipeline, Plan
from mctskernel.experiments.bench.rows import (
    Read,
    Row,
    Searched,
    Start,
    draw,
    find_problems,
    name_of,
    read_row,
    write_row,
)
from mctskernel.experiments.bench.stages import read_stage, search_stage
from mctskernel.experiments.bench.table import document, fast_p, summary
from mctskernel.problems.pytorch_timing import floor_seconds
from mctskernel.profiling.ceilings import Ceilings
from mctskernel.profiling.processes.forked import CallError
from mctskernel.report.baselines import AUTOTUNED, COMPILED, EAGER, Baselines
from tests.cli.command import mctskernel
from tests.problems.kernelbench.problem_files import problem, written

STARTS = (
    Start("plain", Language.CUDA, "ok", 8e-3),
    Start("templates", Language.CUDA, "wrong_result: 'out'"),
    Start("compiled", Language.TRITON, "ok", 4e-3),
)
SEARCHED = Searched(
    12.0,
    evaluations=30,
    search_seconds=10.0,
    gpu_seconds=6.0,
    starts=STARTS,
    best_seconds=2e-3,
    speedup=2.0,
    origin="compiled",
    evidence="DRAM is busy 90 % of the time.",
)
READ = Read(1.5, ("kernel.cu",))
BASELINES = Baselines(
    node=3,
    shape="n=1",
    start_seconds=4e-3,
    best_seconds=2e-3,
    seconds={EAGER: 8e-3, COMPILED: 4e-3, AUTOTUNED: 1.9e-3},
    gpu="some GPU",
    torch="2.13",
    floor_seconds=1e-3,
)
RIGHT = Row("level1-19", READ, SEARCHED, BASELINES)
REFUSED = Row("level1-21", Read(0.5, reason="It returns a tuple."))


def test_answers_with_sums_before_products_are_marked_and_means_are_told_without_them() -> None:
    searched = msgspec.structs.replace(SEARCHED, origin="reordered")
    seconds = msgspec.structs.replace(BASELINES, best_seconds=1e-3)
    moved = msgspec.structs.replace(RIGHT, problem="level1-23", searched=searched, baselines=seconds)
    text = document([RIGHT, moved], "Table")
    assert "| level1-23 * |" in text
    assert "| level1-19   |" in text
    assert "Over PyTorch eager: geometric mean 5.66 (4.00 to 8.00) of 2;" in text
    assert "In the 1 marked *" in text
    assert "Without these: PyTorch eager: geometric mean 4.00 (4.00 to 4.00) of 1; " in text
    assert "marked *" not in document([RIGHT], "Table")


def test_a_row_has_every_time_and_ratio() -> None:
    lines = document([RIGHT, REFUSED], "Table").splitlines()
    (cells,) = (line.replace("|", " ").split() for line in lines if line.startswith("| level1-19"))
    assert cells[1:] == "8 failed 4 2 8 4 1.9 4.00 2.00 0.95 2.00 50% 30 3.0 12 6.0".split()
    assert "- level1-21: It returns a tuple." in lines
    assert "- level1-19: the start `templates` (cuda): wrong_result: 'out'" in lines
    behind = "- level1-19: 0.95x over torch.compile max-autotune; from the start `compiled`. DRAM is busy"
    assert any(line.startswith(behind) for line in lines)


def test_problems_without_an_answer_count_against_the_share_but_not_the_mean() -> None:
    found = {each.baseline: each for each in summary([RIGHT, REFUSED]).against}
    assert [each.share for each in found[EAGER].fast] == [0.5] * 5
    assert found[EAGER].mean == (pytest.approx(4), pytest.approx(4), pytest.approx(4))
    assert (found[AUTOTUNED].even, found[AUTOTUNED].behind) == (0, 0)
    equal = msgspec.structs.replace(BASELINES, seconds={EAGER: 1.97e-3})
    behind = msgspec.structs.replace(BASELINES, seconds={EAGER: 1.7e-3})
    rows = [msgspec.structs.replace(RIGHT, baselines=each) for each in (equal, behind)]
    (only,) = summary(rows).against
    assert (only.even, only.behind, only.known) == (1, 1, 2)


def test_fast_p_is_the_share_of_correct_and_faster_results() -> None:
    some = [2.0, 0.5, None, 1.0]
    assert [fast_p(some, threshold) for threshold in (0, 0.5, 1, 2)] == [0.75, 0.5, 0.25, 0]
    assert fast_p([], 1) == 0


def test_the_roofline_is_the_longer_of_bytes_and_arithmetic(small_task: Path) -> None:
    from mctskernel.core.task_file import load_task  # noqa: PLC0415

    task = load_task(small_task)
    (shape,) = task.search_shapes
    rates = Ceilings(1e6, 1e6, 1e8)
    bytes_alone = task.compulsory_bytes(shape) / 1e6
    assert floor_seconds(task, shape, {}, 1e6, rates) == bytes_alone
    assert floor_seconds(task, shape, {False: 3e6}, 1e6, rates) == pytest.approx(3.0)
    assert floor_seconds(task, shape, {True: 3e8}, 1e6, rates) == pytest.approx(6.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Eleven problems of two levels, and a file that is none."""
    for number in range(1, 12):
        place = tmp_path / "problems" / ("level1" if number < 9 else "level2")
        place.mkdir(parents=True, exist_ok=True)
        written(place, problem("return x.relu()", "torch.rand(64, 40)"), f"{number}_relu.py")
    (tmp_path / "problems" / "notes.py").write_text("pass\n")
    return tmp_path / "problems"


def test_problems_are_found_in_the_order_of_their_numbers(folder: Path) -> None:
    names = [name_of(each) for each in find_problems([folder])]
    assert names == [f"level{1 + (number > 8)}-{number}_relu" for number in range(1, 12)]
    assert len(find_problems([folder], ["level2"])) == 3
    file = folder / "level1" / "1_relu.py"
    assert find_problems([file, folder / "level1"])[:2] == [file, folder / "level1" / "2_relu.py"]
    with pytest.raises(MisuseError, match="of these levels"):
        find_problems([folder], ["level3"])
    (folder / "gemm").mkdir()
    (folder / "gemm" / "definition.json").touch()
    found = [each for each in find_problems([folder]) if "gemm" in each.parts]
    assert found == [folder / "gemm"], "and not its file as well"


def test_a_sample_is_drawn_with_its_seed(folder: Path) -> None:
    problems = find_problems([folder])
    first, second = draw(problems, 5, 1), draw(problems, 5, 2)
    assert first == draw(problems, 5, 1) != second
    assert draw(problems, 7, 1)[:5] == first
    assert draw(problems, 50, 1) == draw(problems, None, 1) == problems


def test_rows_are_kept_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    write_row(RIGHT, tmp_path / "level1-19")
    assert read_row(tmp_path / "level1-19") == RIGHT
    (tmp_path / "level1-19" / "row.json").write_text("{")
    with pytest.raises(RunError, match="Remove it to repeat"):
        read_row(tmp_path / "level1-19")


def test_a_full_disk_costs_the_rows_on_it_and_not_the_table(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("no folder")
    said: list[str] = []
    made = Pipeline(
        [tmp_path / "p.py"], tmp_path / "out", Plan(read_config({"device": "model"})), said.append
    )
    made.run(lambda: False)
    (row,) = made.rows.values()
    assert "It could not begin: " in row.reason
    assert any("can't be written" in line for line in said)


class FakeCall:
    """Stands in for a process: reads at once, and searches unless its GPU is among the `lost`, alone on it."""

    lost: frozenset[str] = frozenset()
    searched: ClassVar[list[tuple[str, str]]] = []
    searching: ClassVar[set[str]] = set()

    def __init__(self, function: Callable[..., object], *arguments: Any, log: Path) -> None:
        self.said: list[object] = []
        self.gpus: tuple[str, ...] = ()
        self.ended: object = READ
        if function is search_stage:
            folder, config = arguments
            (gpu,) = self.gpus = config.executor.gpus
            assert gpu not in self.searching
            self.searching.add(gpu)
            self.searched.append((folder.name, gpu))
            self.ended = SEARCHED if gpu not in self.lost else CallError("The GPU is lost.")

    def collect(self) -> bool:
        return True

    def send(self, message: object) -> None:
        pass

    def close(self) -> None:
        self.searching.difference_update(self.gpus)


@pytest.mark.parametrize("lost", [(), ("b",), ("a", "b", "c", "d")])
def test_every_gpu_is_used_and_a_lost_one_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: tuple[str, ...]
) -> None:
    monkeypatch.setattr(pipelines, "ForkedCall", FakeCall)
    monkeypatch.setattr(pipelines, "wait_for", lambda *_: None)
    monkeypatch.setattr(FakeCall, "lost", frozenset(lost))
    monkeypatch.setattr(FakeCall, "searched", [])
    problems = [tmp_path / f"{number}.py" for number in range(40)]
    gpus = tuple((name, 80 << 30) for name in "abcd")
    plan = Plan(read_config({"device": "gpu"}), gpus, readers=8, baselines=False)
    said: list[str] = []
    made = Pipeline(problems, tmp_path / "out", plan, said.append)
    made.run(lambda: False)
    used = Counter(gpu for _, gpu in FakeCall.searched)
    left_out = [line for line in said if "is left out" in line]
    if len(lost) < len(gpus):
        assert all(row.is_valid for row in made.rows.values())
        assert all(used[gpu] >= 5 for gpu in "abcd" if gpu not in lost)
        assert all(used[gpu] < 5 for gpu in lost)
        assert len(left_out) == len(lost)
    else:
        assert all(row.reason == "The GPU is lost." for row in made.rows.values())
        assert len(left_out) == 3
        monkeypatch.setattr(FakeCall, "lost", frozenset())
        again = Pipeline(problems, tmp_path / "out", plan, said.append)
        again.run(lambda: False)
        assert all(row.is_valid for row in again.rows.values())


def test_pytorch_is_timed_once_no_search_is_to_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[tuple[str, str, int]] = []

    def begin_timing(task: Path, gpu: str, *_: object) -> FakeCall:
        timed.append((task.parent.name, gpu, len(FakeCall.searched)))
        call = FakeCall(begin_timing, log=task)
        call.ended = BASELINES
        return call

    monkeypatch.setattr(pipelines, "ForkedCall", FakeCall)
    monkeypatch.setattr(pipelines, "wait_for", lambda *_: None)
    monkeypatch.setattr(pipelines, "begin_timing", begin_timing)
    monkeypatch.setattr(pipelines, "has_pytorch_reference", lambda _: True)
    monkeypatch.setattr(pipelines, "load_task", lambda _: None)
    monkeypatch.setattr(FakeCall, "searched", [])
    problems = [tmp_path / f"{number}.py" for number in range(20)]
    plan = Plan(read_config({"device": "gpu"}), (("a", 80 << 30), ("b", 80 << 30)))
    made = Pipeline(problems, tmp_path / "out", plan, lambda _: None)
    made.run(lambda: False)
    assert all(row.baselines for row in made.rows.values())
    assert {searched for _, _, searched in timed} == {20}
    assert Counter(gpu for _, gpu, _ in timed).keys() == {"a", "b"}


def test_a_table_without_rows_says_how_many_are_missing() -> None:
    assert "7 more problems" in document([], "Table", waiting=7)


@pytest.mark.slow
def test_a_bench_goes_on_with_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "level1"
    place.mkdir()
    written(place, problem("return x, x", "torch.rand(64, 40)"), "2_pair.py")
    out = tmp_path / "out"
    words = ("bench", place, "--device", "model", "--validate-only", "--out", out)
    first = mctskernel(*words)
    assert first.exit_code == 0, first.output
    assert "- level1-2_pair: The forward of 2_pair.py returns a tuple" in first.stdout
    written(place, problem("return x.relu()", "torch.rand(64, 40)"), "1_relu.py")
    assert "2 problems: 2 read, 1 with a starting kernel, 1 right in cuda" in mctskernel(*words).stdout
    assert read_row(out / "level1-1_relu").is_valid
    with monkeypatch.context() as patched:
        patched.setattr(pipelines, "ForkedCall", None)
        again = mctskernel(*words)
        assert again.exit_code == 0, again.output
        table = json.loads(mctskernel("bench", "--out", out, "--json").stdout)
        assert [each["problem"] for each in table["rows"]] == ["level1-1_relu", "level1-2_pair"]


@pytest.mark.slow
def test_a_problem_that_hangs_or_is_stopped_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "level1"
    place.mkdir()
    hanging = "import time\nwhile True:\n    time.sleep(1)\n"
    written(place, problem("return x.relu()", "torch.rand(64, 40)", head=hanging), "1_hangs.py")
    file = place / "1_hangs.py"
    plan = Plan(read_config({"device": "model"}))
    with monkeypatch.context() as patched:
        patched.setattr(pipelines, "READ_SECONDS", 0.0)
        made = Pipeline([file], tmp_path / "out", plan, lambda _: None)
        made.run(lambda: False)
    assert made.rows[file].failures == {"read": "It was ended, since it took too long."}
    again = Pipeline([file], tmp_path / "out", plan, lambda _: None)
    again.run(lambda: True)
    assert not again.rows[file].reason.startswith("It could")


@pytest.mark.slow
def test_searches_share_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    place = tmp_path / "level1"
    place.mkdir()
    written(place, problem("return x * 2", "torch.rand(64, 40)"), "1_twice.py")
    written(place, problem("return x + x", "torch.rand(64, 40)"), "2_sum.py")
    out = tmp_path / "out"
    device = ("--device", "tests.executors.fake_gpu:open_fake_gpu", "--workers", "1")
    found = mctskernel("bench", place, *device, "--budget", 3, "--at-a-time", 2, "--out", out)
    assert found.exit_code == 0, found.output
    rows = [read_row(out / name) for name in ("level1-1_twice", "level1-2_sum")]
    assert all(row.is_valid and row.searched and row.searched.gpu == "Fake GPU" for row in rows)
    assert all(row.searched.gpu_seconds > 0 for row in rows if row.searched)


def test_tasks_are_problems_too(small_task: Path, tmp_path: Path) -> None:
    assert [each.name for each in find_problems([small_task, Path("softmax")])] == [
        small_task.name,
        "softmax",
    ]
    read = read_stage(None, small_task, tmp_path, None, False)  # type: ignore[arg-type] # says nothing
    assert (read.reason, read.starts) == ("", ("kernel",))
    assert (tmp_path / "task" / "task.toml").is_file()
