from __future__ import annotations

from dataclasses import replace

from mctskernel.core.edit import Category, Edit, WholeSource
from mctskernel.core.evaluation import Evaluation, Outcome, Score, Source
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Proposals
from mctskernel.report.predictions import accuracy_sentences, prediction_sentence
from mctskernel.tree.blobs import MemoryBlobs
from mctskernel.tree.events import PredictionRecord
from mctskernel.tree.journal import MemoryJournal
from mctskernel.tree.node import Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.search import Propose, TreeSearch, Try
from mctskernel.tree.trajectory import trajectory

PREDICTED_AND_GAINED = ((1.5, 1.52), (1.2, 0.6), (0.98, 1.0), (2.0, 1.9))


def measured(source: Source = Source.MEASURED) -> Tree:
    """A root with four edits whose gains were predicted with a standard deviation of about 5 %, and one unpredicted."""
    search = TreeSearch(Tree(), MemoryJournal(), MemoryBlobs())
    root = search.start(Kernel("root"), Policy(strategy="mcts", widening="unlimited", prior="given"), seed=0)
    evaluation = Evaluation(Outcome.OK, source)
    search.evaluated(root, evaluation, Score(0.0, 1.0))
    edits = tuple(Edit(Category.TUNING, f"k{i}", WholeSource(f"k{i}")) for i in range(5))
    request = search.ask()
    assert isinstance(request, Propose)
    search.proposed(request, Proposals(edits))
    for number, (gain, _) in enumerate(PREDICTED_AND_GAINED):
        search.predicted(0, number, PredictionRecord(1 / gain, {}, gain, 0.05))
    for gained in (*(gain for _, gain in PREDICTED_AND_GAINED), 1.0):
        attempt = search.ask()
        assert isinstance(attempt, Try)
        node = search.submit(attempt, Kernel(attempt.edit.title))
        assert node is not None
        search.evaluated(node, evaluation, Score(0.0, gained))
    return search.tree


def sentence(tree: Tree, node: int) -> str:
    return prediction_sentence(trajectory(tree, node).steps[-1])


def test_a_prediction_stands_beside_what_came_of_it() -> None:
    tree = measured()
    assert sentence(tree, 1) == "Predicted: 1.50x (1.43x to 1.58x)."
    assert sentence(tree, 2).startswith("Predicted: 1.20x (1.14x to 1.26x). It came to 0.60x, 13.9 standard")
    assert "a tie with its parent" in sentence(tree, 3)
    assert sentence(tree, 5) == sentence(tree, 0) == ""


def test_the_search_says_how_good_its_predictions_were_and_which_was_the_worst() -> None:
    accuracy, furthest = accuracy_sentences(measured())
    assert accuracy.startswith("Predictions of 4 edits: rank correlation 0.80")
    # 2.0 came to 1.9, which is 1.03 standard deviations off.
    assert accuracy.endswith("2 within one standard deviation.")
    assert furthest.startswith("Furthest off: node 2.")


def test_a_model_does_not_judge_itself() -> None:
    assert accuracy_sentences(measured(Source.MODELLED)) == ()


def test_without_predictions_there_is_nothing_to_say() -> None:
    tree = measured()
    for node in tree.nodes:
        node.prediction = None
    assert accuracy_sentences(tree) == ()
    step = trajectory(tree, 1).steps[-1]
    assert prediction_sentence(replace(step, prediction=PredictionRecord(1.0))) == ""
