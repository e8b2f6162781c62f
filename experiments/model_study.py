"""What a language model adds to a search, and which evidence helps it: arms that are played in lock-step rounds.

    python -m mctskernel.experiments.model_study begin OUT PROBLEM.py ... --rounds 2 --repeats 1
    python -m mctskernel.experiments.model_study tell OUT    # where the device is: the starts, later the replies
    python -m mctskernel.experiments.model_study ask OUT     # anywhere: OUT/asks/NAME.md for each reply that is wanted
    python -m mctskernel.experiments.model_study table OUT

Each ask is a text that needs nothing else, and is answered by a file OUT/replies/NAME.md. `tell` evaluates all replies
that there are, and `ask` writes the next asks; both can be repeated at any time. A problem whose start is wrong is left
out. The first reply about a problem, which sees the diagnosis of the start, is shared by all arms with a model:
they differ in nothing else than what they see later. Every arm evaluates as many kernels as any other.
"""

from __future__ import annotations

import math
import shutil
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import click
import msgspec

from mctskernel.answer import valid_speedup
from mctskernel.config import OUTSIDE, RULES, SearchConfig, for_task
from mctskernel.core.budget import Budget
from mctskernel.core.device import DeviceError
from mctskernel.core.documents import indented_json
from mctskernel.core.edit import Edit
from mctskernel.core.evaluation import Outcome
from mctskernel.core.executor import Executor
from mctskernel.core.kernel import Language
from mctskernel.core.proposer import Dropped, Exchange, Loss, Proposals, Purpose
from mctskernel.core.task_file import load_task
from mctskernel.edits.llm.experts import Feedback
from mctskernel.edits.llm.model import estimated_tokens
from mctskernel.edits.llm.prompt import ask_text
from mctskernel.evidence import request_of
from mctskernel.executors import open_executor
from mctskernel.experiments.model_study_results import (
    ARMS,
    FIRST,
    MODEL,
    STARTS,
    Cell,
    Study,
    cell_of,
    document,
    eager_seconds,
    read_study,
    rows,
    written_by_model,
)
from mctskernel.external.messages import ReplyError, proposals_of, read_replies, written_proposals
from mctskernel.external.session import device_sentences
from mctskernel.loop import Search, StopReason
from mctskernel.problems.pytorch_timing import product_flops, time_eager
from mctskernel.problems.registry import read_problem, write_problem
from mctskernel.profiling.processes.forked import CallError, ForkedCall, wait_for
from mctskernel.run import RunFolder, open_run, prepare_run, read_answer, read_manifest, write_manifest
from mctskernel.run.search import finish, open_search
from mctskernel.tasks.starts import best_start, set_plain_aside, start_name, start_nodes
from mctskernel.tree.journal import MemoryJournal, read_tree
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.search import TreeSearch
from mctskernel.tree.strategies.strategy import Step
from mctskernel.tree.trajectory import edit_title, run_seconds

WHERE = "\nWrite the answer, and nothing else, into one file: "
"""How an ask ends, before the file; it is no part of the prompt that a run keeps."""


@click.group()
def main() -> None:
    """Play a study of a language model in rounds; see the module's text."""


