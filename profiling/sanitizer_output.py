"""What compute-sanitizer prints, read as findings.

Its text is what is documented record by record ("Compute Sanitizer", NVIDIA, sections on each tool); its XML has a
schema for suppressions alone. A record is a line after `=========` and the further indented ones that belong to it.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass

from mctskernel.profiling.emulator.findings import Finding, Kind
from mctskernel.profiling.replay_process import COMPLAINT
from mctskernel.profiling.sanitized_replay import AT_SHAPE


class Tool(enum.StrEnum):
    """The tools of compute-sanitizer, by their names on its command line."""

    MEMCHECK = "memcheck"
    RACECHECK = "racecheck"
    INITCHECK = "initcheck"
    SYNCCHECK = "synccheck"


def parse_findings(tool: Tool, output: str) -> tuple[Finding, ...]:
    """The defects in a tool's output, the first of each kind on each pair of lines."""
    found: dict[tuple[str, int | None, int | None], Finding] = {}
    for record in _records(output):
        for finding in _findings(tool, record):
            found.setdefault((finding.kind, finding.line, finding.other_line), finding)
    return tuple(found.values())


def failure(tool: Tool, output: str) -> str:
    """Why a tool could not check a kernel, in a sentence."""
    lines = [line.strip() for line in output.splitlines()]
    for line in lines:
        if line.startswith(COMPLAINT):
            return f"{tool.value} could not replay the kernel: {line.removeprefix(COMPLAINT)}"
    said = [line.removeprefix("=========").strip() for line in lines if line.startswith("=========")]
    for sentence in said:
        if "not supported" in sentence.lower() or sentence.startswith("Internal Sanitizer Error"):
            return f"This machine does not allow {tool.value}: {sentence.removeprefix('Error: ')}"
    errors = [sentence for sentence in said if "error" in sentence.lower()]
    reason = (errors or lines or ["it printed nothing"])[-1].removeprefix("Error: ")
    return f"{tool.value} could not check the kernel: {reason}"


@dataclass(frozen=True)
class _Record:
    shape: str
    head: str
    body: str


def _records(output: str) -> Iterator[_Record]:
    shape, head, body = "", "", list[str]()
    # A kernel can print what ends in the middle of a line, and would hide what the tool says behind it.
    for line in (*_UNSTARTED.sub(f"\n{_PREFIX}", output).splitlines(), f"{_PREFIX} end"):
        if line.startswith(AT_SHAPE):
            shape = line.removeprefix(AT_SHAPE).strip()
        if not line.startswith(_PREFIX):
            continue
        text = line.removeprefix(_PREFIX)
        if text.startswith("   "):
            body.append(text.strip())
            continue
        if head:
            yield _Record(shape, head, " ".join(body))
        head, body = text.strip(), []


_PREFIX = "========="
_UNSTARTED = re.compile(rf"(?<=[^\n=]){_PREFIX}(?!=)")
_ACCESS = re.compile(
    r"(?:Potential i|I)nvalid __(?P<space>\w+)__ (?P<verb>\w+) of size (?P<size>[\d,]+) bytes"
)
_UNINITIALISED = re.compile(r"Uninitialized __(?P<space>\w+)__ memory read of size (?P<size>[\d,]+) bytes")
_RACE = re.compile(r"Race reported between (?P<verb>\w+) access at (?P<place>.*)")
_OTHER = re.compile(r"and (?P<verb>\w+) access at (?P<place>.*?)(?= and \w+ access at |$)")
_HAZARD = re.compile(r"Potential (?P<hazard>\w+) hazard detected at __shared__ 0x(?P<address>[0-9a-f]+)")
_BARRIER = re.compile(r"Barrier error detected\. ?(?P<what>[^.]*)")
_ACTORS = re.compile(
    r"\w+ Thread \((?P<thread>[\d, ]+)\) at (?P<place>.*?)(?= \w+ Thread \(| Current Value|$)"
)
_BY = re.compile(r"by thread \((?P<thread>[\d, ]+)\) in block \((?P<block>[\d, ]+)\)")
_ADDRESS = re.compile(r"(?:Address|Access to) 0x(?P<address>[0-9a-f]+)(?P<detail>.*)")
_LINE = re.compile(r" in (?P<file>\S+):(?P<line>\d+)")
_HEADER = (".h", ".hpp", ".cuh", ".inl")


