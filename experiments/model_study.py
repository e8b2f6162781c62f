"""What a language model adds to a search, and which evidence helps it: arms that are played in lock-step rounds.

    python -m mctskernel.experiments.model_study begin OUT PROBLEM.py ... --rounds 2 --repeats 1
    python -m mctskernel.experiments.model_study tell OUT    # where the device is: the starts, later the replies
    python -m mctskernel.experiments.model_study ask OUT     # anywhere: OUT/asks/NAME.md for each reply that is wanted
    python -m mctskernel.experiments.model_study table OUT

Each ask is a text that needs nothing else, and is answered by a file OUT/replies/NAME.md. `tell` evaluates all replies
that there are, and `ask` writes the next asks; both can be repeated at any time. No arm is asked before the starts are
evaluated. The first reply about a problem, which sees the diagnosis of the start, is shared by all arms with a model:
they differ in nothing else than what they see later. Every arm evaluates as many kernels as any other.
"""

from __future__ import annotations

import math
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import click
import msgspec
import numpy as np

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
from mctskernel.core.resampling import estimate, sign_flip_p
from mctskernel.core.task_file import load_task
from mctskernel.edits.llm.experts import Feedback
from mctskernel.edits.llm.model import estimated_tokens
from mctskernel.edits.llm.prompt import ask_text
from mctskernel.evidence import request_of
from mctskernel.executors import open_executor
from mctskernel.experiments.results import page, table
from mctskernel.external.session import (
    ReplyError,
    device_sentences,
    proposals_of,
    read_replies,
    written_proposals,
)
from mctskernel.loop import Search, StopReason
from mctskernel.problems.pytorch_timing import product_flops, time_eager
from mctskernel.problems.registry import read_problem, write_problem
from mctskernel.profiling.processes.forked import CallError, ForkedCall, wait_for
from mctskernel.run import (
    RunFolder,
    exchanges_of,
    open_run,
    prepare_run,
    read_answer,
    read_json,
    read_manifest,
    write_manifest,
)
from mctskernel.run.search import finish, open_search
from mctskernel.tasks.starts import PLAIN, best_start, set_plain_aside, start_name
from mctskernel.tree.journal import MemoryJournal, read_tree
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.search import Action, TreeSearch, Try, Wait
from mctskernel.tree.trajectory import edit_title, run_seconds

MODEL = "model"  # the proposer's name on what a model wrote
STARTS = "starts"  # the run of a problem that all others are copied from
FIRST = "first"  # the run of the first reply, which the arms with a model are copied from


WHERE = "\nWrite the answer, and nothing else, into one file: "
"""How an ask ends, before the file; it is no part of the prompt that a run keeps."""


class Arm(msgspec.Struct, frozen=True):
    """How a model is asked; `is_fresh` asks again as in the first round, and then the best of all replies counts.

    With `feedback` None no model is asked. `rules` is the share of later evaluations that the rules have.
    """

    name: str
    feedback: Feedback | None
    is_fresh: bool = False
    rules: float = 0.0


ARMS = (
    Arm("rules", None, rules=1.0),
    Arm("time", Feedback.NONE),
    Arm("counters", Feedback.COUNTERS),
    Arm("diagnosis", Feedback.DIAGNOSIS),
    Arm("best-of-n", Feedback.DIAGNOSIS, is_fresh=True),
    Arm("mixed", Feedback.DIAGNOSIS, rules=0.5),
)
BASELINE = "diagnosis"  # the arm that the others are compared with


class Study(msgspec.Struct, frozen=True):
    """What is played. Every arm evaluates `kernels` kernels a round, beside the starts."""

    problems: tuple[str, ...]
    arms: tuple[str, ...]
    repeats: int
    rounds: int
    kernels: int
    device: str
    architecture: str

    def of(self, cell: Cell) -> int:
        """The rounds that a run is to play."""
        return 1 if cell.arm == FIRST else self.rounds


class Cell(msgspec.Struct, frozen=True):
    """An arm on a problem, or the run that its arms are copied from, with its folder and the rounds that it played."""

    problem: str
    repeat: int
    arm: str
    path: Path

    @property
    def played(self) -> int:
        """Rounds that were evaluated."""
        file = self.path / "played"
        return int(file.read_text("ascii")) if file.is_file() else 0

    def name(self) -> str:
        """The name of the next ask and of its reply."""
        return f"{self.problem}-{self.repeat}-{self.played + 1}-{self.arm}"


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
    asked = sum(each.feedback is not None for each in _arms(study))
    calls = len(names) * study.repeats * (1 + (study.rounds - 1) * asked) if asked else 0
    click.echo(f"{len(names)} problems, {calls} calls of a model. Next: tell {out}, where the device is.")


