"""Several GPUs of one machine: which are used, who takes what, and what is left when one is lost."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from mctskernel import opening as opening_module
from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.executor import CounterSet, ExecutorOptions
from mctskernel.core.task import TaskError
from mctskernel.core.task_file import load_task
from mctskernel.executors import gpu_pool
from mctskernel.executors.gpu import GpuExecutor
from mctskernel.executors.gpu_pool import GpuPool, Seat
from mctskernel.executors.recorded import RecordedExecutor
from mctskernel.profiling.ceilings import Ceilings
from mctskernel.profiling.counters import INSTRUCTIONS, TIME
from mctskernel.profiling.gpu import turn as turns
from mctskernel.profiling.gpu.choice import choose_gpus
from mctskernel.profiling.gpu.cuda_driver import Gpu, VisibleGpu
from mctskernel.profiling.gpu.evaluator import GpuEvaluator
from mctskernel.profiling.gpu.protocol import Opened
from mctskernel.profiling.gpu.turn import InterruptedTurnError, Turn
from mctskernel.profiling.processes.compile_process import Prepared
from mctskernel.profiling.processes.compiler import Compiler
from mctskernel.run import Budget, Configuration, RunError, prepare_run, write_manifest
from mctskernel.tree.policy import Policy
from tests.executors.test_gpu import kernel

FINE = Evaluation(Outcome.OK, Source.MEASURED)
A, B = "a0" * 16, "b0" * 16
COUNTED = (TIME, INSTRUCTIONS)

LOGGING = '''\
import os
import time
from pathlib import Path

from fake_gpu import FakeGpu

from mctskernel.profiling.gpu.protocol import Broken, Count, ReleaseCounters, Time


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


def gpu(index: int, name: str = "NVIDIA H200", memory: int = 141 << 30) -> VisibleGpu:
    return VisibleGpu(index, name, f"{index}{'ab' * 16}"[:32], "sm_90", memory)


MACHINE = (gpu(0), gpu(1), gpu(2, "NVIDIA A100"), gpu(3), gpu(4, memory=70 << 30))


def test_without_a_word_all_gpus_of_the_first_ones_kind_are_used() -> None:
    choice = choose_gpus((), MACHINE)
    assert [each.index for each in choice.gpus] == [0, 1, 3]
    assert [remark.split(" is left out")[0] for remark in choice.remarks] == ["GPU 2", "GPU 4"]
    assert "NVIDIA A100" in choice.remarks[0]


@pytest.mark.parametrize(
    ("words", "indices"),
    [
        (("3", "1"), [3, 1]),
        (("2",), [2]),
        (("1aba", "1"), [1]),
        (("GPU-0abababa-baba",), [0]),
        (("0", "2", "1"), [0, 1]),
    ],
)
def test_words_name_gpus(words: tuple[str, ...], indices: list[int]) -> None:
    assert [each.index for each in choose_gpus(words, MACHINE).gpus] == indices


@pytest.mark.parametrize(
    ("word", "sentence"),
    [("7", "names no GPU"), ("GPU-", "names no GPU"), ("-1", "names no GPU"), ("cafe", "names no GPU")],
)
def test_words_that_name_none_are_refused(word: str, sentence: str) -> None:
    with pytest.raises(DeviceError, match=sentence):
        choose_gpus((word,), MACHINE)
    twins = (gpu(0), replace(gpu(1), uuid=gpu(0).uuid[:-1] + "f"))
    with pytest.raises(DeviceError, match="names 2 GPUs"):
        choose_gpus(("0ab",), twins)


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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the locks of this test are, in this process."""
    monkeypatch.setattr(turns, "FOLDER", tmp_path)
    return tmp_path


