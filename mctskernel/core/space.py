"""A brute-forced search space: parameters, and the recorded time or failure of every configuration of them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from mctskernel.core.documents import DocumentError, parse_toml
from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.user_errors import BadTaskError

Value = bool | int | float | str
"""A value of a parameter. As in Python, `True` equals 1: a space can't tell the two apart."""

Configuration = tuple[Value, ...]  # one value for every parameter, in the order of the space's parameters


class SpaceError(BadTaskError, ValueError):
    """A space that can't be read or searched, or a configuration that it doesn't have; the message is a sentence."""


@dataclass(frozen=True)
class Parameter:
    """A parameter and the values that it may have, in the order of the file."""

    name: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Entry:
    """The recorded result of measuring a configuration.

    `seconds` is its time, None unless the outcome is ok; `word` is what the file calls the failure. `stage_seconds` is
    what each stage of measuring it took.
    """

    values: Configuration
    outcome: Outcome
    seconds: float | None = None
    word: str = field(default="", compare=False)
    stage_seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def cost_seconds(self) -> float:
        return math.fsum(self.stage_seconds.values())


@dataclass(frozen=True)
class SearchSpace:
    """The configurations that exist, each once, in the order of the file.

    What the parameters' values could make together and isn't among them, no constraint of the space allows. `device`
    and `kernel` are the GPU's and the kernel's names, if the file has them.
    """

    name: str
    parameters: tuple[Parameter, ...]
    entries: tuple[Entry, ...]
    device: str = ""
    kernel: str = ""

    @cached_property
    def by_values(self) -> Mapping[Configuration, Entry]:
        return {entry.values: entry for entry in self.entries}

    @cached_property
    def optimum_seconds(self) -> float:
        """The least time; infinity where every configuration failed."""
        return min((entry.seconds for entry in self.entries if entry.seconds is not None), default=math.inf)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters)


def configuration_kernel(space: SearchSpace, values: Sequence[Value]) -> Kernel:
    """A configuration as a kernel: the space's name in a comment, then a line of TOML for each parameter."""
    lines = (_line(name, value) for name, value in zip(space.names, values, strict=True))
    title = " ".join(space.name.split())
    return Kernel("".join(f"{each}\n" for each in (f"# {title}", *lines)), Language.CONFIGURATION)


def values_of(space: SearchSpace, kernel: Kernel) -> Configuration:
    """The configuration that a kernel is. Raises SpaceError for one that is no configuration of the space."""
    found = _settings(kernel)
    try:
        values = tuple(found[name] for name in space.names)
    except KeyError as error:
        raise SpaceError(
            f"The configuration has no '{error.args[0]}', a parameter of {space.name}."
        ) from error
    if values not in space.by_values or len(found) > len(values):
        text = ", ".join(f"{name}={value}" for name, value in found.items())
        raise SpaceError(f"{space.name} has no configuration {text}.")
    return space.by_values[values].values


def with_settings(kernel: Kernel, levels: dict[str, float | str]) -> Kernel:
    """A configuration with some other values. Raises SpaceError if it isn't one or lacks the parameter."""
    found = _settings(kernel)
    unknown = next((name for name in levels if name not in found), None)
    if unknown is not None:
        raise SpaceError(f"The configuration has no '{unknown}'.")
    title = kernel.source.partition("\n")[0]
    lines = (title, *(_line(name, value) for name, value in (found | levels).items()))
    return Kernel("".join(f"{each}\n" for each in lines), Language.CONFIGURATION)


def _line(name: str, value: Value) -> str:
    return f"{name if _BARE.fullmatch(name) else _quoted(name)} = {_written(value)}"


_BARE = re.compile(r"[A-Za-z0-9_-]+")


def _settings(kernel: Kernel) -> dict[str, Value]:
    if kernel.language is not Language.CONFIGURATION:
        raise SpaceError(f"A kernel in {kernel.language} is no configuration.")
    try:
        found = parse_toml(kernel.source)
    except DocumentError as error:
        raise SpaceError(f"The configuration {error}.") from error
    odd = next((name for name, value in found.items() if not isinstance(value, Value)), None)
    if odd is not None:
        raise SpaceError(f"The configuration's '{odd}' is neither a number, a boolean nor a string.")
    return found


def _written(value: Value) -> str:
    return _quoted(value) if isinstance(value, str) else repr(+value)


def _quoted(text: str) -> str:
    # A JSON string is a TOML string but for DEL, which TOML wants escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
