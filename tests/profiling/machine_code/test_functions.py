"""Dominators and loops of any control flow, against networkx and the definition."""

from __future__ import annotations

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.profiling.machine_code.functions import dominators

Flow = dict[int, tuple[int, ...]]


@st.composite
def control_flows(draw: st.DrawFn) -> Flow:
    """Up to a dozen blocks, all of them to be reached from block 0, each with a few behind it."""
    count = draw(st.integers(1, 12))
    following = {block: set(draw(st.sets(st.integers(0, count - 1), max_size=2))) for block in range(count)}
    for block in range(1, count):
        following[draw(st.integers(0, block - 1))].add(block)
    return {block: tuple(draw(st.permutations(sorted(each)))) for block, each in following.items()}


@given(control_flows())
def test_dominators_are_those_of_networkx(flow: Flow) -> None:
    graph = nx.DiGraph(flow)
    predecessors = {block: list(graph.predecessors(block)) for block in graph}
    above = {**nx.immediate_dominators(graph, 0), 0: 0}  # None in later versions
    found = dominators(flow, predecessors)
    for block in flow:
        assert found[block] == (found[above[block]] | 1 << block if block else 1)
