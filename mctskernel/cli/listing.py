"""Commands as a help page lists them: read from their sources, because importing them all takes seconds."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import rich_click as click


class Listing(click.RichGroup):
    """Commands that can be listed, in the order in which they were given, and not run."""

    def list_commands(self, _: click.Context) -> list[str]:
        """The names."""
        return list(self.commands)


def described(name: str, module: str) -> click.RichCommand:
    """A command of this name with the docstring of its function, which has the same name, and nothing else."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None  # noqa: S101 - a module of ours
    body = ast.parse(Path(spec.origin).read_text("utf-8")).body
    function = next(
        each for each in body if isinstance(each, ast.FunctionDef) and each.name == name.replace("-", "_")
    )
    return click.RichCommand(name=name, help=ast.get_docstring(function))
