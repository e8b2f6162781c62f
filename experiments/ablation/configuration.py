"""The file that says what is compared: arms, what is searched, seeds and budgets.

    title = "Exploration"
    question = "Does more exploration help?"
    against = "default"
    spaces = ["made:made_tiles", "recorded/"]   # or tasks = ["softmax", "my_task/"] and device = "model" or "gpu"
    seeds = 20
    checkpoints = [50, 100]

    [budget]
    evaluations = 100

    [search]                                    # what all arms share
    strategy = "mcts"

    [[arms]]
    name = "default"

    [[arms]]
    name = "more"
    exploration = 1.4

    [small]                                     # what is less of it at `--size small`
    seeds = 2

Paths are relative to the folder in which a command is run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import msgspec
import tomlkit

from mctskernel.core.documents import UNDECODABLE, DocumentError, excerpt, parse_toml
from mctskernel.experiments.ablation.names import AblationError, check_name
from mctskernel.experiments.ablation.settings import Settings, arm_settings, check_arm, check_for_spaces
from mctskernel.run import Budget
from mctskernel.search_settings import merged

PAPER = "paper"
SMALL = "small"
SIZES = (PAPER, SMALL)
"""How much is searched: enough to tell arms apart, or just enough to see that everything works."""

DEVICES = ("model", "gpu")

_Count = Annotated[int, msgspec.Meta(ge=1)]
_Positive = Annotated[float, msgspec.Meta(gt=0)]
_Seed = Annotated[int, msgspec.Meta(ge=0)]


class BudgetTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What each trial may spend. Several numbers of `evaluations` are one search that is looked at after each of them.

    That is the same as searching with each budget, because no strategy knows its budget.
    """

    evaluations: _Count | tuple[_Count, ...]
    seconds: _Positive | None = None
    dollars: _Positive | None = None


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A configuration as it is written. Arms and `search` are tables of settings, `small` replaces other fields."""

    title: str
    question: str = ""
    against: str
    arms: Annotated[tuple[dict[str, Any], ...], msgspec.Meta(min_length=2)]
    budget: BudgetTable
    search: dict[str, Any] = {}
    spaces: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    device: str = "model"
    architecture: str = "H100"
    seeds: _Count | Annotated[tuple[_Seed, ...], msgspec.Meta(min_length=1)] = 20
    checkpoints: tuple[_Count, ...] = ()


@dataclass(frozen=True)
class Arm:
    """What is compared: settings under a name."""

    name: str
    settings: Settings


@dataclass(frozen=True)
class Ablation:
    """A configuration that was read. `document` holds its effective fields, of which `text` and `digest` are made."""

    title: str
    question: str
    against: str
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
        """The configuration as TOML, sizes and replacements applied."""
        return tomlkit.dumps(self.document)

    @property
    def digest(self) -> str:
        """Equal for configurations that ask for the same trials."""
        return hashlib.sha256(msgspec.json.encode(self.document, order="sorted")).hexdigest()[:16]


@dataclass(frozen=True)
class Changes:
    """What a command line puts in place of a configuration's fields; empty for what it leaves."""

    size: str = PAPER
    spaces: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    seeds: int | None = None
    evaluations: int | None = None
    model: Mapping[str, str] | None = None


def ready_configurations() -> Mapping[str, str]:
    """The texts of the configurations that come with the package, by name."""
    folder = files("mctskernel.experiments.ablation") / "configurations"
    return {
        each.name.removesuffix(".toml"): each.read_text("utf-8")
        for each in sorted(folder.iterdir(), key=lambda each: each.name)
        if each.name.endswith(".toml")
    }


def find_configuration(name_or_path: str) -> str:
    """The text of a ready configuration, of a file, or of the configuration in a manifest. Raises AblationError."""
    ready = ready_configurations()
    if name_or_path in ready:
        return ready[name_or_path]
    path = Path(name_or_path)
    if not path.is_file():
        beside = (each.name for each in path.parent.glob("*.toml"))
        check_name(name_or_path, (*ready, *sorted(beside)), "configuration")
    try:
        text = path.read_text("utf-8")
        return msgspec.json.decode(text, type=_Kept).configuration if path.suffix == ".json" else text
    except (OSError, *UNDECODABLE) as error:
        raise AblationError(f"{path} can't be read as a configuration: {excerpt(error)}.") from error


def read_ablation(text: str, changes: Changes | None = None) -> Ablation:
    """A configuration from its text, with what a command line changes. Raises AblationError."""
    try:
        document = parse_toml(text)
    except DocumentError as error:
        raise AblationError(f"The configuration {error}.") from error
    small = document.pop(SMALL, {})
    _check_fields(document, "field of a configuration")
    _check_fields(small, "field of [small]")
    changes = changes or Changes()
    document |= small if changes.size == SMALL else {}
    return _read(_changed(document, changes))


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """In words, what one document has otherwise than another: "budget.evaluations was 100 and is 200"."""
    before, after = dict(_flat(then)), dict(_flat(now))
    return [
        f"{name} was {before.get(name, 'not set')} and is {after.get(name, 'not set')}"
        for name in (*before, *(each for each in after if each not in before))
        if before.get(name) != after.get(name)
    ]


