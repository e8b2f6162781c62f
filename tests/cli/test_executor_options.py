"""The options that say what drives the devices, as the commands understand them."""

from __future__ import annotations

from pathlib import Path

import pytest
import rich_click as click
from click.testing import CliRunner

from mctskernel.cli import main, options
from mctskernel.cli.plain_console import echo
from mctskernel.core.executor import CounterSet, ExecutorOptions


@click.command()
@click.option("--device", default="gpu")
@options.executor
def said(
    device: str, engine: str | None, gpus: tuple[str, ...], ray_address: str, counters: str | None
) -> None:
    """Say what the options come to."""
    echo(repr(options.executor_options(device, engine, gpus, ray_address, counters)))


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ((), None),
        (("--executor", "local"), ExecutorOptions()),
        (("--gpus", "0, GPU-3f"), ExecutorOptions(gpus=("0", "GPU-3f"))),
        (("--executor", "ray"), ExecutorOptions("ray")),
        (("--counters", "few"), ExecutorOptions(counters=CounterSet.FEW)),
        (("--executor", "ray", "--counters", "time"), ExecutorOptions("ray", counters=CounterSet.TIME)),
        (
            ("--executor", "ray", "--ray-address", "head:6379", "--device", "model"),
            ExecutorOptions("ray", address="head:6379"),
        ),
    ],
)
def test_what_is_given_is_what_is_meant(words: tuple[str, ...], meant: ExecutorOptions | None) -> None:
    assert CliRunner().invoke(said, words).output == f"{meant!r}\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--gpus", "0", "--device", "model"), "--gpus is for --device gpu, not model."),
        (("--counters", "few", "--device", "model"), "--counters is for --device gpu, not model."),
        (("--counters", "most"), "'most' is not one of"),
        (("--gpus", "0", "--executor", "ray"), "--gpus is for --executor local"),
        (("--ray-address", "head:6379"), "--ray-address is for --executor ray."),
        (("--executor", "ray", "--device", "recorded"), "--executor ray is for kernels"),
        (("--executor", "slurm"), "'slurm' is not one of"),
    ],
)
def test_what_makes_no_sense_is_refused(words: tuple[str, ...], sentence: str) -> None:
    result = CliRunner().invoke(said, words)
    assert (result.exit_code, sentence in " ".join(result.output.split())) == (2, True), result.output


def test_a_search_refuses_them_before_there_is_a_run(tmp_path: Path) -> None:
    words = ["search", "softmax", "--device", "model", "--gpus", "1", "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, (tmp_path / "run").exists()) == (2, False), result.output
