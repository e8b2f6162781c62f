"""GPUs that take work from one queue: who takes what, and what is left when one is lost."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace

import pytest

from mctskernel.core.device import DeviceError
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.task import TaskError
from mctskernel.executors import gpu_pool
from mctskernel.executors.gpu_pool import GpuPool, Seat
from mctskernel.profiling.ceilings import Ceilings
from mctskernel.profiling.counters import INSTRUCTIONS, TIME
from mctskernel.profiling.gpu.cuda_driver import Gpu
from mctskernel.profiling.gpu.protocol import Opened

FINE = Evaluation(Outcome.OK, Source.MEASURED)
A, B = "a0" * 16, "b0" * 16
COUNTED = (TIME, INSTRUCTIONS)


@dataclass
class FakeEvaluator:
    """Judges in no time, or in `seconds`; `fails` from its n-th kernel on, at 0 when it is opened."""

    uuid: str = A
    seconds: float = 0.0
    fails: int | None = None
    error: Exception = field(default_factory=lambda: DeviceError("It has fallen off the bus."))
    judged: list[str] = field(default_factory=list)
    remark: str = ""
    stopped: threading.Event = field(default_factory=threading.Event)
    closed: bool = False
    released: int = 0

    def open(self) -> Opened:
        if self.fails == 0:
            raise self.error
        return Opened(Gpu("Fake GPU", self.uuid, "13.0", "sm_90", 1, 1, 1.0), Ceilings(1.0, 1.0, 1.0), "")

    def judge(self, name: str) -> Evaluation:
        if self.fails is not None and len(self.judged) + 1 >= self.fails:
            raise self.error
        self.judged.append(name)
        self.stopped.wait(self.seconds)
        return replace(FINE, message=name)

    def release_counters(self) -> None:
        self.released += 1

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

    def submit(self, *names: str) -> None:
        for name in names:

            def finish(result: Evaluation | Exception, name: str = name) -> None:
                with self._finished:
                    assert name not in self.results, "finished twice"
                    self.results[name] = result
                    self._finished.notify()

            self.pool.submit(lambda seat, name=name: seat.evaluator.judge(name), finish)

    def wait(self, count: int) -> None:
        with self._finished:
            assert self._finished.wait_for(lambda: len(self.results) >= count, 20.0), self.results


def names(count: int) -> list[str]:
    return [f"k{number}" for number in range(count)]


def test_whichever_gpu_is_free_takes_the_next_kernel_and_none_is_judged_twice() -> None:
    slow, quick = FakeEvaluator(A, seconds=0.3), FakeEvaluator(B, seconds=0.01)
    with Pool(slow, quick) as pool:
        pool.begin()
        pool.submit(*names(20))
        pool.wait(20)
    assert sorted(slow.judged + quick.judged) == sorted(names(20))
    assert len(slow.judged) <= 2
    assert {result.message for result in pool.results.values()} == set(names(20))


@pytest.mark.parametrize(("gpus", "times"), [(2, 1.9), (8, 7.0)])
def test_more_gpus_judge_more(gpus: int, times: float) -> None:
    def seconds(count: int) -> float:
        with Pool(*(FakeEvaluator(f"{number:032x}", seconds=0.05) for number in range(count))) as pool:
            pool.begin()
            began = time.monotonic()
            pool.submit(*names(16))
            pool.wait(16)
            return time.monotonic() - began

    alone = 16 * 0.05
    assert any(alone / seconds(gpus) >= times for _ in range(3)), "a busy machine may spoil one try"


def test_a_gpu_that_is_lost_hands_its_kernel_on() -> None:
    lost, left = FakeEvaluator(A, fails=2), FakeEvaluator(B, seconds=0.02)
    with Pool(lost, left) as pool:
        pool.begin()
        pool.submit(*names(8))
        pool.wait(8)
        assert pool.pool.size == 1
        (remark,) = pool.pool.remarks
    assert "a0a0a0a0 was lost" in remark
    assert "fallen off the bus" in remark
    assert all(isinstance(result, Evaluation) and result.ok for result in pool.results.values())
    assert sorted(lost.judged + left.judged) == sorted(names(8))


def test_a_kernel_that_takes_two_gpus_down_takes_no_third() -> None:
    fakes = [FakeEvaluator(f"{number:032x}") for number in range(3)]

    def deadly(seat: Seat) -> Evaluation:
        raise DeviceError(f"{seat.name} is gone.")

    with Pool(*fakes) as pool:
        pool.begin()
        came: list[Evaluation | Exception] = []
        pool.pool.submit(deadly, came.append)
        while not came:
            time.sleep(0.005)
        pool.submit("next")
        pool.wait(1)
        assert pool.pool.size == 1
    assert isinstance(came[0], Evaluation)
    assert (came[0].outcome, "2 GPUs were lost" in came[0].message) == (Outcome.CRASH, True)


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


def test_an_error_of_the_work_itself_costs_no_gpu() -> None:
    with Pool(FakeEvaluator()) as pool:
        pool.begin()
        with pytest.raises(ZeroDivisionError):
            pool.pool.run(lambda _: 1 // 0)
        assert pool.pool.run(lambda _: FINE) is FINE


def test_gpus_that_do_not_open_are_left_out() -> None:
    with Pool(FakeEvaluator(A, fails=0), FakeEvaluator(B)) as pool:
        pool.begin()
        pool.submit("k")
        pool.wait(1)
        assert pool.pool.size == 1
        assert pool.pool.remarks == ("A GPU could not be used: It has fallen off the bus.",)


@pytest.mark.parametrize("error", [DeviceError("none"), TaskError("its reference fails")])
def test_what_no_gpu_can_open_is_raised(error: Exception) -> None:
    fakes = FakeEvaluator(A, fails=0, error=error), FakeEvaluator(B, fails=0, error=error)
    with pytest.raises(type(error), match=str(error)):
        GpuPool(fakes)
    assert all(fake.closed for fake in fakes)


def test_closing_waits_for_nothing() -> None:
    with Pool(FakeEvaluator(A, seconds=60.0), FakeEvaluator(B, seconds=60.0)) as pool:
        pool.begin()
        pool.submit(*names(5))
        time.sleep(0.05)
        began = time.monotonic()
    assert time.monotonic() - began < 1.0
    assert sum(len(fake.judged) for fake in pool.fakes) == 2


def test_a_gpu_without_work_lets_others_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_pool, "IDLE_SECONDS", 0.02)
    fake = FakeEvaluator()
    with Pool(fake) as pool:
        pool.begin()
        time.sleep(0.2)
        assert fake.released == 1
        pool.submit("a")
        pool.wait(1)
        assert fake.judged == ["a"]