def _begin_at_plain(folder: Path) -> bool:
    """Undo `set_plain_aside`; False where it wasn't done."""
    kernel, plain = folder / "kernel.cu", folder / PLAIN
    if not plain.is_file():
        return False
    kernel.rename(folder / "start_templates.cu")
    plain.rename(kernel)
    return True


@main.command()
@click.argument("out", type=click.Path(path_type=Path, exists=True))
def ask(out: Path) -> None:
    """Write OUT/asks/NAME.md for every reply that is wanted and isn't there, and remove other asks."""
    study = _read(out)
    folder = out / "asks"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (out / "replies").mkdir(exist_ok=True)
    missing = [each for each in _wanting(out, study) if _reply(out, each) is None]
    for cell in missing:
        reply = (out / "replies" / f"{cell.name()}.md").resolve()
        (folder / f"{cell.name()}.md").write_text(f"{_text(out, study, cell)}{WHERE}{reply}\n", "utf-8")
    click.echo(f"{len(missing)} asks in {folder}")


@main.command()
@click.argument("out", type=click.Path(path_type=Path, exists=True))
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="Problems at a time.")
@click.option("--workers", type=click.IntRange(0), default=0, help="As of `mctskernel search`.")
@click.option("--minutes", type=float, default=60.0, show_default=True, help="Begin nothing later.")
@click.option("--validate", is_flag=True, help="Validate the fastest kernel of each run that is done.")
def tell(out: Path, jobs: int, workers: int, minutes: float, *, validate: bool) -> None:
    """Evaluate the starts, all replies that there are, and what rules propose, with one executor a problem."""
    study = _read(out)
    end = time.monotonic() + 60 * minutes

    def play(problem: str) -> None:
        try:
            _tell(out, study, problem, workers, end, validate=validate)
        except Exception:  # noqa: BLE001 - it must not cost the other problems
            click.echo(f"{problem}: {traceback.format_exc()}")

    with ThreadPoolExecutor(jobs) as threads:
        list(threads.map(play, study.problems))
    missing = [each.name() for each in _wanting(out, study) if _reply(out, each) is None]
    click.echo(f"{len(missing)} replies are missing: {' '.join(missing) or 'none'}")


def _tell(out: Path, study: Study, problem: str, workers: int, end: float, *, validate: bool) -> None:
    starts = _cell(out, problem, 0, STARTS)
    with ExitStack() as stack:
        opened: list[Executor] = []

        def executor() -> Executor:
            if not opened:
                folder = RunFolder(starts.path)
                opening = open_executor(folder.device_spec(_configuration(study, folder)), workers)
                opened.append(stack.enter_context(opening))
            return opened[0]

        if not starts.path.exists() and time.monotonic() < end:
            _evaluate_starts(out, study, starts, executor)
            if not _is_usable(starts) and _begin_at_plain(out / "tasks" / problem):
                stack.close()
                opened.clear()
                shutil.rmtree(starts.path)
                _evaluate_starts(out, study, starts, executor)
        if study.device == "gpu" and time.monotonic() < end:
            _time_eager(out, problem)
        for cell in _ready(out, study, problem) if _is_usable(starts) else ():
            _play(out, study, cell, executor, end)
            if validate and cell.arm != FIRST and cell.played >= study.rounds:
                _validate(study, cell, executor())


def _ready(out: Path, study: Study, problem: str) -> Iterator[Cell]:
    """The runs of a problem that can be played, each made when it is looked at."""
    starts = _cell(out, problem, 0, STARTS)
    for repeat in range(study.repeats):
        first = _copied(starts, _cell(out, problem, repeat, FIRST))
        yield first
        for arm in _arms(study):
            if arm.feedback is None or first.played:
                source = starts if arm.feedback is None else first
                yield _copied(source, _cell(out, problem, repeat, arm.name))


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
    for node in [0, *(each for each in tree.nodes[0].children if start_name(tree, each))]:
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
    arm = _arm(cell)
    while cell.played < study.of(cell) and time.monotonic() < end:
        by_rules = math.floor(study.kernels * arm.rules)
        if arm.feedback is not None:
            reply = _reply(out, cell)
            if reply is None:
                return
            asked = out / "asks" / f"{cell.name()}.md"
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
        search.choose = Wait
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
        click.echo(f"{cell.name()}: {each.loss}: {each.reason[:200]}")
    _print(cell, tree, known)


