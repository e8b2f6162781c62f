"""`mctskernel generate TEXT`: from words to a verified first kernel, and a search of it."""

from __future__ import annotations

import re
import sys
from contextlib import closing
from pathlib import Path

import rich_click as click

from mctskernel.cli import options
from mctskernel.cli.errors import INTERRUPTED
from mctskernel.cli.plain_console import echo
from mctskernel.cli.search import search
from mctskernel.core.device import DeviceSpec
from mctskernel.core.kernel import SOURCE_LANGUAGES, Language
from mctskernel.core.task import UNANCHORED, TaskError
from mctskernel.edits.llm.experts import chosen_experts
from mctskernel.edits.llm.model import OpenModel
from mctskernel.edits.llm.opening import open_model
from mctskernel.edits.llm.recording import Recording
from mctskernel.executors.room import workers_on
from mctskernel.generation import TRANSCRIPT, Effort, Generation
from mctskernel.generation import generate as generate_task
from mctskernel.order import Order
from mctskernel.profiling.devices import default_kind
from mctskernel.profiling.quantities import time_text
from mctskernel.proposers import ASK_A_MODEL, MIXED, RULES
from mctskernel.transcript import read_transcript


@click.command()
@click.argument("text")
@click.option(
    "--reference",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file that defines `reference` in numpy, as a task's reference.py does: it says what is right.",
)
@click.option(
    "--unanchored",
    is_flag=True,
    help="Let the model write the reference too, as there is none. Kernels are then right by what the model took your "
    "words for, which nobody has checked, and everything that follows says so.",
)
@click.option(
    "--task-toml",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with inputs, outputs, shapes and tolerance, as a task's task.toml has them. [default: the model "
    "drafts one, which is shown]",
)
@click.option(
    "--language",
    type=click.Choice([language.value for language in SOURCE_LANGUAGES]),
    default=Language.CUDA.value,
    show_default=True,
    help="What the kernel is written in.",
)
@click.option(
    "--tries",
    type=click.IntRange(1, 100),
    default=Effort().tries,
    show_default=True,
    help="Kernels and repairs that the model is asked for, at the most.",
)
@click.option(
    "--out-task",
    type=click.Path(path_type=Path),
    help="The task's folder. [default: generated/WORDS-OF-THE-TEXT]",
)
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"A {TRANSCRIPT} of before: what the model said then is said again, without a model, and free.",
)
@options.max_usd("Money for models, at the most, generation and search together.")
@options.model
@options.device
@options.architecture
@options.workers
@options.seed
@click.option("--no-search", is_flag=True, help="Stop when there is a verified kernel.")
@click.option(
    "--proposer",
    type=click.Choice([RULES, *sorted(ASK_A_MODEL)]),
    help=f"Who proposes edits in the search. [default: {MIXED}; {RULES} without --model]",
)
@click.option(
    "--budget",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    help="Evaluations of the search, at the most.",
)
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), help="Seconds of the search, at the most."
)
@options.memory
@click.option(
    "--out", type=click.Path(path_type=Path), help="The run's folder. [default: runs/TASK-DATE-TIME]"
)
@click.pass_context
def generate(
    context: click.Context,
    *,
    text: str,
    reference: Path | None,
    unanchored: bool,
    task_toml: Path | None,
    language: str,
    tries: int,
    out_task: Path | None,
    source: Path | None,
    dollars: float | None,
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
    device: str,
    architecture: str,
    workers: int | None,
    seed: int,
    no_search: bool,
    proposer: str | None,
    budget: int,
    seconds: float | None,
    memory: str | None,
    out: Path | None,
) -> None:
    """Write a first kernel of what TEXT asks for, verify it, and search for a faster version.

    A model is asked for it, once by each expert. Whatever it writes is built, verified against the reference and timed
    like any candidate; failures go back to it with what was found. The fastest kernel that is right becomes the start
    of a new task, a folder that you can read, edit and search again. Exits with 6 if no kernel is right.

        mctskernel generate "softmax of each row" --reference softmax.py --model qwen3-coder --base-url URL

        mctskernel generate "the sum of each row of a float32 matrix" --unanchored --model gpt-4.1 --no-search
    """
    _check_usage(reference, source, model, unanchored=unanchored)
    asked = options.llm_options(
        model or "recorded",
        base_url=base_url,
        api_key_env=api_key_env,
        temperature=temperature,
        prices=prices,
        cache=cache,
    )
    folder = out_task or Path("generated") / _slug(text)
    order = Order(text, folder, Language(language), _text_of(reference), _text_of(task_toml))
    effort = Effort(tries, chosen_experts(experts), calls, seed)
    kind = default_kind() if device == "auto" else device
    spec = DeviceSpec(kind, folder, architecture=architecture, seed=seed, language=order.language)
    evaluators = workers or workers_on(kind, order.language)
    opened: OpenModel = (
        Recording(read_transcript(source)) if source else open_model(asked, dollars_left=dollars)
    )
    echo(f"Generating a kernel in {language} on {kind} into {folder}")
    try:
        with closing(opened):
            made = generate_task(order, effort, opened, spec, workers=evaluators, say=echo)
    except KeyboardInterrupt:
        echo(f"Interrupted. What was answered before is in {folder}.", err=True)
        sys.exit(INTERRUPTED)
    _tell(made)
    if no_search:
        echo(f"Next: mctskernel search {folder}")
        return
    left = None if dollars is None else dollars - made.dollars
    chosen = proposer or (MIXED if model else RULES)
    if chosen in ASK_A_MODEL and left is not None and left <= 0:
        echo("The money is spent, so the rules search alone.")
        chosen, judge = RULES, None
    context.invoke(
        search,
        task=str(folder.resolve()),
        budget=budget,
        seconds=seconds,
        dollars=left,
        seed=seed,
        proposer=chosen,
        model=model if chosen in ASK_A_MODEL or judge else None,
        base_url=base_url,
        api_key_env=api_key_env,
        temperature=temperature,
        prices=prices,
        cache=cache,
        judge=judge,
        experts=experts,
        edits_per_call=edits_per_call,
        experts_per_node=experts_per_node,
        calls=calls,
        feedback=feedback,
        language=language,
        device=kind,
        architecture=architecture,
        workers=workers,
        memory=memory,
        out=out,
    )


