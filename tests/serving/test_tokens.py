"""Tokens are told once, kept nowhere, and read from nobody's file but one's own."""

from __future__ import annotations

import hmac
from pathlib import Path

import pytest
from click.testing import CliRunner

from mctskernel.cli import main
from mctskernel.serving.tokens import TokenError, add_client, clients_of, new_token, read_clients


def bearer(token: str) -> bytes:
    return f"Bearer {token}".encode()


def test_a_client_is_known_by_the_token_that_was_told(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    alice, bob = add_client(path, "alice"), add_client(path, "bob")
    clients = read_clients(path)

    assert clients.who(bearer(alice)) == "alice"
    assert clients.who(bearer(bob)) == "bob"
    assert alice not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "header", [b"", b"Bearer", b"Bearer ", b"Basic right", b"right", b"Bearer right2", b"\xff \xff"]
)
def test_nobody_else_is(header: bytes) -> None:
    assert clients_of({"alice": "right"}).who(header) is None


def test_whatever_is_wrong_every_digest_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(len(a)) or compare(a, b))
    clients = clients_of({"alice": "one", "bob": "two", "carol": "three"})
    for header in (bearer("one"), bearer("three"), bearer("wrong"), b"", b"Basic one"):
        compared.clear()
        clients.who(header)
        assert compared == [32, 32, 32]


def test_tokens_are_long_and_differ() -> None:
    tokens = {new_token() for _ in range(100)}

    assert len(tokens) == 100
    assert min(map(len, tokens)) >= 43


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "names no client"),
        ("# nobody\n", "names no client"),
        ("alice", "line 1"),
        ("alice secret", "line 1"),
        (f"alice {'0' * 64}\nalice {'1' * 64}", "there is a 'alice' already"),
        (f"al/ice {'0' * 64}", "line 1"),
        (f"alice {'0' * 64} more", "line 1"),
    ],
)
def test_another_file_is_refused_with_its_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    path.chmod(0o600)

    with pytest.raises(TokenError, match=reason):
        read_clients(path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "tokens"
    add_client(path, "alice")
    path.chmod(mode)

    with pytest.raises(TokenError, match="chmod 600"):
        read_clients(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(TokenError, match="can't be read"):
            read_clients(path)


def test_a_name_is_given_once_and_is_a_word(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    add_client(path, "alice")

    with pytest.raises(TokenError, match="already"):
        add_client(path, "alice")
    with pytest.raises(TokenError, match="name"):
        add_client(path, "a b")


def test_the_command_adds_a_client_and_serves_nobody(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    done = CliRunner().invoke(main, ["serve", "--tokens", str(path), "--add-client", "alice"])

    assert done.exit_code == 0, done.output
    token = done.output.partition("MCTSKERNEL_TOKEN=")[2].split()[0]
    assert read_clients(path).who(bearer(token)) == "alice"
    assert CliRunner().invoke(main, ["serve", "--add-client", "alice"]).exit_code == 2
    assert CliRunner().invoke(main, ["serve", "--tokens", str(path), "--add-client", "alice"]).exit_code == 2


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "gpu.example"])  # noqa: S104 - refused
def test_other_machines_are_let_in_with_tls_or_on_an_explicit_word(host: str) -> None:
    done = CliRunner().invoke(main, ["serve", "--host", host, "--device", "model"])

    assert done.exit_code == 2
    assert "--unencrypted" in done.output
