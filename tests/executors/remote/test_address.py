"""Addresses of servers, what goes there, and what stays here."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.executors import open_executor
from mctskernel.executors.remote.address import PLAIN_VARIABLE, TOKEN_VARIABLE, address_of
from mctskernel.executors.remote.executor import server_status
from mctskernel.profiling.processes.child_process import environment_without_secrets, worker_environment
from tests.executors.careless_server import TOKEN, careless_server, says
from tests.executors.remote.connecting import HASTY, connect, drain, kernel


def test_the_token_goes_to_the_server_and_nowhere_else(
    task: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    with careless_server() as server, connect(server, task) as executor:
        executor.submit(0, kernel(0))
        drain(executor, 1)
        assert TOKEN not in repr(address_of(server.url)) + repr(executor)
    assert all(request.headers["authorization"] == f"Bearer {TOKEN}" for request in server.requests)
    assert TOKEN not in caplog.text
    for environment in (worker_environment(tmp_path), environment_without_secrets()):
        assert TOKEN not in environment.values()


@pytest.mark.parametrize(
    ("url", "environment", "sentence"),
    [
        ("http://", {}, "no address of a server"),
        ("http://:80", {}, "no address of a server"),
        ("http://host:port", {}, "no address of a server"),
        ("http://[::1", {}, "no address of a server"),
        ("ftp://host", {}, "no address of a server"),
        ("http://me:secret@localhost:1", {}, "put the token into MCTSKERNEL_TOKEN"),
        ("http://localhost:1?token=x", {}, "leave '\\?' and '#' out"),
        ("http://gpu-machine:8765", {}, "ssh -L 8765:localhost:8765 gpu-machine"),
        ("http://127.0.0.1.example.com", {}, "isn't encrypted"),
        ("http://gpu-machine:8765", {PLAIN_VARIABLE: "another"}, "isn't encrypted"),
        ("http://localhost:1", {TOKEN_VARIABLE: " "}, "set the environment variable MCTSKERNEL_TOKEN"),
        ("http://localhost:1", {TOKEN_VARIABLE: "a b"}, "holds no token"),
        ("http://localhost:1", {TOKEN_VARIABLE: "a\nb"}, "holds no token"),
    ],
)
def test_an_address_that_can_not_be_used_is_a_sentence(
    url: str, environment: dict[str, str], sentence: str
) -> None:
    with pytest.raises(DeviceError, match=sentence) as caught:
        address_of(url, {TOKEN_VARIABLE: TOKEN, **environment})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "environment"),
    [
        ("http://localhost:8765/", {}),
        ("http://127.8.9.1:8765", {}),
        ("http://[::1]:8765", {}),
        ("https://gpu-machine", {}),
        ("https://gpu-machine/behind/a/proxy/", {}),
        ("http://gpu-machine:8765", {PLAIN_VARIABLE: "other, GPU-machine"}),
    ],
)
def test_an_address_that_can_be_used(url: str, environment: dict[str, str]) -> None:
    assert address_of(url, {TOKEN_VARIABLE: TOKEN, **environment}).url == url.rstrip("/")


def test_what_stays_on_this_machine_goes_through_no_proxy(
    task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with careless_server() as server, connect(server, task) as executor:
        assert executor.capacity == 4


def test_no_file_is_sent_that_a_link_leads_to(task: Path, tmp_path: Path) -> None:
    (tmp_path / "private").write_text("mine")
    (task / "kernel.cu").symlink_to(tmp_path / "private")
    with careless_server() as server, pytest.raises(DeviceError, match="is a link that leads out"):
        connect(server, task)
    assert not server.requests


def test_the_status_of_a_server(task: Path) -> None:
    with careless_server() as server:
        assert server_status(server.url, HASTY).device == "model"
        with open_executor(DeviceSpec(server.url, task), 0) as executor:
            assert executor.capacity == 4
    with careless_server(says(404)) as server, pytest.raises(DeviceError, match="the same version"):
        server_status(server.url, HASTY)
