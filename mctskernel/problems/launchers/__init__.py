"""A user's own Triton kernels as starting kernels, from the function that launches them.

The function is called on fake tensors at several shapes; its launches are recorded, and nothing runs (`recording`).
Each number of a launch becomes an expression over dimensions and block sizes (`numbers`), and the kernels are written
without what only their own module knows (`functions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import (
    TRITON_STAGES,
    TRITON_WARPS,
    Launch,
    LaunchPlan,
    Scratch,
    TritonOptions,
)
from mctskernel.core.task import Shape, TaskError, Tensor
from mctskernel.edits.plan_text import with_plan
from mctskernel.problems.launchers.functions import Functions, in_language, own_name
from mctskernel.problems.launchers.numbers import UnclearError, fitted
from mctskernel.problems.launchers.recording import ZEROS, Launched, Recorded, machine, recorded
from mctskernel.problems.torch_task import TorchTask
from mctskernel.profiling.triton.source import SourceError, read_module
from mctskernel.tasks.template import Drafted

__all__ = ["launched_task", "machine", "recorded"]

MOST_CONFIGS = 8  # of an autotuned kernel, each of which becomes a start

_OPTIONS = {"num_warps": TRITON_WARPS, "num_stages": TRITON_STAGES, "num_ctas": 1, "maxnreg": 0}
_PLAN = '"""\n[[launch]]\nkernel = "none"\ngrid = [1]\nargs = []\n"""\n'
_ZEROING = """@triton.jit
def fill_with_zeros(out, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 0, mask=at < size)"""


def launched_task(
    launcher: Callable[..., Any], task_of: Callable[[Sequence[str]], TorchTask]
) -> tuple[TorchTask, Drafted]:
    """The task of a launcher's tensors with its starting kernels. Raises TaskError.

    `task_of` makes it with some dimensions as constants: those that launches follow from in an odd way.
    """
    task = task_of(())
    names = tuple(task.sizes)
    unclear: UnclearError | None = None
    for constants in dict.fromkeys(((), names[-1:], names[1:])):
        with_constants = task_of(constants) if constants else task
        try:
            starts = _starts(with_constants, launcher)
        except UnclearError as error:
            unclear = unclear or error
        else:
            return with_constants, replace(starts, notes=(f"{unclear}",) if unclear else ())
    raise unclear or TaskError("The launcher's tensors have no dimensions.")


def _starts(task: TorchTask, launcher: Callable[..., Any]) -> Drafted:
    """The starting kernels, one for each configuration of an autotuned kernel."""
    first = recorded(launcher, task.inputs, task.sizes)
    if not first.launches:
        raise TaskError("The launcher launches no Triton kernel.")
    if len(first.returned) != len(task.outputs):
        raise TaskError(f"The launcher returns {len(first.returned)} tensor(s), not {len(task.outputs)}.")
    shapes = [task.sizes, *_shapes(task, launcher, first)]
    texts: dict[str, None] = {}
    for choice in range(min(first.configs, MOST_CONFIGS)):
        calls = [recorded(launcher, task.inputs, shape, choice) for shape in shapes]
        text = _Candidate(task, shapes, calls).text()
        try:
            read_module(text)
        except SourceError as error:
            raise TaskError(f"The launcher's kernels can't become a candidate: {error}") from error
        texts[text] = None
    files = {f"start_config_{number}.py": text for number, text in enumerate(texts, 1)}
    return Drafted({"kernel.py": files.pop("start_config_1.py"), **files}, ())


def _shapes(task: TorchTask, launcher: Callable[..., Any], first: Recorded) -> Iterator[Shape]:
    """The shapes that the task verifies at, and such at which no two dimensions are alike."""
    yield from (*task.verify, *task.held_out)
    for name, usual in task.distinct.items():
        for size in (usual, 2 * usual, 5 * usual, task.sizes[name]):
            shape = {**task.distinct, name: size}
            with suppress(TaskError):
                if recorded(launcher, task.inputs, shape).kernels == first.kernels:
                    yield shape


@dataclass
class _Candidate:
    """A candidate that launches what was recorded at each of the shapes."""

    task: TorchTask
    shapes: Sequence[Shape]
    calls: Sequence[Recorded]
    constants: dict[str, int] = field(default_factory=dict)
    functions: Functions = field(default_factory=Functions)

    def text(self) -> str:
        first = self.calls[0]
        results = dict(zip(first.returned, self.task.outputs, strict=True))
        names = {number: tensor.name for number, tensor in (*enumerate(self.task.inputs), *results.items())}
        given = {each.number: each for launch in first.launches for each in launch.tensors.values()}
        own = {number: f"scratch{place}" for place, number in enumerate(sorted(given.keys() - names.keys()))}
        each_time = zip(*(call.launches for call in self.calls), strict=True)
        launches = [self._launch(each, names | own) for each in each_time]
        zeroed = [self._zeroing(each) for number, each in results.items() if first.made_by[number] in ZEROS]
        scratch = []
        for number, name in own.items():
            elements = [call.elements(number) for call in self.calls]
            size = fitted(self.shapes, elements, f"the size of {name}")
            scratch.append(Scratch(name, (size,), given[number].dtype, first.made_by[number] in ZEROS))
        text = "\n\n\n".join(self.functions.texts.values())
        lines = ["import triton", "import triton.language as tl"]
        lines += ["from triton.language.extra import libdevice"] if "libdevice." in text else []
        lines += (
            ["", *(f"{name} = {value}" for name, value in self.constants.items())] if self.constants else []
        )
        kernel = Kernel("\n".join((_PLAN, *lines, "\n", text, "")), Language.TRITON)
        return with_plan(kernel, LaunchPlan((*zeroed, *launches), tuple(scratch))).source

    def _launch(self, launches: Sequence[Launched], names: Mapping[int, str]) -> Launch:
        """The launch of a plan that gives these at the shapes."""
        first, what = launches[0], launches[0].kernel.__name__
        literals, blocks = self._constants(launches)
        args: list[str | int | float] = []
        constexprs: dict[str, str | int | float] = {}
        for name in (each for each in first.arguments if each not in literals):
            values = [each.arguments[name] for each in launches]
            if name in blocks:
                constexprs[own_name(name)] = blocks[name]
            elif name in first.constexprs:
                constexprs[own_name(name)] = self._number(launches, blocks, name, values, f"{name} of {what}")
            elif name not in first.tensors:
                args.append(fitted(self.shapes, values, f"{name} of {what}"))
            elif any(each != values[0] for each in values):
                raise TaskError(f"The launcher gives {what} other tensors as {name} at other shapes.")
            else:
                args.append(names[values[0].number])
        numbers = [each.numbers() for each in launches]
        axes = (each for each in numbers[0] if isinstance(each, int))
        grid = [
            self._number(
                launches, blocks, axis, [each[axis] for each in numbers], f"axis {axis} of the grid of {what}"
            )
            for axis in axes
        ]
        pointers = {name: each.dtype for name, each in first.tensors.items()}
        kernel = self.functions.add(first.kernel, literals, pointers)
        chosen = {name: first.options.get(name) or usual for name, usual in _OPTIONS.items()}
        options = TritonOptions(tuple(constexprs.items()), **chosen)
        return Launch(kernel, tuple(grid), (), tuple(args), triton=options)

    def _constants(self, launches: Sequence[Launched]) -> tuple[dict[str, Any], dict[str, str]]:
        """Arguments that become parts of the function, and names of constants of the module, for block sizes."""
        first, literals, blocks = launches[0], dict[str, Any](), dict[str, str]()
        for name, value in first.arguments.items():
            if name in first.derived or any(each.arguments[name] != value for each in launches):
                continue
            is_constexpr = name in first.constexprs
            if value is None or in_language(value) or isinstance(value, (str, bool) if is_constexpr else str):
                literals[name] = value
            elif is_constexpr and isinstance(value, int) and value > 1:
                fresh = (name, *(f"{name}_{number}" for number in range(2, 100)))
                blocks[name] = next(each for each in fresh if self.constants.get(each, value) == value)
                self.constants[blocks[name]] = value
        changed = [
            launch.numbers(**{each: 2 * first.arguments[each]}) for launch in launches for each in blocks
        ]
        for name in first.derived.keys() & first.arguments.keys():
            found = [*(each.arguments[name] for each in launches), *(each[name] for each in changed)]
            if isinstance(found[0], bool) and found.count(found[0]) == len(found):
                literals[name] = found[0]
        return literals, blocks

    def _number(
        self,
        launches: Sequence[Launched],
        blocks: Mapping[str, str],
        key: str | int,
        values: list[Any],
        what: str,
    ) -> Any:
        """An expression for what may be a function of block sizes, which are told apart by changing them."""
        usual = {constant: self.constants[constant] for constant in blocks.values()}
        points = [{**shape, **usual} for shape in self.shapes]
        if key in launches[0].derived or (isinstance(key, int) and callable(launches[0].grid)):
            for launch, shape in zip(launches, self.shapes, strict=True):
                for parameter, constant in blocks.items():
                    points.append({**shape, **usual, constant: 2 * usual[constant]})
                    values.append(launch.numbers(**{parameter: 2 * usual[constant]})[key])
        return fitted(points, values, what)

    def _zeroing(self, output: Tensor) -> Launch:
        """A launch that fills an output with zeros, as PyTorch would."""
        self.functions.texts["fill_with_zeros"] = _ZEROING
        size = " * ".join(f"({extent})" for extent in output.shape)
        options = TritonOptions((("BLOCK", 1024),))
        return Launch(
            "fill_with_zeros", (f"ceil_div({size}, 1024)",), (), (output.name, size), triton=options
        )
