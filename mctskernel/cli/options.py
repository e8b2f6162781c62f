"""Options that several commands take."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import rich_click as click

from mctskernel.cli.plain_console import deliver
from mctskernel.core.device import DeviceError, is_remote
from mctskernel.core.executor import ENGINES, CounterSet, ExecutorOptions
from mctskernel.core.surrogate import SurrogateUse
from mctskernel.edits.llm.experts import EXPERTS
from mctskernel.edits.llm.feedback import Feedback
from mctskernel.edits.llm.mixture import MixtureOptions
from mctskernel.edits.llm.options import KEY_VARIABLE, LLMOptions
from mctskernel.memory import default_path
from mctskernel.profiling.architecture import (
    FILE_SUFFIX,
    ArchitectureError,
    known_architectures,
    load_architecture,
)
from mctskernel.tree.policy import Policy

Command = Callable[..., Any]


GPUS = f"[{'|'.join(known_architectures())}|FILE{FILE_SUFFIX}]"
"""How the help page writes what `described_gpu` takes."""


def described_gpu(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """An option's value: the short name of a described GPU, or a file that describes one.

    Of a file the whole path is kept, so that a run can be resumed from anywhere.
    """
    if value is None:
        return None
    try:
        load_architecture(value)
    except ArchitectureError as error:
        raise click.BadParameter(str(error), ctx, param) from error
    return str(Path(value).resolve()) if value.endswith(FILE_SUFFIX) else value.upper()


def _listed(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in value.split(",") if each.strip())


architecture = click.option(
    "--architecture",
    metavar=GPUS,
    callback=described_gpu,
    default="H100",
    show_default=True,
    help="The GPU that --device model stands for: a name, or a file that `mctskernel calibrate` wrote.",
)

workers = click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Evaluations in flight; on a GPU, processes that compile for it. "
    "[default: one for each CPU core; on a GPU 4, for Triton 8; on a server and in a Ray cluster as many as there is "
    "room for]",
)

gpus = click.option(
    "--gpus",
    metavar="GPU,...",
    default="",
    callback=_listed,
    help="The GPUs of this machine to use: indices, or beginnings of UUIDs. [default: all; for `resume` as before]",
)

counters = click.option(
    "--counters",
    type=click.Choice([each.value for each in CounterSet]),
    help="Which hardware counters are read on a GPU: all; few, those of the multiprocessors and of DRAM; or the time "
    "alone, which diagnoses nothing. Fewer are read faster, and GPUs of one machine wait for each other to read them. "
    "[default: all for one GPU, few for several; for `resume` as before]",
)

_EXECUTOR = (
    click.option(
        "--executor",
        "engine",
        type=click.Choice(ENGINES),
        help="What drives the devices: processes of this machine, or those of a Ray cluster. [default: local; for "
        "`resume` as before]",
    ),
    gpus,
    counters,
    click.option(
        "--ray-address",
        metavar="HOST:PORT",
        default="",
        help="The cluster of --executor ray. [default: RAY_ADDRESS, or what `ray start` began here, or a new one]",
    ),
)


def executor(command: Command) -> Command:
    """The options of a command that may use several devices."""
    for option in reversed(_EXECUTOR):
        command = option(command)
    return command


def executor_options(
    device: str | None,
    engine: str | None,
    gpus: tuple[str, ...],
    ray_address: str,
    counters: str | None = None,
) -> ExecutorOptions | None:
    """What the options of `executor` say of a device, if it is known by now; None when none of them was given."""
    if gpus and device not in (None, "gpu"):
        raise click.UsageError(f"--gpus is for --device gpu, not {device}.")
    if counters and device not in (None, "gpu"):
        raise click.UsageError(f"--counters is for --device gpu, not {device}.")
    if gpus and engine == "ray":
        raise click.UsageError("--gpus is for --executor local: which GPUs a cluster has, `ray start` says.")
    if ray_address and engine != "ray":
        raise click.UsageError("--ray-address is for --executor ray.")
    if engine == "ray" and is_remote(device or ""):
        raise click.UsageError(
            "--executor ray is for this machine's cluster: what drives a server's, `serve` says."
        )
    if engine == "ray" and device == "recorded":
        raise click.UsageError("--executor ray is for kernels: a recorded space is looked up at once.")
    if engine is None and not gpus and not counters:
        return None
    return ExecutorOptions(engine or "local", gpus, ray_address, CounterSet(counters) if counters else None)


def print_schema(make: Callable[[], Mapping[str, Any]], text: str) -> Callable[[Command], Command]:
    """An option --schema that prints a JSON schema and does nothing else."""

    def show(ctx: click.Context, _param: click.Parameter, wanted: object) -> None:
        if wanted and not ctx.resilient_parsing:
            deliver(json.dumps(make(), indent=2) + "\n")
            ctx.exit()

    return click.option("--schema", is_flag=True, is_eager=True, expose_value=False, callback=show, help=text)


_SURROGATE = (
    click.option(
        "--surrogate",
        type=click.Choice([use.value for use in SurrogateUse]),
        default=SurrogateUse.OFF.value,
        show_default=True,
        help="What the model's predictions decide: nothing; which edit of a node comes first; or also which of "
        "several nodes' edits deserves the next evaluation.",
    ),
    click.option(
        "--surrogate-candidates",
        type=click.IntRange(min=1),
        default=4,
        show_default=True,
        help="With filter: edits that are compared for each evaluation.",
    ),
    click.option(
        "--surrogate-share",
        type=click.FloatRange(0, 1),
        default=Policy().dissent,
        show_default=True,
        help="Evaluations that go to what the model dislikes, or has no opinion of: it is wrong somewhere.",
    ),
    click.option(
        "--surrogate-workers",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Processes that predict; each takes up to a core.",
    ),
    click.option(
        "--surrogate-wait/--no-surrogate-wait",
        default=None,
        help="Whether the search waits for predictions, or goes by the prior until they come. "
        "[default: wait with one worker, so that the same seed gives the same tree]",
    ),
)


def surrogate(command: Command) -> Command:
    """The options of a search that the model's predictions guide."""
    for option in reversed(_SURROGATE):
        command = option(command)
    return command


