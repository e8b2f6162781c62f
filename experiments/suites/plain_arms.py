"""The arms of the plain suite: what a trial begins at, who proposes, and which strategy searches, all with one budget.

The two settings are those of OptiML (Bhattacharjee et al., arXiv 2602.12305): a naive kernel is optimised (OptiML-X
alone), or one is written from a description first (OptiML-G) and what is left of the budget optimises it.
"""

from __future__ import annotations

import enum
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mctskernel.core.device import DeviceSpec
from mctskernel.core.executor import Executor
from mctskernel.core.kernel import Language
from mctskernel.core.surrogate import SurrogateUse
from mctskernel.core.task_file import load_task
from mctskernel.edits.llm.opening import open_model
from mctskernel.edits.llm.options import LLMOptions
from mctskernel.experiments.suites.plain_tasks import PlainTask
from mctskernel.experiments.suites.plain_trials import Key, Trial, trial_of_generation, trial_of_run
from mctskernel.generation import Effort, generate
from mctskernel.opening import open_search
from mctskernel.order import GenerationError, Order
from mctskernel.proposers import ASK_A_MODEL, LLM, MIXED, RULES
from mctskernel.report.view import View, load_view
from mctskernel.run import Budget, Configuration, Spent, prepare_run, write_manifest
from mctskernel.runner import begin, conclude
from mctskernel.search import Snapshot
from mctskernel.search_policy import open_policy
from mctskernel.tree.policy import Policy


class Setting(enum.StrEnum):
    """What a trial begins at, and what is done."""

    OPTIMISE = "naive CUDA, optimised"
    SYNTHESISE = "a description, synthesised"
    BOTH = "a description, synthesised, then optimised"


@dataclass(frozen=True)
class Arm:
    """A way to come to a fast kernel. `strategy` is empty where nothing is searched."""

    name: str
    setting: Setting
    proposer: str
    strategy: str = ""

    @property
    def needs_model(self) -> bool:
        """Whether a language model is asked."""
        return self.setting is not Setting.OPTIMISE or self.proposer in ASK_A_MODEL


ARMS: dict[str, Arm] = {
    arm.name: arm
    for arm in (
        Arm("mcts", Setting.OPTIMISE, RULES, "mcts"),
        Arm("greedy", Setting.OPTIMISE, RULES, "greedy"),
        Arm("best-of-n", Setting.OPTIMISE, RULES, "best-of-n"),
        Arm("llm-best-of-n", Setting.OPTIMISE, LLM, "best-of-n"),
        Arm("llm-mcts", Setting.OPTIMISE, MIXED, "mcts"),
        Arm("generate", Setting.SYNTHESISE, LLM),
        Arm("generate-then-mcts", Setting.BOTH, MIXED, "mcts"),
    )
}
"""By name. Without a language model the rules propose, and generation isn't possible."""


@dataclass(frozen=True)
class Wanted:
    """A trial that is to be made."""

    task: PlainTask
    arm: Arm
    seed: int

    @property
    def key(self) -> Key:
        """That of its trial."""
        return self.task.name, self.arm.name, self.seed

    def failed(self, problem: str, evaluations: int = 0) -> Trial:
        """Its trial, when nothing came of it."""
        name, arm, seed = self.key
        return Trial(task=name, arm=arm, seed=seed, problem=problem, evaluations=evaluations)


@dataclass(frozen=True)
class Bench:
    """What every trial has alike: the device, `budget` evaluations of which generation may have `tries`, the model.

    `runs` is where runs and generated tasks are kept.
    """

    device: str
    architecture: str
    budget: int
    tries: int
    workers: int
    runs: Path
    llm: LLMOptions | None = None

    def spec(self, folder: Path, seed: int = 0) -> DeviceSpec:
        """The device for a task."""
        return DeviceSpec(
            self.device, folder, architecture=self.architecture, seed=seed, language=Language.CUDA
        )

    def policy(self, arm: Arm) -> Policy:
        """An arm's strategy, and else what suits the device and the proposer."""
        policy = open_policy(self.device, arm.proposer, SurrogateUse.OFF)
        return msgspec.structs.replace(policy, strategy=arm.strategy)

    def configuration(self, wanted: Wanted, task: str, spent: Spent) -> Configuration:
        """What the run of a trial is searched with; `task` is what the run calls its task."""
        arm = wanted.arm
        return Configuration(
            task=task,
            device=self.device,
            architecture=self.architecture,
            proposer=arm.proposer,
            seed=wanted.seed,
            workers=self.workers,
            budget=Budget(evaluations=self.budget),
            policy=self.policy(arm),
            spent=spent,
            llm=self.llm if arm.proposer in ASK_A_MODEL else None,
        )

    def place(self, wanted: Wanted) -> Path:
        """The folder of a trial, empty: of one that was cut off nothing is kept."""
        path = self.runs.joinpath("-".join(map(str, wanted.key)))
        shutil.rmtree(path, ignore_errors=True)
        return path


def optimise(bench: Bench, wanted: Wanted, executor: Executor) -> Trial:
    """Search from the naive kernel. Raises TaskError, RunError, JournalError, DeviceError and ModelError."""
    task = load_task(wanted.task.folder, Language.CUDA)
    configuration = bench.configuration(wanted, task.name, Spent())
    folder = prepare_run(bench.place(wanted), task)
    write_manifest(folder, configuration, executor.fingerprint())
    with open_search(folder, configuration, executor, _unfollowed, lambda: False) as (search, unfinished):
        conclusion = conclude(folder, search, search.run(unfinished))
    if conclusion.problem:
        return wanted.failed(conclusion.problem)
    return trial_of_run(View(folder, conclusion.tree, conclusion.answer), wanted.key)


def synthesise(bench: Bench, wanted: Wanted, say: Callable[[str], None]) -> Trial:
    """Have a kernel written from the description and, where the arm says so, optimise it with what is left.

    The task's reference, shapes and tolerance judge it, as they judge every other arm. A trial in which no kernel came
    out right has a problem. Raises TaskError, RunError, JournalError, DeviceError and ModelError.
    """
    if bench.llm is None:
        raise ValueError(f"The arm '{wanted.arm.name}' needs a language model.")
    path, plain = bench.place(wanted), wanted.task
    texts = [(plain.folder / name).read_text("utf-8") for name in ("reference.py", "task.toml")]
    order = Order(plain.description, path / "task", Language.CUDA, *texts)
    effort = Effort(tries=min(bench.tries, bench.budget), seed=wanted.seed)
    spec = bench.spec(order.folder, wanted.seed)
    try:
        with closing(open_model(bench.llm)) as model:
            made = generate(order, effort, model, spec, workers=bench.workers, say=say)
    except GenerationError as error:
        return wanted.failed(str(error), evaluations=effort.tries)
    written = trial_of_generation(made, wanted.key)
    if wanted.arm.setting is Setting.SYNTHESISE or made.evaluations >= bench.budget:
        return written
    spent = Spent(evaluations=made.evaluations, seconds=written.seconds)
    configuration = bench.configuration(wanted, made.task.name, spent)
    begin(path / "run", order.folder, configuration, _unfollowed, lambda: False)
    found = trial_of_run(load_view(path / "run"), wanted.key)
    return msgspec.structs.replace(
        found,
        naive_seconds=None,
        failures=found.failures + written.failures,
        calls=found.calls + made.calls,
        tokens=found.tokens + made.tokens,
        dollars=found.dollars + made.dollars,
    )


def _unfollowed(_snapshot: Snapshot) -> None:
    """Nobody watches a trial."""
