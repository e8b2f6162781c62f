"""`mctskernel explain`: which part of the GPU binds a kernel, and what an edit moved."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from mctskernel.cli import options
from mctskernel.cli.plain_console import PlainConsole, deliver
from mctskernel.cli.problems import find_task_or_problem
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import SOURCE_LANGUAGES, Language
from mctskernel.core.task import TaskError
from mctskernel.explain import model_kernels, read_kernel
from mctskernel.report.explained import ExplainedKernel, explained, print_explained, to_json
from mctskernel.report.view import View, load_view
from mctskernel.run import RunError
from mctskernel.tree.trajectory import edit_title


@click.command()
@click.argument("subject", metavar="RUN|TASK")
@click.argument("node", type=click.IntRange(min=0), required=False)
@click.option(
    "--against",
    metavar="NODE|FILE",
    help="What to compare with: a node of RUN [default: NODE's parent], or another kernel of TASK.",
)
@click.option(
    "--kernel", type=click.Path(path_type=Path), help="A kernel of TASK, instead of its starting kernel."
)
@click.option(
    "--language",
    type=click.Choice([language.value for language in SOURCE_LANGUAGES]),
    help="The language of TASK's starting kernel.",
)
@options.architecture
@click.option("--json", "as_json", is_flag=True, help="Print JSON, times in seconds.")
@click.pass_context
def explain(
    context: click.Context,
    *,
    subject: str,
    node: int | None,
    against: str | None,
    kernel: Path | None,
    language: str | None,
    architecture: str,
    as_json: bool,
) -> None:
    """Say which part of the GPU binds a kernel, which is next, and what relieving it would bring.

    Of a RUN it explains NODE (the best one if it isn't given) from what is recorded, and what the edit that made it
    did to its parent, or to --against: which terms of the time moved, the counts behind them, and what binds now. A
    difference that is no larger than what the model can tell is called a tie.

    Of a TASK (a folder, the name of a built-in one, or a benchmark's problem) it builds, verifies and prices the
    starting kernel or --kernel as `search --device model` would, without a run and without a GPU.

    The table has a row for each term: the seconds that this part of the GPU would take alone, the share of the time
    that it explains, and the time if it took half as long, or none. Terms overlap, so they don't add up to the time.
    Measured kernels have no terms: how long each unit was busy is what their counters say.

        mctskernel explain softmax

        mctskernel explain softmax --kernel mine.cu --against theirs.cu --architecture A100

        mctskernel explain runs/softmax-20260101-120000 17
    """
    if (Path(subject) / "run.json").is_file():
        if kernel or language:
            raise click.UsageError(f"{subject} is a run: --kernel and --language are for a task.")
        found = _of_run(load_view(Path(subject)), node, against)
    else:
        if node is not None:
            raise click.UsageError(f"{subject} is not a run (it has no run.json), so it has no node {node}.")
        other = Path(against) if against else None
        chosen = Language(language) if language else None
        folder = find_task_or_problem(context, subject, chosen or Language.CUDA)
        found = _of_task(folder, subject, (kernel, other), chosen, architecture)
    if as_json:
        deliver(to_json(found) + "\n")
    else:
        print_explained(PlainConsole(), found)


def _of_run(view: View, node: int | None, against: str | None) -> ExplainedKernel:
    chosen = view.best.id if node is None else node
    evaluation = _timed(view, chosen)
    if against is not None:
        if not against.isdecimal():
            raise click.UsageError(f"--against of a run is the number of a node, not '{against}'.")
        return explained(
            _title(view, chosen), evaluation, _title(view, int(against)), _timed(view, int(against))
        )
    parent = view.node(chosen).parent
    if parent is None:
        return explained(_title(view, chosen), evaluation)
    return explained(_title(view, chosen), evaluation, _title(view, parent), view.node(parent).evaluation)


def _timed(view: View, number: int) -> Evaluation:
    evaluation = view.evaluation(number)
    if not evaluation.timings:
        raise RunError(
            f"Node {number} of {view.folder.path} has no time to explain: {evaluation.outcome}: {evaluation.message}"
        )
    return evaluation


def _title(view: View, number: int) -> str:
    return f"node {number} ({edit_title(view.tree, view.node(number))})"


def _of_task(
    folder: Path,
    subject: str,
    chosen: tuple[Path | None, Path | None],
    language: Language | None,
    architecture: str,
) -> ExplainedKernel:
    kernel, against = chosen
    files = (kernel, against) if against else (kernel,)
    kernels = tuple(read_kernel(file) if file else None for file in files)
    names = [str(file) if file else f"starting kernel of {subject}" for file in files]
    evaluations = model_kernels(folder, kernels, language, architecture)
    for name, evaluation in zip(names, evaluations, strict=True):
        if not evaluation.ok:
            raise TaskError(f"{name} has no time to explain: {evaluation.outcome}: {evaluation.message}")
    return explained(names[0], evaluations[0], *((names[1], evaluations[1]) if against else ()))
