"""Running sums along rows, one thread a row until now: a block per row, by shuffles within warps and across them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tree_sitter import Node

from mctskernel.core.edit import Category
from mctskernel.core.launch_plan import Launch
from mctskernel.edits import syntax as cu
from mctskernel.edits.affine import definitions
from mctskernel.edits.device_code import ALIGNED, Vector, filled, function_text, lanes_for
from mctskernel.edits.indexing import always_happens, code, replace_names
from mctskernel.edits.reductions import is_zero
from mctskernel.edits.rewrite import (
    Rewrite,
    apply,
    changed,
    dedented,
    each,
    indented,
    only_launches,
    with_launch,
)
from mctskernel.edits.rule import Context, Proposal, rule
from mctskernel.edits.rules.along import Along, along, step_along
from mctskernel.edits.rules.row_parallel import RowThreads, row_threads

SIZES = (256, 1024, 512, 128)


@dataclass(frozen=True)
class Scan:
    """A loop along a row whose `total` gathers a sum and is used on the way; `add` is the statement that adds."""

    total: cu.Declaration
    loop: cu.Loop
    add: Node
    arrays: tuple[Along, ...]


@rule(
    Category.PARALLELISM, 2.0, "dram_bandwidth uncoalesced_access global_latency low_occupancy too_few_blocks"
)
def scan_rows(context: Context) -> Iterable[Proposal]:
    for launch, function in only_launches(context):
        rows = row_threads(context, launch, function)
        found = _scan(function, rows) if rows is not None else None
        if rows is None or found is None:
            continue
        for threads in SIZES:
            yield Proposal(
                f"parallel scan of each row with {threads} threads{context.where(function.name)}",
                _scanned(context, launch, function, (rows, found), threads),
                rationale=(
                    "One thread adds up a whole row, and its neighbours' accesses are a row apart; threads of a "
                    "block can each add a few neighbours, and get the sum before them by shuffles."
                ),
                expected_effect="Coalesced vector accesses, and a block's threads for each row.",
                prior=1.0 if threads == SIZES[0] else 0.8,
            )


def _scan(function: cu.Function, rows: RowThreads) -> Scan | None:
    statements = [node for node in rows.body.statements if node.type not in {"declaration", "preproc_call"}]
    loop = cu.as_loop(statements[0]) if len(statements) == 1 else None
    if loop is None or loop.comparison != "<" or loop.step != "1" or cu.text_of(loop.start) != "0":
        return None
    if cu.has(loop.body, "for_statement", "if_statement"):
        return None
    if cu.has(loop.body, "continue_statement", "break_statement", "return_statement"):
        return None
    own = {d.name for d in function.declarations if cu.within(d.node, loop.body)}
    carried = cu.assigned_names(loop.body).keys()
    if len(carried) != 1 or carried & own:
        return None
    (name,) = carried
    declared = [d for d in function.declarations if d.name == name]
    if len(declared) != 1 or declared[0].type != "float" or not is_zero(declared[0].value):
        return None
    outside = [
        n
        for n in cu.walk(function.body, "identifier")
        if cu.text_of(n) == name and not cu.within(n, loop.body)
    ]
    adds = [node for node in code(loop.body) if _adds(node, name)]
    if len(outside) != 1 or len(adds) != 1 or not declared[0].alone:
        return None
    before = [node for node in code(loop.body) if node.end_byte <= adds[0].start_byte]
    if any(name in cu.identifiers(node) for node in before):
        return None
    arrays = _arrays(function, rows, loop)
    return Scan(declared[0], loop, adds[0], arrays) if arrays is not None else None


def _adds(statement: Node, name: str) -> bool:
    left, operator, right = cu.assignment(statement) or (statement, "", statement)
    return cu.text_of(left) == name and operator == "+=" and name not in cu.identifiers(right)


def _arrays(function: cu.Function, rows: RowThreads, loop: cu.Loop) -> tuple[Along, ...] | None:
    """The arrays along the row; None if something is written that isn't each element once."""
    known = {name: value for name, value in definitions(function).items() if name != rows.index.name}
    local = {d.name for d in function.declarations if cu.within(d.node, loop.body)}
    groups: dict[tuple[str, str], list[cu.Access]] = {}
    for access in cu.accesses(loop.body):
        index = step_along(function, access, loop.variable, known)
        if index is None:
            return None
        groups.setdefault((access.array, index), []).append(access)
    found = []
    for (array, _), group in groups.items():
        vector = along(function, group, known, local)
        everywhere = sum(access.array == array for access in function.accesses)
        if vector is None or (vector.reads and vector.writes):
            return None
        if vector.writes and (len(group) + everywhere != 2 or not always_happens(group[0].node, loop.body)):
            return None
        found.append(vector)
    used = sum(access.array in {entry.array for entry in found} for access in function.accesses)
    return tuple(found) if used == sum(len(entry.nodes) for entry in found) else None