def _print(cell: Cell, tree: Tree, known: int) -> None:
    for made in tree.nodes[known:]:
        click.echo(f"{cell.name()}: {edit_title(tree, made)}: {_result(made)}")


def _next_edit(search: Search, node: int, most: int) -> Action:
    tree = search.tree_search.tree
    untried = tree.nodes[node].untried
    if not untried or len(tree.nodes) >= most:
        return Wait()
    return Try(node, untried[0], search.tree_search.edit(node, untried[0]))


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
    arm = _arm(cell)
    source = _cell(out, cell.problem, 0, STARTS) if arm.is_fresh else cell
    folder = open_run(source.path)
    task, fingerprint = folder.load_task(), read_manifest(folder).fingerprint
    search = TreeSearch(read_tree(folder.journal), MemoryJournal(), folder.blobs)
    flops = _flops(str(out.resolve()), cell.problem)
    request = request_of(search, _node(source), task, fingerprint, flops)
    if eager := _eager(out, cell.problem, fingerprint.get("gpu", "")):
        known = f"PyTorch itself takes {1e3 * eager:.4g} ms."
        request = replace(request, standing=(known, *request.standing))
    device = device_sentences(fingerprint, task, flops)
    return ask_text(request, study.kernels, device, arm.feedback or Feedback.DIAGNOSIS)


def _node(cell: Cell) -> int:
    """The fastest kernel; where a model wrote some and none of them is right, the most promising of these."""
    tree = read_tree(RunFolder(cell.path).journal)
    if _arm(cell).is_fresh:
        return best_start(tree)
    written = _written(tree)
    if written and not any(each.outcome is Outcome.OK for each in written):
        return max(written, key=lambda each: made.prior if (made := tree.made_by(each)) else 0.0).id
    return max(tree.nodes, key=valid_speedup).id


def _written(tree: Tree) -> list[Node]:
    """The kernels that a model wrote."""
    return [each for each in tree.nodes if (made := tree.made_by(each)) and made.proposer == MODEL]


@cache
def _flops(out: str, problem: str) -> dict[str, float]:
    return dict(product_flops(load_task(Path(out) / "tasks" / problem, Language.CUDA)))


def _time_eager(out: Path, problem: str) -> None:
    folder = RunFolder(_cell(out, problem, 0, STARTS).path)
    gpu = read_manifest(folder).fingerprint.get("gpu", "")
    if _eager(out, problem, gpu):
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


def _eager(out: Path, problem: str, gpu: str) -> float:
    return (read_json(out / "eager" / f"{problem}.json", dict[str, float]) or {}).get(gpu, 0.0)


def _wanting(out: Path, study: Study) -> Iterator[Cell]:
    """The runs that a model is to be asked about next."""
    for problem in study.problems:
        cells = _ready(out, study, problem) if _is_usable(_cell(out, problem, 0, STARTS)) else ()
        yield from (
            each for each in cells if _arm(each).feedback is not None and each.played < study.of(each)
        )


def _is_usable(starts: Cell) -> bool:
    """Whether the root of a problem is right."""
    return starts.path.exists() and read_tree(RunFolder(starts.path).journal).nodes[0].outcome is Outcome.OK


def _reply(out: Path, cell: Cell) -> str | None:
    file = next(iter(sorted((out / "replies").glob(f"{cell.name()}.*"))), None)
    return file.read_text("utf-8", "replace") if file is not None else None


def _cell(out: Path, problem: str, repeat: int, arm: str) -> Cell:
    return Cell(problem, repeat, arm, out / "runs" / problem / str(repeat) / arm)


def _read(out: Path) -> Study:
    return msgspec.json.decode((out / "study.json").read_bytes(), type=Study)


def _arms(study: Study) -> list[Arm]:
    return [each for each in ARMS if each.name in study.arms]


def _arm(cell: Cell) -> Arm:
    return next((each for each in ARMS if each.name == cell.arm), Arm(cell.arm, Feedback.DIAGNOSIS))


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


class Row(msgspec.Struct, frozen=True):
    """What an arm reached on a problem; times are None where nothing was right or eager PyTorch wasn't timed."""

    arm: str
    problem: str
    repeat: int
    seconds: float
    over_start: float
    over_eager: float | None
    evaluations: int
    calls: int
    written: int
    right: int


def rows(out: Path, arms: Sequence[str] = ()) -> Iterator[Row]:
    """A row for each run of the study that has played all of its rounds, those of the first reply included."""
    study = _read(out)
    names = [FIRST, *(each.name for each in _arms(study))]
    for problem, repeat, arm in product(study.problems, range(study.repeats), names):
        cell = _cell(out, problem, repeat, arm)
        if cell.path.exists() and cell.played >= study.of(cell) and (not arms or arm in arms):
            yield _row(out, cell)


