"""A first look at a module's source, without running it: what is certain refuses it, what is odd is remarked upon.

None of this is what a verdict rests on: a program can hide anything from whoever reads it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from mctskernel.core.evaluation import Guard, Outcome

MAX_SOURCE_CHARACTERS = 1_000_000

CANDIDATE_CLASS = "ModelNew"

_ODD_MODULES = {
    "ctypes": "calls machine code that it brings or finds",
    "faulthandler": "looks at other frames",
    "gc": "walks the objects of its process",
    "inspect": "looks at other frames or sources",
    "multiprocessing": "starts processes",
    "pickle": "loads objects from bytes",
    "shelve": "keeps results in files",
    "signal": "handles signals",
    "socket": "opens connections",
    "subprocess": "starts processes",
    "threading": "starts threads",
    "concurrent": "starts threads or processes",
    "asyncio": "runs work beside the call",
    "atexit": "runs when its process ends",
    "time": "reads or changes clocks",
    "mmap": "maps memory",
    "resource": "changes its limits",
    "weakref": "notices when tensors die",
}

_ODD_NAMES = {
    "_getframe": "looks at other frames",
    "_current_frames": "looks at other frames",
    "settrace": "traces what its process runs",
    "setprofile": "traces what its process runs",
    "fork": "forks its process",
    "_exit": "ends its process",
    "environ": "looks at its environment",
    "getenv": "looks at its environment",
    "data_ptr": "looks at addresses",
    "perf_counter": "reads or changes clocks",
    "synchronize": "synchronises by itself",
    "Event": "uses events",
    "Stream": "uses streams of its own",
    "__torch_function__": "is a tensor of its own kind",
    "__torch_dispatch__": "is a tensor of its own kind",
    "_make_subclass": "is a tensor of its own kind",
    "_make_wrapper_subclass": "is a tensor of its own kind",
    "TorchFunctionMode": "changes what PyTorch's functions do",
    "TorchDispatchMode": "changes what PyTorch's functions do",
    "setattr": "changes objects by name",
    "eval": "runs text",
    "exec": "runs text",
    "__import__": "imports by name",
    "import_module": "imports by name",
    "open": "opens files",
    "set_num_threads": "changes how many threads it may use",
    "get_objects": "walks the objects of its process",
    "lru_cache": "keeps results",
    "half": "computes in 16 bits",
    "bfloat16": "computes in 16 bits",
    "float16": "computes in 16 bits",
}

_KERNEL_MAKERS = frozenset(
    {"load_inline", "jit", "RawKernel", "RawModule", "ElementwiseKernel", "compile_ptx"}
)


class ModuleSourceError(ValueError):
    """A source that is refused unrun, with its outcome and the guard that noticed."""

    def __init__(self, message: str, outcome: Outcome, guard: Guard) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.guard = guard


@dataclass(frozen=True)
class ModuleSource:
    """What was seen: `flags` are sentences about what is odd."""

    flags: tuple[str, ...]


def read_source(source: str, *, own_kernels: bool) -> ModuleSource:
    """Look at a candidate's source. Raises ModuleSourceError."""
    if len(source) > MAX_SOURCE_CHARACTERS:
        message = f"The source has {len(source)} characters; the limit is {MAX_SOURCE_CHARACTERS}."
        raise ModuleSourceError(message, Outcome.REJECTED, Guard.SOURCE_RULES)
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        message = f"The source is no Python: {error}"
        raise ModuleSourceError(message, Outcome.BUILD_ERROR, Guard.COMPILER) from error
    if own_kernels and (message := _without_own_kernel(tree)):
        raise ModuleSourceError(message, Outcome.REJECTED, Guard.FOREIGN_CALLS)
    return ModuleSource(tuple(dict.fromkeys(_oddities(tree))))


def _without_own_kernel(tree: ast.Module) -> str:
    """Why a module computes nothing with a kernel of its own, as far as its text is certain of it."""
    kernels = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and any(map(_makes_kernel, node.decorator_list))
    }
    compiled = any(
        (isinstance(node, ast.Call) and _makes_kernel(node.func))
        or any(module.endswith("cpp_extension") for module, _ in _imports(node))
        for node in ast.walk(tree)
    )
    if not kernels and not compiled:
        return "A kernel of its own was asked for, and the module defines none."
    launched = {
        node.value.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)
    }
    if not compiled and not launched & kernels:
        return f"The module defines {', '.join(sorted(kernels))} and launches none of them."
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            calls = [call for each in node.body for call in ast.walk(each) if isinstance(call, ast.Call)]
            for call in calls:
                if _root(call.func) in {"torch", "F", "super"}:
                    return f"Line {call.lineno}: where its kernel fails, the module falls back on PyTorch."
    return ""


def _makes_kernel(node: ast.expr) -> bool:
    return any(name in _KERNEL_MAKERS for each in ast.walk(node) for name, _ in _names(each))


def _oddities(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        for name, line in _names(node):
            if name in _ODD_NAMES:
                yield f"Line {line}: {name} {_ODD_NAMES[name]}."
        for module, line in _imports(node):
            top = module.partition(".")[0]
            if top in _ODD_MODULES:
                yield f"Line {line}: {top} {_ODD_MODULES[top]}."
        if isinstance(node, ast.Try):
            yield f"Line {node.lineno}: what fails here is caught, which may hide a fallback."
        for target in _assigned(node):
            yield f"Line {target.lineno}: {ast.unparse(target)} is replaced."


def _names(node: ast.AST) -> Iterator[tuple[str, int]]:
    if isinstance(node, ast.Name):
        yield node.id, node.lineno
    elif isinstance(node, ast.Attribute):
        yield node.attr, node.lineno
    elif isinstance(node, ast.FunctionDef):
        yield node.name, node.lineno
    elif isinstance(node, ast.ImportFrom):
        yield from ((alias.name, node.lineno) for alias in node.names)


def _imports(node: ast.AST) -> Iterator[tuple[str, int]]:
    if isinstance(node, ast.Import):
        yield from ((alias.name, node.lineno) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield node.module or "", node.lineno


def _assigned(node: ast.AST) -> Iterator[ast.Attribute]:
    """Attributes of modules that are replaced: `torch.cuda.synchronize = ...`."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    for target in targets:
        if isinstance(target, ast.Attribute) and _root(target) in {
            "torch",
            "time",
            "sys",
            "os",
            "builtins",
            "gc",
        }:
            yield target


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
