"""Options that several commands take. Those that set a search reach a command as one table of what was chosen.

@options.settings("budget", "device")
def command(*, table: dict[str, Any]) -> None: ...
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import rich_click as click

from mctskernel.cli.plain_console import deliver
from mctskernel.config import SearchConfig, merged, read_config_file
from mctskernel.core.budget import PATIENCE
from mctskernel.core.executor import ENGINES, CounterSet
from mctskernel.core.kernel import SOURCE_LANGUAGES
from mctskernel.edits.llm.experts import EXPERTS, Feedback, MixtureOptions
from mctskernel.edits.llm.model import KEY_VARIABLE, ReplyFormat
from mctskernel.profiling.architecture import (
    FILE_SUFFIX,
    ArchitectureError,
    known_architectures,
    load_architecture,
)
from mctskernel.registry import RegistryError, check_name, names

Command = Callable[..., Any]

GPUS = f"[{'|'.join(known_architectures())}|FILE{FILE_SUFFIX}]"
"""How the help page writes what `described_gpu` takes."""


class Registered(click.ParamType[str]):
    """An option's value: the name of a registered part of a kind, or MODULE:ATTRIBUTE."""

    name = "name"

    def __init__(self, kind: str, *others: str) -> None:
        self.kind, self.others = kind, others

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name, if there is such a part."""
        if value not in self.others:
            try:
                check_name(self.kind, value)
            except RegistryError as error:
                self.fail(str(error), param, ctx)
        return value

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002 - a ParamType
        """The names, as the help page shows them."""
        return f"[{'|'.join((*names(self.kind), *self.others))}|MODULE:ATTRIBUTE]"


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


BUDGET, DEVICE, PROPOSER, POLICY, MODEL, OUTPUT = (
    "Budget",
    "Device",
    "Proposer",
    "Policy",
    "Language model",
    "Output",
)
"""Panels of a help page."""


@dataclass(frozen=True)
class Setting:
    """An option for the field of `SearchConfig` at `path`, without a default of its own: a file may set the field."""

    path: str
    flag: str
    panel: str
    text: str
    default: str
    click: Mapping[str, Any]

    @property
    def parameter(self) -> str:
        """Its name among the values that a command gets."""
        return self.path.replace(".", "__")

    def option(self, *, default: str = "", **changes: Any) -> Callable[[Command], Command]:
        """The option; `default` is what the help page says about it, where that is not the field's."""
        shown = default or self.default
        text = f"{self.text} [default: {shown}]" if shown else self.text
        return click.option(
            self.flag, self.parameter, **{"help": text, "panel": self.panel, **self.click, **changes}
        )


def _setting(path: str, flag: str, panel: str, text: str, *, default: str = "", **click: Any) -> Setting:
    value: Any = SearchConfig()
    for name in path.split("."):
        value = getattr(value, name, None)
    return Setting(path, flag, panel, text, default or (str(value) if value else ""), click)


_MIXTURE = MixtureOptions()

