from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.core.evaluation import Evaluation, Outcome
from mctskernel.core.executor import Executor
from mctskernel.core.kernel import Kernel
from mctskernel.executors.local import LocalExecutor
from mctskernel.profiling.processes.worker import Limits

SPEC = DeviceSpec("model", Path(), seed=5)
LIMITS = Limits(seconds=20.0, memory_bytes=1 << 30, opening_seconds=30.0)


def drain(executor: Executor, count: int) -> dict[int, Evaluation]:
    results: dict[int, Evaluation] = {}
    while len(results) < count:
        finished = executor.wait(60)
        assert finished
        results.update(finished)
    return results


@pytest.mark.slow
def test_every_ticket_comes_back_once_and_results_do_not_depend_on_the_workers(fakes: ModuleType) -> None:
    sources = ["ok a", "abort", "sleep 0.05", "ok b", "raise c", "exit 2", "ok d"]
    seen = []
    for workers in (1, 3):
        with LocalExecutor(SPEC, workers=workers, limits=LIMITS, opener=fakes.Fake) as executor:
            assert executor.capacity == workers
            for ticket, source in enumerate(sources):
                executor.submit(ticket, Kernel(source))
            results = drain(executor, len(sources))
            assert executor.wait(0.01) == []
        seen.append([(results[i].outcome, results[i].message) for i in range(len(sources))])
    assert seen[0] == seen[1]
    assert seen[0][1] == (Outcome.CRASH, "The process that evaluated the kernel was killed by SIGABRT.")


@pytest.mark.slow
def test_a_timeout_costs_its_own_ticket_alone(fakes: ModuleType) -> None:
    with LocalExecutor(SPEC, limits=Limits(seconds=0.3), opener=fakes.Fake) as executor:
        executor.submit(1, Kernel("spin"))
        executor.submit(2, Kernel("ok"))
        results = drain(executor, 2)
    assert results[1].outcome is Outcome.TIMEOUT
    assert results[2].ok


def test_the_final_validation_has_a_process_a_seed_and_shapes_of_its_own(fakes: ModuleType) -> None:
    with LocalExecutor(SPEC, limits=LIMITS, opener=fakes.Fake) as executor:
        executor.submit(1, Kernel("report pid"))
        pids = {drain(executor, 1)[1].message}
        pids |= {executor.final_validation(Kernel("report pid"), Kernel("ok")).message for _ in range(2)}
        assert len(pids) == 3
        trials = {executor.final_validation(Kernel("report spec"), Kernel("ok")).message for _ in range(2)}
    assert len(trials) == 2, "the seeds must differ"
    assert all("final validation" in each and "seed=5," not in each for each in trials)


def test_a_device_that_does_not_open_raises(fakes: ModuleType) -> None:
    with LocalExecutor(SPEC, limits=LIMITS, opener=fakes.unopenable) as executor:
        executor.submit(1, Kernel("ok"))
        with pytest.raises(DeviceError, match="no model here"):
            executor.wait(30)
