"""Sentences about the GPUs of a run."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from mctskernel.answer import Answer
from mctskernel.core.evaluation import ClockEvent, Conditions, Evaluation, GpuState, Source, Timing
from mctskernel.report.document import view_headline
from mctskernel.report.notes import gpu_sentences
from mctskernel.report.terminal import print_run
from mctskernel.report.view import View, load_view
from tests.conftest import WriteTask
from tests.synthetic_run import SyntheticRun, timed, with_configuration

FIRST, SECOND = "aaaaaaaa" * 4, "bbbbbbbb" * 4
CONDITIONS = Conditions(
    GpuState(1980, 2619, 40, 300.4), GpuState(1755, 2619, 64, 650.0, (ClockEvent.POWER_CAP,)), dropped=10
)
SENTENCES = (
    "GPU aaaaaaaa timed 2 kernels, GPU bbbbbbbb timed 1 kernel. Comparisons correct for their speeds.",
)


def on(gpu: str, microseconds: float, baseline: float) -> Evaluation:
    """A kernel that a GPU timed beside the starting kernel."""
    seconds = microseconds * 1e-6
    timing = Timing(
        "n=4096", seconds, seconds, seconds, baseline_seconds=baseline * 1e-6, conditions=CONDITIONS
    )
    return replace(timed(microseconds, Source.MEASURED), timings=(timing,), gpu=gpu)


@pytest.fixture
def synthetic(write_task: WriteTask, tmp_path: Path) -> SyntheticRun:
    """A run of which a second GPU timed one kernel of three."""
    configuration = with_configuration(device="gpu")
    synthetic = SyntheticRun(tmp_path / "run", write_task(), configuration, on(FIRST, 100.0, 100.0))
    synthetic.edits(0, ("faster", on(FIRST, 50.0, 100.2)), ("as fast there", on(SECOND, 50.9, 101.9)))
    return synthetic


def view_of(synthetic: SyntheticRun) -> View:
    return replace(load_view(synthetic.folder.path), answer=Answer(1, 2.0))


def shown(print_to: object, *arguments: object) -> str:
    """What is printed, its lines joined."""
    console = Console(file=io.StringIO(), width=200)
    print_to(console, *arguments)  # type: ignore[operator]
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_every_report_says_how_two_gpus_differ(synthetic: SyntheticRun) -> None:
    view = view_of(synthetic)
    assert gpu_sentences(view.gpus) == SENTENCES
    printed = shown(print_run, view)
    for sentence in SENTENCES:
        assert sentence in printed
        assert sentence in view_headline(view).sentences
