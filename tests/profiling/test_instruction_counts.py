"""Modelled instruction counts: what PTX multiplies, machine code multiplies."""

from __future__ import annotations

from mctskernel.core.task_file import load_task
from mctskernel.profiling.model_device import ModelDevice
from mctskernel.tasks.builtin import find_task

PRODUCTS = 2048**3 / 32
"""Warp multiply-adds of the search shape."""


def test_guarded_tile_fills_do_not_hide_the_loop_that_multiplies() -> None:
    task = load_task(find_task("matmul"))
    evaluation = ModelDevice(task).evaluate(task.starting_kernel)
    assert evaluation.ok, evaluation.message
    # The pipe does integer multiply-adds for addresses too: as many again in the naive kernel.
    assert 0.999 <= evaluation.counters["smsp__inst_executed_pipe_fma.sum"] / PRODUCTS <= 2.2
