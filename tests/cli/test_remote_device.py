"""Commands on another machine's device: searched, gone on with, measured, and refused in sentences."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from mctskernel.cli import main
from mctskernel.core.evaluation import Evaluation, Outcome, Source, Timing
from mctskernel.core.kernel import Kernel
from mctskernel.executors.remote.address import TOKEN_VARIABLE
from mctskernel.report.view import load_view
from tests.executors import careless_server as careless
from tests.executors.careless_server import TOKEN, CarelessServer, careless_server

GPU = {"device": "gpu", "gpu": "NVIDIA H100 80GB HBM3", "architecture": "sm_90", "uuid": "GPU-1"}


def judge(kernel: Kernel) -> Evaluation:
    """Any time, and always the same for the same kernel."""
    seconds = 1e-3 + 1e-6 * (hashlib.sha256(kernel.source.encode()).digest()[0])
    timings = (Timing("n=4096", seconds, seconds, seconds),)
    return Evaluation(Outcome.OK, Source.MEASURED, timings=timings, stage_seconds={"time": 0.1})


@pytest.fixture(autouse=True)
def a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)


@pytest.fixture
def server() -> Iterator[CarelessServer]:
    with careless_server(judge=judge, fingerprint=dict(GPU), source="measured") as found:
        yield found


def mctskernel(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def search(server: CarelessServer, task: Path, run: Path) -> Result:
    return mctskernel("search", task, "--device", f"{server.url}/", "--budget", "4", "--out", run)


def test_a_search_there_is_a_run_here(server: CarelessServer, small_task: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = search(server, small_task, run)
    assert result.exit_code == 0, result.output
    assert f"on {server.url} with all its workers" in result.output
    assert "measured" in result.output and "modelled" not in result.output
    assert "No counters." in result.output, "what the server's machine lacks"
    view = load_view(run)
    assert view.manifest.fingerprint == GPU
    assert view.manifest.configuration.device == server.url
    assert view.device == f"{server.url}, NVIDIA H100 80GB HBM3"
    assert view.tree.evaluations == 4
    assert all(TOKEN.encode() not in file.read_bytes() for file in run.rglob("*") if file.is_file())


def test_a_run_is_gone_on_with_at_another_address_of_the_same_machine_alone(
    server: CarelessServer, small_task: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert search(server, small_task, run).exit_code == 0
    with careless_server(judge=judge, fingerprint=dict(GPU), source="measured") as same:
        result = mctskernel("resume", run, "--budget", "6", "--device", same.url)
        assert result.exit_code == 0, result.output
        assert same.judged
    with careless_server(judge=judge, fingerprint={**GPU, "uuid": "GPU-2"}, source="measured") as other:
        result = mctskernel("resume", run, "--budget", "8", "--device", other.url)
        assert (result.exit_code, "uuid = GPU-1; here it is GPU-2" in result.output) == (4, True)
        assert not other.judged
    assert load_view(run).tree.evaluations == 6


def test_a_run_is_measured_there(server: CarelessServer, small_task: Path, tmp_path: Path) -> None:
    assert search(server, small_task, tmp_path / "run").exit_code == 0
    before = server.judged.total()
    result = mctskernel("measure", tmp_path / "run", "--device", server.url, "--out", tmp_path / "measured")
    assert result.exit_code == 0, result.output
    assert server.judged.total() > before
    assert load_view(tmp_path / "measured").manifest.configuration.device == server.url


def test_a_model_there_is_searched_as_a_model_is(small_task: Path, tmp_path: Path) -> None:
    def modelled(kernel: Kernel) -> Evaluation:
        return msgspec.convert({**msgspec.to_builtins(judge(kernel)), "source": "modelled"}, Evaluation)

    with careless_server(judge=modelled) as server:
        result = search(server, small_task, tmp_path / "run")
        assert result.exit_code == 0, result.output
    assert "modelled" in result.output and "measured" not in result.output
    assert load_view(tmp_path / "run").manifest.configuration.policy.strategy == "mcts"


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (
            ("--device", "tpu"),
            2,
            "'tpu' is neither one of auto, gpu, model, recorded nor the URL of a server",
        ),
        (("--device", "http://me:secret@there"), 2, "put the token into MCTSKERNEL_TOKEN"),
        (("--device", "http://there:8765"), 5, "isn't encrypted"),
        (("--device", "http://127.0.0.1:9", "--gpus", "0"), 2, "--gpus is for --device gpu"),
        (("--device", "http://127.0.0.1:9", "--executor", "ray"), 2, "--executor ray is for this machine's"),
    ],
)
def test_what_can_not_be_is_a_sentence_before_there_is_a_run(
    small_task: Path, tmp_path: Path, words: tuple[str, ...], code: int, sentence: str
) -> None:
    result = mctskernel("search", small_task, *words, "--out", tmp_path / "run")
    assert (result.exit_code, sentence in " ".join(result.output.replace("│", " ").split())) == (
        code,
        True,
    ), result.output
    assert "secret" not in result.output
    assert not (tmp_path / "run").exists()


def test_a_refused_token_is_a_sentence_before_there_is_a_run(small_task: Path, tmp_path: Path) -> None:
    with careless_server(careless.refuses(401, "Nobody has it.")) as server:
        result = search(server, small_task, tmp_path / "run")
    assert (result.exit_code, "refuses the token in MCTSKERNEL_TOKEN" in result.output) == (5, True)
    assert not (tmp_path / "run").exists()
