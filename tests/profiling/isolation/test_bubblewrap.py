"""The command that starts a process in bubblewrap, and, where there is one, the process."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mctskernel.profiling.isolation.bubblewrap import bubblewrap_command, find_bubblewrap
from mctskernel.profiling.isolation.policy import Confinement

LOOK = """
import json, os, socket
pids = [int(each) for each in os.listdir("/proc") if each.isdigit()]
print(json.dumps({"pids": pids, "interfaces": len(socket.if_nameindex()), "secret": os.path.exists(%r)}))
"""


def test_only_the_folder_is_writable_and_only_the_policy_is_there(tmp_path: Path) -> None:
    scratch, task = tmp_path / "scratch", tmp_path / "task"
    for folder in (scratch, task):
        folder.mkdir()
    policy = Confinement(scratch, reads=(task,), devices=(Path("/dev/null"),))
    command = bubblewrap_command("bwrap", policy, ("python", "-c", "pass"))
    assert command[-4:] == ("--", "python", "-c", "pass")
    bound = {(how, where) for how, where in itertools.pairwise(command) if how.endswith("bind")}
    assert bound == {("--bind", str(scratch))}
    read_only = {where for how, where in itertools.pairwise(command) if how == "--ro-bind-try"}
    assert str(task) in read_only
    assert not read_only & {"/", "/home", "/root", "/tmp", "/etc", "/dev", "/proc", str(Path.home())}  # noqa: S108
    assert {"--unshare-net", "--unshare-pid", "--unshare-ipc", "--die-with-parent"} <= set(command)


def test_bubblewrap_that_may_not_make_namespaces_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert find_bubblewrap.__wrapped__() is None


def test_a_process_in_bubblewrap_sees_nothing_else(tmp_path: Path) -> None:
    bubblewrap = find_bubblewrap()
    if bubblewrap is None:
        pytest.skip("there is no bubblewrap that works here")
    secret = tmp_path / "id_rsa"
    secret.write_text("x")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = bubblewrap_command(bubblewrap, Confinement(scratch), (sys.executable, "-c", LOOK % str(secret)))
    seen = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    assert set(seen["pids"]) <= {1, 2}
    assert seen["interfaces"] == 1
    assert not seen["secret"]
