"""The cases of a GPU MODE problem, run on the CPU or on `meta`: tensors, outputs, tolerances, dimensions."""

from __future__ import annotations

import keyword
import random
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.utils import _pytree as pytree

from mctskernel.core.dtypes import DTYPE_BYTES
from mctskernel.core.expression import evaluate_int
from mctskernel.core.task import Bound, TaskError
from mctskernel.problems.gpu_mode.task_file import Arguments
from mctskernel.problems.one_device import OnDevice
from mctskernel.problems.problem import blamed
from mctskernel.problems.torch_reference import dtype_name

MOST_SEED = 1 << 16  # seeds are small, because some problems add them to their numbers

_NEEDED = ("generate_input", "ref_kernel", "check_implementation")


@dataclass
class Program(MetaPathFinder, Loader):
    """The modules of a problem, which import each other by name. Its functions run with everything on one device."""

    texts: Mapping[str, str]
    device: str = "cpu"
    modules: dict[str, types.ModuleType] = field(default_factory=dict)

    def generate(self, arguments: Arguments, seed: int) -> Any:
        """Call `generate_input`, with a seed of ours in place of the case's. Raises TaskError."""
        given = {**arguments, **({"seed": seed} if "seed" in arguments else {})}
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        return self._call("generate_input", **given)

    def reference(self, data: Any) -> Any:
        """Call `ref_kernel`. Raises TaskError."""
        return self._call("ref_kernel", data)

    def comparisons(self, data: Any, output: Any) -> tuple[Bound, ...]:
        """What `check_implementation` compares of an output. Raises TaskError if it refuses the reference's own."""
        made: list[Bound] = []
        with ExitStack() as stack:
            for module in (*self.modules.values(), torch, torch.testing):
                for name, spy in _spies(made).items():
                    if callable(getattr(module, name, None)):
                        stack.enter_context(patch.object(module, name, spy))
            verdict = self._call("check_implementation", data, output)
        passed = verdict[0] if isinstance(verdict, tuple) else not verdict
        if not passed:
            raise TaskError("Its check_implementation refuses the output of its own ref_kernel.")
        return tuple(made)

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        return spec_from_loader(fullname, self) if fullname in self.texts else None

    def exec_module(self, module: types.ModuleType) -> None:
        self.modules[module.__name__] = module
        code = compile(self.texts[module.__name__], f"{module.__name__}.py", "exec")
        exec(code, module.__dict__)  # noqa: S102 - the user's own problem, run as loading a task does

    @contextmanager
    def importable(self) -> Iterator[None]:
        """Within the block the problem's modules can be imported, and nothing of them is left behind."""
        before = {name: sys.modules.pop(name) for name in self.texts if name in sys.modules}
        sys.modules.update(self.modules)
        sys.meta_path.insert(0, self)
        try:
            yield
        finally:
            sys.meta_path.remove(self)
            for name in self.texts:
                sys.modules.pop(name, None)
            sys.modules.update(before)

    def _call(self, name: str, *arguments: Any, **named: Any) -> Any:
        function = getattr(self.modules["reference"], name)
        with blamed(f"Its {name} raised"), self.importable(), _on(self.device), torch.no_grad():
            return function(*arguments, **named)


def load_program(texts: Mapping[str, str]) -> Program:
    """Run the modules of a problem. Raises TaskError."""
    program = Program(texts)
    with blamed("reference.py can't be loaded:"), program.importable(), _on("cpu"):
        __import__("reference")
    missing = [name for name in _NEEDED if not callable(getattr(program.modules["reference"], name, None))]
    if missing:
        raise TaskError(f"reference.py defines no function called '{missing[0]}'.")
    return program


def _spies(made: list[Bound]) -> Mapping[str, Callable[..., Any]]:
    """Stand-ins for functions that compare, which record the tolerance and find everything equal."""

    def spy(result: Any, relative: float = 0.0, absolute: float = 0.0) -> Callable[..., Any]:
        def compare(*_: Any, rtol: Any = None, atol: Any = None, **__: Any) -> Any:
            tolerances = (relative if rtol is None else rtol, absolute if atol is None else atol)
            made.append(Bound(*map(float, tolerances)))
            return result

        return compare

    return {
        "verbose_allclose": spy([], 1e-5, 1e-8),
        "verbose_allequal": spy([]),
        "allclose": spy(True, 1e-5, 1e-8),  # noqa: FBT003 - what it returns
        "equal": spy(True),  # noqa: FBT003 - as above
        "assert_close": spy(None),
    }


