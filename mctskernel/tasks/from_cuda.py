"""A new task folder drafted from a user's CUDA C++ file, by guessing from its `__global__` functions.

    task.toml      inputs and outputs from the pointers, a dimension for each integer
    reference.py   a skeleton to be written
    kernel.cu      the file, with a launch plan in its leading comment

Every guess has a comment that says what to check.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment

from mctskernel.core.dtypes import CUDA_TYPES
from mctskernel.core.kernel import Kernel, leading_comment
from mctskernel.core.task import TaskError
from mctskernel.core.task_file import read_text, write_new_task
from mctskernel.edits.syntax import Function, Parameter, parse, text_of
from mctskernel.profiling.source_rules import HEADERS, rejection
from mctskernel.tasks.template import FILES, Drafted

SEARCH_SIZES = (4096, 1024, 64)  # guessed sizes of the first, second and other dimensions

VERIFY_SIZES = ((1, 1, 1), (67, 1, 2), (7, 131, 3), (64, 128, 4))
HELD_OUT_SIZES = ((1, 257, 1), (35, 96, 2))
HELD_OUT_TIMED_SIZES = (3000, 1280, 48)

VECTOR_SIZE, HELD_OUT_VECTOR = 1 << 24, 10_000_000  # of the only dimension: enough to keep a GPU busy

_TEMPLATE = FILES / "drafted_task.toml"
_WHOLE = {"int32", "uint32", "int64", "uint64", "int16"}


def create_task_from_cuda(folder: Path, file: Path, kernel: str = "") -> Drafted:
    """Draft a task for a file's `__global__` functions, in order, or the named one. Raises TaskError unwritten."""
    text = read_text(file)
    drafted = _draft(file, text, _chosen(file, text, kernel))
    write_new_task(folder, drafted.files)
    return drafted


def _chosen(file: Path, text: str, kernel: str) -> tuple[Function, ...]:
    found = tuple(parse(text).kernels)
    if not found:
        raise TaskError(f"{file} has no __global__ function.")
    names = ", ".join(function.name for function in found)
    if kernel:
        found = tuple(function for function in found if function.name == kernel)
        if not found:
            raise TaskError(f"{file} has no __global__ function called '{kernel}'; it has: {names}.")
    for function in found:
        line = function.node.start_point.row + 1
        if function.is_template:
            raise TaskError(
                f"{file}, line {line}: '{function.name}' is a template, which can't be launched from a plan: write an "
                'extern "C" function with its types.'
            )
        if function.node.has_error:
            raise TaskError(f"{file}, line {line}: '{function.name}' can't be parsed; does it compile?")
    return found


def _draft(file: Path, text: str, functions: Sequence[Function]) -> Drafted:
    parameters = {p.name: p for function in functions for p in function.parameters}
    pointers = [p for p in parameters.values() if p.pointer]
    numbers = [p for p in parameters.values() if not p.pointer]
    dimensions = [p.name for p in numbers if CUDA_TYPES.get(p.type) in _WHOLE]
    scalars = [p.name for p in numbers if p.name not in dimensions]
    inputs = [p.name for p in pointers if p.const]
    outputs = [p.name for p in pointers if not p.const]
    if not outputs:
        raise TaskError(f"{file}: every pointer is const, so there is no output.")
    shape = dimensions[:2] or ["n"]
    dimensions = dimensions or ["n"]
    notes = [
        "Write reference.py, which defines what is computed.",
        "task.toml and the launch plan in kernel.cu have guesses: check each line with a comment.",
    ]
    if len(functions) > 1:
        notes.append(
            f"{len(functions)} kernels are launched one after another: check their order, or name one."
        )
    unknown = [p for p in pointers if p.type not in CUDA_TYPES]
    notes += [f"'{p.name}' points to {p.type}, which isn't supported: float32 was guessed." for p in unknown]
    device_code, dropped = _without_host_code(text)
    if dropped:
        notes.append(f"Left out, as a kernel's file has no host code: {', '.join(dropped)}.")
    source = _with_plan(device_code, "".join(_launch(function, text, shape) for function in functions))
    if refused := rejection(Kernel(source)):
        notes.append(f"A search would refuse the file: {refused}")
    files = {
        "task.toml": _task_toml(
            file, pointers, dimensions, scalars, ", ".join(f'"{name}"' for name in shape)
        ),
        "reference.py": '"""What the kernel computes, in numpy, in the precision of its inputs."""\n\n\n'
        f"def reference({', '.join((*inputs, *scalars))}):\n"
        f'    raise NotImplementedError("write it: return {", ".join(outputs)}, computed with numpy")\n',
        "kernel.cu": source,
    }
    return Drafted(files, tuple(notes))


