"""Exit codes, and sentences instead of tracebacks for what a user can mend."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

import rich_click as click

from mctskernel.cli.listing import Listing, described
from mctskernel.cli.plain_console import complain, echo, plain
from mctskernel.core.user_errors import BadMachineError, BadRunError, BadTaskError, MisuseError, NoKernelError

SUCCESS = 0
LET_THROUGH = 1
USAGE = 2
BAD_TASK = 3
BAD_RUN = 4
BAD_MACHINE = 5
NO_KERNEL = 6
REFUSED = 7
INTERRUPTED = 130

EXIT_CODES: tuple[tuple[int, str], ...] = (
    (SUCCESS, "success"),
    (
        LET_THROUGH,
        "the gauntlet let a cheat through or refused an honest kernel; an ablation came out otherwise",
    ),
    (USAGE, "wrong usage"),
    (BAD_TASK, "the task can't be used"),
    (BAD_RUN, "the run folder, or the memory, can't be read or written"),
    (BAD_MACHINE, "this machine lacks something that is needed"),
    (NO_KERNEL, "a model wrote no kernel that is right"),
    (REFUSED, "a module was refused"),
    (INTERRUPTED, "interrupted by Ctrl-C, after writing everything down"),
)

_CODES: Mapping[type[Exception], int] = {
    MisuseError: USAGE,
    BadTaskError: BAD_TASK,
    BadRunError: BAD_RUN,
    BadMachineError: BAD_MACHINE,
    NoKernelError: NO_KERNEL,
}


class CommandGroup(click.RichGroup):
    """Commands that are imported when they are used; the project's errors become a sentence and an exit code.

    Importing on use keeps `show` and `export` working where the compilers aren't installed.
    """

    commands_by_name: ClassVar[Mapping[str, str]]

    def list_commands(self, _: click.Context) -> list[str]:
        """The names, in the order of the help page."""
        return list(self.commands_by_name)

    def get_command(self, _: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command by its name."""
        module = self.commands_by_name.get(cmd_name)
        if module is None:
            return None
        command = getattr(import_module(module), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)  # noqa: S101 - our own table of commands
        return command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what follows the help page's first words; the commands are described without being imported."""
        assert isinstance(formatter, click.RichHelpFormatter)  # noqa: S101 - every group of ours is rich_click's
        commands = [described(name, module) for name, module in self.commands_by_name.items()]
        listing = Listing(name=self.name, commands=commands, params=self.params)
        listing.format_options(click.RichContext(listing, ctx.parent, ctx.info_name), formatter)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words of a command; what is wrong with them is said without orders to a terminal."""
        sys.excepthook = complain
        try:
            return super().parse_args(ctx, args)
        except click.ClickException as error:
            raise _harmless(error) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            raise _harmless(error) from error
        except BrokenPipeError:
            # The reader of our output went away (`| head`). Python would complain once more when it flushes.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(SUCCESS)
        except tuple(_CODES) as error:
            echo(f"mctskernel: {error}", err=True)
            sys.exit(next(code for kind, code in _CODES.items() if isinstance(error, kind)))


def _harmless(error: click.ClickException) -> click.ClickException:
    """A complaint that may quote a file or its name, fit for a terminal."""
    message = plain(error.format_message())
    if message == error.format_message():
        return error
    if isinstance(error, click.UsageError):
        return click.UsageError(message, error.ctx)
    return click.ClickException(message)
