"""The template for attention: softmax(Q K^T) V, with whatever is done to the scores element by element in between.

A block has some queries and all their outputs on chip. Where heads are too wide for that, one kernel stores weights by
tiles, and another one brings them to one scale on their way to the tensor cores. attention.cuh has the arithmetic.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import sympy
import torch
from torch.fx import Node
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Mod

from mctskernel.problems.plain_cuda.body import Body, Function, Index, Place, numbers
from mctskernel.problems.plain_cuda.element_types import converted, loaded, stored_type
from mctskernel.problems.plain_cuda.extents import ONE, count_in_cpp, count_in_plan, in_cpp, product, same
from mctskernel.problems.plain_cuda.reductions import reduced_axes
from mctskernel.problems.plain_cuda.rules import Kind, base_name, behind, is_tensor, readers, rule_of, tensors
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

FEW = sympy.Integer(3)
"""A size at which it is tried out where elements are."""

LARGEST_TRIED = 4096
"""Of the numbers in a mask, where masks are tried out."""

HIDDEN = -1e9
"""The largest score in place of one that doesn't count: its weight is 0 next to any other one's."""

MOVES = {"permute", "view", "_unsafe_view", "clone"}
"""Views of outputs that are stored as those have them."""

MOST_ON_CHIP = {torch.float32: 128, torch.float16: 256, torch.bfloat16: 256}
"""The widest heads of which one kernel keeps a block's outputs."""


