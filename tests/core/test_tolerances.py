"""Tolerances in a task file: of all outputs, of one, at some shapes, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.core.contract_words import contract_sentences, narrowest_tolerance
from mctskernel.core.documents import parse_toml
from mctskernel.core.task import Bound, TaskError, Tensor, Tolerance
from mctskernel.core.task_file import load_task
from mctskernel.core.tolerance_file import read_tolerances
from tests.conftest import TASK_TOML, WriteTask

OUTPUTS = (Tensor("out", "float32", ("n",)), Tensor("code", "int8", ("n",)))
ALLOWANCES = st.floats(0, 1e6, allow_nan=False)

AT = """
[tolerance]
relative = 0.5

[[tolerance.at]]
shape = { n = 130 }
absolute = 0.25
element = { relative = 1e-2, absolute = 1e-3, most = 2 }

[[tolerance.at]]
shape = { n = 130 }
relative = 0.125
"""


def test_shapes_may_have_tolerances_of_their_own(write_task: WriteTask) -> None:
    task = load_task(write_task(TASK_TOML + AT))
    assert task.tolerance_of("out") == task.tolerance_of("out", {"n": 1}) == Tolerance(0.5)
    assert task.tolerance_of("out", {"n": 130}) == Tolerance(0.125, 0.25, element=Bound(1e-2, 1e-3, 2))
    assert narrowest_tolerance(task) == 1e-6
    said = " ".join(contract_sentences(task))
    assert "At n=130: absolute 0.25" in said
    assert "never more than 2" in said


def test_an_output_s_own_tolerance_changes_at_a_shape_too(write_task: WriteTask) -> None:
    task = load_task(write_task(TASK_TOML + AT + "[tolerance.out]\nratio = 3\nabsolute = 7\n"))
    assert task.tolerance_of("out", {"n": 130}).absolute == 0.25
    assert task.tolerance_of("out", {"n": 130}).ratio == 3


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ("[[tolerance.at]]\nabsolute = 1\n", "needs a 'shape'"),
        ("[[tolerance.at]]\nshape = { n = 1.5 }\n", "needs a 'shape'"),
        ("[[tolerance.at]]\nshape = { n = true }\n", "needs a 'shape'"),
        ("[[tolerance.at]]\nshape = {}\n", "needs a 'shape'"),
        ("[[tolerance.at]]\nshape = { n = 131 }\n", "n=131, which no shape has"),
        ("[[tolerance.at]]\nshape = { m = 1 }\n", "m=1, which no shape has"),
        ("[[tolerance.at]]\nshape = { n = 1 }\nabsolute = nan\n", "numbers of at least 0"),
        ("[[tolerance.at]]\nshape = { n = 1 }\nabsolute = -1\n", "numbers of at least 0"),
        ("[[tolerance.at]]\nshape = { n = 1 }\nrtol = 1\n", "may hold 'relative'"),
        ("[tolerance]\nelement = 1\n", "'element' must be a table"),
        ("[tolerance]\nelement = { relative = 1 }\n", "'element' must be a table"),
        ("[tolerance]\nelement = { relative = nan, absolute = 0 }\n", "'element' must be a table"),
        ("[tolerance]\nelement = { relative = inf, absolute = 0 }\n", "'element' must be a table"),
        ("[tolerance.at]\nrelative = 1\n", "[tolerance.at] is for no output"),
    ],
)
def test_what_can_t_be_is_a_sentence(write_task: WriteTask, tables: str, sentence: str) -> None:
    with pytest.raises(TaskError) as raised:
        load_task(write_task(TASK_TOML + tables))
    assert sentence in str(raised.value)


def test_what_tells_inputs_apart_is_not_for_kernels(write_task: WriteTask) -> None:
    numbered = 'inputs_by = "workload"\n' + TASK_TOML.replace("{ n =", "{ workload = 1, n =")
    task = load_task(write_task(numbered))
    shape = {"workload": 2, "n": 5}
    assert task.names(shape, task.starting_kernel) == {"n": 5, "BLOCK": 64}
    made = "import numpy as np\ndef make_inputs(rng, n, workload): return {'x': np.full(n, workload, np.float32)}\n"
    folder = write_task(numbered)
    (folder / "reference.py").write_text((folder / "reference.py").read_text() + made)
    assert load_task(folder).draw_inputs(shape, 0)["x"].tolist() == [2.0] * 5


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        ('inputs_by = "workload"\n' + TASK_TOML, "no dimension of every shape"),
        ('inputs_by = "n"\n' + TASK_TOML, "depends on it"),
    ],
)
def test_what_tells_inputs_apart_has_no_extent(write_task: WriteTask, toml: str, sentence: str) -> None:
    with pytest.raises(TaskError, match=sentence):
        load_task(write_task(toml))


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(["relative", "absolute", "ratio"]), ALLOWANCES),
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(["m", "n"]), st.integers(0, 3), min_size=1),
            st.dictionaries(st.sampled_from(["relative", "absolute", "ratio"]), ALLOWANCES),
            st.none() | st.tuples(ALLOWANCES, ALLOWANCES),
        ),
        max_size=4,
    ),
    st.dictionaries(st.sampled_from(["m", "n"]), st.integers(0, 3)),
)
def test_what_is_read_is_what_is_written(
    general: dict[str, float],
    entries: list[tuple[dict[str, int], dict[str, float], tuple[float, float] | None]],
    shape: dict[str, int],
) -> None:
    """Against a model: every entry that fits changes what it states, in order."""
    document = {
        "tolerance": {
            **general,
            "at": [
                {"shape": at, **changes}
                | ({"element": {"relative": own[0], "absolute": own[1]}} if own else {})
                for at, changes, own in entries
            ],
        }
    }
    tolerance, _, found = read_tolerances(document, OUTPUTS, Path("task.toml"))
    usual = Tolerance()
    expected = Tolerance(
        *(general.get(name, getattr(usual, name)) for name in ("relative", "absolute", "ratio"))
    )
    assert tolerance == expected
    values = {"relative": expected.relative, "absolute": expected.absolute, "ratio": expected.ratio}
    element = None
    for at, changes, own in entries:
        if at.items() <= shape.items():
            values |= changes
            element = Bound(*own) if own else element
    applied = [entry.changes for entry in found if entry.fits(shape)]
    merged = {"element": None, **values} | {name: value for each in applied for name, value in each.items()}
    assert merged == {**values, "element": element}


@settings(deadline=None)
@given(st.text(alphabet='[]{}=.,"tolerancshap0123456789-einf \n', max_size=120))
def test_no_text_raises_anything_else(text: str) -> None:
    try:
        document = parse_toml("[tolerance]\n" + text)
    except ValueError:
        return
    try:
        tolerance, _, _ = read_tolerances(document, OUTPUTS, Path("task.toml"))
    except TaskError:
        return
    assert not math.isnan(tolerance.relative + tolerance.absolute)
