"""A user's own Triton kernels as a starting kernel, from the function that launches them.

The function is called on fake tensors at several shapes. Its launches are recorded in place of run (`_recorded`): an
argument or an extent of a grid is then the first expression over dimensions and block sizes that gives the recorded
number at every shape (`_Fitted`). Kernels are written with the functions that they call and without what only hosts
know: decorators, texts and types among the arguments, names of other modules (`_Functions`).
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, combinations
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from mctskernel.core.expression import evaluate
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import Launch, LaunchPlan, Scratch, TritonOptions
from mctskernel.core.task import Shape, TaskError, Tensor
from mctskernel.edits.plan_text import with_plan
from mctskernel.problems.inductor.triton_helpers import jitted, parsed
from mctskernel.problems.torch_reference import dtype_name
from mctskernel.problems.torch_task import TorchTask
from mctskernel.profiling.triton.names import LANGUAGE, LIBDEVICE, MATH
from mctskernel.profiling.triton.source import RESERVED, SourceError, read_module
from mctskernel.tasks.template import Drafted

class UnclearError(TaskError):
    """A number of a launch that follows from the dimensions in no way that is known."""


Launcher = Callable[..., Any]
MOST_CONFIGS = 8  # of an autotuned kernel, each of which becomes a start
MULTIPROCESSORS = 132  # of an H100 and an H200, for launchers that ask where there is no GPU

_DTYPES = {"bool": "int1"}  # where Triton has another name
_EMPTY = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}
_ZEROS = {"zeros", "zeros_like", "new_zeros", "zero_"}


@dataclass(frozen=True)
class _Given:
    """A tensor that a launch is given: the number of its storage, and its type as candidates call it."""

    storage: int
    dtype: str


@dataclass
class _Recorded:
    """What a call of the launcher does at one shape; storages are numbered in the order in which they are seen."""

    launches: list[_Launch] = field(default_factory=list)
    storages: list[Any] = field(default_factory=list)
    made_by: dict[int, str] = field(default_factory=dict)
    returned: tuple[int, ...] = ()
    configs: int = 1

    @property
    def kernels(self) -> list[Any]:
        return [each.kernel for each in self.launches]

    def number(self, tensor: Any) -> int:
        storage = tensor.untyped_storage()
        known = (n for n, each in enumerate(self.storages) if each[0]._cdata == storage._cdata)  # noqa: SLF001
        found = next(known, None)
        if found is None:
            self.storages.append((storage, dtype_name(tensor), storage.nbytes() // tensor.element_size()))
            return len(self.storages) - 1
        return found

    def given(self, tensor: Any) -> int:
        """The storage of a tensor whose values kernels alone make. Raises TaskError for others."""
        found = self.number(tensor)
        made = self.made_by.get(found, "")
        if made not in {"", *_EMPTY, *_ZEROS}:
            raise TaskError(f"The launcher computes a tensor by PyTorch's {made}, which is no kernel of its own.")
        if tensor.storage_offset():
            raise TaskError("The launcher gives a kernel a part of a tensor that doesn't begin where it begins.")
        return found


@dataclass(frozen=True)
class _Launch:
    """A launch at one shape. `at` gives those numbers for other constexprs that are functions of them.

    Extents of the grid are among the numbers, under their axes.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    options: Mapping[str, Any]
    at: Callable[[Mapping[str, Any]], Mapping[str | int, Any]]


def launched_kernels(task: TorchTask, launcher: Launcher) -> Drafted:
    """The starting kernels, one for each configuration of an autotuned kernel. Raises TaskError."""
    first = recorded(launcher, task.inputs, task.sizes)
    shapes = [task.sizes, *_shapes(task, launcher)]
    if not first.launches:
        raise TaskError("The launcher launches no Triton kernel.")
    found = []
    for choice in range(min(first.configs, MOST_CONFIGS)):
        calls = [recorded(launcher, task.inputs, shape, choice) for shape in shapes]
        text = _source(calls, shapes, [each.name for each in task.inputs], task.outputs)
        try:
            read_module(text)
        except SourceError as error:
            raise TaskError(f"The Triton kernels can't become a candidate: {error}") from error
        found.append(text)
    first_text, *others = dict.fromkeys(found)
    files = {f"start_config_{number}.py": text for number, text in enumerate(others, 2)}
    return Drafted({"kernel.py": first_text, **files}, ())


