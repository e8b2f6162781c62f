"""Rules in a process of their own: they take as long as evaluations do, which would wait for Python's lock.

Run as `python -m mctskernel.executors.rules SOCKET LIFELINE`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from mctskernel.core.device import DeviceError
from mctskernel.core.edit import Edit, WholeSource
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.proposer import ProposalRequest, Proposals
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.edits.proposer import RuleProposer
from mctskernel.profiling.processes.channel import Ready, decode_path, serve
from mctskernel.profiling.processes.child_process import LostError
from mctskernel.profiling.processes.conversation import Conversation

PROPOSAL_SECONDS = 20.0
"""How long the process may take over a kernel before the search does it itself; few take a second."""


class Open(msgspec.Struct, tag=True, frozen=True):
    """Load a task. Answered by Ready."""

    folder: Path
    language: Language | None


class Propose(msgspec.Struct, tag=True, frozen=True):
    """Propose edits of a kernel. Answered by Proposed."""

    kernel: Kernel
    evaluation: Evaluation


@dataclass(frozen=True)
class _Edit(Edit):
    change: WholeSource


class Proposed(msgspec.Struct, tag=True, frozen=True):
    """What the rules propose."""

    edits: tuple[_Edit, ...]


Reply = Ready | Proposed
REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


class RuleProcess:
    """The rules' proposals for one task, from another process or, where that is lost, from here."""

    name = "rules"

    def __init__(self, task: Task, language: Language | None) -> None:
        opening = Open(task.folder.resolve(), language)
        self._process = Conversation("mctskernel.executors.rules", "proposed edits", opening, REPLIES)
        self.close = self._process.close

    def propose(self, request: ProposalRequest) -> Proposals:
        """Edits of the request's kernel, best first."""
        with suppress(LostError, DeviceError):
            reply = self._process.ask(Propose(request.kernel, request.evaluation), PROPOSAL_SECONDS)
            if isinstance(reply, Proposed):
                return Proposals(tuple(Edit(**vars(each)) for each in reply.edits))
        return RuleProposer().propose(request)


def _answer(tasks: list[Task], request: Open | Propose) -> tuple[Reply, bool]:
    if isinstance(request, Open):
        tasks.append(task := load_task(request.folder, request.language))
        begun = Evaluation(Outcome.OK, Source.MEASURED)  # the first proposals take twice as long as others
        RuleProposer().propose(ProposalRequest(task, task.starting_kernel, begun))
        return Ready(), False
    found = RuleProposer().propose(ProposalRequest(tasks[0], request.kernel, request.evaluation))
    return Proposed(found.edits), False  # type: ignore[arg-type] # rules write whole texts


if __name__ == "__main__":
    serve(msgspec.msgpack.Decoder(Open | Propose, dec_hook=decode_path), partial(_answer, []))
