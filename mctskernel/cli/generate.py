"""`mctskernel generate TEXT`: from words to a verified first kernel, and a search of it."""

from __future__ import annotations

import re
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import rich_click as click

from mctskernel.cli import options
from mctskernel.cli.errors import INTERRUPTED
from mctskernel.cli.plain_console import echo
from mctskernel.cli.search import search_task
from mctskernel.config import ASK_A_MODEL, MIXED, RULES, check, read_config
from mctskernel.core.device import DeviceSpec
from mctskernel.core.kernel import Language
from mctskernel.core.quantities import time_text
from mctskernel.core.task_file import read_text
from mctskernel.edits.llm import open_model
from mctskernel.edits.llm.experts import MixtureOptions, chosen_experts
from mctskernel.edits.llm.model import LLMOptions
from mctskernel.executors import workers_on
from mctskernel.problems.pytorch_timing import product_flops
from mctskernel.profiling.devices import default_kind
from mctskernel.tasks.drafting import Order
from mctskernel.tasks.generation import TRANSCRIPT, Effort, Generation
from mctskernel.tasks.generation import generate as generate_task


@click.command()
@click.argument("text", metavar="TEXT|TASK")
@click.option(
    "--reference",
    type=options.KNOWN_FILE,
    help="A file that defines `reference` in numpy, as a task's reference.py does: it says what is right.",
)
@click.option(
    "--unverified-reference",
    is_flag=True,
    help="Let the model write the reference too. Kernels are then only as right as the model's understanding of TEXT, "
    "which is not checked; everything that follows says so.",
)
@click.option(
    "--task-toml",
    type=options.KNOWN_FILE,
    help="A file with inputs, outputs, shapes and tolerance, as a task's task.toml has them. [default: the model "
    "writes one, which is shown]",
)
@click.option(
    "--tries",
    type=click.IntRange(1, 100),
    default=Effort().tries,
    show_default=True,
    help="Maximum number of kernels and repairs that the model is asked for.",
)
@click.option(
    "--out-task", type=options.PATH, help="The task's folder. [default: generated/WORDS-OF-THE-TEXT]"
)
@options.settings(
    *options.SEARCH,
    file=True,
    changes={
        "device": {"type": click.Choice(("auto", "gpu", "model"))},
        "proposer": {"default": f"{MIXED} with --model, else {RULES}"},
    },
)
@click.option("--no-search", is_flag=True, help="Stop when there is a verified kernel.")
@click.option("--out", type=options.PATH, help="The run's folder. [default: runs/TASK-DATE-TIME]")
def generate(
    *,
    text: str,
    reference: Path | None,
    unverified_reference: bool,
    task_toml: Path | None,
    tries: int,
    out_task: Path | None,
    table: dict[str, Any],
    no_search: bool,
    out: Path | None,
) -> None:
    """Let a language model write a first kernel from TEXT, verify it, and search for a faster one.

    Several experts each write a kernel; whatever they write is built, verified and timed as any candidate, and failures
    go back to them. The fastest correct kernel is where the search begins, and the others are further starting points.
    What is right, --reference says; or TASK, a task's folder, whose own kernels stay as they are. --max-usd limits
    generation and search together.

        mctskernel generate "softmax of each row" --reference softmax.py --model qwen3-coder --base-url http://localhost:8000/v1
    """
    llm = table.get("llm", {})
    has_task = (Path(text) / "task.toml").is_file()
    if not has_task:
        _check_reference(reference, unverified_reference=unverified_reference)
    elif reference or unverified_reference or task_toml or out_task:
        raise click.UsageError(f"{text} is a task, which has its reference and its place.")
    if not llm.get("model"):
        raise click.UsageError("Name the model with --model NAME.")
    table = {"proposer": MIXED if llm.get("model") else RULES, **table}
    config = read_config(table if table["proposer"] in ASK_A_MODEL else {**table, "llm": {}})
    check(config)
    words = re.findall(r"[a-z0-9]+", text.lower())[:6]
    folder = out_task or Path("generated") / ("-".join(words)[:48].strip("-") or "task")
    text, folder = ("", Path(text)) if has_task else (text, folder)
    language = config.language or Language.CUDA
    given = [read_text(each) if each else "" for each in (reference, task_toml)]
    order = Order(text, folder, language, given[0], given[1], has_task)
    mixture = msgspec.convert(table.get("mixture", {}), MixtureOptions)
    effort = Effort(tries, chosen_experts(mixture.experts), mixture.in_flight)
    device = default_kind() if config.device == "auto" else config.device
    workers = config.workers or workers_on(device)
    spec = DeviceSpec(device, folder, config.architecture, config.seed, language)
    opened = open_model(msgspec.convert(llm, LLMOptions), dollars_left=config.budget.dollars)
    echo(f"Generating a kernel in {order.language} on {device} into {folder}")
    try:
        with closing(opened):
            made = generate_task(
                order, effort, opened, spec, workers=workers, say=echo, flops_of=product_flops
            )
    except KeyboardInterrupt:
        echo(f"Interrupted. The replies so far are in {folder}.", err=True)
        sys.exit(INTERRUPTED)
    _print(made)
    if no_search:
        echo(f"Next: mctskernel search {folder}")
        return
    budget = config.budget
    left = None if budget.dollars is None else budget.dollars - made.dollars
    if left is not None and left <= 0 and config.asks_a_model:
        echo("The money is spent, so the search uses the rules alone.")
        config = read_config({**table, "proposer": RULES, "llm": {}})
        left = None
    budget = msgspec.structs.replace(budget, dollars=left)
    search_task(folder.resolve(), msgspec.structs.replace(config, device=device, budget=budget), out)


def _check_reference(reference: Path | None, *, unverified_reference: bool) -> None:
    if reference is None and not unverified_reference:
        raise click.UsageError(
            "Give --reference FILE, which defines the right result. With --unverified-reference the model writes the "
            "reference too, unchecked."
        )
    if reference is not None and unverified_reference:
        raise click.UsageError("--unverified-reference is for a task without a --reference.")


def _print(made: Generation) -> None:
    first, *others = made.kernels
    note = "".join(f" ({each})" for each in made.task.caveats)
    echo(
        f"The fastest correct kernel is by the expert {first.expert}: {time_text(first.seconds)}, "
        f"{first.evaluation.source}{note}."
    )
    for other in others:
        echo(f"Also correct, by {other.expert}: {time_text(other.seconds)}, {other.evaluation.source}{note}.")
    transcript = made.task.folder / TRANSCRIPT
    tokens = sum(each.input_tokens + each.output_tokens for each in made.exchanges)
    echo(f"{len(made.exchanges)} calls, {tokens} tokens, {made.dollars:.2f} dollars: {transcript}")
