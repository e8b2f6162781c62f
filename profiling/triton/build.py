"""From a Triton module to PTX and machine code. Needs neither a GPU nor its driver.

Only vetted function definitions of a module are executed (`triton.source`), and the stages of Triton's own compiler
run as `triton.compile` runs them, without its cache.
"""

from __future__ import annotations

import ast
import io
import linecache
import re
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec
import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.language.extra import libdevice
from triton.runtime.jit import JITFunction

from mctskernel import __version__
from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import (
    WARP_THREADS,
    LaunchPlanError,
    ResolvedLaunch,
    ResolvedPlan,
    ResolvedScratch,
)
from mctskernel.profiling import build_cache
from mctskernel.profiling.build import Build, BuildFailure
from mctskernel.profiling.candidate import HOPPER, Specialised
from mctskernel.profiling.machine_code.cubin import resources as resources_of
from mctskernel.profiling.triton.errors import explain, native_diagnostics
from mctskernel.profiling.triton.source import SourceError, TritonModule, read_module
from mctskernel.profiling.triton.specialise import MULTIPLE, Parameter, Specialisation, specialisations

_DIVISIBLE = [["tt.divisibility", MULTIPLE]]

# No such folder: what the compilers write down of the file is the same on every machine.
_FILE = "/candidate/kernel.py"


def build_triton(
    kernel: Kernel, plans: Sequence[ResolvedPlan], searched: int, architecture: str, dtypes: Mapping[str, str]
) -> Specialised | BuildFailure:
    """Compile each specialisation of plans, the first `searched` timed; `dtypes` are the task's tensors'."""
    try:
        module = read_module(kernel.source)
        functions = _load(module)
        wanted = specialisations(plans, searched, _parameters(functions), dtypes)
    except (SourceError, LaunchPlanError) as error:
        return BuildFailure(str(error), "")
    distinct = tuple(dict.fromkeys(wanted.values()))
    with _ONE_AT_A_TIME, native_diagnostics() as diagnostics:
        made = _compile_all(kernel.source, functions, distinct, architecture)
    failed = next((each for each in made if isinstance(each, Exception)), None)
    if failed is not None:
        starts = {functions[name].src: definition.lineno for name, definition in module.functions.items()}
        message, log = explain(failed, diagnostics.text, starts, _FILE)
        return BuildFailure(message, log)
    compiled = dict(zip(distinct, (each for each in made if isinstance(each, _Compiled)), strict=True))
    launches = {
        launch: (_as_launched(launch, each, compiled[each]), distinct.index(each))
        for launch, each in wanted.items()
    }
    scratch = {
        launch: ResolvedScratch(_SCRATCH, "uint8", (nbytes,), zero=False)
        for launch, each in wanted.items()
        if (nbytes := compiled[each].scratch_bytes * launches[launch][0].blocks)
    }
    return Specialised(tuple(each.build for each in compiled.values()), launches, scratch)


_ONE_AT_A_TIME = Lock()  # the standard error output belongs to the whole process


def _compile_all(
    source: str,
    functions: Mapping[str, JITFunction[Any]],
    wanted: Sequence[Specialisation],
    architecture: str,
) -> list[_Compiled | Exception]:
    """Compile beside each other: Triton's passes and ptxas run without Python's lock."""

    def attempt(specialisation: Specialisation) -> _Compiled | Exception:
        try:
            return _cached(source, functions, specialisation, architecture)
        except Exception as error:  # noqa: BLE001 - Triton raises whatever its Python meets in the candidate
            return error

    # Triton warns of what will be gone in a later version, and where ptxas fails it prints all of the PTX.
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), ThreadPoolExecutor(len(wanted)) as pool:
        warnings.simplefilter("ignore")
        return list(pool.map(attempt, wanted))


@dataclass(frozen=True)
class _Compiled:
    build: Build
    shared_bytes: int
    threads: int
    hidden: int
    num_ctas: int = 1
    scratch_bytes: int = 0  # global memory that a block builds its tensor descriptors in


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


def _parameters(functions: Mapping[str, JITFunction[Any]]) -> dict[str, tuple[Parameter, ...]]:
    return {
        name: tuple(
            Parameter(
                each.name, each.is_constexpr, each.has_default, each.default if each.has_default else None
            )
            for each in function.params
        )
        for name, function in functions.items()
    }


