"""The file that says which kernels of a model are searched, and what may be spent on all of them.

    title = "A transformer's block"
    device = "model"

    [budget]                          # for all tasks together; whichever is spent first
    evaluations = 300

    [search]                          # what all searches share: any setting of a task below
    proposer = "rules"

    [[task]]
    task = "softmax"                  # a built-in task, or a folder
    share = 0.3                       # of the model's time, all its calls together

    [[task]]
    task = "my_kernels/norm"
    name = "first_norm"               # its run's folder, where the task's own name won't do
    share = 0.2
    limits = { evaluations = 100 }
    strategy = "mcts"                 # a setting of this search alone

In place of `share` every task may have `seconds`, of one call, and `calls`; `model_seconds` is then the whole model's
time, or the tasks' alone if it isn't given. Paths are relative to the folder in which a command is run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from mctskernel.core.device import is_remote
from mctskernel.core.documents import DocumentError, excerpt, parse_toml
from mctskernel.core.executor import ENGINES, LOCAL, ExecutorOptions
from mctskernel.core.names import unknown_name
from mctskernel.core.user_errors import MisuseError
from mctskernel.run import Budget
from mctskernel.search_settings import (
    POLICY,
    SearchSettings,
    SettingError,
    check_complete,
    field_names,
    merged,
    read_settings,
)

T = TypeVar("T")

DEVICES = ("auto", "gpu", "model", "recorded")

SHARES_IN_ALL = 1.0 + 1e-9

_Count = Annotated[int, msgspec.Meta(ge=1)]
_Seed = Annotated[int, msgspec.Meta(ge=0)]
_Positive = Annotated[float, msgspec.Meta(gt=0)]


class CampaignError(MisuseError, ValueError):
    """A configuration, or the folder of a campaign, that can't be used as asked; the message is a sentence."""


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one task may have of the budget at the most; None is as much as there is."""

    evaluations: _Count | None = None
    dollars: _Positive | None = None


class _BudgetTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    evaluations: _Count | None = None
    seconds: _Positive | None = None
    dollars: _Positive | None = None


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    title: str = ""
    device: str = "auto"
    architecture: str = "H100"
    workers: _Count | None = None
    seed: _Seed = 0
    model_seconds: _Positive | None = None
    budget: _BudgetTable
    executor: ExecutorOptions = LOCAL
    search: dict[str, Any] = {}
    task: Annotated[tuple[dict[str, Any], ...], msgspec.Meta(min_length=1)]


class _TaskTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    task: str
    name: str = ""
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    seconds: _Positive | None = None
    calls: _Count = 1
    limits: Limits = Limits()


OWN_FIELDS = tuple(field.name for field in msgspec.structs.fields(_TaskTable))
SETTINGS = (*(name for name in field_names(SearchSettings) if name != "workers"), *POLICY)


@dataclass(frozen=True)
class CampaignTask:
    """A kernel of the model: its run's name, the task, and what its starting kernel takes of the model's time."""

    name: str
    task: str
    seconds: float
    limits: Limits
    settings: SearchSettings


@dataclass(frozen=True)
class Campaign:
    """A configuration that was read.

    `model_seconds` is the whole model's time with the starting kernels, 1 where only shares of it are known; then
    `in_seconds` is False, and the tasks' seconds are shares. `workers` are evaluations in flight over all tasks, None
    for as many as suit the device.
    """

    title: str
    device: str
    architecture: str
    workers: int | None
    seed: int
    budget: Budget
    executor: ExecutorOptions
    tasks: tuple[CampaignTask, ...]
    model_seconds: float
    in_seconds: bool


def example() -> str:
    """A configuration to begin with."""
    return (files("mctskernel.campaign") / "example.toml").read_text("utf-8")


def read_campaign(path: Path) -> Campaign:
    """The campaign of a file. Raises CampaignError."""
    try:
        return parse_campaign(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CampaignError(f"{path} can't be read as a configuration: {excerpt(error)}.") from error


def parse_campaign(text: str) -> Campaign:
    """The campaign of a text. Raises CampaignError."""
    try:
        document = parse_toml(text)
    except DocumentError as error:
        raise CampaignError(f"The configuration {error}.") from error
    _check_names(document, _fields(_Document), "field of a configuration")
    for name, kind in (("budget", _BudgetTable), ("executor", ExecutorOptions)):
        if isinstance(table := document.get(name), Mapping):
            _check_names(table, _fields(kind), f"field of [{name}]")
    found = _converted(document, _Document, "The configuration can't be used")
    if found.budget == _BudgetTable():
        raise CampaignError("[budget] limits nothing: give it evaluations, seconds or dollars.")
    if not is_remote(found.device):
        _check(unknown_name(found.device, DEVICES, "device"))
    _check_executor(found.executor, found.device)
    try:
        read = [_task(table, number, found.search) for number, table in enumerate(found.task, 1)]
    except SettingError as error:
        raise CampaignError(str(error)) from error
    names = [task.name for _, task in read]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise CampaignError(f"Two tasks are called '{twice}': give one of them another name.")
    in_seconds, model_seconds = _model_time([table for table, _ in read], found.model_seconds)
    tasks = tuple(
        CampaignTask(task.name, task.task, _seconds(table, model_seconds), task.limits, task.settings)
        for table, task in read
    )
    return Campaign(
        title=found.title,
        device=found.device,
        architecture=found.architecture,
        workers=found.workers,
        seed=found.seed,
        budget=Budget(found.budget.evaluations, found.budget.seconds, found.budget.dollars),
        executor=found.executor,
        tasks=tasks,
        model_seconds=model_seconds,
        in_seconds=in_seconds,
    )


def _check_executor(executor: ExecutorOptions, device: str) -> None:
    _check(unknown_name(executor.engine, ENGINES, "engine (in [executor])"))
    on_ray = executor.engine == "ray"
    if executor.gpus and (on_ray or device not in ("auto", "gpu")):
        raise CampaignError("[executor] gpus are this machine's: they go with engine local and device gpu.")
    if executor.counters and device not in ("auto", "gpu"):
        raise CampaignError("[executor] counters are those of a GPU: they go with device gpu.")
    if executor.address and not on_ray:
        raise CampaignError("[executor] address is that of a Ray cluster: it goes with engine ray.")
    if on_ray and (device == "recorded" or is_remote(device)):
        raise CampaignError(
            f"[executor] engine ray drives devices that build and run kernels here, not {device}."
        )


def _task(
    table: Mapping[str, Any], number: int, shared: Mapping[str, Any]
) -> tuple[_TaskTable, CampaignTask]:
    where = f"[[task]] {number}"
    _check_names(table, (*OWN_FIELDS, *SETTINGS), f"field of {where}")
    _check_names(shared, SETTINGS, "setting of [search]")
    if isinstance(limits := table.get("limits"), Mapping):
        _check_names(limits, _fields(Limits), f"limit of {where}")
    own = {name: value for name, value in table.items() if name in OWN_FIELDS}
    read = _converted(own, _TaskTable, f"{where} can't be used")
    name = read.name or Path(read.task).name
    if not 0 < len(name) <= 60 or not name.isprintable() or "/" in name or name.startswith("."):
        raise CampaignError(f"{where} needs a name that a folder can have, of 60 characters at the most.")
    where = f"[[task]] '{name}'"
    settings = {name: value for name, value in table.items() if name not in OWN_FIELDS}
    read_settings(shared, "[search]", SearchSettings)
    found = read_settings(merged(shared, settings), where, SearchSettings)
    check_complete(found, where)
    return read, CampaignTask(name, read.task, 0.0, read.limits, found)


def _model_time(tables: list[_TaskTable], model_seconds: float | None) -> tuple[bool, float]:
    """Whether times are known or only shares of the model's, and the model's time."""
    in_seconds = tables[0].seconds is not None
    for number, table in enumerate(tables, 1):
        if (table.share is None) == (table.seconds is None):
            raise CampaignError(f"[[task]] {number} needs its share of the model's time, or its seconds.")
        if (table.seconds is not None) != in_seconds:
            raise CampaignError("Some tasks have a share and others seconds: they can't be added up.")
        if table.share is not None and table.calls != 1:
            raise CampaignError(
                f"[[task]] {number}: a share is of all calls together; calls go with seconds."
            )
    if not in_seconds:
        shares = math.fsum(table.share or 0.0 for table in tables)
        if shares > SHARES_IN_ALL:
            raise CampaignError(
                f"The tasks' shares are {shares:.3f} of the model's time together: more than all."
            )
        return model_seconds is not None, model_seconds or 1.0
    known = math.fsum(_seconds(table, 0.0) for table in tables)
    if model_seconds is not None and known > model_seconds * SHARES_IN_ALL:
        raise CampaignError(
            f"The tasks take {known:g} s together: more than model_seconds, {model_seconds:g}."
        )
    return True, model_seconds or known


def _seconds(table: _TaskTable, model_seconds: float) -> float:
    return table.seconds * table.calls if table.seconds is not None else (table.share or 0.0) * model_seconds


def _converted(document: object, kind: type[T], complaint: str) -> T:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise CampaignError(f"{complaint}: {excerpt(error)}.") from error


def _fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(field.name for field in msgspec.structs.fields(kind))


def _check_names(table: Mapping[str, Any], known: Iterable[str], what: str) -> None:
    names = tuple(known)
    for name in table:
        _check(unknown_name(name, names, what))


def _check(sentence: str) -> None:
    if sentence:
        raise CampaignError(sentence)
