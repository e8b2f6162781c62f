"""The TOML file of an ablation: its arms, what they search, seeds and budget.

    title = "Exploration"
    question = "Does more exploration help?"
    baseline = "default"                        # the arm that the others are compared with
    spaces = ["synthetic:tiles", "caches/"]     # or tasks = ["softmax", "my_task/"] and device = "model" or "gpu"
    seeds = 20
    checkpoints = [50, 100]

    [budget]
    evaluations = 100

    [search]                                    # settings that all arms share
    strategy = "mcts"

    [[arms]]
    name = "default"

    [[arms]]
    name = "more"
    exploration = 1.4

Paths are relative to the current folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import msgspec
import tomlkit

from mctskernel.config import (
    ASK_A_MODEL,
    RULES,
    SearchConfig,
    check,
    grouped_table,
    merged,
    read_config,
)
from mctskernel.core.budget import Budget
from mctskernel.core.documents import DocumentError, parse_toml, read_as, read_text, unknown_name
from mctskernel.core.user_errors import MisuseError

DEVICES = ("model", "gpu")

SPACE_SETTINGS = frozenset({"policy", "workers"})
"""What can differ between searches of a search-space cache: nothing there is proposed, rewarded or built."""

GIVEN = ("device", "architecture", "seed", "budget")  # what an ablation says for all its arms

_Count = Annotated[int, msgspec.Meta(ge=1)]
_Seed = Annotated[int, msgspec.Meta(ge=0)]


class AblationError(MisuseError, ValueError):
    """A configuration or a results folder that can't be used; the message is a sentence."""


@dataclass(frozen=True)
class Arm:
    """A configuration under a name; `summary` lists what the arm sets itself."""

    name: str
    config: SearchConfig
    summary: str


