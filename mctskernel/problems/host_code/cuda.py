"""Host code of CUDA C++ kernels, built by `torch.utils.cpp_extension.load_inline` on the first call.

`nvcc` compiles a file for the host and for the device. A candidate whose text was compiled for the host could run
anything when its module is loaded, so its text is only compiled for the device. The host sees empty kernels with the
same signatures, written here from known types.

Each launch has a host function in C++, whose numbers are computed in Python. It takes addresses and the stream as
integers and includes nothing of PyTorch, whose headers take most of a minute.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tree_sitter import Node

from mctskernel.core.kernel import Kernel
from mctskernel.edits.syntax import Function, Parameter, enclosing, parse, text_of, walk
from mctskernel.problems.host_code.expressions import TEMPLATES, HostCodeError, raw_literal
from mctskernel.problems.host_code.launch import WrittenLaunch
from mctskernel.profiling.build import standalone
from mctskernel.profiling.source_rules import scan

COMPILER_FLAGS = (
    "-O3",
    "-U__CUDA_NO_HALF_OPERATORS__",
    "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_HALF2_OPERATORS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
)
"""Flags for nvcc: no --use_fast_math, as in searches, and the operators that PyTorch's own flags disable."""

_GEOMETRY = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")
_CLUSTER = ("cluster_x", "cluster_y", "cluster_z")


@dataclass(frozen=True)
class HostFunctions:
    """The C++ functions that launch kernels, their declarations, and their names in order."""

    text: str
    declarations: str
    names: list[str]


def host_functions(kernel: Kernel, launches: Sequence[WrittenLaunch]) -> HostFunctions:
    """The host functions of a file that begins with the kernel's `device_text`. Raises HostCodeError."""
    signatures = {launch.kernel: launched_signature(kernel, launch) for launch in launches}
    functions = [f"launch_{number}" for number in range(len(launches))]
    declared = [
        _declaration(name, launch, signatures[launch.kernel])
        for name, launch in zip(functions, launches, strict=True)
    ]
    host = TEMPLATES.get_template("host.cu").render(
        headers=sorted(frozenset().union(*(each.headers for each in signatures.values()))),
        stubs=[*_tables(kernel), *(each.stub for each in signatures.values())],
        functions=[
            (launch, declaration, ", ".join(_passed_on(launch, signatures[launch.kernel])))
            for launch, declaration in zip(launches, declared, strict=True)
        ],
    )
    return HostFunctions(host, "".join(f"{declaration};\n" for declaration in declared), functions)


def write_host(
    kernel: Kernel, launches: Sequence[WrittenLaunch], first: str, label: str
) -> tuple[str, list[str]]:
    """What builds a module's extension, and the launches on a `first` tensor's device. Raises HostCodeError."""
    functions = host_functions(kernel, launches)
    text = TEMPLATES.get_template("load_inline.txt").render(
        device_text=raw_literal(device_text(kernel)),
        host_text=raw_literal(functions.text),
        declaration_text=raw_literal(functions.declarations),
        label=repr(label),
        function_names=repr(functions.names),
        flags=repr(COMPILER_FLAGS),
    )
    calls = calls_of(functions, launches, "{}.data_ptr()", f"_stream({first})")
    return text, [f"with torch.cuda.device_of({first}):", *(f"    _extension().{call}" for call in calls)]


def calls_of(
    functions: HostFunctions, launches: Sequence[WrittenLaunch], address: str, stream: str
) -> list[str]:
    """The call of each launch's host function; `address` is a format of a tensor's."""
    calls = []
    for name, launch in zip(functions.names, launches, strict=True):
        given = [
            address.format(each.source) if each.is_buffer else each.source
            for each in launch.arguments
            if not each.is_map
        ]
        calls.append(f"{name}({', '.join([*launch.geometry, stream, *given])})")
    return calls


