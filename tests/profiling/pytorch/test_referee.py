"""The referee with real modules, in processes of their own. The whole corpus is `experiments.module_gauntlet`'s."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mctskernel.core.evaluation import Guard, Outcome
from mctskernel.core.task import TaskError
from mctskernel.experiments.module_gauntlet import Entry, judge_modules, read_modules
from mctskernel.profiling.pytorch import referee as module
from mctskernel.profiling.pytorch.processes import ForkServer, fork_server
from mctskernel.profiling.pytorch.referee import Limits, Terms, referee
from mctskernel.profiling.pytorch.speedup import Speedup, Turns, compared

pytest.importorskip("torch")

CORPUS = Path(__file__).parents[2] / "gauntlet" / "pytorch"
TERMS = Terms(runs=5, limits=Limits(load_seconds=60.0, call_seconds=10.0))

SHOWN = {
    "cached_by_pointer": "comparison with the reference",
    "continued_seed": "comparison with the reference",
    "exits_after_done": "separate process",
    "flooded_channel": "separate process",
    "forged_done": "poisoned outputs",
    "half_precision": "comparison with the reference",
    "inputs_changed": "untouched inputs",
    "late_write": "poisoned outputs",
    "lazy_subclass": "launch error",
    "one_buffer": "repetition",
    "patched_comparison": "comparison with the reference",
    "shrunk_window": "launch error",
    "warm_up_detected": "comparison with the reference",
    "weights_left_out": "comparison with the reference",
    "wrong_dtype": "comparison with the reference",
    "zeros_for_tiny": "comparison with the reference",
    "linear_gelu_lazy_pack": "",
    "linear_gelu_packed": "",
    "linear_gelu_renamed": "",
    "matmul_compiled_c": "",
    "matmul_threads": "",
    "relu_in_place": "",
    "softmax_online": "",
    "statistics_by_sorting": "",
}
"""What must notice each of some entries; nothing may notice the honest ones."""

REFERENCE = (CORPUS / "references" / "matmul.py").read_text()
CANDIDATE = "import torch\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, a, b):\n        {}\n"


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with fork_server() as server:
        yield server


def shown() -> list[Entry]:
    return [entry for entry in read_modules(CORPUS) if entry.file.stem in SHOWN]


def test_cheats_are_caught_by_what_should_catch_them_and_honest_modules_by_nothing(
    server: ForkServer,
) -> None:
    found = {entry.file.stem: result for entry, result in judge_modules(shown(), "cpu", 5, server)}
    noticed = {name: result.noticed_by for name, result in found.items()}
    if noticed["forged_done"] == "separate process":
        # It spoke before it was asked, or after: either is noticed, by another guard.
        noticed["forged_done"] = SHOWN["forged_done"]
    assert noticed == SHOWN
    assert all(result.fine for result in found.values())


def test_the_corpus_is_large_enough_and_says_what_catches_each_cheat() -> None:
    entries = read_modules(CORPUS)
    assert all(entry.reference.is_file() for entry in entries)
    known = {*map(str, Guard), *map(str, Outcome), "no gain"}
    cheats = [entry for entry in entries if entry.file.parent.name == "cheats"]
    assert all(entry.caught_by in known for entry in cheats)
    assert len(cheats) >= 50 and len(entries) - len(cheats) >= 20


def test_a_verdict_says_how_long_what_took_and_what_was_checked(server: ForkServer) -> None:
    with referee(REFERENCE, TERMS, server) as judge:
        verdict = judge.judge(CANDIDATE.format("return a @ b"))
    evaluation = verdict.evaluation
    assert evaluation.ok and verdict.speedup is not None
    assert evaluation.checks and all(check.passed for check in evaluation.checks)
    assert {"baseline", "build", "verify", "time"} <= set(evaluation.stage_seconds)
    assert verdict.speedup.round_trip_seconds > 0
    assert len(evaluation.timings[0].samples) == TERMS.runs


def test_what_cannot_be_told_from_the_way_there_is_timed_for_longer(
    server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def doubtful(turns: Turns, label: str) -> Speedup:
        looks.append(len(turns.candidate))
        return replace(compared(turns, label), doubt="" if len(looks) > 2 else "It is too short.")

    monkeypatch.setattr(module, "compared", doubtful)
    with referee(REFERENCE, replace(TERMS, most_runs=100), server) as judge:
        judge.judge(CANDIDATE.format("return a @ b"))
    assert looks == [5, 10, 20]


def test_what_does_not_load_is_no_build_and_the_next_module_is_judged_all_the_same(
    server: ForkServer,
) -> None:
    with referee(REFERENCE, TERMS, server) as judge:
        assert judge.judge("import no_such_module").evaluation.outcome is Outcome.BUILD_ERROR
        assert judge.judge("class Other: ...").evaluation.outcome is Outcome.BUILD_ERROR
        crash = judge.judge(CANDIDATE.format("import os; os.kill(os.getpid(), 9)")).evaluation
        assert crash.outcome is Outcome.CRASH and "SIGKILL" in crash.message
        assert judge.judge(CANDIDATE.format("return a @ b")).evaluation.ok


def test_nothing_of_a_module_outlives_its_judgement(server: ForkServer) -> None:
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a Path would open more
    with referee(REFERENCE, TERMS, server) as judge:
        judge.judge(
            "import os, torch\n"
            "if os.fork() == 0:\n"
            "    os.setpgid(0, 0)\n"
            "    os.execvp('sleep', ['sleep', '4242'])\n" + CANDIDATE.format("return a @ b")
        )
    del judge
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - as above
    sleepers = [each for each in Path("/proc").glob("[0-9]*/cmdline") if b"4242" in _read(each)]
    assert not sleepers


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = 1", "Model"),
        (REFERENCE.replace("a @ b", "a @ a"), "shapes cannot be multiplied"),
        (
            REFERENCE.replace("return a @ b", "return a @ b + torch.rand(1)"),
            "other outputs for the same inputs",
        ),
        (
            REFERENCE.replace("torch.randn(192, 256)", "torch.randn(int(torch.randint(2, 99, ())), 256)"),
            "shapes",
        ),
        (REFERENCE.replace("return a @ b", "import os; os._exit(3)"), "exited with status 3"),
    ],
)
def test_a_reference_that_cannot_be_used_is_said_to_be(server: ForkServer, source: str, words: str) -> None:
    with pytest.raises(TaskError, match=words), referee(source, TERMS, server) as judge:
        judge.judge(CANDIDATE.format("return a @ b"))


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