@main.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.argument("problems", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--arm", "arms", multiple=True, type=click.Choice([each.name for each in ARMS]))
@click.option("--repeats", type=click.IntRange(1, 99), default=1, show_default=True)
@click.option("--rounds", type=click.IntRange(1, 99), default=2, show_default=True)
@click.option("--kernels", type=click.IntRange(1, 16), default=4, show_default=True, help="Kernels a round.")
@click.option("--device", type=click.Choice(["gpu", "model"]), default="gpu", show_default=True)
@click.option("--architecture", default="H100", show_default=True, help="The GPU of --device model.")
def begin(out: Path, problems: tuple[Path, ...], arms: tuple[str, ...], **numbers: Any) -> None:
    """Read PROBLEMS, which may be tasks, into OUT. Called again, it adds problems and changes what is played."""
    names = []
    for problem in problems:
        is_task = (problem / "task.toml").is_file()
        name = problem.name if is_task else f"{problem.parent.name}_{problem.stem}"[:40]
        folder = out / "tasks" / name
        if not folder.exists():
            click.echo(f"Reading {name}")
            if is_task:
                shutil.copytree(problem, folder)
            else:
                write_problem(read_problem(problem, Language.CUDA), folder)
                set_plain_aside(folder)
        names.append(name)
    study = Study(tuple(names), arms or tuple(each.name for each in ARMS), **numbers)
    (out / "study.json").write_bytes(indented_json(study))
    asked = sum(each.feedback is not None for each in study.played_arms)
    calls = len(names) * study.repeats * (1 + (study.rounds - 1) * asked) if asked else 0
    click.echo(f"{len(names)} problems, {calls} calls of a model. Next: tell {out}, where the device is.")


@main.command()
@click.argument("out", type=click.Path(path_type=Path, exists=True))
def ask(out: Path) -> None:
    """Write OUT/asks/NAME.md for every reply that is wanted and isn't there, and remove other asks."""
    study = read_study(out)
    folder = out / "asks"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (out / "replies").mkdir(exist_ok=True)
    missing = [each for each in _wanting(out, study) if _reply(out, each) is None]
    for cell in missing:
        reply = (out / "replies" / f"{cell.name}.md").resolve()
        (folder / f"{cell.name}.md").write_text(f"{_text(out, study, cell)}{WHERE}{reply}\n", "utf-8")
    click.echo(f"{len(missing)} asks in {folder}")


@main.command()
@click.argument("out", type=click.Path(path_type=Path, exists=True))
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="Problems at a time.")
@click.option("--workers", type=click.IntRange(0), default=0, help="As of `mctskernel search`.")
@click.option("--minutes", type=float, default=60.0, show_default=True, help="Begin nothing later.")
@click.option("--validate", is_flag=True, help="Validate the fastest kernel of each run that is done.")
def tell(out: Path, jobs: int, workers: int, minutes: float, *, validate: bool) -> None:
    """Evaluate the starts, all replies that there are, and what rules propose, with one executor a problem."""
    study = read_study(out)
    end = time.monotonic() + 60 * minutes

    def play(problem: str) -> None:
        try:
            _tell(out, study, problem, workers, end, validate=validate)
        except Exception:  # noqa: BLE001 - it must not cost the other problems
            click.echo(f"{problem}: {traceback.format_exc()}")

    with ThreadPoolExecutor(jobs) as threads:
        list(threads.map(play, study.problems))
    missing = [each.name for each in _wanting(out, study) if _reply(out, each) is None]
    click.echo(f"{len(missing)} replies are missing: {' '.join(missing) or 'none'}")


def _tell(out: Path, study: Study, problem: str, workers: int, end: float, *, validate: bool) -> None:
    starts = cell_of(out, problem, 0, STARTS)
    with ExitStack() as stack:

        @cache
        def executor() -> Executor:
            folder = RunFolder(starts.path)
            spec = folder.device_spec(_configuration(study, folder))
            return stack.enter_context(open_executor(spec, workers))

        if not starts.path.exists() and time.monotonic() < end:
            _evaluate_starts(out, study, starts, executor)
        if study.device == "gpu" and time.monotonic() < end:
            _time_eager(out, problem)
        for cell in _ready(out, study, problem) if _is_usable(starts) else ():
            _play(out, study, cell, executor, end)
            if validate and cell.arm != FIRST and cell.played >= study.rounds:
                _validate(study, cell, executor())


def _ready(out: Path, study: Study, problem: str) -> Iterator[Cell]:
    """The runs of a problem that can be played, each made when it is looked at."""
    starts = cell_of(out, problem, 0, STARTS)
    for repeat in range(study.repeats):
        first = _copied(starts, cell_of(out, problem, repeat, FIRST))
        yield first
        for arm in study.played_arms:
            if arm.feedback is None or first.played:
                source = starts if arm.feedback is None else first
                yield _copied(source, cell_of(out, problem, repeat, arm.name))


def _copied(source: Cell, cell: Cell) -> Cell:
    if not cell.path.exists():
        shutil.copytree(source.path, cell.path)
    return cell


def _evaluate_starts(out: Path, study: Study, cell: Cell, executor: Callable[[], Executor]) -> None:
    folder = prepare_run(cell.path, load_task(out / "tasks" / cell.problem, Language.CUDA))
    configuration = _configuration(study, folder)
    try:
        used = executor()
        write_manifest(folder, configuration, used.fingerprint())
        with open_search(folder, configuration, used) as (search, unfinished):
            search.budget = Budget(evaluations=1 + len(search.starts))
            search.run(unfinished)
            tree = search.tree_search.tree
    except BaseException:
        shutil.rmtree(cell.path, ignore_errors=True)
        raise
    for node in start_nodes(tree):
        click.echo(f"{cell.problem}: {start_name(tree, node) or 'start'}: {_result(tree.nodes[node])}")


def _validate(study: Study, cell: Cell, executor: Executor) -> None:
    folder = RunFolder(cell.path)
    if read_answer(folder) is None:
        with open_search(folder, _configuration(study, folder), executor) as (search, _):
            answer = finish(folder, search, StopReason.BUDGET).answer
        refused = "; ".join(reason for _, reason in answer.refused)
        click.echo(f"{cell.problem} {cell.repeat} {cell.arm}: validated {answer.node} {refused}")


