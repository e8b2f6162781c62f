"""A kernel as the source of a Python module, whose function or operator of PyTorch returns its outputs."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from string import Template

from mctskernel.core.expression import names_in
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import LaunchPlan
from mctskernel.core.task import Task, Tensor
from mctskernel.problems.host_code import cuda, nvrtc
from mctskernel.problems.host_code.expressions import (
    FUNCTIONS,
    TEMPLATES,
    HostCodeError,
    Names,
    docstring,
    translate,
    translate_whole,
)
from mctskernel.problems.host_code.launch import (
    WrittenLaunch,
    triton_launch,
    triton_module,
    vetted_plan,
    write_launch,
)
from mctskernel.profiling.triton.source import TritonModule

_LOOKED_UP = Template("""\
if $key not in _SIZES:
    raise ValueError("These shapes are none of those that the kernel was written for.")
$names = _SIZES[$key]""")

_ALLOCATOR = 'lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda")'

_TRITON = ("triton", "tl", "libdevice")
_DEFINED = frozenset({"_SIZES", "_check_tensor", "_check_shape", *FUNCTIONS})
_OF_MODULE = _DEFINED | {"_DEVICE", "_HOST", "_DECLARATIONS", "_extension", "_stream"}
_OF_OPERATOR = _DEFINED | nvrtc.DEFINED | {"_run", "_fake", "_backward"}  # the names that a module defines


def host_module(task: Task, kernel: Kernel, *, function: str = "run", reserved: Collection[str] = ()) -> str:
    """The source of a module whose `function` takes the task's inputs in order and returns its output, or a tuple.

    An output that shares an input's buffer is that input, modified. The task's scalars are keyword arguments with its
    values as defaults, as are dimensions that don't follow from the inputs' shapes. The function raises ValueError for
    tensors that don't fit together. `reserved` are names that the caller will add to the module. Raises HostCodeError
    for a kernel that the rules for candidates refuse, whose launch plan doesn't fit the task, or that defines a name of
    the module's.
    """
    if clash := _OF_MODULE.intersection(reserved):
        raise _defined_twice(clash)
    scope, launches, triton, _ = _written(
        task, kernel, _OF_MODULE, {"torch", "functools"}, {function, *reserved}
    )
    if triton is not None:
        head, statements = _triton_host(kernel, launches, triton, scope.first)
    else:
        label = re.sub(r"\W", "_", task.name, flags=re.ASCII) + f"_{kernel.identity[:16]}"
        head, statements = cuda.write_host(kernel, launches, scope.first, label)
    lines = [
        docstring(_description(task)),
        *_arriving(task, scope),
        *_buffers(task, scope),
        *statements,
        f"return {', '.join(scope.buffers[tensor.name] for tensor in task.outputs)}",
    ]
    text = _function(function, _parameters(task, scope), lines)
    return "\n\n".join([head, *_support(scope, [text]), text])


_OPERATOR = Template("""\
$name = torch.library.custom_op($qualified, _run, mutates_args=$changed)
$name.register_fake(_fake)
""")

_WITHOUT_GRADIENT = Template("""\
def _backward(context, *gradients):
    raise NotImplementedError($message)


