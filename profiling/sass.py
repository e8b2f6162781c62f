"""Machine code as the GPU runs it: instructions, control flow, loops, and what each instruction occupies.

`nvdisasm` takes about 0.35 s of one core, nearly all of it its own start, so it runs as a process of its own
while the caller does something else: `start_disassembly(cubin)` now, `.result()` later.
"""

from __future__ import annotations

import enum
import re
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import networkx as nx
from cuda.pathfinder import find_nvidia_binary_utility

from mctskernel.profiling.cubin import INSTRUCTION_BYTES, sections

NO_BARRIER = 7


class Pipe(enum.StrEnum):
    """The execution unit that an instruction is issued to."""

    FMA = "fma"
    ALU = "alu"
    SPECIAL = "special functions"
    FP64 = "fp64"
    TENSOR = "tensor"
    LSU = "lsu"
    UNIFORM = "uniform"
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. `line` is the kernel's source line, None for code that comes from a header; `ptx_line`
    is the line of the PTX that it was made from; `target` is the address that its label stands for.

    `stall` is the cycles until the warp's next issue that the compiler asks for; `sets` are the scoreboards
    that it releases when its result is written or its operands are read, `waits` those it waits for.
    """

    address: int
    predicate: str
    opcode: str
    operands: str
    line: int | None
    ptx_line: int | None
    target: int | None
    stall: int
    sets_on_write: int
    sets_on_read: int
    waits: tuple[int, ...]

    @property
    def mnemonic(self) -> str:
        """The opcode without its modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def pipe(self) -> Pipe:
        """The execution unit."""
        return _pipe(self.mnemonic)


@dataclass(frozen=True)
class BasicBlock:
    """Instructions `first` to `last - 1` of their function, entered at the top and left at the bottom."""

    first: int
    last: int


@dataclass(frozen=True)
class Loop:
    """A natural loop: its header and all of its blocks, nested ones included. `parent` indexes the loops."""

    header: int
    blocks: frozenset[int]
    parent: int | None


@dataclass(frozen=True)
class Function:
    """One function's machine code."""

    name: str
    instructions: tuple[Instruction, ...]

    @cached_property
    def blocks(self) -> tuple[BasicBlock, ...]:
        """Basic blocks in order of address."""
        starts = sorted(_leaders(self.instructions))
        ends = [*starts[1:], len(self.instructions)]
        return tuple(BasicBlock(first, last) for first, last in zip(starts, ends, strict=True))

    @cached_property
    def graph(self) -> nx.DiGraph:
        """Which block may follow which; only those that can be reached from the entry."""
        return _control_flow(self.instructions, self.blocks)

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """Natural loops, outer ones before those inside them."""
        return _natural_loops(self.graph)

    @cached_property
    def innermost(self) -> Mapping[int, int | None]:
        """For each reachable block, the index of the innermost loop around it."""
        inside: dict[int, int | None] = dict.fromkeys(self.graph.nodes)
        for index, loop in enumerate(self.loops):
            inside.update(dict.fromkeys(loop.blocks, index))
        return inside

    @cached_property
    def blocks_by_loop(self) -> Mapping[int | None, tuple[tuple[int, int | None], ...]]:
        """For each loop, and None for what is in no loop, what it holds directly, in order of address.

        Each entry is a block and None, or the header of a nested loop and that loop's index.
        """
        inside: dict[int | None, list[tuple[int, int | None]]] = {}
        for block, around in self.innermost.items():
            inside.setdefault(around, []).append((block, None))
        for index, nested in enumerate(self.loops):
            inside.setdefault(nested.parent, []).append((nested.header, index))
        return {loop: tuple(sorted(found, key=lambda entry: entry[0])) for loop, found in inside.items()}

    def mix(self) -> Counter[Pipe]:
        """How many reachable instructions go to each pipe, each counted once."""
        return Counter(i.pipe for block in self.graph.nodes for i in self.code(block) if i.mnemonic != "NOP")

    def code(self, block: int) -> Sequence[Instruction]:
        """A block's instructions."""
        span = self.blocks[block]
        return self.instructions[span.first : span.last]


@dataclass(frozen=True)
class Disassembly:
    """The functions of a cubin by the name of their entry."""

    functions: Mapping[str, Function]


class DisassemblerError(RuntimeError):
    """`nvdisasm` is missing or failed; the message is a sentence that says what to do."""