_MODEL = (
    click.option(
        "--model", metavar="NAME", help="The language model that proposes edits, as its server calls it."
    ),
    click.option(
        "--base-url",
        metavar="URL",
        default="",
        help="An OpenAI-compatible server, such as http://localhost:8000/v1. [default: OpenAI's own]",
    ),
    click.option(
        "--api-key-env",
        metavar="VARIABLE",
        default=KEY_VARIABLE,
        show_default=True,
        help="The environment variable that holds the server's key.",
    ),
    click.option(
        "--temperature",
        type=click.FloatRange(0, 2),
        help="Of the model's replies. [default: the server's own]",
    ),
    click.option(
        "--prices",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Prices of models, before the built-in ones.",
    ),
    click.option(
        "--cache",
        type=click.Path(file_okay=False, path_type=Path),
        help="A folder that keeps replies: an identical call isn't made again.",
    ),
    click.option(
        "--judge",
        metavar="[same|NAME]",
        help="Let a model weigh the edits of whichever proposer before they are tried: the one that proposes, or this "
        "one of its server. What it finds hopeless waits.",
    ),
    click.option(
        "--expert",
        "experts",
        metavar="NAME[=MODEL][@TEMPERATURE]",
        multiple=True,
        help="Who may be asked, again for more, perhaps of another model: "
        f"{', '.join(expert.name for expert in EXPERTS)}. [default: all]",
    ),
    click.option(
        "--edits-per-call",
        type=click.IntRange(1, 64),
        default=MixtureOptions().edits,
        show_default=True,
        help="Edits that an expert is asked for at a time.",
    ),
    click.option(
        "--experts-per-node",
        type=click.IntRange(1, len(EXPERTS)),
        default=MixtureOptions().at_once,
        show_default=True,
        help="Experts that are asked for edits of a node at a time, one after the other.",
    ),
    click.option(
        "--feedback",
        type=click.Choice([each.value for each in Feedback]),
        default=MixtureOptions().feedback.value,
        show_default=True,
        help="What models are told of a kernel beside its time: nothing, its counters, or what binds it in sentences.",
    ),
    click.option(
        "--calls",
        type=click.IntRange(1, 64),
        default=MixtureOptions().in_flight,
        show_default=True,
        help="Nodes that may wait for the model at the same time.",
    ),
)


