"""What a kernel's author is told of the results that a task takes."""

from __future__ import annotations

from mctskernel.core.contract_words import contract_sentences, narrowest_tolerance
from mctskernel.core.task_file import load_task
from tests.conftest import TASK_TOML, WriteTask

TWO_OUTPUTS = TASK_TOML.replace(
    "[shapes]",
    """[[outputs]]
name = "codes"
dtype = "int8"
shape = ["n"]

[[outputs]]
name = "rows"
shape = ["n", 4]

[shapes]""",
)


def told(write_task: WriteTask, more: str) -> str:
    return " ".join(contract_sentences(load_task(write_task(f"{TWO_OUTPUTS}\n{more}"))))


def test_the_contract_is_told_as_it_is_stated(write_task: WriteTask) -> None:
    stated = (
        '[numerics]\nnan = "propagate"\ninfinity = "unspecified"\ndenormals = "preserve"\nsigned_zero = "preserve"\n'
        "scales = [1e-20, 1e20]\n"
    )
    said = told(write_task, stated)
    assert "A NaN in the inputs must have the same effect on the outputs as in the reference." in said
    assert "An infinity" not in said
    assert "may not be flushed" in said
    assert "must have the sign of the reference's zero" in said
    assert "multiplied by 1e-20 and by 1e+20" in said
    assert "must not be multiplied by zero" in told(write_task, "")


def test_the_narrowest_tolerance_is_of_the_outputs_that_have_one(write_task: WriteTask) -> None:
    table = "[tolerance]\nrelative = 0.5\nabsolute = 0.5\n[tolerance.codes]\nabsolute = 0\n"
    assert narrowest_tolerance(load_task(write_task(f"{TWO_OUTPUTS}\n{table}"))) == 0.5
    table += "[tolerance.rows]\nabsolute = 1e-4\n"
    assert narrowest_tolerance(load_task(write_task(f"{TWO_OUTPUTS}\n{table}"))) == 1e-4
