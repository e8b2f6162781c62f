"""The functions of a cubin: decoded here where every word is known, by nvdisasm where one isn't."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self

from mctskernel.profiling.machine_code import nvdisasm
from mctskernel.profiling.machine_code.cubin import Section, architecture, sections
from mctskernel.profiling.machine_code.decoder import ARCHITECTURES, UnknownWord, decode
from mctskernel.profiling.machine_code.functions import Function
from mctskernel.profiling.machine_code.line_table import PTX_LINES, SOURCE_LINES, line_rows
from mctskernel.profiling.machine_code.nvdisasm import Disassembly


class PendingDisassembly(Protocol):
    """A disassembly under way. Use it as a context manager, so that it never outlives its caller."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def result(self, timeout_seconds: float = 60.0) -> Disassembly:
        """Wait for the end. Raises DisassemblerError."""
        ...

    def cancel(self) -> None:
        """Give up, and give back what it used."""
        ...


def start_disassembly(cubin: bytes) -> PendingDisassembly:
    """Decode at once, or begin to disassemble beside the caller where nvdisasm is needed.

    Raises DisassemblerError when it is needed and there is none.
    """
    found = decoded(cubin)
    return nvdisasm.start_disassembly(cubin) if found is None else _Decoded(found)


def disassemble(cubin: bytes) -> Disassembly:
    """Disassemble and wait. Raises DisassemblerError when nvdisasm is needed, and is missing or fails."""
    with start_disassembly(cubin) as pending:
        return pending.result()


def decoded(cubin: bytes) -> Disassembly | None:
    """The functions of a cubin, without nvdisasm; None where a word of it is unknown or to be relocated."""
    try:
        return _decoded(cubin) if architecture(cubin) in ARCHITECTURES else None
    except (struct.error, ValueError, LookupError, ArithmeticError):
        return None  # no cubin, or a damaged one: nvdisasm says what it is


def _decoded(cubin: bytes) -> Disassembly | None:
    found = sections(cubin)
    source, ptx = (line_rows(cubin, section) for section in (SOURCE_LINES, PTX_LINES))
    functions = {}
    for name in _functions(found):
        if _is_relocated(found, name):
            return None
        code = found[f".text.{name}"].data
        instructions = decode(code, architecture(cubin), source.get(name, ()), ptx.get(name, ()))
        if isinstance(instructions, UnknownWord):
            return None
        functions[name] = Function(name, instructions)
    return Disassembly(functions) if functions else None


def _functions(found: Mapping[str, Section]) -> list[str]:
    prefix = ".text."
    return [name.removeprefix(prefix) for name in found if name.startswith(prefix)]


def _is_relocated(found: Mapping[str, Section], function: str) -> bool:
    """Whether the linker has yet to write addresses into a function's words: nvdisasm writes symbols there."""
    names = (f".rela.text.{function}", f".rel.text.{function}")
    return any(found[name].size for name in names if name in found)


class _Decoded:
    """A disassembly that needed no process."""

    def __init__(self, found: Disassembly) -> None:
        self._found = found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def result(self, timeout_seconds: float = 60.0) -> Disassembly:  # noqa: ARG002 - there is nothing to wait for
        """What was found, at once."""
        return self._found

    def cancel(self) -> None:
        """Nothing is under way."""
