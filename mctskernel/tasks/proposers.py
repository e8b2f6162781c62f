"""Which proposer a run has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass

from mctskernel.core.proposer import ProposalRequest, Proposals, Proposer
from mctskernel.core.task import Task
from mctskernel.edits.llm import open_model
from mctskernel.edits.llm.experts import MixtureOptions
from mctskernel.edits.llm.model import LLMOptions, OpenModel
from mctskernel.edits.llm.proposer import LLMProposer, MixedProposer
from mctskernel.edits.parameters import ParameterProposer
from mctskernel.profiling.architecture import briefing_of
from mctskernel.profiling.spaces import read_space
from mctskernel.registry import find, in_use

PARAMETERS = "parameters"
"""The proposer of every search-space cache, and of nothing else."""

RULES = "rules"
LLM = "llm"
MIXED = "mixed"
OUTSIDE = "outside"
"""Not part of this program: it is asked, and tells (`mctskernel.external.session`)."""

REPLAY = "replay"
"""What another run's proposer said."""

ASK_A_MODEL = frozenset({LLM, MIXED})


@contextmanager
def open_proposer(
    task: Task,
    name: str,
    seed: int,
    fingerprint: Mapping[str, str],
    *,
    llm: LLMOptions | None = None,
    experts: MixtureOptions | None = None,
    dollars_left: float | None = None,
    recording: OpenModel | None = None,
) -> Iterator[Proposer]:
    """The proposer of a search-space cache's configurations, or the one of that name.

    A user's own is made by a call without arguments. With a `recording` that is asked, and not the model. The
    fingerprint is the device's. Raises ModelError for a model that can't be asked as it was configured.
    """
    if task.space:
        yield ParameterProposer(read_space(task.folder / task.space), seed)
    elif name not in ASK_A_MODEL:
        yield _Named(name, find("proposer", name)())
    else:
        assert llm is not None  # noqa: S101 - the configuration is checked
        device = briefing_of(fingerprint.get("gpu", ""), fingerprint.get("architecture", ""), task)
        with closing(recording or open_model(llm, dollars_left=dollars_left)) as model:
            asking = LLMProposer(model, device, experts or MixtureOptions())
            yield asking if name == LLM else MixedProposer(asking)


@dataclass(frozen=True)
class _Named:
    """A registered proposer: what a user's own one raises is reported with its name."""

    name: str
    proposer: Proposer

    def propose(self, request: ProposalRequest) -> Proposals:
        """The edits that it proposes."""
        with in_use("proposer", self.name):
            return self.proposer.propose(request)
