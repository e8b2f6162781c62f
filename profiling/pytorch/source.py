"""A first look at a module's source, without running it: refusals that are certain, and warnings about what is odd.

No verdict rests on this: a program can hide anything from a reader.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mctskernel.core.evaluation import Guard, Outcome
from mctskernel.profiling.pytorch.worker_client import ModuleError

MAX_SOURCE_CHARACTERS = 1_000_000

_ODD_MODULES = {
    "calls machine code": ("ctypes",),
    "inspects frames, objects or sources": ("faulthandler", "gc", "inspect", "weakref"),
    "starts processes or threads": ("asyncio", "concurrent", "multiprocessing", "subprocess", "threading"),
    "handles signals or the end of its process": ("atexit", "signal"),
    "opens connections or files": ("mmap", "pickle", "shelve", "socket"),
    "reads clocks or changes limits": ("resource", "time"),
}
_ODD_NAMES = {
    "inspects frames or objects": (
        "_current_frames",
        "_getframe",
        "data_ptr",
        "get_objects",
        "setprofile",
        "settrace",
    ),
    "starts or ends processes": ("_exit", "fork"),
    "reads its environment or files": ("environ", "getenv", "open"),
    "times or synchronizes by itself": ("Event", "Stream", "perf_counter", "synchronize"),
    "changes what PyTorch's functions do": (
        "TorchDispatchMode",
        "TorchFunctionMode",
        "__torch_dispatch__",
        "__torch_function__",
        "_make_subclass",
        "_make_wrapper_subclass",
        "set_num_threads",
    ),
    "runs text or changes objects by name": ("__import__", "eval", "exec", "import_module", "setattr"),
    "caches results": ("lru_cache",),
    "computes in 16 bits": ("bfloat16", "float16", "half"),
}
_WARNINGS = {
    name: warning
    for table in (_ODD_MODULES, _ODD_NAMES)
    for warning, names in table.items()
    for name in names
}
_MODULES = frozenset(name for names in _ODD_MODULES.values() for name in names)
_KERNEL_MAKERS = frozenset(
    {"load_inline", "jit", "RawKernel", "RawModule", "ElementwiseKernel", "compile_ptx"}
)
_PATCHED = frozenset({"torch", "time", "sys", "os", "builtins", "gc"})


def check_source(source: str, *, own_kernels: bool) -> tuple[str, ...]:
    """Warnings about a candidate's source. Raises ModuleError for one that is refused unrun."""
    if len(source) > MAX_SOURCE_CHARACTERS:
        message = f"The source has {len(source)} characters; the limit is {MAX_SOURCE_CHARACTERS}."
        raise ModuleError(Outcome.REJECTED, message, guard=Guard.SOURCE_RULES)
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        message = f"The source is not Python: {error}"
        raise ModuleError(Outcome.BUILD_ERROR, message, guard=Guard.COMPILER) from error
    if own_kernels and (message := _without_own_kernel(tree)):
        raise ModuleError(Outcome.REJECTED, message, guard=Guard.FOREIGN_CALLS)
    return tuple(dict.fromkeys(_oddities(tree)))


def _without_own_kernel(tree: ast.Module) -> str:
    """Why a module certainly computes nothing with a kernel of its own; empty otherwise."""
    nodes = list(ast.walk(tree))
    kernels = {
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef) and any(map(_makes_kernel, node.decorator_list))
    }
    compiled = any(
        (isinstance(node, ast.Call) and _makes_kernel(node.func))
        or any(module.endswith("cpp_extension") for module, _ in _imports(node))
        for node in nodes
    )
    if not kernels and not compiled:
        return "A kernel of its own was asked for, and the module defines none."
    launched = {
        node.value.id
        for node in nodes
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)
    }
    if not compiled and not launched & kernels:
        return f"The module defines {', '.join(sorted(kernels))} and launches none of them."
    for node in nodes:
        if isinstance(node, ast.ExceptHandler):
            for call in (found for each in node.body for found in ast.walk(each)):
                if isinstance(call, ast.Call) and _root(call.func) in {"torch", "F", "super"}:
                    return f"Line {call.lineno}: where its kernel fails, the module falls back on PyTorch."
    return ""


def _makes_kernel(node: ast.expr) -> bool:
    return any(name in _KERNEL_MAKERS for each in ast.walk(node) for name, _ in _names(each))


def _oddities(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        for name, line in _names(node):
            if name in _WARNINGS and name not in _MODULES:
                yield f"Line {line}: {name} {_WARNINGS[name]}."
        for module, line in _imports(node):
            top = module.partition(".")[0]
            if top in _MODULES:
                yield f"Line {line}: {top} {_WARNINGS[top]}."
        if isinstance(node, ast.Try):
            yield f"Line {node.lineno}: an exception is caught here, which may hide a fallback."
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Attribute) and _root(target) in _PATCHED:
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


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
