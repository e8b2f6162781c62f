"""The configuration of a search: one struct, which run.json holds and which tables of settings make.

A table comes from a command line, a TOML file or an arm of an ablation. It has the fields that someone chose, those of
nested structs in tables of their own; the choices of the policy may stand among the others:

    proposer = "mixed"
    strategy = "puct"
    budget = { evaluations = 400, seconds = 3600 }

    [llm]
    model = "qwen3-coder"
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
from msgspec import Meta

from mctskernel.core.budget import PATIENCE, Budget
from mctskernel.core.documents import DocumentError, excerpt, read_toml, unknown_name
from mctskernel.core.executor import LOCAL, ExecutorOptions
from mctskernel.core.kernel import SOURCE_LANGUAGES, Language
from mctskernel.core.option import Option, settings
from mctskernel.core.task import Precision, Task
from mctskernel.core.user_errors import MisuseError
from mctskernel.edits.llm.experts import MixtureOptions
from mctskernel.edits.llm.model import LLMOptions
from mctskernel.executors import workers_on
from mctskernel.profiling.architecture import FILE_SUFFIX, known_architectures, load_architecture
from mctskernel.profiling.devices import default_kind
from mctskernel.registry import check_name
from mctskernel.tree.choices import check_policy, choice_names, with_choices
from mctskernel.tree.policy import Policy

PARAMETERS = "parameters"  # the proposer of every search-space cache, and of nothing else
RULES = "rules"
LLM = "llm"
MIXED = "mixed"
OUTSIDE = "outside"  # not part of this program: it is asked, and tells (`mctskernel.external.session`)
REPLAY = "replay"  # the edits of another run

ASK_A_MODEL = frozenset({LLM, MIXED})

MADE = ("task", "replayed", "replayed_nodes")  # fields that a search sets itself

REPLIES = 3
"""Replies without a new kernel after which a node is exhausted, where a proposer replies differently each time."""


class ConfigError(MisuseError, ValueError):
    """A configuration that can't be used; the message is a sentence that says where it stands."""


def described_gpu(value: str) -> str:
    """The short name of a described GPU, or the whole path of a file that describes one, for a run to be resumed from
    anywhere. Raises ArchitectureError."""
    load_architecture(value)
    return str(Path(value).resolve()) if value.endswith(FILE_SUFFIX) else value.upper()


GPUS = f"[{'|'.join(known_architectures())}|FILE{FILE_SUFFIX}]"
"""How a help page writes what `described_gpu` takes."""


class SearchConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a user chose, enough to continue with it; `replayed` is the run of which this one repeats some nodes."""

    task: str = ""
    budget: Annotated[Budget, Option(panel="Budget")] = Budget(evaluations=200)
    device: Annotated[
        str,
        Option(
            "Where kernels are evaluated: gpu, on a GPU of this machine; model, emulated and with modelled times, "
            "without a GPU; auto, on a GPU if there is one. The times of a --space are recorded.",
            panel="Device",
            registered="device",
            choices=("auto",),
        ),
    ] = "auto"
    architecture: Annotated[
        str,
        Option(
            "The GPU that --device model simulates: a name, or a file that describes another one.",
            panel="Device",
            metavar=GPUS,
            parse=described_gpu,
        ),
    ] = "H100"
    workers: Annotated[
        Annotated[int, Meta(ge=0)],
        Option(
            "Evaluations in flight; on a GPU, processes that compile for it.",
            panel="Device",
            default="one for each CPU core; on a GPU 4, for Triton 8; in a Ray cluster as many as there is room for",
        ),
    ] = 0
    executor: Annotated[ExecutorOptions, Option(panel="Device")] = LOCAL
    proposer: Annotated[
        str,
        Option(
            "What proposes edits: the rules; llm, a language model; mixed, both (for each node the one that did better "
            "so far); or outside, another program by `mctskernel ask` and `tell`.",
            panel="Proposer",
            registered="proposer",
        ),
    ] = RULES
    language: Annotated[
        Language | None,
        Option(
            "Use only starting kernels in this language.",
            panel="Proposer",
            default="the task's kernel.cu, or else kernel.py, and all its further starting points",
            choices=SOURCE_LANGUAGES,
        ),
    ] = None
    precision: Annotated[
        Precision,
        Option(
            "For a benchmark's problem: locked, as precise as PyTorch; relaxed, as precise as the benchmark asks. "
            "Then every result says so.",
            panel="Task",
            choices=tuple(Precision),
        ),
    ] = Precision.LOCKED
    policy: Annotated[
        Policy,
        Option(
            "Another setting of the search policy or option of its strategy, such as patience=3; repeatable. An "
            "unknown NAME or VALUE lists those that exist.",
            panel="Policy",
            default="those of the strategy",
            metavar="NAME=VALUE",
        ),
    ] = Policy()
    reward: Annotated[
        str,
        Option(
            "The reward of an evaluation. It guides the search; the answer is chosen by time and final validation.",
            panel="Policy",
            registered="reward",
        ),
    ] = "composite"
    seed: Annotated[
        Annotated[int, Meta(ge=0)], Option("The seed of inputs and random choices.", panel="Policy")
    ] = 0
    llm: Annotated[LLMOptions | None, Option(panel="Language model")] = None
    mixture: Annotated[MixtureOptions | None, Option(panel="Language model")] = None
    replayed: str | None = None
    replayed_nodes: tuple[int, ...] = ()

    @property
    def asks_a_model(self) -> bool:
        """Whether a language model is needed."""
        return self.proposer in ASK_A_MODEL


SETTINGS = {each.path: each for each in settings(SearchConfig, SearchConfig())}
"""Every field of `SearchConfig` that a user sets, by its path: the option of each says what it is."""


def read_config(table: Mapping[str, Any]) -> SearchConfig:
    """The configuration that a table makes of the defaults. Raises MisuseError."""
    return _converted(grouped_table(table))


def read_config_file(path: Path) -> dict[str, Any]:
    """The table in a TOML file. Raises ConfigError."""
    try:
        table = grouped_table(read_toml(path))
        _converted(table)
    except DocumentError as error:
        raise ConfigError(f"{path} {error}.") from error
    except MisuseError as error:
        raise ConfigError(f"{path}: {error}") from error
    return table


def merged(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A table over another one; tables in them field by field. Another strategy begins with its own defaults."""
    found = {**shared, **own}
    for name, value in own.items():
        if isinstance(value, Mapping) and isinstance(shared.get(name), Mapping):
            found[name] = merged(shared[name], value)
    return found


def check(config: SearchConfig) -> None:
    """Refuse unknown names, numbers out of range, and contradictions. Raises ConfigError and RegistryError."""
    _validated(msgspec.to_builtins(config))
    for is_wrong, sentence in _mistakes(config):
        if is_wrong:
            raise ConfigError(sentence)
    check_name("reward", config.reward)
    if config.device != "auto":
        check_name("device", config.device)
    if config.proposer != PARAMETERS:
        check_name("proposer", config.proposer)
    check_policy(config.policy)


def for_task(config: SearchConfig, task: Task) -> SearchConfig:
    """The checked configuration of a run of a task, with its device and its workers. Raises as `check` does."""
    device = config.device
    if task.space:
        if device not in ("auto", "recorded"):
            raise ConfigError(f"{task.name} is a search-space cache: use --device recorded.")
        device = "recorded"
    elif device == "recorded":
        raise ConfigError("--device recorded needs --space FILE with the recorded configurations.")
    elif device == "auto":
        device = default_kind()
    config = msgspec.structs.replace(config, task=task.name, device=device)
    if task.space:
        config = msgspec.structs.replace(config, language=Language.CONFIGURATION)
    if config.budget.patience is None and config.proposer == RULES and not task.space:
        budget = msgspec.structs.replace(config.budget, patience=PATIENCE)
        config = msgspec.structs.replace(config, budget=budget)
    check(config)
    return msgspec.structs.replace(
        config,
        proposer=PARAMETERS if task.space else config.proposer,
        workers=config.workers or workers_on(device, config.executor),
    )


