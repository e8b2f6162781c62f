"""Trials of tasks: each is a run, in a folder that can be opened and reported like any other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from mctskernel.core.evaluation import Evaluation
from mctskernel.experiments.ablation.configuration import Ablation
from mctskernel.experiments.ablation.evaluators import Evaluators
from mctskernel.experiments.ablation.plans import Plan
from mctskernel.experiments.ablation.results import DIGITS, Gate, Trial, counted, rounded
from mctskernel.experiments.ablation.subjects import TaskSubject
from mctskernel.experiments.strategies.simulated_search import StopRequested
from mctskernel.report.failures import QUARANTINED
from mctskernel.report.progress import Moment, moments
from mctskernel.run import RunFolder, discard_run
from mctskernel.runner import Conclusion, begin, resume
from mctskernel.search import Ending
from mctskernel.search_settings import run_configuration
from mctskernel.tree.events import ExchangeRecord, Proposed
from mctskernel.tree.journal import read_events


def run_trial(
    plan: Plan,
    subject: TaskSubject,
    ablation: Ablation,
    out: Path,
    *,
    evaluators: Evaluators,
    stop_requested: StopRequested,
) -> Trial | None:
    """Begin the trial's run or go on with it; None where that was told to stop. Raises what `runner.begin` raises."""
    folder = RunFolder(out / plan.run)
    if folder.manifest.exists():
        conclusion = resume(folder.path, None, None, lambda _: None, stop_requested)
    else:
        discard_run(folder)  # What a process left that died before there was a run.
        configuration = run_configuration(
            plan.arm.settings,
            task=subject.name,
            device=ablation.device,
            architecture=ablation.architecture,
            seed=plan.seed,
            budget=ablation.budget,
        )
        conclusion = begin(
            folder.path,
            subject.folder,
            configuration,
            lambda _: None,
            stop_requested,
            executor=evaluators.lent(subject, configuration),
        )
    return None if conclusion.ending is Ending.INTERRUPTED else _trial(plan, conclusion)


def _trial(plan: Plan, conclusion: Conclusion) -> Trial:
    tree, journal = conclusion.tree, conclusion.folder.journal
    went = list(moments(read_events(journal)))
    evaluations = [node.evaluation for node in tree.nodes if node.evaluation is not None]
    exchanges = list(_exchanges(conclusion.folder))
    arm, subject, seed = plan.key
    return Trial(
        arm=arm,
        subject=subject,
        seed=seed,
        evaluations=tree.evaluations,
        improvements=rounded(_speedups(went)),
        failures=counted(failure for each in evaluations if (failure := _failure(each))),
        seconds=round(went[-1].seconds, 3) if went else 0.0,
        device_seconds=round(math.fsum(each.cost_seconds for each in evaluations), 3),
        dollars=tree.dollars,
        input_tokens=sum(each.input_tokens for each in exchanges),
        output_tokens=sum(each.output_tokens for each in exchanges),
        gate=_gate(conclusion),
        problem=conclusion.problem,
        run=plan.run,
    )


def _exchanges(folder: RunFolder) -> Iterator[ExchangeRecord]:
    for event in read_events(folder.journal):
        if isinstance(event, Proposed):
            yield from event.exchanges


def _failure(evaluation: Evaluation) -> str:
    if evaluation.ok:
        return QUARANTINED if evaluation.quarantine else ""
    return str(evaluation.outcome)


def _speedups(went: Iterable[Moment]) -> list[tuple[int, float]]:
    found: list[tuple[int, float]] = []
    best = 0.0
    for moment in went:
        if moment.best_speedup > best:
            best = moment.best_speedup
            found.append((moment.evaluations, math.log(best)))
    return found


def _gate(conclusion: Conclusion) -> Gate:
    answer = conclusion.answer
    logs = [
        math.log(each.baseline_seconds / each.seconds) for each in answer.timings if each.baseline_seconds
    ]
    return Gate(
        passed=bool(answer.node),
        refused=len(answer.refused),
        speedup=round(math.exp(math.fsum(logs) / len(logs)), DIGITS) if logs else None,
    )
