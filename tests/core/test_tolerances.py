"""Tolerances in a task file: of all outputs, of one, at some shapes, and what is refused."""

from dataclasses import replace

import pytest

from mctskernel.core.contract_words import contract_sentences, narrowest_tolerance
from mctskernel.core.task import Bound, TaskError, Tolerance
from mctskernel.core.task_file import load_task
from tests.conftest import TASK_TOML, WriteTask

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


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ("[[tolerance.at]]\nabsolute = 1\n", "field `shape`"),
        ("[[tolerance.at]]\nshape = { n = 131 }\n", "n=131, which no shape has"),
        ("[[tolerance.at]]\nshape = { n = 1 }\nabsolute = nan\n", "at[0].absolute"),
        ("[[tolerance.at]]\nshape = { n = 1 }\nrtol = 1\n", "unknown field `rtol`"),
        ("[tolerance]\nelement = { relative = 1 }\n", "field `absolute`"),
        ("[tolerance]\nelement = { relative = nan, absolute = 0 }\n", "element.relative"),
        ("[tolerance.at]\nrelative = 1\n", "'tolerance.at': Expected `array`"),
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
    for name, sentence in (("workload", "no dimension of every shape"), ("n", "depends on it")):
        with pytest.raises(TaskError, match=sentence):
            load_task(write_task(f'inputs_by = "{name}"\n{TASK_TOML}'))


def test_only_values_that_are_tried_are_named(write_task: WriteTask) -> None:
    task = load_task(write_task())
    uniform = replace(task, inputs=tuple(replace(each, distribution="uniform") for each in task.inputs))
    drawn, ranged = (" ".join(contract_sentences(each)) for each in (task, uniform))
    assert "A NaN" in drawn
    assert "multiplied by" in drawn
    assert "A NaN" not in ranged
    assert "beyond the range" in ranged
