"""From one configuration of a search-space cache to the others."""

from hypothesis import given
from hypothesis import strategies as st

from mctskernel.core.edit import Factor, Settings
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.proposer import Attempt, ProposalRequest, Proposals
from mctskernel.core.space import (
    Configuration,
    Entry,
    Parameter,
    SearchSpace,
    configuration_kernel,
    values_of,
)
from mctskernel.core.task import Task
from mctskernel.edits.parameters import ParameterProposer
from mctskernel.edits.patch import apply
from tests import spaces

LINEAGE = (Attempt("before", "tuning", Outcome.OK, 1.0),)


def ask(
    proposer: ParameterProposer,
    values: Configuration,
    offered: int = 0,
    *,
    lineage: tuple[Attempt, ...] = (),
    outcome: Outcome = Outcome.OK,
) -> Proposals:
    kernel = configuration_kernel(proposer.space, values)
    task = Task(name="t", starting_kernel=kernel)
    evaluation = Evaluation(outcome, Source.RECORDED)
    return proposer.propose(ProposalRequest(task, kernel, evaluation, lineage, offered=offered))


def targets(space: SearchSpace, values: Configuration, reply: Proposals) -> list[Configuration]:
    """Where the edits of a configuration lead."""
    kernel = configuration_kernel(space, values)
    return [values_of(space, apply(kernel, edit)) for edit in reply.edits]


def test_an_edit_says_what_it_decides_and_changes_that_line_alone() -> None:
    space = spaces.bowl()
    edits = {edit.title: edit for edit in ask(ParameterProposer(space), spaces.BEST).edits}
    step = edits["block 128 -> 32"]
    assert step.factors == (Factor("block", 32),)
    assert step.change == Settings()
    before = configuration_kernel(space, spaces.BEST)
    assert apply(before, step).source == before.source.replace("block = 128", "block = 32")
    assert edits["padded False -> True"].factors == (Factor("padded", 1),)
    assert edits["layout row -> column"].factors == (Factor("layout", "column"),)
    jump = next(edit for title, edit in edits.items() if ", " in title)
    assert [factor.name for factor in jump.factors] == [each.split(" ")[0] for each in jump.title.split(", ")]


def test_only_the_root_promises_more_and_only_while_there_is() -> None:
    proposer = ParameterProposer(spaces.bowl(), jumps=16, first_jumps=16)
    assert ask(proposer, spaces.BEST).more
    assert not ask(proposer, spaces.BEST, lineage=LINEAGE).more
    whole = len(proposer.space.entries) - 1
    assert not ask(proposer, spaces.BEST, offered=whole - 16).more
    assert ask(proposer, spaces.BEST, offered=whole) == Proposals(())
    assert ask(ParameterProposer(spaces.single()), (64,)) == Proposals(())


@st.composite
def holed_spaces(draw: st.DrawFn) -> SearchSpace:
    """Spaces whose names and values are easily mistaken for each other, with configurations left out."""
    values = st.lists(
        st.sampled_from([1, 11, 2, 16, 1.5, "1", "x = 1", "\n", True]), min_size=1, max_size=4, unique=True
    )
    names = draw(
        st.lists(st.sampled_from(["x", "xx", "x = 1", "\nx", "y"]), min_size=1, max_size=3, unique=True)
    )
    parameters = tuple(Parameter(name, tuple(draw(values))) for name in names)
    every: list[Configuration] = [()]
    for parameter in parameters:
        every = [(*before, value) for before in every for value in parameter.values]
    kept = draw(st.lists(st.sampled_from(every), min_size=1, unique=True))
    return SearchSpace("holed", parameters, tuple(Entry(each, Outcome.OK, 1.0) for each in kept))


@given(space=holed_spaces(), seed=st.integers(0, 5), jumps=st.integers(1, 4), data=st.data())
def test_batches_lead_to_every_other_configuration_once(
    space: SearchSpace, seed: int, jumps: int, data: st.DataObject
) -> None:
    here = data.draw(st.sampled_from(space.entries)).values
    proposer = ParameterProposer(space, seed, jumps, first_jumps=jumps)
    found: list[Configuration] = []
    for _ in range(len(space.entries) + 1):
        reply = ask(proposer, here, offered=len(found))
        found += targets(space, here, reply)
        if not reply.more:
            break
    assert len(found) == len(set(found))
    assert {*found, here} == set(space.by_values)
