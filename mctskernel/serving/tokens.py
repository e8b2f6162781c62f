"""Who may use a server: clients by name, each with the digest of a token that was told once and is kept nowhere."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mctskernel.core.user_errors import MisuseError

MAX_BYTES = 1 << 20
_TOKEN_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class TokenError(MisuseError, ValueError):
    """A file of tokens that can't be used; the message is a sentence that says what to do."""


@dataclass(frozen=True)
class Clients:
    """The clients of a server: SHA-256 digests of their tokens by name."""

    digests: Mapping[str, bytes]

    def who(self, authorization: bytes) -> str | None:
        """The client whose token an `Authorization` header carries.

        It takes as long whatever is wrong: every digest is compared, and whole.
        """
        scheme, _, token = authorization.partition(b" ")
        given = hashlib.sha256(token.strip()).digest()
        found = None
        for name, digest in self.digests.items():
            if hmac.compare_digest(given, digest):
                found = name
        return found if scheme.lower() == b"bearer" else None


def new_token() -> str:
    """A token that nobody can guess."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def clients_of(tokens: Mapping[str, str]) -> Clients:
    """Clients by the tokens themselves."""
    return Clients({name: hashlib.sha256(token.encode()).digest() for name, token in tokens.items()})


def read_clients(path: Path) -> Clients:
    """The clients of a file of lines `NAME SHA256`; `#` begins a remark. Raises TokenError."""
    digests: dict[str, bytes] = {}
    for number, line in enumerate(_read_private(path).splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or not _NAME.fullmatch(words[0]) or not _DIGEST.fullmatch(words[1]):
            raise TokenError(f"{path}, line {number}: a line holds a name and the SHA-256 of a token.")
        name, digest = words
        if name in digests:
            raise TokenError(f"{path}, line {number}: there is a '{name}' already.")
        digests[name] = bytes.fromhex(digest)
    if not digests:
        raise TokenError(
            f"{path} names no client: `mctskernel serve --tokens {path} --add-client NAME` adds one."
        )
    return Clients(digests)


def add_client(path: Path, name: str) -> str:
    """Add a client to a file, made if there is none; the new client's token. Raises TokenError."""
    if not _NAME.fullmatch(name):
        raise TokenError(
            f"A client's name has up to 64 letters, digits, '_', '-' and '.', unlike {name[:100]!r}."
        )
    if path.exists() and any(line.split()[:1] == [name] for line in _read_private(path).splitlines()):
        raise TokenError(f"{path} has a '{name}' already: delete its line to give it another token.")
    token = new_token()
    digest = hashlib.sha256(token.encode()).hexdigest()
    try:
        opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with open(opened, "a", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
            file.write(f"{name} {digest}\n")
    except OSError as error:
        raise TokenError(f"{path} can't be written: {error.strerror}.") from error
    return token


def _read_private(path: Path) -> str:
    """The text of a file that nobody else can read or write."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise TokenError(f"{path} is not a file.")
            if mode & 0o077:
                raise TokenError(
                    f"{path} can be used by others than its owner: `chmod 600 {path}` mends that."
                )
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise TokenError(f"{path} can't be read: {error.strerror}.") from error
    if len(data) > MAX_BYTES:
        raise TokenError(f"{path} is larger than {MAX_BYTES >> 20} MiB.")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise TokenError(f"{path} is not text.") from error