def _scanned(
    context: Context, launch: Launch, function: cu.Function, found: tuple[RowThreads, Scan], threads: int
) -> str:
    source, (rows, scan) = context.source, found
    block, aligned = cu.fresh_name(source, "THREADS"), cu.fresh_name(source, "is_aligned")
    before = cu.fresh_name(source, "block_sum_before")
    text = _text(context, function, scan)
    variable, total, width = scan.loop.variable, scan.total.name, text.width
    local = ("tile", "whole", "carry", "share", "block_total")
    fresh = cu.fresh_names(cu.names_in_scope(source, function) | {text.first, text.lane}, *local)
    names = dict(zip(local, fresh, strict=True))
    starts = [f"{aligned}(&{entry.array}[{_moved(entry.index, variable, '0')}])" for entry in scan.arrays]
    statements = code(scan.loop.body)
    adding = [node for node in statements if node == scan.add or node.type == "declaration"]
    declared = [n for n in rows.body.statements if n.end_byte <= scan.loop.node.start_byte]
    holes = {
        "prologue": dedented(
            source, [node for node in rows.body.prologue if not cu.within(rows.index.value, node)]
        ),
        "row": rows.index.name,
        "declared": dedented(source, [node for node in declared if node != scan.total.node]),
        "aligned": " && ".join(starts),
        "bound": cu.text_of(scan.loop.bound),
        "width": str(width),
        "total": total,
        "vectors": [vector.declaration for vector in text.vectors],
        "loads": text.loads,
        "scalar_loads": text.for_each_lane(text.scalar_loads),
        "adding": text.for_each_lane(text.of_lane(adding, {total: names["share"]})),
        "computing": text.for_each_lane(text.of_lane(statements, {})),
        "stores": text.stores,
        "scalar_stores": text.for_each_lane(text.scalar_stores),
    }
    body = filled("scan_rows", {**names, "first": text.first, "sum_before": before, "THREADS": block}, holes)
    rewrite = Rewrite(
        function,
        body=body,
        plan=with_launch(context.plan, launch, (rows.index.extent,), (block,)),
        about=f"One block per row, {width} neighbouring elements a thread.",
        defines={block: threads},
        functions=[
            function_text("sum_before", {"sum_before": before}, threads=block),
            ALIGNED.format(name=aligned),
        ],
    )
    return apply(context, rewrite)


@dataclass(frozen=True)
class LaneText:
    """The text of a thread's `width` neighbours from `first` on, and of its loop over them, `lane`."""

    source: cu.Source
    loop: cu.Loop
    first: str
    lane: str
    width: int
    arrays: tuple[Along, ...]
    vectors: tuple[Vector, ...]

    @property
    def loads(self) -> list[str]:
        """All that is read, as vectors."""
        return [line for entry, vector in self._pairs if entry.reads for line in vector.loads]

    @property
    def stores(self) -> list[str]:
        """All that is written, as vectors."""
        return [line for entry, vector in self._pairs if not entry.reads for line in vector.stores]

    @property
    def scalar_loads(self) -> list[str]:
        """One lane's elements, or zeros beyond the end of the row."""
        return [
            f"{vector.name}[{self.lane}] = {self._is_inside} ? {self._element(entry)} : "
            f"static_cast<{entry.type}>(0.0f);"
            for entry, vector in self._pairs
            if entry.reads
        ]

    @property
    def scalar_stores(self) -> list[str]:
        """One lane's elements, those beyond the end of the row left out."""
        stores = [
            f"{self._element(entry)} = {vector.name}[{self.lane}];"
            for entry, vector in self._pairs
            if not entry.reads
        ]
        return [f"if ({self._is_inside}) {{", *indented(stores), "}"]

    def of_lane(self, statements: Sequence[Node], renamed: Mapping[str, str]) -> list[str]:
        """Statements of the loop with their elements taken from the vectors, and some names replaced."""
        swaps = [
            cu.swap(node, f"{vector.name}[{self.lane}]")
            for entry, vector in self._pairs
            for node in entry.nodes
        ]
        lines, uses_variable = list[str](), False
        for statement in statements:
            own = [s for s in swaps if statement.start_byte <= s.start < statement.end_byte]
            names = [
                node
                for node in cu.walk(statement, "identifier")
                if not any(s.start <= node.start_byte < s.end for s in own)
            ]
            uses_variable = uses_variable or any(cu.text_of(node) == self.loop.variable for node in names)
            own += [cu.swap(node, renamed[cu.text_of(node)]) for node in names if cu.text_of(node) in renamed]
            lines += changed(self.source, statement, own)
        index = f"const int {self.loop.variable} = {self.first} + {self.lane};"
        return [index, *lines] if uses_variable else lines

    def for_each_lane(self, lines: Iterable[str]) -> list[str]:
        """An unrolled loop over the lanes."""
        return each(self.lane, str(self.width), *lines)

    @property
    def _pairs(self) -> list[tuple[Along, Vector]]:
        return list(zip(self.arrays, self.vectors, strict=True))

    @property
    def _is_inside(self) -> str:
        return f"{self.first} + {self.lane} < {cu.text_of(self.loop.bound)}"

    def _element(self, entry: Along) -> str:
        return f"{entry.array}[{_moved(entry.index, self.loop.variable, f'{self.first} + {self.lane}')}]"


def _text(context: Context, function: cu.Function, scan: Scan) -> LaneText:
    wanted = [f"{entry.array}_lanes" for entry in scan.arrays]
    taken = cu.names_in_scope(context.source, function)
    lane, first, *names = cu.fresh_names(taken, "lane", f"first_{scan.loop.variable}", *wanted)
    width = lanes_for(entry.type for entry in scan.arrays)
    vectors = tuple(
        Vector(entry.type, width, name, f"&{entry.array}[{_moved(entry.index, scan.loop.variable, first)}]")
        for entry, name in zip(scan.arrays, names, strict=True)
    )
    return LaneText(context.source, scan.loop, first, lane, width, scan.arrays, vectors)


def _moved(index: str, variable: str, text: str) -> str:
    return replace_names(index, {variable: text})