def _check_text(function: JITFunction[Any], vetted: ast.FunctionDef) -> None:
    """Triton compiles the text that it finds by line numbers; it must be what was vetted."""
    (found,) = function.parse().body
    bare = ast.FunctionDef(**{**dict(ast.iter_fields(vetted)), "decorator_list": []})
    if ast.dump(found) != ast.dump(bare):
        raise SourceError(f"the text of '{vetted.name}' isn't where its line numbers say.", vetted.lineno)


def _cached(
    source: str, functions: Mapping[str, JITFunction[Any]], wanted: Specialisation, architecture: str
) -> _Compiled:
    """The earlier product from the cache, or else a new one."""
    bare = replace(wanted, multiples=frozenset(), ones=frozenset())
    described = repr(bare), str(sorted(wanted.multiples)), str(sorted(wanted.ones))
    key = build_cache.Key(
        source, (architecture, *described), f"triton {triton.__version__} mctskernel {__version__}"
    )
    if (product := build_cache.load(key)) is not None:
        return msgspec.msgpack.decode(product, type=_Compiled)
    made = _compiled(functions, wanted, architecture)
    build_cache.store(key, msgspec.msgpack.encode(made))
    return made


def _compiled(
    functions: Mapping[str, JITFunction[Any]], wanted: Specialisation, architecture: str
) -> _Compiled:
    function = functions[wanted.function]
    types = tuple("constexpr" if i in wanted.ones else each for i, each in enumerate(wanted.types))
    signature = dict(zip(function.arg_names, types, strict=True))
    constants = {**dict(wanted.constexprs), **{function.arg_names[i]: 1 for i in wanted.ones}}
    marked = wanted.multiples | {i for i, type_ in enumerate(types) if type_.startswith("*")}
    attributes = {(place,): _DIVISIBLE for place in sorted(marked)}
    source = ASTSource(function, signature, constants, attributes)
    target = GPUTarget("cuda", int(re.sub(r"\D", "", architecture)), WARP_THREADS)
    options = {"num_warps": wanted.num_warps, "num_stages": wanted.num_stages}
    if wanted.num_ctas > 1 and target.arch >= HOPPER:
        # Elsewhere one block does what those of a cluster would share.
        options["num_ctas"] = wanted.num_ctas
    if wanted.maxnreg:
        options["maxnreg"] = wanted.maxnreg
    product, metadata = _stages(source, target, options)
    ptx, cubin = product["ptx"], product["cubin"]
    # All of a kernel's shared memory is asked for at its launch.
    resources = replace(resources_of(cubin, metadata["name"]), kernel=wanted.function)
    plain = sum(type_ != "constexpr" for type_ in types)
    hidden = len(_PARAMETER.findall(ptx.partition(".entry")[2].partition(")")[0])) - plain
    build = Build(
        architecture,
        _portable(ptx),
        cubin,
        {wanted.function: metadata["name"]},
        (resources,),
        "",
    )
    return _Compiled(
        build,
        metadata["shared"],
        metadata["num_warps"] * WARP_THREADS,
        hidden,
        options.get("num_ctas", 1),
        metadata["global_scratch_size"] or 0,
    )


_PARAMETER = re.compile(r"\.param\b")


def _stages(
    source: ASTSource, target: GPUTarget, options: Mapping[str, int]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `triton.compile` does, without its cache on disk, to which untrusted processes would write."""
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
    for name, lower in stages.items():
        module = products[name] = lower(module, metadata)
    return products, metadata


def _portable(ptx: str) -> str:
    """PTX without debug sections, and without this machine's paths to Triton's own library."""
    return ptx.partition("\t.section\t.debug_abbrev")[0].replace(_PACKAGES, "")


_PACKAGES = f"{Path(triton.__file__).parents[1]}/"


def _as_launched(launch: ResolvedLaunch, wanted: Specialisation, made: _Compiled) -> ResolvedLaunch:
    # The first hidden parameter is the scratch memory, the others are of Triton's profiler.
    hidden: list[str | int] = [0] * made.hidden
    if made.scratch_bytes:
        hidden[0] = _SCRATCH
    columns, rows, layers = launch.grid
    places = [place for place, each in enumerate(wanted.types) if each != "constexpr"]
    passed = (a for p, a in zip(places, launch.arguments, strict=True) if p not in wanted.ones)
    return replace(
        launch,
        grid=(columns * made.num_ctas, rows, layers),
        block=(made.threads, 1, 1),
        shared_bytes=made.shared_bytes,
        arguments=(*passed, *hidden),
        cluster=(made.num_ctas, 1, 1),
    )


_SCRATCH = "Triton's scratch memory"  # no name that a plan can give to a buffer
