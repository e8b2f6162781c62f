"""A GPU that is judged on from inside a session, which can write to its own folder, and name threads for the driver."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from mctskernel.executors.http_api import SESSIONS, OpenSession, SessionOpened, decode, encode
from mctskernel.profiling.gpu import choice
from mctskernel.profiling.gpu import turn as turns
from mctskernel.profiling.gpu.cuda_driver import VisibleGpu
from mctskernel.profiling.gpu.turn import Turn, turn_files
from mctskernel.profiling.isolation.coverage import try_mechanisms
from mctskernel.profiling.isolation.policy import DEVICES
from mctskernel.serving.machine import shared_files
from mctskernel.serving.settings import Settings
from tests.conftest import KERNEL
from tests.executors.fake_gpu import GPU
from tests.profiling.isolation.kernels import NEEDS_LANDLOCK
from tests.serving.conftest import STUB, serving


def test_what_sessions_take_turns_by_is_there_before_they_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = VisibleGpu(0, "H200", "ab" * 16, "sm_90", 1)
    monkeypatch.setattr(turns, "FOLDER", tmp_path)
    monkeypatch.setattr(choice, "visible_gpus", lambda: (found,))
    files = shared_files("gpu", "H100", ())
    assert {file.name for file in files} == {
        f"mctskernel-gpu-{turn}.{kind}" for turn in (found.uuid, "counters") for kind in ("next", "lock")
    }
    assert all(file.exists() for file in files)


def test_kernels_are_compiled_judged_and_put_through_the_gate_in_turn(small_task: Path) -> None:
    Turn(GPU.uuid).close()
    settings = Settings(
        "gpu", workers=1, reads=turn_files(GPU.uuid), opener="tests.serving.gpu_stub:open_fake_gpu"
    )
    with serving(settings) as served:
        client = served.client()
        task = {file.name: file.read_bytes() for file in small_task.iterdir()}
        opened = decode(client.http.post(SESSIONS, content=encode(OpenSession(task))).content, SessionOpened)
        client.session = opened.session
        client.put("fast", KERNEL.replace("twice", "faster"))
        client.put_gate("gate", KERNEL.replace("twice", "faster"), KERNEL)
        client.put("crash", KERNEL.replace("twice", "crash"))
        found = {result.key: result.evaluation for result in client.judged(3)}

    assert (opened.source, opened.fingerprint["gpu"]) == ("measured", GPU.name)
    assert not any("disturb" in remark for remark in opened.remarks)
    assert found["fast"].ok, found["fast"].message
    assert found["gate"].ok, found["gate"].message
    assert found["gate"].timings[0].baseline_seconds
    assert found["crash"].outcome == "crash"


@NEEDS_LANDLOCK
def test_only_a_session_on_a_gpu_may_name_threads_beneath_proc() -> None:
    said = {kind: said_by_stub(kind, "name") for kind in ("gpu", "model")}
    may = any(each.in_force for each in try_mechanisms() if each.name == "thread names")
    assert said == {"gpu": "named" if may else "PermissionError", "model": "PermissionError"}


@NEEDS_LANDLOCK
def test_only_a_session_on_a_gpu_sees_which_devices_there_are_and_reads_none() -> None:
    names = " ".join(sorted(path.name for path in DEVICES.iterdir()))
    with tempfile.NamedTemporaryFile("w", dir=DEVICES / "shm", prefix="mctskernel-test-") as file:
        file.write("of somebody else")
        file.flush()
        listed = {kind: said_by_stub(kind, f"list {DEVICES}") for kind in ("gpu", "model")}
        read = said_by_stub("gpu", f"read {file.name}")
    assert listed == {"gpu": names, "model": "PermissionError"}
    assert read == "PermissionError"


def said_by_stub(kind: str, source: str) -> str:
    """What comes of a kernel in a session of the kind."""
    with serving(Settings(kind, workers=1, opener=STUB)) as served:
        client = served.client()
        client.open()
        client.put("key", source)
        return client.judged(1)[0].evaluation.message
