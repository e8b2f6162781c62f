"""Experts: the same model asked to look at a kernel in different ways, or different models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mctskernel.core.evaluation import Bottleneck
from mctskernel.core.user_errors import MisuseError

PREFIX = "llm/"
"""What the names of proposers begin with whose edits a model wrote."""


@dataclass(frozen=True)
class Expert:
    """One way to look at a kernel: `prompts/experts/NAME.md`, asked of `model` at `temperature`.

    An empty `model` is the one that was configured, a temperature of None the server's own. `relieves` are the
    bottlenecks that its edits are for.
    """

    name: str
    relieves: frozenset[Bottleneck]
    model: str = ""
    temperature: float | None = None

    @property
    def proposer(self) -> str:
        """The name that its edits carry."""
        return f"{PREFIX}{self.name}"


class ExpertError(MisuseError, ValueError):
    """An expert that doesn't exist or is asked for in a way that can't be read; the message is a sentence."""


EXPERTS = (
    Expert(
        "memory",
        frozenset(
            {
                Bottleneck.DRAM_BANDWIDTH,
                Bottleneck.L2_BANDWIDTH,
                Bottleneck.L1_THROUGHPUT,
                Bottleneck.UNCOALESCED_ACCESS,
                Bottleneck.SHARED_THROUGHPUT,
                Bottleneck.BANK_CONFLICTS,
                Bottleneck.LAUNCH_OVERHEAD,
            }
        ),
    ),
    Expert(
        "parallelism",
        frozenset(
            {
                Bottleneck.TOO_FEW_BLOCKS,
                Bottleneck.LOW_OCCUPANCY,
                Bottleneck.TAIL,
                Bottleneck.GLOBAL_LATENCY,
                Bottleneck.BARRIERS,
                Bottleneck.ATOMICS,
                Bottleneck.LAUNCH_OVERHEAD,
            }
        ),
    ),
    Expert(
        "instructions",
        frozenset(
            {
                Bottleneck.INSTRUCTION_ISSUE,
                Bottleneck.INTEGER_PIPE,
                Bottleneck.FP32_PIPE,
                Bottleneck.GLOBAL_LATENCY,
                Bottleneck.SPILLS,
                Bottleneck.DIVERGENCE,
                Bottleneck.BARRIERS,
            }
        ),
    ),
    Expert(
        "numerics",
        frozenset(
            {
                Bottleneck.SPECIAL_FUNCTIONS,
                Bottleneck.FP32_PIPE,
                Bottleneck.DRAM_BANDWIDTH,
                Bottleneck.ATOMICS,
            }
        ),
    ),
    Expert(
        "tensor",
        frozenset(
            {
                Bottleneck.TENSOR_PIPE,
                Bottleneck.FP32_PIPE,
                Bottleneck.INSTRUCTION_ISSUE,
                Bottleneck.GLOBAL_LATENCY,
                Bottleneck.SHARED_THROUGHPUT,
            }
        ),
    ),
)
"""Those that a search asks if it isn't told otherwise."""


def chosen_experts(wanted: Iterable[str]) -> tuple[Expert, ...]:
    """Experts by NAME, NAME=MODEL, NAME@TEMPERATURE or NAME=MODEL@TEMPERATURE; all if none is named.

    Raises ExpertError.
    """
    return tuple(map(_chosen, wanted)) or EXPERTS


def _chosen(wanted: str) -> Expert:
    text, at, number = wanted.rpartition("@")
    temperature = _temperature(number) if at else None
    if temperature is None:
        text = wanted  # What stands behind an @ may belong to the name of a model.
    name, _, model = text.partition("=")
    known = {expert.name: expert for expert in EXPERTS}
    if name not in known:
        raise ExpertError(f"There is no expert '{name[:40]}' (known: {', '.join(known)}).")
    return replace(known[name], model=model, temperature=temperature)


def _temperature(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    if not 0 <= value <= 2:
        raise ExpertError(f"An expert's temperature is {text}; it must be from 0 to 2.")
    return value
