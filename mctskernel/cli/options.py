"""Options that several commands take. Those that set a search reach a command as one table of what was chosen.

@options.settings("budget", "device")
def command(*, table: dict[str, Any]) -> None: ...
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
import rich_click as click

from mctskernel.cli.plain_console import deliver
from mctskernel.config import SETTINGS, merged, read_config_file
from mctskernel.core.option import Setting
from mctskernel.registry import RegistryError, check_name, names

Command = Callable[..., Any]

PATH = click.Path(path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
KNOWN_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
KNOWN_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)

SEARCH = (
    *("budget", "device", "architecture", "workers", "proposer", "language", "policy", "reward"),
    *("seed", "llm", "mixture"),
)
"""The settings of every search."""


class Registered(click.ParamType[str]):
    """An option's value: the name of a registered part of a kind, or MODULE:ATTRIBUTE."""

    name = "name"

    def __init__(self, kind: str, *others: str) -> None:
        self.kind, self.others = kind, others

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self.others:
            try:
                check_name(self.kind, value)
            except RegistryError as error:
                self.fail(str(error), param, ctx)
        return value

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002 - the signature of click's ParamType
        return f"[{'|'.join((*names(self.kind), *self.others))}|MODULE:ATTRIBUTE]"


class _Number(click.FloatRange):
    """A number in a range, which NaN is in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found: float = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return found


def print_schema(kind: type, text: str) -> Callable[[Command], Command]:
    """An option --schema that prints a JSON schema and does nothing else."""

    def show(ctx: click.Context, _param: click.Parameter, wanted: object) -> None:
        if wanted and not ctx.resilient_parsing:
            deliver(json.dumps(msgspec.json.schema(kind), indent=2) + "\n")
            ctx.exit()

    return click.option("--schema", is_flag=True, is_eager=True, expose_value=False, callback=show, help=text)


def _option(setting: Setting, **changes: Any) -> Callable[[Command], Command]:
    """The option of a setting, without a default of its own: a file may set the field."""
    about = setting.option
    default = changes.pop("default", about.default or _shown(setting.default))
    arguments = {
        "help": f"{about.text} [default: {default}]" if default else about.text,
        "panel": about.panel,
        "metavar": about.metavar,
        "envvar": about.variable,
        "show_envvar": bool(about.variable),
    }
    return click.option(
        about.flag, setting.path.replace(".", "__"), **{**arguments, **_values(setting), **changes}
    )


def _shown(default: object) -> str:
    return str(default) if isinstance(default, int | str) and default is not False else ""


def _values(setting: Setting) -> dict[str, Any]:
    kind, limits, about = setting.type, setting.limits, setting.option
    if about.registered:
        return {"type": Registered(about.registered, *about.choices)}
    if about.parse is not None:
        return {"callback": _parser(about.parse)}
    if kind is bool:
        return {"is_flag": True}
    if get_origin(kind) is tuple:
        first, second = get_args(kind)
        if second is Ellipsis:
            return {"multiple": True, "callback": _parts}
        return {"nargs": 2, "type": click.FloatRange(first.__metadata__[0].ge)}
    if get_origin(kind) is Literal or issubclass(kind, enum.StrEnum):
        return {"type": click.Choice(tuple(map(str, about.choices or get_args(kind) or kind)))}
    if issubclass(kind, msgspec.Struct):
        return {"multiple": True}
    if kind in (int, float):
        ranged: Any = click.IntRange if kind is int else _Number
        least = limits.ge if limits.gt is None else limits.gt
        return {"type": ranged(least, limits.le, min_open=limits.gt is not None)}
    return {}


def _parser(parse: Callable[[str], str]) -> Callable[..., str | None]:
    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        try:
            return None if value is None else parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from error

    return read


def _parts(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Of an option that is given again, or once with commas."""
    return tuple(part for value in values for each in value.split(",") if (part := each.strip()))


def settings(
    *paths: str, without: Collection[str] = (), file: bool = False, changes: Mapping[str, Any] | None = None
) -> Callable[[Command], Command]:
    """The options of these fields and tables; the choice comes as `table`. `changes` are other arguments by path."""
    chosen = [
        each
        for each in SETTINGS.values()
        if each.path not in without and any(f"{each.path}.".startswith(f"{path}.") for path in paths)
    ]

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(*args: Any, config: Path | None = None, **values: Any) -> Any:
            own = _table({each.path: values.pop(each.path.replace(".", "__")) for each in chosen})
            return command(*args, table=merged(read_config_file(config), own) if config else own, **values)

        decorated: Command = config_file(run) if file else run
        for each in reversed(chosen):
            decorated = _option(each, **(changes or {}).get(each.path, {}))(decorated)
        return decorated

    return decorate


config_file = click.option(
    "--config",
    panel="Output",
    type=KNOWN_FILE,
    help="A TOML file of settings (docs/cli.md), which options on the command line override.",
)


def single(path: str, **changes: Any) -> Callable[[Command], Command]:
    """One of the settings as an option of its own, with the field's default."""
    found = SETTINGS[path]
    about = found.option
    arguments = {"default": None if about.default else found.default, "show_default": True, **_values(found)}
    return click.option(
        about.flag, path, **{"help": about.text, "metavar": about.metavar, **arguments, **changes}
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
