"""`mctskernel explain`: which part of the GPU binds a kernel, and what an edit changed about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import rich_click as click
from rich.console import Console
from rich.text import Text

from mctskernel.cli import options
from mctskernel.cli.plain_console import PlainConsole, deliver
from mctskernel.cli.tasks import find_task_or_problem
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import SOURCE_LANGUAGES, Language
from mctskernel.core.task import TaskError
from mctskernel.evaluate import NodeProfile, model_kernels, profile_node, read_kernel
from mctskernel.profiling.ncu import Finding
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
@click.option(
    "--ncu",
    is_flag=True,
    help="Profile NODE with Nsight Compute: print what its rules find and keep RUN/profiles/NODE.ncu-rep for `ncu-ui`. "
    "Needs `ncu`, a GPU, and the permission to read its counters; takes about half a minute.",
)
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
    ncu: bool,
    as_json: bool,
) -> None:
    """Say which part of the GPU binds a kernel, which is next, and what relieving it would bring.

    Of a RUN it explains NODE (default: the best) from what is recorded, and what its edit changed against the parent,
    or against --against: which terms of the time moved, the counts behind them, and what binds now. A difference
    within the model's uncertainty is called a tie.

    Of a TASK (a folder, a built-in task, or a benchmark's problem) it builds, verifies and models the starting kernel
    or --kernel as `search --device model` would, without a GPU.

    Each row of the table is a term: the seconds that this part of the GPU would take alone, the share of the time
    that it explains, and the time if it took half as long, or none. Terms overlap, so they don't add up to the time.
    Measured kernels have no terms; their counters say how long each unit was busy.

        mctskernel explain softmax

        mctskernel explain softmax --kernel mine.cu --against theirs.cu --architecture A100

        mctskernel explain runs/softmax-20260101-120000 17
    """
    if (Path(subject) / "run.json").is_file():
        if kernel or language:
            raise click.UsageError(f"{subject} is a run: --kernel and --language are for a task.")
        view = load_view(Path(subject))
        if ncu:
            _profile(view, view.best.id if node is None else node)
            return
        found = _of_run(view, node, against)
    else:
        if node is not None or ncu:
            raise click.UsageError(f"{subject} is not a run (it has no run.json), so it has no nodes.")
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


def _profile(view: View, node: int) -> None:
    progress = PlainConsole(stderr=True)
    with progress.status("") as status:
        found = profile_node(view, node, _reporter(progress, status.update))
    print_profile(PlainConsole(), found)


def _reporter(progress: Console, update: Callable[[str], None]) -> Callable[[str], None]:
    """In a terminal the last words stay beside a spinner; elsewhere each is a line."""

    def report(words: str) -> None:
        if progress.is_terminal:
            update(words)
        else:
            progress.print(Text(words))

    return report


def print_profile(console: Console, found: NodeProfile) -> None:
    """Print the findings by kernel, the largest estimated gain first, and the run's own diagnosis."""
    for kernel in dict.fromkeys(finding.kernel for finding in found.findings):
        console.print(Text(f"{kernel}: what Nsight Compute's rules find", "bold"))
        for finding in (each for each in found.findings if each.kernel == kernel):
            console.print(Text(f"  {_gain(finding)}{finding.sentence}"))
    if not found.findings:
        console.print(Text("Nsight Compute's rules find nothing."))
    if found.diagnosis is not None and found.diagnosis.causes:
        console.print(Text(f"The run's diagnosis ({found.source})", "bold"))
        for cause in found.diagnosis.causes:
            console.print(Text(f"  {cause.share:.0%}  {cause.sentence}"))
    console.print(Text(f"The report: {found.report}"))


def _gain(finding: Finding) -> str:
    if not finding.speedup:
        return ""
    return f"[{'of one unit, ' if finding.local else ''}up to {finding.speedup:.0%}] "
