"""A model that says what a test wants, and requests about kernels of real tasks."""

import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from mctskernel.core.evaluation import (
    Bottleneck,
    Cause,
    Check,
    Diagnosis,
    Evaluation,
    Outcome,
    Resources,
    Source,
    Timing,
)
from mctskernel.core.kernel import Language
from mctskernel.core.proposer import Attempt, Exchange, ProposalRequest
from mctskernel.core.task_file import load_task
from mctskernel.edits.llm.model import Call, encode
from mctskernel.tasks.builtin import find_task


@dataclass
class ScriptedModel:
    """Answers each call with a reply, or with a whole exchange, and keeps the calls; from several threads at once."""

    answer: Callable[[Call], str | Exchange]
    calls: list[Call] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def complete(self, call: Call) -> Exchange:
        with self._lock:
            self.calls.append(call)
        answer = self.answer(call)
        if isinstance(answer, Exchange):
            return answer
        return Exchange(call.purpose, "scripted", encode(call.messages), answer, expert=call.expert)


def failing(call: Call) -> Exchange:
    """No reply, and why."""
    return Exchange(
        call.purpose, "scripted", encode(call.messages), "", expert=call.expert, problem="The server is away."
    )


def a_reply(*edits: dict[str, object]) -> str:
    """A reply in the format of the schema."""
    return json.dumps({"edits": edits})


def an_edit(title: str, *blocks: tuple[str, str], **changed: object) -> dict[str, object]:
    """An edit in that format."""
    return {
        "rationale": "Because.",
        "category": "tuning",
        "title": title,
        "expected_effect": "Faster.",
        "prior": 0.5,
        "patch": [{"search": search, "replace": replacement} for search, replacement in blocks],
        "source": None,
        **changed,
    }


def a_request(
    task: str = "softmax", language: Language = Language.CUDA, **changed: object
) -> ProposalRequest:
    """About the starting kernel of a built-in task, with evidence as the model device gives it."""
    loaded = load_task(find_task(task), language)
    request = ProposalRequest(loaded, loaded.starting_kernel, EVALUATION, seed=1)
    return replace(request, **changed)  # type: ignore[arg-type]


def diagnosed(*causes: tuple[Bottleneck, float]) -> Evaluation:
    """An evaluation of a kernel that these bind, by shares of its time."""
    return replace(
        EVALUATION, diagnosis=Diagnosis(tuple(Cause(each, share, f"{each} binds.") for each, share in causes))
    )


EVALUATION = Evaluation(
    Outcome.OK,
    Source.MODELLED,
    timings=(Timing("rows=8192 cols=4096", 2.498e-3, 2.498e-3, 2.498e-3),),
    diagnosis=Diagnosis(
        (
            Cause(Bottleneck.TOO_FEW_BLOCKS, 0.45, "Too few blocks: 32 blocks leave 100 of 132 SMs idle."),
            Cause(
                Bottleneck.UNCOALESCED_ACCESS,
                0.30,
                "Uncoalesced access: each warp load (line 20) touches 32 sectors where 4 would do.",
            ),
        ),
        "Modelled at 2.5 ms (+-25%), bound by tail: 1.13 ms alone, 45% of the time.",
    ),
    counters={"dram__bytes.sum": 123456789.0},
    resources=(Resources("softmax", 31, 0),),
)

FAILED = Evaluation(
    Outcome.WRONG_RESULT,
    Source.MODELLED,
    message="out[3, 7] is 0.5, not 0.25.",
    checks=(
        Check("rows=1 cols=1", 1, passed=True, error=0.1),
        Check("rows=35 cols=37", 1, passed=False, error=9.0, message="Row 3 sums to 2."),
    ),
    log="kernel.cu(12): warning: variable i is unused\n",
)


def attempts(*pairs: tuple[str, Outcome], gain: float = 1.0) -> tuple[Attempt, ...]:
    """Edits that ended like this."""
    return tuple(Attempt(title, "tuning", outcome, gain, proposer="llm/memory") for title, outcome in pairs)


def titles(edits: Iterable[object]) -> list[str]:
    """The titles of edits, in their order."""
    return [edit.title for edit in edits]  # type: ignore[attr-defined]