def _shapes(task: TorchTask, launcher: Launcher) -> Iterator[Shape]:
    """Shapes at which no two dimensions are alike, and those that the task verifies at."""
    apart = [
        {**task.distinct, name: size}
        for name, usual in task.distinct.items()
        for size in (2 * usual, 5 * usual, task.sizes[name])
    ]
    kernels = recorded(launcher, task.inputs, task.sizes).kernels
    for shape in (task.distinct, *apart):
        with suppress(Exception):  # the launcher may raise anything at shapes that it doesn't take
            if recorded(launcher, task.inputs, shape).kernels == kernels:
                yield shape
    yield from (*task.verify, *task.held_out)


def recorded(launcher: Launcher, inputs: Sequence[Tensor], shape: Shape, choice: int = 0) -> _Recorded:
    """What a launcher does with fake tensors at a shape; of autotuned configurations the `choice`-th is taken."""
    import torch  # noqa: PLC0415 - an extra
    from torch._subclasses import fake_tensor  # noqa: PLC0415
    from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC0415
    from triton.runtime.autotuner import Autotuner, Heuristics  # noqa: PLC0415
    from triton.runtime.jit import JITFunction, KernelInterface  # noqa: PLC0415

    found = _Recorded()

    class Made(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            name = func.overloadpacket.__name__
            for each in result if isinstance(result, tuple | list) else [result]:
                if isinstance(each, torch.Tensor):
                    before = len(found.storages)
                    number = found.number(each)
                    if number >= before or name.endswith("_"):
                        found.made_by[number] = name
            return result

    heuristics: dict[str, Any] = {}

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:  # noqa: FBT001
        named = dict(zip(kernel.arg_names, args, strict=False))
        options = {name: value for name, value in kwargs.items() if name not in kernel.arg_names}
        named |= {name: value for name, value in kwargs.items() if name in kernel.arg_names}
        if warmup:  # the compiled kernel, asked for its resources and then launched
            def again(extents: Any) -> Any:
                return lambda *given: run(kernel, *given, grid=extents, warmup=False, **options)

            metadata = SimpleNamespace(shared=0, num_warps=options.get("num_warps", 4))
            return _Compiled(again, n_regs=32, n_spills=0, metadata=metadata, _init_handles=lambda: None)
        defaults = {p.name: p.default for p in kernel.params if p.has_default}
        arguments = {name: named.get(name, defaults.get(name)) for name in kernel.arg_names}
        own = dict(heuristics)

        def at(values: Mapping[str, Any]) -> Mapping[str | int, Any]:
            given = {**arguments, **options, **values}
            derived = {each: heuristic(given) for each, heuristic in own.items()}
            return derived | (dict(enumerate(_extents(grid({**given, **derived})))) if callable(grid) else {})

        plain = {
            name: _Given(found.given(value), f"tl.{_DTYPES.get(dtype_name(value), dtype_name(value))}") if isinstance(value, torch.Tensor) else value
            for name, value in arguments.items()
        }
        extents = _extents(grid({**arguments, **options}) if callable(grid) else grid)
        found.launches.append(_Launch(kernel, extents, plain, options, at))
        return None

    def launch(kernel: Any, grid: Any, *args: Any, **kwargs: Any) -> Any:
        """Launch what is beneath decorators, as they do it."""
        if isinstance(kernel, JITFunction):
            run(kernel, *args, grid=grid, warmup=False, **kwargs)
            return heuristics.clear()
        if isinstance(kernel, Autotuner):
            found.configs = max(found.configs, len(kernel.configs))
            kwargs |= kernel.configs[choice % len(kernel.configs)].all_kwargs()
        if isinstance(kernel, Heuristics):
            heuristics.update(kernel.values)
            for name, value in kernel.values.items():
                kwargs[name] = value({**dict(zip(kernel.arg_names, args, strict=False)), **kwargs})
        return launch(kernel.fn, grid, *args, **kwargs)

    with ExitStack() as stack, torch.no_grad():
        for where, name, value in (
            (fake_tensor, "init_gpu_context", lambda *_: None),
            (JITFunction, "run", run),
            (KernelInterface, "__getitem__", lambda kernel, grid: partial(launch, kernel, grid)),
        ):
            stack.enter_context(patch.object(where, name, value))
        stack.enter_context(machine())
        stack.enter_context(fake_tensor.FakeTensorMode(allow_non_fake_inputs=True))
        tensors = [
            torch.empty(each.extents(shape), dtype=getattr(torch, each.dtype), device="cuda") for each in inputs
        ]
        for tensor in tensors:
            found.number(tensor)
        stack.enter_context(Made())
        try:
            result = launcher(*tensors)
        except TaskError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise TaskError(f"The launcher fails: {type(error).__name__}: {error}") from error
        given = result if isinstance(result, tuple | list) else [result]
        if not all(isinstance(each, torch.Tensor) for each in given):
            raise TaskError("The launcher returns something else than tensors.")
        found.returned = tuple(found.given(each) for each in given)
    return found


class _Compiled(SimpleNamespace):
    """A kernel that `warmup` compiled, as far as launchers look at it."""

    def __init__(self, again: Callable[[Any], Any], **attributes: Any) -> None:
        super().__init__(**attributes)
        self._again = again

    def __getitem__(self, grid: Any) -> Any:
        return self._again(grid)


@contextmanager
def machine() -> Iterator[None]:
    """What modules and launchers of kernels ask of the machine, where it has no GPU."""
    with ExitStack() as stack:
        for where, name, value in _without_gpu():
            stack.enter_context(patch.object(where, name, value, create=True))
        yield


def _without_gpu() -> Iterator[tuple[Any, str, Any]]:
    import torch  # noqa: PLC0415 - an extra
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.runtime import driver  # noqa: PLC0415

    if torch.cuda.is_available():
        return
    properties = SimpleNamespace(
        name="NVIDIA H100", multi_processor_count=MULTIPROCESSORS, major=9, minor=0, warp_size=32, L2_cache_size=50 << 20
    )
    asked = {"multiprocessor_count": MULTIPROCESSORS, "max_shared_mem": 232448, "warpSize": 32}
    asked["max_num_regs"] = 65536
    yield torch.cuda, "current_device", lambda: 0
    yield torch.cuda, "get_device_properties", lambda *_: properties
    yield torch.cuda, "get_device_capability", lambda *_: (9, 0)
    yield torch.cuda, "device", lambda *_: ExitStack()
    yield torch.cuda, "device_count", lambda: 1
    yield torch.cuda, "set_device", lambda *_: None
    yield (
        driver,
        "_active",
        SimpleNamespace(
            get_active_torch_device=lambda: torch.device("cuda", 0),
            get_current_device=lambda: 0,
            get_current_target=lambda: GPUTarget("cuda", 90, 32),
            get_device_interface=lambda: torch.cuda,
            utils=SimpleNamespace(get_device_properties=lambda *_: asked),
        ),
    )


def _extents(grid: Any) -> tuple[int, ...]:
    return tuple(int(each) for each in (grid if isinstance(grid, tuple | list) else (grid,)))


def _source(
    calls: Sequence[_Recorded], shapes: Sequence[Shape], inputs: Sequence[str], outputs: Sequence[Tensor]
) -> str:
    """The text of a candidate that launches what was recorded at each of the shapes."""
    first = calls[0]
    kernels = first.kernels
    if len(first.returned) != len(outputs):
        raise TaskError(f"The launcher returns {len(first.returned)} tensor(s), the reference {len(outputs)}.")
    results = dict(zip(first.returned, outputs, strict=True))
    names = dict(enumerate(inputs)) | {each: output.name for each, output in results.items()}
    used = {each.storage for launch in first.launches for each in launch.arguments.values() if isinstance(each, _Given)}
    names |= {each: f"scratch{number}" for number, each in enumerate(sorted(used - names.keys()))}
    constants: dict[str, int] = {}
    functions = _Functions()
    launches = [
        _launch([call.launches[index] for call in calls], shapes, names, constants, functions)
        for index in range(len(kernels))
    ]
    fitted = _Fitted(shapes)
    scratch = [
        Scratch(
            name,
            (fitted.required([call.storages[each][2] for call in calls], f"the size of {name}"),),
            first.storages[each][1],
            first.made_by.get(each, "") in _ZEROS,
        )
        for each, name in names.items()
        if each >= len(inputs) and each not in results
    ]
    zeroed = [output for each, output in results.items() if first.made_by.get(each, "") in _ZEROS]
    launches = [*map(functions.zeroing, zeroed), *launches]
    text = "\n\n\n".join(functions.texts)
    imports = ["import triton", "import triton.language as tl"]
    if "libdevice." in text:
        imports.append("from triton.language.extra import libdevice")
    lines = [*imports, "", *(f"{name} = {value}" for name, value in constants.items())]
    plan = LaunchPlan(tuple(launches), tuple(scratch))
    return with_plan(Kernel('"""\n' + _PLACE + '"""\n\n' + "\n".join(lines) + "\n\n\n" + text + "\n", Language.TRITON), plan).source


_PLACE = '[[launch]]\nkernel = "none"\ngrid = [1]\nargs = []\n'


def _launch(
    recorded: Sequence[_Launch],
    shapes: Sequence[Shape],
    names: Mapping[int, str],
    constants: dict[str, int],
    functions: _Functions,
) -> Launch:
    """The launch of a plan that gives these at the shapes; its block sizes are added to the constants."""
    first, kernel = recorded[0], recorded[0].kernel
    what = kernel.__name__
    constexpr = {each.name for each in kernel.params if each.is_constexpr}
    literals: dict[str, Any] = {}
    own: dict[str, tuple[str, int]] = {}
    for name, value in first.arguments.items():
        values = [each.arguments[name] for each in recorded]
        same = all(type(each) is type(value) and each == value for each in values)
        derived = any(name in each.at({}) for each in recorded)
        if derived:
            continue
        if same and _is_literal(value, is_constexpr=name in constexpr):
            literals[name] = value
        elif same and name in constexpr and isinstance(value, int) and value > 1:
            own[name] = (_constant(name, value, constants), value)
    grid = [
        _fitted(recorded, shapes, own, axis, [each.grid[axis] for each in recorded], f"axis {axis} of the grid of {what}")
        for axis in range(len(first.grid))
    ]
    args: list[str | int | float] = []
    constexprs: dict[str, str | int | float] = {}
    for name, value in first.arguments.items():
        if name in literals:
            continue
        values = [each.arguments[name] for each in recorded]
        if isinstance(value, _Given):
            if any(each != value for each in values):
                raise TaskError(f"The launcher gives {what} other tensors as {name} at other shapes.")
            args.append(names[value.storage])
        elif name in own:
            constexprs[_free(name)] = own[name][0]
        elif name in constexpr:
            constexprs[_free(name)] = _fitted(recorded, shapes, own, name, values, f"the constexpr {name} of {what}")
        else:
            args.append(_Fitted(shapes).required(values, f"the argument {name} of {what}"))
    chosen = {key: first.options.get(key) or usual for key, usual in (("num_warps", 4), ("num_stages", 3), ("num_ctas", 1), ("maxnreg", 0))}
    options = TritonOptions(tuple(constexprs.items()), **chosen)
    written = functions.add(kernel, literals, {n: v.dtype for n, v in first.arguments.items() if isinstance(v, _Given)})
    return Launch(written, tuple(grid), (), tuple(args), triton=options)


def _is_literal(value: object, *, is_constexpr: bool) -> bool:
    """Whether an argument becomes a part of the source: what isn't a number."""
    return value is None or isinstance(value, str) or (is_constexpr and isinstance(value, bool)) or _in_language(value) != ""


def _constant(name: str, value: int, constants: dict[str, int]) -> str:
    """The name of a constant of the module for an argument, a new one unless there is one alike."""
    fresh = chain([name], (f"{name}_{number}" for number in range(2, 100)))
    found = next(each for each in fresh if constants.get(each, value) == value)
    constants[found] = value
    return found


def _fitted(
    recorded: Sequence[_Launch],
    shapes: Sequence[Shape],
    own: Mapping[str, tuple[str, int]],
    key: str | int,
    values: Sequence[Any],
    what: str,
) -> str | int | float:
    """A constexpr or an extent of the grid; where a function gives it, its block sizes are told apart by changing them."""
    blocks = {constant: value for constant, value in own.values()}
    points, found = [{**shape, **blocks} for shape in shapes], [*values]
    for launch, shape in zip(recorded, shapes, strict=True):
        for parameter, (constant, value) in own.items():
            if key in (changed := launch.at({parameter: 2 * value})):
                points.append({**shape, **blocks, constant: 2 * value})
                found.append(changed[key])
    return _Fitted(points).required(found, what)


class _Fitted:
    """Expressions over names for numbers that are known where the names have these values."""

    def __init__(self, points: Sequence[Mapping[str, int]], blocks: Mapping[str, int] | None = None) -> None:
        self._points = [{**each, **(blocks or {})} for each in points]
        names = {name: np.array([each[name] for each in self._points]) for name in self._points[0]}
        self._sizes = {**names, **{str(1 << n): np.full(len(self._points), 1 << n) for n in range(1, 17)}}
        products = {
            " * ".join(chosen): np.prod([names[each] for each in chosen], axis=0)
            for size in range(1, 4)
            for chosen in combinations(names, size)
        }
        parts = {
            f"{_grouped(name)} // {by}": each // by
            for name, each in products.items()
            for by in (2, 4, 8, 16, 32)
            if not (each % by).any()
        }
        blocks_of = {
            f"ceil_div({name}, {by})": -(-each // size)
            for name, each in (products | parts).items()
            for by, size in self._sizes.items()
            if by not in name.split()
        }
        powers = {f"next_pow2({name})": _next_pow2(each) for name, each in (products | parts).items()}
        self._products, self._parts = products, products | parts
        self._terms = products | parts | powers | blocks_of
        self._factors = {name: each for name, each in blocks_of.items() if "*" not in name} | names

    def required(self, values: Sequence[Any], what: str) -> str | int | float:
        """Raises TaskError where nothing gives these values."""
        found = self.expression(values)
        if found is None:
            sizes = "; ".join(
                f"{value} at {', '.join(f'{name}={size}' for name, size in point.items())}"
                for value, point in zip(values, self._points, strict=True)
            )
            raise UnclearError(f"It isn't clear how {what} follows from the dimensions: it is {sizes}.")
        return found

    def expression(self, values: Sequence[Any]) -> str | int | float | None:
        first = values[0]
        if all(each == first for each in values):
            return int(first) if isinstance(first, bool) else first
        if any(isinstance(each, bool) for each in values):
            return self._condition(np.array(values, bool))
        if any(isinstance(each, float) for each in values):
            inverse = (name for name, each in self._products.items() if np.allclose(each * values, 1))
            return next((f"1.0 / {_grouped(name)}" for name in inverse), None)
        if not all(isinstance(each, int) for each in values):
            return None
        wanted = np.array(values)
        everywhere = np.full(len(wanted), fill_value=True)
        found = self._number(wanted, everywhere)
        for clip, bound in (("max", wanted.min()), ("min", wanted.max())) if not found else ():
            inside = wanted != bound
            if len({*wanted[inside]}) > 1 and (text := self._number(wanted, inside)):
                clipped = f"{clip}({bound}, {text})"
                if [evaluate(clipped, point) for point in self._points] == list(values):
                    return clipped
        return found

    def _number(self, wanted: np.ndarray, where: np.ndarray) -> str | None:
        """An expression that gives these numbers at some of the points."""
        alike = (name for name, each in self._terms.items() if (each == wanted)[where].all())
        if found := next(alike, None):
            return found
        for by, size in self._sizes.items():
            if not by.isdigit() and (wanted * size == wanted[0] * size[0])[where].all():
                return f"ceil_div({wanted[0] * size[0]}, {by})"
        for name, each in self._parts.items():
            difference, ratio = (wanted - each)[where], wanted // each
            if abs(difference[0]) < 4 and (difference == difference[0]).all():
                return f"{name} + {difference[0]}" if difference[0] > 0 else f"{name} - {-difference[0]}"
            if 1 < ratio[0] <= 64 and (each * ratio[0] == wanted)[where].all():
                return f"{ratio[0]} * {name}"
        return self._product(wanted, where, list(self._factors), 3)

    def _product(self, rest: np.ndarray, where: np.ndarray, names: Sequence[str], depth: int) -> str | None:
        """A product of dimensions, of numbers of blocks and a constant."""
        for number, name in enumerate(names):
            factor = self._factors[name]
            if (factor == factor[0]).all() or (rest % factor)[where].any():
                continue
            left = rest // factor
            if (left == left[where][0])[where].all():
                return name if left[where][0] == 1 else f"{left[where][0]} * {name}"
            if depth > 1 and (more := self._product(left, where, names[number:], depth - 1)):
                return f"{name} * {more}"
        return None

    def _condition(self, wanted: np.ndarray) -> str | None:
        for name, each in self._products.items():
            for by, size in self._sizes.items():
                if ((each % size == 0) == wanted).all():
                    return f"{_grouped(name)} % {by} == 0"
            for bound in each:
                for sign, holds in (("<=", each <= bound), (">", each > bound)):
                    if (holds == wanted).all():
                        return f"{name} {sign} {bound}"
        return None


def _grouped(name: str) -> str:
    return f"({name})" if " " in name else name


def _next_pow2(values: np.ndarray) -> np.ndarray:
    return np.array([1 << max(0, int(each) - 1).bit_length() for each in values])


_ZEROING = """@triton.jit
def fill_with_zeros(out, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 0, mask=at < size)"""


class _Functions:
    """The functions of a candidate, each after those that it calls."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._known: dict[tuple[Any, ...], str] = {}

    def zeroing(self, output: Tensor) -> Launch:
        """A launch that fills an output with zeros, as PyTorch would."""
        if _ZEROING not in self.texts:
            self.texts.append(_ZEROING)
        size = " * ".join(f"({extent})" for extent in output.shape)
        options = TritonOptions((("BLOCK", 1024),))
        return Launch("fill_with_zeros", (f"ceil_div({size}, 1024)",), (), (output.name, size), triton=options)

    def add(
        self, function: Any, literals: Mapping[str, Any] | None = None, pointers: Mapping[str, str] | None = None
    ) -> str:
        """The name of a function in the candidate.

        `literals` are arguments that become parts of it, `pointers` the types of elements of its tensors.
        """
        literals, pointers = literals or {}, pointers or {}
        key = (function, *sorted((name, repr(value)) for name, value in (*literals.items(), *pointers.items())))
        if key not in self._known:
            names = chain([function.__name__], (f"{function.__name__}_{n}" for n in range(2, 100)))
            self._known[key] = next(each for each in names if each not in self._known.values())
            self.texts.append(self._written(function, literals, pointers, self._known[key]))
        return self._known[key]

    def _written(self, function: Any, literals: Mapping[str, Any], pointers: Mapping[str, str], name: str) -> str:
        source = jitted(_parsed(function))
        source.name, source.returns = name, None
        plain = source.args
        plain.args = [*plain.posonlyargs, *plain.args]
        plain.posonlyargs = []
        kept = len(plain.args) - len(plain.defaults)
        defaults = {each.arg: value for each, value in zip(plain.args[kept:], plain.defaults, strict=True)}
        is_constexpr = {each.name for each in function.params if each.is_constexpr}
        for each in plain.args:
            each.annotation = _CONSTEXPR if each.arg in is_constexpr else None
        plain.args = [each for each in plain.args if each.arg not in literals]
        plain.defaults = []
        for each in reversed(plain.args):
            if each.arg not in defaults:
                break
            plain.defaults.insert(0, defaults[each.arg])
        closure = inspect.getclosurevars(function.fn)
        outer = {**function.fn.__globals__, **closure.nonlocals}
        rewritten = _Rewritten(self, outer, literals, pointers, source)
        source.body = rewritten.block(source.body)
        for each in plain.args:
            each.arg = _free(each.arg)
        plain.defaults = [rewritten.visit(each) for each in plain.defaults]
        return ast.unparse(ast.fix_missing_locations(source))


_CONSTEXPR = ast.parse("tl.constexpr", mode="eval").body
_DROPPED = {"static_assert", "static_print", "device_assert", "device_print"}


def _free(name: str) -> str:
    """A name that candidates may give to what is their own."""
    return f"{name}_" if name in RESERVED else name


class _Rewritten(ast.NodeTransformer):
    """A function's body with values in place of names that only its module knows, and without dead branches."""

    def __init__(
        self,
        functions: _Functions,
        outer: Mapping[str, Any],
        literals: Mapping[str, Any],
        pointers: Mapping[str, str],
        source: ast.FunctionDef,
    ) -> None:
        self._functions, self._outer, self._pointers = functions, outer, pointers
        self.given: dict[str, ast.expr] = {}
        stored = {n.id for n in ast.walk(source) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        self._local = (stored | {each.arg for each in source.args.args}) - (literals.keys() - stored)
        self._literals = {name: value for name, value in literals.items() if name not in stored}
        self._first = [
            ast.Assign([ast.Name(name, ast.Store())], self._value(value, name))
            for name, value in literals.items()
            if name in stored
        ]

    def block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The body of a function."""
        return [*self._first, *self._statements(body)] or [ast.Pass()]

    def _statements(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for statement in body:
            match statement:
                case ast.Expr(value=ast.Constant(value=str())):
                    continue
                case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name))) if name in _DROPPED:
                    continue
                case ast.Assert():
                    continue
                case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)) if _apart(targets, values):
                    pairs = zip(targets, values, strict=True)
                    found += self._statements([ast.Assign([target], value) for target, value in pairs])
                    continue
                case ast.If():
                    test = self.visit(statement.test)
                    known = _known(test)
                    if known is not None:
                        found += self._statements(statement.body if known else statement.orelse)
                        continue
                    statement.test = test
                    statement.body = self._statements(statement.body) or [ast.Pass()]
                    statement.orelse = self._statements(statement.orelse)
                case ast.For() | ast.While():
                    if isinstance(statement, ast.For):
                        statement.iter = self.visit(statement.iter)
                    else:
                        statement.test = self.visit(statement.test)
                    statement.body = self._statements(statement.body) or [ast.Pass()]
                case ast.AnnAssign(value=ast.expr() as value) if not ast.unparse(statement.annotation).endswith("constexpr"):
                    statement = ast.Assign([statement.target], self.visit(value))
                case ast.AnnAssign(value=ast.expr() as value):
                    statement.value, statement.annotation = self.visit(value), _CONSTEXPR
                case _:
                    statement = self.visit(statement)
            found.append(statement)
        return found

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """A call; of a function that is one expression, with plain arguments, that expression."""
        match node.func:
            case ast.Attribute(value=ast.Name(id="tl"), attr="constexpr"):
                inner = self.visit(node.args[0])
                return inner if isinstance(inner, ast.Constant) else ast.Call(node.func, [inner], [])
        function, rest = self._outside(node.func)
        if not rest and (one := _one_expression(function, node)):
            outer, arguments, body = one
            inside = _Rewritten(self._functions, outer, {}, {}, parsed("def f(): pass"))
            inside.given = {each: self.visit(value) for each, value in arguments.items()}
            return inside.visit(body)
        self.generic_visit(node)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.Compare(left=ast.Name(id=name), ops=[ast.Is() | ast.IsNot() as op], comparators=[ast.Constant(value=None)]):
                if name in self._pointers:
                    return ast.Constant(isinstance(op, ast.IsNot))
        known = _known(node)
        return node if known is None else ast.Constant(known)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        known = _known(node.test)
        return node if known is None else node.body if known else node.orelse

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.BinOp(op=ast.Pow(), left=ast.Name() as base, right=ast.Constant(value=2 | 2.0)):
                return ast.BinOp(base, ast.Mult(), base)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.given:
            return self.given[node.id]
        if node.id in self._local or isinstance(node.ctx, ast.Store):
            return ast.Name(_free(node.id), node.ctx)
        if node.id in self._literals:
            return self._value(self._literals[node.id], node.id)
        return self._value(self._outer[node.id], node.id) if node.id in self._outer else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """A name of a module, wherever the kernel's own module has it from; a pointer's type of elements."""
        match node:
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id=name), attr="dtype"), attr="element_ty"):
                if name in self._pointers:
                    return ast.parse(self._pointers[name], mode="eval").body
        value, rest = self._outside(node)
        if value is None:
            self.generic_visit(node)
            return node
        found = self._value(value, ast.unparse(node))
        for each in rest:
            found = ast.Attribute(found, each, ast.Load())
        return found

    def _outside(self, node: ast.expr) -> tuple[Any, list[str]]:
        """What a name of the kernel's own module stands for, and attributes of that value; None for other names."""
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names, node = [node.attr, *names], node.value
        if not isinstance(node, ast.Name) or node.id in self._local or node.id in self.given:
            return None, []
        value = self._outer.get(node.id)
        while names and (isinstance(value, ModuleType) or inspect.isclass(value)):
            value, names = getattr(value, names[0]), names[1:]
        return value, names

    def _value(self, value: Any, name: str) -> ast.expr:
        """A value of the kernel's module in the candidate."""
        from triton.runtime.jit import JITFunction  # noqa: PLC0415 - an extra

        value = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
        if value is None or isinstance(value, bool | int | float | str):
            return ast.parse(repr(value) if value == value and abs_is_finite(value) else f'float("{value}")', mode="eval").body
        known = _in_language(value)
        if known:
            return ast.parse(known, mode="eval").body
        if isinstance(value, JITFunction):
            return ast.Name(self._functions.add(value), ast.Load())
        raise TaskError(f"A kernel uses {name}, which is neither a number nor a Triton function.")


def abs_is_finite(value: object) -> bool:
    return not isinstance(value, float) or abs(value) != float("inf")


def _one_expression(function: Any, call: ast.Call) -> tuple[Mapping[str, Any], dict[str, ast.expr], ast.expr] | None:
    """What a Triton function's own module has, its arguments by name, and the one expression that it returns."""
    from triton.runtime.jit import JITFunction  # noqa: PLC0415 - an extra

    if not isinstance(function, JITFunction) or _in_language(function):
        return None
    source = _parsed(function)
    given = dict(zip(function.arg_names, call.args, strict=False))
    given |= {each.arg: each.value for each in call.keywords if each.arg}
    plain = all(isinstance(each, ast.Name | ast.Constant) for each in given.values())
    match [each for each in source.body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]:
        case [ast.Return(value=ast.expr() as body)] if plain and given.keys() == {*function.arg_names}:
            return function.fn.__globals__, given, body
    return None


def _parsed(function: Any) -> ast.FunctionDef:
    return parsed(textwrap.dedent(inspect.getsource(function.fn)))


def _apart(targets: Sequence[ast.expr], values: Sequence[ast.expr]) -> bool:
    """Whether values can be assigned one after another."""
    names = {each.id for each in targets if isinstance(each, ast.Name)}
    read = {each.id for value in values for each in ast.walk(value) if isinstance(each, ast.Name)}
    return len(targets) == len(values) == len(names) and not names & read


def _known(test: ast.expr) -> bool | None:
    """What a test of constants is; None where it isn't known."""
    match test:
        case ast.Constant(value=value):
            return bool(value)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            found = _known(inner)
            return None if found is None else not found
        case ast.BoolOp(op=op, values=values):
            parts = [_known(each) for each in values]
            decisive = isinstance(op, ast.Or)
            if decisive in parts:
                return decisive
            return None if None in parts else not decisive
        case ast.Compare(left=ast.Constant(value=left), ops=[op], comparators=[ast.Constant(value=right)]):
            match op:
                case ast.Eq() | ast.Is():
                    return bool(left == right)
                case ast.NotEq() | ast.IsNot():
                    return bool(left != right)
        case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq() as op], comparators=[right]):
            texts = {ast.unparse(left), ast.unparse(right)}
            if all(text.startswith("tl.") for text in texts):
                return (len(texts) == 1) == isinstance(op, ast.Eq)
    return None


def _in_language(value: object) -> str:
    """What candidates call a function, type or module of Triton; empty for other values."""
    import triton  # noqa: PLC0415 - an extra
    import triton.language as tl  # noqa: PLC0415
    from triton.language.extra import libdevice  # noqa: PLC0415

    if value is tl:
        return "tl"
    if value in (libdevice, tl.math, triton):
        return {libdevice: "libdevice", tl.math: "tl.math", triton: "triton"}[value]
    if isinstance(value, tl.dtype):
        name = str(value)
        return next((f"tl.{each}" for each in LANGUAGE if getattr(tl, each, None) == value), name)
    name = getattr(value, "__name__", "")
    origin = str(getattr(value, "__module__", ""))
    if not name or not origin.startswith("triton"):
        return ""
    if "libdevice" in origin and name in LIBDEVICE:
        return f"libdevice.{name}"
    if getattr(triton, name, None) is value:
        return f"triton.{name}"
    if name in LANGUAGE and getattr(tl, name, None) is value:
        return f"tl.{name}"
    return f"tl.math.{name}" if name in MATH and hasattr(tl.math, name) else ""
