"""What one arm made of one task of the plain suite with one seed, and all of that in a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from mctskernel.core.evaluation import Evaluation
from mctskernel.experiments.records.json_lines import read_lines
from mctskernel.generation import Generation
from mctskernel.profiling import counters as names
from mctskernel.report.view import View

Key = tuple[str, str, int]
"""Task, arm and seed."""

COUNTERS = (
    names.INSTRUCTIONS,
    names.DRAM_BYTES,
    names.LOAD_SECTORS,
    names.L2_SECTORS,
    names.SHARED_WAVEFRONTS,
)
"""What is kept of the first and of the last kernel: sums over a run of all launches, of which less is better."""


class Trial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A trial; times in seconds.

    `naive_seconds` is the time of the task's own kernel, None where an arm begins at the description. `best_seconds`
    is that of the answer, which passed the last gate; None where nothing did, and `problem` says why. `evaluations`,
    generation included, of which `failures` were no success, took `seconds`. `before` and `after` are what binds the
    first kernel and the answer. Calls, tokens and dollars are those of a language model.
    """

    task: str
    arm: str
    seed: int
    problem: str = ""
    naive_seconds: float | None = None
    best_seconds: float | None = None
    evaluations: int = 0
    failures: int = 0
    seconds: float = 0.0
    before: str = ""
    after: str = ""
    edits: tuple[str, ...] = ()
    counters_before: Mapping[str, float] = {}
    counters_after: Mapping[str, float] = {}
    calls: int = 0
    tokens: int = 0
    dollars: float = 0.0

    @property
    def key(self) -> Key:
        """What it is a trial of."""
        return self.task, self.arm, self.seed


class PlainSuite(msgspec.Struct, frozen=True, kw_only=True):
    """A table's data: how it was asked for, the device's fingerprint, and the trials.

    `arms` are those that were asked for, in their order; `budget` is evaluations a trial.
    """

    device: str
    arms: tuple[str, ...]
    budget: int
    seeds: int
    fingerprint: dict[str, str]
    trials: tuple[Trial, ...]


def trial_of_run(view: View, key: Key) -> Trial:
    """What a finished search came to. Raises JournalError."""
    root, best = view.evaluation(0), view.evaluation(view.best.id)
    outcomes = [node.evaluation for node in view.tree.nodes if node.evaluation is not None]
    answered = view.answer is not None and view.answer.node is not None
    steps, asked = view.steps, view.conversation.exchanges
    return Trial(
        task=key[0],
        arm=key[1],
        seed=key[2],
        problem="" if answered else "No kernel passed the last gate.",
        naive_seconds=steps[0].seconds,
        best_seconds=steps[-1].seconds if answered else None,
        evaluations=view.evaluations,
        failures=sum(not each.ok for each in outcomes),
        seconds=sum(each.cost_seconds for each in outcomes) + view.manifest.configuration.spent.seconds,
        before=binding(root),
        after=binding(best) if answered else "",
        edits=tuple(step.edit.title for step in steps if step.edit) if answered else (),
        counters_before=kept(root),
        counters_after=kept(best) if answered else {},
        calls=len(asked),
        tokens=sum(each.input_tokens + each.output_tokens for each in asked),
        dollars=view.conversation.dollars,
    )


def trial_of_generation(made: Generation, key: Key) -> Trial:
    """What generation alone came to."""
    first = made.kernels[0]
    return Trial(
        task=key[0],
        arm=key[1],
        seed=key[2],
        best_seconds=first.seconds,
        evaluations=made.evaluations,
        failures=made.evaluations - len(made.kernels),
        seconds=sum(each.evaluation.cost_seconds for each in made.kernels),
        after=binding(first.evaluation),
        edits=(f"the kernel of the expert {first.expert}",),
        counters_after=kept(first.evaluation),
        calls=made.calls,
        tokens=made.tokens,
        dollars=made.dollars,
    )


def binding(evaluation: Evaluation) -> str:
    """What binds a kernel most, empty where it isn't known."""
    diagnosis = evaluation.diagnosis
    return str(diagnosis.causes[0].bottleneck) if diagnosis and diagnosis.causes else ""


def kept(evaluation: Evaluation) -> dict[str, float]:
    """Those of its counters that a table tells."""
    return {name: evaluation.counters[name] for name in COUNTERS if name in evaluation.counters}


def read_trials(file: Path) -> list[Trial]:
    """The trials of a file, none if there is no file; a torn last line is left out. Raises LineError."""
    return read_lines(file, msgspec.json.Decoder(Trial))
