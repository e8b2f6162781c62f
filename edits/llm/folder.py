"""A model that answers by files, for people and programs without a server: `NAME.md` asks, `NAME.reply.md` answers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from mctskernel.core.proposer import Exchange, Loss
from mctskernel.edits.llm.model import Call, Message, ModelError, clean, encode

MOST_CHARACTERS = 400_000  # of a reply
_SUBJECT_DIGITS = 8


class FolderModel:
    """Writes each prompt into a folder and reads its reply there, without waiting for it.

    A prompt's name says its purpose, its expert, the kernel that it is about, and how many were answered before. So a
    command that is repeated, also on another machine, gets the same replies until it has new questions.
    """

    def __init__(self, folder: Path, model: str) -> None:
        self._folder, self._model = folder, model
        self._answered: Counter[str] = Counter()
        self._lock = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ModelError(f"{folder} can't be a folder of replies: {error.strerror or error}.") from error

    def complete(self, call: Call) -> Exchange:
        """The reply to a prompt; an exchange with a problem that names its file if there is none yet."""
        about = "-".join(filter(None, (call.purpose, call.expert, call.subject[:_SUBJECT_DIGITS])))
        exchange = Exchange(call.purpose, self._model, encode(call.messages), reply="", expert=call.expert)
        with self._lock:
            file = self._folder / f"{about}-{self._answered[about] + 1}.md"
            file.write_text(clean(_text(call.messages)), "utf-8")
            answer = file.with_suffix(".reply.md")
            if answer.is_file():
                self._answered[about] += 1
                return msgspec.structs.replace(
                    exchange, reply=answer.read_text("utf-8", "replace")[:MOST_CHARACTERS]
                )
        problem = f"Answer {file} in {answer.name}, and repeat the command."
        return msgspec.structs.replace(exchange, problem=problem, loss=Loss.NO_REPLY, requests=0)

    def close(self) -> None:
        """Nothing is open."""


def _text(messages: Iterable[Message]) -> str:
    parts = (
        f"# Your earlier reply\n\n{each.content}\n\n# What was wrong with it\n"
        if each.role == "assistant"
        else each.content
        for each in messages
    )
    return "\n".join(parts)
