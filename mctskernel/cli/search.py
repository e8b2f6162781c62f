"""`mctskernel search [TASK]`: a new run."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import rich_click as click

from mctskernel.cli import options
from mctskernel.cli.following import conclude, follow_search, workers_on
from mctskernel.core.kernel import SOURCE_LANGUAGES, Language
from mctskernel.core.surrogate import SurrogateUse
from mctskernel.core.task_file import load_task
from mctskernel.forecast import ForecastOptions
from mctskernel.profiling.devices import default_kind
from mctskernel.run import Budget, Configuration
from mctskernel.runner import PROPOSERS, begin
from mctskernel.tasks import DEFAULT_TASK, find_task
from mctskernel.tree.backup import VALUES
from mctskernel.tree.choices import with_settings
from mctskernel.tree.policy import Policy
from mctskernel.tree.selection import SELECTIONS
from mctskernel.tree.strategies import STRATEGIES

DEFAULTS = Policy()


@click.command()
@click.argument("task", default=DEFAULT_TASK)
@click.option(
    "--budget", type=click.IntRange(min=1), default=200, show_default=True, help="Evaluations, at the most."
)
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Seconds, at the most.")
@click.option("--dollars", type=click.FloatRange(min=0, min_open=True), help="Money for models, at the most.")
@options.seed
@click.option(
    "--proposer",
    type=click.Choice(list(PROPOSERS)),
    default="rules",
    show_default=True,
    help="Who proposes edits.",
)
@click.option(
    "--language",
    type=click.Choice([language.value for language in SOURCE_LANGUAGES]),
    default=Language.CUDA.value,
    show_default=True,
    help="The language of the starting kernel: kernel.cu or kernel.py of the task.",
)
@options.device
@options.architecture
@options.workers
@click.option(
    "--strategy",
    type=click.Choice(list(STRATEGIES)),
    default=DEFAULTS.strategy,
    show_default=True,
    help="What decides which edit comes next; --selection, --backup and --exploration are for mcts.",
)
@click.option(
    "--selection",
    type=click.Choice(list(SELECTIONS)),
    default=DEFAULTS.selection,
    show_default=True,
    help="How a child is chosen.",
)
@click.option(
    "--backup",
    type=click.Choice(list(VALUES)),
    default=DEFAULTS.value,
    show_default=True,
    help="What a node is worth: the mean or the best of what was found below it.",
)
@click.option(
    "--exploration",
    type=float,
    default=DEFAULTS.exploration,
    show_default=True,
    help="Weight of the little visited.",
)
@options.policy
@options.surrogate
@click.option(
    "--out", type=click.Path(path_type=Path), help="The run's folder. [default: runs/TASK-DATE-TIME]"
)
def search(
    *,
    task: str,
    budget: int,
    seconds: float | None,
    dollars: float | None,
    seed: int,
    proposer: str,
    language: str,
    device: str,
    architecture: str,
    workers: int | None,
    strategy: str,
    selection: str,
    backup: str,
    exploration: float,
    settings: tuple[str, ...],
    surrogate: str,
    surrogate_candidates: int,
    surrogate_share: float,
    surrogate_workers: int,
    surrogate_wait: bool | None,
    out: Path | None,
) -> None:
    """Search for a faster version of TASK's kernel.

    TASK is a folder with task.toml, reference.py and a kernel (`mctskernel new-task DIR` makes one), or the
    name of a built-in task (`mctskernel tasks` lists them). Every version is compiled, verified against the
    reference, timed and diagnosed. The tree is written down as it grows, so Ctrl-C or a crash loses nothing:
    `mctskernel resume RUN` goes on. With --workers 1 the same seed gives the same tree.

        mctskernel search softmax --budget 100

        mctskernel search my_task/ --device gpu --seconds 600 --out runs/first
    """
    folder = find_task(task)
    chosen = Language(language)
    name = load_task(folder, chosen).name
    kind = default_kind() if device == "auto" else device
    use, evaluators = SurrogateUse(surrogate), workers or workers_on(kind, chosen)
    configuration = Configuration(
        task=name,
        device=kind,
        architecture=architecture,
        proposer=proposer,
        seed=seed,
        workers=evaluators,
        budget=Budget(evaluations=budget, seconds=seconds, dollars=dollars),
        policy=with_settings(
            Policy(
                strategy=strategy,
                selection=selection,
                value=backup,
                exploration=exploration,
                order=DEFAULTS.order if use is SurrogateUse.OFF else "predicted",
                lookahead=surrogate_candidates if use is SurrogateUse.FILTER else DEFAULTS.lookahead,
                dissent=surrogate_share,
            ),
            settings,
        ),
        language=chosen,
        forecasts=None
        if use is SurrogateUse.OFF
        else ForecastOptions(
            surrogate_workers, evaluators == 1 if surrogate_wait is None else surrogate_wait
        ),
    )
    path = out or Path("runs") / f"{name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    click.echo(
        f"Searching {name} in {language} on {configuration.device} with {configuration.workers} worker(s) into {path}"
    )
    with follow_search() as (follow, stop_requested):
        conclusion = begin(path, folder, configuration, follow, stop_requested)
    conclude(conclusion)
