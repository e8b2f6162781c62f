"""A study of a language model on disk (`model_study`): its arms, its runs, and the table of what they reached."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import geometric_mean

import msgspec
import numpy as np

from mctskernel.answer import valid_speedup
from mctskernel.core.evaluation import Outcome
from mctskernel.core.resampling import estimate, sign_flip_p
from mctskernel.edits.llm.experts import Feedback
from mctskernel.experiments.results import page, table
from mctskernel.run import exchanges_of, open_run, read_answer, read_json, read_manifest
from mctskernel.tasks.starts import best_start, start_nodes
from mctskernel.tree.journal import read_tree
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.trajectory import run_seconds

MODEL = "model"  # the proposer's name on what a model wrote
STARTS = "starts"  # the run of a problem that all others are copied from
FIRST = "first"  # the run of the first reply, which the arms with a model are copied from


class Arm(msgspec.Struct, frozen=True):
    """How a model is asked; `is_fresh` asks again as in the first round, and then the best of all replies counts.

    With `feedback` None no model is asked. `rules` is the share of later evaluations that the rules have.
    """

    name: str
    feedback: Feedback | None
    is_fresh: bool = False
    rules: float = 0.0


ARMS = (
    Arm("rules", None, rules=1.0),
    Arm("time", Feedback.NONE),
    Arm("counters", Feedback.COUNTERS),
    Arm("diagnosis", Feedback.DIAGNOSIS),
    Arm("best-of-n", Feedback.DIAGNOSIS, is_fresh=True),
    Arm("mixed", Feedback.DIAGNOSIS, rules=0.5),
)
BASELINE = "diagnosis"  # the arm that the others are compared with


class Study(msgspec.Struct, frozen=True):
    """What is played. Every arm evaluates `kernels` kernels a round, beside the starts."""

    problems: tuple[str, ...]
    arms: tuple[str, ...]
    repeats: int
    rounds: int
    kernels: int
    device: str
    architecture: str

    @property
    def played_arms(self) -> list[Arm]:
        return [each for each in ARMS if each.name in self.arms]

    def rounds_of(self, cell: Cell) -> int:
        """The rounds that a run is to play."""
        return 1 if cell.arm == FIRST else self.rounds


class Cell(msgspec.Struct, frozen=True):
    """The run of an arm on a problem, or the one that the runs of its arms are copied from."""

    problem: str
    repeat: int
    arm: str
    path: Path

    @property
    def played(self) -> int:
        """Rounds that were evaluated."""
        file = self.path / "played"
        return int(file.read_text("ascii")) if file.is_file() else 0

    @property
    def settings(self) -> Arm:
        return next((each for each in ARMS if each.name == self.arm), Arm(self.arm, Feedback.DIAGNOSIS))

    @property
    def name(self) -> str:
        """The name of the next ask and of its reply."""
        return f"{self.problem}-{self.repeat}-{self.played + 1}-{self.arm}"


def cell_of(out: Path, problem: str, repeat: int, arm: str) -> Cell:
    return Cell(problem, repeat, arm, out / "runs" / problem / str(repeat) / arm)


def read_study(out: Path) -> Study:
    return msgspec.json.decode((out / "study.json").read_bytes(), type=Study)


def written_by_model(tree: Tree) -> list[Node]:
    """The kernels that a model wrote."""
    return [each for each in tree.nodes if (made := tree.made_by(each)) and made.proposer == MODEL]


def eager_seconds(out: Path, problem: str, gpu: str) -> float:
    return (read_json(out / "eager" / f"{problem}.json", dict[str, float]) or {}).get(gpu, 0.0)


class Row(msgspec.Struct, frozen=True):
    """What an arm reached on a problem; times are None where nothing was right or eager PyTorch wasn't timed."""

    arm: str
    problem: str
    repeat: int
    seconds: float
    over_start: float
    over_eager: float | None
    evaluations: int
    calls: int
    written: int
    right: int


