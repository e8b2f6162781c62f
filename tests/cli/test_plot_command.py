"""`mctskernel plot`: every figure in every format, of runs in every state."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mctskernel.cli import main
from mctskernel.cli.errors import BAD_RUN, USAGE
from mctskernel.core.evaluation import Evaluation, Outcome
from mctskernel.core.proposer import Exchange, Purpose
from mctskernel.profiling.counters import DRAM_BYTES, INSTRUCTIONS
from mctskernel.report.compared_run import find_runs
from mctskernel.report.document import NodeRow
from mctskernel.report.figures import FIGURES
from mctskernel.report.figures.drawing import Look, draw
from mctskernel.report.figures.plotted import PlottedRun, by_ground, start_factors
from mctskernel.report.figures.style import MARKS
from mctskernel.report.figures.tree import layout
from tests.conftest import WriteTask
from tests.told_run import ToldRun, failed, quarantined, timed, with_configuration

HOSTILE = "$\\nosuch$ \x1b[2J <script>alert(1)</script> \N{SNOWMAN}"


def plot(*words: str | Path | int) -> Result:
    result = CliRunner().invoke(main, ["plot", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def counted(microseconds: float) -> Evaluation:
    return replace(timed(microseconds), counters={DRAM_BYTES: 1e6, INSTRUCTIONS: 4e5 * microseconds})


def name_gpu(run: ToldRun) -> None:
    document = json.loads(run.folder.manifest.read_text())
    document["fingerprint"]["gpu"] = "NVIDIA H100 80GB HBM3"
    run.folder.manifest.write_text(json.dumps(document))


@pytest.fixture(scope="module")
def run(small_task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has everything a figure shows: counters, money, failures, titles that nobody should trust."""
    told = ToldRun(tmp_path_factory.mktemp("plotted") / "run", small_task, root=counted(100))
    exchange = Exchange(Purpose.PROPOSE, "a-model", prompt="[]", reply="Faster.", dollars=0.25)
    (first, *_) = told.edits(
        0,
        ("twice as fast", counted(50)),
        ("broken", failed(Outcome.WRONG_RESULT)),
        ("too fast", quarantined(1)),
        exchange=exchange,
    )
    told.edits(first, (HOSTILE, counted(20)), ("slower", counted(120)))
    name_gpu(told)
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
    assert plot(run, "--figure", "outcomes", "-o", tmp_path / "a.pdf").exit_code == 0
    pdf = (tmp_path / "a.pdf").read_bytes()
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf
    assert plot(run, "--figure", "outcomes", "--dpi", 100, "-o", tmp_path / "a.png").exit_code == 0
    png = (tmp_path / "a.png").read_bytes()
    assert (png[:4], int.from_bytes(png[16:20], "big")) == (b"\x89PNG", 335)


@pytest.mark.parametrize("suffix", [".svg", ".pdf"])
def test_the_same_run_gives_the_same_bytes(run: Path, tmp_path: Path, suffix: str) -> None:
    for name in ("a", "b"):
        assert plot(run, "--figure", "evaluations", "-o", tmp_path / f"{name}{suffix}").exit_code == 0
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_sides_of_several_runs_become_means(small_task: Path, tmp_path: Path) -> None:
    for side, gain in (("one", 0.9), ("two", 0.5)):
        for seed in range(5):
            told = ToldRun(tmp_path / side / str(seed), small_task, with_configuration(seed=seed))
            told.edits(0, ("a", timed(90 - seed)), ("b", timed(90 * gain - seed)))
    sides = (tmp_path / "one", tmp_path / "two")
    for figure in ("evaluations", "comparison"):
        result = plot(*sides, "--figure", figure, "-o", tmp_path / f"{figure}.png", "--dpi", 72)
        assert result.exit_code == 0, result.output
    result = plot(*sides, "--figure", "tree", "-o", tmp_path / "tree.png")
    assert result.exit_code == BAD_RUN
    assert "is drawn of one run, not of 10" in result.stderr


def test_the_list_says_what_there_is() -> None:
    result = plot("--list")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == list(FIGURES)


def test_what_is_wrong_with_the_words_is_said(run: Path, tmp_path: Path) -> None:
    result = plot(run, "--figure", "outcomes", "-o", tmp_path / "figure.jpeg")
    assert result.exit_code == USAGE
    assert "ends in none of .pdf, .svg, .png" in re.sub(r"[\s│]+", " ", result.stderr)
    result = plot(run, "--figure", "outcomes", "--font", "No Such Font", "-o", tmp_path / "a.png")
    assert result.exit_code == USAGE
    assert "No Such Font" in re.sub(r"[\s│]+", " ", result.stderr)


