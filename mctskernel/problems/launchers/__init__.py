"""A user's own Triton kernels as starting kernels, from the function that launches them.

The function is called on fake tensors at several shapes, where its launches are recorded and nothing runs (`recording`).
Each number of a launch becomes an expression over dimensions and block sizes (`numbers`), and the kernels are written
without what only their own module knows (`functions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
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
from mctskernel.problems.launchers.numbers import fitted
from mctskernel.problems.launchers.recording import ZEROS, Launched, Recorded, Storage, recorded
from mctskernel.problems.torch_task import TorchTask
from mctskernel.profiling.triton.source import SourceError, read_module
from mctskernel.tasks.template import Drafted

MOST_CONFIGS = 8  # of an autotuned kernel, each of which becomes a start
OPTIONS = {"num_warps": TRITON_WARPS, "num_stages": TRITON_STAGES, "num_ctas": 1, "maxnreg": 0}

_PLAN = '"""\n[[launch]]\nkernel = "none"\ngrid = [1]\nargs = []\n"""\n'
_ZEROING = """@triton.jit
def fill_with_zeros(out, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 0, mask=at < size)"""


def launched_kernels(task: TorchTask, launcher: Callable[..., Any]) -> Drafted:
    """The starting kernels, one for each configuration of an autotuned kernel. Raises TaskError."""
    first = recorded(launcher, task.inputs, task.sizes)
    if not first.launches:
        raise TaskError("The launcher launches no Triton kernel.")
    if len(first.returned) != len(task.outputs):
        raise TaskError(
            f"The launcher returns {len(first.returned)} tensor(s), the reference {len(task.outputs)}."
        )
    shapes = [task.sizes, *_shapes(task, launcher, first)]
    found = []
    for choice in range(min(first.configs, MOST_CONFIGS)):
        text = _Written(
            task, shapes, [recorded(launcher, task.inputs, shape, choice) for shape in shapes]
        ).text
        try:
            read_module(text)
        except SourceError as error:
            raise TaskError(f"The launcher's kernels can't become a candidate: {error}") from error
        found.append(text)
    files = {f"start_config_{number}.py": text for number, text in enumerate(dict.fromkeys(found), 1)}
    return Drafted({"kernel.py": files.pop("start_config_1.py"), **files}, ())


def _shapes(task: TorchTask, launcher: Callable[..., Any], first: Recorded) -> Iterator[Shape]:
    """Shapes at which no two dimensions are alike, and those that the task verifies at."""
    yield from (*task.verify, *task.held_out)
    apart = [
        {**task.distinct, name: size}
        for name, usual in task.distinct.items()
        for size in (usual, 2 * usual, 5 * usual, task.sizes[name])
    ]
    for shape in apart:
        with suppress(TaskError):
            if recorded(launcher, task.inputs, shape).kernels == first.kernels:
                yield shape


@dataclass
class _Written:
    """A candidate that launches what was recorded at each of the shapes."""

    task: TorchTask
    shapes: Sequence[Shape]
    calls: Sequence[Recorded]
    constants: dict[str, int] = field(default_factory=dict)
    functions: Functions = field(default_factory=Functions)

    @property
    def text(self) -> str:
        first, outputs = self.calls[0], self.task.outputs
        results = dict(zip(first.returned, outputs, strict=True))
        names = {number: tensor.name for number, tensor in (*enumerate(self.task.inputs), *results.items())}
        given = {each.number for launch in first.launches for each in launch.tensors.values()}
        own = {number: f"scratch{place}" for place, number in enumerate(sorted(given - names.keys()))}
        launches = [
            self._launch([call.launches[n] for call in self.calls], names | own)
            for n in range(len(first.launches))
        ]
        zeroed = [
            self._zeroing(each) for number, each in results.items() if first.made_by.get(number) in ZEROS
        ]
        scratch = [
            Scratch(
                name,
                (fitted(self.shapes, [call.elements(number) for call in self.calls], f"the size of {name}"),),
                first.dtype(number),
                first.made_by.get(number) in ZEROS,
            )
            for number, name in own.items()
        ]
        text = "\n\n\n".join(self.functions.texts.values())
        lines = ["import triton", "import triton.language as tl"]
        lines += ["from triton.language.extra import libdevice"] if "libdevice." in text else []
        lines += (
            ["", *(f"{name} = {value}" for name, value in self.constants.items())] if self.constants else []
        )
        kernel = Kernel("\n".join((_PLAN, *lines, "\n", text, "")), Language.TRITON)
        return with_plan(kernel, LaunchPlan((*zeroed, *launches), tuple(scratch))).source

    def _launch(self, launches: Sequence[Launched], names: Mapping[int, str]) -> Launch:
        """The launch of a plan that gives these at the shapes; block sizes become constants of the module."""
        first, what = launches[0], launches[0].kernel.__name__
        literals: dict[str, Any] = {}
        blocks: dict[str, tuple[str, int]] = {}
        for name, value in first.arguments.items():
            alike = name not in first.at({}) and all(each.arguments[name] == value for each in launches)
            if alike and (value is None or isinstance(value, str) or in_language(value)):
                literals[name] = value
            elif alike and name in first.constexprs and isinstance(value, bool):
                literals[name] = value
            elif alike and name in first.constexprs and isinstance(value, int) and value > 1:
                blocks[name] = self._constant(name, value), value
        args: list[str | int | float] = []
        constexprs: dict[str, str | int | float] = {}
        for name, value in first.arguments.items():
            values = [each.arguments[name] for each in launches]
            if isinstance(value, Storage):
                if any(each != value for each in values):
                    raise TaskError(f"The launcher gives {what} other tensors as {name} at other shapes.")
                args.append(names[value.number])
            elif name in blocks:
                constexprs[own_name(name)] = blocks[name][0]
            elif name in first.constexprs and name not in literals:
                constexprs[own_name(name)] = self._number(launches, blocks, name, values, f"{name} of {what}")
            elif name not in literals:
                args.append(fitted(self.shapes, values, f"{name} of {what}"))
        grid = [
            self._number(
                launches,
                blocks,
                axis,
                [each.grid[axis] for each in launches],
                f"axis {axis} of the grid of {what}",
            )
            for axis in range(len(first.grid))
        ]
        pointers = {name: each.dtype for name, each in first.tensors.items()}
        kernel = self.functions.add(first.kernel, literals, pointers)
        chosen = {name: first.options.get(name) or usual for name, usual in OPTIONS.items()}
        options = TritonOptions(tuple(constexprs.items()), **chosen)
        return Launch(kernel, tuple(grid), (), tuple(args), triton=options)

    def _constant(self, name: str, value: int) -> str:
        """The name of a constant of the module, a new one unless there is one alike."""
        fresh = (name, *(f"{name}_{number}" for number in range(2, 100)))
        found = next(each for each in fresh if self.constants.get(each, value) == value)
        self.constants[found] = value
        return found

    def _number(
        self,
        launches: Sequence[Launched],
        blocks: Mapping[str, tuple[str, int]],
        key: str | int,
        values: Sequence[Any],
        what: str,
    ) -> str | int | float:
        """An expression for a number that may be a function of block sizes, which are told apart by changing them."""
        usual = dict(blocks.values())
        points, found = [{**shape, **usual} for shape in self.shapes], [*values]
        for launch, shape in zip(launches, self.shapes, strict=True):
            for parameter, (constant, value) in blocks.items():
                if key in (changed := launch.at({parameter: 2 * value})):
                    points.append({**shape, **usual, constant: 2 * value})
                    found.append(changed[key])
        return fitted(points, found, what)

    def _zeroing(self, output: Tensor) -> Launch:
        """A launch that fills an output with zeros, as PyTorch would."""
        self.functions.texts["fill_with_zeros"] = _ZEROING
        size = " * ".join(f"({extent})" for extent in output.shape)
        options = TritonOptions((("BLOCK", 1024),))
        return Launch(
            "fill_with_zeros", (f"ceil_div({size}, 1024)",), (), (output.name, size), triton=options
        )