def test_a_turn_is_held_by_one_alone_and_they_alternate(folder: Path) -> None:
    holding: list[str] = []
    held: list[str] = []
    together = threading.Barrier(2)

    def use(name: str) -> None:
        turn = Turn(A)
        together.wait()
        for _ in range(8):
            with turn.held():
                holding.append(name)
                assert holding == [name]
                time.sleep(0.01)
                held.append(name)
                holding.remove(name)
        turn.close()

    threads = [threading.Thread(target=use, args=(name,)) for name in "xy"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    changes = sum(first != second for first, second in itertools.pairwise(held))
    assert len(held) == 16
    assert changes >= 10, held


def test_the_turns_of_two_gpus_have_nothing_to_do_with_each_other(folder: Path) -> None:
    with Turn(A).held(), Turn(B).held():
        assert sorted(path.name for path in folder.iterdir()) == sorted(
            f"mctskernel-gpu-{uuid}.{kind}" for uuid in (A, B) for kind in ("lock", "next")
        )


def test_who_has_the_turn_knows_that_it_is_wanted_and_who_waits_is_told_before(folder: Path) -> None:
    told: list[str] = []
    turn, other = Turn(A), Turn(A)

    def wait() -> None:
        with other.held(before_waiting=lambda: told.append("waits")):
            told.append("has it")

    with turn.held(before_waiting=lambda: told.append("must not")):
        assert not turn.is_wanted
        thread = threading.Thread(target=wait)
        thread.start()
        deadline = time.monotonic() + 5
        while not turn.is_wanted and time.monotonic() < deadline:
            time.sleep(0.001)
        assert turn.is_wanted
        assert told == ["waits"]
    thread.join()
    assert told == ["waits", "has it"]


def test_who_is_not_that_patient_goes_on_without_the_turn_and_takes_it_from_nobody(folder: Path) -> None:
    with Turn(A).held():
        other = Turn(A)
        for patience in (0.0, 0.05):
            with other.held(patience):
                pass
        with pytest.raises(InterruptedTurnError):
            third = Turn(A)
            threading.Timer(0.05, third.interrupt).start()
            with third.held():
                pytest.fail("It was never given back.")
    with other.held(0.0), Turn(A).held(0.0):
        pass


def test_whoever_dies_gives_the_turn_back_and_who_waits_can_be_called_off(folder: Path) -> None:
    script = (
        "import sys, time, pathlib; from mctskernel.profiling.gpu import turn;"
        f"turn.FOLDER = pathlib.Path({str(folder)!r}); held = turn.Turn({A!r}).held(); held.__enter__();"
        "print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        turn = Turn(A)
        threading.Timer(0.1, turn.interrupt).start()
        with pytest.raises(InterruptedTurnError), turn.held():
            pass
        threading.Timer(0.1, holder.kill).start()
        began = time.monotonic()
        with Turn(A).held():
            assert time.monotonic() - began < 5.0


def test_a_folder_of_locks_that_cannot_be_used_is_a_remark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.touch()
    (tmp_path / f"mctskernel-gpu-{A}.next").symlink_to(elsewhere)
    monkeypatch.setattr(turns, "FOLDER", tmp_path)
    turn = Turn(A)
    assert "a0a0a0a0" in turn.remark
    with turn.held(), Turn(A).held():
        pass


@pytest.fixture
def logging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The log of every fake GPU's timings: who, for whom, from when to when, and what."""
    (tmp_path / "logging_gpu.py").write_text(LOGGING)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "log"


def opened(task: Path, *gpus: str, workers: int = 2) -> GpuExecutor:
    service = "logging_gpu:LoggingGpu"
    return GpuExecutor(DeviceSpec("gpu", task), workers=workers, gpus=gpus, service=service, gate_checks=())


def collected(executor: GpuExecutor, count: int) -> dict[int, Evaluation]:
    results: dict[int, Evaluation] = {}
    while len(results) < count:
        found = executor.wait(60.0)
        assert found
        assert results.keys().isdisjoint(dict(found))
        results |= dict(found)
    return results


def test_two_searches_share_two_gpus_in_turns_and_one_that_dies_is_left_out(
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
        assert len({row[2] for row in shared}) == 2, "of both searches"
        # The kernel ends the process of whatever GPU it is on, and one of the two can't be opened again.
        while first.capacity == 4:
            first.submit(100, kernel("die"))
            assert collected(first, 1)[100].outcome is Outcome.CRASH
        assert (first.capacity, "dddddddd was lost" in first.remarks[0]) == (3, True)
        assert first.last_gate(kernel("faster"), kernel("twice")).ok
        first.submit(101, kernel("hang"))
        second.submit(101, kernel("hang"))
        assert first.wait(0.5) == []
        began = time.monotonic()
    assert time.monotonic() - began < 5.0


@pytest.fixture
def prepared(write_task: Callable[..., Path]) -> Prepared:
    with closing(Compiler(DeviceSpec("gpu", write_task()), "sm_90")) as compiler:
        found = compiler.prepare(kernel("faster"))
    assert isinstance(found, Prepared)
    return found


def test_two_evaluators_of_one_gpu_judge_one_after_the_other(
    write_task: Callable[..., Path], prepared: Prepared, logging: Path, folder: Path
) -> None:
    spec = DeviceSpec("gpu", write_task(), gpu=A)

    def judge() -> list[Evaluation]:
        with closing(GpuEvaluator(spec, (), "logging_gpu:LoggingGpu")) as evaluator:
            evaluator.open()
            together.wait()
            return [evaluator.evaluate(prepared) for _ in range(4)]

    together = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(judge) for _ in range(2)]:
            assert all(evaluation.ok for evaluation in each.result())
    rows = sorted(tuple(map(float, line.split()[2:4])) for line in logging.read_text().splitlines())
    assert len(rows) == 8
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(rows))


def test_two_gpus_count_one_after_the_other(
    write_task: Callable[..., Path], prepared: Prepared, logging: Path, folder: Path
) -> None:
    together = threading.Barrier(2)

    def judge(uuid: str) -> list[Evaluation]:
        spec = DeviceSpec("gpu", write_task(), gpu=uuid)
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


def test_who_shares_a_gpu_gives_its_counters_back_between_turns_and_before_the_last_gate(
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
        assert executor.last_gate(kernel("faster"), kernel("twice")).ok
    first, second, *_ = logging.with_name("counts").read_text().splitlines()
    assert (first.split()[0], second) == (A, "released"), "counted, and given back before the gate counts"


@pytest.mark.parametrize(("metrics", "waits"), [(COUNTED, True), ((TIME,), False)])
def test_counting_waits_for_its_turn_only_so_long_and_for_the_time_alone_not_at_all(
    *,
    write_task: Callable[..., Path],
    prepared: Prepared,
    logging: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    metrics: tuple[str, ...],
    waits: bool,
) -> None:
    asked = []

    def held(turn: Turn, patience: float = math.inf, **options: Any) -> AbstractContextManager[None]:
        asked.append(patience)
        return really_held(turn, 0.01, **options)

    really_held = Turn.held
    with Turn(turns.COUNTING).held():
        monkeypatch.setattr(Turn, "held", held)
        spec = DeviceSpec("gpu", write_task(), gpu=A)
        with closing(GpuEvaluator(spec, metrics, "logging_gpu:LoggingGpu")) as evaluator:
            evaluator.open()
            asked.clear()
            evaluation = evaluator.evaluate(prepared)
    assert evaluation.ok
    assert evaluation.diagnosis is None, "nothing but the time was read"
    assert asked == ([math.inf, turns.COUNTING_PATIENCE] if waits else [math.inf])


@pytest.mark.parametrize(
    ("then", "now", "refused"),
    [(A, A, False), (A, f"{A}+{B}", False), (f"{A}+{B}", B, False), (A, B, True), (f"{A}+{B}", "cc", True)],
)
def test_a_run_goes_on_where_a_gpu_of_its_own_is(
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write_task: Callable[..., Path],
    then: str,
    now: str,
    refused: bool,
) -> None:
    folder = prepare_run(tmp_path / "run", load_task(write_task()))
    limits = Budget(evaluations=1)
    configuration = Configuration("double", "gpu", "H100", "rules", 0, 1, limits, Policy())
    write_manifest(folder, configuration, {"gpu": "H200", "uuid": then})

    @contextmanager
    def opening(*_: object) -> Iterator[RecordedExecutor]:
        yield RecordedExecutor(lambda _: FINE, {"gpu": "H200", "uuid": now})

    monkeypatch.setattr(opening_module, "open_executor", opening)
    expected = pytest.raises(RunError, match="begin a new run") if refused else nullcontext()
    with expected, opening_module.reopen(folder.path, None, None):
        pass


ALL, FEW = CounterSet.ALL, CounterSet.FEW


@pytest.mark.parametrize(
    ("before", "executor", "counters", "after"),
    [
        (ExecutorOptions(counters=FEW), None, None, ExecutorOptions(counters=FEW)),
        (ExecutorOptions("ray", address="a:1"), None, ALL, ExecutorOptions("ray", (), "a:1", ALL)),
        (
            ExecutorOptions(counters=FEW),
            ExecutorOptions(gpus=("0",)),
            None,
            ExecutorOptions("local", ("0",), "", FEW),
        ),
        (
            ExecutorOptions(counters=FEW),
            ExecutorOptions(gpus=("0",)),
            ALL,
            ExecutorOptions("local", ("0",), "", ALL),
        ),
    ],
)
def test_a_run_goes_on_with_the_counters_that_it_had_unless_it_is_told_others(
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write_task: Callable[..., Path],
    before: ExecutorOptions,
    executor: ExecutorOptions | None,
    counters: CounterSet | None,
    after: ExecutorOptions,
) -> None:
    folder = prepare_run(tmp_path / "run", load_task(write_task()))
    limits = Budget(evaluations=1)
    configuration = Configuration("double", "gpu", "H100", "rules", 0, 1, limits, Policy(), executor=before)
    write_manifest(folder, configuration, {"gpu": "H200"})
    asked = []

    @contextmanager
    def opening(_spec: object, _workers: int, options: ExecutorOptions) -> Iterator[RecordedExecutor]:
        asked.append(options)
        yield RecordedExecutor(lambda _: FINE, {"gpu": "H200"})

    monkeypatch.setattr(opening_module, "open_executor", opening)
    with opening_module.reopen(folder.path, None, None, executor, counters=counters) as (_, found, _executor):
        assert asked == [found.executor] == [after]


def test_an_evaluator_that_was_not_opened_says_what_to_do(write_task: Callable[..., Path]) -> None:
    evaluator = GpuEvaluator(DeviceSpec("gpu", write_task(), gpu=A), ())
    with pytest.raises(RuntimeError, match="call `open` first"):
        evaluator.evaluate(None)  # type: ignore[arg-type]
    evaluator.close()
