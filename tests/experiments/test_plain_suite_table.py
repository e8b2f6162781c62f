"""The plain suite's table: trials by every arm with one budget, cut off and gone on with, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.executor import LOCAL, Executor, ExecutorOptions
from mctskernel.core.kernel import Kernel
from mctskernel.executors.recorded import RecordedExecutor
from mctskernel.experiments.plain_suite_table import main
from mctskernel.experiments.records.json_lines import append_line
from mctskernel.experiments.suites.plain_arms import ARMS
from mctskernel.experiments.suites.plain_report import render, without_gain
from mctskernel.experiments.suites.plain_tasks import SUITE
from mctskernel.experiments.suites.plain_trials import PlainSuite, Trial, read_trials
from mctskernel.experiments.suites.shared_evaluations import SharedEvaluations
from tests.edits.llm.loopback import Behaviour, replies, serving
from tests.generated import a_kernel
from tests.told_run import timed

FINGERPRINT = {"device": "model", "gpu": "GPU of the tests", "architecture": "sm_90"}


def made_up(kernel: Kernel) -> Evaluation:
    """64 microseconds for the naive kernel, and less for each thing that the rules may add to it."""
    if "broken" in kernel.source:
        return Evaluation(Outcome.BUILD_ERROR, Source.MODELLED, 'identifier "broken" is undefined')
    return timed(64.0 / (1 + kernel.source.count("__restrict__") + kernel.source.count("float4")))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """The kernels that are evaluated, by a device that makes its times up."""
    kernels: list[Kernel] = []

    def look_up(kernel: Kernel) -> Evaluation:
        kernels.append(kernel)
        return made_up(kernel)

    @contextmanager
    def opened(_spec: DeviceSpec, _workers: int = 1, _options: ExecutorOptions = LOCAL) -> Iterator[Executor]:
        yield RecordedExecutor(look_up, FINGERPRINT)

    for module in ("experiments.plain_suite_table", "runner", "generation"):
        monkeypatch.setattr(f"mctskernel.{module}.open_executor", opened)
    return kernels


def table(out: Path, *words: str) -> Result:
    return CliRunner().invoke(main, [*words, "--out", str(out)], catch_exceptions=False)


def trials(out: Path) -> dict[tuple[str, str, int], Trial]:
    return {trial.key: trial for trial in read_trials(out / "trials.jsonl")}


OPTIMISED = ("--tasks", "axpby", "--arms", "mcts,greedy", "--seeds", "2", "--budget", "5")


def test_every_arm_has_the_same_budget_and_kernels_are_evaluated_once(
    tmp_path: Path, asked: list[Kernel]
) -> None:
    result = table(tmp_path, *OPTIMISED)
    assert result.exit_code == 0, result.output
    found = trials(tmp_path)
    assert found.keys() == {("axpby", arm, seed) for arm in ("mcts", "greedy") for seed in (0, 1)}
    assert {trial.evaluations for trial in found.values()} == {5}
    assert all(trial.naive_seconds == pytest.approx(64e-6) for trial in found.values())
    assert all((trial.best_seconds or 1.0) < 64e-6 for trial in found.values())
    assert "| geometric mean" in result.output
    gates = {
        (tmp_path / "runs" / "-".join(map(str, key)) / "best" / "answer.json").is_file() for key in found
    }
    assert gates == {True}
    assert len(asked) < 4 * 5


def test_a_table_goes_on_where_it_was_cut_off(tmp_path: Path, asked: list[Kernel]) -> None:
    assert "No time is left" in table(tmp_path, *OPTIMISED, "--minutes", "1e-9").output
    assert trials(tmp_path) == {}
    table(tmp_path, "--tasks", "axpby", "--arms", "mcts", "--seeds", "1", "--budget", "5")
    (known,) = trials(tmp_path).values()
    with (tmp_path / "trials.jsonl").open("ab") as file:
        file.write(b'{"task":"axpby","arm"')
    table(tmp_path, *OPTIMISED)
    assert len(trials(tmp_path)) == 4
    assert trials(tmp_path)[known.key] == known
    before = len(asked)
    table(tmp_path, *OPTIMISED)
    assert len(asked) == before


def test_trials_on_other_terms_are_not_mixed(tmp_path: Path, asked: list[Kernel]) -> None:
    table(tmp_path, "--tasks", "axpby", "--arms", "mcts", "--seeds", "1", "--budget", "2")
    result = table(tmp_path, "--tasks", "axpby", "--arms", "mcts", "--seeds", "1", "--budget", "3")
    assert result.exit_code == 2
    assert "holds trials of 2 evaluations" in " ".join(result.output.replace("│", "").split())
    assert len(trials(tmp_path)) == 1


def test_a_table_has_no_trials_but_those_that_were_asked_for(tmp_path: Path, asked: list[Kernel]) -> None:
    table(tmp_path, "--tasks", "axpby,vector_add", "--arms", "mcts", "--seeds", "1", "--budget", "2")
    table(tmp_path, "--tasks", "axpby", "--arms", "mcts", "--seeds", "1", "--budget", "2")
    told = (tmp_path / "plain_suite.md").read_text()
    assert len(trials(tmp_path)) == 2
    assert "axpby" in told
    assert "vector_add" not in told


def test_an_arm_that_needs_a_model_is_told_of_and_not_made_up(tmp_path: Path, asked: list[Kernel]) -> None:
    result = table(tmp_path, "--tasks", "axpby", "--seeds", "1", "--budget", "2")
    assert result.exit_code == 0
    assert {arm for _, arm, _ in trials(tmp_path)} == {"mcts", "greedy", "best-of-n"}
    lines = [line for line in result.output.splitlines() if "needs a model" in line]
    assert [line.split()[1] for line in lines] == [name for name, arm in ARMS.items() if arm.needs_model]


def synthesised(
    out: Path, monkeypatch: pytest.MonkeyPatch, *words: str, said: Behaviour
) -> tuple[Trial, list[str]]:
    """The trial of one arm that a scripted model wrote for, and what the model was asked."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with serving(said) as server:
        asked = ("--model", "scripted", "--base-url", server.url)
        result = table(out, "--tasks", "axpby", "--seeds", "1", "--tries", "3", *asked, *words)
    assert result.exit_code == 0, result.output
    (trial,) = trials(out).values()
    return trial, [request.body["messages"][-1]["content"] for request in server.received]


