"""The plain suite, by every arm: naive kernels optimised, and kernels written from a description and optimised.

    python -m mctskernel.experiments.plain_suite_table --device model --budget 40 --seeds 3 --out FOLDER

Each trial is in FOLDER/trials.jsonl as soon as it is over, and isn't made again: the same command goes on where it was
cut off. At the end of every call FOLDER/plain_suite.json and FOLDER/plain_suite.md hold what is known, and FOLDER/runs
every run. Arms that ask a language model need --model; without it the table says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from mctskernel.core.device import DeviceError
from mctskernel.core.disk import write_whole
from mctskernel.core.executor import Executor
from mctskernel.core.task import TaskError
from mctskernel.edits.llm.options import KEY_VARIABLE, LLMOptions, ModelError
from mctskernel.executors import open_executor
from mctskernel.experiments.records.json_lines import append_line
from mctskernel.experiments.records.provenance import write_result
from mctskernel.experiments.suites.plain_arms import ARMS, Arm, Bench, Setting, Wanted, optimise, synthesise
from mctskernel.experiments.suites.plain_report import render
from mctskernel.experiments.suites.plain_tasks import PlainTask, chosen_tasks, plain_tasks
from mctskernel.experiments.suites.plain_trials import PlainSuite, Trial, read_trials
from mctskernel.experiments.suites.shared_evaluations import SharedEvaluations
from mctskernel.run import RunError
from mctskernel.tree.journal import JournalError


class Terms(msgspec.Struct, frozen=True):
    """What all trials of a table have alike."""

    device: str
    architecture: str
    budget: int
    tries: int


PROBLEMS = (TaskError, RunError, JournalError, DeviceError)
"""What costs a trial, and not the others."""

Say = Callable[[str], None]


@click.command()
@click.option("--tasks", help="Names, with commas. [default: all of the suite]")
@click.option("--arms", default=",".join(ARMS), show_default=True, help="With commas.")
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option(
    "--budget", type=click.IntRange(min=1), default=40, show_default=True, help="Evaluations a trial."
)
@click.option(
    "--tries",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Of the budget, kernels and repairs that generation may ask for.",
)
@click.option("--device", type=click.Choice(["gpu", "model"]), default="model", show_default=True)
@click.option("--architecture", default="H100", show_default=True, help="What --device model stands for.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    help="Begin no trial later; the next call goes on.",
)
@click.option("--model", help="The language model, as its server calls it.")
@click.option("--base-url", default="", help="Its OpenAI-compatible server.")
@click.option(
    "--api-key-env", default=KEY_VARIABLE, show_default=True, help="The variable that holds its key."
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True)
def main(
    *,
    tasks: str | None,
    arms: str,
    seeds: int,
    budget: int,
    tries: int,
    device: str,
    architecture: str,
    workers: int,
    minutes: float | None,
    model: str | None,
    base_url: str,
    api_key_env: str,
    out: Path,
) -> None:
    """Make the trials that are missing, and print the table."""
    try:
        chosen = chosen_tasks(tasks.split(",") if tasks else plain_tasks())
        llm = LLMOptions(model, base_url=base_url, key_variable=api_key_env) if model else None
    except (TaskError, ModelError) as error:
        raise click.UsageError(str(error)) from error
    wanted = [_arm(name) for name in arms.split(",")]
    bench = Bench(device, architecture, budget, tries, workers, out / "runs", llm)
    end = time.monotonic() + 60 * minutes if minutes else float("inf")
    _refuse_other_terms(out / "terms.json", bench)
    fingerprint = make_trials(bench, chosen, wanted, range(seeds), out / "trials.jsonl", end=end)
    asked = {Wanted(task, arm, seed).key for task in chosen for arm in wanted for seed in range(seeds)}
    made = (trial for trial in read_trials(out / "trials.jsonl") if trial.key in asked)
    suite = PlainSuite(
        device=device,
        arms=tuple(arm.name for arm in wanted),
        budget=budget,
        seeds=seeds,
        fingerprint=fingerprint,
        trials=tuple(sorted(made, key=lambda trial: trial.key)),
    )
    write_result(out / "plain_suite.json", suite)
    write_whole(out / "plain_suite.md", render(suite).encode())
    click.echo(render(suite))


def make_trials(
    bench: Bench,
    tasks: Sequence[PlainTask],
    arms: Sequence[Arm],
    seeds: Sequence[int],
    file: Path,
    *,
    end: float = float("inf"),
    say: Say = click.echo,
) -> dict[str, str]:
    """Make each trial that the file doesn't have, beginning none after `end`, a time of `time.monotonic`.

    Returns the device's fingerprint. Arms that need a model are left out where the bench has none. Raises DeviceError
    where nothing can be evaluated, and ModelError for a model that can't be asked as it was configured.
    """
    able = [arm for arm in arms if bench.llm is not None or not arm.needs_model]
    done = {trial.key for trial in read_trials(file)}
    fingerprint: dict[str, str] = {}
    for number, task in enumerate(tasks, 1):
        every = (Wanted(task, arm, seed) for seed in seeds for arm in able)
        missing = [wanted for wanted in every if wanted.key not in done]
        if not missing and fingerprint:
            continue
        with _evaluating(bench, task) as executor:
            fingerprint = fingerprint or executor.fingerprint()
            for wanted in missing:
                if time.monotonic() > end:
                    say(f"No time is left for {task.name} and what follows.")
                    return fingerprint
                trial = _made(bench, wanted, executor, say)
                append_line(file, trial)
                say(
                    f"{number}/{len(tasks)} {task.name}, {wanted.arm.name}, seed {wanted.seed}: {_remark(trial)}"
                )
    return fingerprint


def _made(bench: Bench, wanted: Wanted, executor: Executor, say: Say) -> Trial:
    try:
        if wanted.arm.setting is Setting.OPTIMISE:
            return optimise(bench, wanted, executor)
        return synthesise(bench, wanted, say)
    except PROBLEMS as error:
        return wanted.failed(str(error))


@contextmanager
def _evaluating(bench: Bench, task: PlainTask) -> Iterator[Executor]:
    """What evaluates the task's kernels for all trials that optimise them; on `model` they share what is known."""
    with open_executor(bench.spec(task.folder), bench.workers) as executor:
        yield SharedEvaluations(executor) if bench.device == "model" else executor


def _refuse_other_terms(file: Path, bench: Bench) -> None:
    """Write down on what terms the trials of a folder are made, and refuse to add others to them."""
    terms = Terms(bench.device, bench.architecture, bench.budget, bench.tries)
    then = msgspec.json.decode(file.read_bytes(), type=Terms) if file.exists() else terms
    if then != terms:
        raise click.UsageError(
            f"{file.parent} holds trials of {then.budget} evaluations ({then.tries} tries) on {then.device} "
            f"({then.architecture}), which others can't be compared with: choose another --out."
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, msgspec.json.encode(terms))


def _arm(name: str) -> Arm:
    if name not in ARMS:
        raise click.BadParameter(
            f"There is no arm '{name}': there are {', '.join(ARMS)}.", param_hint="--arms"
        )
    return ARMS[name]


def _remark(trial: Trial) -> str:
    if trial.problem:
        return trial.problem
    if trial.naive_seconds is None or trial.best_seconds is None:
        return f"correct in {trial.evaluations} evaluations"
    return f"{trial.naive_seconds / trial.best_seconds:.2f}x in {trial.evaluations} evaluations"


if __name__ == "__main__":
    main()