def _task_toml(
    file: Path, pointers: Sequence[Parameter], dimensions: Sequence[str], scalars: Sequence[str], extents: str
) -> str:
    def shape(sizes: Sequence[int]) -> str:
        entries = (f"{name} = {sizes[min(n, len(sizes) - 1)]}" for n, name in enumerate(dimensions))
        return f"{{ {', '.join(entries)} }}"

    is_vector = len(dimensions) == 1
    environment = Environment(trim_blocks=True, keep_trailing_newline=True)  # noqa: S701 - this is no HTML
    return environment.from_string(_TEMPLATE.read_text("utf-8")).render(
        file=file,
        inputs=[each for each in pointers if each.const],
        outputs=[each for each in pointers if not each.const],
        types=CUDA_TYPES,
        extents=extents,
        scalars=scalars,
        search=shape((VECTOR_SIZE,) if is_vector else SEARCH_SIZES),
        verify=map(shape, VERIFY_SIZES),
        held_out=map(shape, HELD_OUT_SIZES),
        held_out_timed=shape((HELD_OUT_VECTOR,) if is_vector else HELD_OUT_TIMED_SIZES),
    )


def _without_host_code(text: str) -> tuple[str, tuple[str, ...]]:
    """The file without functions of the host and headers that kernels may not include, and what these were."""
    source, data = parse(text), text.encode()
    spans = [
        (function.node.start_byte, function.node.end_byte, f"{function.name}()")
        for function in source.functions
        if function.node.parent == source.root
        and not re.search(
            _ON_DEVICE, text_of(function.node)[: function.body.start_byte - function.node.start_byte]
        )
    ]
    includes = re.finditer(rb"^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"\n]*)[>\"].*\n?", data, re.MULTILINE)
    headers = ((*found.span(), found[1].decode()) for found in includes)
    spans += [(start, end, f"<{header}>") for start, end, header in headers if header not in HEADERS]
    for start, end, _ in sorted(spans, reverse=True):
        data = data[:start] + data[end:].removeprefix(b"\n")
    return data.decode(), tuple(what for *_, what in sorted(spans))


_ON_DEVICE = r"\b(__global__|__device__|constexpr|consteval)\b"


def _with_plan(text: str, plan: str) -> str:
    """The file with a launch plan; a leading block comment becomes line comments."""
    span = leading_comment(text)
    if span is not None:
        if "[[launch]]" in text[span[0] : span[1]]:
            return text
        lines = text[span[0] : span[1]].strip().splitlines()
        text = (
            "\n".join(f"// {line.strip().lstrip('*').strip()}".rstrip() for line in lines)
            + text[span[1] + 2 :]
        )
    return f"/*\n{plan}*/\n{text}"


def _launch(function: Function, text: str, shape: Sequence[str]) -> str:
    block, said = _block(function, text)
    axes = [
        axis for axis in "xyz" if re.search(rf"\b(?:blockIdx|threadIdx)\.{axis}\b", text_of(function.node))
    ] or ["x"]
    strided = (
        len(axes) == 1 and "threadIdx.x" in text_of(function.node) and "blockDim.x" in text_of(function.node)
    )
    size = shape[0] if len(axes) > 1 or not strided else " * ".join(shape)
    grid = [f"ceil_div({size}, {block})" if strided else size]
    grid += [f"ceil_div({name}, 1)" for name in shape[1 : len(axes)]]
    grid += ["1"] * (len(axes) - len(grid))
    extents = ", ".join(f'"{extent}"' for extent in grid)
    arguments = ", ".join(f'"{parameter.name}"' for parameter in function.parameters)
    return (
        f'[[launch]]\nkernel = "{function.name}"\n'
        f"grid = [{extents}] # guessed: blocks in {', '.join(axes)}\n"
        f"block = [{block}] # {said}\n"
        f"args = [{arguments}]\n"
        '# shared = "0" # bytes of dynamic shared memory: add it if the kernel has an extern __shared__ array\n'
    )


def _block(function: Function, text: str) -> tuple[int, str]:
    bounds = function.launch_bounds
    found = re.search(r"\d+", text_of(bounds)) if bounds is not None else None
    if found:
        return int(found[0]), "from __launch_bounds__"
    launched = re.search(rf"\b{function.name}\s*<<<[^,;]+,\s*(\d+)", text)
    if launched:
        return int(launched[1]), "from a launch in the file"
    return 256, "guessed: threads in x"
