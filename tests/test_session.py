"""Asking and telling: another program proposes, and this one decides."""

import contextlib
from pathlib import Path

import msgspec
import pytest

from mctskernel.config import SearchConfig
from mctskernel.core.budget import Budget
from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import load_task
from mctskernel.core.user_errors import RunError
from mctskernel.external.messages import Ask, RepliedBlock, RepliedEdit, Reply, ReplyError, read_replies
from mctskernel.external.session import begin_session, open_session
from mctskernel.loop import StopReason
from mctskernel.run import RunFolder, prepare_run, read_manifest, write_manifest
from mctskernel.run import search as run_module
from mctskernel.run.repeating import replay
from mctskernel.tasks.builtin import find_task
from mctskernel.tree.events import Event
from mctskernel.tree.journal import Journal, read_tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.search import TreeSearch
from tests import landscape


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run over the landscape whose edits come from outside; a real task stands for it on disk."""
    landscape.stand_in(monkeypatch)
    folder = prepare_run(tmp_path / "run", load_task(find_task("softmax")))
    configuration = SearchConfig(
        task="bowl",
        device="model",
        proposer="outside",
        workers=2,
        budget=Budget(evaluations=60),
        policy=Policy(patience=2),
    )
    write_manifest(folder, configuration, landscape.InProcess().fingerprint())
    return folder.path


def steps(ask: Ask) -> Reply:
    """What a program would say that knows nothing but an ask: a step in each direction."""
    edits = msgspec.convert(landscape.steps(ask.source), tuple[RepliedEdit, ...])
    return Reply(node=ask.node, edits=edits, proposer="stepper", dollars=0.001)


def test_another_program_finds_the_bottom_of_the_bowl(run: Path) -> None:
    with open_session(run) as session:
        while asks := session.ask(3):
            assert len(asks) <= 3
            session.tell(map(steps, asks))
        assert session.stop_reason is StopReason.BUDGET
        search_result = session.finish()
    assert search_result.answer.speedup == pytest.approx(38)
    tree = read_tree(run / "journal.jsonl")
    assert tree.evaluations == 60
    assert {edit.proposer for node in tree.nodes for edit in node.edits} == {"stepper"}
    assert tree.dollars == pytest.approx(0.001 * len(tree.replied), abs=0.003)


def test_asking_twice_says_the_same_in_one_process_and_in_the_next(run: Path) -> None:
    with open_session(run) as session:
        first = session.ask(2)
        assert session.ask(2) == first
    with open_session(run) as session:
        assert session.ask(2) == first
        session.tell(map(steps, first))
        several = session.ask(4)
        assert len({ask.node for ask in several}) == len(several) > 1


def test_each_edit_says_what_became_of_it(run: Path) -> None:
    nowhere = RepliedEdit(title="nowhere", patch=(RepliedBlock("int z;", ""),))
    nothing = RepliedEdit(title="nothing", source=landscape.kernel(1, 1).source)
    broken = RepliedEdit(title="broken", source=landscape.kernel(7, 3).source)
    better = RepliedEdit(title="better", source=landscape.kernel(7, 2).source)
    with open_session(run) as session:
        session.ask(1)
        told = session.tell([Reply(node=0, edits=(nowhere, nothing, broken, better))])
    by_title = {each.title: each for each in told}
    assert by_title["nowhere"].outcome is Outcome.REJECTED
    assert "int z;" in by_title["nowhere"].message
    assert by_title["nothing"].outcome is Outcome.REJECTED
    assert by_title["broken"].outcome is Outcome.BUILD_ERROR
    assert by_title["broken"].message == "odd"
    assert by_title["better"].outcome is Outcome.OK
    assert by_title["better"].speedup == by_title["better"].gain == pytest.approx(38)
    assert by_title["better"].over_best == 1
    assert by_title["better"].seconds


def test_a_run_whose_edits_came_from_outside_is_repeated_edit_by_edit(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_session(run) as session:
        session.ask(1)
        session.tell([Reply(node=0, text="I would rather talk about the weather.")])
        for _ in range(3):
            session.tell(map(steps, session.ask(2)))
    recorded = read_tree(run / "journal.jsonl")
    unchecked = landscape.replace(landscape.task(run / "task"), verify_shapes=())
    monkeypatch.setattr(run_module, "load_task", lambda *_: unchecked)
    result, difference = replay(tmp_path / "again", run)
    assert difference == ""
    assert len(result.tree.nodes) == len(recorded.nodes) > 8
    assert [node.lost for node in result.tree.nodes] == [node.lost for node in recorded.nodes]


ANSWER = """\
node: 0

