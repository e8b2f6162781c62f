"""GPUs of one machine that searches share: who is timed and counted when, and where a run goes on."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import pytest

from mctskernel.config import SearchConfig
from mctskernel.core.budget import Budget
from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.task_file import load_task
from mctskernel.core.user_errors import RunError
from mctskernel.executors.gpu import GpuExecutor
from mctskernel.executors.recorded import RecordedExecutor
from mctskernel.profiling.counters import INSTRUCTIONS, TIME
from mctskernel.profiling.gpu.evaluator import GpuEvaluator
from mctskernel.profiling.processes.worker import compile_worker
from mctskernel.profiling.processes.worker_process import Prepared
from mctskernel.run import prepare_run, write_manifest
from mctskernel.run import search as run_module
from tests.executors.test_gpu import kernel

FINE = Evaluation(Outcome.OK, Source.MEASURED)
A, B = "a0" * 16, "b0" * 16
COUNTED = (TIME, INSTRUCTIONS)


LOGGING = '''\
import os
import time
from pathlib import Path

from fake_gpu import FakeGpu

from mctskernel.profiling.gpu.protocol import Count, ReleaseCounters, Time
from mctskernel.profiling.processes.channel import Broken


class LoggingGpu(FakeGpu):
    """Writes down who was timed and counted on which GPU, and when; one with a UUID of dd... opens once only."""

    def open(self, request):
        folder = Path(__file__).parent
        marker = folder / "opened"
        if request.gpu.startswith("dd") and marker.exists():
            return Broken("The GPU has fallen off the bus.")
        if request.gpu.startswith("dd"):
            marker.touch()
        self.uuid = request.gpu
        self.log = (folder / "log").open("a", buffering=1)
        self.counts = (folder / "counts").open("a", buffering=1)
        return super().open(request)

    def answer(self, request):
        if isinstance(request, ReleaseCounters):
            self.counts.write("released\\n")
        if isinstance(request, Count):
            began = time.monotonic()
            time.sleep(0.02)
            self.counts.write(f"{self.uuid} {began} {time.monotonic()}\\n")
        if not isinstance(request, Time):
            return super().answer(request)
        began = time.monotonic()
        time.sleep(0.02)
        reply = super().answer(request)
        entry = request.plan.launches[0].entry
        self.log.write(f"{self.uuid} {os.getppid()} {began} {time.monotonic()} {entry}\\n")
        return reply
'''


@pytest.fixture
def logging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The log of every fake GPU's timings: who, for whom, from when to when, and what."""
    (tmp_path / "logging_gpu.py").write_text(LOGGING)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "log"


def opened(task: Path, *gpus: str, workers: int = 2) -> GpuExecutor:
    service = "logging_gpu:LoggingGpu"
    return GpuExecutor(DeviceSpec("gpu", task), workers=workers, gpus=gpus, service=service, check=None)


def collected(executor: GpuExecutor, count: int) -> dict[int, Evaluation]:
    results: dict[int, Evaluation] = {}
    while len(results) < count:
        found = executor.wait(60.0)
        assert found
        assert results.keys().isdisjoint(dict(found))
        results |= dict(found)
    return results


@pytest.mark.slow
def test_two_searches_share_two_gpus_and_one_that_dies_is_left_out(
    write_task: Callable[..., Path], logging: Path
) -> None:
    dying = "dd" * 16
    with opened(write_task(), A, dying) as first, opened(write_task(), A, B) as second:
        assert (first.capacity, first.fingerprint()["uuid"]) == (4, f"{A}+{dying}")
        for ticket in range(12):
            for each in (first, second):
                each.submit(ticket, kernel("faster" if ticket % 2 else "twice"))
        results = [collected(each, 12) for each in (first, second)]
        assert all(found.ok for each in results for found in each.values())
        rows = [line.split() for line in logging.read_text().splitlines()]
        assert {row[0] for row in rows} == {A, B, dying}
        assert len(rows) == 24, "every kernel was timed once"
        shared = sorted((float(row[2]), float(row[3]), row[1]) for row in rows if row[0] == A)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(shared)), "one at a time"
        # The kernel ends the process of its GPU, and one of the two can't be opened again.
        while first.capacity == 4:
            first.submit(100, kernel("die"))
            assert collected(first, 1)[100].outcome is Outcome.CRASH
        assert (first.capacity, "dddddddd was lost" in first.notes[0]) == (3, True)
        assert first.final_validation(kernel("faster"), kernel("twice")).ok


