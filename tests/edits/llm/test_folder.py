"""A model that answers by files."""

from pathlib import Path

import pytest

from mctskernel.core.proposer import Loss, Purpose
from mctskernel.edits.llm import open_model
from mctskernel.edits.llm.model import Call, LLMOptions, Message, ModelError


def test_a_prompt_is_a_file_until_another_one_answers_it(tmp_path: Path) -> None:
    options = LLMOptions("somebody", f"file:{tmp_path / 'replies'}")
    call = Call(
        Purpose.GENERATE, (Message("system", "Be fast."), Message("user", "A kernel?")), expert="memory"
    )
    asked = [open_model(options).complete(call) for _ in range(2)]
    assert [each.loss for each in asked] == [Loss.NO_REPLY] * 2
    (prompt,) = (tmp_path / "replies").iterdir()
    assert prompt.name in asked[0].problem
    assert prompt.read_text() == "Be fast.\nA kernel?"
    prompt.with_suffix(".reply.md").write_text("Here.")
    model = open_model(options)
    answered, again = model.complete(call), model.complete(call)
    assert (answered.reply, answered.model, answered.loss) == ("Here.", "somebody", None)
    assert again.loss is Loss.NO_REPLY
    assert len(list((tmp_path / "replies").iterdir())) == 3


def test_a_folder_that_cant_be_made_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="can't be a folder of replies"):
        open_model(LLMOptions("somebody", f"file:{tmp_path / 'file'}"))
