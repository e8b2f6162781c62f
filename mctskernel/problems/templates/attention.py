"""The template for attention: softmax(Q K^T) V, with whatever is done to the scores element by element in between.

A block has some queries and all their outputs on chip. Where heads are too wide for that, one kernel stores weights by
tiles, and another one brings them to one scale on their way to the tensor cores. attention.cuh has the arithmetic.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch.fx import Node

from mctskernel.problems.plain_cuda.body import Body, Function, Index, Place, numbers
from mctskernel.problems.plain_cuda.element_types import converted, stored_type
from mctskernel.problems.plain_cuda.extents import ONE, count_in_cpp, count_in_plan, in_cpp, product
from mctskernel.problems.plain_cuda.reductions import reduced_axes
from mctskernel.problems.plain_cuda.rules import Kind, base_name, behind, is_tensor, rule_of, tensors
from mctskernel.problems.plain_cuda.schedule import Schedule
from mctskernel.problems.plain_cuda.tracing import Traced
from mctskernel.problems.plain_cuda.views import reshaped
from mctskernel.problems.templates.operands import LINES, STEP, Names, ceiling, map_given
from mctskernel.problems.templates.row_space import extents_of, stripped, trial_body
from mctskernel.problems.templates.tiles import CLUSTERED, MULTIPROCESSORS, TOGETHER

HEADER = "attention.cuh"

ROWS = 128
"""Queries of a block, as the header has them."""

FEWEST = 16
"""Keys, terms and columns below which most of a tile would be empty. Few queries cost what their keys do."""

FEWEST_KEYS = 512
"""Of a block, where several share a part's keys."""

PRODUCTS = {"mm", "bmm"}

MOST_ON_CHIP = {torch.float32: 128, torch.float16: 256, torch.bfloat16: 256}
"""The widest heads of which one kernel keeps a block's outputs."""


