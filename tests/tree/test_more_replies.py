"""A node is asked again while its proposer promises more, and given up when nothing comes of its replies."""

from __future__ import annotations

from mctskernel.core.edit import Category, Edit, WholeSource
from mctskernel.core.proposer import Proposals
from mctskernel.edits.patch import apply
from mctskernel.tree.search import Exhausted, Try
from mctskernel.tree.strategies.strategy import Propose
from tests.tree.conftest import Story


def reply(story: Story, *sources: str, more: bool) -> None:
    """Answers the root's request for edits, and tries all of them."""
    request = story.search.ask()
    assert isinstance(request, Propose)
    assert request.node == 0
    edits = tuple(Edit(Category.TUNING, source, WholeSource(source)) for source in sources)
    story.search.proposed(request, Proposals(edits, more=more))
    for _ in sources:
        attempt = story.search.ask()
        assert isinstance(attempt, Try)
        node = story.search.submit(attempt, apply(story.search.kernel(attempt.node), attempt.edit))
        if node is not None:
            # What isn't worth an edit of its own, so that the root alone is asked.
            story.evaluate(node, 0.1, quarantine="planted")


def known() -> Story:
    """A search whose root has a child, and is asked for more."""
    story = Story(widening="unlimited")
    story.evaluate(0, 1.0)
    reply(story, "child", more=False)
    return story


def test_a_node_of_which_all_edits_are_known_is_given_up() -> None:
    story = known()
    reply(story, "child ", "child\n", more=False)
    assert isinstance(story.search.ask(), Exhausted)


def test_a_promise_of_more_keeps_it() -> None:
    story = known()
    for number in range(3):
        reply(story, f"child{' ' * (number + 1)}", more=True)
    reply(story, "another", more=True)
    reply(story, more=False)
    assert isinstance(story.search.ask(), Exhausted)
    assert len(story.tree.nodes) == 3


def test_a_promise_without_an_edit_is_none() -> None:
    story = known()
    reply(story, more=True)
    assert isinstance(story.search.ask(), Exhausted)
