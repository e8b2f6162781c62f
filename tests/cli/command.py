"""Commands as a user types them."""

from pathlib import Path

from click.testing import CliRunner, Result

from mctskernel.cli import main


def mctskernel(*words: str | Path | int, **environment: str) -> Result:
    """A command's result; an exception that isn't an exit is a traceback in front of a user, so it fails."""
    result = CliRunner().invoke(main, [str(word) for word in words], env=environment)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def searched(task: Path, out: Path, budget: int, *words: str) -> Path:
    """A run on the model with one worker."""
    options = ("--device", "model", "--workers", "1", "--budget", budget, "--out", out)
    result = mctskernel("search", task, *options, *words)
    assert result.exit_code == 0, result.output
    assert "Stopped: the budget is spent." in result.stdout
    return out


def flat(text: str) -> str:
    """The text on one line, without the frames of panels."""
    return " ".join(text.replace("│", " ").split())
