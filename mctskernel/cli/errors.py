"""Exit codes, the group of all commands, and sentences instead of tracebacks for what a user can put right."""

from __future__ import annotations

import ast
import atexit
import os
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import rich_click as click

from mctskernel.cli.plain_console import complain, echo, plain, warn
from mctskernel.core.user_errors import (
    BadMachineError,
    BadTaskError,
    NoKernelError,
    RunError,
    UserError,
    nearest_name,
)

SUCCESS = 0
LET_THROUGH = 1
USAGE = UserError.exit_code
BAD_TASK = BadTaskError.exit_code
BAD_RUN = RunError.exit_code
BAD_MACHINE = BadMachineError.exit_code
NO_KERNEL = NoKernelError.exit_code
REFUSED = 7
INTERRUPTED = 130

EXIT_CODES: tuple[tuple[int, str], ...] = (
    (SUCCESS, "success"),
    (LET_THROUGH, "the gauntlet accepted a cheat or refused an honest kernel"),
    (USAGE, "wrong usage"),
    (BAD_TASK, "the task can't be used"),
    (BAD_RUN, "the run folder can't be read or written"),
    (BAD_MACHINE, "this machine lacks something that is needed"),
    (NO_KERNEL, "a kernel is wrong or fails, or a model wrote none that is right"),
    (REFUSED, "a module was refused"),
    (INTERRUPTED, "interrupted by Ctrl-C, with everything saved"),
)


class CommandGroup(click.RichGroup):
    """Import a command when it is used; turn a UserError into a sentence and an exit code."""

    def __init__(self, *args: Any, groups: Mapping[str, tuple[str, ...]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.groups = groups

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        warnings.showwarning = warn
        status = 1  # of an exception that nobody catches
        atexit.register(lambda: _leave(status))
        try:
            return super().__call__(*args, **kwargs)
        except SystemExit as ended:
            status = int(ended.code or SUCCESS)
            raise

    def list_commands(self, _: click.Context) -> list[str]:
        return [name for names in self.groups.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            if close := nearest_name(cmd_name, self.list_commands(ctx)):
                ctx.fail(f"There is no command '{cmd_name}'. Did you mean '{close}'?")
            return None
        command: click.Command = getattr(import_module(_module(cmd_name)), cmd_name.replace("-", "_"))
        return command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by group, with sentences read from their sources."""
        assert isinstance(formatter, click.RichHelpFormatter)  # noqa: S101 - every group here is rich_click's
        listed = click.RichGroup(name=self.name, params=self.params)
        for title, names in self.groups.items():
            listed.add_panel(click.RichCommandPanel(title, commands=list(names)))
            for name in names:
                listed.add_command(click.RichCommand(name=name, help=described(name)))
        listed.format_options(click.RichContext(listed, ctx.parent, ctx.info_name), formatter)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words of a command; complaints about them can't control the terminal."""
        sys.excepthook = complain
        try:
            return super().parse_args(ctx, args)
        except click.ClickException as error:
            raise _harmless(error) from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            raise _harmless(error) from error
        except BrokenPipeError:
            # The reader of our output went away (`| head`). Python would complain once more when it flushes.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(SUCCESS)
        except UserError as error:
            echo(f"mctskernel: {error}", err=True)
            sys.exit(error.exit_code)


def _leave(status: int) -> None:
    """End the process, after all else that is done then: unloading PyTorch would take a second."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def described(name: str) -> str:
    """The docstring of a command, read from its source: importing all commands takes seconds."""
    spec = find_spec(_module(name))
    assert spec is not None and spec.origin is not None  # noqa: S101 - our own module
    body = ast.parse(Path(spec.origin).read_text("utf-8")).body
    functions = (each for each in body if isinstance(each, ast.FunctionDef))
    function = next(each for each in functions if each.name == name.replace("-", "_"))
    return ast.get_docstring(function) or ""


def _module(name: str) -> str:
    return f"mctskernel.cli.{name.replace('-', '_')}"


def _harmless(error: click.ClickException) -> click.ClickException:
    """The same complaint without control characters: it may quote a file or its name."""
    message = plain(error.format_message())
    if message == error.format_message():
        return error
    if isinstance(error, click.UsageError):
        return click.UsageError(message, error.ctx)
    return click.ClickException(message)
