"""GPUs that take work from one queue: who takes what, and what is left when one is lost."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace

import pytest

from mctskernel.core.device import DeviceError
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.task import TaskError
from mctskernel.executors import gpu_pool
from mctskernel.executors.gpu_pool import GpuPool
from mctskernel.profiling.gpu.cuda_driver import Gpu
from mctskernel.profiling.gpu.protocol import Opened

FINE = Evaluation(Outcome.OK, Source.MEASURED)
A, B = "a0" * 16, "b0" * 16


@dataclass
class FakeEvaluator:
    """Judges in no time, or in `seconds`; `fails` from its n-th kernel on, at 0 when it is opened."""

    uuid: str = A
    seconds: float = 0.0
    fails: int | None = None
    error: Exception = field(default_factory=lambda: DeviceError("It has fallen off the bus."))
    judged: list[str] = field(default_factory=list)
    warning: str = ""
    stopped: threading.Event = field(default_factory=threading.Event)
    shared: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    closed: bool = False

    def __hash__(self) -> int:
        return id(self)

    def open(self) -> Opened:
        if self.fails == 0:
            raise self.error
        return self.opened

    @property
    def opened(self) -> Opened:
        return Opened(Gpu("Fake GPU", self.uuid, "13.0", "sm_90", 1, 1, 1.0), "")

    def judge(self, name: str) -> Evaluation:
        if self.fails is not None and len(self.judged) + 1 >= self.fails:
            raise self.error
        self.judged.append(name)
        self.stopped.wait(self.seconds)
        return replace(FINE, message=name)

    def share_counters(self) -> None:
        self.shared.release()

    def interrupt(self) -> None:
        self.stopped.set()

    def close(self) -> None:
        self.closed = True


class Pool:
    """A pool of fakes, and what came of each piece of work."""

    def __init__(self, *fakes: FakeEvaluator) -> None:
        self.fakes = fakes
        self.pool = GpuPool(fakes)
        self.results: dict[str, Evaluation | Exception] = {}
        self._finished = threading.Condition()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.close()

    def begin(self) -> None:
        self.pool.begin(lambda _: None)

    def submit(self, *names: str, turn: int = 0) -> None:
        for name in names:

            def finish(result: Evaluation | Exception, name: str = name) -> None:
                with self._finished:
                    assert name not in self.results, "finished twice"
                    self.results[name] = result
                    self._finished.notify()

            self.pool.submit(lambda evaluator, name=name: evaluator.judge(name), finish, turn)

    def wait(self, count: int) -> None:
        with self._finished:
            assert self._finished.wait_for(lambda: len(self.results) >= count, 20.0), self.results


def names(count: int) -> list[str]:
    return [f"k{number}" for number in range(count)]


def test_the_next_free_gpu_takes_the_next_kernel_and_each_is_evaluated_once() -> None:
    stuck, quick = FakeEvaluator(A, seconds=60.0), FakeEvaluator(B)
    with Pool(stuck, quick) as pool:
        pool.begin()
        pool.submit(*names(20))
        pool.wait(19)
        stuck.stopped.set()
        pool.wait(20)
    assert sorted(stuck.judged + quick.judged) == sorted(names(20))
    assert len(stuck.judged) <= 1
    assert {result.message for result in pool.results.values()} == set(names(20))


def test_a_gpu_that_is_lost_hands_its_kernel_on() -> None:
    lost, left = FakeEvaluator(A, fails=2), FakeEvaluator(B, seconds=0.01)
    with Pool(lost, left) as pool:
        pool.begin()
        pool.submit(*names(8))
        pool.wait(8)
        assert pool.pool.size == 1
        (warning,) = pool.pool.warnings
    assert "a0a0a0a0 was lost" in warning
    assert "fallen off the bus" in warning
    assert all(isinstance(result, Evaluation) and result.ok for result in pool.results.values())
    assert sorted(lost.judged + left.judged) == sorted(names(8))


def test_a_kernel_that_takes_two_gpus_down_takes_no_third() -> None:
    fakes = [FakeEvaluator(f"{number:032x}") for number in range(3)]

    def deadly(evaluator: FakeEvaluator) -> Evaluation:
        raise DeviceError(f"{evaluator.uuid} is gone.")

    with Pool(*fakes) as pool:
        pool.begin()
        found = pool.pool.run(deadly)
        pool.submit("next")
        pool.wait(1)
        assert pool.pool.size == 1
    assert (found.outcome, "2 GPUs were lost" in found.message) == (Outcome.CRASH, True)


def test_when_no_gpu_is_left_everything_in_flight_and_after_says_so() -> None:
    with Pool(FakeEvaluator(A, fails=1), FakeEvaluator(B, fails=3, seconds=0.01)) as pool:
        pool.begin()
        pool.submit(*names(9))
        pool.wait(9)
        pool.submit("late")
        with pytest.raises(DeviceError, match="bus"):
            pool.pool.run(lambda _: FINE)
    errors = [result for result in pool.results.values() if isinstance(result, DeviceError)]
    assert (len(errors), len(pool.results)) == (8, 10)


def test_gpus_that_do_not_open_are_left_out() -> None:
    with Pool(FakeEvaluator(A, fails=0), FakeEvaluator(B)) as pool:
        pool.begin()
        pool.submit("k")
        pool.wait(1)
        assert pool.pool.size == 1
        assert pool.pool.warnings == ("A GPU could not be used: It has fallen off the bus.",)


@pytest.mark.parametrize("error", [DeviceError("none"), TaskError("its reference fails")])
def test_what_no_gpu_can_open_is_raised(error: Exception) -> None:
    fakes = FakeEvaluator(A, fails=0, error=error), FakeEvaluator(B, fails=0, error=error)
    with pytest.raises(type(error), match=str(error)):
        GpuPool(fakes)
    assert all(fake.closed for fake in fakes)


def test_of_those_that_wait_the_lowest_turn_is_next() -> None:
    with Pool(FakeEvaluator()) as pool:
        for turn, name in ((1, "second"), (2, "third"), (0, "first")):
            pool.submit(name, turn=turn)
        pool.begin()
        pool.wait(3)
    assert pool.fakes[0].judged == ["first", "second", "third"]


def test_a_gpu_without_work_shares_its_counters_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_pool, "IDLE_SECONDS", 0.01)
    fake = FakeEvaluator()
    with Pool(fake) as pool:
        pool.begin()
        assert all(fake.shared.acquire(timeout=20.0) for _ in range(3))
        pool.submit("a")
        pool.wait(1)
        assert fake.judged == ["a"]
