"""What a GPU MODE task hands to its kernels: tensors and plain values, nested in tuples, lists and dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec

from mctskernel.core.task import TaskError

Key = int | str
Path = tuple[Key, ...]
"""Where a leaf is: the index or key at each level."""

Plain = bool | int | float | str | None

MOST_DEPTH = 8


class Leaf(msgspec.Struct, frozen=True, tag="leaf"):
    """A leaf: the task's input, a buffer for the output, or a dimension, of this name; or a value that is the same in
    every case.
    """

    input: str = ""
    buffer: str = ""
    dimension: str = ""
    value: Plain = None


class Items(msgspec.Struct, frozen=True, tag="items"):
    """A tuple or a list."""

    kind: Literal["tuple", "list"]
    items: tuple[Items | Table | Leaf, ...]


class Table(msgspec.Struct, frozen=True, tag="table"):
    """A dictionary."""

    items: dict[str, Items | Table | Leaf]


Structure = Items | Table | Leaf


def leaves(data: object, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The leaves of nested data, in order. Raises TaskError for what is nested in other ways."""
    if len(path) > MOST_DEPTH:
        raise TaskError(f"Its generate_input nests its data deeper than {MOST_DEPTH} levels.")
    match data:
        case tuple() | list():
            for index, item in enumerate(data):
                yield from leaves(item, (*path, index))
        case dict():
            for key, item in data.items():
                if not isinstance(key, str):
                    raise TaskError(
                        f"Its generate_input gives a dictionary with the key {key!r}, which is no text."
                    )
                yield from leaves(item, (*path, key))
        case _:
            yield path, data


def structure_of(data: object, leaf: Callable[[Path, Any], Leaf], path: Path = ()) -> Structure:
    """The structure of nested data, whose leaves a function describes."""
    match data:
        case tuple() | list():
            items = (structure_of(item, leaf, (*path, index)) for index, item in enumerate(data))
            return Items("tuple" if isinstance(data, tuple) else "list", tuple(items))
        case dict():
            return Table({key: structure_of(item, leaf, (*path, key)) for key, item in data.items()})
        case _:
            return leaf(path, data)


def rebuilt(structure: Structure, value: Callable[[Leaf], Any]) -> Any:
    """Nested data of a structure, whose leaves a function gives the values of."""
    match structure:
        case Items(kind, items):
            made = [rebuilt(item, value) for item in items]
            return tuple(made) if kind == "tuple" else made
        case Table(items):
            return {key: rebuilt(item, value) for key, item in items.items()}
        case Leaf():
            return value(structure)


def places(structure: Structure, path: Path = ()) -> Iterator[tuple[Path, Leaf]]:
    """The leaves of a structure, and where they are."""
    match structure:
        case Items(_, items):
            for index, item in enumerate(items):
                yield from places(item, (*path, index))
        case Table(items):
            for key, item in items.items():
                yield from places(item, (*path, key))
        case Leaf():
            yield path, structure


def subscripts(path: Path) -> str:
    """A path as Python subscripts: `[0]["weights"]`."""
    return "".join(f"[{key!r}]" for key in path)
