"""A broken task folder is one sentence that names the file and what is wrong."""

import numpy as np
import pytest

from mctskernel.core.task import Denormals, Numerics, Propagation, Task, TaskError
from mctskernel.core.task_file import load_task
from tests.conftest import KERNEL, REFERENCE, TASK_TOML, WriteTask

SHAPE = {"n": 130}


def test_a_task_is_read(write_task: WriteTask) -> None:
    task = load_task(write_task())
    assert (task.name, task.summary) == ("double", "Twice the input.")
    assert task.buffer_names == ("x", "out")
    a, b, other = (task.draw_inputs(SHAPE, seed)["x"] for seed in (1, 1, 2))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, other)
    for precision in (np.float32, np.float64):
        x = a.astype(precision)
        assert task.expected({"x": x}, SHAPE)["out"].dtype == precision
        assert np.array_equal(task.expected({"x": x}, SHAPE)["out"], 2 * x)
    assert (task.search_shapes, task.verify_shapes) == (({"n": 4096},), ({"n": 1}, {"n": 130}))
    assert task.starting_kernel.source == KERNEL
    assert task.names(SHAPE, task.starting_kernel) == {"n": 130, "BLOCK": 64}
    assert task.compulsory_bytes(SHAPE) == 1040


def test_a_task_states_its_numerical_contract(write_task: WriteTask) -> None:
    assert load_task(write_task()).numerics == Numerics()
    table = '[numerics]\nnan = "propagate"\ndenormals = "preserve"\nscales = [1e-3, 1000]\n'
    numerics = load_task(write_task(TASK_TOML + table)).numerics
    assert (numerics.nan, numerics.infinity) == (Propagation.PROPAGATE, Propagation.LOCAL)
    assert (numerics.denormals, numerics.scales) == (Denormals.PRESERVE, (1e-3, 1000.0))
    assert numerics.stated == {"nan", "denormals", "scales"}


def test_an_output_with_an_input_s_name_is_in_place(write_task: WriteTask) -> None:
    task = load_task(write_task(TASK_TOML.replace('name = "out"', 'name = "x"')))
    assert task.in_place == {"x"}
    assert task.buffer_names == ("x",)
    assert task.compulsory_bytes(SHAPE) == 1040


@pytest.mark.parametrize(
    ("lines", "low", "high"),
    [
        ('dtype = "int8"', 0, 100),
        ('dtype = "int32"\nlow = -5\nhigh = -3', -5, -3),
        ('dtype = "float32"\ndistribution = "uniform"\nlow = 2\nhigh = 2.5', 2, 2.5),
        ('dtype = "int64"\nlow = "n // 2"\nhigh = "n // 2 + 3"', 2048, 2051),
    ],
)
def test_distributions(write_task: WriteTask, lines: str, low: float, high: float) -> None:
    task = load_task(write_task(TASK_TOML.replace('dtype = "float32"', lines, 1)))
    drawn = task.draw_inputs({"n": 4096}, 0)["x"]
    assert drawn.dtype == np.dtype(task.inputs[0].dtype)
    assert low <= drawn.min() < low + 0.2
    assert high - 0.2 < drawn.max() <= high


def test_make_inputs_replaces_the_distributions(write_task: WriteTask) -> None:
    own = "import numpy as np\ndef make_inputs(rng, n):\n    return {'x': np.full(n, 7, np.float32)}\n"
    task = load_task(write_task(reference=own + REFERENCE))
    assert (task.draw_inputs(SHAPE, 0)["x"] == 7).all()


def test_the_reference_may_use_dimensions_scalars_and_defaults(write_task: WriteTask) -> None:
    toml = TASK_TOML + "[scalars]\nfactor = 3\n"
    code = "def reference(factor, x, n, axis=0):\n    return factor * x + n + axis\n"
    task = load_task(write_task(toml, code))
    inputs = task.draw_inputs(SHAPE, 0)
    assert np.array_equal(task.expected(inputs, SHAPE)["out"], 3 * inputs["x"] + 130)


@pytest.mark.parametrize("missing", ["task.toml", "reference.py", "kernel.cu"])
def test_a_missing_file_is_named(write_task: WriteTask, missing: str) -> None:
    folder = write_task()
    (folder / missing).unlink()
    with pytest.raises(TaskError, match=f"{missing} is missing"):
        load_task(folder)
    (folder / missing).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TaskError, match=f"{missing} can't be read"):
        load_task(folder)