@pytest.fixture
def prepared(write_task: Callable[..., Path]) -> Prepared:
    with closing(compile_worker(DeviceSpec("gpu", write_task()), "sm_90")) as compiler:
        found = compiler.prepare(kernel("faster"))
    assert isinstance(found, Prepared)
    return found


@pytest.mark.slow
def test_two_gpus_count_one_after_the_other(
    write_task: Callable[..., Path], prepared: Prepared, logging: Path, folder: Path
) -> None:
    together = threading.Barrier(2)
    task = write_task()

    def judge(uuid: str) -> list[Evaluation]:
        spec = DeviceSpec("gpu", task, gpu=uuid)
        with closing(GpuEvaluator(spec, COUNTED, "logging_gpu:LoggingGpu")) as evaluator:
            evaluator.open()
            found = []
            for _ in range(4):
                together.wait()
                found.append(evaluator.evaluate(prepared))
            return found

    with ThreadPoolExecutor(2) as pool:
        judged = [each for found in pool.map(judge, (A, B)) for each in found]
    assert all(each.ok for each in judged)
    said = logging.with_name("counts").read_text().splitlines()
    assert "released" not in said, "nobody shares a GPU"
    rows = [line.split() for line in said]
    times = sorted((float(began), float(ended)) for _, began, ended in rows)
    assert ({row[0] for row in rows}, len(rows)) == ({A, B}, 8)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(times))


@pytest.mark.slow
def test_counters_are_released_between_searches_that_share_a_gpu_and_before_the_final_validation(
    write_task: Callable[..., Path], prepared: Prepared, logging: Path, folder: Path
) -> None:
    def judge(evaluator: GpuEvaluator) -> list[Evaluation]:
        return [evaluator.evaluate(prepared) for _ in range(3)]

    spec, service = DeviceSpec("gpu", write_task(), gpu=A), "logging_gpu:LoggingGpu"
    with (
        closing(GpuEvaluator(spec, COUNTED, service)) as one,
        closing(GpuEvaluator(spec, COUNTED, service)) as other,
    ):
        for evaluator in (one, other):
            evaluator.open()
        with ThreadPoolExecutor(2) as pool:
            judging = [pool.submit(judge, each) for each in (one, other)]
            assert all(found.ok for each in judging for found in each.result())
    assert logging.with_name("counts").read_text().split("\n").count("released") >= 4
    logging.with_name("counts").unlink()
    with opened(spec.task_folder, A) as executor:
        executor.submit(0, kernel("faster"))
        collected(executor, 1)
        assert executor.final_validation(kernel("faster"), kernel("twice")).ok
    first, second, *_ = logging.with_name("counts").read_text().splitlines()
    assert (first.split()[0], second) == (A, "released"), "counted, and given back before the gate counts"


@pytest.mark.parametrize(
    ("then", "now", "refused"),
    [
        ({"uuid": A}, {"uuid": B}, False),
        ({"uuid": A}, {"uuid": A, "driver": "1"}, False),
        ({}, {"gpu": "H100"}, True),
    ],
)
def test_a_run_goes_on_with_a_gpu_of_its_own_model(
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write_task: Callable[..., Path],
    then: dict[str, str],
    now: dict[str, str],
    refused: bool,
) -> None:
    folder = prepare_run(tmp_path / "run", load_task(write_task()))
    limits = Budget(evaluations=1)
    configuration = SearchConfig("double", limits, device="gpu", workers=1)
    write_manifest(folder, configuration, {"gpu": "H200"} | then)

    @contextmanager
    def opening(*_: object) -> Iterator[RecordedExecutor]:
        yield RecordedExecutor(lambda _: FINE, {"gpu": "H200"} | now)

    monkeypatch.setattr(run_module, "open_executor", opening)
    expected = pytest.raises(RunError, match="in a new run") if refused else nullcontext()
    with expected, run_module.reopen(folder.path, None, None):
        pass
