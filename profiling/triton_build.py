"""From a Triton module to PTX and machine code. Needs neither a GPU nor its driver.

Arguments are specialised as Triton's launcher does it: a buffer by its element type, whole numbers as 32 or 64
bits, and both marked where they are multiples of 16, on which wide loads depend. Unlike the launcher's, the marks
hold for all shapes that times are taken of, and 1 is a number like any other, so that a kernel is compiled at most
twice for one choice of constexprs, warps and stages.
"""

from __future__ import annotations

import ast
import contextlib
import io
import linecache
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.language.extra import libdevice
from triton.runtime.jit import JITFunction

from mctskernel.core.expression import Number
from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import WARP_THREADS, LaunchPlanError, ResolvedLaunch, ResolvedPlan
from mctskernel.profiling import cubin as machine_code
from mctskernel.profiling.build import Build, BuildFailure
from mctskernel.profiling.candidate import Specialised
from mctskernel.profiling.triton_source import SourceError, TritonModule, read_module

# No such folder: what the compilers write down of the file is the same on every machine.
_FILE = "/candidate/kernel.py"

_MULTIPLE = 16
_DIVISIBLE = [["tt.divisibility", _MULTIPLE]]

_POINTERS = {
    "float16": "*fp16",
    "bfloat16": "*bf16",
    "float32": "*fp32",
    "float64": "*fp64",
    "int8": "*i8",
    "uint8": "*u8",
    "int16": "*i16",
    "int32": "*i32",
    "uint32": "*u32",
    "int64": "*i64",
    "uint64": "*u64",
}
"""Triton's names of pointers to the element types of tensors."""


@dataclass(frozen=True)
class Specialisation:
    """What one compilation is for: `types` of all parameters in order, and the positions of multiples of 16."""

    function: str
    types: tuple[str, ...]
    constexprs: tuple[tuple[str, Number | bool | None], ...]
    num_warps: int
    num_stages: int
    multiples: frozenset[int]


def build_triton(
    kernel: Kernel,
    plans: Sequence[ResolvedPlan],
    searched: int,
    architecture: str,
    dtypes: Mapping[str, str],
) -> Specialised | BuildFailure:
    """Compile each specialisation that the plans need; times are taken of the first `searched` plans.

    `dtypes` are the element types of the task's tensors; those of scratch buffers are in the plans.
    """
    began = time.perf_counter()
    try:
        module = read_module(kernel.source)
        functions = _load(module)
        wanted = _specialisations(plans, searched, functions, dtypes)
        builds = {each: _compiled(functions, each, architecture) for each in dict.fromkeys(wanted.values())}
    except (SourceError, LaunchPlanError) as error:
        return BuildFailure(str(error), "", time.perf_counter() - began)
    except _CompilerError as error:
        return BuildFailure(error.message, error.log, time.perf_counter() - began)
    order = {each: index for index, each in enumerate(builds)}
    launches = {
        launch: (_as_launched(launch, builds[found]), order[found]) for launch, found in wanted.items()
    }
    return Specialised(tuple(made.build for made in builds.values()), launches)


class _CompilerError(Exception):
    def __init__(self, message: str, log: str) -> None:
        super().__init__(message)
        self.message = message
        self.log = log


@dataclass(frozen=True)
class _Compiled:
    build: Build
    shared_bytes: int
    threads: int
    hidden: int


def _load(module: TritonModule) -> dict[str, JITFunction[Any]]:
    """The module's functions, ready to compile. Only vetted `def` statements are executed, nothing else of it."""
    lines = [f"{line}\n" for line in module.source.split("\n")]
    linecache.cache[_FILE] = (len(module.source), None, lines, _FILE)
    namespace: dict[str, Any] = {
        "__builtins__": {},
        "__name__": "candidate",
        "triton": triton,
        "tl": tl,
        "libdevice": libdevice,
    }
    for name, (value, constexpr) in module.constants.items():
        namespace[name] = tl.constexpr(value) if constexpr else value
    tree = ast.Module(list(module.functions.values()), [])
    exec(compile(tree, _FILE, "exec"), namespace)  # noqa: S102 - vetted, and nothing but function definitions
    functions = {name: namespace[name] for name in module.functions}
    for name, function in functions.items():
        _check_text(function, module.functions[name])
    return functions