@dataclass(frozen=True)
class Ablation:
    """A configuration. `document` holds its effective fields; `checkpoints` ends with the budget."""

    title: str
    question: str
    baseline: str
    arms: tuple[Arm, ...]
    spaces: tuple[str, ...]
    tasks: tuple[str, ...]
    device: str
    architecture: str
    seeds: tuple[int, ...]
    budget: Budget
    checkpoints: tuple[int, ...]
    document: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The effective configuration as TOML."""
        return tomlkit.dumps(self.document)


@dataclass(frozen=True)
class Overrides:
    """What a command line replaces in a configuration; empty fields replace nothing."""

    spaces: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    seeds: int | None = None
    evaluations: int | None = None
    model: Mapping[str, str] | None = None
    device: str = ""


def ready_configurations() -> Mapping[str, str]:
    """Return the texts of the configurations that come with the package, by name."""
    folder = files("mctskernel.experiments.ablation") / "configurations"
    found = {
        each.name.removesuffix(".toml"): each for each in folder.iterdir() if each.name.endswith(".toml")
    }
    return {name: found[name].read_text("utf-8") for name in sorted(found)}


def find_configuration(name_or_path: str) -> str:
    """Return the text of a ready configuration or of a TOML file. Raises AblationError."""
    ready = ready_configurations()
    if name_or_path in ready:
        return ready[name_or_path]
    path = Path(name_or_path)
    if not path.is_file():
        beside = sorted(each.name for each in path.parent.glob("*.toml"))
        check_name(name_or_path, (*ready, *beside), "configuration")
    try:
        return read_text(path)
    except DocumentError as error:
        raise AblationError(f"{path} {error}.") from error


def read_ablation(text: str, overrides: Overrides | None = None) -> Ablation:
    """Parse a configuration and apply overrides. Raises AblationError."""
    try:
        document = parse_toml(text)
    except DocumentError as error:
        raise AblationError(f"The configuration {error}.") from error
    return _read(_overridden(document, overrides or Overrides()))


def check_name(name: str, known: tuple[str, ...] | list[str], kind: str) -> None:
    """Raise AblationError, with the nearest known name, for an unknown one."""
    if sentence := unknown_name(name, known, kind):
        raise AblationError(sentence)


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    title: str
    question: str = ""
    baseline: str
    arms: Annotated[tuple[dict[str, Any], ...], msgspec.Meta(min_length=2)]
    budget: Budget
    search: dict[str, Any] = {}
    spaces: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    device: str = "model"
    architecture: str = "H100"
    seeds: _Count | Annotated[tuple[_Seed, ...], msgspec.Meta(min_length=1)] = 20
    checkpoints: tuple[_Count, ...] = ()


def _overridden(document: dict[str, Any], overrides: Overrides) -> dict[str, Any]:
    found = dict(document)
    if overrides.spaces or overrides.tasks:
        found |= {"spaces": list(overrides.spaces), "tasks": list(overrides.tasks)}
    if overrides.device:
        found["device"] = overrides.device
    if overrides.seeds is not None:
        found["seeds"] = overrides.seeds
    if overrides.evaluations is not None:
        budget = _table(document, "budget")
        checkpoints = document.get("checkpoints")
        numbers = checkpoints if isinstance(checkpoints, list) else ()
        found["budget"] = {**budget, "evaluations": overrides.evaluations}
        found["checkpoints"] = [
            each for each in numbers if isinstance(each, int) and each < overrides.evaluations
        ]
    if overrides.model and found.get("tasks"):
        search = _table(found, "search")
        found["search"] = {**search, "llm": {**_table(search, "llm"), **overrides.model}}
    return {name: value for name, value in found.items() if value != []}


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name)
    return found if isinstance(found, Mapping) else {}


def _read(document: dict[str, Any]) -> Ablation:
    try:
        found = read_as(document, _Document)
    except DocumentError as error:
        raise AblationError(f"The configuration {error}.") from error
    evaluations = found.budget.evaluations
    if evaluations is None:
        raise AblationError("The configuration's [budget] has no evaluations.")
    if bool(found.spaces) == bool(found.tasks):
        raise AblationError(
            "Give spaces or tasks, one of them: shares of an optimum and speed-ups don't average."
        )
    if found.tasks:
        check_name(found.device, DEVICES, "device")
    elif found.budget != Budget(evaluations):
        raise AblationError("The budget of a search-space cache is evaluations alone.")
    checkpoints = tuple(sorted({*found.checkpoints, evaluations}))
    if checkpoints[-1] > evaluations:
        raise AblationError(
            f"Checkpoint {checkpoints[-1]} is beyond the budget of {evaluations} evaluations."
        )
    arms = tuple(_arms(found))
    check_name(found.baseline, [arm.name for arm in arms], "arm")
    seeds = tuple(range(found.seeds)) if isinstance(found.seeds, int) else tuple(dict.fromkeys(found.seeds))
    return Ablation(
        title=found.title,
        question=found.question,
        baseline=found.baseline,
        arms=arms,
        spaces=found.spaces,
        tasks=found.tasks,
        device=found.device if found.tasks else "recorded",
        architecture=found.architecture,
        seeds=seeds,
        budget=found.budget,
        checkpoints=checkpoints,
        document=document,
    )


def _arms(document: _Document) -> Iterator[Arm]:
    names = set[str]()
    for number, table in enumerate(document.arms, 1):
        name = table.get("name")
        if not isinstance(name, str) or not _is_file_name(name):
            raise AblationError(f"Arm {number} needs a name of at most 60 characters, without '/'.")
        if name in names:
            raise AblationError(f"Two arms are called '{name}'.")
        names.add(name)
        own = {key: value for key, value in table.items() if key != "name"}
        config = _config(document, own, f"arm '{name}'")
        summary = ", ".join(f"{key}={value}" for key, value in own.items())
        yield Arm(name, msgspec.structs.replace(config, budget=document.budget), summary)


def _config(document: _Document, own: Mapping[str, Any], where: str) -> SearchConfig:
    """The configuration of an arm. Raises AblationError."""
    table = merged(document.search, own)
    for name in GIVEN:
        if name in table:
            raise AblationError(f"In {where}: {name} is set for all arms, outside of [search].")
    try:
        if table.get("proposer", RULES) not in ASK_A_MODEL:
            table = {name: value for name, value in table.items() if name not in ("llm", "mixture")}
        grouped = grouped_table(table)
        place = {"device": document.device, "architecture": document.architecture}
        config = read_config({"workers": 1, **grouped, **place})
        check(config)
    except MisuseError as error:
        raise AblationError(f"In {where}: {error}") from error
    if document.spaces and (unused := grouped.keys() - SPACE_SETTINGS):
        raise AblationError(
            f"The {where} sets {', '.join(sorted(unused))}, which a search-space cache doesn't use: set fields "
            "of the policy or workers, or search tasks."
        )
    return config


def _is_file_name(name: str) -> bool:
    return 0 < len(name) <= 60 and name.isprintable() and "/" not in name and not name.startswith(".")
