"""`mctskernel search [TASK]`: a new run."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import rich_click as click
from click.core import ParameterSource

from mctskernel.cli import options
from mctskernel.cli.following import conclude, follow_search
from mctskernel.cli.plain_console import echo
from mctskernel.cli.problems import find_task_or_problem
from mctskernel.core.executor import LOCAL
from mctskernel.core.kernel import SOURCE_LANGUAGES, Language
from mctskernel.core.surrogate import SurrogateUse
from mctskernel.core.task import UNANCHORED, Task
from mctskernel.core.task_file import load_task
from mctskernel.edits.llm.feedback import Feedback
from mctskernel.edits.llm.mixture import MixtureOptions
from mctskernel.executors import judging_kind
from mctskernel.executors.room import workers_on
from mctskernel.forecast import ForecastOptions
from mctskernel.profiling.devices import default_kind
from mctskernel.profiling.reward import DEFAULT as DEFAULT_REWARD
from mctskernel.profiling.reward import REWARDS
from mctskernel.profiling.spaces import read_space
from mctskernel.proposers import ASK_A_MODEL, PARAMETERS, PROPOSERS, REPLAY, RULES
from mctskernel.run import Budget, Configuration, Spent
from mctskernel.runner import begin, replay
from mctskernel.search_policy import WALK, open_policy
from mctskernel.space_task import MIDDLE, RANDOM, choose_start, write_space_task
from mctskernel.tasks import DEFAULT_TASK
from mctskernel.tree.backup import VALUES
from mctskernel.tree.choices import with_settings
from mctskernel.tree.policy import Policy
from mctskernel.tree.scores import SELECTIONS
from mctskernel.tree.strategies import STRATEGIES

DEFAULTS = Policy()

SAME = "same"
"""The judge that is the model which proposes."""


@click.command()
@click.argument("task", required=False)
@click.option(
    "--space",
    type=click.Path(path_type=Path),
    help="Search the configurations that this file recorded, instead of a TASK: a cache file of Kernel Tuner, T4 "
    "results, or what `mctskernel record` wrote.",
)
@click.option(
    "--start",
    metavar=f"[{MIDDLE}|{RANDOM}|NAME=VALUE,...]",
    default=MIDDLE,
    show_default=True,
    help="Where a search of a --space starts: near the middle of all parameters, anywhere, or at these values.",
)
@click.option(
    "--budget", type=click.IntRange(min=1), default=200, show_default=True, help="Evaluations, at the most."
)
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Seconds, at the most.")
@options.max_usd("Money for models, at the most: US dollars, by the list of prices.")
@options.seed
@click.option(
    "--proposer",
    type=click.Choice(list(PROPOSERS)),
    default=RULES,
    show_default=True,
    help="Who proposes edits: the rules, a language model, or for each node whoever did better so far.",
)
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path),
    help="The run that --proposer replay repeats, with what its model said: without a model, and free.",
)
@options.model
@click.option(
    "--language",
    type=click.Choice([language.value for language in SOURCE_LANGUAGES]),
    default=Language.CUDA.value,
    show_default=True,
    help="The language of the starting kernel: kernel.cu or kernel.py of the task.",
)
@options.searched_device
@options.architecture
@options.workers
@options.executor
@click.option(
    "--strategy",
    type=click.Choice(list(STRATEGIES)),
    help="What decides which edit comes next; --selection, --backup and --exploration are for mcts."
    f" [default: {DEFAULTS.strategy}; mcts on model and with --surrogate]",
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
@click.option(
    "--reward",
    type=click.Choice(list(REWARDS)),
    default=DEFAULT_REWARD,
    show_default=True,
    help="What an evaluation is worth to the search: its time and what it relieved, under guardrails; "
    "the time alone; or the first without guardrails. The winner is chosen by time and the last gate all the same.",
)
@options.surrogate
@options.memory
@click.option(
    "--out", type=click.Path(path_type=Path), help="The run's folder. [default: runs/TASK-DATE-TIME]"
)
@click.pass_context
def search(
    context: click.Context,
    *,
    task: str | None,
    space: Path | None,
    start: str,
    budget: int,
    seconds: float | None,
    dollars: float | None,
    seed: int,
    proposer: str,
    source: Path | None,
    model: str | None,
    base_url: str,
    api_key_env: str,
    temperature: float | None,
    prices: Path | None,
    cache: Path | None,
    judge: str | None,
    experts: tuple[str, ...],
    edits_per_call: int,
    experts_per_node: int,
    calls: int,
    feedback: str,
    language: str,
    device: str,
    architecture: str,
    workers: int | None,
    engine: str | None,
    gpus: tuple[str, ...],
    ray_address: str,
    counters: str | None,
    strategy: str | None,
    selection: str,
    backup: str,
    exploration: float,
    settings: tuple[str, ...],
    reward: str,
    surrogate: str,
    surrogate_candidates: int,
    surrogate_share: float,
    surrogate_workers: int,
    surrogate_wait: bool | None,
    memory: str | None,
    out: Path | None,
) -> None:
    """Search for a faster version of TASK's kernel.

    TASK is a folder with task.toml, reference.py and a kernel (`mctskernel new-task DIR` makes one), the
    name of a built-in task (`mctskernel tasks` lists them), or a problem of KernelBench, SOL-ExecBench,
    flashinfer-bench or GPU MODE, which is made a task. Every version is compiled, verified against the
    reference, timed and diagnosed. The tree is written down as it grows, so Ctrl-C or a crash loses nothing:
    `mctskernel resume RUN` goes on. With --workers 1 the same seed gives the same tree.

        mctskernel search softmax --budget 100

        mctskernel search my_task/ --device gpu --seconds 600 --out runs/first

        mctskernel search --space recorded.json.gz --budget 200

        mctskernel search softmax --proposer mixed --model qwen3-coder --base-url http://localhost:8000/v1
    """
    if proposer == REPLAY or source is not None:
        _replay(context, source, out)
        return
    limits = Budget(evaluations=budget, seconds=seconds, dollars=dollars)
    llm = None
    if proposer in ASK_A_MODEL or judge is not None:
        llm = options.llm_options(
            model or (judge if judge and judge != SAME else "") or "",
            base_url=base_url,
            api_key_env=api_key_env,
            temperature=temperature,
            prices=prices,
            cache=cache,
        )
    elif model is not None:
        raise click.UsageError(
            f"--model is for --proposer {' or '.join(sorted(ASK_A_MODEL))}, or for a --judge."
        )
    if space is None:
        folder, spent = find_task_or_problem(context, task or DEFAULT_TASK, Language(language)), Spent()
    elif task is not None:
        raise click.UsageError("Give a TASK or a --space, not both.")
    else:
        folder = Path(context.with_resource(TemporaryDirectory()))
        spent = _begin_space(space, start, seed, limits, folder)
    loaded = load_task(folder, Language(language))
    name, chosen = loaded.name, loaded.starting_kernel.language
    kind = _kind(device, loaded)
    driver = options.executor_options(kind, engine, gpus, ray_address, counters) or LOCAL
    if loaded.space and llm is not None:
        raise click.UsageError("A recorded space has a proposer of its own, which knows its configurations.")
    if loaded.space and surrogate != SurrogateUse.OFF:
        raise click.UsageError("--surrogate is for kernels: nothing predicts a configuration of a --space.")
    use, evaluators = SurrogateUse(surrogate), workers or workers_on(kind, chosen, driver)
    begun = open_policy(judging_kind(kind), proposer, use, surrogate_candidates)
    policy = with_settings(
        msgspec.structs.replace(
            begun,
            strategy=_checked_strategy(strategy, use) or begun.strategy,
            selection=selection,
            value=backup,
            exploration=exploration,
            dissent=surrogate_share,
        ),
        settings,
    )
    _check_rollouts(policy, use)
    configuration = Configuration(
        task=name,
        device=kind,
        architecture=architecture,
        proposer=PARAMETERS if loaded.space else proposer,
        seed=seed,
        workers=evaluators,
        budget=limits,
        policy=policy,
        language=chosen,
        forecasts=None
        if use is SurrogateUse.OFF
        else ForecastOptions(
            surrogate_workers, evaluators == 1 if surrogate_wait is None else surrogate_wait
        ),
        spent=spent,
        memory=memory,
        llm=llm,
        reward=reward,
        executor=driver,
        judge="" if judge == SAME else judge,
        mixture=None
        if llm is None
        else MixtureOptions(
            experts=experts,
            edits=edits_per_call,
            at_once=experts_per_node,
            in_flight=calls,
            feedback=Feedback(feedback),
        ),
    )
    path = out or Path("runs") / f"{name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    echo(
        f"Searching {name} in {chosen} on {kind} with {f'{evaluators} worker(s)' if evaluators else 'all its workers'} "
        f"into {path}{f' ({UNANCHORED})' if loaded.unanchored else ''}"
    )
    with follow_search() as (follow, stop_requested):
        conclusion = begin(path, folder, configuration, follow, stop_requested)
    conclude(conclusion)


def _replay(context: click.Context, source: Path | None, out: Path | None) -> None:
    """Repeat a run with what its model said then."""
    if source is None or context.params["proposer"] != REPLAY:
        raise click.UsageError("A replay needs both --proposer replay and --from RUN.")
    others = {"proposer", "source", "out"}
    given = [
        name
        for name in context.params
        if name not in others and context.get_parameter_source(name) is not ParameterSource.DEFAULT
    ]
    if given:
        raise click.UsageError(f"A replay takes everything else from {source}: leave {', '.join(given)} out.")
    path = out or Path("runs") / f"{source.name}-replayed-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    echo(f"Replaying {source} into {path}")
    with follow_search() as (follow, stop_requested):
        conclusion, difference = replay(path, source, follow, stop_requested)
    echo(difference or f"Every node of {source} was made again.")
    conclude(conclusion)


def _kind(device: str, task: Task) -> str:
    """The device that is meant; a recorded space has only one."""
    if task.space:
        if device not in ("auto", "recorded"):
            raise click.UsageError(f"{task.name} is a recorded space: it is searched on --device recorded.")
        return "recorded"
    if device == "recorded":
        raise click.UsageError("--device recorded needs --space FILE, the configurations that were recorded.")
    return default_kind() if device == "auto" else device


def _begin_space(file: Path, wanted: str, seed: int, budget: Budget, folder: Path) -> Spent:
    """Make a task of a recorded space, saying what was odd about the file and which starts failed."""
    space = read_space(file)
    for remark in space.remarks:
        echo(f"mctskernel: {remark}", err=True)
    start = choose_start(space, wanted, seed, budget)
    write_space_task(space, start.entry, folder)
    if start.failed:
        of = f" of {budget.evaluations}" if budget.evaluations else ""
        echo(
            f"mctskernel: {len(start.failed)}{of} evaluations went to starting configurations that failed.",
            err=True,
        )
    return start.spent


def _checked_strategy(chosen: str | None, use: SurrogateUse) -> str | None:
    """Predictions order the edits of a node, and it is the walk that comes to a node and then asks which."""
    if use is SurrogateUse.ORDER and chosen not in (None, WALK):
        raise click.UsageError(f"--surrogate order is for --strategy {WALK}, not {chosen}.")
    return chosen


def _check_rollouts(policy: Policy, use: SurrogateUse) -> None:
    """Rollouts are priced by predictions and lead walks."""
    if policy.rollout == DEFAULTS.rollout:
        return
    if use is SurrogateUse.OFF:
        raise click.UsageError(
            f"rollout={policy.rollout} needs predictions of the kernels that it comes to: add --surrogate order."
        )
    if policy.strategy != "mcts":
        raise click.UsageError(f"rollout={policy.rollout} is for --strategy mcts, not {policy.strategy}.")
