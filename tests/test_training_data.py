"""Lines of training data keep to their schema, say nothing that wasn't verified, and need linear time."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from mctskernel.cli import main
from mctskernel.core.evaluation import Outcome
from mctskernel.report.training_data import FORMATS, json_schema, write_lines
from tests.synthetic_run import EXCHANGE, SyntheticRun, failed, quarantined, timed


@pytest.fixture
def run(tmp_path: Path, small_task: Path) -> SyntheticRun:
    """root (100 us) -> tile (50) -> vector (20); beside them a tie, a failure, one too good, one that loses."""
    run = SyntheticRun(tmp_path / "run", small_task)
    tile, *_ = run.edits(
        0,
        ("tile", timed(50)),
        ("tie", timed(98)),
        ("broken", failed(Outcome.RACE)),
        ("cheat", quarantined(1)),
        ("loses", timed(300)),
    )
    run.edits(tile, ("vector", timed(20)), ("vectors", timed(21)), exchange=EXCHANGE)
    return run


def lines(run: SyntheticRun, kind: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in write_lines(run.folder, kind)]


@pytest.mark.parametrize("kind", list(FORMATS))
def test_every_line_keeps_to_the_schema_and_says_where_it_comes_from(run: SyntheticRun, kind: str) -> None:
    schema = json.loads(json_schema(kind))
    jsonschema.Draft202012Validator.check_schema(schema)
    found = lines(run, kind)
    assert found
    for line in found:
        jsonschema.validate(line, schema, cls=jsonschema.Draft202012Validator)
        provenance = line["provenance"]
        assert (line["schema"], provenance["schema_version"]) == (f"mctskernel.{kind}", 1)
        assert provenance["numbers"] == "modelled"
        assert provenance["versions"] == {"device": "model", "architecture": "sm_90"}
        assert provenance["models"] == ["a-model"]
        assert "licence" in provenance["licence"]
    assert len({line["provenance"]["run"] for line in found}) == 1


def test_sft_has_the_edits_that_gained_beyond_the_noise(run: SyntheticRun) -> None:
    found, steps = lines(run, "sft"), {line["action"]["node"]: line for line in lines(run, "rl")}
    chosen = [steps[line["node"]] for line in found]
    assert [step["action"]["title"] for step in chosen] == ["tile", "vector", "vectors"]
    assert found[0]["log_gain"] == pytest.approx(0.6931, abs=1e-3)
    assert chosen[0]["action"]["model"] == ""
    assert chosen[1]["action"]["reply"] == "BLOCK is too small."
    assert json.loads(chosen[1]["action"]["prompt"])[0]["content"] == "Faster!"
    state = chosen[1]["state"]
    assert state["lineage"] == ["tile (2.00x)"]
    for text in ("Twice the input.", "return 2 * x", "Limited by DRAM.", "tile (2.00x)", state["source"]):
        assert text.strip() in found[1]["prompt"][0]["content"]
    for block in chosen[1]["action"]["blocks"]:
        assert block["search"] in found[1]["completion"][0]["content"]


def test_blocks_make_the_source_that_was_verified(run: SyntheticRun) -> None:
    for line in lines(run, "rl"):
        source = line["state"]["source"]
        for block in line["action"]["blocks"]:
            assert source.count(block["search"]) == 1
            source = source.replace(block["search"], block["replace"])
        assert source == line["action"]["source"]


def test_preferences_are_certain(run: SyntheticRun) -> None:
    found = lines(run, "preference")
    titles = {line["action"]["node"]: line["action"]["title"] for line in lines(run, "rl")}
    pairs = [(titles[line["chosen_node"]], titles[line["rejected_node"]]) for line in found]
    assert pairs == [("tile", "tie"), ("tile", "broken"), ("tile", "cheat"), ("tile", "loses")]
    assert found[1]["log_gain"] is None
    assert all(line["chosen"] != line["rejected"] for line in found)


def test_rl_has_every_step_with_its_reward(run: SyntheticRun) -> None:
    found = lines(run, "rl")
    assert [line["action"]["node"] for line in found] == [1, 2, 3, 4, 5, 6, 7]
    assert [line["done"] for line in found] == [False, True, True, True, True, True, True]
    for line in found:
        assert line["reward"] == pytest.approx(sum(line["terms"].values()))
    rewards = {line["action"]["title"]: line["reward"] for line in found}
    assert rewards["vector"] > rewards["tile"] > rewards["tie"] > rewards["loses"] > rewards["broken"]
    # A time that isn't believed earns what a refused kernel does.
    assert rewards["cheat"] < rewards["broken"]
    assert found[-1]["state_reward"] == rewards["tile"]


def test_the_command(run: SyntheticRun) -> None:
    def export(*words: str) -> Any:
        return CliRunner().invoke(main, ["export", *words])

    path = str(run.folder.path)
    assert len(export(path, "--format", "sft").stdout.splitlines()) == 3
    assert len(json.loads(export(path).stdout)["nodes"]) == 8
    assert json.loads(export("--format", "rl", "--schema").stdout)["$defs"]["RlLine"]
    assert export("--schema").exit_code == 2
    assert export("--format", "rl").exit_code == 2