def model(command: Command) -> Command:
    """The options of a search that a language model proposes edits for."""
    for option in reversed(_MODEL):
        command = option(command)
    return command


def llm_options(
    model: str,
    *,
    base_url: str,
    api_key_env: str,
    temperature: float | None,
    prices: Path | None,
    cache: Path | None,
) -> LLMOptions:
    """The language model of this name, by what the options of `model` say of it. Raises ModelError."""
    return LLMOptions(
        model=model,
        base_url=base_url,
        key_variable=api_key_env,
        temperature=temperature,
        prices=str(prices.resolve()) if prices else "",
        cache=str(cache.resolve()) if cache else "",
    )


def memory_file(ctx: click.Context, param: click.Parameter, value: str) -> str | None:  # noqa: ARG001 - a callback
    """An option's value: the whole path of a memory, None for none."""
    match value:
        case "off":
            return None
        case "on":
            return str(default_path())
    return str(Path(value).resolve())


def max_usd(text: str) -> Callable[[Command], Command]:
    """The option that limits what models may cost."""
    return click.option(
        "--max-usd",
        "--dollars",
        "dollars",
        type=click.FloatRange(min=0, min_open=True),
        metavar="USD",
        help=text,
    )


memory = click.option(
    "--memory",
    metavar="[off|on|FILE]",
    envvar="MCTSKERNEL_MEMORY",
    show_envvar=True,
    default="off",
    show_default=True,
    callback=memory_file,
    help="Weigh edits by what earlier runs taught, and add this run to them: in a file of your own (on) or in FILE. "
    "What `mctskernel memory export` wrote (.json) is read only. What was known at the beginning stays with the run.",
)

policy = click.option(
    "--policy",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Any other choice of the search's policy, for instance widening=fixed; again for more. It outweighs the "
    "options above. A NAME that doesn't exist lists those that do, as does a VALUE.",
)


def _server_url(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """An option's value, the URL of a server or nothing."""
    # Imported here: it brings a client of HTTP along, which takes a while.
    from mctskernel.executors.remote.address import plain_url  # noqa: PLC0415 - as said above

    try:
        return plain_url(value) if value else ""
    except DeviceError as error:
        raise click.BadParameter(str(error), ctx, param) from error


server = click.option(
    "--device",
    "server",
    metavar="URL",
    default="",
    callback=_server_url,
    help="Another address of the machine that judged: where `mctskernel serve` runs there. [default: as before]",
)


def device_option(kinds: Sequence[str], text: str) -> Callable[[Command], Command]:
    """An option --device that takes one of these kinds, the first of them by default, or the URL of a server."""

    def checked(ctx: click.Context, param: click.Parameter, value: str) -> str:
        if value in kinds:
            return value
        if not is_remote(value):
            known = ", ".join(kinds)
            raise click.BadParameter(
                f"{value!r} is neither one of {known} nor the URL of a server.", ctx, param
            )
        return _server_url(ctx, param, value)

    return click.option(
        "--device",
        metavar=f"[{'|'.join(kinds)}|URL]",
        callback=checked,
        default=kinds[0],
        show_default=True,
        help=f"{text} URL is that of another machine where `mctskernel serve` runs.",
    )


searched_device = device_option(
    ("auto", "gpu", "model", "recorded"),
    "Where kernels are judged: on a GPU, by a model of one, or nowhere, because a --space has their recorded "
    "times; auto takes that or else a GPU if there is one.",
)

device = device_option(
    ("auto", "gpu", "model"),
    "Where kernels are judged: on a GPU, or by a model of one; auto takes a GPU if there is one.",
)

local_device = click.option(
    "--device",
    type=click.Choice(["auto", "gpu", "model"]),
    default="auto",
    show_default=True,
    help="Where kernels are judged: on a GPU, or by a model of one; auto takes a GPU if there is one.",
)

seed = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Inputs and random choices."
)