NAIVE = (SUITE / "axpby" / "kernel.cu").read_text()


def test_a_kernel_is_synthesised_from_the_description_and_optimised_with_what_is_left(
    tmp_path: Path, asked: list[Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--arms", "generate-then-mcts", "--budget", "6")
    trial, prompts = synthesised(tmp_path, monkeypatch, *words, said=replies(a_kernel(NAIVE)))
    assert trial.problem == ""
    assert trial.evaluations == 6
    assert trial.naive_seconds is None, "nobody gave it the naive kernel"
    assert (trial.best_seconds or 1.0) < 64e-6
    assert trial.calls >= 3
    assert any("compute `alpha * x + beta * y`" in prompt for prompt in prompts)
    assert not any("CHUNK" in prompt for prompt in prompts if "There is no kernel yet" in prompt)
    run = tmp_path / "runs" / "axpby-generate-then-mcts-0" / "run"
    assert msgspec.json.decode((run / "run.json").read_bytes())["configuration"]["spent"]["evaluations"] > 0


def test_synthesis_alone_stops_at_a_kernel_that_is_right(
    tmp_path: Path, asked: list[Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--arms", "generate", "--budget", "6")
    trial, _ = synthesised(tmp_path, monkeypatch, *words, said=replies(a_kernel(NAIVE)))
    assert trial.best_seconds == pytest.approx(64e-6)
    assert 1 <= trial.evaluations <= 3
    assert not (tmp_path / "runs" / "axpby-generate-0" / "run").exists()


def test_a_description_that_no_kernel_came_of_counts_as_wrong(
    tmp_path: Path, asked: list[Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = NAIVE.replace("int first", "broken first")
    words = ("--arms", "generate-then-mcts", "--budget", "6")
    trial, _ = synthesised(tmp_path, monkeypatch, *words, said=replies(a_kernel(broken)))
    assert trial.best_seconds is None
    assert 'identifier "broken" is undefined' in trial.problem
    told = (tmp_path / "plain_suite.md").read_text()
    assert "| 0 of 1 |" in " ".join(told.split())
    assert "generate-then-mcts, seed 0: No kernel is right after 3 tries." in told


def test_a_broken_machine_costs_the_table_and_a_broken_trial_one_line(
    tmp_path: Path, asked: list[Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> Trial:
        raise DeviceError("The GPU fell off the bus.")

    monkeypatch.setattr("mctskernel.experiments.plain_suite_table.optimise", fails)
    table(tmp_path, "--tasks", "axpby", "--arms", "mcts", "--seeds", "1")
    assert "- axpby, mcts, seed 0: The GPU fell off the bus." in (tmp_path / "plain_suite.md").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--tasks", "axpbi"), "Did you mean 'axpby'?"),
        (("--arms", "mcts,gready"), "There is no arm 'gready'"),
        (("--model", " "), "No model is named"),
    ],
)
def test_what_is_misspelt_is_told_before_anything_runs(
    tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    result = table(tmp_path / "out", *words)
    assert result.exit_code == 2
    assert told in " ".join(result.output.replace("│", "").split())
    assert not (tmp_path / "out").exists()


def suite(*made: Trial, arms: tuple[str, ...] = ("mcts", "greedy"), seeds: int = 2) -> PlainSuite:
    return PlainSuite(device="model", arms=arms, budget=5, seeds=seeds, fingerprint=FINGERPRINT, trials=made)


def trial(task: str, arm: str, seed: int, best: float | None, naive: float | None = 100e-6) -> Trial:
    return Trial(
        task=task, arm=arm, seed=seed, naive_seconds=naive, best_seconds=best, evaluations=5, seconds=2.0
    )


def row(page: str, start: str, occurrence: int = 0) -> list[str]:
    found = [line for line in page.splitlines() if line.startswith(f"| {start} ")]
    return [cell.strip() for cell in found[occurrence].strip("|").split("|")]


def test_speedups_are_geometric_means_over_seeds_then_tasks() -> None:
    made = (
        trial("a", "mcts", 0, 50e-6),
        trial("a", "mcts", 1, 12.5e-6),
        trial("b", "mcts", 0, 100e-6),
        trial("b", "mcts", 1, 100e-6),
    )
    page = render(suite(*made, arms=("mcts",)))
    assert row(page, "mcts")[2:5] == ["4 of 4", row(page, "mcts")[3], "1 of 2"]
    assert row(page, "mcts")[3].startswith("2.00x [1.00, 4.00]")
    assert row(page, "a") == ["a", "100.0", "4.00x"]
    assert row(page, "geometric mean")[-1] == "2.00x"
    assert row(page, "a", 1)[:5] == ["a", "100.0", "12.5", "4.00x", "2 of 2"]
    assert without_gain(suite(*made)) == ["b"]


def test_a_trial_that_failed_counts_against_correctness_and_not_as_a_speedup() -> None:
    page = render(suite(trial("a", "mcts", 0, 50e-6), trial("a", "mcts", 1, None), arms=("mcts",)))
    assert row(page, "mcts")[2:4] == ["1 of 2", "2.00x [2.00, 2.00]"]


def test_what_was_synthesised_is_compared_with_the_naive_kernel_that_other_arms_timed() -> None:
    made = (trial("a", "mcts", 0, 50e-6), trial("a", "generate", 0, 25e-6, naive=None))
    page = render(suite(*made, arms=("mcts", "generate"), seeds=1))
    assert row(page, "generate")[3].startswith("4.00x")
    alone = render(suite(made[1], arms=("generate",), seeds=1))
    assert row(alone, "generate")[2:4] == ["1 of 1", ""]


def test_a_trial_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = [trial("a", "mcts", 0, 50e-6), trial("a", "mcts", 1, None)]
    for each in made:
        append_line(tmp_path / "trials.jsonl", each)
    assert read_trials(tmp_path / "trials.jsonl") == made
    assert read_trials(tmp_path / "none.jsonl") == []


def sharing(look_up: Callable[[Kernel], Evaluation]) -> SharedEvaluations:
    return SharedEvaluations(RecordedExecutor(look_up, FINGERPRINT))


def test_a_shared_executor_asks_once_about_each_kernel_and_gives_every_ticket_its_answer() -> None:
    counted: list[str] = []

    def look_up(kernel: Kernel) -> Evaluation:
        counted.append(kernel.source)
        return timed(float(len(kernel.source)))

    shared = sharing(look_up)
    first, second = Kernel("x"), Kernel("yy")
    for ticket, kernel in enumerate((first, second, first)):
        shared.submit(ticket, kernel)
        ((number, evaluation),) = shared.wait()
        assert (number, evaluation.timings[0].seconds) == (ticket, pytest.approx(len(kernel.source) * 1e-6))
    assert counted == ["x", "yy"]
    assert shared.wait() == []
    assert shared.last_gate(second, first) == shared.last_gate(second, first)
    assert counted == ["x", "yy", "yy"]


def test_the_arms_that_search_say_how() -> None:
    assert all(bool(arm.strategy) == (arm.name != "generate") for arm in ARMS.values())
