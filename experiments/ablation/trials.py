"""One trial: a search of a subject by an arm with a seed, and what is kept of it."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from pathlib import Path

import msgspec

from mctskernel.core.budget import Budget
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Kernel
from mctskernel.core.space import Entry, SpaceError, configuration_kernel, values_of
from mctskernel.core.task import Task
from mctskernel.edits.parameters import ParameterProposer
from mctskernel.executors.recorded import RecordedExecutor, evaluation_of
from mctskernel.experiments.ablation.configuration import Ablation, Arm
from mctskernel.experiments.ablation.subjects import Subject
from mctskernel.loop import Search, StopReason
from mctskernel.report.document import QUARANTINED
from mctskernel.report.progress import moments
from mctskernel.run import RunFolder, discard_run
from mctskernel.run.search import SearchResult, begin, resume
from mctskernel.tasks.space import choose_start
from mctskernel.tree.blobs import MemoryBlobs
from mctskernel.tree.events import Proposed
from mctskernel.tree.journal import MemoryJournal, read_events
from mctskernel.tree.node import Tree
from mctskernel.tree.search import TreeSearch

RUNS = "runs"

StopRequested = Callable[[], bool]

DIGITS = 6  # decimals of a kept score: searches that find the same agree in more


class FinalValidation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether a kernel but the starting one `passed` the final validation, and how many faster ones it `refused`."""

    passed: bool
    refused: int = 0
    speedup: float | None = None


