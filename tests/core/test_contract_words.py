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


def test_each_output_has_its_own_tolerance(write_task: WriteTask) -> None:
    table = "[tolerance]\nrelative = 0.25\n[tolerance.codes]\nabsolute = 1\n"
    table += "[tolerance.rows]\nabsolute = 0.5\nratio = inf\n"
    said = told(write_task, table)
    assert (
        "'out' may be off by 1e-06 + 0.25 times its own size, or that of the terms it is made of, and the"
        in said
    )
    assert "'codes' may be off by 1." in said
    assert "'rows' may be off by 0.5 + 0.25 times the largest value of its row." in said


def test_whole_numbers_and_copies_are_exact(write_task: WriteTask) -> None:
    assert "'codes' must be what the reference's is." in told(write_task, "")
    assert "'out' must be what the reference's is." in told(
        write_task, "[tolerance]\nrelative = 0\nabsolute = 0\n"
    )


def test_the_contract_is_told_as_it_is_stated(write_task: WriteTask) -> None:
    stated = (
        '[numerics]\nnan = "propagate"\ninfinity = "unspecified"\ndenormals = "preserve"\nsigned_zero = "preserve"\n'
        "scales = [1e-20, 1e20]\n"
    )
    said = told(write_task, stated)
    assert "A NaN among the inputs makes of the outputs what it makes of the reference's." in said
    assert "An infinity" not in said
    assert "nothing may flush them" in said
    assert "sign that the reference's has" in said
    assert "multiplied by 1e-20 and by 1e+20" in said
    assert "must not be multiplied by zero" in told(write_task, "")


def test_the_narrowest_tolerance_is_of_the_outputs_that_have_one(write_task: WriteTask) -> None:
    table = "[tolerance]\nrelative = 0.5\nabsolute = 0.5\n[tolerance.codes]\nabsolute = 0\n"
    assert narrowest_tolerance(load_task(write_task(f"{TWO_OUTPUTS}\n{table}"))) == 0.5
    table += "[tolerance.rows]\nabsolute = 1e-4\n"
    assert narrowest_tolerance(load_task(write_task(f"{TWO_OUTPUTS}\n{table}"))) == 1e-4
