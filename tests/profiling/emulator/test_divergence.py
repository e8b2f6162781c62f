"""Generated programs with branches, loops, switches and early returns, against one thread at a time in Python."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import HealthCheck, given, settings

from mctskernel.profiling.emulator import Geometry, GlobalMemory, execute, parse_ptx

VARIABLES = 4
MASK = 0xFFFFFFFF
THREADS, BLOCKS = 40, 3  # a partly filled warp in every block

Statement = tuple[Any, ...]
Program = list[Statement]

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add.u32": operator.add,
    "sub.u32": operator.sub,
    "mul.lo.u32": operator.mul,
    "xor.b32": operator.xor,
    "min.u32": min,
}
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "lt": operator.lt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}

variable = st.integers(0, VARIABLES - 1)
operand = st.one_of(variable.map(lambda n: ("v", n)), st.integers(0, 9).map(lambda n: ("c", n)))
comparison = st.tuples(st.sampled_from(sorted(COMPARISONS)), variable, operand)
condition = st.lists(comparison, min_size=1, max_size=3)  # joined by &&, evaluated one after the other
assignment = st.tuples(st.just("set"), st.sampled_from(sorted(OPERATIONS)), variable, variable, operand)
guarded = st.tuples(st.just("guarded"), comparison, assignment)
count_up = st.tuples(st.just("count"), variable)
leave = st.tuples(st.sampled_from(["break", "continue", "return"]), condition)
simple = st.one_of(assignment, assignment, guarded, count_up, leave)


def nested(statement: st.SearchStrategy[Statement]) -> st.SearchStrategy[Statement]:
    body = st.lists(statement, max_size=4)
    return st.one_of(
        st.tuples(st.just("if"), condition, body, body, st.booleans()),
        st.tuples(st.just("loop"), variable, st.sampled_from([1, 3, 7]), body),
        st.tuples(st.just("switch"), variable, st.lists(body, min_size=2, max_size=4)),
    )


programs = st.lists(
    st.one_of(st.recursive(simple, nested, max_leaves=12), st.just(("barrier",))), min_size=1, max_size=6
)


class Writer:
    """PTX of a program; bodies of some branches stand behind everything else, as compilers place unlikely ones."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.behind: list[tuple[str, Program, str, tuple[str, str] | None]] = []
        self.labels = 0
        self.counters = 0

    def label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def text(self, program: Program) -> str:
        self.body(program, None)
        self.lines.append("bra END;")
        while self.behind:
            start, body, back, loop = self.behind.pop()
            self.lines.append(f"{start}:")
            self.body(body, loop)
            self.lines.append(f"bra {back};")
        return "\n".join(self.lines)

    def body(self, program: Program, loop: tuple[str, str] | None) -> None:
        for statement in program:
            getattr(self, "_" + statement[0])(statement, loop)

    def skip_unless(self, joined: list[Any], target: str) -> None:
        for name, a, b in joined:
            self.lines.append(f"setp.{name}.u32 %p, %v{a}, {operand_text(b)}; @!%p bra {target};")

    def _set(self, statement: Statement, _: object, guard: str = "") -> None:
        _, operation, d, a, b = statement
        self.lines.append(f"{guard}{operation} %v{d}, %v{a}, {operand_text(b)};")

    def _guarded(self, statement: Statement, _: object) -> None:
        _, (name, a, b), inner = statement
        self.lines.append(f"setp.{name}.u32 %p, %v{a}, {operand_text(b)};")
        self._set(inner, None, "@%p ")

    def _count(self, statement: Statement, _: object) -> None:
        slot = f"and.b32 %s, %v{statement[1]}, 7; mul.wide.u32 %o, %s, 4; add.u64 %o, %counts, %o;"
        self.lines.append(f"{slot} red.global.add.u32 [%o], 1;")

    def _barrier(self, *_: object) -> None:
        self.lines.append("bar.sync 0;")

    def _if(self, statement: Statement, loop: tuple[str, str] | None) -> None:
        _, joined, then, otherwise, behind = statement
        other, end = self.label(), self.label()
        self.skip_unless(joined, other)
        if behind:
            start = self.label()
            self.lines.append(f"bra {start};")
            self.behind.append((start, then, end, loop))
        else:
            self.body(then, loop)
            self.lines.append(f"bra {end};")
        self.lines.append(f"{other}:")
        self.body(otherwise, loop)
        self.lines.append(f"{end}:")

    def _loop(self, statement: Statement, _: object) -> None:
        _, trips, mask, body = statement
        start, step, end = self.label(), self.label(), self.label()
        n = f"%n{self.counters}"
        self.counters += 1
        self.lines += [
            f"and.b32 {n}, %v{trips}, {mask};",
            f"{start}:",
            f"setp.eq.u32 %p, {n}, 0; @%p bra {end};",
        ]
        self.body(body, (step, end))
        self.lines += [f"{step}:", f"sub.u32 {n}, {n}, 1; bra {start};", f"{end}:"]

    def _switch(self, statement: Statement, loop: tuple[str, str] | None) -> None:
        _, selector, cases = statement
        labels, table, end = [self.label() for _ in cases], self.label(), self.label()
        self.lines += [
            f"rem.u32 %s, %v{selector}, {len(cases)};",
            f"{table}: .branchtargets {', '.join(labels)};",
        ]
        self.lines.append(f"brx.idx %s, {table};")
        for label, body in zip(labels, cases, strict=True):
            self.lines.append(f"{label}:")
            self.body(body, loop)
            self.lines.append(f"bra {end};")
        self.lines.append(f"{end}:")

    def _jump(self, joined: list[Any], target: str) -> None:
        stay = self.label()
        self.skip_unless(joined, stay)
        self.lines += [f"bra {target};", f"{stay}:"]

    def _break(self, statement: Statement, loop: tuple[str, str] | None) -> None:
        if loop:
            self._jump(statement[1], loop[1])

    def _continue(self, statement: Statement, loop: tuple[str, str] | None) -> None:
        if loop:
            self._jump(statement[1], loop[0])

    def _return(self, statement: Statement, _: object) -> None:
        self._jump(statement[1], "END")


