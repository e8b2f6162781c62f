"""What of a CUDA C++ candidate its host has to know, while its text is compiled for the device alone.

`nvcc` compiles a file twice, and the code of the host is as good as any other: a candidate whose text took part in that
could run what it likes as soon as its module is loaded. So the host sees empty kernels with the same signatures, which
are written here from types that are known, and the candidate's text is left to the device. Where both don't agree on
a type, or the device has variables that the host has no shadow of, nothing links, and so they are refused here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tree_sitter import Node

from mctskernel.core.kernel import Kernel
from mctskernel.edits.declarations import Parameter
from mctskernel.edits.nodes import enclosing, text_of, walk
from mctskernel.edits.syntax import Function, parse
from mctskernel.host_code.errors import HostCodeError
from mctskernel.profiling.source_rules import scan

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
"""Headers of types that the host needs for a parameter."""

_CONDITIONS = frozenset({"if", "ifdef", "ifndef"})
_MAX_NAMES = 8


@dataclass(frozen=True)
class Signature:
    """A kernel as the host declares it: the C++ type of each parameter."""

    kernel: str
    types: tuple[str, ...]
    is_c: bool

    @property
    def stub(self) -> str:
        """An empty kernel of this signature."""
        linkage = 'extern "C" ' if self.is_c else ""
        return f"{linkage}__global__ void {self.kernel}({', '.join(self.types)}) {{}}"

    @property
    def headers(self) -> frozenset[str]:
        """What has to be included for its types."""
        words = re.findall(r"\w+", " ".join(self.types))
        return frozenset(HEADERS[word] for word in words if word in HEADERS)


def device_text(kernel: Kernel) -> str:
    """The candidate's text, under a condition that it can't end. Raises HostCodeError."""
    depth = 0
    for directive, _ in scan(kernel.source).directives:
        if depth == 0 and directive in {"else", "elif", "endif"}:
            raise HostCodeError(f"The source has an #{directive} without its #if.")
        depth += (directive in _CONDITIONS) - (directive == "endif")
    if depth:
        raise HostCodeError("The source has an #if without its #endif.")
    variable = next(_device_variables(parse(kernel.source).root), None)
    if variable is not None:
        raise HostCodeError(
            f"Line {variable.start_point.row + 1}: a variable of the device outside of functions has no place in a "
            "module; a scratch buffer has."
        )
    return f"#ifdef __CUDA_ARCH__\n{kernel.source.rstrip()}\n#endif\n"


def signature(kernel: Kernel, name: str) -> Signature:
    """The signature of a kernel of the candidate. Raises HostCodeError for one that the host couldn't write."""
    source = parse(kernel.source)
    functions = [each for each in source.kernels if each.name == name]
    if not name.isascii() or not functions:
        raise HostCodeError(f"'{name}' isn't defined as a __global__ function that can be read.")
    if any(each.is_template for each in functions):
        raise HostCodeError(f"'{name}' is a template, for which no host code is written here.")
    names = dict(_other_names(kernel.source))
    found = {_signature(each, names) for each in functions}
    if len(found) > 1:
        raise HostCodeError(f"'{name}' is defined with several signatures.")
    return found.pop()


def _device_variables(node: Node) -> Iterator[Node]:
    """Declarations of variables in global or constant memory that are no parts of functions."""
    for child in node.children:
        if child.type == "declaration" and not any(True for _ in walk(child, "function_declarator")):
            if any(text_of(part) in _DEVICE_MEMORY for part in child.children):
                yield child
        elif child.type not in _ELSEWHERE:
            yield from _device_variables(child)


_DEVICE_MEMORY = frozenset({"__device__", "__constant__", "__managed__"})
_ELSEWHERE = frozenset({"function_definition", "field_declaration_list", "comment"})


def _signature(function: Function, names: Mapping[str, str]) -> Signature:
    is_c = enclosing(function.node, "linkage_specification") is not None
    types = tuple(_type(each, names, function.name) for each in function.parameters)
    return Signature(function.name, types, is_c)


def _type(parameter: Parameter, names: Mapping[str, str], kernel: str) -> str:
    text = parameter.node.text.decode() if parameter.node.text is not None else ""
    type_ = parameter.type
    for _ in range(_MAX_NAMES):
        type_ = names.get(type_, type_)
    stars = text.count("*") + text.count("[") + type_.count("*")
    words = type_.replace("*", " ").split()
    known = all(word in _PLAIN for word in words) or (len(words) == 1 and words[0] in {*_SIZED, *HEADERS})
    if not words or not known or "&" in text or stars > 1:
        raise HostCodeError(
            f"The parameter '{parameter.name}' of '{kernel}' has the type {type_[:80]!r}, which its host doesn't know."
        )
    return f"{'const ' if parameter.const and stars else ''}{' '.join(words)}{'*' * stars}"


def _other_names(source: str) -> Iterator[tuple[str, str]]:
    """Macros and names of types, and what they stand for."""
    for directive, rest in scan(source).directives:
        if directive == "define" and (match := re.fullmatch(r"(\w+)\s+([\w \t*]+?)\s*", rest)):
            yield match[1], match[2]
    code = scan(source).bare
    for match in re.finditer(r"\busing\s+(\w+)\s*=\s*([\w \t*]+?)\s*;", code):
        yield match[1], match[2]
    for match in re.finditer(r"\btypedef\s+([\w \t*]+?[\s*])\s*(\w+)\s*;", code):
        yield match[2], match[1].strip()
