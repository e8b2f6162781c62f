"""A search on the landscape in a process of its own, which faults can meet: `searching.py RUN BUDGET KIND`.

Prints `finished NODE REWARD` after each evaluation that the loop has reported. Ends with a sentence and status 4 when
the run can't be written or read.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from mctskernel.blobs import BlobError, BlobStore
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Kernel
from mctskernel.core.surrogate import Prediction
from mctskernel.forecast import Forecaster
from mctskernel.predictions import Predictions
from mctskernel.run import Budget
from mctskernel.search import Search, Snapshot
from mctskernel.tree.evidence import EvidenceError
from mctskernel.tree.journal import Journal, JournalError, read_tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.search import TreeSearch
from tests import landscape


class Oracle:
    """Predicts what the landscape will say."""

    capacity = 1

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Kernel]] = []

    def submit(self, ticket: int, kernel: Kernel) -> None:
        self._waiting.append((ticket, kernel))

    def wait(self, timeout: float | None = None) -> list[tuple[int, Prediction | None]]:
        waiting, self._waiting = self._waiting, []
        return [(ticket, Prediction(landscape.seconds(kernel), {})) for ticket, kernel in waiting]

    def uncertainty(self, first: Prediction, second: Prediction) -> float:
        return 0.1

    def close(self) -> None:
        self._waiting.clear()


POLICIES = {
    "default": Policy(),
    "walk": Policy(strategy="mcts"),
    "guided": Policy(strategy="mcts", order="predicted", lookahead=4),
}
"""How the tree grows, by the word that says so; "guided" by a surrogate."""


def main(run: Path, evaluations: int, kind: str) -> None:
    """Begin or go on."""
    with Journal(run / "journal.jsonl") as journal:
        search = TreeSearch(read_tree(journal.path), journal, BlobStore(run / "blobs"))

        def report(snapshot: Snapshot) -> None:
            # One evaluation in flight at a time: the newest node is the one that finished.
            node = search.tree.nodes[snapshot.evaluations - 1]
            assert node.score is not None
            print("finished", node.id, node.score.reward, flush=True)

        def judge(kernel: Kernel) -> Evaluation:
            time.sleep(0.002)
            return landscape.judge(kernel)

        unfinished = (
            search.resume()
            if search.tree.nodes
            else (search.start(landscape.kernel(1, 1), POLICIES[kind], 0),)
        )
        Search(
            tree_search=search,
            task=landscape.task(),
            proposer=landscape.Neighbours(),
            executor=landscape.InProcess(judged_by=judge),
            budget=Budget(evaluations=evaluations),
            follow=report,
            forecaster=Forecaster(search, Predictions(Oracle()), wait=True) if kind == "guided" else None,
        ).run(unfinished)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    except (JournalError, EvidenceError, BlobError) as error:
        print(f"mctskernel: {error}", file=sys.stderr)
        sys.exit(4)
