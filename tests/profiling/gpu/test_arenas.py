"""What is placed on a GPU for a task, and how what comes back is judged, without one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mctskernel.core.task import Array
from mctskernel.core.task_file import load_task
from mctskernel.core.tensor_array import TensorArray
from mctskernel.profiling import sampling
from mctskernel.profiling.gpu.arenas import VARIANTS, Arena, Arenas, draw_timed, draw_verified
from mctskernel.profiling.gpu.drawing import drawn
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
    (place,) = (each for each in arena.place.tensors if each.offsets or each.drawings)
    if place.drawings:
        x = drawn(place.drawings[variant], np.arange(arena.shape["n"]))
    else:
        x = arena.window.array_at(place.offsets[variant], np.dtype(np.float32), (arena.shape["n"],))
    for fetch in arena.variants[variant].fetches:
        if fetch.tensor == arena.task.outputs[0].name:
            parts = factor * x[fetch.read.start // 4 :][: fetch.read.width // 4]
            arena.window.array_at(fetch.read.offset, x.dtype, parts.shape)[:] = parts
        else:
            arena.window.array_at(fetch.read.offset, x.dtype, x.shape)[:] = x


def on_tensors(x: Array | TensorArray) -> Array:
    """Twice the input, for `takes_tensors`."""
    return np.asarray(TensorArray(2 * x.tensor) if isinstance(x, TensorArray) else 2 * x)


@pytest.mark.parametrize(
    ("output", "independent", "device"),
    [
        ("out", "", ""),
        ("x", "", ""),
        ("out", "n", ""),
        ("out", "", "cpu"),
        ("x", "n", "cpu"),
        ("out", "", "made"),
    ],
)
def test_each_drawing_is_judged_by_what_it_must_give(
    write_task: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    output: str,
    independent: str,
    device: str,
) -> None:
    if device:
        pytest.importorskip("torch")
    monkeypatch.setattr(sampling, "ELEMENTS", 3000)
    task = replace(
        load_task(write_task(TOML.format(output=output))), independent=independent, reference=on_tensors
    )
    window = SharedWindow()
    made, device = device == "made", device and "cpu"
    if made:
        task = replace(task, make_inputs=lambda rng, n: {"x": rng.standard_normal(n, dtype=np.float32)})
    verified = draw_verified(task, 7, window)
    found = Arenas(verified, draw_timed(task, 7, window, len(verified), device))
    assert [len(each.variants) for each in found.verified] == [1] * len(found.verified)
    (timed,) = found.timed
    (place,) = (each for each in timed.place.tensors if each.name == "x")
    assert bool(place.drawings) == (not made and bool(independent or device)) != bool(place.offsets)
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