def _check_usage(reference: Path | None, source: Path | None, model: str | None, *, unanchored: bool) -> None:
    if reference is None and not unanchored:
        raise click.UsageError(
            "Nothing says what is right: give --reference FILE. With --unanchored the model writes the reference too; "
            "then a kernel is right by what the model took your words for, which nobody has checked."
        )
    if reference is not None and unanchored:
        raise click.UsageError("With a --reference the task is anchored in it: leave --unanchored out.")
    if model is None and source is None:
        raise click.UsageError(
            "Name the model with --model NAME, or give a generation of before with --from."
        )


def _slug(text: str) -> str:
    """The first words of a text, as the name of a folder."""
    return "-".join(re.findall(r"[a-z0-9]+", text.lower())[:6])[:48].strip("-") or "task"


def _text_of(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{file} can't be read: {error}.") from error


def _tell(made: Generation) -> None:
    first, *others = made.kernels
    folder = made.task.folder
    note = f" ({UNANCHORED})" if made.task.unanchored else ""
    echo(
        f"The start is the kernel of the expert {first.expert}: {time_text(first.seconds)}, "
        f"{first.evaluation.source}{note}."
    )
    for other in others:
        echo(f"Beside it, of {other.expert}: {time_text(other.seconds)}, {other.evaluation.source}{note}.")
    echo(f"{made.calls} calls, {made.tokens} tokens, {made.dollars:.2f} dollars: {folder / TRANSCRIPT}")
