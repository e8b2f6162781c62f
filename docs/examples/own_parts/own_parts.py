"""Parts of one's own: a strategy with an option, a reward, a proposer and a device.

pip install -e docs/examples/own_parts
mctskernel search softmax --strategy newest --policy width=3 --reward lean --proposer few
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import msgspec

from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Evaluation, Outcome, Score, Source, Timing
from mctskernel.core.executor import ExecutorOptions
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import ProposalRequest, Proposals
from mctskernel.edits.proposer import RuleProposer
from mctskernel.executors.recorded import RecordedExecutor
from mctskernel.profiling.reward import composite
from mctskernel.tree.node import Tree
from mctskernel.tree.strategies.strategy import Generators, Propose, Step, expand, ready_nodes


class NewestOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of the `width` kernels that were made last, the fastest gets the next edit."""

    width: Annotated[int, msgspec.Meta(ge=1)] = 1


class Newest:
    """Depth first: edits of a kernel that was made lately."""

    Options = NewestOptions

    def __init__(self, options: NewestOptions) -> None:
        self._options = options

    def step(self, tree: Tree, rng: Generators) -> Step | Propose | None:  # noqa: ARG002 - a Strategy
        """The next step, or None."""
        nodes = ready_nodes(tree)[-self._options.width :]
        return expand(max(nodes, key=lambda node: node.reward)) if nodes else None


def lean(evaluation: Evaluation, parent: Evaluation | None, root: Evaluation) -> Score:
    """The default reward, less a little for each register."""
    found = composite(evaluation, parent, root)
    if not evaluation.ok:
        return found
    registers = max((each.registers for each in evaluation.resources), default=0)
    terms = {**found.terms, "registers": -0.001 * registers}
    return replace(found, reward=sum(terms.values()), terms=terms)


class FewRules:
    """The three edits of the rules that promise most."""

    def __init__(self) -> None:
        self._rules = RuleProposer()

    def propose(self, request: ProposalRequest) -> Proposals:
        """Edits of the kernel that the request is about."""
        found = self._rules.propose(request)
        return replace(found, edits=found.edits[:3])


def open_lines(spec: DeviceSpec, workers: int, options: ExecutorOptions) -> RecordedExecutor:  # noqa: ARG001 - as devices are opened
    """A device on which a kernel takes a microsecond for each line of its source: no compiler is needed."""

    def evaluate(kernel: Kernel) -> Evaluation:
        seconds = 1e-6 * len(kernel.source.splitlines())
        return Evaluation(Outcome.OK, Source.MODELLED, timings=(Timing("", seconds, seconds, seconds),))

    return RecordedExecutor(evaluate, {"device": "lines"}, workers=workers)
