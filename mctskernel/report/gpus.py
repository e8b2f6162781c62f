"""The GPUs that timed a run's kernels: how they differ, and what state they were in."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mctskernel.core.evaluation import Conditions, Evaluation
from mctskernel.tree.events import Evaluated, Event


@dataclass(frozen=True)
class UsedGpu:
    """A GPU and how many kernels it timed.

    `factor` is how long the starting kernel takes on it over how long on the first GPU of the run, a geometric mean
    over the shapes; None where that isn't known.
    """

    uuid: str
    kernels: int
    factor: float | None

    @property
    def name(self) -> str:
        """What it is called."""
        return gpu_name(self.uuid)


def used_gpus(events: Iterable[Event]) -> tuple[UsedGpu, ...]:
    """The GPUs of a journal, in the order of their first kernels."""
    timed: dict[str, list[Evaluation]] = defaultdict(list)
    has_baseline = False
    for event in events:
        if isinstance(event, Evaluated) and event.evaluation.gpu:
            timed[event.evaluation.gpu].append(event.evaluation)
            # A kernel without a starting kernel to be timed beside is timed beside itself.
            has_baseline = has_baseline or (event.node == 0 and event.evaluation.ok)
    baselines = {uuid: _baselines(evaluations) for uuid, evaluations in timed.items()}
    first = next(iter(baselines.values()), {})
    return tuple(
        UsedGpu(uuid, len(timed[uuid]), _factor(found, first) if has_baseline else None)
        for uuid, found in baselines.items()
    )


def gpu_sentences(gpus: Sequence[UsedGpu]) -> tuple[str, ...]:
    """How the GPUs of a run differ; nothing of a run on one."""
    if len(gpus) < 2:
        return ()
    first = gpus[0]
    return (f"{first.name} timed {first.kernels} kernels.", *(_sentence(gpu, first) for gpu in gpus[1:]))


def gpu_name(uuid: str) -> str:
    """What a GPU is called: by the digits of its UUID that tell those of a machine apart."""
    return f"GPU {uuid[:8]}"


def conditions_text(conditions: Conditions) -> str:
    """The state that a GPU was in, and what was thrown away for it, as part of a line."""
    states = (conditions.before, conditions.after)
    parts = [
        _range([state.sm_mhz for state in states], "MHz"),
        _range([state.celsius for state in states], "C"),
        _range([round(state.watts) if state.watts else None for state in states], "W"),
        ", ".join(dict.fromkeys(str(event) for state in states for event in state.events)),
        f"{conditions.dropped} runs made again" if conditions.dropped else "",
    ]
    return ", ".join(part for part in parts if part)


def _baselines(evaluations: Sequence[Evaluation]) -> dict[str, float]:
    """Seconds of the starting kernel, by shape."""
    found: dict[str, list[float]] = defaultdict(list)
    for evaluation in evaluations:
        for timing in evaluation.timings:
            if timing.baseline_seconds:
                found[timing.shape].append(timing.baseline_seconds)
    return {shape: statistics.median(seconds) for shape, seconds in found.items()}


def _factor(baselines: dict[str, float], first: dict[str, float]) -> float | None:
    logs = [math.log(baselines[shape] / first[shape]) for shape in baselines.keys() & first.keys()]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def _sentence(gpu: UsedGpu, first: UsedGpu) -> str:
    timed = f"{gpu.name} timed {gpu.kernels}"
    if gpu.factor is None:
        return f"{timed}; how it compares with {first.name} isn't known."
    share = f"{abs(gpu.factor - 1):.1%}"
    if share == "0.0%":
        return f"{timed}; it is as fast as {first.name} on the starting kernel."
    word = "slower" if gpu.factor > 1 else "faster"
    return f"{timed}; it is {share} {word} than {first.name} on the starting kernel, which is taken out of comparisons."


def _range(numbers: Sequence[int | None], unit: str) -> str:
    known = [number for number in numbers if number is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"