INPUT = '[[inputs]]\nname = "x"\ndtype = "float32"\nshape = ["n"]\n'


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('name = "double"', "name = ", "not valid TOML"),
        ('name = "double"', 'name = "../x"', "may hold letters"),
        ('name = "double"', 'kernel = "other.cu"', r"other\.cu is missing"),
        ('name = "double"', 'flops = "n * m"', "flops: .* unknown name 'm'"),
        (INPUT, "", "missing required field `inputs`"),
        (INPUT, INPUT + INPUT, "names must differ"),
        (
            INPUT,
            INPUT + INPUT.replace('"x"', '"out"').replace("float32", "int32"),
            "'out' is an input and an output, .* same dtype",
        ),
        (INPUT, INPUT + INPUT.replace('"x"', '"n"'), "'n' is an input and a dimension"),
        (INPUT, '[scalars]\ny = "1"\n' + INPUT, "'scalars.*Expected `int | float`"),
        (INPUT, INPUT.replace("float32", "float31"), "'float31' is not one of"),
        (INPUT, INPUT.replace('["n"]', '["n / 3"]'), "not a whole number"),
        (INPUT, INPUT.replace('["n"]', '["n - 1"]'), r"has the shape \(0,\) at n=1; every extent"),
        (INPUT, INPUT + 'distribution = "cauchy"\n', "Invalid enum value .*known: normal, uniform, integers"),
        (
            INPUT,
            INPUT + "low = 2\n",
            "at n=4096 it would be drawn from 2 to 1; both must be finite, 'low' first",
        ),
        (INPUT, INPUT + 'high = "77 - n"\n', "at n=4096 it would be drawn from 0 to -4019"),
        (INPUT, INPUT.replace("float32", "uint8") + "low = -1\n", "doesn't fit uint8"),
        ("[shapes]", "[sizes]", "unknown field `sizes` .*known: .*shapes"),
        ("search = [{ n = 4096 }]", "search = [{ n = 0 }]", "every extent must be at least 1"),
        ("search = [{ n = 4096 }]", "search = [{ m = 4096 }]", "unknown name 'n'"),
        ("[shapes]", "[tolerance.out]\nrtol = 1\n[shapes]", "unknown field `rtol`"),
        ("[shapes]", "[numerics]\nscales = [0, 1]\n[shapes]", r"'numerics.scales\[0\]'"),
        ("[shapes]", '[numerics]\nnans = "local"\n[shapes]', r"unknown field `nans` \(did you mean 'nan'"),
    ],
)
def test_a_bad_task_toml_is_a_sentence(write_task: WriteTask, old: str, new: str, sentence: str) -> None:
    assert old in TASK_TOML
    folder = write_task(TASK_TOML.replace(old, new, 1))
    with pytest.raises(TaskError, match=sentence) as caught:
        load_task(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("def reference(x:\n", "SyntaxError"),
        ("import nowhere_to_be_found\n", "ModuleNotFoundError"),
        ("reference = 3\n", "doesn't define a function called 'reference'"),
    ],
)
def test_a_reference_that_cannot_be_loaded(write_task: WriteTask, code: str, sentence: str) -> None:
    with pytest.raises(TaskError, match=rf"reference\.py .*{sentence}"):
        load_task(write_task(reference=code))


def run(task: Task) -> None:
    task.expected(task.draw_inputs(SHAPE, 0), SHAPE)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("def reference(x):\n    return 1 / 0 * x\n", "reference raised ZeroDivisionError"),
        ("def reference(y):\n    return y\n", "has the parameter 'y'; it may use n, x"),
        (
            "def reference(x):\n    return x[:-1]\n",
            r"made 'out' with the shape \(129,\); at n=130 .* \(130,\)",
        ),
        ("def reference(x):\n    return x, x\n", r"returned 2 array\(s\) for 1 output"),
        ("def reference(x):\n    pass\n", "made 'out' of NoneType, not of numbers"),
        ("def reference(x):\n    return [[1, 2], [3]]\n", "which is no array"),
        ("def make_inputs():\n    return 3\n" + REFERENCE, "make_inputs must return a dictionary"),
        ("def make_inputs(n):\n    return {'x': [1.0] * n}\n" + REFERENCE, "made 'x' as float64"),
        ("def make_inputs(m):\n    return {}\n" + REFERENCE, "has the parameter 'm'"),
    ],
)
def test_a_reference_that_does_something_else(write_task: WriteTask, code: str, sentence: str) -> None:
    task = load_task(write_task(reference=code))
    with pytest.raises(TaskError, match=sentence) as caught:
        run(task)
    assert str(task.folder / "reference.py") in str(caught.value)