@dataclass(frozen=True)
class Attention:
    """Two batched products with a softmax between them, of `weighed`; the last of `nodes` is stored."""

    nodes: tuple[Node, ...]
    scores: Node
    weighed: Node
    causal: bool
    """Whether no query has keys behind its own place."""
    mask: Node | None = None
    """What hides those keys alone, and so needs no look where the kernel leaves them out."""
    shows: bool = True
    """Of the mask, for a score that counts."""
    is_multiple: bool = False
    """Whether softmax is of products times a positive number, but for that mask."""
    is_plain: bool = False
    """Whether `weighed` are the weights themselves, without a softmax."""

    def kernels(self, schedule: Schedule, place: Place) -> Iterator[tuple[str, str]]:
        """The texts of the kernels, and their launches."""
        schedule.include(HEADER)
        left, right = tensors(self.scores)[0], tensors(self.nodes[-1])[1]
        head = max(schedule.estimate(schedule.place("", each).extents[-1:]) for each in (left, right))
        if head <= MOST_ON_CHIP[place.dtype]:
            yield self._at_once(schedule, place, head)
        else:
            yield from self._in_two(schedule, place)

    def _at_once(self, schedule: Schedule, place: Place, size: int) -> tuple[str, str]:
        bytes_, narrow = place.dtype.itemsize, place.dtype is not torch.float32
        count = self._splits(schedule) if narrow and not self.is_plain else 1
        unit = max(16, 8 * count) if narrow else 64
        size = math.ceil(size / unit) * unit
        blocks = schedule.macro("BLOCKS", MULTIPROCESSORS) if narrow else ""
        splits = schedule.macro("SPLITS", count, *((1,) if self.is_plain else (1, 2, 4, 8))) if narrow else ""
        causal, head = _literal(self.causal), schedule.macro("HEAD", size, *(() if narrow else (64, 128)))
        keys = schedule.macro("KEYS", 128 if size <= (128 if narrow else 64) else 64, 64, 128)
        width = f"(({head} + 63) // 64 * 64)" if narrow else head
        shared = f"({ROWS} + 4 * {keys}) * {width} * {bytes_} + {2048 if narrow else 1024}"
        schedule.require(f"{shared.replace('//', '/')} <= 232448")
        *batch, rows, _ = schedule.place("", self.nodes[-1]).extents
        tiles, batches = f"(({in_cpp(rows)} + {ROWS - 1}) / {ROWS})", count_in_cpp(batch)
        maps: list[str] = []

        def write(body: Body, names: Names) -> None:
            number, (row, column, term) = names.tile, (names.row, names.column, names.term)
            first = f"{number} % {tiles} * {ROWS}"
            if self.causal and batch:
                # The longest rows first.
                first = f"({tiles} - 1 - {number} / ({batches})) * {ROWS}"
                body.line(f"const int {names.batch} = {number} % ({batches});")
            elif batch:
                body.line(f"const int {names.batch} = {number} / {tiles};")
            (left, right), values = tensors(self.scores), tensors(self.nodes[-1])[1]
            rows_of = {"kind": "attention::Rows<float>"}
            maps.extend(
                (
                    _matrix(body, schedule, names.left, left, (row, term), term, row, **rows_of),
                    _matrix(body, schedule, names.right, right, (term, column), term, column, **rows_of),
                    _matrix(body, schedule, names.values, values, (term, column), column, term, **rows_of),
                )
            )
            self._score(body, names)
            score = f"attention::weight({names.score})" if self.is_plain else names.score
            score = f"attention::Multiple{{{names.score}(0, 0, 1.0f)}}" if self.is_multiple else score
            given = f"part({names.left}, {names.right}, {names.values}, {first}, {score}"
            self._return(schedule, place, body, names, given)

        own = f"attend<{head}, {keys}, {causal}, {stored_type(place.dtype)}, {splits}>"
        call = own if narrow else f"attend_pairs<{head}, {keys}, {causal}>"
        made = self._kernel(schedule, place, "attention_kernel", (call, f"{tiles} * {batches}", "int"), write)
        grid = f"ceil_div({count_in_plan((rows,))}, {ROWS}) * {count_in_plan(batch)}"
        if narrow:
            made = replace(made, given=tuple(map(map_given, filter(None, maps))))
            grid = f"min({blocks} // {splits}, {grid}) * {splits}"
            schedule.require(f"{blocks} >= {splits}")
            schedule.require(f"{head} % 16 == 0 && {head} % (8 * {splits}) == 0 && {head} <= 256")
        launch = schedule.launch(made, grid, "384" if narrow else "256", shared, splits)
        return schedule.function(made), launch

    def _splits(self, schedule: Schedule) -> int:
        """How many blocks share a part's keys: as many as leave each multiprocessor one."""
        *batch, rows, keys = (schedule.estimate((each,)) for each in schedule.place("", self.scores).extents)
        parts = math.prod(batch) * math.ceil(rows / ROWS)
        room = ((8, CLUSTERED), (4, CLUSTERED), (2, MULTIPROCESSORS))
        return next((each for each, most in room if each * parts <= most and each * FEWEST_KEYS <= keys), 1)

    def _begun(self, schedule: Schedule, place: Place) -> tuple[Body, Names]:
        """The beginning of a kernel that has scores, without a causal mask, and its names."""

        def given(body: Body, index: Index) -> str:
            assert index == _index(body, self.scores, names)  # noqa: S101 - the finder looked
            return str(names.sum)

        known = {self.mask: lambda *_: _literal(self.shows)} if self.mask else {}
        for index_type in ("int", "long long"):
            body = schedule.body(place, index_type, {self.scores: given, **known}, depth=1)
            names = Names.of(body)
            with body.trial():
                body.read(self.weighed, _weighed_index(body, self, names))
                used = (*body.reads.values(), place)
            if not any(map(schedule.is_large, used)):
                break
        body.line(f"extern __shared__ unsigned char {names.shared}[];")
        return body, names

    def _score(self, body: Body, names: Names) -> None:
        """Declare the function that makes a product what softmax is taken of."""
        head = f"const auto {names.score} = [=](int {names.row}, int {names.column}, float {names.sum}) {{"
        with body.block(head, end="};"):
            value = body.read(self.weighed, _weighed_index(body, self, names))
            body.line(f"return {converted(value, numbers(self.weighed), torch.float32)};")

    def _in_two(self, schedule: Schedule, place: Place) -> Iterator[tuple[str, str]]:
        *batch, rows, count = schedule.place("", self.scores).extents
        of_scores, of_place = (_width(schedule, each) for each in ((*batch, rows, count), place.extents))
        keys = schedule.macro("KEYS", of_scores, 64, 128, 256)
        columns = schedule.macro("COLUMNS", of_place, 64, 128, 256)
        shares = schedule.estimate((rows,)) > ROWS and min(of_scores, of_place) > LINES
        cluster = schedule.macro("CLUSTER", TOGETHER if shares else 1, 1, TOGETHER)
        schedule.require(f"{cluster} == 1 || ({keys} > {LINES} && {columns} > {LINES})")
        width = sympy.Symbol(keys, integer=True, positive=True)
        # A row's weights, and behind them two numbers for each tile.
        pitch = STEP * (ceiling(count, STEP) + ceiling(2 * sympy.floor((count + width - 1) / width), STEP))
        scores = Place(schedule.fresh(f"{self.scores.name}_rows"), torch.float32, (*batch, rows, pitch))
        schedule.add_scratch(scores)

        def weigh(body: Body, names: Names) -> None:
            (left, right), (row, column, term) = tensors(self.scores), (names.row, names.column, names.term)
            _matrix(body, schedule, names.left, left, (row, term), term, row)
            _matrix(body, schedule, names.right, right, (term, column), term, column)
            self._score(body, names)
            body.writes[scores.name] = scores
            given = f"{names.left}, {names.right}, {_of_batch(scores, names)}, {in_cpp(pitch)}, {names.score}"
            body.line(f"return attention::scores<{keys}, {_literal(self.causal)}>({given});")

        def add(body: Body, names: Names) -> None:
            body.reads[scores.name] = scores
            row = f"{in_cpp(rows)}, {in_cpp(STEP * ceiling(count, STEP))}, {in_cpp(pitch)}"
            body.line(f"const blocks::ByTerm {names.left}{{{_of_batch(scores, names)}, {row}}};")
            pair, values = (names.term, names.column), tensors(self.nodes[-1])[1]
            _matrix(body, schedule, names.right, values, pair, names.column, names.column)
            given = f"weighed<{keys}, {_literal(self.causal)}>({names.left}, {names.right}"
            self._return(schedule, place, body, names, given)

        for name, target, across, size, write in (
            ("scores_kernel", scores, count, keys, weigh),
            ("values_kernel", place, schedule.place("", self.nodes[-1]).extents[-1], columns, add),
        ):
            tile = f"blocks::Tiling<{ROWS} * {cluster}, {size}, 8>"
            tiling = f"{tile}{{{in_cpp(rows)}, {in_cpp(across)}, 0, {count_in_cpp(batch)}, 1}}"
            call = (f"compute_tiles<{size}, {cluster}>", tiling, "const blocks::Tile&")
            made = self._kernel(schedule, target, name, call, write)
            tiles = f"ceil_div({count_in_plan((rows,))}, {ROWS} * {cluster})"
            tiles += f" * ceil_div({count_in_plan((across,))}, {size}) * {count_in_plan(batch)}"
            grid = f"min({MULTIPROCESSORS} // {cluster}, {tiles}) * {cluster}"
            launch = schedule.launch(made, grid, "384", f"4 * ({ROWS} + {size}) * 128 + 1536", cluster)
            yield schedule.function(made), launch

    def _kernel(
        self,
        schedule: Schedule,
        place: Place,
        name: str,
        call: tuple[str, str, str],
        write: Callable[[Body, Names], None],
    ) -> Function:
        """A kernel that calls a function of the header, which is given the number of parts and what each is."""
        function, count, kind = call
        body, names = self._begun(schedule, place)
        with body.block(
            f"attention::{function}({names.shared}, {count}, [&]({kind} {names.tile}) {{", end="});"
        ):
            if kind != "int" and len(place.extents) > 2:
                body.line(f"const int {names.batch} = {names.tile}.batch;")
            write(body, names)
        threads = 256 if function.startswith("attend_pairs") else 384
        node = self.weighed if name == "scores_kernel" else self.nodes[-1]
        about, reads = schedule.described(node), tuple(body.reads.values())
        bounds = f"__launch_bounds__({threads}, 1) "
        return Function(schedule.fresh(name), about, body.text(), reads, place, bounds)

    def _return(self, schedule: Schedule, place: Place, body: Body, names: Names, given: str) -> None:
        """Return what a lambda is to tell of a part, and where its outputs are stored."""
        body.writes[place.name] = place
        head = f"return attention::{given}, {schedule.parameter(place.name)},"
        with body.block(f"{head} [=](int {names.row}, int {names.column}) {{", end="});"):
            body.line(f"return {body.flat(_index(body, self.nodes[-1], names), place.extents)};")