def rows(out: Path, arms: Sequence[str] = ()) -> Iterator[Row]:
    """A row for each run of the study that has played all of its rounds, those of the first reply included."""
    study = read_study(out)
    names = [FIRST, *(each.name for each in study.played_arms)]
    for problem, repeat, arm in product(study.problems, range(study.repeats), names):
        cell = cell_of(out, problem, repeat, arm)
        if cell.path.exists() and cell.played >= study.rounds_of(cell) and (not arms or arm in arms):
            yield _row(out, cell)


def _row(out: Path, cell: Cell) -> Row:
    folder = open_run(cell.path)
    tree = read_tree(folder.journal)
    answer = read_answer(folder)
    fastest = max(tree.nodes, key=valid_speedup)
    best = tree.nodes[answer.node] if answer and answer.node is not None else fastest
    start = tree.nodes[best_start(tree)]
    seconds = run_seconds(best.evaluation) if best.evaluation else None
    eager = eager_seconds(out, cell.problem, read_manifest(folder).fingerprint.get("gpu", ""))
    written = written_by_model(tree)
    return Row(
        cell.arm,
        cell.problem,
        cell.repeat,
        seconds or math.nan,
        valid_speedup(best) / valid_speedup(start),
        eager / seconds if eager and seconds else None,
        tree.evaluations - len(start_nodes(tree)),
        sum(1 for _ in exchanges_of(folder)),
        len(written),
        sum(each.outcome is Outcome.OK for each in written),
    )


def document(found: Sequence[Row], rounds: int) -> str:
    """The page: means of the arms over what all of them played, comparisons with the baseline, times by problem."""
    arms = list(dict.fromkeys(row.arm for row in found))
    played = [{(row.problem, row.repeat) for row in found if row.arm == arm} for arm in arms]
    summary = []
    for arm in arms:
        own = [
            row
            for row in found
            if row.arm == arm and all((row.problem, row.repeat) in each for each in played)
        ]
        eager = [row.over_eager for row in own if row.over_eager]
        written = sum(row.written for row in own)
        summary.append(
            [
                arm,
                str(len(own)),
                f"{geometric_mean(eager):.2f}" if eager else "",
                f"{geometric_mean([row.over_start for row in own]):.2f}",
                f"{np.mean([row.evaluations for row in own]):.1f}",
                f"{np.mean([row.calls for row in own]):.1f}",
                f"{sum(row.right for row in own) / written:.0%}" if written else "",
            ]
        )
    columns = ["arm", "runs", "over eager", "over the best start", "kernels a run", "calls a run", "right"]
    problems = list(dict.fromkeys(row.problem for row in found))
    times = [
        [
            problem,
            *(
                ", ".join(
                    f"{1e3 * row.seconds:.4g}" for row in found if (row.problem, row.arm) == (problem, arm)
                )
                for arm in arms
            ),
        ]
        for problem in problems
    ]
    pairs = list(_effects(found))
    title = f"## Against {BASELINE}, in pairs of the same problem and repeat"
    columns_of_pairs = ["arm", "pairs", "ratio of times", "95 % interval", "p"]
    return page(
        "A language model in the loop",
        f"Geometric means after {rounds} rounds ({FIRST}: one reply), of the problems and repeats that all of these "
        "arms played; right is the share of the model's kernels that were.",
        table(columns, summary),
        *((title, table(columns_of_pairs, pairs)) if pairs else ()),
        "## Milliseconds of the fastest kernel",
        table(["problem", *arms], times),
    )


def _effects(found: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """The baseline's times over each arm's, by geometric means, bootstrap intervals and sign-flip tests of pairs."""
    theirs = {(row.problem, row.repeat): row.seconds for row in found if row.arm == BASELINE}
    for arm in dict.fromkeys(row.arm for row in found if row.arm not in {BASELINE, FIRST}):
        own = [row for row in found if row.arm == arm and (row.problem, row.repeat) in theirs]
        logs = np.log([theirs[row.problem, row.repeat] / row.seconds for row in own])
        if own:
            made = estimate([logs])
            interval = f"{math.exp(made.low):.3f} to {math.exp(made.high):.3f}"
            yield arm, str(len(own)), f"{math.exp(made.mean):.3f}", interval, f"{sign_flip_p(logs):.2g}"
