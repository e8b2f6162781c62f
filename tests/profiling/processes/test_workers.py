import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.core.evaluation import Evaluation, Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.profiling.processes.channel import MAX_MESSAGE_BYTES
from mctskernel.profiling.processes.worker import Limits, Worker, compile_worker
from mctskernel.profiling.processes.worker_process import Open
from tests.processes import state, wait_for

SPEC = DeviceSpec("model", Path())
LIMITS = Limits(seconds=20.0, memory_bytes=1 << 30, opening_seconds=30.0)

MakeWorker = Callable[..., Worker]


@pytest.fixture
def make_worker(fakes: ModuleType) -> Iterator[MakeWorker]:
    made: list[Worker] = []

    def make(limits: Limits = LIMITS, opener: str = "Fake") -> Worker:
        made.append(Worker(SPEC, limits=limits, opener=getattr(fakes, opener)))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


def judge(worker: Worker, source: str) -> Evaluation:
    return worker.evaluate(Kernel(source))


def test_an_evaluation_comes_back_as_it_was_made(make_worker: MakeWorker) -> None:
    worker = make_worker()
    evaluation = judge(worker, "ok rows=3")
    assert evaluation.outcome is Outcome.OK
    assert evaluation.timings[0].shape == "rows=3"
    assert judge(worker, "report judged").message == "2"


@pytest.mark.slow
def test_the_limit_is_of_processor_time(make_worker: MakeWorker) -> None:
    worker = make_worker(Limits(seconds=0.25))
    assert judge(worker, "sleep 0.5").ok
    assert judge(worker, "sleep 600").outcome is Outcome.TIMEOUT


@pytest.mark.parametrize(
    ("source", "outcome", "sentence"),
    [
        ("abort", Outcome.CRASH, "SIGABRT"),
        pytest.param("exit 5", Outcome.CRASH, "status 5", marks=pytest.mark.slow),
        ("raise here", Outcome.CRASH, "KeyError"),
        pytest.param("hog 2000000000", Outcome.UNVERIFIABLE, "1024 MiB", marks=pytest.mark.slow),
        pytest.param("spin", Outcome.TIMEOUT, "0.5 s", marks=pytest.mark.slow),
    ],
)
def test_a_crash_or_a_hang_is_an_outcome_and_the_next_one_is_judged(
    make_worker: MakeWorker, source: str, outcome: Outcome, sentence: str
) -> None:
    worker = make_worker(Limits(seconds=0.5) if outcome is Outcome.TIMEOUT else LIMITS)
    before = worker.pid
    evaluation = judge(worker, source)
    assert evaluation.outcome is outcome
    assert sentence in evaluation.message
    assert judge(worker, "ok").ok
    assert worker.pid != before


def test_a_compile_worker_does_not_know_the_seed_of_the_inputs(small_task: Path) -> None:
    worker = compile_worker(DeviceSpec("gpu", small_task, seed=123456789), "sm_90")
    try:
        opening = worker._process._opening
    finally:
        worker.close()
    assert isinstance(opening, Open)
    assert opening.spec.seed == 0


def test_what_a_dead_worker_said_is_in_the_log(make_worker: MakeWorker) -> None:
    assert "the last words" in judge(make_worker(), "exit 1").log


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(f"forge {'00ff' * 40}", marks=pytest.mark.slow),
        pytest.param(f"forge 0800000000000000{'c1' * 8}", marks=pytest.mark.slow),
        pytest.param(f"forge {(MAX_MESSAGE_BYTES + 1).to_bytes(8, 'little').hex()}", marks=pytest.mark.slow),
        # A well-formed reply to another question.
        "forge " + (b"\x13\x00\x00\x00\x00\x00\x00\x00" + b"\x82\xa4type\xa7Checked\xa6checks\x90").hex(),
        pytest.param(f"flood {MAX_MESSAGE_BYTES + 1}", marks=pytest.mark.slow),
    ],
)
def test_a_forged_reply_and_an_oversized_one_are_crashes(make_worker: MakeWorker, source: str) -> None:
    worker = make_worker()
    assert judge(worker, source).outcome is Outcome.CRASH
    assert judge(worker, "ok").ok


def test_a_worker_gets_no_secrets_and_a_folder_of_its_own(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "CUDA_API_KEY", "NVIDIA_TOKEN", "SOME_NAME", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "sk-do-not-tell")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    worker = make_worker()
    folder = Path(judge(worker, "report folder").message)
    assert folder != Path.cwd()
    environment = Path(f"/proc/{worker.pid}/environ").read_bytes()
    assert b"CUDA_VISIBLE_DEVICES=0" in environment
    assert b"PATH=" in environment
    assert b"sk-do-not-tell" not in environment
    worker.close()
    assert not folder.exists()


def test_a_device_that_does_not_open_says_why(make_worker: MakeWorker) -> None:
    with pytest.raises(DeviceError, match="no model here"):
        judge(make_worker(opener="unopenable"), "ok")


@pytest.mark.slow
def test_a_worker_that_never_starts_is_not_tried_for_ever(make_worker: MakeWorker) -> None:
    worker = make_worker(opener="dying")
    with pytest.raises(DeviceError, match="status 3"):
        judge(worker, "ok")


@pytest.mark.slow
def test_a_device_that_takes_too_long_to_open_is_given_up(make_worker: MakeWorker) -> None:
    with pytest.raises(DeviceError, match="more than its limit of 1 s"):
        judge(make_worker(Limits(opening_seconds=1.0), opener="stuck"), "ok")


def test_a_broken_machine_raises(make_worker: MakeWorker) -> None:
    worker = make_worker()
    with pytest.raises(DeviceError, match="fell off the bus"):
        judge(worker, "break")


PARENT = """
import importlib, sys, time
from pathlib import Path
from mctskernel.core.device import DeviceSpec
from mctskernel.core.kernel import Kernel
from mctskernel.profiling.processes.worker import Worker
fakes = importlib.import_module("fake_devices")
worker = Worker(DeviceSpec("model", Path()), opener=fakes.Fake)
worker.evaluate(Kernel("ok"))
print(worker.pid, flush=True)
worker.evaluate(Kernel(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("doing", ["sleep 600", "spin"])
def test_a_worker_dies_with_its_parent(fakes: ModuleType, doing: str) -> None:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, doing],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_for(lambda: state(pid) in "ZX")