SETTINGS = (
    _setting(
        "budget.evaluations",
        "--budget",
        BUDGET,
        "At most so many evaluations, those of earlier sessions of the run included.",
        type=click.IntRange(min=1),
    ),
    _setting(
        "budget.seconds",
        "--seconds",
        BUDGET,
        "At most so many seconds.",
        type=click.FloatRange(min=0, min_open=True),
    ),
    _setting(
        "budget.dollars",
        "--max-usd",
        BUDGET,
        "At most so many US dollars for language models.",
        type=click.FloatRange(min=0, min_open=True),
        metavar="USD",
    ),
    _setting(
        "budget.patience",
        "--patience",
        BUDGET,
        "Stop when N evaluations in a row brought no gain; 0 is never.",
        default=f"{PATIENCE} where rules alone propose edits of kernels, otherwise 0",
        type=click.IntRange(min=0),
        metavar="N",
    ),
    _setting(
        "device",
        "--device",
        DEVICE,
        "Where kernels are evaluated: on a GPU, by a model of one, or nowhere, because a --space has their recorded "
        "times; auto takes that, or else a GPU if there is one.",
        type=Registered("device", "auto"),
    ),
    _setting(
        "architecture",
        "--architecture",
        DEVICE,
        "The GPU that --device model stands for: a name, or a file that describes another one.",
        metavar=GPUS,
        callback=described_gpu,
    ),
    _setting(
        "workers",
        "--workers",
        DEVICE,
        "Evaluations in flight; on a GPU, processes that compile for it.",
        default="one for each CPU core; on a GPU 4, for Triton 8; in a Ray cluster as many as there is room for",
        type=click.IntRange(min=1),
    ),
    _setting(
        "executor.engine",
        "--executor",
        DEVICE,
        "What runs the evaluations: processes of this machine, or a Ray cluster.",
        type=click.Choice(ENGINES),
    ),
    _setting(
        "executor.gpus",
        "--gpus",
        DEVICE,
        "The GPUs of this machine to use: indices, or beginnings of UUIDs.",
        default="all",
        metavar="GPU,...",
        callback=lambda _ctx, _param, value: tuple(filter(None, map(str.strip, (value or "").split(",")))),
    ),
    _setting(
        "executor.counters",
        "--counters",
        DEVICE,
        "Which hardware counters are read on a GPU: all; few, those of the multiprocessors and of DRAM; or only the "
        "time, which gives no diagnosis. Several GPUs of a machine wait for each other to read them.",
        default="all for one GPU, few for several",
        type=click.Choice([each.value for each in CounterSet]),
    ),
    _setting(
        "executor.address",
        "--ray-address",
        DEVICE,
        "The cluster of --executor ray.",
        default="RAY_ADDRESS, or that of `ray start` on this machine, or a new one",
        metavar="HOST:PORT",
    ),
    _setting(
        "proposer",
        "--proposer",
        PROPOSER,
        "What proposes edits: the rules, a language model (llm), both (mixed: for each node the one that did better so "
        "far), or an external program that uses ask and tell (outside).",
        type=Registered("proposer"),
    ),
    _setting(
        "language",
        "--language",
        PROPOSER,
        "Only starting kernels in this language. Otherwise kernel.cu, or else kernel.py of the task, beside all of its "
        "further starting points.",
        type=click.Choice([each.value for each in SOURCE_LANGUAGES]),
    ),
    _setting(
        "memory",
        "--memory",
        PROPOSER,
        "Weigh edits by what earlier runs taught, and add this run to them: in a folder of your own (on) or in "
        "FOLDER. A FILE.json, which `mctskernel memory show --json` printed, is only read.",
        default="off",
        metavar="[off|on|FOLDER|FILE.json]",
        envvar="MCTSKERNEL_MEMORY",
        show_envvar=True,
    ),
    _setting(
        "policy.strategy",
        "--strategy",
        POLICY,
        "What decides which edit is tried next.",
        type=Registered("strategy"),
    ),
    _setting(
        "policy",
        "--policy",
        POLICY,
        "Any other choice of the search policy or option of its strategy, for instance patience=3; again for more. An "
        "unknown NAME or VALUE lists those that exist.",
        default="those of the strategy",
        multiple=True,
        metavar="NAME=VALUE",
    ),
    _setting(
        "reward",
        "--reward",
        POLICY,
        "The reward of an evaluation. The answer is chosen by time and final validation all the same.",
        type=Registered("reward"),
    ),
    _setting(
        "surrogate",
        "--surrogate",
        POLICY,
        "Predict edits with the analytical model before they are evaluated.",
        is_flag=True,
    ),
    _setting("seed", "--seed", POLICY, "Inputs and random choices.", default="0", type=click.IntRange(min=0)),
    _setting("llm.model", "--model", MODEL, "The language model, as its server calls it.", metavar="NAME"),
    _setting(
        "llm.base_url",
        "--base-url",
        MODEL,
        "An OpenAI-compatible server, such as http://localhost:8000/v1.",
        default="OpenAI's own",
        metavar="URL",
    ),
    _setting(
        "llm.key_variable",
        "--api-key-env",
        MODEL,
        "The environment variable that holds the server's key.",
        default=KEY_VARIABLE,
        metavar="VARIABLE",
    ),
    _setting(
        "llm.temperature",
        "--temperature",
        MODEL,
        "Of the model's replies.",
        default="the server's own",
        type=click.FloatRange(0, 2),
    ),
    _setting(
        "llm.price",
        "--price",
        MODEL,
        "What the model costs: US dollars for a million tokens. Without it, and without a list price, its cost is "
        "unknown and counted as $0; --max-usd then refuses it.",
        type=click.FloatRange(min=0),
        nargs=2,
        metavar="INPUT OUTPUT",
    ),
    _setting(
        "llm.reply_format",
        "--reply-format",
        MODEL,
        "Ask the server for replies that follow a JSON schema, for any JSON object, or for plain text.",
        default=ReplyFormat.SCHEMA.value,
        type=click.Choice([each.value for each in ReplyFormat]),
    ),
    _setting(
        "mixture.experts",
        "--expert",
        MODEL,
        "An expert that may be asked, perhaps of another model; again for more: "
        f"{', '.join(expert.name for expert in EXPERTS)}.",
        default="all",
        multiple=True,
        metavar="NAME[=MODEL][@TEMPERATURE]",
    ),
    _setting(
        "mixture.edits",
        "--edits-per-call",
        MODEL,
        "Edits that an expert is asked for at a time.",
        default=str(_MIXTURE.edits),
        type=click.IntRange(1, 64),
    ),
    _setting(
        "mixture.at_once",
        "--experts-per-node",
        MODEL,
        "Experts that are asked for edits of a node at a time, one after the other.",
        default=str(_MIXTURE.at_once),
        type=click.IntRange(1, len(EXPERTS)),
    ),
    _setting(
        "mixture.feedback",
        "--feedback",
        MODEL,
        "What models see of a kernel beside its time: nothing, its counters, or the diagnosis in sentences.",
        default=_MIXTURE.feedback.value,
        type=click.Choice([each.value for each in Feedback]),
    ),
    _setting(
        "mixture.in_flight",
        "--calls",
        MODEL,
        "Nodes that may wait for the model at the same time.",
        default=str(_MIXTURE.in_flight),
        type=click.IntRange(1, 64),
    ),
)
"""Every setting that a command line can make, in the order of the help page."""


