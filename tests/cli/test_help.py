"""The help pages, and what a command imports before it does anything."""

import subprocess
import sys

import click
import pytest

from mctskernel.cli import main
from mctskernel.cli.errors import described
from tests.cli.command import mctskernel

HEAVY = {"httpx2", "jinja2", "msgspec", "numpy", "openai", "plotly", "ray", "torch"}


@pytest.mark.slow
@pytest.mark.parametrize("word", ["--version", "--help"])
def test_version_and_help_import_no_command(word: str) -> None:
    command = (sys.executable, "-X", "importtime", "-m", "mctskernel", word)
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()
    modules = {line.rpartition("|")[2].strip() for line in lines}
    assert "mctskernel.cli" in modules
    assert not HEAVY & modules
    assert not {f"mctskernel.cli.{name.replace('-', '_')}" for name in main.list_commands(None)} & modules


def test_every_command_is_listed_with_its_own_first_sentence() -> None:
    context = click.Context(main)
    assert len(main.list_commands(context)) <= 22
    page = mctskernel("--help").stdout
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        assert click.Command(name, help=described(name)).get_short_help_str(
            200
        ) == command.get_short_help_str(200)
        assert f" {name} " in page
        assert mctskernel(name, "--help").exit_code == 0
