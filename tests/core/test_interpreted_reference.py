"""References that a model wrote: they compute what Python would, and reach nothing."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.core import interpreted_reference
from mctskernel.core.interpreted_reference import InterpretedReference
from mctskernel.core.reference_language import RefusedReferenceError
from mctskernel.core.task import TaskError
from mctskernel.core.task_file import load_task
from mctskernel.tasks import builtin_tasks

X = np.linspace(-2.0, 3.0, 35).reshape(5, 7)


def of(body: str, parameters: str = "x") -> InterpretedReference:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return InterpretedReference(
        f"import math\n\nimport numpy as np\n\n\ndef reference({parameters}):\n{lines}"
    )


def as_python(body: str, parameters: str = "x") -> Any:
    """The same, run by Python: these are our own texts."""
    names: dict[str, Any] = {"np": np, "math": __import__("math")}
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    exec(f"def reference({parameters}):\n{lines}", names)  # noqa: S102 - a text of this test
    return names["reference"]


@pytest.mark.parametrize(
    "body",
    [
        "return x.sum(axis=1)",
        "e = np.exp(x - x.max(axis=-1, keepdims=True))\nreturn e / e.sum(axis=-1, keepdims=True)",
        "rows, cols = x.shape\nout = np.zeros((rows, cols), dtype=x.dtype)\n"
        "for i in range(rows):\n    out[i] += x[i] * i\n    if i > 2:\n        return out\nreturn -out",
        "return x.T @ x, np.einsum('ij,kj->ik', x, x)",
        "return np.maximum.accumulate(x, axis=1)[:, ::-1]",
        "return np.where((x > 0) & (x < 2), x ** 2, 0.0 if x.ndim == 2 else 1.0)",
        "y: float = math.sqrt(len(x)) * math.pi\nreturn x[:, None, 1:3] * y",
        "return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))",
        "out = np.zeros(x.shape, np.float32)\nagain = out\nout += x\nout *= 3.0\nreturn again, np.ones(3, bool)",
        "t = x.shape[:1] + (1,)\nreturn np.broadcast_to(x.mean(axis=1).reshape(t), x.shape).astype(np.float32)",
        "return x if not (x.size > 3 and x.size < 9) or False else -x",
    ],
)
def test_it_computes_what_python_would(body: str) -> None:
    found, expected = of(body)(x=X), as_python(body)(X)
    for one, other in zip(
        found if isinstance(found, tuple) else (found,),
        expected if isinstance(expected, tuple) else (expected,),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


HOSTILE = (
    "return x.__class__",
    "return np.load('a')",
    "return x.tofile('a')",
    "return x.dump('a')",
    "return x.ctypes",
    "return np.ctypeslib",
    "return np.lib.npyio",
    "return np.core",
    "return np.fromfile('/etc/passwd')",
    "return np.frompyfunc(x, 1, 1)",
    "return np.vectorize(x)",
    "return np.memmap",
    "return open('a')",
    "return eval('1')",
    "return __import__('os')",
    "import os\nreturn x",
    "global np\nreturn x",
    "return [y for y in x]",
    "return (lambda: x)()",
    "while True:\n    pass",
    "with x:\n    pass",
    "try:\n    return x\nexcept x:\n    pass",
    "return f'{x.shape}'",
    "return 'text'",
    "return '{0.__class__}'.format(x)",
    "return x.sum(out=x)",
    "return x.astype('O')",
    "return x.astype(object)",
    "np = x\nreturn np.ctypes",
    "sum = x\nreturn sum",
    "return x.shape.__len__()",
    "return int.from_bytes(x)",
    "return np.where(*x)",
    "return (y := x)",
    "return 10 ** 10 ** 10",
    "return 1 << 1000000",
    "y = 3\nfor i in range(100):\n    y = y * y\nreturn y",
    "return np.zeros((1 << 20, 1 << 20))",
    "return np.tile(x, 1 << 40)",
    "return x.repeat(1 << 40)",
    "return np.array((x, x)).reshape((-1, 1)) * np.ones((1, 1 << 24))",
    "y = np.arange(1 << 22)\nreturn y[:, None] @ y[None, :]",
    "y = np.arange(1 << 22)\nreturn np.dot(y[:, None], y[None, :])",
    "y = np.arange(1 << 22)\nreturn np.einsum('i,j->ij', y, y)",
    "y = np.arange(1 << 22)\nreturn np.einsum('i,j', y, y)",
    "y = np.arange(1 << 22)\nreturn np.maximum(y[:, None], y[None, :])",
    "y = np.arange(1 << 22)\nreturn np.outer(y, y)",
    "y = np.arange(1 << 22)\nreturn y.repeat(y)",
    "return np.bincount(np.full(3, 1 << 40))",
    "return np.einsum('...i->...', x)",
    "return (x,) * 5",
    "class A:\n    pass",
    "def f():\n    return x\nreturn f()",
    "del x",
    "assert x",
    "return print(x)",
    "return getattr(x, 'T')",
    "return np",
    "return x.sum",
    "return -x.shape",
    "return y",
)


@pytest.mark.parametrize("body", HOSTILE)
def test_what_goes_beyond_computing_is_refused(body: str) -> None:
    with pytest.raises(RefusedReferenceError, match=r"^Line \d+: .+\.$"):
        of(body)(x=X)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "x = 1",
        "def reference(x)",
        "import os\n\n\ndef reference(x):\n    return x\n",
        "from os import system\n\n\ndef reference(x):\n    return x\n",
        "import numpy.ctypeslib as np\n\n\ndef reference(x):\n    return x\n",
        "@print\ndef reference(x):\n    return x\n",
        "def reference(x, y=open('a')):\n    return x\n",
        "def reference(*x):\n    return x\n",
        "async def reference(x):\n    return x\n",
        "def reference(x):\n    return x\n\n\nreference(1)\n",
        "def reference(x):\n    return x\n\n\ndef reference(x):\n    return x\n",
        "def reference(x):\n    return " + "(" * 5000 + "x" + ")" * 5000,
        "def reference(x):\n    return x" + " + x" * 20000,
    ],
)
def test_there_is_one_plain_function(source: str) -> None:
    with pytest.raises(RefusedReferenceError):
        InterpretedReference(source)


def test_inputs_stay_as_they_are() -> None:
    x = X.copy()
    for body in ("x[0] = 1\nreturn x", "y = x[1:]\ny[0] = 1\nreturn y", "np.clip(x, 0, 1, x)\nreturn x"):
        with pytest.raises((ValueError, TypeError)):
            of(body)(x=x)
    with pytest.raises(RefusedReferenceError, match="in place"):
        of("x += 1\nreturn x")(x=x)
    np.testing.assert_array_equal(x, X)


def test_a_loop_without_end_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreted_reference, "MAX_SECONDS", 0.05)
    with pytest.raises(RefusedReferenceError, match="takes more than"):
        of("for i in range(1 << 60):\n    pass\nreturn x")(x=X)


def test_its_parameters_are_known() -> None:
    assert list(inspect.signature(of("return x", "x, rows, eps")).parameters) == ["x", "rows", "eps"]


ATOMS = ("x", "np", "math", "1", "'a'", "x.T", "np.exp", "open", "None", "__builtins__", "x.shape", "slice")
SHAPES = ("{0}({1})", "{0}.{1}", "{0}[{1}]", "{0} + {1}", "({0}, {1})", "{0} ** {1}", "{0} @ {1}", "-{0}")


@given(st.lists(st.tuples(st.sampled_from(SHAPES), st.sampled_from(ATOMS)), min_size=1, max_size=6))
def test_whatever_is_written_nothing_but_an_array_or_a_refusal_comes_out(
    parts: list[tuple[str, str]],
) -> None:
    text = "x"
    for shape, atom in parts:
        text = shape.format(text, atom)
    try:
        with np.errstate(all="ignore"):
            found = of(f"return {text}")(x=X)
    except (RefusedReferenceError, ValueError, TypeError, IndexError, ArithmeticError):
        return
    assert _is_plain(found)


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, int | float | np.ndarray | np.generic | type)


def test_an_unanchored_task_never_runs_its_reference(tmp_path: Path, small_task: Path) -> None:
    for file in small_task.iterdir():
        (tmp_path / file.name).write_text(file.read_text())
    text = (tmp_path / "task.toml").read_text()
    (tmp_path / "task.toml").write_text(f"unanchored = true\n{text}")
    task = load_task(tmp_path)
    assert task.unanchored
    shape = task.verify_shapes[1]
    inputs = task.draw_inputs(shape, seed=0)
    np.testing.assert_array_equal(task.expected(inputs, shape)["out"], 2 * inputs["x"])
    trap = tmp_path / "trap"
    (tmp_path / "reference.py").write_text(
        f"open({str(trap)!r}, 'w').close()\n\n\ndef reference(x):\n    return 2 * x\n"
    )
    with pytest.raises(TaskError, match="unanchored"):
        load_task(tmp_path)
    assert not trap.exists()
    (tmp_path / "task.toml").write_text(text)
    assert not load_task(tmp_path).unanchored
    assert trap.exists(), "a reference that is vouched for is the user's own"


def test_the_language_is_large_enough_for_most_built_in_tasks() -> None:
    beyond = []
    for name, folder in builtin_tasks().items():
        try:
            InterpretedReference((folder / "reference.py").read_text())
        except RefusedReferenceError as refused:
            beyond.append(f"{name}: {refused}")
    assert len(beyond) <= len(builtin_tasks()) // 4, beyond


@pytest.mark.parametrize("name", sorted(builtin_tasks()))
def test_built_in_references_say_the_same_when_they_are_interpreted(name: str) -> None:
    task = load_task(builtin_tasks()[name])
    try:
        interpreted = replace(task, reference=InterpretedReference(task.reference_source), make_inputs=None)
    except RefusedReferenceError:
        pytest.skip("written in more of Python")
    for shape in task.verify_shapes:
        inputs = task.draw_inputs(shape, seed=0)
        expected = task.expected(inputs, shape)
        for output, array in interpreted.expected(inputs, shape).items():
            np.testing.assert_array_equal(array, expected[output])
