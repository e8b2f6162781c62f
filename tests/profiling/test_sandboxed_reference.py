"""References that a language model wrote: they compute in their sandbox, and can do nothing else."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mctskernel.core.task import TaskError
from mctskernel.core.task_file import load_task
from mctskernel.profiling import sandboxed_reference
from mctskernel.profiling.sandboxed_reference import SandboxedReference, check_sandbox
from tests.conftest import TASK_TOML, WriteTask
from tests.processes import state, wait_for


@pytest.fixture(autouse=True, scope="module")
def sandbox() -> None:
    try:
        check_sandbox()
    except TaskError as error:
        pytest.skip(str(error))


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def reference(*lines: str, parameters: str = "x") -> SandboxedReference:
    body = "\n".join(f"    {line}" for line in lines)
    return SandboxedReference(f"import os\nimport numpy as np\n\ndef reference({parameters}):\n{body}\n")


def test_it_computes_as_python_does() -> None:
    source = (
        "def reference(x, n, y=None):\n    return x.sum(axis=1) * n, np.argmax(x, 1)\nimport numpy as np\n"
    )
    sums, places = SandboxedReference(source)(x=X.astype(np.float64), n=2)  # type: ignore[misc]
    np.testing.assert_array_equal(sums, [6.0, 24.0])
    assert sums.dtype == np.float64
    assert places.dtype == np.int64


@pytest.mark.parametrize(
    ("source", "sentence"), [("def reference(x:", "not Python"), ("(" * 5000, "not Python")]
)
def test_a_source_without_a_reference_is_refused_unrun(source: str, sentence: str) -> None:
    with pytest.raises(TaskError, match=sentence):
        SandboxedReference(source)


FORBIDDEN = {
    "raise KeyError('no')": "failed: KeyError",
    "raise SystemExit(0)": "SystemExit",
    "return open(PRIVATE).read()": "PermissionError|FileNotFoundError",
    "return os.listdir(os.path.dirname(PRIVATE))": "PermissionError|FileNotFoundError",
    "open(PRIVATE, 'w')": "OSError|PermissionError|FileNotFoundError",
    "file = open('here', 'w'); file.write('text'); file.flush()": "OSError",
    "import socket; socket.create_connection(('127.0.0.1', 9))": "PermissionError|OSError",
    "return os.fork()": "PermissionError",
    "import subprocess; subprocess.run(['/bin/true'])": "PermissionError",
    "return os.kill(os.getppid(), 9)": "PermissionError",
    "return np.ones(1 << 40)": "MemoryError|Unable to allocate",
    "return os.environ['MCTSKERNEL_TEST_KEY']": "KeyError",
}
"""What a reference tries, and how that fails."""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> SandboxedReference:
    private = tmp_path_factory.mktemp("home") / "private.txt"
    private.write_text("private")
    functions = "\n".join(f"def f{n}():\n    {line}\n" for n, line in enumerate(FORBIDDEN))
    source = f"import os\nimport numpy as np\nPRIVATE = {str(private)!r}\n{functions}\n"
    return SandboxedReference(f"{source}\ndef reference(n):\n    return globals()[f'f{{n}}']()\n")


@pytest.mark.parametrize("line", FORBIDDEN)
def test_what_it_may_not_do_fails_in_its_process(
    hostile: SandboxedReference, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCTSKERNEL_TEST_KEY", "secret")
    with pytest.raises(TaskError, match=FORBIDDEN[line]):
        hostile(n=list(FORBIDDEN).index(line))


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("while True: pass", marks=pytest.mark.slow),
        "import signal; [signal.signal(each, signal.SIG_IGN) for each in (1, 2, 15, 29)]; signal.pause()",
    ],
)
def test_what_never_returns_is_ended(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandboxed_reference, "CALL_SECONDS", 1.0)
    with pytest.raises(TaskError, match="more than its limit"):
        reference(line, "return x")(x=X)


@pytest.mark.parametrize(
    "line",
    [
        "os._exit(3)",
        "os.kill(os.getpid(), 11)",
        "[os.write(d, b'\\xff' * 4096) for d in range(3, 64) if os.path.exists(f'/proc/self/fd/{d}')]",
    ],
)
def test_a_lost_process_is_a_sentence_and_the_next_call_gets_another(line: str) -> None:
    hostile = reference(f"if x[0, 0] == 0: {line}", "return x")
    with pytest.raises(TaskError, match=r"process was lost|failed"):
        hostile(x=X)
    np.testing.assert_array_equal(hostile(x=X + 1), X + 1)  # type: ignore[arg-type]


def test_an_unverified_task_runs_its_reference_in_the_sandbox_only(
    write_task: WriteTask, tmp_path: Path
) -> None:
    trap = tmp_path / "trap"
    evil = f"import os\nopen({str(trap)!r}, 'w').close()\n\ndef reference(x):\n    return 2 * x\n"
    task = load_task(write_task("unverified_reference = true\n" + TASK_TOML, reference=evil))
    with pytest.raises(TaskError, match=r"can't be loaded: (OSError|PermissionError|FileNotFoundError)"):
        task.expected(task.draw_inputs({"n": 1}, 0), {"n": 1})
    assert not trap.exists()


def test_without_a_sandbox_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandboxed_reference, "REQUIRED", ("a mechanism that no kernel has",))
    with pytest.raises(TaskError, match="this machine has none: a mechanism that no kernel has"):
        reference("return x")(x=X)


def test_its_process_ends_with_ours() -> None:
    script = (
        "import numpy, os\n"
        "from mctskernel.profiling.sandboxed_reference import SandboxedReference\n"
        "inside = SandboxedReference('import os\\ndef reference(x):\\n    return os.getpid()')\n"
        "print(int(inside(x=numpy.ones(1))), flush=True)\nos._exit(0)\n"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    wait_for(lambda: state(int(said)) in "ZX")
