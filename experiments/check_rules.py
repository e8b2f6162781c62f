"""Whether what the rules propose stays correct: random chains of edits of the built-in tasks, verified.

    python -m mctskernel.experiments.check_rules --chains 20 --length 6 --seed 1 --language triton

Prints one line for each chain that breaks, the last kernel with it, and a count; exits 1 if any broke. A
launch error is counted apart: a rule can't know how many registers the compiler will take.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import mctskernel.tasks
from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import Language
from mctskernel.core.proposer import ProposalRequest
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.edits.patch import apply
from mctskernel.edits.proposer import RuleProposer
from mctskernel.profiling.model_device import ModelDevice


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chains; returns the exit code."""
    folder = Path(mctskernel.tasks.__path__[0])
    names = sorted(path.parent.name for path in folder.glob("*/task.toml"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tasks", nargs="*", default=names, choices=names)
    parser.add_argument("--chains", type=int, default=5, help="chains of each task")
    parser.add_argument("--length", type=int, default=6, help="edits in a chain")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--language", type=Language, default=Language.CUDA, choices=list(Language))
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(options.seed)
    outcomes: Counter[str] = Counter()
    for name in options.tasks:
        task = load_task(folder / name, options.language)
        device = ModelDevice(task)
        for _ in range(options.chains):
            outcomes += check_chain(task, device, options.length, rng)
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())))
    return 1 if outcomes.keys() - {Outcome.OK, Outcome.LAUNCH_ERROR} else 0


def check_chain(task: Task, device: ModelDevice, length: int, rng: np.random.Generator) -> Counter[str]:
    """Outcomes of one random chain of edits; it ends at the first that isn't ok."""
    kernel, evaluation = task.starting_kernel, device.evaluate(task.starting_kernel)
    outcomes: Counter[str] = Counter()
    titles: list[str] = []
    for _ in range(length):
        edits = RuleProposer().propose(ProposalRequest(task, kernel, evaluation)).edits
        if not edits:
            break
        categories = sorted({edit.category for edit in edits})
        category = categories[rng.integers(len(categories))]
        among = [edit for edit in edits if edit.category is category]
        edit = among[rng.integers(len(among))]
        titles.append(edit.title)
        kernel = apply(kernel, edit)
        evaluation = device.evaluate(kernel)
        outcome, message = evaluation.outcome, evaluation.message
        if evaluation.ok:
            failed = [check for check in device.final_check(kernel) if not check.passed]
            if failed:
                outcome, message = Outcome.WRONG_RESULT, failed[0].message
        outcomes[outcome] += 1
        if outcome is not Outcome.OK:
            print(f"{task.name}: {' / '.join(titles)}: {outcome}: {message}\n{kernel.source}")
            break
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
