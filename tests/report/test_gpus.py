"""What is told of the GPUs that timed a run's kernels."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from mctskernel.answer import Answer
from mctskernel.core.evaluation import ClockEvent, Conditions, Evaluation, GpuState, Source, Timing
from mctskernel.report.details import Detailer
from mctskernel.report.document import view_document
from mctskernel.report.gpus import conditions_text, gpu_sentences
from mctskernel.report.markdown import trajectory_markdown
from mctskernel.report.terminal import print_node, print_run
from mctskernel.report.view import View, load_view
from tests.conftest import WriteTask
from tests.told_run import ToldRun, failed, timed, with_configuration

FIRST, SECOND = "aaaaaaaa" * 4, "bbbbbbbb" * 4
CONDITIONS = Conditions(
    GpuState(1980, 2619, 40, 300.4), GpuState(1755, 2619, 64, 650.0, (ClockEvent.POWER_CAP,)), dropped=10
)
SENTENCES = (
    "GPU aaaaaaaa timed 2 kernels.",
    "GPU bbbbbbbb timed 1; it is 1.8% slower than GPU aaaaaaaa on the starting kernel, "
    "which is taken out of comparisons.",
)


def on(gpu: str, microseconds: float, baseline: float) -> Evaluation:
    """A kernel that a GPU timed beside the starting kernel."""
    seconds = microseconds * 1e-6
    timing = Timing(
        "n=4096", seconds, seconds, seconds, baseline_seconds=baseline * 1e-6, conditions=CONDITIONS
    )
    return replace(timed(microseconds, Source.MEASURED), timings=(timing,), gpu=gpu)


@pytest.fixture
def told(write_task: WriteTask, tmp_path: Path) -> ToldRun:
    """A run of which a second GPU timed one kernel of three."""
    configuration = with_configuration(device="gpu")
    told = ToldRun(tmp_path / "run", write_task(), configuration, on(FIRST, 100.0, 100.0))
    told.edits(0, ("faster", on(FIRST, 50.0, 100.2)), ("as fast there", on(SECOND, 50.9, 101.9)))
    return told


def view_of(told: ToldRun) -> View:
    return replace(load_view(told.folder.path), answer=Answer(1, 2.0))


def shown(print_to: object, *arguments: object) -> str:
    """What is printed, its lines joined."""
    console = Console(file=io.StringIO(), width=200)
    print_to(console, *arguments)  # type: ignore[operator]
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_how_two_gpus_differ_is_told_wherever_a_run_is_shown(told: ToldRun) -> None:
    view = view_of(told)
    assert gpu_sentences(view.gpus) == SENTENCES
    printed, page = shown(print_run, view), trajectory_markdown(view)
    for sentence in SENTENCES:
        assert sentence in printed
        assert sentence in page
        assert sentence in view_document(view).headline.sentences


def test_the_state_of_the_gpu_is_told_with_a_nodes_time(told: ToldRun) -> None:
    state = "1755 to 1980 MHz, 40 to 64 C, 300 to 650 W, software power cap, 10 runs made again"
    assert conditions_text(CONDITIONS) == state
    assert f"GPU bbbbbbbb: {state}" in shown(print_node, view_of(told), 2)
    details = Detailer(view_of(told)).details(2)
    assert (details.gpu, details.conditions) == ("GPU bbbbbbbb", (state,))


def test_of_one_gpu_there_is_nothing_to_compare(write_task: WriteTask, tmp_path: Path) -> None:
    told = ToldRun(tmp_path / "run", write_task(), with_configuration(device="gpu"), on(FIRST, 100.0, 100.0))
    assert gpu_sentences(load_view(told.folder.path).gpus) == ()


def test_without_a_starting_kernel_that_runs_nothing_tells_how_gpus_differ(
    write_task: WriteTask, tmp_path: Path
) -> None:
    told = ToldRun(tmp_path / "run", write_task(), with_configuration(device="gpu"), failed())
    told.edits(0, ("mended", on(FIRST, 50.0, 50.0)), ("too", on(SECOND, 70.0, 70.0)))
    assert [gpu.factor for gpu in load_view(told.folder.path).gpus] == [None, None]
    assert "isn't known" in gpu_sentences(load_view(told.folder.path).gpus)[1]


def test_what_a_driver_does_not_tell_is_left_out() -> None:
    assert conditions_text(Conditions(GpuState(), GpuState(celsius=50))) == "50 C"
