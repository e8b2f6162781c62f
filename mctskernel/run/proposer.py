"""Which proposer a run has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass

from mctskernel.config import ASK_A_MODEL, LLM, SearchConfig
from mctskernel.core.proposer import ProposalRequest, Proposals, Proposer
from mctskernel.core.task import Task
from mctskernel.edits.llm import open_model
from mctskernel.edits.llm.experts import MixtureOptions
from mctskernel.edits.llm.proposer import LLMProposer, MixedProposer
from mctskernel.edits.parameters import ParameterProposer
from mctskernel.edits.proposer import RuleProposer
from mctskernel.executors.rules import RuleProcess
from mctskernel.profiling.architecture import briefing_of
from mctskernel.profiling.spaces import read_space
from mctskernel.registry import find, in_use


@contextmanager
def open_proposer(
    task: Task,
    configuration: SearchConfig,
    fingerprint: Mapping[str, str],
    dollars_left: float | None,
) -> Iterator[Proposer]:
    """The proposer of a search-space cache's configurations, or the one that the configuration names.

    A user's own is made by a call without arguments. The fingerprint is the device's. Raises ModelError for a model
    that can't be asked as it was configured.
    """
    name, llm = configuration.proposer, configuration.llm
    if task.space:
        yield ParameterProposer(read_space(task.folder / task.space), configuration.seed)
    elif name not in ASK_A_MODEL:
        proposer = find("proposer", name)()
        if fingerprint.get("device") == "gpu" and type(proposer) is RuleProposer:
            with closing(RuleProcess(task, configuration.language)) as process:
                yield process
        else:
            yield _Named(name, proposer)
    else:
        assert llm is not None  # noqa: S101 - the configuration is checked
        device = briefing_of(fingerprint.get("gpu", ""), fingerprint.get("architecture", ""), task)
        with closing(open_model(llm, dollars_left=dollars_left)) as model:
            asking = LLMProposer(model, device, configuration.mixture or MixtureOptions())
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
