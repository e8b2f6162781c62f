"""Which proposer a run has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

from mctskernel.async_proposer import NoProposer
from mctskernel.core.proposer import Proposer
from mctskernel.core.task import Task
from mctskernel.edits.llm import open_model
from mctskernel.edits.llm.experts import MixtureOptions
from mctskernel.edits.llm.model import Model, OpenModel
from mctskernel.edits.llm.proposer import MixedProposer, mixture
from mctskernel.edits.parameters import ParameterProposer
from mctskernel.edits.proposer import RuleProposer
from mctskernel.profiling.architecture import briefing_of
from mctskernel.profiling.spaces import read_space
from mctskernel.run import Configuration

PARAMETERS = "parameters"
"""The proposer of every search-space cache, and of nothing else."""

RULES = "rules"
LLM = "llm"
MIXED = "mixed"
OUTSIDE = "outside"
"""Not part of this program: it is asked, and tells (`mctskernel.session`)."""

REPLAY = "replay"
"""What another run's proposer said."""

PROPOSERS = (RULES, LLM, MIXED, OUTSIDE, REPLAY)
"""Those that a user may choose."""

ASK_A_MODEL = frozenset({LLM, MIXED})


@contextmanager
def open_proposer(
    task: Task,
    configuration: Configuration,
    fingerprint: Mapping[str, str],
    dollars_left: float | None = None,
    recording: OpenModel | None = None,
) -> Iterator[Proposer]:
    """The proposer of a search-space cache's configurations, or the one that was chosen.

    With a `recording` that is asked, and not the model. The fingerprint is the device's. Raises ModelError for a model
    that can't be asked as it was configured.
    """
    if task.space:
        yield ParameterProposer(read_space(task.folder / task.space), configuration.seed)
    elif configuration.proposer == OUTSIDE:
        yield NoProposer()
    elif configuration.llm is None:
        yield RuleProposer()
    else:
        device = briefing_of(fingerprint.get("gpu", ""), fingerprint.get("architecture", ""), task)
        with closing(recording or open_model(configuration.llm, dollars_left=dollars_left)) as model:
            yield _who_asks(configuration, model, device)


def _who_asks(configuration: Configuration, model: Model, device: tuple[str, ...]) -> Proposer:
    experts = mixture(model, configuration.mixture or MixtureOptions(), device)
    return experts if configuration.proposer == LLM else MixedProposer(experts)