class PendingDisassembly:
    """A disassembly under way. Use it as a context manager, so that it never outlives its caller."""

    def __init__(self, process: subprocess.Popen[bytes], cubin: IO[bytes], output: IO[bytes]) -> None:
        self._process = process
        self._cubin = cubin
        self._output = output

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()

    def result(self, timeout_seconds: float = 60.0) -> Disassembly:
        """Wait for the end and read the text. Raises DisassemblerError."""
        try:
            status = self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired as error:
            self.cancel()
            raise DisassemblerError(f"nvdisasm did not finish in {timeout_seconds:g} s.") from error
        self._output.seek(0)
        text = self._output.read().decode(errors="replace")
        self._cubin.seek(0)
        image = self._cubin.read()
        self.cancel()
        if status:
            raise DisassemblerError(f"nvdisasm failed with status {status}: {text.strip()[:200]}")
        return parse(text, image)

    def cancel(self) -> None:
        """End the process if it still runs, and give back what it used."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._cubin.close()
        self._output.close()


def start_disassembly(cubin: bytes) -> PendingDisassembly:
    """Begin to disassemble beside the caller. Raises DisassemblerError when there is no `nvdisasm`."""
    program = find_nvdisasm()
    image = tempfile.NamedTemporaryFile(suffix=".cubin")  # noqa: SIM115 - closed by PendingDisassembly
    output = tempfile.TemporaryFile()  # noqa: SIM115 - a pipe would stall nvdisasm until somebody reads
    image.write(cubin)
    image.flush()
    command = [program, "-c", "-ndf", "-g", "-gp", image.name]  # no data-flow analysis
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)  # noqa: S603
    return PendingDisassembly(process, image, output)


def disassemble(cubin: bytes) -> Disassembly:
    """Disassemble and wait."""
    with start_disassembly(cubin) as pending:
        return pending.result()


SOURCE_FILES = frozenset({"kernel.cu", "kernel.py"})
"""What the compilers are told that a kernel's file is called."""


def parse(text: str, cubin: bytes) -> Disassembly:
    """Read `nvdisasm -c -g -gp`; stalls and scoreboards come from the cubin's own bytes."""
    found = sections(cubin)
    functions = {}
    for name, listing in _listings(text):
        functions[name] = Function(name, tuple(_instructions(listing, found[f".text.{name}"].data)))
    if not functions:
        raise DisassemblerError(f"nvdisasm found no code: {text.strip()[:200]}")
    return Disassembly(functions)


@cache
def find_nvdisasm() -> str:
    """The path of NVIDIA's disassembler. Raises DisassemblerError when there is none."""
    found = find_nvidia_binary_utility("nvdisasm")
    if found is None:
        raise DisassemblerError(
            "nvdisasm was not found; 'pip install nvidia-cuda-nvdisasm' brings it (6 MB, no GPU needed)."
        )
    return str(Path(found))


_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^,\s]+),.*$", re.M)
_LINE = re.compile(
    r'//## File "(?P<file>[^"]*)", line (?P<line>\d+)'
    r"|^(?P<label>\.L_\w+):"
    r"|^\s*/\*(?P<address>[0-9a-f]{4,})\*/\s+(?:@(?P<predicate>!?U?P\w+)\s+)?(?P<opcode>[A-Z]\S*?)(?:\s+(?P<operands>[^;]*?))?\s*;",
    re.M,
)


def _listings(text: str) -> Iterator[tuple[str, str]]:
    found = list(_SECTION.finditer(text))
    ends = [*(section.start() for section in found[1:]), len(text)]
    for section, end in zip(found, ends, strict=True):
        yield section[1], text[section.end() : end]


def _instructions(listing: str, code: bytes) -> Iterator[Instruction]:
    entries = list(_LINE.finditer(listing))
    targets = _label_addresses(entries)
    line: int | None = None
    ptx_line: int | None = None
    for entry in entries:
        if entry["line"]:
            name = entry["file"].rpartition("/")[2]
            if name == ".nv_debug_ptx_txt":
                ptx_line = int(entry["line"])
            else:
                line = int(entry["line"]) if name in SOURCE_FILES else None
        elif entry["address"]:
            address = int(entry["address"], 16)
            label = re.search(r"`\((\.L_\w+)\)", entry["operands"] or "")
            control = _control_bits(code, address)
            yield Instruction(
                address,
                entry["predicate"] or "",
                entry["opcode"],
                entry["operands"] or "",
                line,
                ptx_line,
                targets.get(label[1]) if label else None,
                control & 0xF,
                control >> 5 & 7,
                control >> 8 & 7,
                tuple(barrier for barrier in range(6) if control >> (11 + barrier) & 1),
            )


def _label_addresses(entries: Sequence[re.Match[str]]) -> dict[str, int]:
    addresses: dict[str, int] = {}
    waiting: list[str] = []
    for entry in entries:
        if entry["label"]:
            waiting.append(entry["label"])
        elif entry["address"]:
            addresses.update(dict.fromkeys(waiting, int(entry["address"], 16)))
            waiting.clear()
    return addresses


def _control_bits(code: bytes, offset: int) -> int:
    """The 21 scheduling bits of a 128-bit instruction (Volta and later).

    From the lowest: 4 bits stall, 1 yield, 3 barrier on write, 3 barrier on read, 6 wait mask, 4 reuse. The
    layout is in Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking", 2018.
    """
    if offset + INSTRUCTION_BYTES > len(code):
        return 1 | NO_BARRIER << 5 | NO_BARRIER << 8
    (high,) = struct.unpack_from("<Q", code, offset + 8)
    return int(high >> 41)


