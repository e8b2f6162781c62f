"""What the cases of a GPU MODE task show of its data, its reference and its check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from mctskernel.core.dtypes import DTYPE_BYTES
from mctskernel.core.task import TaskError
from mctskernel.problems.gpu_mode.program import Compared, Program
from mctskernel.problems.gpu_mode.structure import Path, leaves, subscripts

SEED = 7
"""What the cases are looked at with."""

_DTYPES = frozenset(each for each in DTYPE_BYTES if not each.startswith("float8"))


@dataclass(frozen=True)
class Case:
    """A case as it was seen: its data and the reference's outputs, or what stands for them on `meta`."""

    data: Any
    outputs: tuple[Any, ...]
    comparisons: tuple[Compared, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors and outputs."""
        return sum(each.numel() * each.element_size() for each in (*self.tensors.values(), *self.outputs))

    @property
    def tensors(self) -> dict[Path, Any]:
        """The tensors of its data."""
        return {path: leaf for path, leaf in leaves(self.data) if isinstance(leaf, torch.Tensor)}


def seen(program: Program, arguments: Mapping[str, Any]) -> Case:
    """A case without its numbers, where its Python lets them be missing; with them otherwise."""
    try:
        return _run(replace(program, device="meta"), arguments)
    except TaskError:
        return _run(program, arguments)


def check_alike(cases: Sequence[Case]) -> None:
    """All cases must have the same structure, with tensors and values of the same kinds."""
    first = [(path, _kind(leaf)) for path, leaf in leaves(cases[0].data)]
    outputs = [_kind(each) for each in cases[0].outputs]
    for path, kind in first:
        if kind.rank is None and kind.name:
            raise TaskError(
                f"Its generate_input gives a {kind.name} ({_where(path)}) where a tensor or a plain value is needed."
            )
        if kind.rank is not None and kind.name not in _DTYPES:
            raise TaskError(
                f"Its generate_input gives a tensor of {kind.name} ({_where(path)}), which isn't supported."
            )
    for case in cases[1:]:
        if [(path, _kind(leaf)) for path, leaf in leaves(case.data)] != first:
            raise TaskError("Its generate_input gives data of another structure in some of its cases.")
        if [_kind(each) for each in case.outputs] != outputs:
            raise TaskError("Its ref_kernel gives outputs of other types in some of its cases.")
    strange = next((each.name for each in outputs if each.name not in _DTYPES), None)
    if strange is not None:
        raise TaskError(f"Its ref_kernel gives a tensor of {strange}, which isn't supported.")


def buffers_of(program: Program, data: Any, cases: Sequence[Case]) -> dict[Path, str]:
    """Tensors that are there for an output to be written into, and that output: of its kind, and never read.

    Raises TaskError for a reference that isn't deterministic, or changes what it reads.
    """
    before = _cloned(data)
    expected = _tensors_of(program.reference(data))
    if not _same(expected, _tensors_of(program.reference(_cloned(before)))):
        raise TaskError(
            "Its ref_kernel isn't deterministic: two calls with equal data give different outputs."
        )
    found: dict[Path, str] = {}
    names = output_names(len(expected))
    changed = dict(leaves(data))
    for path, leaf in leaves(before):
        if not isinstance(leaf, torch.Tensor):
            continue
        fits = (
            name
            for number, name in enumerate(names)
            if name not in found.values() and _always_as_large(cases, path, number)
        )
        name = next(fits, None)
        if name is not None and _is_unread(program, before, path, expected):
            found[path] = name
        elif not _same([leaf], [changed[path]]):
            raise TaskError("Its ref_kernel changes its inputs, which is supported for outputs alone.")
    return found


def output_names(count: int) -> list[str]:
    """The names of a task's outputs."""
    return ["out"] if count == 1 else [f"out{number}" for number in range(count)]


def dtype_name(tensor: Any) -> str:
    """The name of a tensor's element type."""
    return str(tensor.dtype).removeprefix("torch.")


def _run(program: Program, arguments: Mapping[str, Any]) -> Case:
    data = program.generate(arguments, SEED)
    found = program.reference(_cloned(data))
    outputs = tuple(leaf for _, leaf in leaves(found))
    if not outputs or not all(isinstance(each, torch.Tensor) for each in outputs):
        raise TaskError("Its ref_kernel gives something else than tensors.")
    comparisons = program.comparisons(data, found)
    if not comparisons:
        raise TaskError(
            "Its check_implementation doesn't compare with the reference's output (no verbose_allclose, "
            "verbose_allequal or torch.allclose): what it checks can't be verified here."
        )
    return Case(data, outputs, comparisons)


def _cloned(data: Any) -> Any:
    """The data with tensors of its own: a reference may write into what it gets."""
    match data:
        case tuple():
            return tuple(_cloned(item) for item in data)
        case list():
            return [_cloned(item) for item in data]
        case dict():
            return {key: _cloned(item) for key, item in data.items()}
        case torch.Tensor():
            return data.clone()
        case _:
            return data


class _Kind(NamedTuple):
    """A tensor's dtype and rank; of a leaf that is none its type, empty for a plain value."""

    name: str
    rank: int | None = None


def _kind(leaf: Any) -> _Kind:
    if isinstance(leaf, torch.Tensor):
        return _Kind(dtype_name(leaf), leaf.dim())
    is_plain = leaf is None or isinstance(leaf, bool | int | float | str)
    return _Kind("" if is_plain else type(leaf).__name__)


def _where(path: Path) -> str:
    return f"data{subscripts(path)}"


def _always_as_large(cases: Sequence[Case], path: Path, number: int) -> bool:
    pairs = ((case.tensors[path], case.outputs[number]) for case in cases)
    return all(one.shape == other.shape and one.dtype == other.dtype for one, other in pairs)


def _is_unread(program: Program, data: Any, path: Path, expected: Sequence[Any]) -> bool:
    for fill in (0, 1):
        changed = _cloned(data)
        leaf = dict(leaves(changed))[path]
        leaf.fill_(fill)
        try:
            if not _same(_tensors_of(program.reference(changed)), expected):
                return False
        except TaskError:
            return False
    return True


def _tensors_of(result: Any) -> list[Any]:
    return [leaf for _, leaf in leaves(result)]


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return all(
        torch.allclose(a.double(), b.double(), rtol=0, atol=0, equal_nan=True)
        for a, b in zip(some, others, strict=True)
    )
