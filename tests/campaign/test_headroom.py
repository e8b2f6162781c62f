"""How far a starting kernel is from the floor of its task, and when nothing is known of that."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from mctskernel.campaign.headroom import log_headroom
from mctskernel.core.evaluation import Evaluation, Outcome, Score, Source, Timing
from mctskernel.core.task_file import load_task
from mctskernel.profiling.architecture import load_architecture
from mctskernel.report.view import View
from mctskernel.run import Budget, Configuration, prepare_run, write_manifest
from mctskernel.tree.journal import MemoryJournal
from mctskernel.tree.node import Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.search import TreeSearch

H100 = load_architecture("H100")

FLOOR = 4096 * 4 / H100.memory.dram_bytes_per_second
"""The small task reads so many bytes; what it writes, L2 holds."""


def a_view(task_folder: Path, path: Path, evaluation: Evaluation, gpu: str = H100.name) -> View:
    """A run of the small task whose starting kernel was evaluated."""
    task = load_task(task_folder)
    folder = prepare_run(path, task)
    configuration = Configuration("double", "model", "H100", "rules", 0, 1, Budget(evaluations=1), Policy())
    write_manifest(folder, configuration, {"gpu": gpu})
    search = TreeSearch(Tree(), MemoryJournal(), folder.blobs)
    search.start(task.starting_kernel, Policy(), 0)
    search.evaluated(0, evaluation, Score(0.0, 1.0))
    return View(folder, search.tree, None)


def taking(seconds: float) -> Evaluation:
    return Evaluation(Outcome.OK, Source.MODELLED, timings=(Timing("n=4096", seconds, seconds, seconds),))


def test_it_is_the_time_over_what_moving_the_data_takes(small_task: Path, tmp_path: Path) -> None:
    found = log_headroom(a_view(small_task, tmp_path / "run", taking(5 * FLOOR)))
    assert found == pytest.approx(math.log(5))


@pytest.mark.parametrize(
    ("evaluation", "gpu"),
    [
        (taking(0.9 * FLOOR), H100.name),
        (taking(5 * FLOOR), "A GPU that nobody described"),
        (Evaluation(Outcome.BUILD_ERROR, Source.MODELLED), H100.name),
    ],
    ids=["below the floor", "unknown GPU", "no time"],
)
def test_without_a_floor_or_a_time_nothing_is_known(
    small_task: Path, tmp_path: Path, evaluation: Evaluation, gpu: str
) -> None:
    assert log_headroom(a_view(small_task, tmp_path / "run", evaluation, gpu)) is None