_ENDS = frozenset({"EXIT", "RET", "BRA", "BRX", "JMP", "JMX", "BRXU", "KILL"})


def _target(instruction: Instruction) -> int | None:
    """Where a branch goes, as an index of its function's instructions."""
    if instruction.mnemonic not in {"BRA", "JMP"} or instruction.target is None:
        return None
    return instruction.target // INSTRUCTION_BYTES


def _leaders(code: Sequence[Instruction]) -> set[int]:
    leaders = {0}
    for index, instruction in enumerate(code):
        if instruction.mnemonic not in _ENDS:
            continue
        target = _target(instruction)
        leaders.update(at for at in (index + 1, target) if at is not None and at < len(code))
    return leaders


def _control_flow(code: Sequence[Instruction], blocks: Sequence[BasicBlock]) -> nx.DiGraph:
    graph: nx.DiGraph = nx.DiGraph()
    graph.add_nodes_from(range(len(blocks)))
    at = {block.first: index for index, block in enumerate(blocks)}
    for index, block in enumerate(blocks):
        last = code[block.last - 1]
        target = _target(last)
        if target is not None and target in at:
            graph.add_edge(index, at[target])
        falls_through = last.mnemonic not in _ENDS or _conditional(last)
        if falls_through and index + 1 < len(blocks):
            graph.add_edge(index, index + 1)
    reachable = {0} | nx.descendants(graph, 0)
    result: nx.DiGraph = graph.subgraph(sorted(reachable)).copy()
    return result


def _conditional(branch: Instruction) -> bool:
    """Whether a branch may not be taken: by its predicate, or by a predicate among its operands."""
    return branch.predicate not in {"", "PT"} or re.match(r"!?U?P\d", branch.operands) is not None


def _natural_loops(graph: nx.DiGraph) -> tuple[Loop, ...]:
    dominators = nx.immediate_dominators(graph, 0)
    bodies: dict[int, set[int]] = {}
    for tail, header in graph.edges:
        if _dominates(header, tail, dominators):
            bodies.setdefault(header, {header}).update(_body(graph, header, tail))
    ordered = sorted(bodies.items(), key=lambda item: (-len(item[1]), item[0]))
    loops: list[Loop] = []
    for header, body in ordered:
        parent = next((i for i in reversed(range(len(loops))) if body < loops[i].blocks), None)
        loops.append(Loop(header, frozenset(body), parent))
    return tuple(loops)


def _dominates(block: int, other: int, dominators: Mapping[int, int | None]) -> bool:
    at: int | None = other
    while at is not None and at != block:
        above = dominators.get(at)
        at = above if above != at else None
    return at == block


def _body(graph: nx.DiGraph, header: int, tail: int) -> set[int]:
    found, waiting = {header}, [tail]
    while waiting:
        block = waiting.pop()
        if block not in found:
            found.add(block)
            waiting.extend(graph.predecessors(block))
    return found


_MNEMONICS: Mapping[Pipe, str] = {
    Pipe.FMA: "FFMA FADD FMUL FFMA32I FADD32I FMUL32I IMAD IMUL HFMA2 HADD2 HMUL2 IDP FSWZADD",
    Pipe.SPECIAL: "MUFU I2F F2I F2F FRND POPC FLO BREV I2I",
    Pipe.FP64: "DFMA DADD DMUL DSETP DMNMX",
    Pipe.TENSOR: "HMMA IMMA DMMA BMMA QMMA HGMMA IGMMA QGMMA BGMMA",
    Pipe.LSU: "LDG STG LDS STS LDL STL LD ST LDSM STSM ATOM ATOMG ATOMS RED REDG LDGSTS SHFL MATCH CCTL "
    "UBLKCP UTMALDG UTMASTG LDC",
    Pipe.CONTROL: "BRA BRX JMP JMX EXIT RET CALL BSSY BSYNC BREAK WARPSYNC BAR BMOV YIELD NOP DEPBAR "
    "LDGDEPBAR MEMBAR ERRBAR NANOSLEEP KILL BPT WARPGROUP ARRIVES SYNCS PREEXIT ACQBULK VOTE "
    "CS2R S2R",
    Pipe.UNIFORM: "R2UR S2UR",
}
_PIPE_OF = {mnemonic: pipe for pipe, mnemonics in _MNEMONICS.items() for mnemonic in mnemonics.split()}


def _pipe(mnemonic: str) -> Pipe:
    """What is in no list is uniform when it begins with U, and integer or logic otherwise."""
    return _PIPE_OF.get(mnemonic, Pipe.UNIFORM if mnemonic.startswith("U") else Pipe.ALU)