def launched_signature(kernel: Kernel, launch: WrittenLaunch) -> Signature:
    """The signature of a launch's kernel. Raises HostCodeError for one that the arguments don't fit."""
    found, what = signature(kernel, launch.kernel), f"The launch of '{launch.kernel}'"
    if len(launch.arguments) != len(found.types):
        raise HostCodeError(
            f"{what} has {len(launch.arguments)} arguments; the kernel has {len(found.types)} parameters."
        )
    for number, (argument, type_) in enumerate(zip(launch.arguments, found.types, strict=True), 1):
        if (type_.endswith("*"), type_ == TENSOR_MAP) != (argument.is_buffer, argument.is_map):
            raise HostCodeError(f"{what}: argument {number} doesn't fit a parameter of the type {type_}.")
    return found


def _declaration(name: str, launch: WrittenLaunch, wanted: Signature) -> str:
    parameters = [f"int64_t {each}" for each in (*_GEOMETRY, *(_CLUSTER if launch.cluster else ()), "stream")]
    for number, (argument, type_) in enumerate(zip(launch.arguments, wanted.types, strict=True)):
        if not argument.is_map:
            parameters.append(f"{'double' if type_ in _REAL else 'int64_t'} argument_{number}")
    return f"void {name}({', '.join(parameters)})"


def _passed_on(launch: WrittenLaunch, wanted: Signature) -> Iterator[str]:
    """The arguments of a kernel, as its host function passes them."""
    for number, (argument, type_) in enumerate(zip(launch.arguments, wanted.types, strict=True)):
        if argument.is_map:
            yield f"{TENSOR_MAP}{{}}"
        else:
            cast = "reinterpret" if argument.is_buffer else "static"
            yield f"{cast}_cast<{type_}>(argument_{number})"


TENSOR_MAP = "mctskernel_tensor_map"  # the type of a tensor map among those of a signature

_TENSOR_MAPS = frozenset({"CUtensorMap", "blocks::TensorMap"})
_REAL = frozenset({"float", "double", "half", "__half", "nv_bfloat16", "__nv_bfloat16"})
_PLAIN = frozenset(["bool", "char", "short", "int", "long", "float", "double", "signed", "unsigned"])
_SIZED = frozenset(["size_t", *(f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64))])
HEADERS: Mapping[str, str] = {
    **dict.fromkeys(("half", "__half", "half2", "__half2"), "cuda_fp16.h"),
    **dict.fromkeys(("nv_bfloat16", "__nv_bfloat16", "nv_bfloat162", "__nv_bfloat162"), "cuda_bf16.h"),
    **dict.fromkeys(("__nv_fp8_e4m3", "__nv_fp8_e5m2"), "cuda_fp8.h"),
    **{
        f"{each}{count}": "vector_types.h"
        for each in ("float", "double", "int", "uint")
        for count in (2, 3, 4)
    },
}
"""The headers of parameter types."""

_CONDITIONS = frozenset({"if", "ifdef", "ifndef"})
_MAX_NAMES = 8


@dataclass(frozen=True)
class Signature:
    """The signature of a kernel: the C++ type of each parameter."""

    kernel: str
    types: tuple[str, ...]
    is_c: bool

    @property
    def stub(self) -> str:
        linkage = 'extern "C" ' if self.is_c else ""
        return f"{linkage}__global__ void {self.kernel}({', '.join(self.types)}) {{}}"

    @property
    def headers(self) -> frozenset[str]:
        words = re.findall(r"\w+", " ".join(self.types))
        return frozenset(HEADERS[word] for word in words if word in HEADERS)