def attentions(kept: Sequence[Node], outputs: Collection[Node], traced: Traced) -> Iterator[Attention]:
    """Attention whose operands are in memory, with contiguous rows, and large enough for tiles."""
    for node in kept:
        if base_name(node) in PRODUCTS and (found := _attention(node, kept, outputs, traced)):
            yield found


def _attention(
    node: Node, kept: Sequence[Node], outputs: Collection[Node], traced: Traced
) -> Attention | None:
    weights = stripped(tensors(node)[0])
    softmax = _softmax_of(weights)
    weighed = softmax or weights
    scores = _product_behind(weighed)
    if scores is None:
        return None
    inside = _between(scores, node)
    nodes = tuple(each for each in kept if each in inside)
    operands = (*tensors(scores), tensors(node)[1])
    if not nodes or any(each in outputs for each in nodes[:-1]):
        return None
    if numbers(node) not in MOST_ON_CHIP or any(numbers(each) is not numbers(node) for each in operands):
        return None
    sizes = (
        *extents_of(scores, traced)[-2:],
        *extents_of(tensors(scores)[0], traced)[-1:],
        *extents_of(node, traced)[-1:],
    )
    if min(map(traced.estimate, sizes[1:])) < FEWEST or ONE in sizes[1:]:
        return None
    if max(map(traced.estimate, sizes[2:])) > MOST_ON_CHIP[numbers(node)] and not (
        softmax and numbers(node) is torch.float32
    ):
        return None
    how = _causality(weighed, traced)
    is_multiple = bool(softmax) and _is_multiple(weighed, scores, traced, how[1])
    found = Attention(nodes, scores, weighed, *how, is_multiple, not softmax)
    return found if _is_covered(found, kept, traced) else None