@contextmanager
def _on(device: str) -> Iterator[None]:
    with (
        patch.object(torch, "Generator", _Generator),
        patch.object(torch.cuda, "synchronize", lambda *_: None),
        torch.device(device),
        OnDevice(device),
    ):
        yield


class _Generator(torch.Generator):
    """A random number generator on the CPU, for any device."""

    def __new__(cls, device: Any = "cpu") -> _Generator:  # noqa: ARG004 - the device is ignored
        return super().__new__(cls, "cpu")  # type: ignore[call-arg] # PyTorch types it as an __init__


SEED = 7  # the seed of the cases that are looked at

_DTYPES = frozenset(each for each in DTYPE_BYTES if not each.startswith("float8"))

_MOST_NAMES = 12  # dimensions whose pairs are tried in expressions

Sizes = tuple[int, ...]  # an extent in each case


@dataclass(frozen=True)
class Case:
    """The data of a case and the reference's outputs, or stand-ins without values on `meta`."""

    data: Any
    outputs: tuple[Any, ...]
    comparisons: tuple[Bound, ...]

    @property
    def leaves(self) -> dict[str, Any]:
        return {pytree.keystr(path): leaf for path, leaf in pytree.tree_flatten_with_path(self.data)[0]}

    @property
    def tensors(self) -> dict[str, Any]:
        return {place: leaf for place, leaf in self.leaves.items() if isinstance(leaf, torch.Tensor)}

    @property
    def nbytes(self) -> int:
        return sum(each.numel() * each.element_size() for each in (*self.tensors.values(), *self.outputs))


def run_case(program: Program, arguments: Mapping[str, Any]) -> Case:
    """Run a case, on `meta` tensors without values where its Python allows that."""
    try:
        return _run(replace(program, device="meta"), arguments)
    except TaskError:
        return _run(program, arguments)


def check_alike(cases: Sequence[Case]) -> None:
    """Raise TaskError unless all cases have the same structure, and tensors of supported types."""
    first = {place: _kind(leaf) for place, leaf in cases[0].leaves.items()}
    outputs = [_kind(each) for each in cases[0].outputs]
    for place, kind in first.items():
        if isinstance(kind, str):
            raise TaskError(
                f"Its generate_input gives a {kind} (data{place}); use a tensor or a plain value."
            )
    tensors = {f"generate_input (data{place})": kind for place, kind in first.items() if kind}
    for what, kind in (*tensors.items(), *(("ref_kernel", each) for each in outputs)):
        if kind is not None and kind[0] not in _DTYPES:
            raise TaskError(f"Its {what} gives a tensor of {kind[0]}, which isn't supported.")
    for case in cases[1:]:
        if {place: _kind(leaf) for place, leaf in case.leaves.items()} != first:
            raise TaskError("Its generate_input gives data of another structure in some of its cases.")
        if [_kind(each) for each in case.outputs] != outputs:
            raise TaskError("Its ref_kernel gives outputs of other types in some of its cases.")


def find_buffers(program: Program, data: Any, cases: Sequence[Case]) -> dict[str, str]:
    """Tensors that only receive an output, with its name. Raises TaskError for an impure reference."""
    before = cloned(data)
    expected = pytree.tree_leaves(program.reference(data))
    if not _same(expected, pytree.tree_leaves(program.reference(cloned(before)))):
        raise TaskError("Its ref_kernel isn't deterministic: equal data gives different outputs.")
    found: dict[str, str] = {}
    names = output_names(len(expected))

    def is_alike(place: str, number: int) -> bool:
        pairs = [(case.tensors[place], case.outputs[number]) for case in cases]
        return all((a.dtype, a.shape) == (b.dtype, b.shape) for a, b in pairs)

    leaves = pytree.tree_flatten_with_path(before)[0]
    for index, ((path, leaf), changed) in enumerate(zip(leaves, pytree.tree_leaves(data), strict=True)):
        if not isinstance(leaf, torch.Tensor):
            continue
        place = pytree.keystr(path)
        free = [name for n, name in enumerate(names) if name not in found.values() and is_alike(place, n)]
        if free and _is_unread(program, before, index, expected):
            found[place] = free[0]
        elif not _same([leaf], [changed]):
            raise TaskError("Its ref_kernel changes its inputs, which is supported for outputs alone.")
    return found


