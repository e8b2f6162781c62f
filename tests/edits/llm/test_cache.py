"""Replies to identical calls come from a folder."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mctskernel.core.proposer import Loss, Purpose
from mctskernel.edits.llm.model import Call, Message, OpenModel
from mctskernel.edits.llm.opening import open_model
from mctskernel.edits.llm.options import LLMOptions, ModelError
from tests.edits.llm.loopback import Behaviour, Server, fails, replies, serving

CALL = Call(
    Purpose.PROPOSE, (Message("user", "Make it faster."),), schema={"a": 1, "b": 2}, seed=3, expert="memory"
)


@contextmanager
def caching(server: Server, folder: Path, **options: Any) -> Iterator[OpenModel]:
    configured = LLMOptions("m", base_url=server.url, cache=str(folder), retries=0, **options)
    with open_model(configured) as model:
        yield model


def test_an_identical_call_is_answered_free_of_charge_in_a_later_search_too(tmp_path: Path) -> None:
    with serving(replies("an edit")) as server:
        with caching(server, tmp_path) as model:
            first = model.complete(CALL)
        with caching(server, tmp_path) as model:
            again = model.complete(replace(CALL, schema={"b": 2, "a": 1}))
        assert len(server.received) == 1
    assert (again.reply, again.recorded, again.requests, again.dollars) == ("an edit", True, 0, 0.0)
    assert not first.recorded
    assert (again.prompt, again.model, again.expert) == (first.prompt, first.model, first.expert)
    assert (again.input_tokens, again.output_tokens) == (first.input_tokens, first.output_tokens)


OTHERS = {
    "message": replace(CALL, messages=(Message("user", "Make it faster!"),)),
    "role": replace(CALL, messages=(Message("system", "Make it faster."),)),
    "schema": replace(CALL, schema=None),
    "model": replace(CALL, model="other"),
    "temperature": replace(CALL, temperature=0.1),
    "seed": replace(CALL, seed=4),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_another_call_is_asked(other: Call, tmp_path: Path) -> None:
    with serving(replies()) as server, caching(server, tmp_path) as model:
        model.complete(CALL)
        assert not model.complete(other).recorded
        assert len(server.received) == 2


def test_another_server_is_another_model(tmp_path: Path) -> None:
    with serving(replies("one")) as one, serving(replies("two")) as two:
        with caching(one, tmp_path) as model:
            model.complete(CALL)
        with caching(two, tmp_path) as model:
            assert model.complete(CALL).reply == "two"


NOT_WHOLE: dict[str, tuple[Behaviour, Loss]] = {
    "failure": (fails(500), Loss.NO_REPLY),
    "cut off": (replies("an ed", finish="length"), Loss.CUT_OFF),
    "refusal": (replies(None, refusal="No."), Loss.REFUSAL),
    "empty": (replies(""), Loss.EMPTY),
}


@pytest.mark.parametrize(("behaviour", "loss"), NOT_WHOLE.values(), ids=NOT_WHOLE)
def test_only_whole_replies_are_kept(behaviour: Behaviour, loss: Loss, tmp_path: Path) -> None:
    with serving(behaviour, replies("an edit")) as server, caching(server, tmp_path) as model:
        assert model.complete(CALL).loss is loss
        assert model.complete(CALL).reply == "an edit"


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b'{"reply": 3}', b"[]"])
def test_a_damaged_file_is_written_anew(content: bytes, tmp_path: Path) -> None:
    with serving(replies("an edit")) as server, caching(server, tmp_path) as model:
        model.complete(CALL)
        (file,) = tmp_path.rglob("*.json")
        file.write_bytes(content)
        assert not model.complete(CALL).recorded
        assert model.complete(CALL).recorded


def test_replies_are_for_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "replies"
    with serving(replies()) as server, caching(server, folder) as model:
        model.complete(CALL)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_made_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="--cache"):
        open_model(LLMOptions("m", base_url="http://localhost:1/v1", cache=str(tmp_path / "file" / "x")))
