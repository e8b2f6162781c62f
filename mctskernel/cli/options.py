"""Options that several commands take; those that belong together reach a command as one argument.

@options.budget
def command(*, budget: Budget) -> None: ...
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

import rich_click as click

from mctskernel.cli.plain_console import deliver
from mctskernel.core.budget import PATIENCE, Budget
from mctskernel.core.executor import ENGINES, LOCAL, CounterSet, ExecutorOptions
from mctskernel.core.kernel import SOURCE_LANGUAGES, Language
from mctskernel.edits.llm.experts import EXPERTS, Feedback, MixtureOptions
from mctskernel.edits.llm.model import KEY_VARIABLE, ReplyFormat
from mctskernel.executors import workers_on
from mctskernel.memory import default_path
from mctskernel.profiling.architecture import (
    FILE_SUFFIX,
    ArchitectureError,
    known_architectures,
    load_architecture,
)
from mctskernel.profiling.devices import default_kind
from mctskernel.profiling.reward import DEFAULT as DEFAULT_REWARD
from mctskernel.proposers import MIXED, PROPOSERS, RULES
from mctskernel.registry import RegistryError, check_name, names
from mctskernel.search_settings import PREDICTED, SearchSettings
from mctskernel.tree.choices import read_choices

Command = Callable[..., Any]

GPUS = f"[{'|'.join(known_architectures())}|FILE{FILE_SUFFIX}]"
"""How the help page writes what `described_gpu` takes."""


def bundle(name: str, build: Callable[..., object], *options: Command) -> Callable[[Command], Command]:
    """A decorator that adds `options` to a command, which gets as `name` what `build` makes of their values."""
    names = [parameter.name for option in options for parameter in _parameters(option)]

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(*args: Any, **values: Any) -> Any:
            built = build(**{each: values.pop(each) for each in names})
            return command(*args, **{name: built}, **values)

        decorated: Command = run
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate


def _parameters(option: Command) -> list[click.Parameter]:
    def bare() -> None:
        """Takes the option."""

    option(bare)
    found: list[click.Parameter] = bare.__click_params__  # type: ignore[attr-defined]  # set by click's decorator
    return found


class Registered(click.ParamType[str]):
    """An option's value: the name of a registered part of a kind, or MODULE:ATTRIBUTE."""

    name = "name"

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name, if there is such a part."""
        try:
            check_name(self.kind, value)
        except RegistryError as error:
            self.fail(str(error), param, ctx)
        return value

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002 - a ParamType
        """The names, as the help page shows them."""
        return f"[{'|'.join(names(self.kind))}|MODULE:ATTRIBUTE]"


def described_gpu(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """An option's value: the short name of a described GPU, or a file that describes one.

    A file's whole path is kept, so that a run can be resumed from anywhere.
    """
    if value is None:
        return None
    try:
        load_architecture(value)
    except ArchitectureError as error:
        raise click.BadParameter(str(error), ctx, param) from error
    return str(Path(value).resolve()) if value.endswith(FILE_SUFFIX) else value.upper()


def print_schema(make: Callable[[], Mapping[str, Any]], text: str) -> Callable[[Command], Command]:
    """An option --schema that prints a JSON schema and does nothing else."""

    def show(ctx: click.Context, _param: click.Parameter, wanted: object) -> None:
        if wanted and not ctx.resilient_parsing:
            deliver(json.dumps(make(), indent=2) + "\n")
            ctx.exit()

    return click.option("--schema", is_flag=True, is_eager=True, expose_value=False, callback=show, help=text)


def device_option(*kinds: str, default: str | None = None, text: str) -> Callable[[Command], Command]:
    """An option --device that takes one of these kinds."""
    shown = default is not None
    return click.option("--device", type=click.Choice(kinds), default=default, show_default=shown, help=text)


seed = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Inputs and random choices."
)

language = click.option(
    "--language",
    type=click.Choice([each.value for each in SOURCE_LANGUAGES]),
    default=Language.CUDA.value,
    show_default=True,
    help="The language of the starting kernel: kernel.cu or kernel.py of the task.",
)

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
    "[default: one for each CPU core; on a GPU 4, for Triton 8; in a Ray cluster as many as there is room for]",
)

device = device_option(
    "auto",
    "gpu",
    "model",
    default="auto",
    text="Where kernels are evaluated: on a GPU, or by a model of one; auto takes a GPU if there is one.",
)


@dataclass(frozen=True)
class Driver:
    """What --executor, --gpus, --counters and --ray-address say."""

    engine: str | None = None
    gpus: tuple[str, ...] = ()
    counters: str | None = None
    ray_address: str = ""

    def options(self, kind: str | None) -> ExecutorOptions | None:
        """The same for a kind of device, None where nothing was chosen. Raises UsageError."""
        if kind not in (None, "gpu") and (self.gpus or self.counters):
            raise click.UsageError(
                f"--{'gpus' if self.gpus else 'counters'} is for --device gpu, not {kind}."
            )
        if self.engine == "ray" and self.gpus:
            raise click.UsageError("--gpus is for --executor local; `ray start` decides on a cluster's GPUs.")
        if self.engine == "ray" and kind == "recorded":
            raise click.UsageError("--executor ray is for kernels, not for a recorded space.")
        if self.ray_address and self.engine != "ray":
            raise click.UsageError("--ray-address is for --executor ray.")
        if self.engine is None and not self.gpus and not self.counters:
            return None
        counters = CounterSet(self.counters) if self.counters else None
        return ExecutorOptions(self.engine or LOCAL.engine, self.gpus, self.ray_address, counters)


_DRIVER = (
    click.option(
        "--executor",
        "engine",
        type=click.Choice(ENGINES),
        help="What runs the evaluations: processes of this machine, or a Ray cluster. [default: local; for `resume` "
        "as before]",
    ),
    click.option(
        "--gpus",
        metavar="GPU,...",
        default="",
        callback=lambda _ctx, _param, value: tuple(filter(None, map(str.strip, value.split(",")))),
        help="The GPUs of this machine to use: indices, or beginnings of UUIDs. [default: all; for `resume` as before]",
    ),
    click.option(
        "--counters",
        type=click.Choice([each.value for each in CounterSet]),
        help="Which hardware counters are read on a GPU: all; few, those of the multiprocessors and of DRAM; or only "
        "the time, which gives no diagnosis. Several GPUs of a machine wait for each other to read them. "
        "[default: all for one GPU, few for several; for `resume` as before]",
    ),
    click.option(
        "--ray-address",
        metavar="HOST:PORT",
        default="",
        help="The cluster of --executor ray. [default: RAY_ADDRESS, or that of `ray start` on this machine, or a new "
        "one]",
    ),
)

driver = bundle("driver", Driver, *_DRIVER)


@dataclass(frozen=True)
class Place:
    """Where kernels are evaluated, as far as the options say."""

    device: str
    architecture: str
    workers: int | None
    driver: Driver

    @property
    def kind(self) -> str:
        """The kind of device, with `auto` resolved."""
        return default_kind() if self.device == "auto" else self.device

    def executor(self, kind: str) -> ExecutorOptions:
        """The options of the executor for a kind of device. Raises UsageError."""
        return self.driver.options(kind) or LOCAL

    def workers_for(self, kind: str, chosen: Language) -> int:
        """How many workers: as chosen, or as many as suit the device."""
        return self.workers or workers_on(kind, chosen, self.executor(kind))


def place(kinds: Command = device, *, driven: bool = True) -> Callable[[Command], Command]:
    """The options that say where kernels are evaluated; `kinds` is the one of devices, `driven` adds `driver`'s."""
    return bundle("place", _place, kinds, architecture, workers, *(_DRIVER if driven else ()))


