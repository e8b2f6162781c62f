"""Errors of Triton's compiler: the first one as a sentence with its line, and the log."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.compiler.errors import CompilationError

MAX_MESSAGE = 300
MAX_LOG = 20_000


@dataclass
class Diagnostics:
    """The standard error output of the compiler's native parts."""

    text: str = ""


@contextmanager
def native_diagnostics() -> Iterator[Diagnostics]:
    """Capture this process's standard error output, to which MLIR and LLVM write directly."""
    found = Diagnostics()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield found
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            found.text = file.read(MAX_LOG).decode(errors="replace")


def explain(error: BaseException, diagnostics: str, starts: Mapping[str, int], file: str) -> tuple[str, str]:
    """The sentence and the log. `starts` gives the line of `def` for each function's text, as Triton has it."""
    chain = list(_causes(error))
    line = next((at for each in reversed(chain) if (at := _line(each, starts)) is not None), None)
    text = _text(chain[-1])
    assembler = _ASSEMBLER.search(text)
    if assembler is not None:
        text = f"ptxas: {assembler['text']}"
    native = _NATIVE.search(diagnostics)
    if line is None and native is not None:
        line, text = int(native["line"]), native["text"]
    sentence = " ".join(text.split())[:MAX_MESSAGE].rstrip(".") or type(chain[-1]).__name__
    log = "\n".join(filter(None, (str(error), _REPRODUCER.split(diagnostics)[0])))
    return (f"Line {line}: {sentence}." if line else f"Triton: {sentence}."), _without_paths(log, file)


_NATIVE = re.compile(r"^[^\s:]*:(?P<line>\d+):\d+: error: (?P<text>.+)$", re.MULTILINE)
_ASSEMBLER = re.compile(r"^ptxas\b.*\b(?:error|fatal)\s*: (?P<text>.+)$", re.MULTILINE)
_REPRODUCER = re.compile(r"^(?:module\b.*\{|\{-#)$", re.MULTILINE)
_TEMPORARY = re.compile(rf"{re.escape(tempfile.gettempdir())}/\w+(?:\.ptx(?:\.o)?|\.log)")
_REPRESENTATION = re.compile(r"""\w+\((?P<quote>['"])(?P<text>.*)(?P=quote)\)""", re.DOTALL)


def _causes(error: BaseException) -> Iterator[BaseException]:
    at: BaseException | None = error
    while at is not None:
        yield at
        at = at.__cause__


def _line(error: BaseException, starts: Mapping[str, int]) -> int | None:
    """The line of an error in the candidate's file; None for one in Triton's own library."""
    if not isinstance(error, CompilationError) or error.src not in starts:
        return None
    return starts[error.src] + int(getattr(error.node, "lineno", 1)) - 1


def _text(error: BaseException) -> str:
    """The bare message: some come wrapped in the exception's name, some with the source above them."""
    text = str(error.error_message or "") if isinstance(error, CompilationError) else str(error)
    wrapped = _REPRESENTATION.fullmatch(text)
    return wrapped["text"] if wrapped else text


def _without_paths(log: str, file: str) -> str:
    log = _TEMPORARY.sub("kernel.ptx", log)
    log = log.replace(file, Path(file).name).replace(str(Path(triton.__file__).parents[1]) + "/", "")
    return log[:MAX_LOG].strip()