def operand_text(b: tuple[str, int]) -> str:
    return f"%v{b[1]}" if b[0] == "v" else str(b[1])


def ptx(program: Program) -> str:
    writer = Writer()
    body = writer.text(program)
    loads = "".join(f"ld.global.u32 %v{n}, [%a+{4 * n}];" for n in range(VARIABLES))
    stores = "".join(f"st.global.u32 [%b+{4 * n}], %v{n};" for n in range(VARIABLES))
    return f"""
.version 8.5
.target sm_90
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 counts)
{{
.reg .b32 %v<{VARIABLES}>, %n<{writer.counters + 1}>, %s, %t, %i; .reg .b64 %a, %b, %o, %counts; .reg .pred %p;
mov.u32 %i, %ctaid.x; mov.u32 %t, %ntid.x; mul.lo.u32 %i, %i, %t; mov.u32 %t, %tid.x; add.u32 %i, %i, %t;
ld.param.u64 %a, [a]; ld.param.u64 %b, [b]; ld.param.u64 %counts, [counts];
mul.wide.u32 %o, %i, {4 * VARIABLES}; add.u64 %a, %a, %o; add.u64 %b, %b, %o; {loads}
{body}
END: {stores}
ret;
}}"""


class ReturnedError(Exception):
    pass


class LeftLoopError(Exception):
    pass


class NextTurnError(Exception):
    pass


JUMPS: dict[str, type[Exception]] = {
    "break": LeftLoopError,
    "continue": NextTurnError,
    "return": ReturnedError,
}


class Thread:
    """One thread, statement by statement."""

    def __init__(self, values: list[int], counts: list[int]) -> None:
        self.v = values
        self.counts = counts

    def get(self, b: tuple[str, int]) -> int:
        return self.v[b[1]] if b[0] == "v" else b[1]

    def holds(self, joined: Iterator[Any] | list[Any]) -> bool:
        return all(COMPARISONS[name](self.v[a], self.get(b)) for name, a, b in joined)

    def run(self, program: Program, *, looping: bool = False) -> None:
        for kind, *rest in program:
            if kind == "set":
                operation, d, a, b = rest
                self.v[d] = OPERATIONS[operation](self.v[a], self.get(b)) & MASK
            elif kind == "guarded":
                if self.holds([rest[0]]):
                    self.run([rest[1]])
            elif kind == "count":
                self.counts[self.v[rest[0]] & 7] += 1
            elif kind == "if":
                self.run(rest[1] if self.holds(rest[0]) else rest[2], looping=looping)
            elif kind == "switch":
                self.run(rest[1][self.v[rest[0]] % len(rest[1])], looping=looping)
            elif kind == "loop":
                self.loop(*rest)
            elif kind in JUMPS and (looping or kind == "return") and self.holds(rest[0]):
                raise JUMPS[kind]

    def loop(self, trips: int, mask: int, body: Program) -> None:
        for _ in range(self.v[trips] & mask):
            try:
                self.run(body, looping=True)
            except NextTurnError:
                continue
            except LeftLoopError:
                return


def expected(program: Program, data: np.ndarray) -> tuple[list[list[int]], list[int]]:
    counts = [0] * 8
    results = []
    for values in data.tolist():
        thread = Thread(values, counts)
        with contextlib.suppress(ReturnedError):
            thread.run(program)
        results.append(thread.v)
    return results, counts


@given(programs, st.integers(0, 2**32 - 1))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_programs_diverge_and_reconverge_as_each_thread_alone(program: Program, seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 12, (THREADS * BLOCKS, VARIABLES)).astype(np.uint32)
    data[:, seed % VARIABLES] = 5  # a value that all lanes share, though nobody knows
    memory = GlobalMemory()
    arguments = [
        memory.add("a", data, writable=False),
        memory.add("b", data.nbytes),
        memory.add("n", np.zeros(8, "u4")),
    ]
    done = execute(parse_ptx(ptx(program)), "k", Geometry((BLOCKS, 1, 1), (THREADS, 1, 1)), arguments, memory)
    assert [f.message for f in done.findings if f.kind != "divergent_barrier"] == []
    results, counts = expected(program, data)
    assert memory.array("b", np.uint32).reshape(-1, VARIABLES).tolist() == results
    assert memory.array("n", np.uint32).tolist() == counts
