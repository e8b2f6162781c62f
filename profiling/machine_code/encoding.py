"""How an instruction is encoded in 128 bits and how it is written: the language of the encoding tables.

A row is one line of three or four columns, two or more spaces apart:

    023/123457  FFMA{.FTZ@80}{.FMZ@76}{,.RM,.RP,.RZ@78}{.SAT@77}  Rd, -|Ra|, -|Rb:f|, -|Rc:f|

1. Bits 0 to 8 in hexadecimal, and the forms (bits 9 to 11) that the row is for; a `u` behind them says that the
   guard is a uniform predicate. The form says where the operands b and c are:

   | form    | 1    | 2        | 3        | 4        | 5        | 6     | 7     |
   | bit 32  | b: R | c: value | c: c[][] | b: value | b: c[][] | b: UR | c: UR |
   | bit 64  | c: R | b: R     | b: R     | c: R     | c: R     | c: R  | b: R  |

2. The name with its modifiers. `{.FTZ@80}` is written when bit 80 is set; `{,.RM,.RP,.RZ@78}` has a text for
   each value of a field that begins at bit 78 and is as wide as its texts need; `?` is a value without meaning.
   `{*size@73}` takes the texts from `CHOICES`; `@72,75:2` is a field of bit 72 and, above it, bits 75 and 76.
3. The operands. A field is a kind and its lowest bit: `R64`, `UR24`, `P81`, `!P87` (bit 90 negates it), `0x72:8`
   (a number of 8 bits). `Rd` and `Ra` are R16 and R24, `Rb` and `Rc` are where the form says, `Rs` is what the
   form has at bit 32 where that is the last operand. A minus sign, bars and a tilde obey the bits that a slot
   has for them. `P81?` and `!P87?T` are left out when they are PT, `!P87?` when it is !PT. A letter behind a
   colon says how a value is written: f, d (floats of 32 and 64 bits), h, b (pairs of fp16 and bf16; H, B where
   a register's half can be chosen), i (signed), x (unsigned). `[UR24]` is written in brackets, and `<shared>`
   is one of the functions in `special_operands`.
4. Bits with one value only: `91=1`, or `72:4=15` for a field of 4 bits. A bit that is in no column must be 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mctskernel.profiling.machine_code.modifier_texts import CHOICES
from mctskernel.profiling.machine_code.operand_text import (
    SourceBits,
    Text,
    bracketed,
    constant,
    half_constant,
    half_uniform_register,
    modifier,
    number,
    predicate,
    register,
    source,
    uniform_register,
    value,
)
from mctskernel.profiling.machine_code.special_operands import NAMES, OPERANDS, TARGETS

OPERAND_BITS = (1 << 105) - (1 << 16)
"""Everything between the guard and the scheduling bits."""

_SOURCE_BITS: Mapping[int, tuple[int | None, int | None, int | None]] = {
    24: (72, 73, None),
    32: (63, 62, None),
    64: (75, 74, None),
}
_HALF_BITS = {24: (72, 73, 74), 32: (63, 62, 60), 64: (84, 83, 81)}
"""By a slot's lowest bit: where the bits are that negate it, take its absolute value, and choose its half."""

_REUSE = {"a": 122, "b": 123, "c": 124, "s": 124, "24": 122, "32": 123, "64": 124}


@dataclass(frozen=True, slots=True)
class Encoding:
    """One form of one instruction.

    A word has it when `word & mask == match`. `name` and `operands` write the parts of its text from the word and
    its address; an operand that isn't written is None, and a value without meaning raises UnknownWordError. `target`
    finds where a branch goes.
    """

    mask: int
    match: int
    name: tuple[Text, ...]
    operands: tuple[Text, ...]
    uniform_guard: bool
    target: Callable[[int, int], int] | None


class TableError(ValueError):
    """A row of an encoding table can't be read."""


Encodings = Mapping[int, tuple[Encoding, ...]]
"""By the low 12 bits of a word."""


def read_tables(tables: Sequence[str], instead: str = "") -> Encodings:
    """The encodings of these tables; a row of `instead` stands for all their rows of the same opcode.

    Raises TableError.
    """
    particular = list(_rows((instead,)))
    replaced = {opcode & 0x1FF for opcode, _ in particular}
    found: dict[int, list[Encoding]] = {}
    for opcode, encoding in [*particular, *(row for row in _rows(tables) if row[0] & 0x1FF not in replaced)]:
        found.setdefault(opcode, []).append(encoding)
    return {opcode: tuple(encodings) for opcode, encodings in found.items()}


def _rows(tables: Sequence[str]) -> Iterator[tuple[int, Encoding]]:
    for line in (line for table in tables for line in table.splitlines()):
        if line.strip() and not line.startswith("#"):
            yield from _row(line)


def _row(line: str) -> Iterator[tuple[int, Encoding]]:
    columns = re.split(r"\s{2,}", line.strip())
    head = re.fullmatch(r"([0-9a-f]{3})/([0-7]+)(u?)", columns[0])
    if head is None or len(columns) < 2:
        raise TableError(f"not a row of an encoding table: {line!r}")
    fixed = [column for column in columns[2:] if "=" in column]
    operands = [column for column in columns[2:] if "=" not in column]
    for digit in head[2]:
        reader = _Reader(int(digit))
        opcode = int(head[1], 16) | reader.form << 9
        try:
            name = tuple(reader.name(columns[1]))
            texts = tuple(reader.operand(each) for each in re.split(r", ", operands[0])) if operands else ()
            reader.fix(fixed[0] if fixed else "")
        except (ValueError, KeyError) as error:
            raise TableError(f"{error}: {line!r}") from error
        mask = (OPERAND_BITS & ~reader.free) | reader.fixed_mask | 0xF << 122 & ~reader.free | 0xFFF
        yield opcode, Encoding(mask, reader.fixed | opcode, name, texts, bool(head[3]), reader.target)