def _softmax_of(node: Node) -> Node | None:
    """What a node is the softmax of along its last axis, as it is decomposed."""
    if not _is(node, "div"):
        return None
    top, total = map(stripped, tensors(node)) if len(tensors(node)) == 2 else (node, node)
    if not (
        _is(top, "exp") and _is(total, "sum") and stripped(tensors(total)[0]) is top and _is_of_rows(total)
    ):
        return None
    difference = stripped(tensors(top)[0])
    if not _is(difference, "sub") or len(tensors(difference)) != 2:
        return None
    left, right = tensors(difference)
    largest = stripped(right)
    if _is(largest, "amax") and _is_of_rows(largest) and stripped(tensors(largest)[0]) is stripped(left):
        return left
    return None


def _is_multiple(node: Node, scores: Node, traced: Traced, mask: Node | None) -> bool:
    """Whether a node is the scores times a positive number, or in place of it a scalar where the mask hides them."""
    node = stripped(node, [scores])
    if mask and _is(node, "where"):
        node = next(each for each in tensors(node)[1:] if not _is(each, "scalar_tensor"))
    while (node := stripped(node, [scores])) is not scores:
        (source, *others), factors = tensors(node), [each for each in node.args if each not in tensors(node)]
        if base_name(node) not in {"mul", "div"} or others or node.args[0] is not source or len(factors) != 1:
            return False
        if traced.estimate(sympy.sympify(traced.expression(factors[0]))) <= 0:
            return False
        node = source
    return True


def _is(node: Node, name: str) -> bool:
    return node.op == "call_function" and base_name(node) == name


def _is_of_rows(node: Node) -> bool:
    return list(reduced_axes(node)) == [tensors(node)[0].meta["val"].dim() - 1]


def _product_behind(node: Node) -> Node | None:
    """The one product that a node depends on element by element."""

    def is_end(each: Node) -> bool:
        return (
            each.op != "call_function"
            or base_name(each) in PRODUCTS
            or rule_of(each).kind not in {Kind.ELEMENT, Kind.VIEW}
        )

    found = [e for e in behind([node], is_end) if e.op == "call_function" and base_name(e) in PRODUCTS]
    return found[0] if len(found) == 1 else None


def _between(first: Node, last: Node) -> set[Node]:
    """The nodes on paths from a node to another one; empty if a path leads elsewhere."""

    def is_end(user: Node) -> bool:
        return user is last or not is_tensor(user)

    found = {first, last, *behind(first.users, is_end, lambda user: user.users)}
    return set() if any(user.op == "output" for user in found) else set(filter(is_tensor, found))


