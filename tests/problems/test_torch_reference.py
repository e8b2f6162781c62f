"""References that PyTorch computes."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.func import functional_call  # noqa: E402 - an extra

from mctskernel.core.dtypes import numpy_dtype  # noqa: E402 - as above
from mctskernel.core.tensor_array import TensorArray, on_device  # noqa: E402 - as above
from mctskernel.problems.torch_reference import captured, find_function, in_numpy  # noqa: E402 - as above

pytestmark = pytest.mark.slow


class Overlapping(torch.nn.Module):
    """Lets a call that comes while another is under way find it there."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self._others = threading.Barrier(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            self._others.wait(0.05)
        except threading.BrokenBarrierError:
            self._others.reset()
        return x * self.weight + torch.ones(1)


def test_calls_from_several_threads_keep_their_parameters_and_precision() -> None:
    model = Overlapping()

    def scaled(kind: type[np.floating], weight: float) -> np.ndarray:
        found = in_numpy(
            lambda x, w: functional_call(model, {"weight": w}, (x,)),
            np.ones(3, kind),
            np.full(1, weight, kind),
        )
        assert isinstance(found, np.ndarray)
        return found

    wanted = [(np.float32, 2.0), (np.float64, 3.0)] * 3
    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(lambda each: scaled(*each), wanted))
    for found, (kind, weight) in zip(results, wanted, strict=True):
        assert found.dtype == kind
        np.testing.assert_array_equal(found, np.full(3, weight + 1, kind))


def test_the_function_of_a_reference_is_captured_without_a_call() -> None:
    with captured() as found:
        in_numpy(torch.neg)
        raise AssertionError("the block ends where the function would be called")
    assert found == [torch.neg]
    np.testing.assert_array_equal(in_numpy(torch.neg, np.ones(3)), -np.ones(3))


@pytest.mark.parametrize("name", ["float32", "float64", "int64", "bfloat16", "float8_e5m2"])
def test_tensors_are_computed_on_where_they_are(name: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x += torch.ones(1).to(x.dtype)
        return x * 2

    array = np.full(3, 7.1).astype(numpy_dtype(name))
    given = on_device(array, "cpu")
    assert isinstance(given, TensorArray)
    assert (given.dtype, given.shape, given.size) == (array.dtype, (3,), 3)
    found = in_numpy(function, given)
    assert isinstance(found, TensorArray)
    np.testing.assert_array_equal(np.asarray(found), in_numpy(function, array))
    np.testing.assert_array_equal(np.asarray(given), array, "its own numbers stay")
    assert given.astype(np.float64).dtype == np.float64


def test_torch_compile_finds_what_a_file_imports(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(
        "import torch.nn.functional as F\n\n\ndef run(x):\n    return F.relu(x)\n"
    )
    run = find_function(str(tmp_path / "run.py"), "run")
    compiled = torch.compile(lambda x: run(x), backend="eager")  # noqa: PLW0108 - as it is called
    assert torch.equal(compiled(torch.tensor([-1.0, 2.0])), torch.tensor([0.0, 2.0]))
