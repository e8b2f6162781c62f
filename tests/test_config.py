"""The configuration of a search: tables of settings, and what is refused."""

from pathlib import Path

import msgspec
import pytest

from mctskernel.config import ConfigError, SearchConfig, check, merged, read_config, read_config_file
from mctskernel.core.budget import Budget
from mctskernel.core.executor import ExecutorOptions
from mctskernel.run import open_run, read_manifest
from tests.cli.command import flat, mctskernel

FILE = """\
seed = 3
strategy = "epsilon-net"
patience = 2
workers = 1
device = "model"

[budget]
evaluations = 2
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "search.toml"
    path.write_text(FILE)
    return path


def test_a_table_is_read_over_the_defaults() -> None:
    config = read_config({"budget": {"seconds": 60}, "proposer": "mixed", "llm": {"model": "m"}})
    assert config.budget == Budget(evaluations=200, seconds=60)
    assert (config.policy.patience, config.policy.repair) == (3, "at-once")
    assert config.llm
    assert msgspec.json.decode(msgspec.json.encode(config), type=SearchConfig) == config


def test_options_outweigh_a_file(file: Path, tmp_path: Path, small_task: Path) -> None:
    result = mctskernel("search", small_task, "--config", file, "--seed", 0, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    config = read_manifest(open_run(tmp_path / "run")).configuration
    assert (config.seed, config.device, config.budget.evaluations) == (0, "model", 2)
    assert config.policy.strategy == "epsilon-net"
    assert config.policy.patience == 2


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("seed", "sead", "There is no setting 'sead'. Did you mean 'seed'?"),
        (
            "evaluations",
            "evaluation",
            "There is no setting of budget 'evaluation'. Did you mean 'evaluations'?",
        ),
        ("seed = 3", 'seed = "three"', "seed: Expected `int`, got `str`."),
        ("patience", "patients", "There is no setting 'patients'. Did you mean 'patience'?"),
        ('"epsilon-net"', '"epsilon-not"', "There is no strategy 'epsilon-not'. Did you mean 'epsilon-net'?"),
        ("seed = 3", 'task = "softmax"', "There is no setting 'task'"),
        ("seed = 3", "seed 3", "is not valid TOML"),
    ],
)
def test_a_mistake_in_a_file_is_named(file: Path, old: str, new: str, says: str) -> None:
    file.write_text(FILE.replace(old, new, 1))
    result = mctskernel("search", "--config", file)
    assert result.exit_code == 2
    assert says in flat(result.stderr)


def test_settings_of_a_model_count_only_where_a_model_is_named(file: Path) -> None:
    file.write_text(FILE.replace("[budget]", "[llm]\nkey_variable = 3\n[budget]"))
    assert read_config(read_config_file(file)).llm is None


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (SearchConfig(device="modle"), "There is no device 'modle'. Did you mean 'model'?"),
        (SearchConfig(reward="tine"), "Did you mean 'time'?"),
        (SearchConfig(proposer="rule"), "Did you mean 'rules'?"),
        (SearchConfig(budget=Budget(seconds=0)), "budget.seconds: Expected `float` > 0.0"),
        (
            SearchConfig(device="model", executor=ExecutorOptions(gpus=("0",))),
            "--gpus is for --device gpu, not model",
        ),
        (SearchConfig(executor=ExecutorOptions("ray", ("0",))), "--gpus is for --executor local"),
        (SearchConfig(executor=ExecutorOptions(address="a:1")), "--ray-address is for --executor ray"),
    ],
)
def test_what_can_not_be_is_a_sentence(config: SearchConfig, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check(config)


def test_a_model_is_for_a_proposer_that_asks_it() -> None:
    with pytest.raises(ConfigError, match="--model is for --proposer llm or mixed"):
        check(read_config({"llm": {"model": "m"}}))


def test_tables_are_merged_field_by_field() -> None:
    assert merged({"a": 1, "t": {"x": 1, "y": 2}}, {"t": {"y": 3}}) == {"a": 1, "t": {"x": 1, "y": 3}}
