"""Exit codes, and sentences instead of tracebacks for what a user can mend."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

import rich_click as click

from mctskernel.asks import ReplyError
from mctskernel.blobs import BlobError
from mctskernel.campaign.configuration import CampaignError
from mctskernel.cli.plain_console import complain, echo, plain
from mctskernel.core.device import DeviceError
from mctskernel.core.space import SpaceError
from mctskernel.core.task import TaskError
from mctskernel.edits.llm.experts import ExpertError
from mctskernel.edits.llm.options import ModelError
from mctskernel.experiments.ablation.names import AblationError
from mctskernel.experiments.records.json_lines import LineError
from mctskernel.gauntlet.corpus import CorpusError
from mctskernel.memory import MemoryUnusableError
from mctskernel.order import GenerationError
from mctskernel.run import RunError
from mctskernel.search_settings import SettingError
from mctskernel.serving.tokens import TokenError
from mctskernel.tree.evidence import EvidenceError
from mctskernel.tree.journal import JournalError
from mctskernel.tree.policy import PolicyError
from mctskernel.tunables import TunableError
from mctskernel.variants import VariantError

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

_CODES: tuple[tuple[type[Exception], int], ...] = (
    (ReplyError, USAGE),
    (PolicyError, USAGE),
    (ModelError, USAGE),
    (ExpertError, USAGE),
    (TunableError, USAGE),
    (CorpusError, USAGE),
    (AblationError, USAGE),
    (TokenError, USAGE),
    (SettingError, USAGE),
    (CampaignError, USAGE),
    (TaskError, BAD_TASK),
    (SpaceError, BAD_TASK),
    (RunError, BAD_RUN),
    (MemoryUnusableError, BAD_RUN),
    (VariantError, BAD_RUN),
    (JournalError, BAD_RUN),
    (EvidenceError, BAD_RUN),
    (LineError, BAD_RUN),
    (BlobError, BAD_RUN),
    (DeviceError, BAD_MACHINE),
    (GenerationError, NO_KERNEL),
)


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
        except tuple(kind for kind, _ in _CODES) as error:
            echo(f"mctskernel: {error}", err=True)
            sys.exit(next(code for kind, code in _CODES if isinstance(error, kind)))


def _harmless(error: click.ClickException) -> click.ClickException:
    """A complaint that may quote a file or its name, fit for a terminal."""
    message = plain(error.format_message())
    if message == error.format_message():
        return error
    if isinstance(error, click.UsageError):
        return click.UsageError(message, error.ctx)
    return click.ClickException(message)