## Go to X 7
category: tuning
prior: 0.9

<<<<<<< SEARCH
#define X 1
=======
#define X 7
>>>>>>> REPLACE
"""


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "The reply is empty."),
        ("node: 0\n\nI am sorry, but I can't help with that.", "The model refuses"),
        ("node: 0\n\nUse larger blocks.", "neither JSON, SEARCH/REPLACE blocks, nor a whole source"),
        (ANSWER.partition("=======")[0], "ends before its first edit is whole"),
        (ANSWER.replace("#define X 1\n", "#define Z 1\n"), "isn't in the source"),
        ("## In Triton\n```python\n@triton.jit\ndef f(): pass\n```\n", "without any __global__ function"),
    ],
)
def test_what_could_not_be_used_of_an_answer_is_said_in_the_next_ask(
    run: Path, answer: str, said: str
) -> None:
    with open_session(run) as session:
        session.ask(1)
        (told,) = session.tell([Reply(node=0, text=answer)])
        assert (told.outcome, told.made) == (Outcome.REJECTED, None)
        assert said in told.message
        (ask,) = session.ask(1)
        assert any(said in reason for reason in ask.lost)
        assert "What couldn't be used of your latest replies" in (session.ask_text() or "")


def test_replies_without_anything_new_end_a_search(run: Path) -> None:
    with open_session(run) as session:
        evaluations = session.tree.evaluations
        for _ in range(200):
            if not (asks := session.ask(1)):
                break
            same = RepliedEdit(title="again", source=asks[0].source + "\n// nothing new")
            session.tell([Reply(node=asks[0].node, edits=(same,))])
        assert session.stop_reason is StopReason.EXHAUSTED
        assert session.tree.evaluations <= evaluations + 1


def test_the_edits_of_a_reply_are_evaluated_at_once_the_rest_wait(run: Path) -> None:
    edits = tuple(
        RepliedEdit(title=f"X {x}", source=landscape.kernel(x, 8).source, prior=x) for x in range(2, 22, 2)
    )
    with open_session(run) as session:
        session.ask(1)
        told = session.tell([Reply(node=0, edits=edits)])
    waiting = [each.title for each in told if each.outcome is None]
    assert waiting == ["X 2", "X 4"]


def test_an_edit_that_is_told_again_says_what_became_of_it(run: Path) -> None:
    with open_session(run) as session:
        (ask,) = session.ask(1)
        first = session.tell([steps(ask)])
        better = RepliedEdit(title="better", source=landscape.kernel(7, 2).source, prior=100)
        again = session.tell([Reply(node=0, edits=(*steps(ask).edits[:2], better, better))])
    assert [told.title for told in again] == ["X +1", "X -1", "better", "better"]
    assert again[0].made == first[0].made
    assert again[2] == again[3]


def test_when_the_budget_is_spent_what_is_told_is_kept(run: Path) -> None:
    with open_session(run, Budget(evaluations=1)) as session:
        assert session.ask(1) == ()
        assert session.is_over
        session.tell([Reply(node=0, edits=(RepliedEdit(title="X", source=landscape.kernel(7, 2).source),))])
    with open_session(run, Budget(evaluations=2)) as session:
        session.ask(1)
        assert session.tree.nodes[1].score is not None


def test_an_ask_holds_the_evidence_and_nothing_of_the_machine(run: Path) -> None:
    with open_session(run) as session:
        (ask,) = session.ask(1)
        session.tell([steps(ask)])
        later = session.ask(8)
    assert ask.task.reference
    assert "[[launch]]" in ask.task.rules
    assert ask.task.device
    assert ask.evidence.seconds == pytest.approx(0.038)
    assert any(each.siblings or each.elsewhere for each in later)
    text = msgspec.json.encode(later).decode()
    assert str(run) not in text
    assert str(Path.home()) not in text
    assert msgspec.json.decode(text, type=tuple[Ask, ...]) == later


def test_what_is_told_while_the_search_is_told_to_stop_is_kept(run: Path) -> None:
    stopped: list[bool] = []
    with open_session(run, stop_requested=lambda: bool(stopped)) as session:
        (ask,) = session.ask(1)
        stopped.append(True)
        told = session.tell([steps(ask)])
        assert session.stop_reason is StopReason.INTERRUPTED
    assert [each.outcome for each in told] == [None] * 4
    with open_session(run) as session:
        session.ask(1)
        assert session.tree.nodes[1].score is not None


def test_a_run_is_begun_from_outside(run: Path, tmp_path: Path, small_task: Path) -> None:
    configuration = read_manifest(RunFolder(run)).configuration
    configuration = msgspec.structs.replace(configuration, proposer="rules")
    with begin_session(tmp_path / "new", small_task, configuration) as session:
        (ask,) = session.ask(1)
    assert ask.node == 0
    assert read_manifest(session.folder).configuration.proposer == "outside"
    with pytest.raises(RunError, match="already holds"), begin_session(run, small_task, configuration):
        pass


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("no", "neither lines of JSON nor an answer"),
        ('{"node": 0}', "`edits` or a `text`"),
        ('{"node": -1, "edits": []}', "`int` >= 0"),
        ('{"node": 0, "edits": [{"title": "a"}]}', "either a source or a patch"),
        ('{"node": 0, "edits": [{"title": "a", "source": "", "prior": 0}]}', "prior"),
        ('{"node": 0, "edits": [], "version": 2}', "version 2"),
        ('\n\n{"node": 0, "edits": []}\nno', "Line 4"),
    ],
)
def test_a_line_that_is_no_reply_is_refused_in_a_sentence(line: str, complaint: str) -> None:
    with pytest.raises(ReplyError) as caught:
        read_replies(line)
    assert complaint in str(caught.value)


FULL = RunError("The journal can't be written: No space left on device.")


@pytest.mark.parametrize("period", [2, 5])
def test_a_session_goes_on_once_its_journal_can_be_written_again(
    run: Path, monkeypatch: pytest.MonkeyPatch, period: int
) -> None:
    """Every so often an event can't be written: nothing that was evaluated or told is lost, and nothing waited for."""
    append, events, failures = Journal.append, 0, 0

    def failing(journal: Journal, event: Event) -> Event:
        nonlocal events, failures
        events += 1
        if events > 4 and events % period == 0:
            failures += 1
            raise FULL
        return append(journal, event)

    monkeypatch.setattr(Journal, "append", failing)
    asks: tuple[Ask, ...] = ()
    with open_session(run) as session:
        for _ in range(1000):
            if session.is_over:
                break
            try:
                asks = session.ask(3)
                session.tell(map(steps, asks))
            except RunError:
                continue
        assert session.stop_reason is StopReason.BUDGET
        judged = session.search.executor.judged  # type: ignore[attr-defined] # the landscape's
    assert failures
    tree = read_tree(run / "journal.jsonl")
    assert tree.evaluations == 60
    assert all(node.evaluation is not None for node in tree.nodes)
    assert len(judged) == 60, "an evaluation was paid for twice"


def test_a_kernel_that_could_not_be_read_is_evaluated_later(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, calls = TreeSearch.kernel, 0

    def failing(search: TreeSearch, node: int) -> Kernel:
        nonlocal calls
        calls += 1
        if calls % 7 == 0:
            raise RunError("The blob can't be read.")
        return kernel(search, node)

    monkeypatch.setattr(TreeSearch, "kernel", failing)
    with open_session(run) as session:
        for _ in range(1000):
            if session.is_over:
                break
            with contextlib.suppress(RunError):
                session.tell(map(steps, session.ask(3)))
        assert session.stop_reason is StopReason.BUDGET
    assert all(node.evaluation is not None for node in read_tree(run / "journal.jsonl").nodes)
