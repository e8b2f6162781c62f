"""What a model's tokens cost, from files that a user can edit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import msgspec

from mctskernel.edits.llm.options import ModelError

_Dollars = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


@dataclass(frozen=True)
class Tokens:
    """What went into a model and came out; `cached_input` is the part of `input` that its server had seen before."""

    input: int = 0
    output: int = 0
    cached_input: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.input + other.input, self.output + other.output, self.cached_input + other.cached_input
        )


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """US dollars for a million tokens; without `cached_input`, those cost what other input does."""

    input: _Dollars
    output: _Dollars
    cached_input: _Dollars | None = None

    def dollars(self, tokens: Tokens) -> float:
        """What these tokens cost."""
        cached = min(tokens.cached_input, tokens.input)
        cached_price = self.input if self.cached_input is None else self.cached_input
        million = (tokens.input - cached) * self.input + cached * cached_price + tokens.output * self.output
        return million / 1e6


@dataclass(frozen=True)
class Prices:
    """Prices by the name of a model, or by a pattern such as `qwen*`, the first that fits before later ones."""

    table: Mapping[str, Price]

    def of(self, model: str) -> Price | None:
        """The price of a model: by its name, else by a pattern; None where neither is listed."""
        if model in self.table:
            return self.table[model]
        return next((price for name, price in self.table.items() if fnmatchcase(model, name)), None)


def load_prices(file: Path | None = None) -> Prices:
    """The prices of a file, and after them the built-in ones. Raises ModelError."""
    built_in = _decode(files("mctskernel.edits.llm").joinpath("prices.toml").read_bytes(), "prices.toml")
    if file is None:
        return Prices(built_in)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ModelError(f"The prices in {file.name} can't be read: {error.strerror}.") from None
    own = _decode(data, file.name)
    return Prices({**own, **{name: price for name, price in built_in.items() if name not in own}})


def _decode(data: bytes, name: str) -> dict[str, Price]:
    try:
        return msgspec.toml.decode(data, type=dict[str, Price])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ModelError(
            f"{name} is not a file of prices: {error}. Each model is a table, such as "
            '["name"] with `input = 0.5` and `output = 2.0`, US dollars for a million tokens.'
        ) from None
