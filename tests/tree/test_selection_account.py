"""Why nodes were selected, told from the journal alone."""

from __future__ import annotations

import pytest

from mctskernel.experiments.subjects.grown_trees import Growth
from mctskernel.tree.journal import MemoryJournal
from mctskernel.tree.policy import Policy
from mctskernel.tree.selection_account import Account, can_account, selection_accounts


def _accounts(policy: Policy, evaluations: int = 60) -> list[Account]:
    journal = MemoryJournal()
    growth = Growth(journal, policy, edits_per_reply=5)
    while growth.tree.evaluations < evaluations:
        assert growth.step()
    return list(selection_accounts(journal.events, range(evaluations)))


@pytest.mark.parametrize(
    "policy", [Policy(strategy="mcts"), Policy(strategy="mcts", prior="given"), Policy()]
)
def test_the_last_choice_of_a_serial_search_is_the_first_of_its_rivals(policy: Policy) -> None:
    accounts = _accounts(policy, 25)
    assert [account.node for account in accounts] == list(range(1, 25))
    assert all(account.choices[-1].rivals[0].chosen for account in accounts)


@pytest.mark.parametrize("first_play", ["none", "estimate"])
def test_a_walk_goes_to_the_greatest_sum_of_value_and_exploration(first_play: str) -> None:
    policy = Policy(strategy="mcts", first_play=first_play)
    choices = [choice for account in _accounts(policy) for choice in account.choices[:-1]]
    assert choices
    for choice in choices:
        assert choice.rivals[0].chosen
        for rival in choice.rivals:
            visits, value, prior, exploration, total = rival.terms
            assert visits >= 1
            assert 0 <= prior <= 1
            assert total == pytest.approx(value + exploration)


def test_strategies_without_terms_have_no_accounts() -> None:
    assert not can_account("random")
    assert _accounts(Policy(strategy="random"), 20) == []


def test_some_nodes_alone() -> None:
    journal = MemoryJournal()
    growth = Growth(journal, Policy(strategy="mcts"))
    while growth.tree.evaluations < 30:
        growth.step()
    everything = {each.node: each for each in selection_accounts(journal.events, range(30))}
    assert list(selection_accounts(journal.events, {7, 21})) == [everything[7], everything[21]]
