"""What every test may use."""

import ctypes
import gc
import importlib
import os
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

# `make test` tries few generated inputs, `make test-all` many. No deadline: machines may be busy.
settings.register_profile(
    "default", max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("full", parent=settings.get_profile("default"), max_examples=200)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

TASK_TOML = """\
name = "double"
summary = "Twice the input."

[[inputs]]
name = "x"
dtype = "float32"
shape = ["n"]

[[outputs]]
name = "out"
dtype = "float32"
shape = ["n"]

[shapes]
search = [{ n = 4096 }]
verify = [{ n = 1 }, { n = 130 }]
held_out = [{ n = 77 }]
held_out_timed = [{ n = 5000 }]
"""

REFERENCE = """\
def reference(x):
    return 2 * x
"""

KERNEL = """\
/*
[[launch]]
kernel = "twice"
grid = ["ceil_div(n, BLOCK)"]
block = ["BLOCK"]
args = ["x", "out", "n"]
*/
#define BLOCK 64

extern "C" __global__ void twice(const float* x, float* out, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) {
        out[i] = 2.0f * x[i];
    }
}
"""


TRITON_KERNEL = '''"""
[[launch]]
kernel = "twice"
grid = ["ceil_div(n, BLOCK)"]
args = ["x", "out", "n"]
constexprs = { BLOCK = "BLOCK" }
num_warps = 1
"""

import triton
import triton.language as tl

BLOCK = 64


@triton.jit
def twice(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)
'''


@pytest.fixture(autouse=True)
def collected_quietly() -> Iterator[None]:
    """Hypothesis is told of garbage collections, in which threads may switch while one of them parses Python.

    CPython 3.11 then takes the other's depth of recursion for its own and refuses the text.
    """
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks.extend(callbacks)


def pytest_configure() -> None:
    """Let Ctrl-C interrupt what tests start: a shell's background ignores it, and so would every child."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave what all tests share, half a million objects, out of all collections of garbage, while it is made too."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where the driver finds none."""
    reason = _why_no_gpu()
    if reason:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=reason))


def _why_no_gpu() -> str:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver (libcuda.so.1)"
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or count.value == 0:
        return "the NVIDIA driver finds no GPU"
    return ""


@pytest.fixture(scope="session")
def small_task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest task that works, the same for every test: leave it as it is."""
    return _written(tmp_path_factory.mktemp("small") / "task", TASK_TOML)


@pytest.fixture(scope="session")
def wide_task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with tensors of whole 16 bytes, which TMA can copy: it writes no fewer at their ends."""
    toml = TASK_TOML.replace("n = 1 }", "n = 4 }").replace("n = 130 }", "n = 132 }")
    return _written(tmp_path_factory.mktemp("wide") / "task", toml)


def _written(folder: Path, toml: str) -> Path:
    folder.mkdir()
    for name, text in (("task.toml", toml), ("reference.py", REFERENCE), ("kernel.cu", KERNEL)):
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module `fake_devices`, which worker processes can import: devices that misbehave, and their openers."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "profiling"))
    return importlib.import_module("fake_devices")


WriteTask = Callable[..., Path]


@pytest.fixture
def write_task(tmp_path: Path) -> WriteTask:
    """Writes the smallest task that works, with files replaced by the given texts, or left out when None."""

    def write(
        toml: str | None = TASK_TOML, reference: str | None = REFERENCE, kernel: str | None = KERNEL
    ) -> Path:
        folder = tmp_path / "task"
        folder.mkdir(exist_ok=True)
        for name, text in (("task.toml", toml), ("reference.py", reference), ("kernel.cu", kernel)):
            if text is not None:
                (folder / name).write_text(text)
        return folder

    return write
