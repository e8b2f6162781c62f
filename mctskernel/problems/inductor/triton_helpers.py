"""PyTorch's helper functions (`triton_helpers`), which generated kernels call, as functions of a candidate."""

from __future__ import annotations

import ast

from mctskernel.problems.inductor.generated import InductorError

PREFIX = "inductor_"

_REPLACEMENTS = """
def select_one(x, mask, dim, keep_dims=False):
    return tl.sum(tl.where(mask, x, 0), dim, keep_dims=keep_dims)

def any(a, dim):
    return tl.max(a.to(tl.int32), dim) > 0
"""
"""Replacements of helpers that use parts of Triton which candidates may not."""


class Helpers:
    """PyTorch's helper functions, and those that the candidate needs so far."""

    def __init__(self, source: str) -> None:
        """`source` is the text of PyTorch's `torch._inductor.runtime.triton_helpers`."""
        self.known = _functions(source) | _functions(_REPLACEMENTS)
        self._wanted: dict[str, ast.FunctionDef] = {}

    @property
    def functions(self) -> tuple[ast.FunctionDef, ...]:
        """The needed functions, each after those that it calls."""
        return tuple(self._wanted.values())

    def want(self, name: str) -> str:
        """Add a helper; returns its name in the candidate. Raises InductorError for an unknown one."""
        if name not in self._wanted:
            function = self.known.get(name)
            if function is None:
                raise InductorError(f"The generated code calls the helper '{name}', which is unknown.")
            self._wanted[name] = self._inlined(function)
        return PREFIX + name

    def _inlined(self, function: ast.FunctionDef) -> ast.FunctionDef:
        copied = jitted(function)
        for parameter in copied.args.args:
            if parameter.annotation is not None and ast.unparse(parameter.annotation) != "tl.constexpr":
                parameter.annotation = None
        if ast.get_docstring(copied) is not None:
            del copied.body[0]
        copied.name = PREFIX + function.name
        names = (node for node in ast.walk(copied) if isinstance(node, ast.Name))
        local = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        local.update(parameter.arg for parameter in copied.args.args)
        return RewrittenNames(self, frozenset(local)).visit_FunctionDef(copied)


class RewrittenNames(ast.NodeTransformer):
    """Replaces calls of helpers and of Triton's math module by those of a candidate."""

    def __init__(self, helpers: Helpers, local: frozenset[str] = frozenset()) -> None:
        self._helpers = helpers
        self._local = local

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """`triton_helpers.f` becomes a function of the candidate, `tl_math.f` becomes `tl.math.f`."""
        match node.value:
            case ast.Name(id="triton_helpers"):
                return ast.Name(self._helpers.want(node.attr), ast.Load())
            case ast.Name(id="tl_math" | "math"):
                node.value = ast.Attribute(ast.Name("tl", ast.Load()), "math", ast.Load())
                return node
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A helper that another helper uses."""
        if isinstance(node.ctx, ast.Load) and node.id not in self._local and node.id in self._helpers.known:
            return ast.Name(self._helpers.want(node.id), ast.Load())
        return node


def jitted(function: ast.FunctionDef) -> ast.FunctionDef:
    """A copy of a function, decorated with `@triton.jit` alone."""
    copied = parsed(ast.unparse(function))
    copied.decorator_list = [ast.parse("triton.jit", mode="eval").body]
    return copied


def parsed(text: str) -> ast.FunctionDef:
    (found,) = ast.parse(text).body
    assert isinstance(found, ast.FunctionDef)  # noqa: S101 - as it was written
    return found


def _functions(source: str) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
