"""What a field of a configuration says of itself, for command lines and agents: declared in its struct, once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, get_args, get_origin

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=1)]
Positive = Annotated[float, Meta(gt=0)]


@dataclass(frozen=True)
class Option:
    """Stands beside the type of a field, which has its bounds: `Annotated[Count | None, Option("Maximum number.")]`.

    `flag` is that of the field's name, `panel` of a help page that of the struct that the field is in, and `default`
    what the field has, unless they are given. A struct without a `text` is no option itself. Values are `choices`,
    names of parts that are `registered` as this kind, or what `parse` makes of a text; it raises ValueError with a
    sentence. `variable` is one of the environment.
    """

    text: str = ""
    flag: str = ""
    panel: str = ""
    default: str = ""
    metavar: str | None = None
    choices: Collection[str] = ()
    registered: str = ""
    parse: Callable[[str], str] | None = None
    variable: str | None = None


@dataclass(frozen=True)
class Setting:
    """The field at `path`, its names joined by dots; `type` is without None."""

    path: str
    type: Any
    limits: Meta
    default: Any
    option: Option


def settings(
    struct: type[msgspec.Struct], values: object = None, outer: str = "", panel: str = ""
) -> Iterator[Setting]:
    """Every option among the fields of a struct and of those in it, in their order; `values` has their defaults."""
    for field in msgspec.structs.fields(struct):
        option = next((each for each in get_args(field.type) if isinstance(each, Option)), None)
        if option is None:
            continue
        path, default = f"{outer}{field.name}", getattr(values, field.name, field.default)
        kind, limits = _bounded(field.type)
        option = replace(option, panel=option.panel or panel)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            yield from settings(kind, default, f"{path}.", option.panel)
        if option.text:
            flag = option.flag or f"--{field.name.replace('_', '-')}"
            yield Setting(path, kind, limits, default, replace(option, flag=flag))


def _bounded(kind: Any) -> tuple[Any, Meta]:
    """A type without None and annotations, and its bounds."""
    limits = Meta()
    while (parts := get_args(kind)) and (get_origin(kind) is Annotated or type(None) in parts):
        limits = next((each for each in parts if isinstance(each, Meta)), limits)
        kind = parts[0]
    return kind, limits