def _row(out: Path, cell: Cell) -> Row:
    folder = open_run(cell.path)
    tree = read_tree(folder.journal)
    answer = read_answer(folder)
    fastest = max(tree.nodes, key=valid_speedup)
    best = tree.nodes[answer.node] if answer and answer.node is not None else fastest
    start = tree.nodes[best_start(tree)]
    seconds = run_seconds(best.evaluation) if best.evaluation else None
    eager = _eager(out, cell.problem, read_manifest(folder).fingerprint.get("gpu", ""))
    written = _written(tree)
    return Row(
        cell.arm,
        cell.problem,
        cell.repeat,
        seconds or math.nan,
        valid_speedup(best) / valid_speedup(start),
        eager / seconds if eager and seconds else None,
        tree.evaluations - 1 - sum(bool(start_name(tree, each)) for each in tree.nodes[0].children),
        sum(1 for _ in exchanges_of(folder)),
        len(written),
        sum(each.outcome is Outcome.OK for each in written),
    )


def document(found: Sequence[Row], rounds: int) -> str:
    """The page: means of the arms over what all of them played, comparisons with the baseline, times by problem."""
    arms = list(dict.fromkeys(row.arm for row in found))
    played = [{(row.problem, row.repeat) for row in found if row.arm == arm} for arm in arms]
    summary = []
    for arm in arms:
        own = [
            row
            for row in found
            if row.arm == arm and all((row.problem, row.repeat) in each for each in played)
        ]
        eager = [row.over_eager for row in own if row.over_eager]
        written = sum(row.written for row in own)
        summary.append(
            [
                arm,
                str(len(own)),
                f"{geometric_mean(eager):.2f}" if eager else "",
                f"{geometric_mean([row.over_start for row in own]):.2f}",
                f"{np.mean([row.evaluations for row in own]):.1f}",
                f"{np.mean([row.calls for row in own]):.1f}",
                f"{sum(row.right for row in own) / written:.0%}" if written else "",
            ]
        )
    columns = ["arm", "runs", "over eager", "over the best start", "kernels a run", "calls a run", "right"]
    problems = list(dict.fromkeys(row.problem for row in found))
    times = [
        [
            problem,
            *(
                ", ".join(
                    f"{1e3 * row.seconds:.4g}" for row in found if (row.problem, row.arm) == (problem, arm)
                )
                for arm in arms
            ),
        ]
        for problem in problems
    ]
    pairs = list(_effects(found))
    title = f"## Against {BASELINE}, in pairs of the same problem and repeat"
    columns_of_pairs = ["arm", "pairs", "ratio of times", "95 % interval", "p"]
    return page(
        "A language model in the loop",
        f"Geometric means after {rounds} rounds ({FIRST}: one reply), of the problems and repeats that all of these "
        "arms played; right is the share of the model's kernels that were.",
        table(columns, summary),
        *((title, table(columns_of_pairs, pairs)) if pairs else ()),
        "## Milliseconds of the fastest kernel",
        table(["problem", *arms], times),
    )


def _effects(found: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """The baseline's times over each arm's, by geometric means, bootstrap intervals and sign-flip tests of pairs."""
    theirs = {(row.problem, row.repeat): row.seconds for row in found if row.arm == BASELINE}
    for arm in dict.fromkeys(row.arm for row in found if row.arm not in {BASELINE, FIRST}):
        own = [row for row in found if row.arm == arm and (row.problem, row.repeat) in theirs]
        logs = np.log([theirs[row.problem, row.repeat] / row.seconds for row in own])
        if own:
            made = estimate([logs])
            interval = f"{math.exp(made.low):.3f} to {math.exp(made.high):.3f}"
            yield arm, str(len(own)), f"{math.exp(made.mean):.3f}", interval, f"{sign_flip_p(logs):.2g}"


@main.command("table")
@click.argument("out", type=click.Path(path_type=Path, exists=True))
@click.option("--arm", "arms", multiple=True, help="Only these arms, or first: what the first reply gave.")
def print_table(out: Path, arms: tuple[str, ...]) -> None:
    """Print the table, and write it to OUT/table.md."""
    found = list(rows(out, arms))
    text = document(found, _read(out).rounds)
    (out / "table.md").write_text(text + "\n", "utf-8")
    click.echo(text)


if __name__ == "__main__":
    main()
