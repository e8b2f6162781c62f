"""Experts: the same model asked to look at a kernel in different ways, or different models."""

from __future__ import annotations

from dataclasses import dataclass

from mctskernel.core.evaluation import Bottleneck

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