def device_text(kernel: Kernel) -> str:
    """The candidate's text inside an `#ifdef` that it can't close. Raises HostCodeError."""
    depth = 0
    for directive, _ in scan(kernel.source).directives:
        if depth == 0 and directive in {"else", "elif", "endif"}:
            raise HostCodeError(f"The source has an #{directive} without its #if.")
        depth += (directive in _CONDITIONS) - (directive == "endif")
    if depth:
        raise HostCodeError("The source has an #if without its #endif.")
    root = parse(kernel.source).root
    for variable in _device_variables(root):
        if variable.parent != root or not any(text_of(part) == _TABLE for part in variable.children):
            raise HostCodeError(
                f"Line {variable.start_point.row + 1}: global device variables aren't supported in a module; use a "
                "scratch buffer."
            )
    return f"#ifdef __CUDA_ARCH__\n{standalone(kernel.source).rstrip()}\n#endif\n"


def signature(kernel: Kernel, name: str) -> Signature:
    """The signature of a kernel of the candidate. Raises HostCodeError for one that isn't supported."""
    source = parse(kernel.source)
    functions = [each for each in source.kernels if each.name == name]
    if not name.isascii() or not functions:
        raise HostCodeError(f"'{name}' isn't defined as a readable __global__ function.")
    if any(each.is_template for each in functions):
        raise HostCodeError(f"'{name}' is a template, which isn't supported.")
    names = dict(_other_names(kernel.source))
    found = {_signature(each, names) for each in functions}
    if len(found) > 1:
        raise HostCodeError(f"'{name}' is defined with several signatures.")
    return found.pop()


def _device_variables(node: Node) -> Iterator[Node]:
    """Declarations of variables in global or constant memory, outside of functions."""
    for child in node.children:
        if child.type == "declaration" and not any(True for _ in walk(child, "function_declarator")):
            if any(text_of(part) in _DEVICE_MEMORY for part in child.children):
                yield child
        elif child.type not in _ELSEWHERE:
            yield from _device_variables(child)


def _tables(kernel: Kernel) -> Iterator[str]:
    """For each table of constants a variable of its name: the host's registration of the device's takes an address."""
    for variable in _device_variables(parse(kernel.source).root):
        for declarator in variable.children_by_field_name("declarator"):
            yield f"static {_TABLE} char {text_of(next(walk(declarator, 'identifier')))}[1];"


_TABLE = "__constant__"
_DEVICE_MEMORY = frozenset({"__device__", _TABLE, "__managed__"})
_ELSEWHERE = frozenset({"function_definition", "field_declaration_list", "comment"})


def _signature(function: Function, names: Mapping[str, str]) -> Signature:
    is_c = enclosing(function.node, "linkage_specification") is not None
    types = tuple(_type(each, names, function.name) for each in function.parameters)
    return Signature(function.name, types, is_c)


def _type(parameter: Parameter, names: Mapping[str, str], kernel: str) -> str:
    text = text_of(parameter.node)
    type_ = parameter.type
    for _ in range(_MAX_NAMES):
        type_ = names.get(type_, type_)
    if type_ in _TENSOR_MAPS:
        return TENSOR_MAP
    stars = text.count("*") + text.count("[") + type_.count("*")
    words = type_.replace("*", " ").split()
    known = all(word in _PLAIN for word in words) or (len(words) == 1 and words[0] in {*_SIZED, *HEADERS})
    if not words or not known or "&" in text or stars > 1:
        raise HostCodeError(
            f"The parameter '{parameter.name}' of '{kernel}' has the type {type_[:80]!r}, which isn't supported."
        )
    return f"{'const ' if parameter.const and stars else ''}{' '.join(words)}{'*' * stars}"


def _other_names(source: str) -> Iterator[tuple[str, str]]:
    """Macros and type aliases, with their replacements."""
    for directive, rest in scan(source).directives:
        if directive == "define" and (match := re.fullmatch(r"(\w+)\s+([\w \t*]+?)\s*", rest)):
            yield match[1], match[2]
    code = scan(source).bare
    for match in re.finditer(r"\busing\s+(\w+)\s*=\s*([\w \t*]+?)\s*;", code):
        yield match[1], match[2]
    for match in re.finditer(r"\btypedef\s+([\w \t*]+?[\s*])\s*(\w+)\s*;", code):
        yield match[2], match[1].strip()
