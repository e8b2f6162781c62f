"""Trials of recorded spaces and kernels: searched in this process, with nothing built or run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.space import SearchSpace, values_of
from mctskernel.core.surrogate import Prediction, SurrogateUse
from mctskernel.experiments.ablation.configuration import Ablation
from mctskernel.experiments.ablation.plans import Known, Plan
from mctskernel.experiments.ablation.results import Trial, counted, rounded
from mctskernel.experiments.ablation.settings import Settings
from mctskernel.experiments.ablation.subjects import KernelsSubject, SpaceSubject
from mctskernel.experiments.strategies.simulated_search import ForecasterOf, StopRequested, grow, search_space
from mctskernel.experiments.strategies.traces import improvements
from mctskernel.experiments.subjects.recorded_spaces import RecordedProposer, RecordedSpace, executor_of
from mctskernel.experiments.surrogate.value import LookedUp, forecasting, made_up, modelled, perfect
from mctskernel.search import Ending
from mctskernel.search_settings import policy_of


def recorded_trial(
    plan: Plan,
    subject: SpaceSubject | KernelsSubject,
    ablation: Ablation,
    known: Known,
    stop_requested: StopRequested,
) -> Trial | None:
    """Search what was recorded; None where that was told to stop. Raises SpaceError and what reading kernels raises."""
    began = time.process_time()
    if isinstance(subject, SpaceSubject):
        found = _of_space(plan, subject.load(), ablation, stop_requested)
    else:
        found = _of_kernels(plan, subject.load(), ablation, known, stop_requested)
    return None if found is None else _trial(plan, found, time.process_time() - began)


@dataclass(frozen=True)
class _Found:
    """What was found where times are looked up: outcomes and seconds, in the order in which they came back."""

    outcomes: Sequence[Outcome]
    times: Sequence[float | None]
    optimum: float
    device_seconds: float
    predictions: int


def _trial(plan: Plan, found: _Found, seconds: float) -> Trial:
    arm, subject, seed = plan.key
    return Trial(
        arm=arm,
        subject=subject,
        seed=seed,
        evaluations=len(found.times),
        improvements=rounded(improvements(found.times, found.optimum)),
        failures=counted(str(each) for each in found.outcomes if each is not Outcome.OK),
        seconds=round(seconds, 3),
        device_seconds=round(found.device_seconds, 3),
        predictions=found.predictions,
    )


def _of_space(
    plan: Plan, space: SearchSpace, ablation: Ablation, stop_requested: StopRequested
) -> _Found | None:
    settings = plan.arm.settings
    surrogate = _surrogate(settings, _space_oracle(settings, space, plan.seed))
    found = search_space(
        space,
        policy_of(settings, ablation.device),
        plan.seed,
        settings.workers,
        ablation.budget.evaluations or 1,
        forecaster_of=_forecaster_of(surrogate),
        stop_requested=stop_requested,
    )
    if not found.ended:
        return None
    return _Found(
        [entry.outcome for entry in found.entries],
        [entry.seconds for entry in found.entries],
        space.optimum_seconds,
        found.recorded_seconds,
        surrogate.asked if surrogate else 0,
    )


def _of_kernels(
    plan: Plan, space: RecordedSpace, ablation: Ablation, known: Known, stop_requested: StopRequested
) -> _Found | None:
    settings = plan.arm.settings
    oracle: Callable[[], LookedUp] = {
        "model": lambda: modelled(known.get(space.name, {})),
        "recorded": lambda: perfect(space),
        "random": lambda: made_up(plan.seed),
    }[settings.oracle]
    surrogate = _surrogate(settings, oracle)
    tree, ending = grow(
        space.start(plan.seed),
        task=space.task,
        policy=policy_of(settings, ablation.device),
        seed=plan.seed,
        proposer=RecordedProposer(space, plan.seed),
        executor=executor_of(space, settings.workers),
        budget=min(ablation.budget.evaluations or 1, len(space.evaluations)),
        forecaster_of=_forecaster_of(surrogate),
        stop_requested=stop_requested,
    )
    if ending is Ending.INTERRUPTED:
        return None
    evaluated = [tree.nodes[node].kernel.identity for node in tree.evaluated]
    judged = [space.evaluations[each] for each in evaluated]
    return _Found(
        [each.outcome for each in judged],
        [space.seconds.get(each) for each in evaluated],
        min(space.seconds.values()),
        math.fsum(each.cost_seconds for each in judged),
        surrogate.asked if surrogate else 0,
    )


def _space_oracle(settings: Settings, space: SearchSpace, seed: int) -> Callable[[], LookedUp]:
    """What predicts configurations; the model has no opinion of them."""

    def recorded(kernel: Kernel) -> Prediction | None:
        seconds = space.by_values[values_of(space, kernel)].seconds
        return None if seconds is None else Prediction(seconds, {})

    if settings.oracle == "recorded":
        return lambda: LookedUp(recorded, lambda _first, _second: 0.01)
    if settings.oracle == "random":
        return lambda: made_up(seed)
    return lambda: LookedUp(lambda _: None, lambda _first, _second: 1.0)


def _surrogate(settings: Settings, oracle: Callable[[], LookedUp]) -> LookedUp | None:
    return None if settings.surrogate is SurrogateUse.OFF else oracle()


def _forecaster_of(surrogate: LookedUp | None) -> ForecasterOf | None:
    return None if surrogate is None else forecasting(surrogate)