def settings(
    *paths: str, without: Collection[str] = (), file: bool = False, changes: Mapping[str, Any] | None = None
) -> Callable[[Command], Command]:
    """The options of these fields and tables of fields; a command gets what was chosen as `table`.

    `file` adds --config. `changes` are other arguments of the options, by path.
    """
    chosen = [
        each
        for each in SETTINGS
        if each.path not in without and any(f"{each.path}.".startswith(f"{path}.") for path in paths)
    ]

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(*args: Any, config: Path | None = None, **values: Any) -> Any:
            own = _table({each.path: values.pop(each.parameter) for each in chosen})
            return command(*args, table=merged(read_config_file(config), own) if config else own, **values)

        decorated: Command = config_file(run) if file else run
        for each in reversed(chosen):
            decorated = each.option(**(changes or {}).get(each.path, {}))(decorated)
        return decorated

    return decorate


config_file = click.option(
    "--config",
    panel=OUTPUT,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A TOML file of settings (docs/cli.md), which options on the command line outweigh.",
)


def single(path: str, **changes: Any) -> Callable[[Command], Command]:
    """One of the settings as an option of its own."""
    found = next(each for each in SETTINGS if each.path == path)
    default = None if path == "workers" else getattr(SearchConfig(), path)
    return click.option(
        found.flag, **{"help": found.text, "default": default, "show_default": True, **found.click, **changes}
    )


def _table(values: dict[str, Any]) -> dict[str, Any]:
    """The values that were given, with those of nested fields in tables."""
    choices = [text.partition("=") for text in values.pop("policy", ())]
    values |= {f"policy.{name}": value for name, _, value in choices}
    if unset := next((name for name, separator, _ in choices if not separator), None):
        raise click.UsageError(f"--policy takes NAME=VALUE, not '{unset}'.")
    found: dict[str, Any] = {}
    for path, value in values.items():
        *outer, name = path.split(".", 1)
        if value is not None and value != () and value is not False:
            (found.setdefault(outer[0], {}) if outer else found)[name] = value
    return found