def _pending(search: Search, unfinished: tuple[int, ...]) -> list[int]:
    """Those without an evaluation: on another GPU of the same model nothing is timed again."""
    return [each for each in unfinished if search.tree_search.tree.nodes[each].evaluation is None]


def _play(out: Path, study: Study, cell: Cell, executor: Callable[[], Executor], end: float) -> None:
    """Evaluate the next rounds of a run whose replies are there, or the rules' if no model is asked."""
    arm = cell.settings
    while cell.played < study.rounds_of(cell) and time.monotonic() < end:
        by_rules = math.floor(study.kernels * arm.rules)
        if arm.feedback is not None:
            reply = _reply(out, cell)
            if reply is None:
                return
            asked = out / "asks" / f"{cell.name}.md"
            prompt = asked.read_text("utf-8").partition(WHERE)[0] if asked.is_file() else ""
            kernels = study.kernels - by_rules
            _evaluate_reply(study, cell, executor(), (prompt, reply), _node(cell), kernels=kernels)
        if by_rules:
            _evaluate_rules(study, cell, executor(), by_rules)
        (cell.path / "played").write_text(str(cell.played + 1), "ascii")


def _evaluate_reply(
    study: Study, cell: Cell, executor: Executor, exchanged: tuple[str, str], node: int, *, kernels: int
) -> None:
    """Evaluate the first kernels of a reply about a node; what was exchanged is kept."""
    folder = RunFolder(cell.path)
    prompt, reply = exchanged
    configuration = _configuration(study, folder)
    with open_search(folder, configuration, executor) as (search, unfinished):
        search.choose = lambda: None
        search.run(_pending(search, unfinished))
        number, proposals = _proposals(search.tree_search, node, reply)
        tokens = estimated_tokens(prompt), estimated_tokens(reply)
        exchange = Exchange(
            Purpose.PROPOSE,
            MODEL,
            prompt,
            reply,
            input_tokens=tokens[0],
            output_tokens=tokens[1],
            estimated=True,
        )
        edits = tuple(replace(edit, exchange=0) for edit in proposals.edits)
        search.tree_search.propose(number, replace(proposals, edits=edits, exchanges=(exchange,)))
        known = len(search.tree_search.tree.nodes)
        search.choose = lambda: _next_edit(search, number, known + kernels)
        search.run()
        tree = search.tree_search.tree
    for each in proposals.dropped:
        click.echo(f"{cell.name}: {each.loss}: {each.reason[:200]}")
    _print(cell, tree, known)


def _print(cell: Cell, tree: Tree, known: int) -> None:
    for made in tree.nodes[known:]:
        click.echo(f"{cell.name}: {edit_title(tree, made)}: {_result(made)}")


def _next_edit(search: Search, node: int, most: int) -> Step | None:
    tree = search.tree_search.tree
    untried = tree.nodes[node].untried
    if not untried or len(tree.nodes) >= most:
        return None
    return Step(node, untried[0])


def _proposals(search: TreeSearch, node: int, text: str) -> tuple[int, Proposals]:
    """A reply's node and its edits; whatever can't be used of it is among what was dropped."""
    nodes = search.tree.nodes
    dropped: list[Dropped] = []
    edits: list[Edit] = []
    try:
        replies = read_replies(text)
    except ReplyError:
        replies = ()  # Not in the form that was asked for: read as any text of a model.
    named = replies[0].node if replies else node
    if named != node and named < len(nodes) and nodes[named].evaluation is not None:
        node = named
    elif named != node:
        dropped.append(
            Dropped(Loss.WRONG_SCHEMA, f"There is no node {named} to edit: node {node} was asked about.")
        )
    for reply in replies:
        edits += proposals_of(reply).edits
    texts = [reply.text for reply in replies if reply.text is not None] if replies else [text]
    for each in texts:
        written = written_proposals(each, search.kernel(node), MODEL)
        edits += written.edits
        dropped += written.dropped
    found = tuple(replace(edit, proposer=MODEL) for edit in edits)
    return node, Proposals(found, dropped=tuple(dropped), more=True)


def _evaluate_rules(study: Study, cell: Cell, executor: Executor, kernels: int) -> None:
    folder = RunFolder(cell.path)
    before = read_tree(folder.journal)
    configuration = msgspec.structs.replace(
        _configuration(study, folder), proposer=RULES, budget=Budget(evaluations=before.evaluations + kernels)
    )
    with open_search(folder, configuration, executor) as (search, unfinished):
        search.run(_pending(search, unfinished))
        _print(cell, search.tree_search.tree, len(before.nodes))


