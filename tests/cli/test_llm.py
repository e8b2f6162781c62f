"""Searches that a language model proposes edits for, through the command, against a server that misbehaves."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from mctskernel.cli.errors import BAD_MACHINE
from mctskernel.core.evaluation import Outcome
from mctskernel.core.proposer import Purpose
from mctskernel.run import exchanges_of, open_run
from mctskernel.tree.events import Proposed
from mctskernel.tree.journal import read_events, read_tree
from mctskernel.tree.node import Tree
from tests.cli.command import mctskernel
from tests.edits.llm.loopback import Behaviour, Handler, Server, fails, replies, serving
from tests.edits.llm.scripted import a_reply, an_edit

pytestmark = pytest.mark.slow

KEY = "sk-secret-0123456789"


class Author:
    """Writes edits of the kernel that it is shown, and something else from time to time."""

    def __init__(self, *lapses: Behaviour) -> None:
        self.lapses = {3 + 2 * number: lapse for number, lapse in enumerate(lapses)}
        self.prompts: list[str] = []

    def __call__(self, handler: Handler) -> None:
        messages = handler.server.received[-1].body["messages"]
        self.prompts.append("\n".join(message["content"] for message in messages))
        lapse = self.lapses.get(len(self.prompts))
        (lapse or replies(self._reply(messages[1]["content"])))(handler)

    def _reply(self, prompt: str) -> str:
        if "## A kernel that failed" in prompt:
            return a_reply(
                an_edit("Name it", ("    if (i < m) {\n", "    if (i < n) {\n"), category="repair")
            )
        (block,) = re.findall(r"#define BLOCK (\d+)", prompt)
        sizes = [size for size in range(32, 1024, 64) if size != int(block)]
        first = len(self.prompts) % len(sizes)
        resized = [
            an_edit(f"Blocks of {size}", (f"#define BLOCK {block}\n", f"#define BLOCK {size}\n"))
            for size in (sizes * 2)[first : first + 2]
        ]
        define = (f"#define BLOCK {block}\n", "#define BLOCK 256\n")
        broken = an_edit("Another bound", define, ("    if (i < n) {\n", "    if (i < m) {\n"), prior=0.9)
        nowhere = an_edit("A tile", ("#define TILE 3\n", "#define TILE 4\n"))
        return a_reply(*resized, broken, nowhere)


LAPSES = (
    fails(500),
    replies("I would make the blocks larger."),
    replies('{"edits": [{"title": "Half an ed', finish="length"),
    replies(None, refusal="I can't help with that."),
    replies(""),
    replies("{}"),
    replies(a_reply(an_edit("Another file", ("import torch\n", "import numpy\n")))),
)


def searched(server: Server, task: Path, out: Path, *words: str, exit_code: int = 0) -> str:
    options = ("--device", "model", "--workers", "1", "--calls", "1", "--edits-per-call", "4")
    asked = ("--model", "scripted", "--base-url", server.url, "--out", out)
    result = mctskernel("search", task, *options, *asked, *words)
    assert result.exit_code == exit_code, result.output
    return result.output


def replies_of(run: Path) -> list[Proposed]:
    return [event for event in read_events(run / "journal.jsonl") if isinstance(event, Proposed)]


def proposers(tree: Tree) -> Counter[str]:
    made = [node for node in tree.nodes if node.parent is not None and node.edit is not None]
    return Counter(tree.nodes[node.parent or 0].edits[node.edit or 0].proposer for node in made)


@pytest.fixture(scope="module")
def author() -> Author:
    return Author(*LAPSES)


@pytest.fixture(scope="module")
def run(author: Author, tmp_path_factory: pytest.TempPathFactory, small_task: Path) -> Path:
    out = tmp_path_factory.mktemp("llm") / "run"
    with pytest.MonkeyPatch.context() as patched, serving(author) as server:
        patched.setenv("OPENAI_API_KEY", KEY)
        searched(server, small_task, out, "--proposer", "llm", "--budget", "16")
    return out


def test_a_search_goes_on_whatever_the_server_does(run: Path, author: Author) -> None:
    tree = read_tree(run / "journal.jsonl")
    assert tree.evaluations == 16
    assert len(author.prompts) > 3 + 2 * len(LAPSES), "every lapse was met"
    assert {name.split("/")[0] for name in proposers(tree)} == {"llm"}


def test_every_exchange_is_in_the_journal_with_what_came_of_it(run: Path, author: Author) -> None:
    exchanges = list(exchanges_of(open_run(run)))
    asked = sum(exchange.requests for exchange in exchanges)
    assert asked == len(author.prompts)
    written = {"\n".join(each["content"] for each in json.loads(found.prompt)) for found in exchanges}
    assert written == set(author.prompts)
    for event in replies_of(run):
        assert event.edits or event.dropped
        assert all(edit.exchange is not None and edit.exchange < len(event.exchanges) for edit in event.edits)
    losses = {loss.loss for event in replies_of(run) for loss in event.dropped}
    assert {"patch fits nowhere", "refusal", "empty reply", "reply cut off", "unreadable reply"} <= losses


def test_what_broke_was_repaired_at_once(run: Path) -> None:
    tree = read_tree(run / "journal.jsonl")
    (broken,) = (node.id for node in tree.nodes if node.outcome is Outcome.BUILD_ERROR)
    assert [node.outcome for node in tree.nodes if node.parent == broken] == [Outcome.OK]
    assert proposers(tree)["llm/repair"] > 0
    asked = [reply.node for reply in replies_of(run)]
    assert broken in asked
    assert all(node < broken for node in asked[: asked.index(broken)]), (
        "before anything newer was asked about"
    )
    repairs = [each for each in exchanges_of(open_run(run)) if each.purpose is Purpose.REPAIR]
    assert "is undefined" in repairs[0].prompt


def test_prompts_name_neither_the_key_nor_a_folder_of_this_machine(run: Path, author: Author) -> None:
    folders = (str(Path.home()), str(run.parent), str(Path(__file__).parents[2]))
    for text in author.prompts:
        assert KEY not in text
        assert not [folder for folder in folders if folder in text]
    written = b"".join(file.read_bytes() for file in run.rglob("*") if file.is_file())
    assert KEY.encode() not in written


def test_rules_and_experts_share_a_tree(
    tmp_path: Path, small_task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serving(Author()) as server:
        words = ("--proposer", "mixed", "--budget", "12", "--experts-per-node", "2")
        searched(server, small_task, tmp_path / "run", *words)
    found = proposers(read_tree(tmp_path / "run" / "journal.jsonl"))
    assert found["rules"] > 0
    assert any(name.startswith("llm/") for name in found)


def test_without_an_answer_the_rules_go_on_and_a_model_alone_ends_with_a_sentence(
    tmp_path: Path, small_task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serving(fails(503, retry_after="1000")) as server:
        mixed = searched(server, small_task, tmp_path / "mixed", "--proposer", "mixed", "--budget", "6")
        words = ("--proposer", "llm", "--budget", "6")
        alone = searched(server, small_task, tmp_path / "alone", *words, exit_code=BAD_MACHINE)
        asked = len(server.received)
    assert read_tree(tmp_path / "mixed" / "journal.jsonl").evaluations == 6
    assert set(proposers(read_tree(tmp_path / "mixed" / "journal.jsonl"))) == {"rules"}
    assert read_tree(tmp_path / "alone" / "journal.jsonl").evaluations == 1
    assert "budget" in mixed
    assert "repl" in alone or "answer" in alone
    assert asked < 12
