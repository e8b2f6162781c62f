"""Kernels with one numerical mistake each, emulated on the cases of their tasks, beside the same without it."""

from pathlib import Path

import pytest

from mctskernel.core.evaluation import Check
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.profiling.architecture import load_architecture
from mctskernel.profiling.emulated_verification import Drawn, emulate
from mctskernel.profiling.input_values import IN_TURN
from mctskernel.profiling.pricing import Pricing
from mctskernel.profiling.stages import Stages
from mctskernel.profiling.verify import draw_cases
from tests.conftest import WriteTask

SHAPES = """
[shapes]
search = [{ rows = 64, cols = 64 }]
verify = [{ rows = 1, cols = 1 }, { rows = 5, cols = 37 }, { rows = 8, cols = 33 }, { rows = 9, cols = 64 }]
held_out = [{ rows = 6, cols = 35 }, { rows = 7, cols = 32 }]
"""


def tensor(kind: str, name: str, dtype: str, shape: str = '["rows", "cols"]', more: str = "") -> str:
    return f'[[{kind}]]\nname = "{name}"\ndtype = "{dtype}"\nshape = {shape}\n{more}\n'


X = tensor("inputs", "x", "float32")
ROWS = '["rows"]'


def source(parameters: str, body: str, arguments: str = '"x", "out"') -> str:
    """A kernel with one thread for each row, which knows its `row`."""
    return f"""\
/*
[[launch]]
kernel = "f"
grid = ["ceil_div(rows, 4)"]
block = [4]
args = [{arguments}, "rows", "cols"]
*/
extern "C" __global__ void f({parameters}, int rows, int cols) {{
    int row = blockIdx.x * 4 + threadIdx.x;
    if (row >= rows) return;
    {body}
}}
"""


FLOATS = "const float* x, float* out"
EACH = "for (int i = row * cols; i < row * cols + cols; ++i) "
TWICE = "def reference(x):\n    return 2 * x\n"
ROW_SUM = "def reference(x):\n    return x.sum(axis=1)\n"
SUM = f"float sum = 0; {EACH} sum += x[i]; out[row] = sum;"
VARIANCE = "def reference(x):\n    return x.var(axis=1)\n"
VARIANCE_BODY = (
    f"float mean = 0, sum = 0; {EACH} mean += x[i]; mean /= cols;"
    f"{EACH} sum += (x[i] - mean) * (x[i] - mean); out[row] = sum / cols;"
)
SHORT_VARIANCE = (
    f"float a = 0, b = 0; {EACH} {{ a += x[i]; b += x[i] * x[i]; }} a /= cols; out[row] = b / cols - a * a;"
)
INTEGERS = tensor("inputs", "x", "int32", more="low = -2147483648\nhigh = 2147483647")
INTEGER_SUM = 'def reference(x):\n    return x.sum(axis=1, dtype="int64")\n'
OUT, OUT_ROWS = tensor("outputs", "out", "float32"), tensor("outputs", "out", "float32", ROWS)
PRESERVE = '[numerics]\ndenormals = "preserve"\n'
LOOSE = "[tolerance]\nrelative = 1e-5\nabsolute = 1e-5\nratio = 64.0\n"

MUL_FTZ = 'float y; asm("mul.ftz.f32 %0, %1, 0f40000000;" : "=f"(y) : "f"(x[i])); out[i] = y;'
SKIPPING = SUM.replace("sum += x[i]", "if (x[i] == x[i]) sum += x[i]")
DOUBLING, FLUSHING = f"{EACH} out[i] = 2 * x[i];", f"{EACH} {{ {MUL_FTZ} }}"
WIDE = f"long long sum = 0; {EACH} sum += x[i]; out[row] = sum;"
INTEGER_SUMS = INTEGERS + tensor("outputs", "out", "int64", ROWS)
IN_PLACE = X + tensor("outputs", "x", "float32")
TO_TWICE, TO_FOUR_TIMES = f"{EACH} x[i] = 2 * x[i];", f"{EACH} x[i] = 4 * x[i];"

# name: the tensors and contract, the reference, parameters, the honest body, the mistaken one, what is said of it
MISTAKES = {
    "swallows NaN": (X + OUT_ROWS, ROW_SUM, FLOATS, SUM, SKIPPING, "NaN values .* expected nan"),
    "flushes denormals": (X + OUT + PRESERVE, TWICE, FLOATS, DOUBLING, FLUSHING, "denormal values"),
    "differences of large squares": (
        X + OUT_ROWS + LOOSE,
        VARIANCE,
        FLOATS,
        VARIANCE_BODY,
        SHORT_VARIANCE,
        "offset values",
    ),
    "integers that overflow": (
        INTEGER_SUMS,
        INTEGER_SUM,
        "const int* x, long long* out",
        WIDE,
        WIDE.replace("long long", "int"),
        "expected",
    ),
    "in place, twice": (IN_PLACE, TWICE, "float* x", TO_TWICE, TO_FOUR_TIMES, "'x' is wrong"),
}


def checks(task: Task, text: str, seed: int) -> tuple[Check, ...]:
    pricing = Pricing(task, load_architecture("H100"), seed)
    found = pricing.prepare(Kernel(text, Language.CUDA), Stages())
    cases = (
        *draw_cases(task, task.verify_shapes, seed),
        *draw_cases(task, task.held_out_shapes, seed, turns=len(IN_TURN)),
    )
    return emulate(task, found.candidate, found.modules, Drawn(cases)).checks


def arguments(parameters: str) -> str:
    return ", ".join(f'"{parameter.split("*")[1].strip()}"' for parameter in parameters.split(","))


def written(write_task: WriteTask, tables: str, reference: str, kernel: str) -> Path:
    head, separator, tail = tables.partition("[[inputs]]")
    return write_task(f'name = "planted"\n{head}{separator}{tail}{SHAPES}', reference, kernel)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if i % 4 else []) for i, n in enumerate(MISTAKES)]
)
def test_a_mistake_is_found_and_the_honest_kernel_passes(write_task: WriteTask, name: str) -> None:
    tables, reference, parameters, honest, mistaken, said = MISTAKES[name]
    good, bad = (source(parameters, body, arguments(parameters)) for body in (honest, mistaken))
    task = load_task(written(write_task, tables, reference, good))
    for check in checks(task, good, 1):
        assert check.passed, check.message
    *_, last = checks(task, bad, 1)
    assert not last.passed
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(last.message)
