from __future__ import annotations

import numpy as np

from mctskernel.core.task_file import load_task
from mctskernel.experiments.mutation_study import MUTATIONS, chosen_mutants, largest_error
from mctskernel.tasks.builtin import builtin_tasks, find_task


def test_mutants_are_of_all_kinds_and_tasks_and_the_same_each_time() -> None:
    folders = [find_task(name) for name in builtin_tasks()]
    first, second = (chosen_mutants(folders, 100, np.random.default_rng(0)) for _ in range(2))
    assert first == second
    assert {each.kind for each in first} == set(MUTATIONS)
    assert len({each.source for each in first}) == 100
    assert len({each.folder for each in first}) >= 14


def test_an_unchanged_kernel_has_no_error_and_a_wrong_one_a_large_error() -> None:
    folder = find_task("transpose")
    source = load_task(folder).starting_kernel.source
    assert largest_error(folder, source, "H100") == 0.0
    assert largest_error(folder, source.replace("] = x[", "] = 2 * x["), "H100") > 8.0