def _check_text(function: JITFunction[Any], vetted: ast.FunctionDef) -> None:
    """Triton compiles the text that it finds by line numbers; it must be what was vetted."""
    (found,) = function.parse().body
    bare = ast.FunctionDef(**{**dict(ast.iter_fields(vetted)), "decorator_list": []})
    if ast.dump(found) != ast.dump(bare):
        raise SourceError(f"the text of '{vetted.name}' isn't where its line numbers say.", vetted.lineno)


def _specialisations(
    plans: Sequence[ResolvedPlan],
    searched: int,
    functions: Mapping[str, JITFunction[Any]],
    dtypes: Mapping[str, str],
) -> dict[ResolvedLaunch, Specialisation]:
    """The specialisation that each launch needs. Raises LaunchPlanError."""
    groups: dict[Specialisation, dict[ResolvedLaunch, bool]] = {}
    for index, plan in enumerate(plans):
        buffers = {**dtypes, **{scratch.name: scratch.dtype for scratch in plan.scratch}}
        for launch in plan.launches:
            group = groups.setdefault(_unmarked(launch, functions, buffers), {})
            group[launch] = group.get(launch, False) or index < searched
    found = {}
    for generic, launches in groups.items():
        timed = [launch for launch, is_searched in launches.items() if is_searched] or list(launches)
        common = frozenset.intersection(*(_multiples(launch, functions) for launch in timed))
        marked = replace(generic, multiples=common)
        for launch in launches:
            found[launch] = marked if common <= _multiples(launch, functions) else generic
    return {launch: found[launch] for plan in plans for launch in plan.launches}


def _unmarked(
    launch: ResolvedLaunch, functions: Mapping[str, JITFunction[Any]], buffers: Mapping[str, str]
) -> Specialisation:
    what = f"The launch of '{launch.kernel}'"
    if launch.kernel not in functions:
        raise LaunchPlanError(
            f"The launch plan names the kernel '{launch.kernel}', which the source doesn't define "
            f"(@triton.jit functions in it: {', '.join(functions)})."
        )
    options = launch.triton
    if options is None:
        raise LaunchPlanError(f"{what} is none of a Triton kernel.")
    parameters = functions[launch.kernel].params
    given = dict(options.constexprs)
    constexprs: list[tuple[str, Number | bool | None]] = []
    for parameter in parameters:
        if parameter.is_constexpr and parameter.name in given:
            constexprs.append((parameter.name, given.pop(parameter.name)))
        elif parameter.is_constexpr and parameter.has_default:
            constexprs.append((parameter.name, parameter.default))
        elif parameter.is_constexpr:
            raise LaunchPlanError(f"{what} gives no value for the constexpr '{parameter.name}'.")
    if given:
        known = ", ".join(name for name, _ in constexprs) or "none"
        raise LaunchPlanError(
            f"{what} gives the constexpr '{next(iter(given))}', which the kernel doesn't have (it has: {known})."
        )
    plain = [parameter.name for parameter in parameters if not parameter.is_constexpr]
    if len(plain) != len(launch.arguments):
        raise LaunchPlanError(
            f"{what} has {len(launch.arguments)} arguments; the kernel has {len(plain)} parameters that are no "
            f"constexprs ({', '.join(plain) or 'none'})."
        )
    types = iter([_type(argument, buffers) for argument in launch.arguments])
    return Specialisation(
        launch.kernel,
        tuple("constexpr" if parameter.is_constexpr else next(types) for parameter in parameters),
        tuple(constexprs),
        options.num_warps,
        options.num_stages,
        frozenset(),
    )


