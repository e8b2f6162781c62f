"""What is placed on a GPU for a task, and how what comes back is judged, without one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mctskernel.core.task_file import load_task
from mctskernel.profiling.gpu.arenas import VARIANTS, Arena, draw_arenas
from mctskernel.profiling.processes.shared_window import SharedWindow

TOML = """\
name = "twice"
[[inputs]]
name = "x"
dtype = "float32"
shape = ["n"]
[[outputs]]
name = "{output}"
dtype = "float32"
shape = ["n"]
[shapes]
search = [{{ n = 4096 }}]
verify = [{{ n = 3 }}]
"""


def leave(arena: Arena, factor: float, variant: int) -> None:
    """Put into the window what a kernel leaves that multiplies its inputs by a factor."""
    (place,) = (each for each in arena.place.tensors if each.offsets)
    x = arena.window.array_at(place.offsets[variant], np.dtype(np.float32), (arena.shape["n"],))
    for fetch in arena.variants[variant].fetches:
        if fetch.tensor == arena.task.outputs[0].name:
            arena.window.array_at(fetch.read.offset, x.dtype, x.shape)[:] = factor * x
        else:
            arena.window.array_at(fetch.read.offset, x.dtype, x.shape)[:] = x


@pytest.mark.parametrize("output", ["out", "x"])
def test_each_drawing_is_judged_by_what_it_must_give(write_task: Callable[..., Path], output: str) -> None:
    found = draw_arenas(load_task(write_task(TOML.format(output=output))), 7, SharedWindow())
    assert [len(each.variants) for each in found.verified] == [1] * len(found.verified)
    (timed,) = found.timed
    assert len(timed.variants) == len(timed.reads) == VARIANTS
    for arena in found:
        for variant in range(len(arena.variants)):
            leave(arena, 2.0, variant)
        for variant in range(len(arena.variants)):
            assert arena.verdict(variant).passed
            leave(arena, 3.0, variant)
            assert not arena.verdict(variant).passed or not arena.case.expected[output].any()
    drawn = [timed.variants[variant].sample.case.expected[output] for variant in range(VARIANTS)]
    assert not np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[1], drawn[2])
