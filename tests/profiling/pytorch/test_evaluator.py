"""The module evaluator with real modules, in processes of their own."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from mctskernel.core.evaluation import Outcome
from mctskernel.core.task import TaskError
from mctskernel.experiments.gauntlet.corpus import PYTORCH, read_corpus
from mctskernel.experiments.gauntlet.run import run_modules
from mctskernel.profiling import build_cache
from mctskernel.profiling.pytorch.client import ForkServer
from mctskernel.profiling.pytorch.evaluator import Settings, open_evaluator, secret_key

pytest.importorskip("torch")

pytestmark = pytest.mark.slow

CORPUS = Path(__file__).parents[2] / "gauntlet" / "pytorch"
SETTINGS = Settings(runs=5, load_seconds=120.0, call_seconds=30.0)
REFERENCE = (CORPUS / "references" / "matmul.py").read_text()
CANDIDATE = "import torch\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, a, b):\n        {}\n"


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with closing(ForkServer()) as server:
        yield server


def test_cheats_are_caught_and_honest_modules_are_not(server: ForkServer) -> None:
    """A third of the corpus; `mctskernel gauntlet --modules` runs all of it."""
    entries = read_corpus(CORPUS.parent, [PYTORCH])
    cheats = [entry for entry in entries if not entry.honest]
    assert len(cheats) >= 30
    assert len(entries) - len(cheats) >= 15
    shown = [entry for entry in entries[::3] if entry.shows_on("model")]
    results = run_modules(shown, "model", lambda _: None, server)
    assert [result for result in results if not result.fine or result.unexpected] == []


def test_a_verdict_has_times_of_stages_and_checks(server: ForkServer) -> None:
    with open_evaluator(REFERENCE, SETTINGS, server) as evaluator:
        verdict = evaluator.evaluate(CANDIDATE.format("return a @ b"))
    evaluation = verdict.evaluation
    assert evaluation.ok
    assert verdict.speedup is not None
    assert evaluation.checks
    assert all(check.passed for check in evaluation.checks)
    assert {"baseline", "build", "verify", "time"} <= set(evaluation.stage_seconds)
    assert verdict.speedup.round_trip_seconds > 0
    assert len(evaluation.timings[0].samples) == SETTINGS.runs


def test_a_module_that_fails_costs_only_itself(server: ForkServer) -> None:
    with open_evaluator(REFERENCE, SETTINGS, server) as evaluator:
        assert evaluator.evaluate("import no_such_module").evaluation.outcome is Outcome.BUILD_ERROR
        assert evaluator.evaluate("class Other: ...").evaluation.outcome is Outcome.BUILD_ERROR
        crash = evaluator.evaluate(CANDIDATE.format("import os; os.kill(os.getpid(), 9)")).evaluation
        assert crash.outcome is Outcome.CRASH
        assert "SIGKILL" in crash.message
        nested = "x = a @ b\n        for _ in range(300):\n            x = [x]\n        return x"
        assert evaluator.evaluate(CANDIDATE.format(nested)).evaluation.outcome is Outcome.WRONG_RESULT
        assert evaluator.evaluate(CANDIDATE.format("return a @ b")).evaluation.ok


def test_nothing_of_a_module_outlives_its_evaluation(server: ForkServer) -> None:
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a Path would open more
    with open_evaluator(REFERENCE, SETTINGS, server) as evaluator:
        evaluator.evaluate(
            "import os, torch\n"
            "if os.fork() == 0:\n"
            "    os.setpgid(0, 0)\n"
            "    os.execvp('sleep', ['sleep', '4242'])\n" + CANDIDATE.format("return a @ b")
        )
    del evaluator
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - as above
    assert not [each for each in Path("/proc").glob("[0-9]*/cmdline") if b"4242" in _read(each)]


def test_the_key_of_the_seeds_is_out_of_reach(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(build_cache.VARIABLE, str(tmp_path / "builds"))
    key, file = secret_key(), tmp_path / "key"
    assert secret_key() == key
    assert file.stat().st_mode & 0o077 == 0
    reads = f"open({str(file)!r}, 'rb').read()"
    with open_evaluator(REFERENCE, replace(SETTINGS, seed=1), server) as evaluator:
        found = evaluator.evaluate(CANDIDATE.format(f"{reads}; return a @ b")).evaluation
    assert found.outcome is Outcome.LAUNCH_ERROR
    assert "PermissionError" in found.message


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = 1", "Model"),
        (REFERENCE.replace("a @ b", "a @ a"), "shapes cannot be multiplied"),
        (REFERENCE.replace("return a @ b", "return a @ b + torch.rand(1)"), "other outputs for the same"),
        (
            REFERENCE.replace("torch.randn(192, 256)", "torch.randn(int(torch.randint(2, 99, ())), 256)"),
            "shapes",
        ),
        (REFERENCE.replace("return a @ b", "import os; os._exit(3)"), "exited with status 3"),
    ],
)
def test_an_unusable_reference_is_the_task_s_error(server: ForkServer, source: str, words: str) -> None:
    with pytest.raises(TaskError, match=words), open_evaluator(source, SETTINGS, server) as evaluator:
        evaluator.evaluate(CANDIDATE.format("return a @ b"))


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