def _mistakes(config: SearchConfig) -> tuple[tuple[object, str], ...]:
    executor, device = config.executor, config.device
    is_recorded, on_ray = device == "recorded", executor.engine == "ray"
    of_gpus = "gpus" if executor.gpus else "counters"
    return (
        (
            config.asks_a_model and is_recorded,
            "A search-space cache has a proposer of its own, which knows its configurations.",
        ),
        (
            config.llm and not config.asks_a_model,
            f"--model is for --proposer {' or '.join(sorted(ASK_A_MODEL))}.",
        ),
        (
            device not in ("auto", "gpu") and (executor.gpus or executor.counters),
            f"--{of_gpus} is for --device gpu, not {device}.",
        ),
        (
            on_ray and executor.gpus,
            "--gpus is for --executor local; `ray start` decides on a cluster's GPUs.",
        ),
        (on_ray and is_recorded, "--executor ray is for kernels, not for a search-space cache."),
        (executor.address and not on_ray, "--ray-address is for --executor ray."),
    )


def grouped_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table with the choices of the policy in a table of their own. Raises MisuseError for a name without meaning."""
    policy = table.get("policy", {})
    if not isinstance(policy, Mapping):
        raise ConfigError("policy must be a table.")
    strategy = table.get("strategy", policy.get("strategy", Policy().strategy))
    check_name("strategy", str(strategy))
    choices = choice_names(str(strategy))
    own = {name: value for name, value in table.items() if name in choices}
    others = {name: value for name, value in table.items() if name not in choices}
    _check_names(others, SearchConfig, (), choices)
    _check_names(policy, None, ("policy",), choices)
    return {**others, "policy": {**policy, **own}} if policy or own else others


def _check_names(
    table: Mapping[str, Any], struct: Any, path: tuple[str, ...], choices: tuple[str, ...] = ()
) -> None:
    types = (
        {name: kind for name, kind in get_type_hints(struct).items() if name not in MADE} if struct else {}
    )
    where = f" of {'.'.join(path)}" if path else ""
    for name, value in table.items():
        if complaint := unknown_name(str(name), (*types, *choices), f"setting{where}"):
            raise ConfigError(complaint)
        nested = _struct_in(types.get(name))
        if nested is not None and nested is not Policy and isinstance(value, Mapping):
            _check_names(value, nested, (*path, str(name)))


def _converted(table: Mapping[str, Any]) -> SearchConfig:
    proposer = table.get("proposer", RULES)
    outside = proposer in ASK_A_MODEL | {OUTSIDE}
    initial = Policy(patience=REPLIES, repair="at-once") if outside else Policy()
    policy = with_choices(initial, table.get("policy", {}))
    budget = merged(msgspec.to_builtins(SearchConfig().budget), table.get("budget", {}))
    fields = {**table, "budget": budget, "policy": msgspec.to_builtins(policy)}
    if proposer in ASK_A_MODEL:
        fields |= {"llm": {"model": "", **table.get("llm", {})}, "mixture": table.get("mixture", {})}
    elif not table.get("llm", {}).get("model"):
        fields = {name: value for name, value in fields.items() if name not in ("llm", "mixture")}
    return _validated(fields)


def _validated(fields: Mapping[str, Any]) -> SearchConfig:
    try:
        return msgspec.convert(fields, SearchConfig)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$.")
        if isinstance(error.__cause__, MisuseError):
            raise ConfigError(str(error.__cause__)) from error
        raise ConfigError(f"{place.rstrip('`')}: {excerpt(problem)}.") from error


def _struct_in(kind: object) -> type[msgspec.Struct] | None:
    """The struct in a type such as `LLMOptions | None`."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    return next((found for part in get_args(kind) if (found := _struct_in(part))), None)
