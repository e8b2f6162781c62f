"""What a search survives: `kill -9`, a full disk, a torn journal, a second process. Nothing finished is lost."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from mctskernel.core.evaluation import Outcome
from mctskernel.core.space import Entry, Parameter, SearchSpace
from mctskernel.report.view import load_view
from tests.cli.command import mctskernel
from tests.spaces import write_space

pytestmark = pytest.mark.slow

BUDGET = "200"
PATIENCE = 120.0  # seconds after which a search that stands still counts as hanging


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1000 configurations with their times: searched in milliseconds each, without a compiler."""
    parameters = tuple(Parameter(name, tuple(range(1, 11))) for name in ("x", "y", "z"))
    entries = tuple(
        Entry(values, Outcome.OK, 1e-3 * (1 + sum((value - 6) ** 2 for value in values)))
        for values in product(range(1, 11), repeat=3)
    )
    path = tmp_path_factory.mktemp("crash") / "bowl.json"
    write_space(SearchSpace("bowl", parameters, entries, device="A GPU", kernel="bowl"), path)
    return path


@contextlib.contextmanager
def searching(*words: object) -> Iterator[subprocess.Popen[str]]:
    """`mctskernel WORDS` in a process of its own."""
    command = [sys.executable, "-m", "mctskernel", *map(str, words)]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def evaluated(run: Path) -> dict[int, object]:
    """The finished evaluations of a journal, by node; without a last line that is still being written."""
    path = run / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    events = [json.loads(line) for line in lines if line.endswith(b"\n")]
    return {event["node"]: event["score"] for event in events if event.get("event") == "evaluated"}


def wait_for(run: Path, evaluations: int, process: subprocess.Popen[str]) -> None:
    """Wait until the journal has so many evaluations."""
    end = time.monotonic() + PATIENCE
    while len(evaluated(run)) < evaluations and process.poll() is None:
        assert time.monotonic() < end, "the search stands still"
        time.sleep(0.002)


def finish(run: Path) -> None:
    """Resume a run to its end."""
    result = mctskernel("resume", run)
    assert result.exit_code == 0, result.output


def kernels(run: Path) -> list[str]:
    """The kernels of a run, in the order in which they were evaluated."""
    return [node.kernel.identity for node in load_view(run).tree.nodes]


@pytest.mark.filterwarnings("ignore::mctskernel.tree.journal.JournalWarning")
def test_a_killed_search_goes_on_where_it_was_and_finds_the_same(space: Path, tmp_path: Path) -> None:
    """Though the end of its journal is torn, or damaged besides."""
    run, straight = tmp_path / "run", tmp_path / "straight"
    words = ("search", "--space", space, "--budget", BUDGET, "--seed", 1)
    kept: dict[int, object] = {}
    for damage in (b'{"event":"eval', bytes(300), b"\xff{\n"):
        command = ("resume", run) if kept else (*words, "--out", run)
        with searching(*command) as process:
            wait_for(run, len(kept) + 7, process)
            process.kill()
        found = evaluated(run)
        with (run / "journal.jsonl").open("ab") as journal:
            journal.write(damage)
        assert kept.items() <= found.items()
        assert len(found) > len(kept)
        kept = found
    finish(run)
    assert kept.items() <= evaluated(run).items()
    assert mctskernel(*words, "--out", straight).exit_code == 0
    assert kernels(run) == kernels(straight)


def test_a_full_disk_ends_a_search_with_a_sentence(space: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with searching("search", "--space", space, "--budget", BUDGET, "--out", run) as process:
        wait_for(run, 3, process)
        size = (run / "journal.jsonl").stat().st_size
        # Past the limit the system writes a part and then fails, as a full disk does.
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size + 1500, resource.RLIM_INFINITY))
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 4, said
    assert "mctskernel resume" in said
    kept = evaluated(run)
    finish(run)
    assert kept.items() <= evaluated(run).items()
