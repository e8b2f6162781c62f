"""Large trees: grown, the engine's CPU time printed, and made again from their events."""

import time

import numpy as np
import pytest

from mctskernel.core.edit import Category, Edit, Factor, Settings
from mctskernel.core.evaluation import Evaluation, Outcome, Score, Source
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Proposals
from mctskernel.tree.strategies.strategy import Propose, Step
from tests.tree.grown import Grown

FACTORS, LEVELS = 12, 6

Levels = tuple[int, ...]


def kernel(levels: Levels) -> Kernel:
    return Kernel(f"kernel {levels}")


def edits(levels: Levels) -> tuple[Edit, ...]:
    """All that change one factor."""
    return tuple(
        Edit(Category.TUNING, f"x{place} = {level}", Settings(), factors=(Factor(f"x{place}", level),))
        for place in range(FACTORS)
        for level in range(LEVELS)
        if level != levels[place]
    )


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "sizes"), [("puct", (1_000, 3_000)), ("mcts", (100, 300))])
def test_a_large_tree_grows_and_is_replayed(strategy: str, sizes: tuple[int, ...]) -> None:
    effects = np.random.default_rng(0).normal(0, 0.2, (FACTORS, LEVELS))
    grown = Grown(reward=None, strategy=strategy)
    nodes = [(0,) * FACTORS]

    def evaluate(node: int) -> None:
        levels = nodes[node]
        value = float(effects[range(FACTORS), levels].sum() - 0.01 * sum(levels) ** 1.5 / FACTORS)
        evaluation = Evaluation(Outcome.OK, Source.MODELLED)
        grown.search.evaluate(node, evaluation, Score(value, float(np.exp(value))))

    evaluate(0)
    began, before = time.process_time(), 1
    for target in sizes:
        while len(grown.tree.nodes) < target:
            action = grown.search.next_action()
            if isinstance(action, Propose):
                grown.search.propose(action.node, Proposals(edits(nodes[action.node])))
                continue
            assert isinstance(action, Step)
            (factor,) = grown.search.edit(action.node, action.edit).factors
            changed = list(nodes[action.node])
            changed[int(factor.name[1:])] = int(factor.level)
            made = grown.search.submit(action, kernel(tuple(changed)))
            if made is not None:
                nodes.append(tuple(changed))
                evaluate(made)
        now = time.process_time()
        print(f"{target} nodes: {1e3 * (now - began) / (target - before):.2f} ms of CPU time an iteration")
        began, before = now, target
    assert grown.node(0).visits == sizes[-1]
    assert grown.replayed() == grown.tree
