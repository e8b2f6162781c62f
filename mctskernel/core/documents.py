"""Reading files, TOML and msgspec input from outside within bounds.

Both libraries raise more than they document: ValueError for a number of thousands of digits, RecursionError for deep
nesting, UnicodeDecodeError for text that isn't UTF-8. And a dotted key takes quadratic time.
"""

from __future__ import annotations

import enum
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from mctskernel.core.user_errors import nearest_name

T = TypeVar("T")

MAX_BYTES = 16 << 20  # of a file
MAX_CHARACTERS = 1 << 18  # of a TOML document; the largest that this program writes has a few thousand
MAX_STOPS = 256  # full stops in a line, which is where a dotted key has to be

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, UnicodeEncodeError, RecursionError)
"""What msgspec raises for input that is no value of the type, whatever the bytes or the text."""

MOST_QUOTED = 400  # characters of a parser's message, which may quote all of a long input


def excerpt(error: Exception | str) -> str:
    """A message, shortened for a sentence."""
    text = str(error)
    return text if len(text) <= MOST_QUOTED else f"{text[:MOST_QUOTED]}..."


def indented_json(value: object, indent: int = 1) -> bytes:
    """A value as JSON for people, with a line feed at its end."""
    return msgspec.json.format(msgspec.json.encode(value), indent=indent) + b"\n"


class DocumentError(ValueError):
    """A file or text that is no document; the message ends a sentence that begins with what it is."""


def read_file(path: Path) -> bytes:
    """The content of a regular file. Raises DocumentError."""
    try:
        if path.exists() and not path.is_file():
            raise DocumentError("is not a file")  # a pipe would be waited for
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise DocumentError("is missing") from error
    except OSError as error:
        raise DocumentError(f"can't be read: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise DocumentError(f"is larger than {MAX_BYTES >> 20} MiB")
    return data


def read_text(path: Path) -> str:
    """The text of a file, with plain line ends. Raises DocumentError."""
    try:
        return read_file(path).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise DocumentError(f"can't be read: {error}") from error


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. Raises DocumentError."""
    return parse_toml(read_text(path))


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML document. Raises DocumentError for any other text, in time linear in its length."""
    if len(text) > MAX_CHARACTERS:
        raise DocumentError(f"has {len(text)} characters; the limit is {MAX_CHARACTERS}")
    if any(line.count(".") > MAX_STOPS for line in text.split("\n")):
        raise DocumentError(f"has a line with more than {MAX_STOPS} full stops")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise DocumentError("is not valid TOML: it is nested too deeply") from error
    except ValueError as error:
        raise DocumentError(f"is not valid TOML: {error}") from error


def members(text: str) -> dict[str, Any]:
    """The members of a TOML document; none of any other text."""
    try:
        return parse_toml(text)
    except DocumentError:
        return {}


def read_as(document: object, kind: type[T]) -> T:
    """A parsed document as a struct. Raises DocumentError, which names the field and the nearest known name."""
    try:
        return msgspec.convert(document, kind)
    except RecursionError as error:
        raise DocumentError("is nested too deeply") from error
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        field = path.rstrip("`").lstrip(".")
        where = f"'{field}': " if field else ""
        raise DocumentError(
            f"is not valid: {where}{excerpt(problem)}{_known_at(kind, field, problem)}"
        ) from error


def unknown_name(name: str, known: Iterable[str], what: str) -> str:
    """ "There is no WHAT 'NAME'" and the nearest known name; empty for a known one."""
    names = list(known)
    if name in names:
        return ""
    close, listed = nearest_name(name, names), f"; there are {', '.join(names)}" if names else ""
    return f"There is no {what} '{name[:80]}'" + (f". Did you mean '{close}'?" if close else f"{listed}.")


def _known_at(kind: object, path: str, problem: str) -> str:
    """What may stand in place of an unknown field or enum value."""
    found = re.match(r"(?:Object contains unknown field|Invalid enum value) [`'](.*)[`']", problem, re.DOTALL)
    if found is None:
        return ""
    for name in re.findall(r"[A-Za-z_]\w*", path):
        kind = get_type_hints(next(_choices(kind)))[name]
    chosen = next(_choices(kind), None)
    if chosen is None:
        names = [each for each in get_args(kind) if isinstance(each, str)]  # a Literal
    elif issubclass(chosen, enum.Enum):
        names = [each.value for each in chosen]
    else:
        names = chosen.__struct_fields__
    close = nearest_name(found[1], names)
    return f" (did you mean '{close}'?)" if close else f" (known: {', '.join(names)})"


def _choices(kind: Any) -> Iterator[Any]:
    """The structs and enums in a type."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct | enum.Enum):
        yield kind
    for part in get_args(kind):
        yield from _choices(part)
