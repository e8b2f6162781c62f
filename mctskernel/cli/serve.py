"""`mctskernel serve`: this machine's evaluator for searches elsewhere."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import rich_click as click

from mctskernel.cli import options
from mctskernel.cli.errors import BAD_MACHINE
from mctskernel.cli.plain_console import PlainConsole, echo
from mctskernel.core.executor import LOCAL
from mctskernel.core.kernel import Language
from mctskernel.executors.http_api import ServerStatus
from mctskernel.executors.room import workers_on
from mctskernel.profiling.devices import default_kind
from mctskernel.serving.machine import shared_files
from mctskernel.serving.orphans import Nursery
from mctskernel.serving.settings import Limits, Settings
from mctskernel.serving.tokens import Clients, add_client, clients_of, new_token, read_clients

TOKEN_VARIABLE = "MCTSKERNEL_TOKEN"  # noqa: S105 - the name of one
ONLY_CLIENT = "client"


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="0 for any.")
@options.local_device
@options.architecture
@options.workers
@options.gpus
@options.counters
@click.option(
    "--tokens",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file of `NAME SHA256-OF-TOKEN` lines, one for each client. [default: one is made and told at the start]",
)
@click.option(
    "--add-client",
    "new_client",
    metavar="NAME",
    help="Add a client to --tokens, print its token, and do nothing else. Nobody can print it again.",
)
@click.option(
    "--certificate",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="For TLS: a certificate and what it rests on, as PEM.",
)
@click.option(
    "--key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="For TLS: the certificate's key.",
)
@click.option(
    "--unencrypted",
    is_flag=True,
    help="Let other machines in without TLS. Whoever sees the traffic then has the tokens, and with them this machine.",
)
@click.option(
    "--sessions",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="Tasks that may be open at a time; each has processes, and its tensors on the GPU.",
)
@click.option(
    "--client-sessions",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="The same for one client.",
)
@click.option(
    "--queue",
    type=click.IntRange(min=1),
    default=1024,
    show_default=True,
    help="Kernels of all clients that may wait.",
)
@click.option(
    "--client-queue",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="The same for one client, with its results that it hasn't fetched.",
)
@click.option(
    "--idle",
    type=click.FloatRange(min=1),
    default=300.0,
    show_default=True,
    help="Seconds without work after which a session's processes end. The next kernel starts them again.",
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Seconds that what is being judged has to finish when the server is told to end.",
)
@click.option(
    "--access-log",
    type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    help="Write a line for each request to a file, or to standard error (-).",
)
def serve(
    *,
    host: str,
    port: int,
    device: str,
    architecture: str,
    workers: int | None,
    gpus: tuple[str, ...],
    counters: str | None,
    tokens: Path | None,
    new_client: str | None,
    certificate: Path | None,
    key: Path | None,
    unencrypted: bool,
    sessions: int,
    client_sessions: int,
    queue: int,
    client_queue: int,
    idle: float,
    grace: float,
    access_log: Path | None,
) -> None:
    """Judge kernels for searches on other machines, over HTTP.

    A search that is told `--device http://HOST:PORT` proposes there and builds, verifies and times here. A client that
    has a token can run code on this machine: a task's reference. docs/serving.md says what keeps it in bounds. Needs
    `pip install "mctskernel[serve]"`.

        mctskernel serve

        mctskernel serve --tokens clients.txt --add-client alice

        mctskernel serve --host 0.0.0.0 --tokens clients.txt --certificate cert.pem --key key.pem
    """
    try:
        from mctskernel.serving.server import Address, Server  # noqa: PLC0415 - an extra that may be missing
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("mctskernel"):
            raise
        echo(f'mctskernel: {error.name} is missing: pip install "mctskernel[serve]"', err=True)
        sys.exit(BAD_MACHINE)
    if new_client is not None:
        _add_client(tokens, new_client)
        return
    if (certificate is None) != (key is None):
        raise click.UsageError("--certificate and --key go together.")
    address = Address(host, port, certificate, key)
    if not address.is_loopback and certificate is None and not unencrypted:
        raise click.UsageError(
            f"{host} is reached by other machines, and without TLS whoever sees the traffic has the tokens: give "
            "--certificate and --key, or listen on 127.0.0.1 and forward the port with ssh, or say --unencrypted."
        )
    kind = default_kind() if device == "auto" else device
    limits = replace(
        Limits(),
        sessions=sessions,
        client_sessions=client_sessions,
        queue=queue,
        client_queue=client_queue,
        idle_seconds=idle,
        grace_seconds=grace,
    )
    executor = options.executor_options(kind, None, gpus, "", counters) or LOCAL
    workers = workers or workers_on(kind, Language.CUDA, executor)
    settings = Settings(kind, architecture, workers, executor, limits, shared_files(kind, architecture, gpus))
    _log_requests(access_log)
    nursery = Nursery()
    nursery.adopt()
    with address.listen() as listening:
        clients = _clients(tokens)
        on = f"a model of {architecture}" if kind == "model" else "the GPUs of this machine"
        echo(f"Judging on {on} at {address.url(listening)}; Ctrl-C ends it.")
        with _shown() as show:
            Server(settings, clients, address, echo, show, nursery=nursery).run(listening)


def _clients(path: Path | None) -> Clients:
    if path is not None:
        return read_clients(path)
    token = new_token()
    echo(
        f"The token of this server, told only now, for its clients' environment:\n\n    {TOKEN_VARIABLE}={token}\n"
    )
    return clients_of({ONLY_CLIENT: token})


def _add_client(path: Path | None, name: str) -> None:
    if path is None:
        raise click.UsageError("--add-client needs --tokens, the file to add it to.")
    token = add_client(path, name)
    echo(f"The token of {name}, told only now, for its environment:\n\n    {TOKEN_VARIABLE}={token}\n")


def _log_requests(path: Path | None) -> None:
    if path is None:
        return
    handler = logging.StreamHandler() if str(path) == "-" else logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log = logging.getLogger("mctskernel.serving.access")
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    log.propagate = False


@contextmanager
def _shown() -> Iterator[Callable[[ServerStatus], None]]:
    """A line on a terminal that says how busy the server is; nothing elsewhere."""
    console = PlainConsole(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("") as line:
        yield lambda now: line.update(
            f"{now.sessions} sessions open, {now.queued} kernels waiting, {now.running} being judged"
        )
