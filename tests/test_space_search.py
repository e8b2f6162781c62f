"""The real loop on search-space caches: with budget enough, every configuration is evaluated, and once."""

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.core.budget import Budget
from mctskernel.core.evaluation import Outcome
from mctskernel.core.space import Entry, Parameter, SearchSpace, configuration_kernel, values_of
from mctskernel.core.task import Task
from mctskernel.edits.parameters import ParameterProposer
from mctskernel.executors.recorded import executor_of
from mctskernel.loop import Search, StopReason
from mctskernel.tree.blobs import MemoryBlobs
from mctskernel.tree.journal import MemoryJournal
from mctskernel.tree.node import Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.search import TreeSearch

STRATEGIES = ("mcts", "random", "greedy")


@st.composite
def patchy_spaces(draw: st.DrawFn) -> SearchSpace:
    """A grid with holes, of which much failed; the first configuration did not."""
    width, height = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    kept = draw(st.sets(st.sampled_from(list(product(range(width), range(height)))), min_size=1))
    entries = []
    for place, values in enumerate(sorted(kept)):
        seconds = None if place and draw(st.booleans()) else float(draw(st.integers(1, 5)))
        outcome = Outcome.BUILD_ERROR if seconds is None else Outcome.OK
        cost = {"compile": float(draw(st.integers(0, 3)))}
        entries.append(Entry(values, outcome, seconds, stage_seconds=cost))
    parameters = Parameter("x", tuple(range(width))), Parameter("y", tuple(range(height)))
    return SearchSpace("patchy", parameters, tuple(entries))


def evaluate_all(strategy: str, space: SearchSpace, seed: int, jumps: int, workers: int) -> float:
    """Search with more budget than there is space. Returns the recorded seconds that it took."""
    kernel = configuration_kernel(space, space.entries[0].values)
    tree_search = TreeSearch(Tree(), MemoryJournal(), MemoryBlobs(), clock=lambda: 0.0)
    root = tree_search.start(kernel, Policy(strategy=strategy), seed)
    executor = executor_of(space, workers)
    search = Search(
        tree_search=tree_search,
        task=Task(name=space.name, starting_kernel=kernel),
        proposer=ParameterProposer(space, seed, jumps),
        executor=executor,
        budget=Budget(evaluations=10**6),
        clock=executor.clock,
    )
    assert search.run((root,)) is StopReason.EXHAUSTED
    found = Counter(values_of(space, tree_search.kernel(node.id)) for node in tree_search.tree.nodes)
    assert found == Counter(entry.values for entry in space.entries)
    return search.elapsed_seconds


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(space=patchy_spaces(), seed=st.integers(0, 3), jumps=st.integers(1, 3), workers=st.integers(1, 4))
def test_the_whole_space_is_evaluated_once(
    strategy: str, space: SearchSpace, seed: int, jumps: int, workers: int
) -> None:
    costs = sum(entry.cost_seconds for entry in space.entries)
    seconds = evaluate_all(strategy, space, seed, jumps, workers)
    assert costs / workers - 1e-3 <= seconds <= costs + 1e-3