class _Kept(msgspec.Struct):
    configuration: str


def _changed(document: dict[str, Any], changes: Changes) -> dict[str, Any]:
    """The fields that are left, in a form that is the same however they were come to."""
    found = dict(document)
    if changes.spaces or changes.tasks:
        found |= {"spaces": list(changes.spaces), "tasks": list(changes.tasks)}
    if changes.seeds is not None:
        found["seeds"] = changes.seeds
    if changes.evaluations is not None:
        found |= _up_to(changes.evaluations, found)
    if changes.model and found.get("tasks"):
        search = _table(found, "search")
        found["search"] = {**search, "model": {**_table(search, "model"), **changes.model}}
    return {name: value for name, value in found.items() if value != []}


def _up_to(evaluations: int, document: Mapping[str, Any]) -> dict[str, Any]:
    """Another budget, and the checkpoints that still lie within it."""
    budget = _table(document, "budget")
    told = (document.get("checkpoints"), budget.get("evaluations"))
    earlier = {each for some in told if isinstance(some, list) for each in some if isinstance(each, int)}
    return {
        "budget": {**budget, "evaluations": evaluations},
        "checkpoints": sorted(each for each in earlier if each < evaluations),
    }


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A table of a document; whatever else stands there is refused later."""
    found = document.get(name)
    return found if isinstance(found, Mapping) else {}


def _read(document: dict[str, Any]) -> Ablation:
    try:
        found = msgspec.convert(document, _Document)
    except msgspec.ValidationError as error:
        raise AblationError(f"The configuration can't be used: {excerpt(error)}.") from error
    if bool(found.spaces) == bool(found.tasks):
        raise AblationError(
            "A configuration searches spaces or tasks, one of them: shares of an optimum and speed-ups don't average."
        )
    if found.tasks:
        check_name(found.device, DEVICES, "device")
    elif found.budget.seconds or found.budget.dollars:
        raise AblationError(
            "A recorded space is searched by evaluations: leave seconds and dollars out of [budget]."
        )
    evaluations = found.budget.evaluations
    budgets = (evaluations,) if isinstance(evaluations, int) else evaluations
    largest = max(budgets, default=0)
    checkpoints = tuple(sorted({*found.checkpoints, *budgets}))
    if not largest or checkpoints[-1] > largest:
        raise AblationError(
            f"Checkpoints are evaluations within the budget of {largest}, not {checkpoints[-1] if checkpoints else 0}."
        )
    arms = tuple(_arms(found))
    check_name(found.against, [arm.name for arm in arms], "arm")
    return Ablation(
        title=found.title,
        question=found.question,
        against=found.against,
        arms=arms,
        spaces=found.spaces,
        tasks=found.tasks,
        device=found.device if found.tasks else "recorded",
        architecture=found.architecture,
        seeds=tuple(range(found.seeds))
        if isinstance(found.seeds, int)
        else tuple(dict.fromkeys(found.seeds)),
        budget=Budget(largest, found.budget.seconds, found.budget.dollars),
        checkpoints=checkpoints,
        document=document,
    )


def _arms(document: _Document) -> Iterator[Arm]:
    names = set[str]()
    shared = dict(document.search)
    arm_settings(shared, "[search]")
    for number, table in enumerate(document.arms, 1):
        name = table.get("name")
        if not isinstance(name, str) or not _is_plain(name):
            raise AblationError(f"Arm {number} needs a name, without '/' and not longer than 60 characters.")
        if name in names:
            raise AblationError(f"Two arms are called '{name}'.")
        names.add(name)
        own = {key: value for key, value in table.items() if key != "name"}
        arm_settings(own, f"arm '{name}'")
        settings = arm_settings(merged(shared, own), f"arm '{name}'")
        if document.spaces:
            check_for_spaces(settings, f"arm '{name}'")
        check_arm(settings, f"arm '{name}'")
        yield Arm(name, settings)


def _is_plain(name: str) -> bool:
    return 0 < len(name) <= 60 and name.isprintable() and "/" not in name and not name.startswith(".")


def _check_fields(table: object, what: str) -> None:
    if not isinstance(table, Mapping):
        raise AblationError(f"[{SMALL}] is a table of fields.")
    known = [field.name for field in msgspec.structs.fields(_Document)]
    for name in table:
        check_name(name, known, what)
    budget = table.get("budget")
    if isinstance(budget, Mapping):
        for name in budget:
            check_name(
                name, [field.name for field in msgspec.structs.fields(BudgetTable)], "field of [budget]"
            )


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Values by dotted names; arms go by their own."""
    for name, each in value.items():
        if isinstance(each, Mapping):
            yield from _flat(each, f"{prefix}{name}.")
        elif name == "arms" and isinstance(each, Sequence):
            for arm in each:
                yield from _flat(arm, f"arms.{arm.get('name')}.")
        else:
            yield f"{prefix}{name}", each