def _text(out: Path, study: Study, cell: Cell) -> str:
    """The next ask of a run; asked afresh, it is that of the starts alone."""
    arm = cell.settings
    source = cell_of(out, cell.problem, 0, STARTS) if arm.is_fresh else cell
    folder = open_run(source.path)
    task, fingerprint = folder.load_task(), read_manifest(folder).fingerprint
    search = TreeSearch(read_tree(folder.journal), MemoryJournal(), folder.blobs)
    flops = _flops(str(out.resolve()), cell.problem)
    request = request_of(search, _node(source), task, fingerprint, flops)
    if eager := eager_seconds(out, cell.problem, fingerprint.get("gpu", "")):
        known = f"PyTorch itself takes {1e3 * eager:.4g} ms."
        request = replace(request, standing=(known, *request.standing))
    device = device_sentences(fingerprint, task, flops)
    return ask_text(request, study.kernels, device, arm.feedback or Feedback.DIAGNOSIS)


def _node(cell: Cell) -> int:
    """The fastest kernel; where a model wrote some and none of them is right, the most promising of these."""
    tree = read_tree(RunFolder(cell.path).journal)
    if cell.settings.is_fresh:
        return best_start(tree)
    written = written_by_model(tree)
    if written and not any(each.outcome is Outcome.OK for each in written):
        return max(written, key=lambda each: made.prior if (made := tree.made_by(each)) else 0.0).id
    return max(tree.nodes, key=valid_speedup).id


@cache
def _flops(out: str, problem: str) -> dict[str, float]:
    return dict(product_flops(load_task(Path(out) / "tasks" / problem, Language.CUDA)))


def _time_eager(out: Path, problem: str) -> None:
    folder = RunFolder(cell_of(out, problem, 0, STARTS).path)
    gpu = read_manifest(folder).fingerprint.get("gpu", "")
    if eager_seconds(out, problem, gpu):
        return
    file = out / "eager" / f"{problem}.json"
    file.parent.mkdir(exist_ok=True)
    call = ForkedCall(time_eager, (out / "tasks" / problem).resolve(), log=file.with_suffix(".log"))
    with closing(call):
        while not call.collect():
            wait_for([call], 60.0)
    if call.ended is None or isinstance(call.ended, CallError):
        raise DeviceError(f"PyTorch could not be timed: {call.ended}")
    file.write_bytes(msgspec.json.encode({gpu: call.ended[1]}))


def _wanting(out: Path, study: Study) -> Iterator[Cell]:
    """The runs that a model is to be asked about next."""
    for problem in study.problems:
        cells = _ready(out, study, problem) if _is_usable(cell_of(out, problem, 0, STARTS)) else ()
        yield from (
            each
            for each in cells
            if each.settings.feedback is not None and each.played < study.rounds_of(each)
        )


def _is_usable(starts: Cell) -> bool:
    """Whether the root of a problem is right."""
    return starts.path.exists() and read_tree(RunFolder(starts.path).journal).nodes[0].outcome is Outcome.OK


def _reply(out: Path, cell: Cell) -> str | None:
    file = next(iter(sorted((out / "replies").glob(f"{cell.name}.*"))), None)
    return file.read_text("utf-8", "replace") if file is not None else None


def _configuration(study: Study, folder: RunFolder) -> SearchConfig:
    config = SearchConfig(
        device=study.device,
        architecture=study.architecture,
        language=Language.CUDA,
        proposer=OUTSIDE,
        budget=Budget(evaluations=10_000),
    )
    return for_task(config, load_task(folder.task, Language.CUDA))


def _result(node: Node) -> str:
    seconds = run_seconds(node.evaluation) if node.evaluation else None
    if node.evaluation is None or not seconds or not node.evaluation.ok:
        return f"{node.outcome}: {node.evaluation.message[:200] if node.evaluation else ''}"
    return f"{1e3 * seconds:.4g} ms, {valid_speedup(node):.3g}x the root"


@main.command("table")
@click.argument("out", type=click.Path(path_type=Path, exists=True))
@click.option("--arm", "arms", multiple=True, help="Only these arms, or first: what the first reply gave.")
def print_table(out: Path, arms: tuple[str, ...]) -> None:
    """Print the table, and write it to OUT/table.md."""
    found = list(rows(out, arms))
    text = document(found, read_study(out).rounds)
    (out / "table.md").write_text(text + "\n", "utf-8")
    click.echo(text)


if __name__ == "__main__":
    main()
