"""A contract that the reference itself doesn't meet is a sentence, and one that it does is none."""

import re

import pytest

from mctskernel.core.task_file import load_task
from mctskernel.profiling.contract import contradictions
from tests.conftest import REFERENCE, TASK_TOML, WriteTask

NUMPY = "import numpy as np\ndef reference(x):\n    return "


@pytest.mark.parametrize(
    ("table", "reference", "sentence"),
    [
        ('nan = "propagate"', REFERENCE, ""),
        ('nan = "propagate"', NUMPY + "np.fmax(x, 0)\n", "swallows a NaN in 'x'"),
        (
            'nan = "propagate"',
            "def reference(x):\n    return x * int(x.max())\n",
            "the reference can't take NaN inputs: .* cannot convert float NaN to integer",
        ),
        (
            'denormals = "preserve"',
            NUMPY + "2 * np.where(abs(x) < 1e-37, 0, x) if x.dtype == 'f' else 2 * x\n",
            "doesn't meet it in its own precision. At n=130, denormal values",
        ),
        ("scales = [1, 1e30]", NUMPY + "x / np.sqrt(1 + x * x)\n", "doesn't meet it .* large values"),
        ("scales = [1, 1e9]", NUMPY + "np.sin(x)\n", "with large inputs at n=130, rounding them changes"),
    ],
)
def test_a_contradiction_is_a_sentence(
    write_task: WriteTask, table: str, reference: str, sentence: str
) -> None:
    task = load_task(write_task(f"{TASK_TOML}[numerics]\n{table}\n", reference))
    found = " ".join(contradictions(task))
    place = f"{task.folder / 'task.toml'}: [numerics] {table.split(' ', maxsplit=1)[0]}: "
    assert found.startswith(place if sentence else "")
    assert re.search(sentence, found) if sentence else not found
