"""A search here whose kernels are judged by a server: what it finds is what it finds without one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from mctskernel.cli import main
from mctskernel.executors.remote.address import TOKEN_VARIABLE
from mctskernel.report.view import View, load_view
from mctskernel.serving.server import Address, Server
from mctskernel.serving.settings import Settings
from mctskernel.serving.tokens import clients_of

TOKEN = "the-token-of-alice"  # noqa: S105 - of this test


@contextmanager
def serving() -> Iterator[str]:
    """A server that models, in a thread; its URL."""
    address = Address(port=0)
    listening = address.listen()
    url = address.url(listening)
    server = Server(Settings("model"), clients_of({"alice": TOKEN}), address)
    thread = threading.Thread(target=server.run, args=(listening,))
    thread.start()
    try:
        yield url
    finally:
        server.stop()
        server.stop()
        thread.join(30)


def searched(task: Path, device: str, run: Path) -> View:
    words = ("search", str(task), "--device", device, "--workers", "1", "--budget", "3", "--out", str(run))
    result = CliRunner().invoke(main, [*words, "--strategy", "mcts"])
    assert result.exit_code == 0, result.output
    return load_view(run)


def test_a_search_finds_there_what_it_finds_here(
    small_task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    here = searched(small_task, "model", tmp_path / "here")
    with serving() as url:
        there = searched(small_task, url, tmp_path / "there")
    assert there.manifest.fingerprint == here.manifest.fingerprint
    assert [_what(there, node.id) for node in there.tree.nodes] == [
        _what(here, node.id) for node in here.tree.nodes
    ]
    assert there.answer is not None and here.answer is not None
    assert (there.answer.node, there.answer.speedup) == (here.answer.node, here.answer.speedup)


def _what(view: View, node: int) -> object:
    """A node without what it cost."""
    evaluation = view.evaluation(node)
    return view.source(node), evaluation.outcome, evaluation.source, evaluation.timings, evaluation.checks


def test_answers_are_not_held_back_until_there_is_more_to_send() -> None:
    with Address(port=0).listen() as listening:
        client = socket.create_connection(listening.getsockname())
        accepted, _ = listening.accept()
        with client, accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
