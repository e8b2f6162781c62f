"""`mctskernel report --figure`: every figure in every format, of runs in every state."""

import warnings
from functools import partial
from pathlib import Path

import pytest

from mctskernel.cli.errors import BAD_RUN
from mctskernel.core.evaluation import Outcome
from mctskernel.core.proposer import Exchange, Purpose
from mctskernel.report.figures import FIGURES
from tests.cli.command import mctskernel
from tests.conftest import WriteTask
from tests.synthetic_run import SyntheticRun, failed, quarantined, timed, with_configuration

HOSTILE = "$\\nosuch$ \x1b[2J <script>alert(1)</script> \N{SNOWMAN}"


plot = partial(mctskernel, "report")


@pytest.fixture(scope="module")
def run(small_task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has everything a figure shows: money, failures, titles that nobody should trust."""
    told = SyntheticRun(tmp_path_factory.mktemp("plotted") / "run", small_task, root=timed(100))
    exchange = Exchange(Purpose.PROPOSE, "a-model", prompt="[]", reply="Faster.", dollars=0.25)
    (first, *_) = told.edits(
        0,
        ("twice as fast", timed(50)),
        ("broken", failed(Outcome.WRONG_RESULT)),
        ("too fast", quarantined(1)),
        exchange=exchange,
    )
    told.edits(first, (HOSTILE, timed(20)), ("slower", timed(120)))
    return told.folder.path


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_is_drawn(run: Path, tmp_path: Path, figure: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = plot(run, "--figure", figure, "--columns", 2, "-o", tmp_path / "deep" / "figure.svg")
    assert result.exit_code == 0, result.output
    text = (tmp_path / "deep" / "figure.svg").read_text()
    # 178 mm, in points.
    assert 'width="504pt"' in text
    assert "<script" not in text
    assert not set(text) & {"\x1b", "\x07"}


def test_a_pdf_embeds_truetype_and_a_png_has_its_dots(run: Path, tmp_path: Path) -> None:
    assert plot(run, "--figure", "evaluations", "-o", tmp_path / "a.pdf").exit_code == 0
    pdf = (tmp_path / "a.pdf").read_bytes()
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf
    assert plot(run, "--figure", "evaluations", "-o", tmp_path / "a.png").exit_code == 0
    png = (tmp_path / "a.png").read_bytes()
    assert (png[:4], int.from_bytes(png[16:20], "big")) == (b"\x89PNG", 1005)


def test_sides_of_several_runs_become_means(small_task: Path, tmp_path: Path) -> None:
    for side, gain in (("one", 0.9), ("two", 0.5)):
        for seed in range(5):
            told = SyntheticRun(tmp_path / side / str(seed), small_task, with_configuration(seed=seed))
            told.edits(0, ("a", timed(90 - seed)), ("b", timed(90 * gain - seed)))
    sides = (tmp_path / "one", tmp_path / "two")
    result = plot(*sides, "--figure", "evaluations", "-o", tmp_path / "evaluations.png")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("figure", "reason"), [("evaluations", "no valid kernel yet"), ("money", "No language model was paid")]
)
def test_a_failed_run_says_what_the_figure_needs(
    small_task: Path, tmp_path: Path, figure: str, reason: str
) -> None:
    told = SyntheticRun(tmp_path / "run", small_task, root=failed())
    result = plot(told.folder.path, "--figure", figure, "-o", tmp_path / "a.png")
    assert result.exit_code == BAD_RUN
    assert reason in " ".join(result.stderr.split())
    assert not (tmp_path / "a.png").exists()


def test_runs_from_other_starts_are_not_drawn_together(write_task: WriteTask, tmp_path: Path) -> None:
    task = write_task()
    first = SyntheticRun(tmp_path / "first", task, root=timed(100))
    (task / "kernel.cu").write_text((task / "kernel.cu").read_text().replace("BLOCK 64", "BLOCK 128"))
    second = SyntheticRun(tmp_path / "second", task, root=timed(25))
    runs = (first.folder.path, second.folder.path)
    result = plot(*runs, "--figure", "evaluations", "-o", tmp_path / "a.svg")
    assert result.exit_code == BAD_RUN
    assert "one task, starting kernel and device" in " ".join(result.stderr.split())
