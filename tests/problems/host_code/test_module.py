"""Modules on PyTorch tensors: arguments of launches, checks of shapes, outputs and scratch buffers."""

from typing import Any

import pytest
import torch

from mctskernel.core.kernel import Kernel
from mctskernel.problems.host_code import host_module
from tests.problems.host_code.test_module_text import CUDA, double, task

pytestmark = pytest.mark.slow


class Extension:
    """What a built extension would be: it says what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, *arguments))


def loaded(source: str) -> tuple[dict[str, Any], Extension]:
    """A module, whose extension is never built."""
    names: dict[str, Any] = {}
    exec(compile(source, "module.py", "exec"), names)  # noqa: S102 - what is tested
    extension = Extension()
    names["_extension"], names["_stream"] = lambda: extension, lambda _: 7
    return names, extension


def test_a_launch_gets_what_its_plan_says() -> None:
    names, extension = loaded(host_module(double(), Kernel(CUDA)))
    x = torch.ones(130)
    out = names["run"](x)
    assert extension.calls == [("launch_0", 3, 1, 1, 64, 1, 1, 0, 7, x.data_ptr(), out.data_ptr(), 130)]
    assert (out.shape, out.dtype) == ((130,), torch.float32)


def test_a_dimension_that_no_extent_equals_is_looked_up() -> None:
    names, extension = loaded(host_module(task("int4_matmul"), task("int4_matmul").starting_kernel))
    half = torch.bfloat16
    given = [
        torch.ones(3, 66, dtype=half),
        torch.ones(37, 33, dtype=torch.uint8),
        torch.ones(37, 3, dtype=half),
    ]
    names["run"](*given)
    assert extension.calls[0][-4:] == (3, 37, 66, 22)
    with pytest.raises(ValueError, match="none of those"):
        names["run"](*(tensor[:2] for tensor in given))


def test_tensors_that_do_not_fit_are_refused_in_words() -> None:
    names, extension = loaded(host_module(double(), Kernel(CUDA)))
    for x, said in (
        (torch.ones(3, 4), "dimension"),
        (torch.ones(3, dtype=torch.float64), "must hold torch.float32"),
        (torch.ones(0), "no elements"),
    ):
        with pytest.raises(ValueError, match=said):
            names["run"](x)
    assert not extension.calls
    names, _ = loaded(host_module(task("matmul"), task("matmul").starting_kernel))
    with pytest.raises(ValueError, match=r"b has the shape \(5, 6\); .* it must be \(4, 6\)"):
        names["run"](torch.ones(3, 4), torch.ones(5, 6))
