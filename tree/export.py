"""Export: a tree as JSON. `docs/export.md` describes the schema."""

from __future__ import annotations

import msgspec

from mctskernel.core.evaluation import Outcome, Source
from mctskernel.tree.events import EditRecord
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.trajectory import run_seconds

SCHEMA = "mctskernel.tree"
SCHEMA_VERSION = 1


class ExportedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node. What comes from the evaluation is None while it is pending.

    `kernel` is its identity; `source_blob` and `log_blob` name texts in the run's `blobs` (empty: no log); `numbers`
    says where figures come from; `seconds` is the time of one run, the geometric mean over shapes; `gpu` is the UUID of
    the GPU that timed it; then come the least clock of its multiprocessors in MHz, its highest temperature in degrees
    Celsius, and how many runs were dropped.
    """

    id: int
    parent: int | None
    edit: EditRecord | None
    depth: int
    kernel: str
    source_blob: str
    log_blob: str
    outcome: Outcome | None
    message: str
    numbers: Source | None
    seconds: float | None
    speedup: float | None
    reward: float | None
    terms: dict[str, float]
    visits: int
    value: float | None
    bottleneck: str
    flags: tuple[str, ...]
    quarantine: str
    evaluation_seconds: float
    gpu: str = ""
    sm_mhz: int | None = None
    celsius: int | None = None
    dropped_runs: int | None = None


class ExportedTransposition(msgspec.Struct, frozen=True):
    """An edit of the node `parent` that makes the kernel of the node `node`, known before it."""

    parent: int
    node: int
    edit: EditRecord


class ExportedTree(msgspec.Struct, frozen=True, kw_only=True):
    """A tree; nodes in order of creation, so that a parent comes before its children."""

    schema: str = SCHEMA
    schema_version: int = SCHEMA_VERSION
    seed: int
    policy: Policy
    nodes: tuple[ExportedNode, ...]
    transpositions: tuple[ExportedTransposition, ...]


def export(tree: Tree) -> ExportedTree:
    return ExportedTree(
        seed=tree.seed,
        policy=tree.policy,
        nodes=tuple(_export_node(tree, node) for node in tree.nodes),
        transpositions=tuple(
            ExportedTransposition(parent, node, tree.nodes[parent].edits[edit])
            for (parent, node), edit in tree.transpositions.items()
        ),
    )


def to_json(tree: Tree) -> str:
    """JSON text, indented, that `from_json` reads."""
    return msgspec.json.format(msgspec.json.encode(export(tree))).decode()


def from_json(text: str | bytes) -> ExportedTree:
    """Read the tree of a JSON text; raises `msgspec.DecodeError` for anything else."""
    return msgspec.json.decode(text, type=ExportedTree)


def _export_node(tree: Tree, node: Node) -> ExportedNode:
    evaluation, score = node.evaluation, node.score
    causes = evaluation.diagnosis.causes if evaluation and evaluation.diagnosis else ()
    conditions = [each.conditions for each in evaluation.timings if each.conditions] if evaluation else []
    states = [state for each in conditions for state in (each.before, each.after)]
    return ExportedNode(
        id=node.id,
        parent=node.parent,
        edit=tree.made_by(node),
        depth=node.depth,
        kernel=node.kernel.identity,
        source_blob=node.kernel.source,
        log_blob=node.log,
        outcome=node.outcome,
        message=evaluation.message if evaluation else "",
        numbers=evaluation.source if evaluation else None,
        seconds=run_seconds(evaluation) if evaluation else None,
        speedup=score.speedup if score else None,
        reward=score.reward if score else None,
        terms=score.terms if score else {},
        visits=node.visits,
        value=node.reward_max if node.visits else None,
        bottleneck=str(causes[0].bottleneck) if causes else "",
        flags=evaluation.flags if evaluation else (),
        quarantine=evaluation.quarantine if evaluation else "",
        evaluation_seconds=float(evaluation.cost_seconds) if evaluation else 0.0,
        gpu=evaluation.gpu if evaluation else "",
        sm_mhz=min((state.sm_mhz for state in states if state.sm_mhz is not None), default=None),
        celsius=max((state.celsius for state in states if state.celsius is not None), default=None),
        dropped_runs=sum(each.dropped for each in conditions) if conditions else None,
    )
