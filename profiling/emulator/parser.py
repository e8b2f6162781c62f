"""PTX text to a module of entries and functions made of plain instructions.

Grammar: NVIDIA, *PTX ISA*, version 9, chapters "Syntax" and "State Spaces, Types, and Variables".
Every identifier is replaced by an object of our own, so nothing of the text survives into generated code.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from mctskernel.profiling.emulator.ptx import (
    SIZES,
    Address,
    Arguments,
    BranchTargets,
    Function,
    Immediate,
    Instruction,
    Label,
    Module,
    Negated,
    Operand,
    Pair,
    Parameter,
    Register,
    Statement,
    Symbol,
    UnsupportedPtxError,
    Variable,
    Vector,
)
from mctskernel.profiling.ptx_text import without_comments


def parse_ptx(text: str) -> Module:
    """Parse a PTX module as NVRTC and Triton write it; raises `UnsupportedPtxError`."""
    text = without_comments(text)
    entries: dict[str, Function] = {}
    functions: dict[str, Function] = {}
    variables: list[Variable] = []
    position = 0
    while match := _TOP.match(text, position):
        position = match.end()
        if match["directive"] or match["section"]:
            continue
        if match["variable"]:
            variables.append(_variable(match["variable"]))
            continue
        body, position = _braced(text, position) if text[match.end() - 1] == "{" else (None, position)
        if body is None:
            continue
        function = _function(match["header"].rstrip("{; \n\t"), body)
        (entries if ".entry" in match["header"] else functions)[function.name] = function
    if text[position:].strip():
        raise UnsupportedPtxError("directive " + text[position:].split(None, 2)[0][:40])
    return Module(entries, functions, tuple(variables))


_TOP = re.compile(
    r"\s*+(?:(?P<directive>\.(?:version|target|address_size|file|loc)\b[^\n]*|\.pragma[^;]*;|;)"
    r"|(?P<section>\.section\s+\S+\s*\{[^}]*\})"
    r"|(?P<header>(?:\.(?:visible|extern|weak|common)\s+)*\.(?:entry|func)\b[^{;]*+[{;])"
    r"|(?P<variable>(?:\.(?:visible|extern|weak|common)\s+)*\.(?:global|const|shared)\b[^;{]*+(?:\{[^}]*+\})?+[^;]*+;))"
)


def _braced(text: str, position: int) -> tuple[str, int]:
    depth, start = 1, position
    for brace in re.compile(r"[{}]").finditer(text, position):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[start : brace.start()], brace.end()
    raise UnsupportedPtxError("unbalanced braces")


_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>\w+)"
    r"(?:\s+\.ptr(?:\s+\.(?:global|shared|const|local))?(?:\s+\.align\s+\d+)?)?"
    r"\s+(?P<name>[\w$%]+)\s*(?:\[(?P<count>\d*)\])?"
)


def _parameters(text: str) -> tuple[Parameter, ...]:
    found = []
    for match in _PARAMETER.finditer(text):
        size = _size(match["type"])
        array = match["count"] is not None
        found.append(
            Parameter(
                match["name"],
                match["type"],
                size * int(match["count"] or 1) if array else size,
                int(match["align"] or size),
            )
        )
    return tuple(found)


def _size(name: str) -> int:
    if name not in SIZES:
        raise UnsupportedPtxError(f"type {name[:40]}")
    return SIZES[name]


_VARIABLE = re.compile(
    r"(?:\.(?:visible|extern|weak|common)\s+)*\.(?P<space>global|const|shared|local|param)\s+"
    r"(?:\.align\s+(?P<align>\d+)\s+)?(?:\.attribute\([^)]*\)\s*)?\.(?P<type>\w+)\s+"
    r"(?P<name>[\w$%]+)\s*(?P<dims>(?:\[\s*\d*\s*\])*)\s*(?:=\s*(?P<data>.*?))?;?\s*$",
    re.DOTALL,
)


def _variable(text: str) -> Variable:
    match = _VARIABLE.match(text.strip())
    if not match:
        raise UnsupportedPtxError("variable " + " ".join(text.split())[:80])
    element = _size(match["type"])
    size = element
    for count in re.findall(r"\[\s*(\d*)\s*\]", match["dims"]):
        size *= int(count or 0)
    data = None
    if match["data"]:
        items = match["data"].strip().strip("{}").split(",")
        literals = [_immediate(item.strip()) for item in items if item.strip()]
        if any(literal is None for literal in literals):
            raise UnsupportedPtxError("initialiser of a variable with addresses")
        data = b"".join(
            (literal.value & ((1 << 8 * element) - 1)).to_bytes(element, "little")
            for literal in literals
            if literal is not None
        ).ljust(size, b"\0")
    return Variable(match["name"], match["space"], size, int(match["align"] or element), data)


def _function(header: str, body: str) -> Function:
    match = re.match(
        r"[.\w\s]*?\.(?:entry|func)\s*(?:\.noreturn\s*)?(?:\((?P<results>[^)]*)\))?\s*"
        r"(?P<name>[\w$%]+)\s*(?:\((?P<params>[^)]*)\))?(?P<tail>.*)",
        header,
        re.DOTALL,
    )
    if not match:
        raise UnsupportedPtxError("function header " + " ".join(header.split())[:60])
    tail = match["tail"]
    cluster = re.search(r"\.(reqnctapercluster|explicitcluster)\b", tail)
    if cluster:
        raise UnsupportedPtxError("." + cluster[1])
    threads = re.search(r"\.(?:maxntid|reqntid)\s+([\d,\s]+)", tail)
    limit = None
    if threads:
        limit = 1
        for count in threads[1].split(","):
            limit *= int(count)
    reader = _Body()
    statements = tuple(reader.statements(body))
    return Function(
        match["name"],
        _parameters(match["params"] or ""),
        _parameters(match["results"] or ""),
        statements,
        tuple(reader.variables),
        limit,
    )


_PIECE = re.compile(
    r"\s*+(?:(?P<loc>\.(?:loc|file)\b[^\n]*)|(?P<open>\{)|(?P<close>\})"
    r"|(?P<label>[$\w]+)\s*:(?!:)|(?P<statement>[^;{}]*+(?:\{[^{}]*+\}[^;{}]*+)*+;))"
)
_SCOPE = re.compile(r"\{(?:[^{}]++|\{[^{}]*+\})*+\}")
_CARRY = re.compile(r"(?:add|sub|mad)(?P<reads>c)?(?:\.lo|\.hi)?(?P<writes>\.cc)?\.[us](?:32|64)$")
_CONDITION_CODE = "condition code"
_GUARD = re.compile(r"@\s*(!?)\s*([%$\w]+)\s+")
_INTEGER = re.compile(r"([+-]?)\s*(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")


def _with_own_labels(scope: re.Match[str]) -> str:
    """A scope whose labels no other one has."""
    names = set(re.findall(r"(?<![$:\w])([A-Za-z_]\w*)\s*:(?!:)", scope[0]))
    own = rf"\b(?:{'|'.join(names)})\b"
    return re.sub(own, lambda name: f"{name[0]}${scope.start()}", scope[0]) if names else scope[0]


class _Body:
    """Reads the statements of one function; scopes are stacked so that inner registers may shadow."""

    def __init__(self) -> None:
        self.scopes: list[dict[str, Register]] = [{}]
        self.variables: list[Variable] = []
        self.registers = 0
        self.line: int | None = None
        self.file: str | None = None

    def statements(self, text: str) -> Iterator[Statement]:
        position, text = 0, _SCOPE.sub(_with_own_labels, text)
        label: str | None = None
        while match := _PIECE.match(text, position):
            position = match.end()
            if match["loc"]:
                self._locate(match["loc"])
            elif match["open"]:
                self.scopes.append({})
            elif match["close"]:
                self.scopes.pop()
            elif match["label"]:
                label = match["label"]
                yield Label(label)
            else:
                yield from self._statement(match["statement"][:-1].strip(), label)
        if text[position:].strip():
            raise UnsupportedPtxError("statement " + " ".join(text[position:].split())[:60], self.line)

    def _locate(self, text: str) -> None:
        """Keep lines of the file that the function begins in; code inlined from headers counts for its caller."""
        if not text.startswith(".loc"):
            return
        places = re.findall(r"(?:\.loc|inlined_at)\s+(\d+)\s+(\d+)", text)
        if not self.file and places:
            self.file = places[0][0]
        for file, line in places:
            if file == self.file and int(line):
                self.line = int(line)
                return

    def _statement(self, text: str, label: str | None) -> Iterator[Statement]:
        if not text or text.startswith(".pragma"):
            return
        if text.startswith(".reg"):
            self._declare(text)
        elif text.startswith(".branchtargets"):
            yield BranchTargets(label or "", tuple(re.findall(r"[$\w]+", text[len(".branchtargets") :])))
        elif text.startswith((".shared", ".local", ".param", ".global", ".const")):
            self.variables.append(_variable(text))
        elif text.startswith("."):
            raise UnsupportedPtxError("directive " + text.split(None, 1)[0], self.line)
        else:
            yield self._instruction(text)

    def _declare(self, text: str) -> None:
        match = re.match(r"\.reg\s+\.(\w+)\s+(.*)", text, re.DOTALL)
        if not match or match[1] not in SIZES:
            raise UnsupportedPtxError(" ".join(text.split())[:60], self.line)
        for item in match[2].split(","):
            name = item.strip()
            many = re.match(r"(.*)<(\d+)>$", name)
            names = [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]
            for each in names:
                self.scopes[-1][each] = Register(self.registers, match[1])
                self.registers += 1

    def _instruction(self, text: str) -> Instruction:
        guard: Register | Negated | None = None
        if match := _GUARD.match(text):
            register = self._register(match[2])
            if register is None:
                raise UnsupportedPtxError("guard " + match[2], self.line)
            guard = Negated(register) if match[1] else register
            text = text[match.end() :]
        opcode, _, rest = text.partition(" ") if " " in text.split("\t")[0] else text.partition("\t")
        if not re.fullmatch(r"[a-z][\w.:]*", opcode):
            raise UnsupportedPtxError("instruction " + opcode[:40], self.line)
        operands = tuple(self._operand(item) for item in _split(rest))
        if match := _CARRY.match(opcode):
            if not operands:
                raise UnsupportedPtxError(f"instruction {opcode} without operands", self.line)
            operands = self._with_carry(operands, reads=bool(match["reads"]), writes=bool(match["writes"]))
        return Instruction(opcode, operands, guard, self.line)

    def _with_carry(
        self, operands: tuple[Operand | None, ...], *, reads: bool, writes: bool
    ) -> tuple[Operand | None, ...]:
        """The condition code, which PTX never names, as a predicate: the last source, the second destination."""
        if _CONDITION_CODE not in self.scopes[0]:
            self.scopes[0][_CONDITION_CODE] = Register(self.registers, "pred")
            self.registers += 1
        carry = self.scopes[0][_CONDITION_CODE]
        target = Pair(operands[0], carry) if writes else operands[0]
        return (target, *operands[1:], *([carry] if reads else []))

    def _register(self, name: str) -> Register | None:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    def _operand(self, text: str) -> Operand | None:
        if text == "_":
            return None
        if text[0] == "(":
            return Arguments(tuple(re.findall(r"[\w$%]+", text)))
        if text[0] == "{":
            return Vector(tuple(self._operand(item) for item in _split(text[1:-1])))
        if text[0] == "[":
            return self._address(text[1:-1])
        if text[0] == "!":
            register = self._register(text[1:].strip())
            if register is None:
                raise UnsupportedPtxError("operand " + text, self.line)
            return Negated(register)
        if "|" in text:
            first, _, second = text.partition("|")
            return Pair(self._operand(first.strip()), self._operand(second.strip()))
        literal = _immediate(text)
        return literal if literal is not None else self._name(text)

    def _name(self, text: str) -> Register | Symbol:
        register = self._register(text)
        if register is not None:
            return register
        name, _, offset = text.partition("+")
        constant = _immediate(offset.strip()) if offset else Immediate(0, "int")
        if constant is None or not re.fullmatch(r"[\w$%.]+", name.strip()):
            raise UnsupportedPtxError("operand " + text[:40], self.line)
        return Symbol(name.strip(), constant.value)

    def _address(self, text: str) -> Address:
        base, sign, offset = text.partition("+")
        if not sign and (match := re.fullmatch(r"\s*([%$\w]+)\s*-\s*(\w+)\s*", text)):
            base, offset = match[1], "-" + match[2]
        constant = _immediate(base.strip())
        if constant is not None:
            return Address(None, constant.value)
        displacement = _immediate(offset.strip()) if offset.strip() else Immediate(0, "int")
        if displacement is None or "," in text:
            raise UnsupportedPtxError(f"address [{text[:40]}]", self.line)
        return Address(self._name(base.strip()), displacement.value)


def _split(text: str) -> list[str]:
    """Split operands at commas that stand outside brackets."""
    items, depth, start = [], 0, 0
    for i, character in enumerate(text):
        if character in "[{(":
            depth += 1
        elif character in "]})":
            depth -= 1
        elif character == "," and depth == 0:
            items.append(text[start:i].strip())
            start = i + 1
    items.append(text[start:].strip())
    return [item for item in items if item]


def _immediate(text: str) -> Immediate | None:
    if text == "WARP_SZ":
        return Immediate(32, "int")
    if match := _INTEGER.match(text):
        digits = match[2]
        octal = len(digits) > 1 and digits[0] == "0" and digits.isdigit()
        value = int(digits, 8) if octal else int(digits, 0)
        return Immediate(-value if match[1] == "-" else value, "int")
    if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
        return Immediate(int(text[2:], 16), "f32")
    if re.fullmatch(r"0[dD][0-9a-fA-F]{16}", text):
        return Immediate(int(text[2:], 16), "f64")
    if re.fullmatch(r"[+-]?\d+\.\d*(?:[eE][+-]?\d+)?", text):
        return Immediate(struct.unpack("<Q", struct.pack("<d", float(text)))[0], "f64")
    return None
