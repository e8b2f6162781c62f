"""Whatever comes from outside is taken and sound, or refused in the reader's own words: a little of a long run."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable
from itertools import repeat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mctskernel.experiments.fuzz.inputs import inputs
from mctskernel.experiments.fuzz.targets import Target, targets
from mctskernel.experiments.fuzz.watch import MOST_SECONDS, DefectError, watched
from mctskernel.experiments.fuzzing import emptied, warmed_up

FEW = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)


@pytest.mark.parametrize("target", targets(), ids=lambda target: target.name)
@given(data=st.data())
@FEW
def test_a_reader_takes_or_refuses(target: Target, data: st.DataObject, tmp_path: Path) -> None:
    examples = warmed_up(target)
    found = data.draw(inputs(examples, target.words, min(target.most, 1 << 15)))
    watched(target.read, target.refusals, found, emptied(tmp_path))


def refuse(data: bytes, _: Path) -> None:
    raise ValueError(data.decode())


TRANSGRESSIONS: dict[str, Callable[[bytes, Path], object]] = {
    "ValueError": lambda data, folder: int(data),
    "os.scandir": lambda data, folder: list(os.scandir("/")),
    "open": lambda data, folder: Path("/etc/hostname").read_bytes(),
    "exec": lambda data, folder: exec("1"),  # noqa: S102
    "subprocess": lambda data, folder: subprocess.run(["true"], check=False),
    "socket.bind": lambda data, folder: socket.socket(socket.AF_UNIX).bind(b"\0taken"),
    r"takes \d\.\d s": lambda data, folder: all(
        time.thread_time() < MOST_SECONDS + start for start in repeat(time.thread_time())
    ),
    "MiB": lambda data, folder: b"x" * (600 << 20),
}


@pytest.mark.parametrize("says", TRANSGRESSIONS)
def test_the_watch_notices(says: str, tmp_path: Path) -> None:
    read = TRANSGRESSIONS[says]
    with pytest.raises(DefectError, match=says):
        watched(lambda data, folder: void(read(data, folder)), (OSError,), b"x", tmp_path)


def void(_: object) -> None:
    pass


def test_a_refusal_without_words_is_a_defect(tmp_path: Path) -> None:
    assert watched(refuse, (ValueError,), b"It is odd.", tmp_path).refusal == "ValueError: It is odd."
    with pytest.raises(DefectError, match="no sentence"):
        watched(refuse, (ValueError,), b" ", tmp_path)
