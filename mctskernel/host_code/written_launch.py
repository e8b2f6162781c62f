"""A launch of a plan as Python source: each number in it is an expression over what the module's function knows."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from mctskernel.core.launch_plan import Extent, Launch
from mctskernel.host_code.expressions import Translation, Variable, translate, translate_whole


class Kind(enum.Enum):
    """What an argument is, for a host function in a language with types."""

    BUFFER = enum.auto()
    WHOLE = enum.auto()
    REAL = enum.auto()


@dataclass(frozen=True)
class Argument:
    """An argument of a launch."""

    source: str
    kind: Kind


@dataclass(frozen=True)
class Options:
    """What a launch of a Triton kernel has."""

    constexprs: Mapping[str, str]
    num_warps: str
    num_stages: str


@dataclass(frozen=True)
class WrittenLaunch:
    """A launch; `grid` and `block` have three extents each, and `calls` names the arithmetic that all of it needs."""

    kernel: str
    grid: tuple[str, ...]
    block: tuple[str, ...]
    shared: str
    arguments: tuple[Argument, ...]
    calls: frozenset[str]
    options: Options | None = None


def write_launch(
    launch: Launch,
    buffers: Mapping[str, str],
    variables: Mapping[str, Variable],
    functions: Mapping[str, str],
) -> WrittenLaunch:
    """Translate a launch; `buffers` are the module's names of tensors and scratch buffers. Raises HostCodeError."""
    calls: set[str] = set()

    def source(translation: Translation) -> str:
        calls.update(translation.calls)
        return translation.source

    def whole(extent: Extent) -> str:
        return source(translate_whole(extent, variables, functions))

    def argument(value: Extent | float) -> Argument:
        if isinstance(value, str) and value in buffers:
            return Argument(buffers[value], Kind.BUFFER)
        number = translate(value, variables, functions)
        return Argument(source(number), Kind.WHOLE if number.is_whole else Kind.REAL)

    options = None
    if launch.triton is not None:
        options = Options(
            {name: source(translate(each, variables, functions)) for name, each in launch.triton.constexprs},
            whole(launch.triton.num_warps),
            whole(launch.triton.num_stages),
        )
    return WrittenLaunch(
        launch.kernel,
        _three([whole(extent) for extent in launch.grid]),
        _three([whole(extent) for extent in launch.block]),
        whole(launch.shared),
        tuple(argument(each) for each in launch.args),
        frozenset(calls),
        options,
    )


def _three(extents: list[str]) -> tuple[str, ...]:
    return (*extents, *["1"] * (3 - len(extents)))
