"""Which proposer a run has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

from mctskernel.core.proposer import Proposer
from mctskernel.core.task import Task
from mctskernel.correspondence import Absent
from mctskernel.edits.llm.judge import JudgedProposer
from mctskernel.edits.llm.mixed import MixedProposer
from mctskernel.edits.llm.mixture import MixtureOptions, mixture
from mctskernel.edits.llm.model import Model
from mctskernel.edits.llm.opening import open_model
from mctskernel.edits.parameters import ParameterProposer
from mctskernel.edits.proposer import RuleProposer
from mctskernel.profiling.briefing import briefing_of
from mctskernel.profiling.spaces import read_space
from mctskernel.run import Configuration

PARAMETERS = "parameters"
"""The proposer of every recorded space; no other task has one."""

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
    recording: Model | None = None,
) -> Iterator[Proposer]:
    """Of a recorded space, what knows its configurations; otherwise what was chosen.

    With a `recording` that is asked, and not the model. The fingerprint is the device's. Raises ModelError for a model
    that can't be asked as it was configured.
    """
    if task.space:
        yield ParameterProposer(read_space(task.folder / task.space), configuration.seed)
    elif configuration.proposer == OUTSIDE:
        yield Absent()
    elif configuration.llm is None:
        yield RuleProposer()
    else:
        device = briefing_of(fingerprint.get("gpu", ""), fingerprint.get("architecture", ""), task)
        opening = (
            nullcontext(recording) if recording else open_model(configuration.llm, dollars_left=dollars_left)
        )
        with opening as model:
            yield _judged(_who_asks(configuration, model, device), configuration, model)


def _who_asks(configuration: Configuration, model: Model, device: tuple[str, ...]) -> Proposer:
    experts = mixture(model, configuration.mixture or MixtureOptions(), device)
    if configuration.proposer == RULES:
        return RuleProposer()
    return experts if configuration.proposer == LLM else MixedProposer(experts)


def _judged(proposer: Proposer, configuration: Configuration, model: Model) -> Proposer:
    if configuration.judge is None:
        return proposer
    options = configuration.mixture or MixtureOptions()
    return JudgedProposer(proposer, model, configuration.judge, options.feedback)