class Trial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One search by an arm, of a subject, with a seed.

    `improvements` are pairs of an evaluation's number, from 1, and the score from then on: the share of the optimum (0
    before the first success), or the logarithm of the speed-up over the starting kernel. `failures` counts evaluations
    by outcome. `seconds` are the search's own, `device_seconds` those of its evaluations. `problem` says why nothing
    could be searched. `run` is the run folder, relative to the results folder.
    """

    arm: str
    subject: str
    seed: int
    evaluations: int
    improvements: tuple[tuple[int, float], ...] = ()
    failures: dict[str, int] = {}
    seconds: float = 0.0
    device_seconds: float = 0.0
    dollars: float = 0.0
    tokens: int = 0
    validation: FinalValidation | None = None
    problem: str = ""
    run: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        return self.arm, self.subject, self.seed

    def after(self, evaluations: int) -> float:
        return max((score for number, score in self.improvements if number <= evaluations), default=0.0)


@dataclass(frozen=True)
class Plan:
    arm: Arm
    subject: Subject
    seed: int

    @property
    def key(self) -> tuple[str, str, int]:
        return self.arm.name, self.subject.name, self.seed


def plans_of(ablation: Ablation, subjects: Sequence[Subject]) -> list[Plan]:
    """List every trial, seed by seed, so that an interrupted ablation has pairs."""
    return [
        Plan(arm, subject, seed) for seed, subject, arm in product(ablation.seeds, subjects, ablation.arms)
    ]


def make(ablation: Ablation, out: Path, plan: Plan, stop_requested: StopRequested) -> Trial | None:
    """Make a trial; None if it was stopped before its end. Raises what `mctskernel.run.search.begin` raises."""
    if not plan.subject.is_task:
        return _search_space(plan, ablation, stop_requested)
    name = f"{RUNS}/{plan.arm.name}/{plan.subject.name}/{plan.seed}"
    folder = RunFolder(out / name)
    if folder.manifest.exists():
        search_result = resume(folder.path, stop_requested=stop_requested)
    else:
        discard_run(folder)
        configuration = msgspec.structs.replace(plan.arm.config, task=plan.subject.name, seed=plan.seed)
        search_result = begin(
            folder.path, Path(plan.subject.source), configuration, stop_requested=stop_requested
        )
    return None if search_result.stop_reason is StopReason.INTERRUPTED else _trial(plan, search_result, name)


def _search_space(plan: Plan, ablation: Ablation, stop_requested: StopRequested) -> Trial | None:
    """Search a space by the loop of every search, with times that are looked up and a clock of recorded seconds.

    It begins at a configuration that the seed draws, and draws the next while that is one that fails; each of them
    counts as an evaluation. Raises MisuseError.
    """
    space, config, began = plan.subject.space(), plan.arm.config, time.process_time()
    budget = min(ablation.budget.evaluations or 1, len(space.entries))
    try:
        start = choose_start(space, plan.seed)
    except SpaceError:
        entries = space.entries[:budget]
    else:
        entries = start.failed[:budget]
    cost = sum(entry.cost_seconds for entry in entries)
    if len(entries) < budget:
        looked_up: dict[str, Entry] = {}

        def look_up(kernel: Kernel) -> Evaluation:
            entry = looked_up[kernel.identity] = space.by_values[values_of(space, kernel)]
            return evaluation_of(entry)

        executor = RecordedExecutor(look_up, {}, workers=config.workers)
        opened = executor.clock()
        kernel = configuration_kernel(space, start.entry.values)
        tree_search = TreeSearch(Tree(), MemoryJournal(), MemoryBlobs(), clock=lambda: 0.0)
        root = tree_search.start(kernel, config.policy, plan.seed)
        stop_reason = Search(
            tree_search=tree_search,
            task=Task(name=space.name, starting_kernel=kernel),
            proposer=ParameterProposer(space, plan.seed),
            executor=executor,
            budget=Budget(evaluations=budget - len(entries)),
            stop_requested=stop_requested,
        ).run((root,))
        if stop_reason is StopReason.INTERRUPTED:
            return None
        tree = tree_search.tree
        entries = (*entries, *(looked_up[tree.nodes[node].kernel.identity] for node in tree.evaluated))
        cost += executor.clock() - opened
    return Trial(
        arm=plan.arm.name,
        subject=plan.subject.name,
        seed=plan.seed,
        evaluations=len(entries),
        improvements=_improvements(
            (number, space.optimum_seconds / entry.seconds)
            for number, entry in enumerate(entries, 1)
            if entry.seconds
        ),
        failures=_counts(str(entry.outcome) for entry in entries if entry.seconds is None),
        seconds=round(time.process_time() - began, 3),
        device_seconds=round(cost, 3),
    )


def _trial(plan: Plan, search_result: SearchResult, name: str) -> Trial:
    events = list(read_events(search_result.folder.journal))
    progress = list(moments(events))
    fastest = list(accumulate((each.speedup for each in progress), max))
    evaluations = [node.evaluation for node in search_result.tree.nodes if node.evaluation is not None]
    exchanges = [each for event in events if isinstance(event, Proposed) for each in event.exchanges]
    failures = (
        (QUARANTINED if each.quarantine else "") if each.ok else str(each.outcome) for each in evaluations
    )
    return Trial(
        arm=plan.arm.name,
        subject=plan.subject.name,
        seed=plan.seed,
        evaluations=search_result.tree.evaluations,
        improvements=_improvements(
            (each.evaluations, math.log(best)) for each, best in zip(progress, fastest, strict=True) if best
        ),
        failures=_counts(filter(None, failures)),
        seconds=round(progress[-1].seconds, 3) if progress else 0.0,
        device_seconds=round(math.fsum(each.cost_seconds for each in evaluations), 3),
        dollars=search_result.tree.dollars,
        tokens=sum(each.input_tokens + each.output_tokens for each in exchanges),
        validation=_validation(search_result),
        problem=search_result.problem,
        run=name,
    )


def _validation(search_result: SearchResult) -> FinalValidation:
    answer = search_result.answer
    logs = [
        math.log(each.baseline_seconds / each.seconds) for each in answer.timings if each.baseline_seconds
    ]
    speedup = round(math.exp(math.fsum(logs) / len(logs)), DIGITS) if logs else None
    return FinalValidation(passed=bool(answer.node), refused=len(answer.refused), speedup=speedup)


def _improvements(scores: Iterable[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Keep the scores that were the best so far, each after the number of its evaluation."""
    found: list[tuple[int, float]] = []
    best = -math.inf
    for number, score in scores:
        if score > best:
            best = score
            found.append((number, round(score, DIGITS)))
    return tuple(found)


def _counts(outcomes: Iterable[str]) -> dict[str, int]:
    return dict(Counter(outcomes).most_common())
