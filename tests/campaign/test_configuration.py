"""The file of a campaign: what it says, and the sentence for whatever is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mctskernel.campaign.configuration import (
    Campaign,
    CampaignError,
    Limits,
    example,
    parse_campaign,
    read_campaign,
)
from mctskernel.core.kernel import Language
from mctskernel.run import Budget

BUDGET = "[budget]\nevaluations = 20\n"
SOFTMAX = '[[task]]\ntask = "softmax"\nshare = 0.5\n'


def parsed(*parts: str) -> Campaign:
    return parse_campaign("\n".join(parts))


def test_the_example_is_a_campaign() -> None:
    found = parse_campaign(example())
    assert [task.name for task in found.tasks] == ["softmax", "layernorm", "mlp_activation"]
    assert [task.seconds for task in found.tasks] == [0.30, 0.15, 0.20]
    assert not found.in_seconds
    assert found.model_seconds == 1.0
    assert found.budget == Budget(evaluations=60)
    assert found.tasks[2].limits == Limits(evaluations=30)
    assert found.tasks[2].settings.policy == {"strategy": "mcts"}


def test_settings_of_a_task_come_over_those_that_all_share() -> None:
    found = parsed(
        BUDGET,
        '[search]\nlanguage = "triton"\nexploration = 0.5\nstrategy = "mcts"',
        '[[task]]\ntask = "folder/first"\nshare = 0.5\n',
        '[[task]]\ntask = "folder/second"\nshare = 0.25\nlanguage = "cuda"\nexploration = 0.25',
    )
    first, second = found.tasks
    assert (first.name, second.name) == ("first", "second")
    assert (first.settings.language, second.settings.language) == (Language.TRITON, Language.CUDA)
    assert first.settings.policy == {"strategy": "mcts", "exploration": 0.5}
    assert second.settings.policy == {"strategy": "mcts", "exploration": 0.25}


def test_seconds_and_calls_are_the_tasks_part_of_a_known_time() -> None:
    tasks = '[[task]]\ntask = "a"\nseconds = 1e-3\ncalls = 4\n[[task]]\ntask = "b"\nseconds = 2e-3\n'
    alone, whole = parsed(BUDGET, tasks), parsed("model_seconds = 0.01", BUDGET, tasks)
    assert alone.in_seconds
    assert [task.seconds for task in alone.tasks] == [4e-3, 2e-3]
    assert (alone.model_seconds, whole.model_seconds) == (pytest.approx(6e-3), 0.01)
    shares = parsed("model_seconds = 0.01", BUDGET, SOFTMAX)
    assert shares.in_seconds
    assert shares.tasks[0].seconds == 0.005


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (("[budget", SOFTMAX), "is not valid TOML"),
        (("bugdet = 3", BUDGET, SOFTMAX), "no field of a configuration 'bugdet'. Did you mean 'budget'?"),
        (("[budget]", SOFTMAX), "[budget] limits nothing"),
        (("[budget]\nevaluation = 3", SOFTMAX), "no field of [budget] 'evaluation'"),
        (("[budget]\nevaluations = 0", SOFTMAX), "$.budget.evaluations"),
        ((SOFTMAX,), "`budget`"),
        ((BUDGET,), "`task`"),
        (('device = "gppu"', BUDGET, SOFTMAX), "no device 'gppu'. Did you mean 'gpu'?"),
        ((BUDGET, '[executor]\nengine = "rey"', SOFTMAX), "no engine (in [executor]) 'rey'"),
        (
            ('device = "model"', BUDGET, '[executor]\ngpus = ["0"]', SOFTMAX),
            "[executor] gpus are this machine's",
        ),
        ((BUDGET, '[executor]\naddress = "here:1"', SOFTMAX), "it goes with engine ray"),
        (('device = "recorded"', BUDGET, '[executor]\nengine = "ray"', SOFTMAX), "not recorded"),
        ((BUDGET, SOFTMAX, "shares = 0.2"), "no field of [[task]] 1 'shares'. Did you mean 'share'?"),
        ((BUDGET, SOFTMAX, 'strategy = "mtcs"'), "no strategy (in [[task]] 'softmax') 'mtcs'"),
        ((BUDGET, SOFTMAX, "exploration = 'much'"), "[[task]] 'softmax': exploration"),
        ((BUDGET, SOFTMAX, "workers = 2"), "no field of [[task]] 1 'workers'"),
        ((BUDGET, SOFTMAX, "limits = { evaluation = 2 }"), "no limit of [[task]] 1 'evaluation'"),
        ((BUDGET, "[search]\npropser = 'rules'", SOFTMAX), "no setting of [search] 'propser'"),
        ((BUDGET, SOFTMAX, "proposer = 'llm'"), "asks a language model"),
        ((BUDGET, SOFTMAX, SOFTMAX), "Two tasks are called 'softmax'"),
        ((BUDGET, SOFTMAX, SOFTMAX.replace("0.5", "0.6"), "name = 'other'"), "1.100 of the model's time"),
        ((BUDGET, SOFTMAX, "seconds = 1e-3"), "its share of the model's time, or its seconds"),
        ((BUDGET, '[[task]]\ntask = "softmax"'), "its share of the model's time, or its seconds"),
        ((BUDGET, SOFTMAX, "calls = 2"), "a share is of all calls together"),
        ((BUDGET, SOFTMAX, '[[task]]\ntask = "sum"\nseconds = 1e-3'), "can't be added up"),
        ((BUDGET, SOFTMAX.replace("0.5", "1.5")), "$.share"),
        ((BUDGET, SOFTMAX, "name = '../up'"), "a name that a folder can have"),
        (("model_seconds = 1e-3", BUDGET, '[[task]]\ntask = "a"\nseconds = 1.0'), "more than model_seconds"),
    ],
)
def test_what_is_wrong_is_said_with_its_key(parts: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(CampaignError) as error:
        parsed(*parts)
    assert sentence in str(error.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CampaignError, match=r"absent\.toml can't be read"):
        read_campaign(tmp_path / "absent.toml")
