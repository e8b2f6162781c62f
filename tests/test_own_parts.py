"""The example package with a strategy, a reward, a proposer and a device, where each process finds them by name."""

import tomllib
from pathlib import Path

import pytest

from mctskernel.report.view import load_view
from tests.cli.command import flat, mctskernel
from tests.spaces import saved

PACKAGE = Path(__file__).parents[1] / "docs" / "examples" / "own_parts"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package as pip leaves it: the module, and the entry points of its pyproject.toml."""
    entries = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]["entry-points"]
    metadata = tmp_path / "site" / "own_parts-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: own-parts\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "\n".join(
            f"[{group}]\n" + "\n".join(f"{name} = {path}" for name, path in names.items())
            for group, names in entries.items()
        )
    )
    monkeypatch.syspath_prepend(PACKAGE)
    monkeypatch.syspath_prepend(metadata.parent)


@pytest.fixture
def space(tmp_path: Path) -> Path:
    return saved(tmp_path)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("strategy", "reward"), [("newest", "lean"), ("own_parts:Newest", "own_parts:lean")])
def test_own_parts_search_and_resume(space: Path, tmp_path: Path, strategy: str, reward: str) -> None:
    run = tmp_path / "run"
    words = ("--strategy", strategy, "--policy", "width=2", "--reward", reward, "--budget", 5)
    result = mctskernel("search", "--space", space, *words, "--out", run)
    assert result.exit_code == 0, result.output
    result = mctskernel("resume", run, "--budget", 9)
    assert result.exit_code == 0, result.output
    view = load_view(run)
    assert view.tree.evaluations == 9
    assert view.tree.policy.strategy == strategy
    assert all(
        "registers" in node.score.terms for node in view.tree.nodes if node.score and node.evaluation.ok
    )


@pytest.mark.usefixtures("installed")
def test_an_own_proposer_searches(tmp_path: Path, small_task: Path) -> None:
    words = ("--device", "model", "--proposer", "few", "--budget", 2, "--out", tmp_path / "run")
    result = mctskernel("search", small_task, *words)
    assert result.exit_code == 0, result.output
    assert len(load_view(tmp_path / "run").tree.nodes[0].edits) <= 3


@pytest.mark.usefixtures("installed")
def test_an_own_device_evaluates(tmp_path: Path, small_task: Path) -> None:
    run = tmp_path / "run"
    result = mctskernel("search", small_task, "--device", "lines", "--budget", 3, "--out", run)
    assert result.exit_code == 0, result.output
    result = mctskernel("resume", run, "--budget", 5)
    assert result.exit_code == 0, result.output
    view = load_view(run)
    assert view.tree.evaluations == 5
    lines = len((small_task / "kernel.cu").read_text().splitlines())
    assert view.tree.nodes[0].evaluation.timings[0].seconds == pytest.approx(1e-6 * lines)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_own_strategy_is_an_arm(space: Path, tmp_path: Path, jobs: int) -> None:
    file = tmp_path / "ablation.toml"
    file.write_text(
        f'title = "Own"\nbaseline = "random"\nspaces = ["{space}"]\nseeds = 1\n[budget]\nevaluations = 4\n'
        '[[arms]]\nname = "random"\nstrategy = "random"\n'
        '[[arms]]\nname = "newest"\nstrategy = "newest"\nwidth = 2\n'
    )
    result = mctskernel("ablate", file, "--jobs", jobs, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output


@pytest.mark.usefixtures("installed")
def test_a_run_whose_reward_is_gone_says_which(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    mctskernel("search", "--space", space, "--reward", "lean", "--budget", 3, "--out", run)
    monkeypatch.undo()
    result = mctskernel("resume", run, "--budget", 9)
    assert result.exit_code == 2
    assert "There is no reward 'lean'" in flat(result.stderr)
