"""`mctskernel ablate` as it is typed."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import pytest

from mctskernel import load_run
from mctskernel.cli.errors import BAD_RUN, INTERRUPTED, LET_THROUGH, USAGE
from mctskernel.experiments.ablation import sweep as sweeping
from mctskernel.experiments.ablation.results import read_results
from mctskernel.experiments.ablation.run_trials import run_trial
from mctskernel.profiling.spaces import write_space
from mctskernel.run import open_run, read_manifest
from tests.cli.test_commands import mctskernel
from tests.cli.test_llm_search import KEY, Author
from tests.edits.llm.loopback import serving
from tests.spaces import bowl

ARMS = """
title = "Who proposes"
against = "rules"
device = "model"
seeds = 1
[budget]
evaluations = 3
[[arms]]
name = "rules"
[[arms]]
name = "model, told counters"
proposer = "llm"
mixture = { feedback = "counters", edits = 4, in_flight = 1 }
"""


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spaces") / "bowl.json"
    write_space(bowl(), path)
    return path


@pytest.fixture(scope="module")
def swept(space: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small sweep."""
    out = tmp_path_factory.mktemp("swept") / "out"
    result = mctskernel("ablate", "budget", "--size", "small", "--spaces", space, "--out", out)
    assert result.exit_code == 0, result.output
    return out


def test_a_sweep_leaves_tables_plots_and_what_makes_it_repeatable(swept: Path) -> None:
    names = {file.name for file in swept.iterdir()}
    assert names >= {"results.json", "table.md", "table.tex", "table.csv", "manifest.json", "plot.svg"}
    manifest = json.loads((swept / "manifest.json").read_text())
    assert manifest["trials"] == manifest["planned"] == 8
    assert manifest["seconds"] >= 0
    assert manifest["provenance"]["versions"]["mctskernel"]
    assert "evaluations = [5, 10, 20]" in manifest["configuration"]


@pytest.mark.parametrize(
    ("form", "file", "sign"),
    [("md", "table.md", "| arm |"), ("tex", "table.tex", r"\toprule"), ("csv", "table.csv", "arm,settings")],
)
def test_tables_are_made_again_of_the_results_alone(swept: Path, form: str, file: str, sign: str) -> None:
    said = mctskernel("ablate", "table", swept / "results.json", "--format", form).output
    assert said == (swept / file).read_text()
    assert sign in said


def test_a_sweep_is_made_again_and_says_whether_it_came_out_the_same(swept: Path, tmp_path: Path) -> None:
    result = mctskernel("ablate", "--repeat", swept, "--out", tmp_path / "again")
    assert (result.exit_code, result.output.splitlines()[-1]) == (0, "8 of 8 trials came out the same.")
    results = read_results(swept)
    changed = (swept / "results.json").read_text().replace('"evaluations":20', '"evaluations":19', 1)
    other = tmp_path / "other"
    other.mkdir()
    (other / "results.json").write_text(changed)
    (other / "manifest.json").write_bytes((swept / "manifest.json").read_bytes())
    (tmp_path / "again" / "results.json").unlink()
    result = mctskernel("ablate", "--repeat", other, "--out", tmp_path / "again")
    assert result.exit_code == LET_THROUGH
    assert f"7 of {len(results.trials)} trials" in result.output
    assert "came to the same in another way" in result.output


def test_ctrl_c_ends_a_sweep_that_goes_on_later(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    once = sweeping.recorded_trial

    def interrupted(*words: object) -> object:
        made.append(words)
        if len(made) == 3:
            signal.raise_signal(signal.SIGINT)
        return once(*words)  # type: ignore[arg-type]

    assert threading.current_thread() is threading.main_thread()
    monkeypatch.setattr(sweeping, "recorded_trial", interrupted)
    words = ("ablate", "budget", "--size", "small", "--spaces", space, "--out", tmp_path / "out")
    result = mctskernel(*words)
    assert result.exit_code == INTERRUPTED
    assert "2 of 8 trials are made and kept." in result.output
    result = mctskernel(*words)
    assert result.exit_code == 0, result.output
    assert len(read_results(tmp_path / "out").trials) == 8
    assert len(made) == 3 + 6


def test_what_is_wrong_is_a_sentence(space: Path, swept: Path, tmp_path: Path) -> None:
    for words, code, sentence in (
        (("serch",), USAGE, "Did you mean 'search'?"),
        (("search", "--spaces", space.with_name("bow.json")), USAGE, "Did you mean 'bowl.json'?"),
        (("search", "--spaces", space, "--out", swept), USAGE, "trials of another configuration: title was"),
        (("feedback", "--tasks", "sum"), USAGE, "add --model NAME"),
        (("--size", "small"), USAGE, "Give a CONFIG"),
        (("table", tmp_path), USAGE, "isn't there"),
    ):
        result = mctskernel("ablate", *words)
        assert (result.exit_code, sentence in result.output) == (code, True), result.output
    log = tmp_path / "damaged" / "trials.jsonl"
    log.parent.mkdir()
    (log.parent / "manifest.json").write_bytes((swept / "manifest.json").read_bytes())
    log.write_text("[]\n")
    assert mctskernel("ablate", swept / "manifest.json", "--out", log.parent).exit_code == BAD_RUN


def test_ready_configurations_are_listed() -> None:
    said = mctskernel("ablate", "--list").output
    for name in ("search", "selection", "reward", "feedback", "proposers", "memory", "surrogate", "budget"):
        assert name in said


def test_trials_of_tasks_are_runs_that_share_evaluations(
    small_task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    (tmp_path / "arms.toml").write_text(ARMS)
    out, author = tmp_path / "out", Author()
    began: list[str] = []
    monkeypatch.setattr(
        sweeping,
        "run_trial",
        lambda plan, *words, **named: began.append(plan.run) or run_trial(plan, *words, **named),
    )
    with serving(author) as server:
        asked = ("--model", "scripted", "--base-url", server.url, "--tasks", small_task)
        result = mctskernel("ablate", tmp_path / "arms.toml", *asked, "--out", out)
        assert result.exit_code == 0, result.output
        _died_before_there_was_a_run(out, began[0])
        again = mctskernel("ablate", tmp_path / "arms.toml", *asked, "--out", out)
    assert again.exit_code == 0, again.output
    results = read_results(out)
    assert began == [*(trial.run for trial in results.trials), began[0]], "what is left is made, and no more"
    assert [trial.evaluations for trial in results.trials] == [3, 3]
    assert not results.deterministic
    rules, told = results.trials
    assert rules.gate is not None
    assert (rules.input_tokens, told.input_tokens > 0) == (0, True)
    assert any("__" in text for text in author.prompts)
    for trial in results.trials:
        assert len(load_run(out / trial.run).view.tree.nodes) >= 3
    mixture = read_manifest(open_run(out / told.run)).configuration.mixture
    assert mixture is not None
    assert mixture.feedback == "counters"


def _died_before_there_was_a_run(out: Path, run: str) -> None:
    """Undo the first trial of a sweep, up to the folder that its run began with."""
    log = out / "trials.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[1:]))
    (out / run / "run.json").unlink()
