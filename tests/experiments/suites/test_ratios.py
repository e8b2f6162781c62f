"""Winners in turns with PyTorch: who runs when, and the ratios and geometric means that come of the samples."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mctskernel.experiments import suite as suite_module
from mctskernel.experiments.records.documents import markdown
from mctskernel.experiments.records.json_lines import append_line
from mctskernel.experiments.suites.ratios import document, geometric_means, ratio_rows, without_largest
from mctskernel.experiments.suites.rows import CeilingsRow, TimesRow, read_rows
from mctskernel.experiments.suites.turns import Turns, in_turns

CEILINGS = CeilingsRow(copy_bytes_per_second=1e12, fp32_flops_per_second=1e13, tensor_flops_per_second=1e14)


class Clock:
    """Contenders that take as long as they are said to, and who ran when."""

    def __init__(self, **seconds: float) -> None:
        self.ran: list[str] = []
        self.runs = {name: self._run(name, each) for name, each in seconds.items()}

    def _run(self, name: str, seconds: float):  # type: ignore[no-untyped-def]
        def run() -> float:
            self.ran.append(name)
            return seconds

        return run


def samples(middle: float, spread: float = 0.01, count: int = 40) -> tuple[float, ...]:
    return tuple((middle * (1 + spread * np.random.default_rng(1).standard_normal(count))).tolist())


def times(task: str = "softmax", flops: float = 0.0, **seconds: float) -> TimesRow:
    known = {"cuda start": 8e-3, "cuda best": 1e-3, "eager": 2e-3, "max-autotune": 1.5e-3} | seconds
    of_shape = {name.replace("_", " "): samples(each) for name, each in known.items()}
    return TimesRow(task=task, seconds={"n=1": of_shape}, compulsory_bytes=800_000_000, flops=flops)


def test_contenders_take_turns_until_each_has_had_its_time() -> None:
    clock = Clock(fast=1e-3, slow=50e-3)
    found = in_turns(clock.runs, Turns(seconds=0.1, warm_up=2, fewest=3, most=20))
    assert {name: len(taken) for name, taken in found.items()} == {"fast": 20, "slow": 3}
    assert Counter(clock.ran[:4]) == {"fast": 2, "slow": 2}, "warming up"
    rounds = [clock.ran[4 + 2 * number : 6 + 2 * number] for number in range(3)]
    assert all(sorted(each) == ["fast", "slow"] for each in rounds)
    orders = Clock(**dict.fromkeys("abcd", 0.001))
    in_turns(orders.runs, Turns(most=20))
    after = orders.ran[12:]
    assert len({tuple(after[at : at + 4]) for at in range(0, len(after), 4)}) > 5, "in an order that changes"


def test_ratios_are_of_medians_and_their_intervals_hold_them() -> None:
    (row,) = ratio_rows([times(), CEILINGS])
    assert row.contender == "cuda best"
    for ratio, true in ((row.start, 8.0), (row.eager, 2.0), (row.compiled, 1.5)):
        assert ratio is not None
        assert ratio.low <= true * (1 + 1e-9)
        assert ratio.mean == pytest.approx(true)
        assert true * (1 - 1e-9) <= ratio.high < 1.05 * true
    assert row.floor_share == pytest.approx(0.8, rel=0.01)
    assert row.memory_bound


def test_the_faster_language_and_the_faster_way_to_compile_count() -> None:
    row = times(triton_start=4e-3, triton_best=0.5e-3)
    row.seconds["n=1"]["max-autotune-no-cudagraphs"] = samples(1.2e-3)
    (found,) = ratio_rows([row])
    assert (found.contender, found.compiled_mode) == ("triton best", "max-autotune-no-cudagraphs")
    assert found.start is not None
    assert found.start.mean == pytest.approx(8), "of the same language"
    assert found.compiled is not None
    assert found.compiled.mean == pytest.approx(2.4)
    assert (found.floor_share, found.memory_bound) == (None, None), "no ceilings are known"


def test_late_launches_leave_the_fastest_samples_alone() -> None:
    row = times()
    late = tuple(1.4 * each for each in samples(1.5e-3))
    row.seconds["n=1"]["max-autotune"] = (*samples(1.5e-3, count=10), *late)
    (found,) = ratio_rows([row])
    assert found.compiled is not None
    assert found.compiled.mean == pytest.approx(2.1, rel=0.02)
    assert found.fastest == pytest.approx(1.5, rel=0.02)
    assert geometric_means([found])["fastest"].mean == pytest.approx(found.fastest)
    assert "torch.compile / best, fastest samples" in markdown(document([found]))


def test_several_shapes_count_alike() -> None:
    row = times()
    row.seconds["n=2"] = {name: samples(each) for name, each in {"cuda best": 1e-2, "eager": 8e-2}.items()}
    (found,) = ratio_rows([row])
    assert found.eager is not None
    assert found.eager.mean == pytest.approx(math.sqrt(2 * 8))
    assert found.compiled is None, "it has no time at the second shape"


def test_the_geometric_mean_is_over_tasks_and_the_page_has_both() -> None:
    rows = ratio_rows([times("a"), times("b", eager=8e-3), times("dense", flops=1e13, eager=1e-3), CEILINGS])
    means = geometric_means([row for row in rows if row.memory_bound])
    assert means["eager"].mean == pytest.approx(4)
    assert (means["eager"].low, means["eager"].high) == pytest.approx((2, 8))
    page = markdown(document(rows))
    assert "| memory-bound, 2 tasks: eager / best" in page
    assert "| all, 3 tasks: eager / best" in page
    assert without_largest(rows, "eager") == ("b", pytest.approx(math.sqrt(2 * 1)))
    assert without_largest(rows[:1], "eager") is None
    assert "1.414 (b)" in page


def test_what_went_wrong_and_what_computes_something_else_is_said() -> None:
    row = times("far")
    row.differences["cuda best"] = 0.5
    page = markdown(document(ratio_rows([row, TimesRow(task="gone", problem="It died.")])))
    assert "- gone: It died." in page
    assert "- far: the output of the cuda best is 50.0% from PyTorch's." in page


def test_the_last_timing_of_a_task_holds() -> None:
    later = times(eager=4e-3)
    (row,) = ratio_rows([TimesRow(task="softmax", problem="It died."), later])
    assert row.problem == ""
    assert row.eager is not None
    assert row.eager.mean == pytest.approx(4)


def test_winners_are_timed_once_and_a_death_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run(name: str, rows: Path, *words: str) -> int:
        asked.append((name, *words))
        if name == "floors":
            append_line(rows, CEILINGS)
        elif words[0] == "softmax":
            append_line(rows, times("softmax"))
        else:
            return -9
        return 0

    monkeypatch.setattr(suite_module, "_run_module", run)
    runs = tmp_path / "runs"
    for name in ("softmax-cuda-gpu-0", "softmax-triton-gpu-0", "sum-cuda-gpu-0"):
        (runs / name / "best").mkdir(parents=True)
        (runs / name / "best" / "answer.json").write_text("{}")
    (runs / "matmul-cuda-gpu-0").mkdir()
    out = tmp_path / "out"
    words = ["--in-turns", "--tasks", "softmax,sum,matmul", "--runs", str(runs), "--out", str(out)]
    assert CliRunner().invoke(suite_module.main, words, catch_exceptions=False).exit_code == 0
    softmax = [str(runs / f"softmax-{language}-gpu-0") for language in ("cuda", "triton")]
    assert asked == [
        ("floors",),
        ("suite_timing", "softmax", *softmax),
        ("suite_timing", "sum", str(runs / "sum-cuda-gpu-0")),
    ]
    found = {row["task"]: row for row in json.loads((out / "ratios.json").read_text())["rows"]}
    assert found["sum"]["problem"] == "Its timing ended with status -9."
    assert found["softmax"]["contender"] == "cuda best"
    assert "| softmax" in (out / "ratios.md").read_text()
    asked.clear()
    CliRunner().invoke(suite_module.main, [*words, "--minutes", "1"], catch_exceptions=False)
    assert asked == [], "one is known, and for the other there is no time"
    assert [row.task for row in read_rows(out / "rows.jsonl") if isinstance(row, TimesRow)] == [
        "softmax",
        "sum",
    ]