def _place(*, device: str, architecture: str, workers: int | None, **driver: Any) -> Place:
    return Place(device, architecture, workers, Driver(**driver))


searched_device = device_option(
    "auto",
    "gpu",
    "model",
    "recorded",
    default="auto",
    text="Where kernels are evaluated: on a GPU, by a model of one, or nowhere, because a --space has their recorded "
    "times; auto takes that, or else a GPU if there is one.",
)


def budget(evaluations: int | None = 200) -> Callable[[Command], Command]:
    """The options that limit a search; `evaluations` is the default."""
    return bundle(
        "budget",
        Budget,
        click.option(
            "--budget",
            "evaluations",
            type=click.IntRange(min=1),
            default=evaluations,
            show_default=evaluations is not None,
            help="At most so many evaluations, those of earlier sessions of the run included.",
        ),
        click.option(
            "--seconds", type=click.FloatRange(min=0, min_open=True), help="At most so many seconds."
        ),
        click.option(
            "--max-usd",
            "dollars",
            type=click.FloatRange(min=0, min_open=True),
            metavar="USD",
            help="At most so many US dollars for language models.",
        ),
        click.option(
            "--patience",
            type=click.IntRange(min=0),
            metavar="N",
            help="Stop when N evaluations in a row brought no gain; 0 is never. "
            f"[default: {PATIENCE} where rules alone propose edits of kernels, otherwise 0]",
        ),
    )


_model_option = partial(click.option, panel="Language model")