_MODIFIER = re.compile(r"\{([^@}]*)@([\d,:]+)\}|(<[\w-]+>|[^{<]+)")
_REGISTER = re.compile(
    r"(?P<sign>-|~|)(?P<bar>\|?)(?P<kind>U?R)(?P<slot>[dabcs]|\d+)(?::(?P<style>[fdhbHBix]))?\|?(?P<suffix>\.\w+)?"
)
_PREDICATE = re.compile(r"(!?)(U?P)(\d+)(\??T?)")
_NUMBER = re.compile(r"0x(\d+):(\d+)(i?)")
_SLOTS = {"d": 16, "a": 24, "s": 32}


class _Reader:
    """Reads a row for one form, and notes which bits of the word its parts depend on."""

    def __init__(self, form: int) -> None:
        self.form = form
        self.free = 0
        self.fixed = 0
        self.fixed_mask = 0
        self.target: Callable[[int, int], int] | None = None

    def _use(self, low: int, width: int = 1) -> None:
        self.free |= (1 << width) - 1 << low

    def fix(self, column: str) -> None:
        for low, width, wanted in re.findall(r"(\d+)(?::(\d+))?=(\d+)", column):
            self.fixed_mask |= (1 << int(width or 1)) - 1 << int(low)
            self.fixed |= int(wanted) << int(low)

    def name(self, column: str) -> Iterator[Text]:
        for texts, low, plain in _MODIFIER.findall(column):
            if plain.startswith("<"):
                bits, text = NAMES[plain[1:-1]]
                self.free |= bits
                yield text
            elif plain:
                yield plain
            if plain:
                continue
            choices = CHOICES[texts[1:]] if texts.startswith("*") else tuple(texts.split(","))
            if len(choices) == 1:
                choices = ("", *choices)
            yield modifier(choices, self._field(low, (len(choices) - 1).bit_length()))

    def _field(self, column: str, width: int) -> tuple[tuple[int, int], ...]:
        """The bits of a field, as pairs of lowest bit and width, the lower bits of its value first."""
        if column.isdigit():
            bits: tuple[tuple[int, int], ...] = ((int(column), width),)
        else:
            pairs = (part.partition(":") for part in column.split(","))
            bits = tuple((int(low), int(each or 1)) for low, _, each in pairs)
        for low, each in bits:
            self._use(low, each)
        return bits

    def operand(self, token: str) -> Text:
        if found := _REGISTER.fullmatch(token):
            return self._source(found)
        if found := _PREDICATE.fullmatch(token):
            negatable, kind, low, optional = found.groups()
            self._use(int(low), 4 if negatable else 3)
            return predicate(kind, int(low), optional, negatable=bool(negatable))
        if found := _NUMBER.fullmatch(token):
            self._use(int(found[1]), int(found[2]))
            return number(int(found[1]), int(found[2]), signed=bool(found[3]))
        if token.startswith("["):
            return bracketed(self.operand(token[1:-1]))
        if token.startswith("<"):
            bits, text = OPERANDS[token[1:-1]]
            self.free |= bits
            self.target = TARGETS.get(token[1:-1], self.target)
            return text
        return token

    def _source(self, token: re.Match[str]) -> Text:
        """A register, or what the form has in its place."""
        kind, slot, style = token["kind"], token["slot"], token["style"]
        low = self._slot(slot)
        if slot in {"b", "c", "s"} and low == 32 and self.form != 1:
            if self.form in {2, 4}:
                self._use(32, 32)
                return value((style or "x").lower())
            halves = style in {"H", "B"}
            if halves:
                self._use(60, 2)
            if self.form in {3, 5}:
                self._use(40, 19)
                return self._signed(token, 32, half_constant if halves else constant)
            self.fixed_mask |= 1 << 91
            self.fixed |= 1 << 91
            self._use(32, 6)
            return self._signed(token, 32, half_uniform_register if halves else uniform_register(32))
        if kind == "UR":
            self._use(low, 6)
            return self._signed(token, low, uniform_register(low))
        self._use(low, 8)
        reuse = _REUSE.get(slot)
        if reuse is not None:
            self._use(reuse)
        return self._signed(token, low, register(low), reuse)

    def _slot(self, slot: str) -> int:
        if slot.isdigit():
            return int(slot)
        if slot in _SLOTS:
            return _SLOTS[slot]
        return 32 if (slot == "b") == (self.form not in {2, 3, 7}) else 64

    def _signed(
        self, token: re.Match[str], low: int, text: Callable[[int, int], str], reuse: int | None = None
    ) -> Text:
        """A source with the bits that the slot has and the row names."""
        halves = token["style"] in {"h", "b", "H", "B"}
        negate, absolute, half = (_HALF_BITS if halves else _SOURCE_BITS).get(low, (None, None, None))
        bits = SourceBits(
            token["sign"],
            negate if token["sign"] else None,
            absolute if token["bar"] else None,
            half
            if token["style"] in {"H", "B"} and text not in {half_constant, half_uniform_register}
            else None,
            reuse,
            token["suffix"] or "",
        )
        for bit in (bits.negate, bits.absolute):
            if bit is not None:
                self._use(bit)
        if bits.half is not None:
            self._use(bits.half, 2)
        return source(text, bits)
