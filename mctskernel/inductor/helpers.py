"""PyTorch's own helper functions that generated kernels call, inlined as functions of the candidate."""

from __future__ import annotations

import ast

from mctskernel.inductor.generated import InductorError

PREFIX = "inductor_"

_REPLACEMENTS = """
def select_one(x, mask, dim, keep_dims=False):
    return tl.sum(tl.where(mask, x, 0), dim, keep_dims=keep_dims)

def any(a, dim):
    return tl.max(a.to(tl.int32), dim) > 0
"""
"""What takes the place of helpers that use more of Triton than a candidate may: the same values, no bit tricks."""


class Helpers:
    """Helper functions by name, and which of them are wanted so far."""

    def __init__(self, source: str) -> None:
        """`source` is the text of PyTorch's `torch._inductor.runtime.triton_helpers`."""
        self._known = _functions(source) | _functions(_REPLACEMENTS)
        self._wanted: dict[str, ast.FunctionDef] = {}

    @property
    def functions(self) -> tuple[ast.FunctionDef, ...]:
        """The wanted ones, in an order in which each comes after those that it calls."""
        return tuple(self._wanted.values())

    def has(self, name: str) -> bool:
        """Whether there is such a helper."""
        return name in self._known

    def want(self, name: str) -> str:
        """The name, in the candidate, of a helper. Raises InductorError if PyTorch has none of that name."""
        if name not in self._wanted:
            function = self._known.get(name)
            if function is None:
                raise InductorError(f"The generated code calls the helper '{name}', which is not known here.")
            self._wanted[name] = self._inlined(function)
        return PREFIX + name

    def _inlined(self, function: ast.FunctionDef) -> ast.FunctionDef:
        copied = ast.parse(ast.unparse(function)).body[0]
        assert isinstance(copied, ast.FunctionDef)  # noqa: S101 - it was one
        for default in copied.args.args:
            if default.annotation is not None and ast.unparse(default.annotation) != "tl.constexpr":
                default.annotation = None
        copied.body = _without_docstring(copied.body)
        copied.name = PREFIX + function.name
        copied.decorator_list = [ast.parse("triton.jit", mode="eval").body]
        local = {node.id for node in ast.walk(copied) if isinstance(node, ast.Name) and _is_store(node)}
        local.update(parameter.arg for parameter in copied.args.args)
        return RewrittenNames(self, frozenset(local)).visit_FunctionDef(copied)


class RewrittenNames(ast.NodeTransformer):
    """Calls of helpers and of Triton's mathematics, as a candidate writes them."""

    def __init__(self, helpers: Helpers, local: frozenset[str] = frozenset()) -> None:
        self._helpers = helpers
        self._local = local

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """A function, its decorators left alone."""
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """`triton_helpers.f` is a function of the candidate's own, `tl_math.f` is `tl.math.f`."""
        match node.value:
            case ast.Name(id="triton_helpers"):
                return ast.Name(self._helpers.want(node.attr), ast.Load())
            case ast.Name(id="tl_math" | "math"):
                node.value = ast.Attribute(ast.Name("tl", ast.Load()), "math", ast.Load())
                return node
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A helper that another helper calls or reduces with."""
        if isinstance(node.ctx, ast.Load) and node.id not in self._local and self._helpers.has(node.id):
            return ast.Name(self._helpers.want(node.id), ast.Load())
        return node


def _functions(source: str) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return list(rest)
    return body


def _is_store(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)
