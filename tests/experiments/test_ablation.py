"""Ablations of a space of 46 configurations, and of results made by hand."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from mctskernel.core.task_file import load_task
from mctskernel.experiments.ablation.configuration import (
    Ablation,
    AblationError,
    Overrides,
    read_ablation,
    ready_configurations,
)
from mctskernel.experiments.ablation.plots import plot
from mctskernel.experiments.ablation.statistics import statistics
from mctskernel.experiments.ablation.subjects import subjects_of, with_task_folder
from mctskernel.experiments.ablation.sweep import LOG_SPEEDUP, SHARE, ArmSummary, Results, sweep
from mctskernel.experiments.ablation.tables import render
from mctskernel.experiments.ablation.trials import Trial
from mctskernel.experiments.results import Provenance
from mctskernel.tasks.builtin import find_task
from tests.spaces import saved


@pytest.fixture
def space(tmp_path: Path) -> Path:
    """The file of the space."""
    (tmp_path / "spaces").mkdir()
    return saved(tmp_path / "spaces")


def a_configuration(space: object, **changes: object) -> str:
    fields = {
        "title": "Strategies",
        "baseline": "mcts",
        "spaces": [str(space)],
        "seeds": 3,
        "checkpoints": [4],
        **changes,
    }
    lines = [f"{name} = {msgspec.json.encode(value).decode()}" for name, value in fields.items()]
    return "\n".join(
        (
            *lines,
            "[budget]\nevaluations = 8",
            '[[arms]]\nname = "mcts"\nstrategy = "mcts"',
            '[[arms]]\nname = "random"\nstrategy = "random"',
            '[[arms]]\nname = "uct"\nstrategy = "uct"\nexploration = 2',
        )
    )


def swept(
    text: str | Ablation, out: Path, jobs: int = 1, stop: Callable[[], bool] = lambda: False
) -> Results:
    ablation = read_ablation(text) if isinstance(text, str) else text
    return sweep(ablation, out, jobs, stop_requested=stop)


def without_seconds(results: Results) -> list[Trial]:
    return [msgspec.structs.replace(trial, seconds=0.0) for trial in results.trials]


def test_a_sweep_that_was_cut_off_goes_on_and_comes_out_the_same(space: Path, tmp_path: Path) -> None:
    whole = swept(a_configuration(space), tmp_path / "whole")
    out = tmp_path / "cut"
    asked: list[int] = []
    part = swept(a_configuration(space), out, stop=lambda: asked.append(1) or len(asked) > 60)  # type: ignore[func-returns-value]
    assert 0 < len(part.trials) < 9
    assert "Not finished: 9 trials" in render(part)
    log = out / "trials.jsonl"
    before = log.read_bytes()
    log.write_bytes(before + b'{"arm": "mcts", "subj')
    resumed = swept(a_configuration(space), out)
    assert log.read_bytes().startswith(before), "what was made is kept as it is"
    assert without_seconds(resumed) == without_seconds(whole)
    assert swept(a_configuration(space), out) == resumed, "the log can be read again"


@pytest.mark.slow
def test_parallel_trials_find_the_same(space: Path, tmp_path: Path) -> None:
    alone = swept(a_configuration(space, seeds=1), tmp_path / "alone")
    beside = swept(a_configuration(space, seeds=1), tmp_path / "beside", jobs=2)
    assert without_seconds(alone) == without_seconds(beside)


def test_a_folder_with_other_files_is_refused(space: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    with pytest.raises(AblationError, match="holds no ablation"):
        swept(a_configuration(space), tmp_path / "mine")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (("seeds = 3", "seed = 3"), "unknown field `seed` (did you mean 'seeds'?)"),
        (
            ('strategy = "random"', 'strategy = "randon"'),
            "In arm 'random': There is no strategy 'randon'. Did you mean 'random'?",
        ),
        (
            ("exploration = 2", "exploratoin = 2"),
            "In arm 'uct': There is no setting 'exploratoin'. Did you mean 'exploration'?",
        ),
        (("exploration = 2", "exploration = -1"), "In arm 'uct': exploration is '-1'. Expected `float` >= 0"),
        (("evaluations = 8", "evaluations = 2"), "Checkpoint 4 is beyond the budget of 2"),
        (('name = "random"', 'name = "mcts"'), "Two arms are called 'mcts'"),
        (('name = "random"', 'name = "../up"'), "Arm 2 needs a name"),
        (
            ('name = "uct"', 'name = "uct"\nreward = "time"'),
            "sets reward, which a search-space cache doesn't use",
        ),
        (("[budget]", "tasks = ['sum']\n[budget]"), "Give spaces or tasks, one of them"),
        (("evaluations = 8", "evaluations = 8\nseconds = 9"), "is evaluations alone"),
    ],
)
def test_what_is_misspelt_is_named_with_what_comes_nearest(wrong: tuple[str, str], sentence: str) -> None:
    text = a_configuration("x.json")
    assert wrong[0] in text
    with pytest.raises(AblationError, match=re.escape(sentence)):
        read_ablation(text.replace(*wrong))


def test_a_space_that_is_not_there_is_named_with_what_comes_nearest(space: Path) -> None:
    with pytest.raises(AblationError, match="Did you mean 'tiles'"):
        subjects_of(["synthetic:tile"], [])
    with pytest.raises(AblationError, match="holds no search-space cache"):
        subjects_of([str(space.parents[1])], [])
    with pytest.raises(AblationError, match="Two spaces or tasks are called 'bowl'"):
        subjects_of([str(space), str(space.parent)], [])


@pytest.mark.slow
def test_a_folder_stands_for_its_problems_and_tasks(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(find_task("sum"), folder / "total")
    (folder / "19_ReLU.py").write_text(RELU)
    (folder / "notes.py").write_text("raise SystemExit")
    relu, total, plain = subjects_of([], [str(folder), "plain:vector_add"])
    assert (relu.name, total.name, plain.name) == ("19_ReLU", "sum", "vector_add")
    written = with_task_folder(relu, tmp_path / "out")
    assert load_task(Path(written.source)).search_shapes
    assert with_task_folder(relu, tmp_path / "out") == written
    assert with_task_folder(total, tmp_path / "out") == total


RELU = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.rand(16, 64)]

def get_init_inputs():
    return []
"""


