"""What a command imports before it does anything: `mctskernel --version` has nothing to wait for."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from mctskernel.cli import main
from mctskernel.cli.listing import described

LIGHT = {"mctskernel", "mctskernel.core", "mctskernel.core.user_errors"}
HEAVY = {"httpx2", "jinja2", "litestar", "msgspec", "networkx", "numpy", "openai", "plotly", "ray", "torch"}


def imported(*words: str) -> set[str]:
    """Every module that a command imports."""
    command = (sys.executable, "-X", "importtime", "-m", "mctskernel", *words)
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()
    return {line.rpartition("|")[2].strip() for line in lines}


@pytest.mark.parametrize("word", ["--version", "--help"])
def test_what_is_known_without_the_project_is_told_without_it(word: str) -> None:
    modules = imported(word)
    ours = {
        each
        for each in modules
        if each.split(".")[0] == "mctskernel" and not each.startswith("mctskernel.cli")
    }
    assert "mctskernel.cli" in modules
    assert ours <= LIGHT
    assert not HEAVY & modules
    assert not set(main.commands_by_name.values()) & modules


def test_the_help_page_says_of_a_command_what_it_says_of_itself() -> None:
    context = click.Context(main)
    for name, module in main.commands_by_name.items():
        command = main.get_command(context, name)
        assert command is not None
        assert described(name, module).get_short_help_str(200) == command.get_short_help_str(200)
