"""Experts: the same model asked to look at a kernel in different ways, and how the next one to ask is chosen.

The choice is a bandit's: Thompson sampling for one-dimensional exponential families (Korda, Kaufmann and Munos, NeurIPS
2013). The gain of an edit, as a logarithm and 0 for a failure, is modelled as exponentially distributed, with an
inverse-gamma posterior of its mean. An expert's draw is multiplied by how much of the kernel's time its bottlenecks
explain.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np

from mctskernel.core.evaluation import Bottleneck, Diagnosis
from mctskernel.core.option import Option
from mctskernel.core.user_errors import MisuseError

PREFIX = "llm/"  # what the names of proposers begin with whose edits a model wrote
EDITS = 5  # edits that a model is asked for at a time
PRIOR_COUNT = 3.0
PRIOR_LOG_GAIN = 0.1  # before any evidence, an expert counts as having this many observations with this mean

WEIGHT = 0.25
"""What an edit counts as an observation: gains are rarer and larger than exponential ones, and alike in a reply."""

RELEVANCE = 3.0
"""The factor of an expert whose bottlenecks explain all of a kernel's time, over one whose explain none."""


@dataclass(frozen=True)
class Expert:
    """A view of a kernel: `prompts/experts/NAME.md`, or the rules; it `relieves` these bottlenecks (none: neutral)."""

    name: str
    relieves: frozenset[Bottleneck] = frozenset()
    prefix: str = PREFIX

    @property
    def proposer(self) -> str:
        return f"{self.prefix}{self.name}"


def _expert(name: str, relieves: str) -> Expert:
    return Expert(name, frozenset(Bottleneck[each.upper()] for each in relieves.split()))


EXPERTS = (
    _expert(
        "memory",
        "dram_bandwidth l2_bandwidth l1_throughput uncoalesced_access shared_throughput bank_conflicts launch_overhead",
    ),
    _expert(
        "parallelism", "too_few_blocks low_occupancy tail global_latency barriers atomics launch_overhead"
    ),
    _expert(
        "instructions", "instruction_issue integer_pipe fp32_pipe global_latency spills divergence barriers"
    ),
    _expert("numerics", "special_functions fp32_pipe dram_bandwidth atomics"),
    _expert("tensor", "tensor_pipe fp32_pipe instruction_issue global_latency shared_throughput"),
)
"""The experts of a search by default."""


def chosen_experts(wanted: Iterable[str]) -> tuple[Expert, ...]:
    """Experts by name; all if none is named. Raises MisuseError."""
    known = {expert.name: expert for expert in EXPERTS}
    names = list(wanted)
    if unknown := [name for name in names if name not in known]:
        raise MisuseError(f"There is no expert '{unknown[0][:40]}' (known: {', '.join(known)}).")
    return tuple(known[name] for name in names) or EXPERTS


class Feedback(enum.StrEnum):
    """What a prompt says of a kernel beside its times.

    NONE is nothing more; COUNTERS the counters by their names; DIAGNOSIS what limits the kernel, and what the compiler
    reports, in sentences.
    """

    NONE = "none"
    COUNTERS = "counters"
    DIAGNOSIS = "diagnosis"


_Count = Annotated[int, msgspec.Meta(ge=1, le=64)]


class MixtureOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which experts are asked for edits of a node, and how."""

    experts: Annotated[
        tuple[str, ...],
        Option(
            f"The experts to choose from: {', '.join(each.name for each in EXPERTS)}.",
            "--expert",
            default="all",
            metavar="NAME,...",
        ),
    ] = ()
    edits: Annotated[_Count, Option("Number of edits that an expert is asked for.", "--edits-per-call")] = (
        EDITS
    )
    at_once: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=len(EXPERTS))],
        Option(
            "Number of experts that are asked for edits of a node, one after the other.", "--experts-per-node"
        ),
    ] = 1
    in_flight: Annotated[_Count, Option("Maximum number of concurrent requests to the model.", "--calls")] = 4
    feedback: Annotated[
        Feedback,
        Option(
            "What a prompt says of a kernel beside its time: nothing, its counters, or the diagnosis in sentences."
        ),
    ] = Feedback.DIAGNOSIS

    def __post_init__(self) -> None:
        """Refuse experts that don't exist. Raises MisuseError."""
        chosen_experts(self.experts)


def choose(
    arms: Sequence[Expert],
    standings: Mapping[str, Sequence[float]],
    diagnosis: Diagnosis | None,
    count: int,
    rng: np.random.Generator,
) -> tuple[Expert, ...]:
    """The `count` experts with the greatest draws, in order; `standings` are logarithms of gains by proposer."""
    draws = [draw(standings.get(arm.proposer, ()), rng) * relevance(arm, diagnosis) for arm in arms]
    ranked = sorted(range(len(arms)), key=lambda place: -draws[place])
    return tuple(arms[place] for place in ranked[:count])


def draw(log_gains: Sequence[float], rng: np.random.Generator) -> float:
    """A mean gain, as a logarithm, drawn from its posterior."""
    shape = PRIOR_COUNT + 1 + WEIGHT * len(log_gains)
    total = PRIOR_COUNT * PRIOR_LOG_GAIN + WEIGHT * sum(log_gains)
    return float(total / rng.gamma(shape))


def relevance(arm: Expert, diagnosis: Diagnosis | None) -> float:
    """From 1 to RELEVANCE, by the share of the kernel's time that an expert's bottlenecks explain."""
    causes = diagnosis.causes if diagnosis is not None else ()
    explained = sum(cause.share for cause in causes)
    if explained <= 0 or not arm.relieves:
        return (1.0 + RELEVANCE) / 2
    own = sum(cause.share for cause in causes if cause.bottleneck in arm.relieves)
    return 1.0 + (RELEVANCE - 1.0) * own / explained