@dataclass(frozen=True)
class Attention:
    """Two batched products with a softmax between them, of `weighed`, and views; the last of `nodes` is stored."""

    nodes: tuple[Node, ...]
    scores: Node
    weighed: Node
    product: Node
    """The second one."""
    causal: bool
    """Whether no query has keys behind its own place."""
    mask: Node | None = None
    """What hides those keys alone, and so needs no look where the kernel leaves them out."""
    counts: str = "true"
    """What the mask is for a score that counts."""
    is_multiple: bool = False
    """Whether softmax is of products times a positive number, but for that mask."""
    is_plain: bool = False
    """Whether `weighed` are the weights themselves, without a softmax."""
    axes: tuple[int, ...] = ()
    """Of the buffers of queries, keys and values: those that rows and lines of the operands are along."""
    heads: sympy.Expr = ONE
    """How many neighbours in the batch have the same keys and values: they are one with that many times the queries."""

    def kernels(self, schedule: Schedule, place: Place) -> Iterator[tuple[str, str]]:
        """The texts of the kernels, and their launches."""
        schedule.include(HEADER)
        queries, _, values = self._operands()
        head = max(schedule.estimate(schedule.place("", each).extents[-1:]) for each in (queries, values))
        if head <= MOST_ON_CHIP[place.dtype]:
            yield self._at_once(schedule, place, head)
        else:
            yield from replace(self, heads=ONE)._in_two(schedule, place)

    def _at_once(self, schedule: Schedule, place: Place, size: int) -> tuple[str, str]:
        bytes_, narrow = place.dtype.itemsize, place.dtype is not torch.float32
        count = self._splits(schedule) if narrow and not self.is_plain else 1
        unit = max(16, 8 * count) if narrow else 64
        size = math.ceil(size / unit) * unit
        blocks = schedule.macro("BLOCKS", MULTIPROCESSORS) if narrow else ""
        splits = schedule.macro("SPLITS", count, *((1,) if self.is_plain else (1, 2, 4, 8))) if narrow else ""
        causal, head = _literal(self.causal), schedule.macro("HEAD", size, *(() if narrow else (64, 128)))
        # Numbers that are fetched before they are needed take registers.
        fetches = not self.is_multiple and self._beside(*self._begun(schedule, place))
        *batch, rows, columns = self._extents(schedule)
        many = size <= (128 if narrow and not fetches else 64) and schedule.estimate((columns,)) > 64
        keys = schedule.macro("KEYS", 128 if many else 64, 64, 128)
        width = f"(({head} + 63) // 64 * 64)" if narrow else head
        shared = f"({ROWS} + 4 * {keys}) * {width} * {bytes_} + {2048 if narrow else 1024}"
        schedule.require(f"{shared.replace('//', '/')} <= 232448")
        tiles, batches = f"(({in_cpp(rows)} + {ROWS - 1}) / {ROWS})", count_in_cpp(batch)
        maps: list[str] = []

        def write(body: Body, names: Names) -> None:
            number = names.tile
            first = f"{number} % {tiles} * {ROWS}"
            if self.causal and batch:
                # The longest rows first.
                first = f"({tiles} - 1 - {number} / ({batches})) * {ROWS}"
                body.line(f"const int {names.batch} = {number} % ({batches});")
            elif batch:
                heads = f" * {in_cpp(self.heads)}" if self.heads != ONE else ""
                body.line(f"const int {names.batch} = {number} / {tiles}{heads};")
            operands = enumerate((names.left, names.right, names.values))
            maps.extend(self._matrix(schedule, body, name, number, width=head) for number, name in operands)
            score = self._score(schedule, body, names)
            score = f"attention::weight({score})" if self.is_plain else score
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

    def _operands(self) -> tuple[Node, Node, Node]:
        """Queries, keys and values."""
        return (*tensors(self.scores), tensors(self.product)[1])  # type: ignore[return-value]

    def _splits(self, schedule: Schedule) -> int:
        """How many blocks share a part's keys: as many as leave each multiprocessor one."""
        *batch, rows, keys = (schedule.estimate((each,)) for each in self._extents(schedule))
        parts = math.prod(batch) * math.ceil(rows / ROWS)
        room = ((8, CLUSTERED), (4, CLUSTERED), (2, MULTIPROCESSORS))
        return next((each for each, most in room if each * parts <= most and each * FEWEST_KEYS <= keys), 1)

    def _extents(self, schedule: Schedule) -> list[sympy.Expr]:
        """Those of the scores, with the queries of heads that share keys as those of one."""
        *batch, rows, keys = schedule.place("", self.scores).extents
        if self.heads != ONE:
            batch, rows = [CleanDiv(product(batch), self.heads)], self.heads * rows
        return [*batch, rows, keys]

    @contextlib.contextmanager
    def _function(self, body: Body, names: Names, head: str, end: str, further: str = "") -> Iterator[None]:
        """Write a function of a query and a key or column, where queries may be those of several heads."""
        if self.heads == ONE:
            with body.block(f"{head} [=](int {names.row}, int {names.column}{further}) {{", end):
                yield
            return
        first, line, rows = body.fresh("first"), body.fresh("line"), in_cpp(body.extents(self.scores)[-2])
        given = f"[=, {first} = {names.batch}](int {line}, int {names.column}{further})"
        with body.block(f"{head} {given} {{", end):
            body.line(f"const int {names.batch} = {first} + {line}{f' / {rows}' * (rows != '1')};")
            if rows != "1":
                body.line(f"const int {names.row} = {line} % {rows};")
            yield

    def _begun(self, schedule: Schedule, place: Place) -> tuple[Body, Names]:
        """The beginning of a kernel that has scores, without a causal mask, and its names."""

        def given(body: Body, index: Index) -> str:
            assert index == _index(body, self.scores, names)  # noqa: S101 - the finder looked
            return str(names.sum)

        known = {self.mask: lambda *_: self.counts} if self.mask else {}
        for index_type in ("int", "long long"):
            body = schedule.body(place, index_type, {self.scores: given, **known}, depth=1)
            names = Names.of(body)
            with body.trial():
                body.read(self.weighed, _of_score(body, self, self.weighed, names))
                used = (*body.reads.values(), place)
            if not any(map(schedule.is_large, used)):
                break
        body.line(f"extern __shared__ unsigned char {names.shared}[];")
        return body, names

    def _score(self, schedule: Schedule, body: Body, names: Names) -> str:
        """Declare the function that makes a product what softmax is taken of, and return it with what it needs."""
        given, beside = f", float {names.sum}", ""
        with body.trial():
            found = None if self.is_multiple else self._beside(body, names)
        if found:
            beside = body.fresh("beside")
            with self._function(body, names, f"const auto {beside} =", "};", given):
                place, _, offset = self._beside(body, names) or found
                body.read(self.weighed, _of_score(body, self, self.weighed, names))
                body.line(f"return {schedule.parameter(place.name)} + ({offset});")
            number = body.fresh("number")
            given += f", {stored_type(place.dtype)} {number}"
        with self._function(body, names, f"const auto {names.score} =", "};", given):
            if found:
                place, key, _ = self._beside(body, names) or found
                body.know(*key, loaded(place.dtype, number))
            value = body.read(self.weighed, _of_score(body, self, self.weighed, names))
            body.line(f"return {converted(value, numbers(self.weighed), torch.float32)};")
        return f"attention::beside({beside}, {names.score})" if found else str(names.score)

    def _beside(self, body: Body, names: Names) -> tuple[Place, tuple[Node, Index], str] | None:
        """The buffer, element and offset of what scores read where neighbours in a row are neighbours in memory."""
        with body.trial() as loads:
            body.read(self.weighed, _of_score(body, self, self.weighed, names))
            varying = body.depending({names.column})
            for key, offset in loads.items():
                base, place = offset.removesuffix(names.column), body.place_of(key[0])
                whole = not base or base.endswith(" + ")
                if place and base != offset and whole and varying.isdisjoint(re.findall(r"\w+", base)):
                    return place, key, offset
        return None

    def _in_two(self, schedule: Schedule, place: Place) -> Iterator[tuple[str, str]]:
        *batch, rows, count = schedule.place("", self.scores).extents
        shape = schedule.place("", self.product).extents
        of_scores, of_place = (_width(schedule, each) for each in ((*batch, rows, count), shape))
        keys = schedule.macro("KEYS", of_scores, 64, 128, 256)
        columns = schedule.macro("COLUMNS", of_place, 64, 128, 256)
        shares = schedule.estimate((rows,)) > ROWS and min(of_scores, of_place) > LINES
        cluster = schedule.macro("CLUSTER", TOGETHER if shares else 1, 1, TOGETHER)
        schedule.require(f"{cluster} == 1 || ({keys} > {LINES} && {columns} > {LINES})")
        width = sympy.Symbol(keys, integer=True, positive=True)
        # A row's weights, and behind those of all rows two numbers for each tile.
        pitch = STEP * ceiling(count, STEP) + 2 * sympy.floor((count + width - 1) / width)
        whole = (*batch, ROWS * ceiling(rows, ROWS), pitch)
        scores = Place(schedule.fresh(f"{self.scores.name}_rows"), torch.float32, whole)
        schedule.add_scratch(scores)

        def weights(names: Names) -> str:
            return f"{_of_batch(scores, names)}, {in_cpp(rows)}, {in_cpp(count)}"

        def weigh(body: Body, names: Names) -> None:
            self._matrix(schedule, body, names.left, 0, "blocks::ByTerm")
            self._matrix(schedule, body, names.right, 1, "blocks::ByTerm")
            score = self._score(schedule, body, names)
            body.writes[scores.name] = scores
            given = f"{names.left}, {names.right}, {{{weights(names)}}}, {score}"
            body.line(f"return attention::scores<{keys}, {_literal(self.causal)}>({given});")

        def add(body: Body, names: Names) -> None:
            body.reads[scores.name] = scores
            body.line(f"const attention::PackedWeights {names.left}{{{weights(names)}}};")
            self._matrix(schedule, body, names.right, 2, "blocks::ByLine")
            given = f"weighed<{keys}, {_literal(self.causal)}>({names.left}, {names.right}"
            self._return(schedule, place, body, names, given)

        for name, target, across, size, write in (
            ("scores_kernel", scores, count, keys, weigh),
            ("values_kernel", place, shape[-1], columns, add),
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
            if kind != "int" and len(body.extents(self.scores)) > 2:
                body.line(f"const int {names.batch} = {names.tile}.batch;")
            write(body, names)
        threads = 256 if function.startswith("attend_pairs") else 384
        node = self.weighed if name == "scores_kernel" else self.nodes[-1]
        about, reads = schedule.described(node), tuple(body.reads.values())
        bounds = f"__launch_bounds__({threads}, 1) "
        return Function(schedule.fresh(name), about, body.text(), reads, place, bounds)

    def _matrix(
        self, schedule: Schedule, body: Body, variable: str, number: int, kind: str = "", *, width: str = ""
    ) -> str:
        """Declare a variable for queries, keys or values, which is Stored if those have 16 bits.

        Returns the name of its tensor map. Only heads of `width` have one where they are between other ones.
        """
        node, axis, heads = self._operands()[number], self.axes[number], ONE if number else self.heads
        lines = -1 if number == 1 or kind == "blocks::ByLine" else -2
        for index_type in ("int", "long long"):
            own = schedule.body(body.target, index_type)
            index = (*[Names.of(own).batch] * (node.meta["val"].dim() - 2), "0", "0")
            with own.trial() as loads:
                own.read(node, index)
                ((stored, first),) = loads
            place = schedule.places[stored]
            if not schedule.is_large(place):
                break
        own.read(node, index)
        body.reads[place.name] = place
        base = schedule.parameter(place.name)
        own.line(f"return {base} + ({own.flat(first, place.extents)});")
        extents = body.extents(node)
        sizes = f"{in_cpp(heads * extents[lines])}, {in_cpp(extents[-3 - lines])}"
        stride = count_in_cpp(place.extents[axis + 1 :])
        data, made = body.fresh(f"{variable}_data"), ""
        body.line(f"const {stored_type(place.dtype)}* const {data} = [&] {{")
        for line in own.text().splitlines():
            body.line(line.removeprefix("    "))
        body.line("}();")
        kind, given = kind or "attention::Rows<float>", f"{data}, {sizes}, {stride}"
        if place.dtype is not torch.float32:
            kind = f"blocks::Stored<{stored_type(place.dtype)}, true>"
            matrices = product(place.extents[:axis])
            matrix = (heads * place.extents[axis], product(place.extents[axis + 1 :]))
            if first[axis] == "0" and (heads == ONE or axis == len(first) - 2):
                shape = (matrices if heads == ONE else CleanDiv(matrices, heads), *matrix)
                made = schedule.add_tensor_map(place, shape, (1, LINES, LINES))
            # Beyond a line of a matrix that is all lines there are zeros, but beyond others there are others.
            whole = axis == len(first) - 2 and first[-1] == "0"
            at = f"&{made}" if whole else f"{in_cpp(extents[-3 - lines])} == {width} ? &{made} : nullptr"
            of_map = f"(int)(({data} - {base}) / ({count_in_cpp(matrix)}))" if made else "0"
            start = "" if whole else f", (int)(({data} - {base}) % ({stride}))"
            given = f"{at if made else 'nullptr'}, {data}, {sizes}, {of_map}, {stride}{start}"
        body.line(f"const {kind} {variable}{{{given}}};")
        return made

    def _return(self, schedule: Schedule, place: Place, body: Body, names: Names, given: str) -> None:
        """Return what a lambda is to tell of a part, and where its outputs are stored."""
        body.writes[place.name] = place
        head = f"return attention::{given}, {schedule.parameter(place.name)},"
        with self._function(body, names, head, "});"):
            index, node = _index(body, self.product, names), self.product
            while node is not self.nodes[-1]:
                before, (node,) = node, readers(node)
                if _is(node, "permute"):
                    index = tuple(index[axis] for axis in node.args[1])  # type: ignore[index, union-attr]
                else:
                    index = reshaped(body, index, body.extents(before), body.extents(node))
            body.line(f"return {body.flat(index, place.extents)};")


def attentions(kept: Sequence[Node], outputs: Collection[Node], traced: Traced) -> Iterator[Attention]:
    """Attention whose operands are in memory, with contiguous rows, and large enough for tiles."""
    for node in kept:
        if base_name(node) in PRODUCTS and (found := _attention(node, kept, outputs, traced)):
            yield found


def moved(kept: Collection[Node], outputs: Sequence[Node]) -> list[Node]:
    """The outputs that are attention's in another order, which it can store so."""
    sources = [(node, _unmoved(node, kept)) for node in outputs]
    return [
        node
        for node, source in sources
        if source in kept and _is(source, *PRODUCTS) and _softmax_of(stripped(tensors(source)[0]))
    ]


def _unmoved(node: Node, kept: Collection[Node]) -> Node:
    """What a node is in another order, if nothing else reads that."""
    source = node
    while _is(source, *MOVES) and (source is node or source not in kept):
        (source,) = tensors(source)
        if len(readers(source)) != 1:
            return node
    return source


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
    if node not in outputs:
        nodes += tuple(each for each in kept if each is not node and _unmoved(each, kept) is node)
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
    found = Attention(nodes, scores, weighed, node, *how, is_multiple, not softmax)
    memory = [*traced.inputs, *(each for each in kept if each not in nodes)]
    chains = [_from_memory(each, memory) for each in operands]
    small = _small([extents_of(node, traced) for chain in chains for node in chain])
    given = zip(chains, (-1, -2, -1), strict=True)
    located = [each for one in given if (each := _located(*one, small, traced))]
    if len(located) < len(operands) or not _is_covered(found, kept, traced):
        return None
    few = 2 * traced.estimate(sizes[0]) <= ROWS and not found.causal
    heads = _shared_by(*located) if few else ONE
    return replace(found, axes=tuple(each.axis for each in located), heads=heads)


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
    if mask:
        node = next(each for each in tensors(node) if each is not mask and not _is(each, "scalar_tensor"))
    while (node := stripped(node, [scores])) is not scores:
        (source, *others), factors = tensors(node), [each for each in node.args if each not in tensors(node)]
        if base_name(node) not in {"mul", "div"} or others or node.args[0] is not source or len(factors) != 1:
            return False
        if traced.estimate(sympy.sympify(traced.expression(factors[0]))) <= 0:
            return False
        node = source
    return True


def _is(node: Node, *names: str) -> bool:
    return node.op == "call_function" and base_name(node) in names


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


class _Located(NamedTuple):
    """Where an operand is in memory, at small sizes."""

    axis: int
    """Of its buffer, that its lines are along."""
    stride: int
    places: torch.Tensor
    """Of its elements."""
    repeats: list[tuple[sympy.Expr, int]]
    """How often axes of one element are repeated, and how often at these sizes."""


def _from_memory(node: Node, memory: Collection[Node]) -> list[Node]:
    """A node and what it is a view of, back to a buffer."""
    chain = [node]
    while chain[-1] not in memory and rule_of(chain[-1]).kind is Kind.VIEW and len(tensors(chain[-1])) == 1:
        chain += tensors(chain[-1])
    return [each for each in chain if is_tensor(each)] if chain[-1] in memory else []


def _small(extents: Sequence[Sequence[sympy.Expr]]) -> dict[sympy.Symbol, sympy.Integer]:
    """Small sizes for all dimensions but those that there are quotients of."""
    quotients = {q for each in extents for e in each for q in e.atoms(FloorDiv, CleanDiv, Mod)}
    fixed = {symbol for each in quotients for symbol in each.free_symbols}
    return {symbol: FEW for each in extents for e in each for symbol in e.free_symbols - fixed}


def _located(
    chain: Sequence[Node], contiguous: int, sizes: Mapping[sympy.Symbol, sympy.Integer], traced: Traced
) -> _Located | None:
    """Where an operand is, if an axis of its last two is contiguous in memory. One line may be along any."""
    if not chain:
        return None
    extents = [extents_of(each, traced) for each in chain]
    shapes = [[int(traced.estimate(e.xreplace(sizes))) for e in each] for each in extents]
    repeats = [
        (added, count)
        for each, before, after, now in zip(chain, extents[1:], extents, shapes, strict=False)
        if _is(each, "expand")
        for old, added, count in zip(before, after, now, strict=True)
        if old == ONE != added
    ]
    buffer = torch.arange(math.prod(shapes[-1]), dtype=torch.int32).view(shapes[-1])
    try:
        places = _evaluated(chain[0], traced, sizes, {chain[-1]: buffer})
    except _OtherPlaceError:
        return None
    steps = places.diff(dim=-3 - contiguous).unique().tolist()
    axes = range(buffer.dim() - 1)
    found = [each for each in axes if [buffer.stride(each)] == steps] if steps else axes[-1:]
    if not found or steps == [1] or places.diff(dim=contiguous).unique().tolist() != [1]:
        return None
    axis = max(found, key=buffer.shape.__getitem__)
    return _Located(axis, buffer.stride(axis), places, repeats)


def _shared_by(queries: _Located, keys: _Located, values: _Located) -> sympy.Expr:
    """How many neighbours in the batch share keys and values, if their queries are in order in memory."""
    if len(keys.repeats) != 1:
        return ONE
    ((heads, count),) = keys.repeats
    steps = queries.places[..., 0].reshape(-1, count * queries.places.shape[1]).diff(dim=1)
    several = [each[torch.arange(len(each)) // count * count] for each in (keys.places, values.places)]
    is_one = torch.equal(several[0], keys.places) and torch.equal(several[1], values.places)
    return heads if is_one and bool((steps == queries.stride).all()) else ONE


def _evaluated(
    node: Any,
    traced: Traced,
    sizes: Mapping[sympy.Symbol, sympy.Integer],
    given: Mapping[Node, torch.Tensor] = MappingProxyType({}),
) -> Any:
    """The result of an operator, with some dimensions' sizes, and given tensors."""
    if not isinstance(node, Node):
        several = isinstance(node, list | tuple)
        return [_evaluated(each, traced, sizes, given) for each in node] if several else node
    if node in given:
        return given[node]
    if not is_tensor(node) and not isinstance(node.meta["val"], list | tuple):
        return int(traced.estimate(traced.expression(node).xreplace(sizes)))
    if node.op != "call_function":
        raise _OtherPlaceError
    if base_name(node).endswith("_like"):
        extents = [int(traced.estimate(each.xreplace(sizes))) for each in extents_of(node, traced)]
        given = {**given, tensors(node)[0]: torch.empty((), dtype=numbers(tensors(node)[0])).expand(extents)}
    further = {name: _evaluated(each, traced, sizes, given) for name, each in node.kwargs.items()}
    try:
        return node.target(*_evaluated(node.args, traced, sizes, given), **further)  # type: ignore[operator]
    except RuntimeError as error:  # not at these sizes
        raise _OtherPlaceError from error


def _causality(weighed: Node, traced: Traced) -> tuple[bool, Node | None, str]:
    """Whether what softmax is taken of is nothing for all keys behind a query's place, whatever the inputs are.

    With that, the mask if it hides no other keys, and its value where scores count.
    """
    node = stripped(weighed)
    choices, counts = tensors(node) * (_is(node, "add") and not node.kwargs), "0.0f"
    if _is(node, "where"):
        mask, *branches = tensors(node)
        hidden = [_is(each, "scalar_tensor") and float(each.args[0]) <= HIDDEN for each in branches]  # type: ignore[arg-type]
        choices, counts = [mask] * (sum(hidden) == 1), _literal(not hidden[0])
    for mask in choices:
        # Sizes that numbers in the mask can tell apart, with more queries than keys and fewer.
        given = (e for each in behind([mask]) for e in each.args if isinstance(e, int | float))
        largest = int(max((abs(e) for e in given if abs(e) < -HIDDEN), default=0))
        is_causal, is_alone = largest <= LARGEST_TRIED, True
        for more in (0, 1) if is_causal else ():
            *outer, rows, columns = extents_of(node, traced)
            sizes = {each: sympy.Integer(2) for extent in outer for each in extent.free_symbols}
            sizes |= {each: sympy.Integer(largest + 6 - more) for each in columns.free_symbols}
            sizes |= {each: sympy.Integer(largest + 5 + more) for each in rows.free_symbols}
            try:
                found = _evaluated(mask, traced, sizes)
            except _OtherPlaceError:
                is_causal = False
                break
            shape = [int(traced.estimate(each.xreplace(sizes))) for each in (rows, columns)]
            found = found.broadcast_to(torch.broadcast_shapes(found.shape, shape))  # type: ignore[no-untyped-call]
            later = torch.ones(shape, dtype=torch.bool).triu(1)
            hides = found <= HIDDEN if counts == "0.0f" else found != (counts == "true")
            is_causal &= bool((hides | ~later).all()) and not bool(hides.all(dim=-1).any())
            is_alone &= bool((hides == later).all() and (counts != "0.0f" or (found[..., ~later] == 0).all()))
        if is_causal:
            return True, mask if is_alone else None, counts
    return False, None, counts


class _OtherPlaceError(Exception):
    """A score depends on another one, or a result on what isn't known."""


def _is_covered(found: Attention, kept: Sequence[Node], traced: Traced) -> bool:
    """Whether each weight, where its score is, is of that score."""
    probabilities = tensors(found.product)[0]
    weights = stripped(probabilities)

    def compute(body: Body, node: Node, index: Index) -> str:
        if node is weights and not found.is_plain:
            if index != _of_score(body, found, weights, names):
                raise _OtherPlaceError
            return "1"
        if node is found.scores:
            if index != _index(body, node, names):
                raise _OtherPlaceError
            return str(names.sum)
        if node in found.nodes and node is not found.weighed and not _is(node, "_to_copy"):
            raise _OtherPlaceError
        return "1" if node.op == "get_attr" else rule_of(node).compute(body, node, index)

    body = trial_body(found.nodes, kept, traced, compute)
    names = Names.of(body)
    if not same(*(product(body.extents(each)) for each in (found.weighed, found.scores))):
        return False
    try:
        body.read(found.weighed, _of_score(body, found, found.weighed, names))
        body.read(probabilities, _of_score(body, found, probabilities, names))
    except _OtherPlaceError:
        return False
    return True


# Indices and operands


def _index(body: Body, node: Node, names: Names) -> Index:
    """The index of an element of a product."""
    *batch, rows, _ = body.extents(node)
    return (*[names.batch] * len(batch), "0" if rows == ONE else names.row, names.column)


def _of_score(body: Body, found: Attention, node: Node, names: Names) -> Index:
    """The index of a node's element that is where a score is."""
    return reshaped(body, _index(body, found.scores, names), body.extents(found.scores), body.extents(node))


# Parts of a kernel


def _of_batch(place: Place, names: Names) -> str:
    """The matrix of a batch in scratch memory."""
    offset = (
        f" + (long long){names.batch} * {count_in_cpp(place.extents[1:])}" if len(place.extents) > 2 else ""
    )
    return place.name + offset


def _literal(value: object) -> str:
    return "true" if value else "false"


def _width(schedule: Schedule, extents: Sequence[sympy.Expr]) -> int:
    """Columns of a tile: as many as leave each multiprocessor one."""
    *batch, rows, columns = map(schedule.estimate, ((each,) for each in extents))
    down = math.prod(batch) * math.ceil(rows / ROWS)
    return next((each for each in (256, 128) if down * math.ceil(columns / each) >= MULTIPROCESSORS), 64)