def output_names(count: int) -> list[str]:
    return ["out"] if count == 1 else [f"out{number}" for number in range(count)]


def cloned(data: Any) -> Any:
    """The data with copies of its tensors, since a reference may write into them."""
    return pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, data)


@dataclass
class Dimensions:
    """The dimensions so far, by their sizes in each case, and the integer arguments that may become dimensions."""

    arguments: Mapping[str, Sizes]
    taken: frozenset[str]
    sizes: dict[str, Sizes] = field(default_factory=dict)

    def extent(self, sizes: Sizes, name: str) -> int | str:
        """An extent as a number or an expression; a new dimension of this name where it is neither."""
        known = self.known(sizes)
        return self._new(name, sizes) if known is None else known

    def known(self, sizes: Sizes) -> int | str | None:
        """An extent as a number or an expression over dimensions and arguments, or None."""
        if len(set(sizes)) == 1:
            return sizes[0]
        candidates = {**self.sizes, **self.arguments}
        for name, vector in candidates.items():
            if vector == sizes:
                return self._take(name, vector)
        vectors = {name: vector for name, vector in candidates.items() if min(vector) > 0}
        vectors = dict(list(vectors.items())[:_MOST_NAMES])
        if min(sizes) < 1:
            return None
        for text, names in _expressions({name: vector[0] for name, vector in vectors.items()}, sizes[0]):
            shapes = ({name: vectors[name][case] for name in names} for case in range(len(sizes)))
            if all(evaluate_int(text, shape) == size for shape, size in zip(shapes, sizes, strict=True)):
                for name in names:
                    self._take(name, vectors[name])
                return text
        return None

    def _take(self, name: str, vector: Sizes) -> str:
        return name if name in self.sizes else self._new(name, vector)

    def _new(self, name: str, vector: Sizes) -> str:
        while name in self.taken or name in self.sizes or keyword.iskeyword(name):
            name += "_"
        self.sizes[name] = vector
        return name


def _expressions(known: Mapping[str, int], size: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Expressions that give a size: of one dimension and a number, then of two dimensions."""
    for name, one in known.items():
        if size % one == 0:
            yield f"{size // one} * {name}", (name,)
        if one % size == 0:
            yield f"{name} // {one // size}", (name,)
        if size != one:
            yield f"{name} {size - one:+d}", (name,)
    for a, x in known.items():
        for b, y in known.items():
            if a <= b and size % (x * y) == 0:
                factor = size // (x * y)
                yield f"{a} * {b}" if factor == 1 else f"{factor} * {a} * {b}", (a, b)
            if a != b:
                yield f"{a} // {b}", (a, b)
                yield f"{a} - {b} {size - x + y:+d}", (a, b)
            if a < b:
                yield f"{a} + {b} {size - x - y:+d}", (a, b)


def _run(program: Program, arguments: Mapping[str, Any]) -> Case:
    data = program.generate(arguments, SEED)
    found = program.reference(cloned(data))
    outputs = tuple(pytree.tree_leaves(found))
    if not outputs or not all(isinstance(each, torch.Tensor) for each in outputs):
        raise TaskError("Its ref_kernel gives something else than tensors.")
    comparisons = program.comparisons(data, found)
    if not comparisons:
        raise TaskError(
            "Its check_implementation doesn't compare with the reference's output (no verbose_allclose, "
            "verbose_allequal or torch.allclose), so its tolerance is unknown."
        )
    return Case(data, outputs, comparisons)


def _kind(leaf: Any) -> tuple[str, int] | str | None:
    """A tensor's element type and rank; None for a plain value; the type of anything else."""
    if isinstance(leaf, torch.Tensor):
        return dtype_name(leaf), leaf.dim()
    is_plain = leaf is None or isinstance(leaf, bool | int | float | str)
    return None if is_plain else type(leaf).__name__


def _is_unread(program: Program, data: Any, index: int, expected: Sequence[Any]) -> bool:
    for fill in (0, 1):
        changed = cloned(data)
        pytree.tree_leaves(changed)[index].fill_(fill)
        try:
            if not _same(pytree.tree_leaves(program.reference(changed)), expected):
                return False
        except TaskError:
            return False
    return True


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return all(
        torch.allclose(a.double(), b.double(), rtol=0, atol=0, equal_nan=True)
        for a, b in zip(some, others, strict=True)
    )
