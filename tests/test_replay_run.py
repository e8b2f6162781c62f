"""A run that asked a model, repeated without one: the same tree, whatever comes in which order."""

import json
import random
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mctskernel.config import SearchConfig
from mctskernel.core.budget import Budget
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.task import Task
from mctskernel.edits.llm.experts import MixtureOptions
from mctskernel.edits.llm.model import LLMOptions
from mctskernel.loop import StopReason
from mctskernel.run.repeating import replay
from mctskernel.run.search import begin
from mctskernel.tasks.builtin import find_task
from mctskernel.tree.events import Duplicated, Event, Proposed, Refused, Submitted
from mctskernel.tree.journal import read_events
from mctskernel.tree.policy import Policy
from tests import landscape
from tests.edits.llm.loopback import Behaviour, Received, Server, fails, replies
from tests.edits.llm.scripted import a_reply, an_edit

NODES = 100


class Thinker(Server):
    """Steps over the landscape, at its own pace; now and then it fails, rambles, or forgets to close a brace."""

    def next_behaviour(self, request: Received) -> Behaviour:
        number = len(self.received)
        super().next_behaviour(request)
        time.sleep(random.Random(number).choice((0.0, 0.002, 0.01)))  # noqa: S311 - repeatable, not secret
        if number == 5:
            return fails(503)
        if number % 7 == 3:
            return replies("I would rather talk about the weather.")
        reply = a_reply(*steps(request.body))
        return replies(reply[:-20]) if number % 5 == 4 else replies(reply)


def steps(body: dict[str, Any]) -> Iterator[dict[str, object]]:
    prompt = json.dumps(body["messages"])
    for name, step in (("X", 1), ("Y", 1), ("X", -1), ("Y", -1)):
        found = re.findall(rf"#define {name} (-?\d+)", prompt)
        line = f"#define {name} {found[-1]}"
        yield an_edit(f"{name} {step:+}", (line, f"#define {name} {int(found[-1]) + step}"))


class Shuffled(landscape.InProcess):
    """Finishes any of what is in flight."""

    def wait(self, timeout: float | None = None) -> list[tuple[int, Evaluation]]:
        random.shuffle(self._waiting)
        return super().wait(timeout)


def unchecked(folder: Path) -> Task:
    """The landscape's task, which has no reference to try."""
    return landscape.replace(landscape.task(folder), verify_shapes=())


@pytest.fixture(scope="module", autouse=True)
def _on_the_landscape() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        landscape.stand_in(monkeypatch).append(lambda: Shuffled(4))
        monkeypatch.setattr("mctskernel.run.search.load_task", lambda folder, _language: unchecked(folder))
        monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-of-the-test")
        yield


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a hundred nodes, with four evaluations and three requests in flight."""
    folder = tmp_path_factory.mktemp("recorded")
    with Thinker([replies()]) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        configuration = SearchConfig(
            task="bowl",
            device="model",
            proposer="llm",
            seed=3,
            workers=4,
            budget=Budget(evaluations=NODES),
            policy=Policy(patience=3),
            llm=LLMOptions(model="thinker", base_url=server.url, retries=2),
            mixture=MixtureOptions(in_flight=3),
        )
        search_result = begin(folder / "run", find_task("softmax"), configuration)
        server.shutdown()
    assert search_result.stop_reason is StopReason.BUDGET
    return folder / "run"


def decisions(run: Path) -> list[tuple[object, ...]]:
    """What was decided, and what proposed, without when and for how much."""
    return [each for event in read_events(run / "journal.jsonl") if (each := decision(event))]


def decision(event: Event) -> tuple[object, ...]:
    match event:
        case Submitted():
            return event.node, event.kernel, event.parent, event.edit
        case Duplicated():
            return event.node, event.edit, event.of
        case Refused():
            return event.node, event.edit, event.reason
        case Proposed():
            return event.node, event.edits, event.dropped
        case _:
            return ()


def test_a_replay_makes_the_same_tree_without_model_key_or_money(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    search_result, difference = replay(recorded.parent / "again", recorded)
    assert difference == ""
    assert search_result.tree.evaluations == NODES
    whole = decisions(recorded)
    # What was in flight when the budget was spent is given up in the one and never asked for in the other.
    assert decisions(recorded.parent / "again")[: len(whole) - 3] == whole[:-3]
    spent = [
        exchange
        for event in read_events(recorded.parent / "again" / "journal.jsonl")
        if isinstance(event, Proposed)
        for exchange in event.exchanges
    ]
    assert spent
    assert not any(exchange.dollars for exchange in spent)


def test_a_replay_that_goes_another_way_says_from_where(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    better = landscape.kernel(2, 2)

    def otherwise(folder: Path, _language: object) -> object:
        return landscape.replace(unchecked(folder), starting_kernel=better)

    monkeypatch.setattr("mctskernel.run.search.load_task", otherwise)
    monkeypatch.setattr(
        "mctskernel.run.RunFolder.load_task",
        lambda folder: landscape.replace(landscape.task(folder.task), starting_kernel=better),
    )
    search_result, difference = replay(recorded.parent / "otherwise", recorded)
    assert "Node 0 is another" in difference
    assert search_result.stop_reason in (StopReason.BUDGET, StopReason.SILENCE, StopReason.EXHAUSTED)


def test_no_secret_is_written_down(recorded: Path) -> None:
    files = [path.read_bytes() for path in recorded.rglob("*") if path.is_file()]
    assert not any(b"sk-secret" in each for each in files)
    assert any(b"weather" in each for each in files), "or nothing of the conversation is here"