$name.register_autograd(_backward)
""")


def torch_operator(task: Task, kernel: Kernel) -> str:
    """The source of a module with an operator of PyTorch, called as the task is, for eager code and torch.compile.

    It takes and returns what the function of `host_module` does, but for outputs that share an input's buffer: it
    changes those inputs and returns the others. It has no gradient. Raises HostCodeError as `host_module` does.
    """
    scope, launches, triton, name = _written(task, kernel, _OF_OPERATOR, nvrtc.IMPORTED)
    head, statements = (
        _triton_host(kernel, launches, triton, scope.first)
        if triton is not None
        else nvrtc.write_host(kernel, launches, scope.first)
    )
    fresh = [scope.buffers[each.name] for each in task.outputs if each.name not in task.in_place]
    returned = f"return {', '.join(fresh)}" if fresh else "return None"
    types = ["torch.Tensor"] * len(fresh)
    annotation = f"tuple[{', '.join(types)}]" if len(fresh) > 1 else types[0] if fresh else "None"
    arriving, allocated = _arriving(task, scope), _outputs(task, scope)
    parameters = _parameters(task, scope, annotated=True)
    functions = [
        _function("_run", parameters, [*arriving, *_buffers(task, scope), *statements, returned], annotation),
        _function("_fake", parameters, [*arriving, *allocated, returned], annotation),
    ]
    operator = _OPERATOR.substitute(
        name=name,
        qualified=repr(f"mctskernel::{name}_{kernel.identity[:12]}"),
        changed=repr(sorted(scope.buffers[each] for each in task.in_place)),
    )
    message = f"{task.name} has no gradient: call it under torch.no_grad(), or on tensors that need none."
    # PyTorch itself refuses gradients of what is changed in place.
    gradient = [] if task.in_place else [_WITHOUT_GRADIENT.substitute(name=name, message=repr(message))]
    about = docstring(f"{_description(task)} Its operator is `{name}`.")
    return "\n\n".join([about, head, *_support(scope, functions), *functions, operator, *gradient])


def _written(
    task: Task,
    kernel: Kernel,
    defined: Collection[str],
    imported: Collection[str],
    others: Collection[str] = (),
) -> tuple[_Scope, list[WrittenLaunch], TritonModule | None, str]:
    """The names of a module and its launches, of Triton the kernel's own text, and a name for an operator.

    Raises HostCodeError for a Triton kernel that defines one of the module's names, or one of `others`.
    """
    plan = vetted_plan(task, kernel)
    triton = triton_module(kernel) if kernel.language is Language.TRITON else None
    theirs = {*triton.functions, *triton.constants, *_TRITON} if triton is not None else set[str]()
    if clash := theirs & {*defined, *imported, *others}:
        raise _defined_twice(clash)
    names = Names({*defined, *imported, *theirs})
    operator = names.fresh(re.sub(r"^(?=\d)", "op_", re.sub(r"\W", "_", task.name, flags=re.ASCII)))
    scope = _Scope.of(task, kernel, plan, names)
    launches = [write_launch(each, plan, scope.buffers, scope.numbers) for each in plan.launches]
    return scope, launches, triton, operator


def _defined_twice(names: Collection[str]) -> HostCodeError:
    return HostCodeError(f"The module defines '{min(names)}', which is defined already.")


def _function(name: str, parameters: str, lines: Sequence[str], annotation: str = "") -> str:
    body = "\n".join(lines).replace("\n", "\n    ")
    return f"def {name}({parameters}){f' -> {annotation}' if annotation else ''}:\n    {body}\n"


def _support(scope: _Scope, functions: Sequence[str]) -> list[str]:
    """The table of sizes, the checks and the arithmetic that functions need."""
    table = [f"_SIZES = {scope.sizes!r}\n"] if scope.sizes else []
    used = [text for name, text in FUNCTIONS.items() if any(f"{name}(" in each for each in functions)]
    return [*table, TEMPLATES.get_template("checks.txt").render(), *used]


def _outputs(task: Task, scope: _Scope) -> list[str]:
    return [
        _allocation(scope, each.name, each.shape, each.dtype)
        for each in task.outputs
        if each.name not in task.in_place
    ]


def _buffers(task: Task, scope: _Scope) -> list[str]:
    """The lines that name constants, and allocate outputs and scratch buffers."""
    return [
        *(f"{local} = {value}" for local, value in scope.constants.items()),
        *_outputs(task, scope),
        *(
            _allocation(scope, each.name, each.shape, each.dtype, "zeros" if each.zero else "empty")
            for each in scope.plan.scratch
        ),
    ]


def _triton_host(
    kernel: Kernel, launches: Sequence[WrittenLaunch], module: TritonModule, first: str
) -> tuple[str, list[str]]:
    statements = [f"    {triton_launch(each, module)}" for each in launches]
    if "make_tensor_descriptor" in kernel.source:
        # What Triton builds the descriptors in.
        statements.insert(0, f"    triton.set_allocator({_ALLOCATOR})")
    return f"{kernel.source.rstrip()}\n\nimport torch\n", [
        f"with torch.cuda.device_of({first}):",
        *statements,
    ]


def dimensions_of_inputs(task: Task) -> frozenset[str]:
    """The dimensions that `host_module` finds from the inputs' shapes."""
    return frozenset(_extents(task)) | frozenset(_looked_up(task)[0])


@dataclass(frozen=True)
class _Scope:
    """What the function calls buffers and numbers, by the names that task and plan have for them.

    `constants` are the kernel's macros by local name; `sizes` the dimensions `looked_up` by all extents of the inputs.
    """

    plan: LaunchPlan
    buffers: Mapping[str, str]
    numbers: Mapping[str, str]
    constants: Mapping[str, str]
    looked_up: tuple[str, ...]
    sizes: Mapping[tuple[int, ...], tuple[int, ...]]
    first: str

    @classmethod
    def of(cls, task: Task, kernel: Kernel, plan: LaunchPlan, names: Names) -> _Scope:
        """Give every name that a launch may mention a local one."""
        buffers = {name: names.fresh(name) for name in task.buffer_names}
        numbers = {name: names.fresh(name) for name in (*_dimensions(task), *task.scalars)}
        buffers |= {each.name: names.fresh(each.name) for each in plan.scratch}
        used = _names_used(plan) - numbers.keys()
        macros = {name: names.fresh(name) for name in kernel.macros if name in used}
        constants = {local: str(kernel.macros[name]) for name, local in macros.items()}
        looked_up, sizes = _looked_up(task)
        return cls(plan, buffers, macros | numbers, constants, looked_up, sizes, buffers[task.inputs[0].name])

    def shape(self, extents: Sequence[int | str]) -> str:
        return f"({''.join(f'{translate_whole(each, self.numbers)}, ' for each in extents).rstrip()})"