def _causality(weighed: Node, traced: Traced) -> tuple[bool, Node | None, bool]:
    """Whether what softmax is taken of is -infinity for all keys behind a query's place, whatever the inputs are.

    With that, the mask if it hides no other keys, and its value where scores count.
    """
    node, none = stripped(weighed), (False, None, True)
    if not _is(node, "where"):
        return none
    condition, *branches = node.args
    hidden = [
        isinstance(each, Node) and _is(each, "scalar_tensor") and each.args[0] == -math.inf
        for each in branches
    ]
    sizes = {each: 5 + number for number, each in enumerate(_dimensions(node, traced))}

    def value(each: Any) -> Any:
        if not isinstance(each, Node):
            return [value(e) for e in each] if isinstance(each, list | tuple) else each
        if not is_tensor(each):
            return int(traced.expression(each).xreplace(sizes))
        if each.op != "call_function":
            raise _OtherPlaceError
        return each.target(*map(value, each.args), **{name: value(e) for name, e in each.kwargs.items()})  # type: ignore[operator]

    if sum(hidden) != 1:
        return none
    try:
        mask = value(condition) == hidden[0]
    except _OtherPlaceError:
        return none
    behind = torch.ones(mask.shape[-2:], dtype=torch.bool).triu(1)
    is_alone = bool((mask == behind).all()) and isinstance(condition, Node)
    return bool((mask | ~behind).all()), condition if is_alone else None, not hidden[0]  # type: ignore[return-value]


def _dimensions(node: Node, traced: Traced) -> list[sympy.Symbol]:
    extents = extents_of(node, traced)
    return sorted({symbol for each in extents for symbol in each.free_symbols}, key=str)


class _OtherPlaceError(Exception):
    """A score depends on another one."""


def _is_covered(found: Attention, kept: Sequence[Node], traced: Traced) -> bool:
    """Whether operands are in memory with contiguous rows, and softmax is of what follows each score on its own."""

    def compute(body: Body, node: Node, index: Index) -> str:
        if node is found.scores:
            if index != _index(body, node, names):
                raise _OtherPlaceError
            return str(names.sum)
        if node in found.nodes and node is not found.weighed:
            raise _OtherPlaceError
        return "1" if node.op == "get_attr" else rule_of(node).compute(body, node, index)

    body = trial_body(found.nodes, kept, traced, compute)
    names = Names.of(body)
    left, right = tensors(found.scores)
    _, values = tensors(found.nodes[-1])
    try:
        body.read(found.weighed, _weighed_index(body, found, names))
        operands = (
            _in_memory(body, left, names.batch, (names.row, names.term), names.term),
            _in_memory(body, right, names.batch, (names.term, names.column), names.term),
            _in_memory(body, values, names.batch, (names.term, names.column), names.column),
        )
    except _OtherPlaceError:
        return False
    return None not in operands


# Indices and operands


def _index(body: Body, node: Node, names: Names) -> Index:
    """The index of an element of a product."""
    *batch, rows, _ = body.extents(node)
    return (*[names.batch] * len(batch), "0" if rows == ONE else names.row, names.column)


def _weighed_index(body: Body, found: Attention, names: Names) -> Index:
    """The index of what softmax is taken of, for a score."""
    return reshaped(
        body, _index(body, found.scores, names), body.extents(found.scores), body.extents(found.weighed)
    )


def _in_memory(
    body: Body, node: Node, batch: str, pair: tuple[str, str], contiguous: str
) -> tuple[Place, Index, int] | None:
    """The buffer of an operand with the axes of a `pair`, if neighbours along one of them are neighbours there.

    With it, the index of its first element, and the axis along which its lines are. One line may be along any.
    """
    one, another = body.extents(node)[-2:]
    pair = ("0" if one == ONE else pair[0], "0" if another == ONE else pair[1])

    def element(*kept: str) -> tuple[Place, Index, Mapping[str, str]] | None:
        index = (*[batch] * (node.meta["val"].dim() - 2), *(each if each in kept else "0" for each in pair))
        with body.trial() as loads:
            value = body.read(node, index)
            if len(loads) != 1:
                return None
            ((stored, found),) = loads
            place = body.place_of(stored)
            return (place, found, body.values) if place and value == body.load(place, found) else None

    first = element()
    axes = []
    for name in sorted({*pair} - {"0"}, key=pair.index):
        moved = element(name)
        if first is None or moved is None:
            return None
        pairs = zip(first[1], moved[1], strict=True)
        changed = [(_summands(before, first[2]), _summands(after, moved[2])) for before, after in pairs]
        if [(new - old, old - new) for old, new in changed if old != new] != [(Counter([name]), Counter())]:
            return None
        axes += [axis for axis, (old, new) in enumerate(changed) if old != new]
    assert first is not None  # noqa: S101 - there are two names
    place, start, _ = first
    if "0" in pair:
        axes.insert(pair.index("0"), len(place.extents) - 2)
    last = axes[pair.index(contiguous)]
    # Two axes of the buffer that the row and the column are along don't depend on each other.
    if axes[0] == axes[1] or product(place.extents[last + 1 :]) != ONE:
        return None
    return place, start, axes[1 - pair.index(contiguous)]