def _findings(tool: Tool, record: _Record) -> list[Finding]:
    if match := _ACCESS.search(record.head):
        misaligned = "is misaligned" in record.body
        what = f"{'a misaligned' if misaligned else 'an invalid'} __{match['space']}__ {match['verb']}"
        return [
            _access(
                tool,
                record,
                "misaligned" if misaligned else "out_of_bounds",
                f"{what} of {match['size']} bytes",
            )
        ]
    if match := _UNINITIALISED.search(record.head):
        what = f"a read of {match['size']} bytes of __{match['space']}__ memory that nothing has written"
        return [_access(tool, record, "uninitialised_read", what)]
    if match := _RACE.search(record.head):
        return _races(tool, record, match)
    if match := _HAZARD.search(record.head):
        return [_hazard(tool, record, match)]
    if match := _BARRIER.search(record.head):
        warp = "warp" in record.head or "warpsync" in record.body or "Invalid arguments" in record.head
        what = match["what"].strip().lower() or "barrier error"
        return [_access(tool, record, "divergent_warp" if warp else "divergent_barrier", what)]
    return []


def _access(tool: Tool, record: _Record, kind: Kind, what: str) -> Finding:
    line = _line(record.body)
    by = _BY.search(record.body)
    thread, block = (_dim3(by["thread"]), _dim3(by["block"])) if by else (None, None)
    address = _ADDRESS.search(record.body)
    who = f" by thread {thread} of block {block}" if by else ""
    detail = f" (the address {address['detail'].strip()})" if address and address["detail"].strip() else ""
    return Finding(
        kind,
        f"{_opening(tool, record)}line {line or 'unknown'}: {what}{who}{detail}",
        line,
        int(address["address"], 16) if address else None,
        thread=thread,
        block=block,
    )


def _races(tool: Tool, record: _Record, match: re.Match[str]) -> list[Finding]:
    """One access against each of the others that it races with."""
    line = _line(match["place"])
    opening = f"{_opening(tool, record)}line {line or 'unknown'}: nothing orders the {match['verb'].lower()}"
    found = []
    for other in _OTHER.finditer(record.body):
        other_line = _line(other["place"])
        message = f"{opening} and the {other['verb'].lower()} of line {other_line or 'unknown'}"
        found.append(Finding("race", message, line, buffer="shared", other_line=other_line))
    return found or [Finding("race", opening, line, buffer="shared")]


def _hazard(tool: Tool, record: _Record, match: re.Match[str]) -> Finding:
    actors = list(_ACTORS.finditer(record.body))
    lines = [_line(actor["place"]) for actor in actors]
    threads = [_dim3(actor["thread"]) for actor in actors]
    line = lines[-1] if lines else None
    sentence = f"{match['hazard']} hazard in shared memory"
    if len(actors) > 1:
        sentence += (
            f" between thread {threads[0]} at line {lines[0]} and thread {threads[1]} at line {lines[1]}"
        )
    return Finding(
        "race",
        f"{_opening(tool, record)}line {line or 'unknown'}: {sentence}",
        line,
        int(match["address"], 16),
        "shared",
        threads[-1] if threads else None,
        other_line=lines[0] if len(lines) > 1 else None,
    )


def _opening(tool: Tool, record: _Record) -> str:
    return f"{tool.value} at {record.shape}, " if record.shape else f"{tool.value}, "


def _line(place: str) -> int | None:
    """The kernel's line in `f(int *)+0x90 in kernel.cu:41`; None where it is a header's or unknown."""
    match = _LINE.search(place)
    return None if match is None or match["file"].endswith(_HEADER) else int(match["line"])


def _dim3(text: str) -> tuple[int, int, int]:
    x, y, z = (int(number) for number in text.split(","))
    return x, y, z
