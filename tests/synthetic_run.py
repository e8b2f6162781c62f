"""A run on disk whose evaluations were made up: nothing is compiled, and what every edit did is known."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from mctskernel.config import SearchConfig
from mctskernel.core.budget import Budget
from mctskernel.core.edit import Category, Edit, WholeSource
from mctskernel.core.evaluation import Bottleneck, Cause, Diagnosis, Evaluation, Outcome, Source, Timing
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Exchange, Proposals, Purpose
from mctskernel.core.task_file import load_task
from mctskernel.profiling.reward import composite
from mctskernel.run import RunFolder, prepare_run, write_manifest
from mctskernel.tree.journal import Journal, read_tree
from mctskernel.tree.search import TreeSearch
from mctskernel.tree.strategies.strategy import Step

CONFIGURATION = SearchConfig(
    task="double", device="model", proposer="rules", seed=3, workers=1, budget=Budget(evaluations=10)
)

FINGERPRINT = {"device": "model", "architecture": "sm_90"}

BOUND = Diagnosis((Cause(Bottleneck.DRAM_BANDWIDTH, 0.9, "Limited by DRAM."),))


def timed(microseconds: float, source: Source = Source.MODELLED, spread: float = 0.0) -> Evaluation:
    """A valid evaluation; its interval reaches `spread` of the time to both sides."""
    seconds = microseconds * 1e-6
    low, high = seconds * (1 - spread), seconds * (1 + spread)
    timings = (Timing("n=4096", seconds, low, high),)
    return Evaluation(Outcome.OK, source, timings=timings, diagnosis=BOUND)


def failed(outcome: Outcome = Outcome.BUILD_ERROR) -> Evaluation:
    """An evaluation without a time."""
    return Evaluation(outcome, Source.MODELLED, "It doesn't build.")


def quarantined(microseconds: float) -> Evaluation:
    """An evaluation whose time isn't believed."""
    return replace(timed(microseconds), quarantine="Faster than the roofline allows.")


class SyntheticRun:
    """Tells a search in a folder of its own. The starting kernel takes 100 microseconds."""

    def __init__(
        self,
        path: Path,
        task: Path,
        configuration: SearchConfig = CONFIGURATION,
        root: Evaluation | None = None,
    ) -> None:
        loaded = load_task(task, configuration.language)
        self.folder: RunFolder = prepare_run(path, loaded)
        fingerprint = {**FINGERPRINT, "device": configuration.device}
        write_manifest(self.folder, configuration, fingerprint)
        self.root = root or timed(100.0)
        with self._search() as search:
            search.start(loaded.starting_kernel, configuration.policy, configuration.seed)
            search.evaluate(0, self.root, composite(self.root, None, self.root))

    def edits(
        self, node: int, *stories: tuple[str, Evaluation], exchange: Exchange | None = None
    ) -> list[int]:
        """Proposes edits of a node in one reply and tells how each ended. Returns the nodes that they made."""
        with self._search() as search:
            source = search.kernel(node).source
            known = len(search.tree.nodes)
            edits = tuple(
                Edit(
                    Category.TUNING,
                    title,
                    WholeSource(source.replace("#define", f"#define MADE_{known + number} 1\n#define", 1)),
                    rationale="Because.",
                    proposer="rules",
                    exchange=None if exchange is None else 0,
                )
                for number, (title, _) in enumerate(stories)
            )
            exchanges = () if exchange is None else (exchange,)
            search.propose(node, Proposals(edits, exchanges=exchanges))
            made = []
            for number, (edit, (_, evaluation)) in enumerate(zip(edits, stories, strict=True)):
                assert isinstance(edit.change, WholeSource)
                child = search.submit(Step(node, number), Kernel(edit.change.source))
                assert child is not None
                parent = search.tree.nodes[node].evaluation
                search.evaluate(child, evaluation, composite(evaluation, parent, self.root))
                made.append(child)
            return made

    @contextmanager
    def _search(self) -> Iterator[TreeSearch]:
        with Journal(self.folder.journal, durable=False) as journal:
            yield TreeSearch(read_tree(self.folder.journal), journal, self.folder.blobs)


def with_configuration(**changes: object) -> SearchConfig:
    """The configuration with changes."""
    return msgspec.structs.replace(CONFIGURATION, **changes)


EXCHANGE = Exchange(
    Purpose.PROPOSE, "a-model", prompt='[{"role": "user", "content": "Faster!"}]', reply="BLOCK is too small."
)