def _summands(text: str, values: Mapping[str, str]) -> Counter[str]:
    """What an index is the sum of, with the values of local variables in their place."""
    found: Counter[str] = Counter()
    depth, last = 0, 0
    for place in range(len(text) + 1):
        depth += {"(": 1, ")": -1}.get(text[place : place + 1], 0)
        if place == len(text) or (depth == 0 and text.startswith(" + ", place)):
            each, last = text[last:place], place + 3
            if each in values:
                found += _summands(values[each], values)
            elif each != "0":
                found[_NAME.sub(lambda word: _expanded(word[0], values), each)] += 1
    return found


_NAME = re.compile(r"[A-Za-z_]\w*")


def _expanded(name: str, values: Mapping[str, str]) -> str:
    if name not in values:
        return name
    return f"({' + '.join(sorted(_summands(values[name], values).elements()))})"


# Parts of a kernel


def _of_batch(place: Place, names: Names) -> str:
    """The matrix of a batch in scratch memory."""
    offset = (
        f" + (long long){names.batch} * {count_in_cpp(place.extents[1:])}" if len(place.extents) > 2 else ""
    )
    return place.name + offset


def _matrix(  # noqa: PLR0917 - what it is made of
    body: Body,
    schedule: Schedule,
    variable: str,
    node: Node,
    pair: tuple[str, str],
    contiguous: str,
    lines: str,
    *,
    kind: str = "",
) -> str:
    """Declare a variable for an operand of `lines`: ByTerm or ByLine, whichever axis of the pair is contiguous.

    One of 16-bit numbers is Stored; returns the name of its tensor map, if it has one.
    """
    for index_type in ("int", "long long"):
        own = schedule.body(body.target, index_type)
        names = Names.of(own)
        found = _in_memory(own, node, names.batch, pair, contiguous)
        assert found is not None  # noqa: S101 - the finder looked
        place, first, axis = found
        if not schedule.is_large(place):
            break
    own.read(node, (*[names.batch] * (node.meta["val"].dim() - 2), "0", "0"))
    body.reads[place.name] = place
    base = schedule.parameter(place.name)
    own.line(f"return {base} + ({own.flat(first, place.extents)});")
    extents = dict(zip(pair, map(in_cpp, body.extents(node)[-2:]), strict=True))
    (terms,) = {*pair} - {lines}
    sizes, stride = f"{extents[lines]}, {extents[terms]}", count_in_cpp(place.extents[axis + 1 :])
    narrow, data, made = place.dtype is not torch.float32, body.fresh(f"{variable}_data"), ""
    body.line(f"const {stored_type(place.dtype)}* const {data} = [&] {{")
    for line in own.text().splitlines():
        body.line(line.removeprefix("    "))
    body.line("}();")
    if narrow:
        kind, rank = f"blocks::Stored<{stored_type(place.dtype)}, true>", len(place.extents)
        if axis == rank - 2 and first[-2:] == ("0", "0"):
            shape = (product(place.extents[:-2]), *place.extents[-2:])
            made = schedule.add_tensor_map(place, shape, (1, LINES, LINES))
        of_map = f"(int)(({data} - {base}) / ({count_in_cpp(place.extents[-2:])}))" if made else "0"
        given = f"{f'&{made}' if made else 'nullptr'}, {data}, {sizes}, {of_map}, {stride}"
    else:
        given = f"{data}, {sizes}, {stride}"
    kind = kind or f"blocks::{'ByTerm' if contiguous == terms else 'ByLine'}"
    body.line(f"const {kind} {variable}{{{given}}};")
    return made


def _literal(value: object) -> str:
    return "true" if value else "false"


def _width(schedule: Schedule, extents: Sequence[sympy.Expr]) -> int:
    """Columns of a tile: as many as leave each multiprocessor one."""
    *batch, rows, columns = map(schedule.estimate, ((each,) for each in extents))
    down = math.prod(batch) * math.ceil(rows / ROWS)
    return next((each for each in (256, 128) if down * math.ceil(columns / each) >= MULTIPROCESSORS), 64)
