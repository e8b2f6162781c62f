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
from mctskernel.profiling.input_values import Values
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


@pytest.mark.parametrize("device", ["", "cpu"])
@pytest.mark.parametrize("made", [False, True])
def test_a_final_validation_checks_special_values_that_it_does_not_time(
    write_task: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, device: str, made: bool
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(sampling, "ELEMENTS", 3000)
    task = load_task(write_task(TOML.format(output="out")))
    task = replace(task, independent="n", reference=on_tensors, thorough=True)
    if made:
        numerics = replace(task.numerics, stated=frozenset({"nan", "infinity"}))
        task = replace(task, make_inputs=lambda n: {"x": np.ones(n, np.float32)}, numerics=numerics)
    (timed,) = draw_timed(task, 7, SharedWindow(), 0, device)
    found = [each.sample.case.values for each in timed.variants]
    assert found == [Values.DRAWN, Values.INFINITY, Values.NAN]
    assert timed.checked_only == 2
    for variant in range(len(found)):
        leave(timed, 2.0, variant)
        assert timed.verdict(variant).passed
        fetched = [
            timed.window.array_at(each.read.offset, np.dtype(np.float32), each.extents)
            for each in timed.variants[variant].fetches
        ]
        for left in fetched:
            left[:] = np.nan_to_num(left)
        # What depends on a NaN may be anything where PyTorch computes the reference.
        free = found[variant] is Values.DRAWN or (device and found[variant] is Values.NAN)
        assert timed.verdict(variant).passed is bool(free)
        for left in fetched:
            left[:] = np.nan
        assert not timed.verdict(variant).passed


def test_special_values_are_left_out_where_the_reference_cannot_take_them(
    write_task: Callable[..., Path],
) -> None:
    def finite(x: Array) -> Array:
        if not np.isfinite(x).all():
            raise ValueError("not a number")
        return 2 * x

    task = load_task(write_task(TOML.format(output="out")))
    (timed,) = draw_timed(
        replace(task, independent="n", reference=finite, thorough=True), 7, SharedWindow(), 0
    )
    assert [each.sample.case.values for each in timed.variants] == [Values.DRAWN] * VARIANTS
