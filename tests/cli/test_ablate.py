"""`mctskernel ablate` as it is typed."""

import signal
import threading
from pathlib import Path

import msgspec
import pytest

from mctskernel import load_run
from mctskernel.cli.errors import BAD_RUN, INTERRUPTED, USAGE
from mctskernel.experiments.ablation import sweep
from mctskernel.experiments.ablation.sweep import Results
from mctskernel.run import open_run, read_manifest
from tests.cli.command import mctskernel
from tests.cli.test_llm import KEY, Author
from tests.edits.llm.loopback import serving
from tests.spaces import saved

ARMS = """
title = "Who proposes"
baseline = "rules"
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


QUICK = ("--seeds", "2", "--budget", "20")


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("spaces"))


@pytest.fixture(scope="module")
def swept(space: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small sweep."""
    out = tmp_path_factory.mktemp("swept") / "out"
    result = mctskernel("ablate", "budget", *QUICK, "--spaces", space, "--out", out)
    assert result.exit_code == 0, result.output
    return out


def results_of(out: Path) -> Results:
    return msgspec.json.decode((out / "results.json").read_bytes(), type=Results)


def test_a_results_folder_has_tables_plots_and_the_configuration(swept: Path) -> None:
    names = {file.name for file in swept.iterdir()}
    assert names >= {"results.json", "table.md", "ablation.toml", "plot.svg"}
    assert len(results_of(swept).trials) == 8
    assert "evaluations = 20" in (swept / "ablation.toml").read_text()


@pytest.mark.slow
def test_ctrl_c_ends_a_sweep_that_goes_on_later(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    once = sweep.make

    def interrupted(*words: object, **options: object) -> object:
        made.append(words)
        if len(made) == 3:
            signal.raise_signal(signal.SIGINT)
        return once(*words, **options)  # type: ignore[arg-type]

    assert threading.current_thread() is threading.main_thread()
    monkeypatch.setattr(sweep, "make", interrupted)
    words = ("ablate", "budget", *QUICK, "--spaces", space, "--out", tmp_path / "out")
    result = mctskernel(*words)
    assert result.exit_code == INTERRUPTED
    assert "2 of 8 trials are finished and kept." in result.output
    result = mctskernel(*words)
    assert result.exit_code == 0, result.output
    assert len(results_of(tmp_path / "out").trials) == 8
    assert len(made) == 3 + 6


def test_what_is_wrong_is_a_sentence(space: Path, swept: Path, tmp_path: Path) -> None:
    for words, code, sentence in (
        (("serch",), USAGE, "Did you mean 'search'?"),
        (("search", "--spaces", space.with_name("bow.json")), USAGE, "Did you mean 'bowl.json'?"),
        (("search", "--spaces", space, "--out", swept), USAGE, "trials of another configuration"),
        (("feedback", "--tasks", "sum"), USAGE, "add --model NAME"),
        (("--seeds", "2"), USAGE, "Give a CONFIG"),
    ):
        result = mctskernel("ablate", *words)
        assert (result.exit_code, sentence in result.output) == (code, True), result.output
    log = tmp_path / "damaged" / "trials.jsonl"
    log.parent.mkdir()
    (log.parent / "ablation.toml").write_bytes((swept / "ablation.toml").read_bytes())
    log.write_text("[]\n")
    assert mctskernel("ablate", swept / "ablation.toml", "--out", log.parent).exit_code == BAD_RUN


def test_ready_configurations_are_listed() -> None:
    said = mctskernel("ablate", "--list").output
    for name in ("search", "selection", "reward", "feedback", "proposers", "strategies", "budget"):
        assert name in said


@pytest.mark.slow
def test_trials_of_tasks_are_runs(small_task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    (tmp_path / "arms.toml").write_text(ARMS)
    out, author = tmp_path / "out", Author()
    with serving(author) as server:
        options = ("--model", "scripted", "--base-url", server.url, "--tasks", small_task)
        result = mctskernel("ablate", tmp_path / "arms.toml", *options, "--out", out)
        assert result.exit_code == 0, result.output
    results = results_of(out)
    assert [trial.evaluations for trial in results.trials] == [3, 3]
    rules, model = results.trials
    assert rules.validation is not None
    assert (rules.tokens, model.tokens > 0) == (0, True)
    assert any("__" in text for text in author.prompts)
    for trial in results.trials:
        assert len(load_run(out / trial.run).view.tree.nodes) >= 3
    mixture = read_manifest(open_run(out / model.run)).configuration.mixture
    assert mixture is not None
    assert mixture.feedback == "counters"
