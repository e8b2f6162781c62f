"""Searches in processes of their own, as a user would start them: one that dies costs an experiment one row."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from mctskernel.core.kernel import SOURCE_LANGUAGES, Language
from mctskernel.run import Budget


@dataclass(frozen=True)
class Plan:
    """How to search: the device, the budget of each search, and where the runs go.

    `workers` is None for the default of the device.
    """

    device: str
    architecture: str
    workers: int | None
    budget: Budget
    seed: int
    runs: Path

    def folder(self, task: str, language: Language) -> Path:
        """Where the run of one search is."""
        return self.runs / f"{Path(task).name}-{language}-{self.device}-{self.seed}"

    def finished(self, task: str) -> tuple[Path, ...]:
        """The folders of a task's searches that have an answer, one for each language at the most."""
        folders = (self.folder(task, language) for language in SOURCE_LANGUAGES)
        return tuple(folder for folder in folders if (folder / "best" / "answer.json").exists())


def run_search(task: str, language: Language, plan: Plan) -> str:
    """Search a task, going on with a run that was cut off. Returns what went wrong in a sentence, or nothing."""
    folder = plan.folder(task, language)
    limits = ["--budget", str(plan.budget.evaluations)]
    limits += ["--seconds", str(plan.budget.seconds)] if plan.budget.seconds else []
    limits += ["--workers", str(plan.workers)] if plan.workers else []
    if (folder / "journal.jsonl").exists():
        words = ["resume", str(folder)]
    else:
        shutil.rmtree(folder, ignore_errors=True)
        words = ["search", task, "--device", plan.device, "--architecture", plan.architecture]
        words += ["--language", language, "--seed", str(plan.seed), "--out", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "mctskernel", *words, *limits], check=False, stderr=subprocess.PIPE, text=True
    )
    if done.returncode == 0:
        return ""
    said = [line for line in done.stderr.splitlines() if re.search(r"\w", line)]
    return said[-1].strip() if said else f"The search ended with status {done.returncode}."