def _dimensions(task: Task) -> list[str]:
    return list(dict.fromkeys(name for shape in task.shapes for name in shape if name != task.inputs_by))


def _extents(task: Task) -> dict[str, tuple[Tensor, int]]:
    """The input and its axis whose extent is a dimension."""
    wanted = _dimensions(task)
    found: dict[str, tuple[Tensor, int]] = {}
    for tensor in task.inputs:
        for axis, extent in enumerate(tensor.shape):
            if extent in wanted:
                found.setdefault(str(extent), (tensor, axis))
    return found


def _looked_up(task: Task) -> tuple[tuple[str, ...], dict[tuple[int, ...], tuple[int, ...]]]:
    """The other dimensions, and their sizes by all extents of the inputs; nothing where those don't decide them."""
    names = tuple(sorted(set(_dimensions(task)) - _extents(task).keys()))
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    for shape in task.shapes if names else ():
        key = tuple(extent for tensor in task.inputs for extent in tensor.extents(shape))
        sizes = tuple(shape[name] for name in names)
        if found.setdefault(key, sizes) != sizes:
            return (), {}
    return names, found


def _arriving(task: Task, scope: _Scope) -> list[str]:
    """The lines that check tensors and find the dimensions."""
    lines = [
        f"_check_tensor({each.name!r}, {scope.buffers[each.name]}, torch.{each.dtype}, {len(each.shape)}, "
        f"{scope.first}.device)"
        for each in task.inputs
    ]
    extents = _extents(task)
    for name, (tensor, axis) in extents.items():
        lines.append(f"{scope.numbers[name]} = {scope.buffers[tensor.name]}.shape[{axis}]")
    if scope.looked_up:
        key = ", ".join(f"*{scope.buffers[tensor.name]}.shape" for tensor in task.inputs)
        found = "".join(f"{scope.numbers[name]}, " for name in scope.looked_up).rstrip()
        lines.append(_LOOKED_UP.substitute(key=f"({key},)", names=found))
    given = {(tensor.name, axis) for tensor, axis in extents.values()}
    written = {tensor.name for tensor in task.outputs}
    for tensor in task.inputs:
        local = scope.buffers[tensor.name]
        if any((tensor.name, axis) not in given for axis in range(len(tensor.shape))):
            lines.append(f"_check_shape({tensor.name!r}, {local}, {scope.shape(tensor.shape)})")
        if tensor.name in written:
            lines += [
                f"if not {local}.is_contiguous():",
                f'    raise ValueError("{tensor.name} is written to where it lies, and must be contiguous.")',
            ]
        else:
            lines.append(f"{local} = {local}.contiguous()")
    return lines


def _parameters(task: Task, scope: _Scope, *, annotated: bool = False) -> str:
    known = {*_extents(task), *scope.looked_up}
    named = []
    for name in _dimensions(task):
        if name not in known:
            (value, *others) = {shape.get(name) for shape in task.shapes}
            local = scope.numbers[name]
            typed = f"{local}: int" if annotated else local
            named.append(typed if others or value is None else f"{typed} = {value}")
    for name, number in task.scalars.items():
        if name not in _dimensions(task):
            typed = f"{scope.numbers[name]}: {type(number).__name__}" if annotated else scope.numbers[name]
            named.append(f"{typed} = {translate(number, {})}")
    tensor = ": torch.Tensor" if annotated else ""
    inputs = [f"{scope.buffers[each.name]}{tensor}" for each in task.inputs]
    return ", ".join([*inputs, *(["*", *named] if named else [])])


def _allocation(scope: _Scope, name: str, shape: Sequence[int | str], dtype: str, make: str = "empty") -> str:
    options = f"dtype=torch.{dtype}, device={scope.first}.device"
    return f"{scope.buffers[name]} = torch.{make}({scope.shape(shape)}, {options})"


def _description(task: Task) -> str:
    arriving, leaving = (
        ", ".join(f"{each.name} ({each.dtype} [{', '.join(map(str, each.shape))}])" for each in tensors)
        for tensors in (task.inputs, task.outputs)
    )
    caveats = "".join(f" {each[0].upper()}{each[1:]}." for each in task.caveats)
    return f"{task.name}: of {arriving} makes {leaving}.{caveats}"


def _names_used(plan: LaunchPlan) -> frozenset[str]:
    """What the plan's expressions read."""
    numbers: list[int | float | str] = [extent for each in plan.scratch for extent in each.shape]
    for each in plan.tensor_maps:
        numbers += [*each.shape, *each.box, *each.element_strides]
    for launch in plan.launches:
        numbers += [*launch.grid, *launch.block, *launch.args, launch.shared, *launch.cluster]
        if launch.triton is not None:
            options = launch.triton
            numbers += [options.num_warps, options.num_stages, options.num_ctas, options.maxnreg]
            numbers += [value for _, value in launch.triton.constexprs]
    return frozenset().union(*(names_in(number) for number in numbers))