def test_a_command_line_outweighs_a_file(space: Path) -> None:
    changed = read_ablation(
        a_configuration("x.json"), Overrides(spaces=(str(space),), seeds=2, evaluations=20)
    )
    assert (changed.spaces, changed.seeds, changed.checkpoints) == ((str(space),), (0, 1), (4, 20))
    assert read_ablation(changed.text) == changed
    less = read_ablation(ready_configurations()["budget"], Overrides(evaluations=50))
    assert less.checkpoints == (6, 12, 25, 50)
    measured = read_ablation(ready_configurations()["plain"], Overrides(tasks=("sum",), device="gpu"))
    assert {arm.config.device for arm in measured.arms} == {measured.device} == {"gpu"}


@pytest.mark.parametrize("name", ready_configurations())
def test_every_ready_configuration_is_one(name: str) -> None:
    ablation = read_ablation(ready_configurations()[name], Overrides(model={"model": "m"}))
    assert ablation.question


@pytest.mark.parametrize("name", ["feedback", "proposers"])
def test_arms_that_ask_a_model_need_one(name: str) -> None:
    with pytest.raises(AblationError, match=r"In arm '.*': No model is named: add --model NAME"):
        read_ablation(ready_configurations()[name])


@pytest.mark.parametrize("name", ["search", "selection", "strategies"])
def test_ready_configurations_of_spaces_run(name: str, space: Path, tmp_path: Path) -> None:
    ablation = read_ablation(ready_configurations()[name], Overrides((str(space),), seeds=1, evaluations=8))
    results = swept(ablation, tmp_path / "out")
    assert len(results.trials) == results.planned


@pytest.mark.slow
def test_tasks_are_searched_in_runs_of_their_own(small_task: Path, tmp_path: Path) -> None:
    ablation = read_ablation(
        ready_configurations()["plain"], Overrides(tasks=(str(small_task),), evaluations=3)
    )
    results = swept(ablation, tmp_path / "out")
    assert results.score == LOG_SPEEDUP
    assert {trial.arm for trial in results.trials} == {"mcts", "greedy", "best-of-n"}
    assert all((tmp_path / "out" / trial.run / "journal.jsonl").is_file() for trial in results.trials)
    again = swept(ablation, tmp_path / "again")
    assert [(each.key, each.improvements) for each in again.trials] == [
        (each.key, each.improvements) for each in results.trials
    ]


def made_results(figures: dict[str, list[float]], score: str = SHARE, subjects: int = 1) -> Results:
    """Trials with the figures of an arm, which go through subjects by turns."""
    trials = tuple(
        Trial(
            arm=arm,
            subject=f"s{place % subjects}",
            seed=place // subjects,
            evaluations=10,
            improvements=((1, 0.0), (5, value)),
            failures={"crash": 1},
            seconds=2.0,
        )
        for arm, values in figures.items()
        for place, value in enumerate(values)
    )
    return Results(
        provenance=Provenance("command", "machine", "2026-01-01"),
        title="Made & measured",
        question="",
        baseline="one",
        score=score,
        source="recorded",
        planned=len(trials),
        checkpoints=(4, 10),
        arms=tuple(ArmSummary(arm) for arm in figures),
        subjects=tuple(f"s{place}" for place in range(subjects)),
        trials=trials,
    )


def test_differences_are_paired_and_corrected_for_all_comparisons() -> None:
    base = [0.1, 0.5, 0.2, 0.9, 0.4, 0.6]
    results = made_results({"one": base, "two": [each + 0.05 for each in base], "three": [*base[:5], 0.7]})
    at_4, _, always, once = statistics(results).comparisons
    assert (at_4.at, at_4.difference, at_4.tied) == (4, 0.0, 6)
    assert always.difference == pytest.approx(0.05)
    assert (always.won, always.tied, always.lost, always.share_won) == (6, 0, 0, 1.0)
    # Of 64 choices of signs two are as far from 0; Holm's factor is the number of comparisons.
    assert always.p == pytest.approx(2 / 64)
    assert always.adjusted_p == pytest.approx(4 * 2 / 64)
    assert (once.won, once.tied, once.share_won, once.p) == (1, 5, pytest.approx(7 / 12), 1.0)
    assert (once.subjects_won, once.subjects) == (1, 1)


def test_the_same_results_make_the_same_tables() -> None:
    figures = {"one": [0.1, 0.5, 0.2], "a_b & c|d": [0.2, 0.4, 0.9]}
    results = made_results(figures, LOG_SPEEDUP, subjects=2)
    tables = render(msgspec.json.decode(msgspec.json.encode(results), type=Results))
    assert tables == render(results)
    table_lines = [line for line in tables.splitlines() if line.startswith("|")]
    assert all(re.match(r"(\|([^|]|\\\|)*)+\|$", line) for line in table_lines)


def test_a_plot_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    results = made_results({"one": [0.1, 0.5, 0.2, 0.3, 0.3], "two": [0.3, 0.6, 0.2, 0.4, 0.4]})
    for name in ("a.svg", "b.svg"):
        plot(results, tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    assert text.count(">two<") == 2, "a line in the legend, and a row of the effects"