@pytest.mark.parametrize(
    ("figure", "reason"),
    [
        ("evaluations", "no kernel yet whose time is believed"),
        ("money", "No model was paid"),
        ("roofline", "no counters"),
        ("edits", "No edit was tried yet"),
        ("comparison", "None of these runs has a kernel"),
    ],
)
def test_a_run_of_nothing_but_a_failure_says_what_it_lacks(
    small_task: Path, tmp_path: Path, figure: str, reason: str
) -> None:
    told = ToldRun(tmp_path / "run", small_task, root=failed())
    name_gpu(told)
    result = plot(told.folder.path, "--figure", figure, "-o", tmp_path / "a.png")
    assert result.exit_code == BAD_RUN
    assert reason in " ".join(result.stderr.split())
    assert not (tmp_path / "a.png").exists()
    for drawn in ("tree", "outcomes"):
        assert plot(told.folder.path, "--figure", drawn, "-o", tmp_path / "b.png").exit_code == 0


def test_an_empty_run_a_torn_one_and_a_newer_one(small_task: Path, tmp_path: Path) -> None:
    told = ToldRun(tmp_path / "run", small_task)
    told.edits(0, ("a", timed(50)))
    with told.folder.journal.open("ab") as file:
        file.write(b'{"event":')
    with pytest.warns(UserWarning, match="incomplete"):
        assert plot(told.folder.path, "--figure", "tree", "-o", tmp_path / "a.png").exit_code == 0
    told.folder.journal.write_bytes(told.folder.journal.read_bytes().split(b"\n")[0] + b"\n")
    result = plot(told.folder.path, "--figure", "tree", "-o", tmp_path / "b.png")
    assert result.exit_code == BAD_RUN
    assert "holds no evaluation yet" in result.stderr
    text = told.folder.manifest.read_text().replace('"schema_version": 1', '"schema_version": 8')
    told.folder.manifest.write_text(text)
    result = plot(told.folder.path, "--figure", "tree", "-o", tmp_path / "b.png")
    assert result.exit_code == BAD_RUN
    assert "schema version 8" in result.stderr


def test_a_gpu_that_nobody_described_has_no_roof(small_task: Path, tmp_path: Path) -> None:
    told = ToldRun(tmp_path / "run", small_task, root=counted(100))
    result = plot(told.folder.path, "--figure", "roofline", "-o", tmp_path / "a.png")
    assert result.exit_code == BAD_RUN
    assert "of which there is no description" in " ".join(result.stderr.split())


def test_arithmetic_is_drawn_where_the_task_counts_it(write_task: WriteTask, tmp_path: Path) -> None:
    task = write_task()
    text = (task / "task.toml").read_text()
    (task / "task.toml").write_text(text.replace("summary", 'flops = "2 * n"\nsummary', 1))
    told = ToldRun(tmp_path / "run", task, root=counted(100))
    name_gpu(told)
    draw("roofline", find_runs(told.folder.path), tmp_path / "a.svg", Look())
    plain = ToldRun(tmp_path / "plain", write_task(), root=counted(100))
    name_gpu(plain)
    draw("roofline", find_runs(plain.folder.path), tmp_path / "b.svg", Look())
    assert (tmp_path / "a.svg").read_bytes() != (tmp_path / "b.svg").read_bytes()


def test_speed_ups_over_other_starts_are_made_one(write_task: WriteTask, tmp_path: Path) -> None:
    task = write_task()
    first = ToldRun(tmp_path / "first", task, root=timed(100))
    (task / "kernel.cu").write_text((task / "kernel.cu").read_text().replace("BLOCK 64", "BLOCK 128"))
    second = ToldRun(tmp_path / "second", task, root=timed(25))
    runs = [
        PlottedRun(each, each.name, each.name)
        for run in (first, second)
        for each in find_runs(run.folder.path)
    ]
    (_, together), *others = by_ground(runs)
    assert not others
    assert list(start_factors(together).values()) == [1.0, pytest.approx(4.0)]
    for figure in ("evaluations", "comparison"):
        draw(figure, [run.run for run in runs], tmp_path / "a.svg", Look())


def test_parents_stand_in_the_middle_and_leaves_never_on_each_other() -> None:
    parents = {0: None, 1: 0, 2: 0, 3: 1, 4: 1, 5: 4, 6: 0}
    places = layout([NodeRow(id=number, parent=parent, title="") for number, parent in parents.items()])
    leaves = [places[number] for number in (3, 5, 2, 6)]
    assert leaves == [0, 1, 2, 3]
    assert places[4] == places[5]
    assert places[1] == (places[3] + places[4]) / 2
    assert places[0] == (places[1] + places[6]) / 2


def test_every_outcome_has_a_look_of_its_own() -> None:
    assert {*Outcome} <= MARKS.keys()
    looks = [(mark.marker, mark.colour) for mark in MARKS.values()]
    assert len(set(looks)) == len(looks)
