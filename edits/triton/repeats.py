"""Statements that compute again what a name already holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mctskernel.edits.triton.context import LaunchedFunction, TritonContext
from mctskernel.edits.triton.module import (
    Module,
    Replacement,
    argument,
    called,
    names_assigned,
    names_read,
    parameters,
    replaced,
)

PURE_METHODS = frozenset({"to", "cast", "sum", "max", "min", "trans", "reshape", "view"})
"""Methods of tensors that a value may call and still be the same when computed again."""


def without_repeats(context: TritonContext, launched: LaunchedFunction, module: Module) -> str:
    """A module's text without the repeated statements of the launched function.

    A statement is repeated when it assigns to a name what the name holds already: the same expression was assigned to
    it before, and none of what the expression reads has changed since. Loads count where they read an input of the
    task, which nothing writes. `module` may be another text than the context's, with the same parameters.
    """
    function = module.functions.get(launched.launch.kernel)
    if function is None or parameters(function) != parameters(launched.function):
        return module.text
    inputs = {name for name, bound in launched.bound.items() if context.is_input(str(bound))}
    pointers = {name for name, bound in launched.bound.items() if context.is_buffer(bound)}
    return replaced(module, _repeated(module, function.body, inputs, pointers))


def without_empty_sums(module: Module, function: str) -> str:
    """A module's text without zeros that a name is given only to have something added at once: `s = 0.0; s += t`."""
    body = module.functions[function].body
    return replaced(module, (each for index in range(len(body)) for each in _empty_sum(module, body[index:])))


def _empty_sum(module: Module, body: list[ast.stmt]) -> Iterator[Replacement]:
    match body[0]:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=float() as zero)) if (
            zero == 0.0
        ):
            pass
        case _:
            return
    for statement in body[1:]:
        match statement:
            case ast.AugAssign(target=ast.Name(id=target), op=ast.Add(), value=value) if target == name:
                if name not in names_read(value):
                    yield module.remove(body[0])
                    yield module.replace(statement, f"{name} = {module.text_of(value)}")
                return
        if name in names_read(statement) | names_assigned(statement):
            return


def _repeated(
    module: Module, body: list[ast.stmt], inputs: set[str], pointers: set[str]
) -> Iterator[Replacement]:
    held: dict[str, tuple[str, frozenset[str]]] = {}
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _pure(value, inputs, pointers):
                text = ast.dump(value)
                if name in held and held[name][0] == text:
                    yield module.remove(statement)
                    continue
                _forget(held, {name})
                if name not in names_read(value):
                    held[name] = text, names_read(value)
            case _:
                _forget(held, names_assigned(statement))


def _forget(held: dict[str, tuple[str, frozenset[str]]], changed: set[str] | frozenset[str]) -> None:
    for name in [name for name, (_, read) in held.items() if name in changed or read & changed]:
        del held[name]


def _pure(value: ast.expr, inputs: set[str], pointers: set[str]) -> bool:
    """Whether an expression has the same value whenever its names have: it may read inputs, and writes nothing."""
    for node in ast.walk(value):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) == "float":
            continue
        name = called(node)
        if name == "load":
            pointer = argument(node, 0, "pointer")
            read = names_read(pointer) if pointer is not None else frozenset()
            if not read & inputs or (read & pointers) - inputs:
                return False
        elif not (name and not name.startswith(("atomic", "rand", "store", "debug"))) and not (
            isinstance(node.func, ast.Attribute) and node.func.attr in PURE_METHODS
        ):
            return False
    return True