_MODEL = (
    _model_option("--model", metavar="NAME", default="", help="The language model, as its server calls it."),
    _model_option(
        "--base-url",
        metavar="URL",
        default="",
        help="An OpenAI-compatible server, such as http://localhost:8000/v1. [default: OpenAI's own]",
    ),
    _model_option(
        "--api-key-env",
        "key_variable",
        metavar="VARIABLE",
        default=KEY_VARIABLE,
        show_default=True,
        help="The environment variable that holds the server's key.",
    ),
    _model_option(
        "--temperature",
        type=click.FloatRange(0, 2),
        help="Of the model's replies. [default: the server's own]",
    ),
    _model_option(
        "--price",
        type=click.FloatRange(min=0),
        nargs=2,
        metavar="INPUT OUTPUT",
        help="What the model costs: US dollars for a million tokens. Without it, and without a list price, its cost is "
        "unknown and counted as $0; --max-usd then refuses it.",
    ),
    _model_option(
        "--reply-format",
        type=click.Choice([each.value for each in ReplyFormat]),
        default=ReplyFormat.SCHEMA.value,
        show_default=True,
        help="Ask the server for replies that follow a JSON schema, for any JSON object, or for plain text.",
    ),
    _model_option(
        "--cache",
        type=click.Path(file_okay=False, path_type=Path),
        callback=lambda _ctx, _param, value: str(value.resolve()) if value else "",
        help="A folder that keeps replies: an identical call is not made again.",
    ),
    _model_option(
        "--expert",
        "experts",
        metavar="NAME[=MODEL][@TEMPERATURE]",
        multiple=True,
        help="An expert that may be asked, perhaps of another model; again for more: "
        f"{', '.join(expert.name for expert in EXPERTS)}. [default: all]",
    ),
    _model_option(
        "--edits-per-call",
        "edits",
        type=click.IntRange(1, 64),
        default=MixtureOptions().edits,
        show_default=True,
        help="Edits that an expert is asked for at a time.",
    ),
    _model_option(
        "--experts-per-node",
        "at_once",
        type=click.IntRange(1, len(EXPERTS)),
        default=MixtureOptions().at_once,
        show_default=True,
        help="Experts that are asked for edits of a node at a time, one after the other.",
    ),
    _model_option(
        "--feedback",
        type=click.Choice([each.value for each in Feedback]),
        default=MixtureOptions().feedback.value,
        show_default=True,
        help="What models see of a kernel beside its time: nothing, its counters, or the diagnosis in sentences.",
    ),
    _model_option(
        "--calls",
        "in_flight",
        type=click.IntRange(1, 64),
        default=MixtureOptions().in_flight,
        show_default=True,
        help="Nodes that may wait for the model at the same time.",
    ),
)

memory = click.option(
    "--memory",
    metavar="[off|on|FILE]",
    envvar="MCTSKERNEL_MEMORY",
    show_envvar=True,
    default="off",
    show_default=True,
    callback=lambda _ctx, _param, value: _memory_file(value),
    help="Weigh edits by what earlier runs taught, and add this run to them: in a file of your own (on) or in FILE. "
    "A .json FILE, which `mctskernel memory export` wrote, is only read.",
)


def _memory_file(value: str) -> str:
    if value == "off":
        return value
    return str(default_path()) if value == "on" else str(Path(value).resolve())


def searching(
    proposers: tuple[str, ...] = PROPOSERS, default: str | None = RULES
) -> Callable[[Command], Command]:
    """The options that say how a search goes on, those about language models included, as `settings`."""
    return bundle(
        "settings",
        _settings,
        click.option(
            "--proposer",
            type=click.Choice(proposers),
            default=default,
            help="What proposes edits: the rules, a language model (llm), both (mixed: for each node the one that did "
            "better so far), or an external program that uses ask and tell (outside). "
            f"[default: {default or f'{MIXED} with --model, else {RULES}'}]",
        ),
        language,
        click.option(
            "--strategy",
            type=Registered("strategy"),
            help="What decides which edit is tried next. [default: mcts]",
        ),
        click.option(
            "--policy",
            "choices",
            multiple=True,
            metavar="NAME=VALUE",
            help="Any other choice of the search policy or option of its strategy, for instance patience=3; again for "
            "more. An unknown NAME or VALUE lists those that exist.",
        ),
        click.option(
            "--reward",
            type=Registered("reward"),
            default=DEFAULT_REWARD,
            show_default=True,
            help="The reward of an evaluation. The answer is chosen by time and final validation all the same.",
        ),
        click.option(
            "--surrogate",
            is_flag=True,
            help="Predict edits with the analytical model before they are evaluated.",
        ),
        memory,
        *_MODEL,
    )


def _settings(
    *,
    proposer: str | None,
    language: str,
    strategy: str | None,
    choices: tuple[str, ...],
    reward: str,
    surrogate: bool,
    memory: str,
    **model: Any,
) -> SearchSettings:
    mixture = {name: model.pop(name) for name in MixtureOptions.__struct_fields__}
    mixture["feedback"] = Feedback(mixture["feedback"])
    changed = read_choices([*([f"strategy={strategy}"] if strategy else []), *choices])
    if surrogate and changed.get("strategy", PREDICTED) != PREDICTED:
        raise click.UsageError(f"--surrogate is for --strategy {PREDICTED}, not {changed['strategy']}.")
    return SearchSettings(
        policy=changed,
        proposer=proposer or (MIXED if model["model"] else RULES),
        language=Language(language),
        reward=reward,
        surrogate=surrogate,
        memory=memory,
        model=model,
        mixture=MixtureOptions(**mixture),
    )