def _type(argument: str | Number, buffers: Mapping[str, str]) -> str:
    if isinstance(argument, str):
        return _POINTERS[buffers[argument]]
    if isinstance(argument, float):
        return "fp32"
    if -(1 << 31) <= argument < 1 << 31:
        return "i32"
    return "i64" if argument < 1 << 63 else "u64"


def _multiples(launch: ResolvedLaunch, functions: Mapping[str, JITFunction[Any]]) -> frozenset[int]:
    """The positions of whole-number parameters whose arguments are multiples of 16."""
    places = [p.num for p in functions[launch.kernel].params if not p.is_constexpr]
    return frozenset(
        place
        for place, argument in zip(places, launch.arguments, strict=True)
        if isinstance(argument, int) and argument % _MULTIPLE == 0
    )


def _compiled(
    functions: Mapping[str, JITFunction[Any]], wanted: Specialisation, architecture: str
) -> _Compiled:
    began = time.perf_counter()
    function = functions[wanted.function]
    signature = dict(zip(function.arg_names, wanted.types, strict=True))
    marked = wanted.multiples | {i for i, type_ in enumerate(wanted.types) if type_.startswith("*")}
    attributes = {(place,): _DIVISIBLE for place in sorted(marked)}
    source = ASTSource(function, signature, dict(wanted.constexprs), attributes)
    target = GPUTarget("cuda", int(re.sub(r"\D", "", architecture)), WARP_THREADS)
    options = {"num_warps": wanted.num_warps, "num_stages": wanted.num_stages}
    try:
        product, metadata = _stages(source, target, options)
    except Exception as error:
        raise _CompilerError(*_explained(error)) from error
    ptx, cubin = product["ptx"], product["cubin"]
    if metadata["global_scratch_size"]:
        raise _CompilerError(
            f"The kernel '{wanted.function}' needs {metadata['global_scratch_size']} bytes of Triton's own global "
            "scratch memory, which is not given here.",
            "",
        )
    # All of a kernel's shared memory is asked for at its launch.
    resources = replace(machine_code.resources(cubin, metadata["name"]), kernel=wanted.function)
    plain = sum(type_ != "constexpr" for type_ in wanted.types)
    hidden = len(_PARAMETER.findall(ptx.partition(".entry")[2].partition(")")[0])) - plain
    build = Build(
        architecture,
        _without_debug_sections(ptx),
        cubin,
        {wanted.function: metadata["name"]},
        (resources,),
        "",
        time.perf_counter() - began,
    )
    return _Compiled(build, metadata["shared"], metadata["num_warps"] * WARP_THREADS, hidden)


_PARAMETER = re.compile(r"\.param\b")


def _stages(
    source: ASTSource, target: GPUTarget, options: Mapping[str, int]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `triton.compile` does, without its cache on disk: a search never compiles the same twice."""
    backend = make_backend(target)
    parsed = backend.parse_options(dict(options))
    stages: dict[str, Any] = {}
    backend.add_stages(stages, parsed, source.language)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = source.make_ir(
        target, parsed, backend.get_codegen_implementation(parsed), backend.get_module_map(), context
    )
    metadata: dict[str, Any] = {"target": target, **vars(parsed)}
    products: dict[str, Any] = {}
    with contextlib.redirect_stdout(
        io.StringIO()
    ):  # where a failing ptxas is reported, the whole PTX with it
        for name, lower in stages.items():
            module = products[name] = lower(module, metadata)
    return products, metadata


def _without_debug_sections(ptx: str) -> str:
    return ptx.partition("\t.section\t.debug_abbrev")[0]


def _as_launched(launch: ResolvedLaunch, made: _Compiled) -> ResolvedLaunch:
    return replace(
        launch,
        block=(made.threads, 1, 1),
        shared_bytes=made.shared_bytes,
        arguments=(*launch.arguments, *(0,) * made.hidden),
    )


def _explained(error: BaseException) -> tuple[str, str]:
    """The first error as a sentence with its line, and Triton's message."""
    log = str(error)
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = " ".join(str(cause).split()) or type(cause).__name__
    return text, log
