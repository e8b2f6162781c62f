"""Persistent programs for products, whose tiles TMA copies: descriptors in place of tiles of pointers with masks.

A tile of pointers is read as a base and, along its two axes, lanes `start + arange(0, size)` times a stride. Where
masks say which of the lanes exist, a descriptor of the same tensor reads zeros for the others. TMA wants strides of
whole 16 bytes: where some shape has others, the plan tells the kernel, which keeps its pointers for them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product

from mctskernel.core.dtypes import DTYPE_BYTES
from mctskernel.core.edit import Category
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import plan_of
from mctskernel.edits.rule import Proposal
from mctskernel.edits.triton import module as py
from mctskernel.edits.triton.programs import striding
from mctskernel.edits.triton.tuning import tiles_of

TMA_BYTES = 16  # descriptors begin at multiples of it, and so do their rows
PROGRAMS = (264, 132)  # two for each multiprocessor of an H100 or an H200, or one of twice the tile
LEAST_TILE = 1 << 14  # elements of tiles of which no more than two are worked on by a multiprocessor at once
UNLIMITED = 1 << 30  # an end of lanes that nothing cuts off; descriptors don't know how large a tensor is

Total = tuple[tuple[str, ...], ...]
"""A sum of products: sorted addends of sorted factors, without zeros and ones."""


@dataclass(frozen=True)
class Lanes:
    """`(start + arange(0, size)) * scale` along an axis of a tile, with `% wrap` where that is said."""

    size: str
    start: Total = ()
    scale: tuple[str, ...] = ()
    axis: int | None = None
    wrap: str = ""


@dataclass(frozen=True)
class Sum:
    """A pointer, numbers that are the same for all lanes, and lanes."""

    pointer: str = ""
    scalars: Total = ()
    lanes: tuple[Lanes, ...] = ()


ALIKE = ("multiple_of", "max_contiguous", "broadcast_to")
AXES = {":None": 0, "None:": 1}

Mask = tuple[tuple[Lanes, str], ...]  # lanes, and the ends before which all of them are


@dataclass(frozen=True)
class Turns:
    """A loop over blocks: where a turn's block starts, where the last one ends, and texts of how far that is."""

    start: Total
    end: str
    remains: frozenset[str]
    size: str


@dataclass(frozen=True)
class Access:
    """A load or a store of a tile, its statement, its pointers, its mask and the loops that it is in."""

    call: ast.Call
    statement: ast.stmt
    tile: Sum
    mask: Mask
    turns: tuple[Turns, ...]


@dataclass
class _Reader:
    """Reads a function's statements in their order; `known` are names that are 0 or 1."""

    function: ast.FunctionDef
    known: Mapping[str, Sum]
    pointers: frozenset[str]
    values: dict[str, Sum | Mask | None] = field(default_factory=dict)
    accesses: list[Access] = field(default_factory=list)
    turns: tuple[Turns, ...] = ()

    def __post_init__(self) -> None:
        self.once = py.assigned_once(self.function)
        self.read(self.function.body)

    def read(self, body: list[ast.stmt]) -> None:
        for statement in body:
            match statement:
                case ast.For(target=ast.Name(id=variable)):
                    self._loop(statement, variable)
                case ast.If():
                    before = dict(self.values)
                    self.read(statement.body)
                    first, self.values = self.values, before
                    self.read(statement.orelse)
                    unclear = [n for n in first.keys() | self.values if first.get(n) != self.values.get(n)]
                    self.values.update(dict.fromkeys(unclear))
                case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.Expr():
                    self._calls(statement)
                    names, found = py.names_assigned(statement), self._assigned(statement)
                    stale = (name for name, each in self.values.items() if names & _names(each))
                    self.values.update(dict.fromkeys([*stale, *names]) | found)
                case _:
                    self.values.update(dict.fromkeys(py.names_assigned(statement)))

    def _assigned(self, statement: ast.stmt) -> dict[str, Sum | Mask | None]:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                found = self.value(statement.value) if statement.value else None
                if not isinstance(found, Sum) or found.pointer or found.lanes:
                    return {name: found}
                parameters = {(), ((),), *(((each,),) for each in py.parameters(self.function))}
                return {
                    name: found
                    if found.scalars in parameters and name in self.once
                    else self._final(name, statement)
                }
            case ast.Assign(targets=[ast.Tuple(elts=targets)]):
                return {
                    name: self._final(name, statement) for each in targets for name in py.names_assigned(each)
                }
        return {}

    def _final(self, name: str, statement: ast.stmt) -> Sum | None:
        """A number under its name, which nothing changes from here on."""
        stores = (
            n for n in ast.walk(self.function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        )
        last = max(each.lineno for each in stores if each.id == name)
        alone = name in self.once or (statement in self.function.body and last == statement.lineno)
        return Sum(scalars=((name,),)) if alone else None

    def _calls(self, statement: ast.stmt) -> None:
        for call in py.calls(statement, "load", "store"):
            written = py.argument(call, 1 if py.called(call) == "load" else 2, "mask")
            match self.value(call.args[0]), () if written is None else self.value(written):
                case Sum(scalars=(), lanes=(_, _)) as tile, tuple(mask) if tile.pointer:
                    self.accesses.append(Access(call, statement, tile, mask, self.turns))

    def _loop(self, loop: ast.For, variable: str) -> None:
        turns = self._turns(loop.iter, variable)
        assigned, entry = py.names_assigned(loop), dict(self.values)
        self.values.update({**dict.fromkeys(assigned), variable: Sum(scalars=((variable,),))})
        for step in loop.body if turns else ():
            match step:
                case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value):
                    others = (each for each in loop.body if each is not step)
                    if turns and not any(name in py.names_assigned(each) for each in others):
                        self.values[name] = _advanced(entry.get(name), self.value(value), turns)
        outer, self.turns = self.turns, (*self.turns, turns) if turns else self.turns
        self.read(loop.body)
        self.turns = outer
        self.values.update(dict.fromkeys(assigned))

    def _turns(self, over: ast.expr, variable: str) -> Turns | None:
        if not isinstance(over, ast.Call) or ast.unparse(over.func) not in {"range", "tl.range"}:
            return None
        start: Total = ((variable,),)
        match over.args:
            case [ast.Constant(value=0), end, ast.Name(id=size)]:
                remains = [f"({ast.unparse(end)} - {variable})"]
            case [end, ast.Constant(value=0), ast.UnaryOp(op=ast.USub(), operand=ast.Name(id=size))]:
                start, remains = ((f"({ast.unparse(end)} - {variable})",),), [variable]
            case [count] | [ast.Constant(value=0), count]:
                match self.once.get(ast.unparse(count), count):
                    case ast.Call(func=ast.Attribute(attr="cdiv"), args=[end, ast.Name(id=size)]):
                        start = (tuple(sorted((size, variable))),)
                        both = (f"{variable} * {size}", f"{size} * {variable}")
                        remains = [f"({ast.unparse(end)} - {each})" for each in both]
                    case _:
                        return None
            case _:
                return None
        ends = self.value(end)
        return Turns(start, _text(ends.scalars), frozenset(remains), size) if isinstance(ends, Sum) else None

    def value(self, node: ast.expr) -> Sum | Mask | None:
        """What an expression is, as far as tiles are made of it."""
        match node:
            case ast.Name(id=name):
                number = Sum(name) if name in self.pointers else Sum(scalars=((name,),))
                return self.known.get(name, self.values.get(name, number))
            case ast.Constant(value=int() as number):
                return Sum(scalars={0: (), 1: ((),)}.get(number, ((str(number),),)))
            case ast.Call(func=ast.Attribute(value=inner, attr="to" | "broadcast_to")) if not py.called(node):
                return self.value(inner)
            case ast.Call(args=[inner, _]) if py.called(node) in ALIKE:
                return self.value(inner)
            case ast.Call(args=[ast.Constant(value=0), size]) if py.called(node) == "arange":
                return Sum(lanes=(Lanes(ast.unparse(size)),))
            case ast.Subscript(value=inner, slice=ast.Tuple(elts=[_, _] as where)):
                return _along(self.value(inner), AXES.get("".join(map(ast.unparse, where))))
            case ast.BinOp():
                return self._binary(node)
            case ast.Compare(left=left, ops=[ast.Lt()], comparators=[right]):
                match _gathered(self.value(left)), self.value(right):
                    case Sum(pointer="", scalars=(), lanes=(lanes,)), Sum(pointer="", lanes=()) as end:
                        return ((lanes, _text(end.scalars)),)
                return None
        return self._opaque(node)

    def _opaque(self, node: ast.expr) -> Sum | None:
        """A number that is the same for all lanes, as far as its names say so."""
        names = py.names_read(node) - {"tl"}
        known = (self.values.get(name, Sum()) for name in names)
        plain = all(isinstance(each, Sum) and not (each.lanes or each.pointer) for each in known)
        if plain and not names & self.pointers and not any(py.calls(node, "load", "arange")):
            return Sum(scalars=((f"({ast.unparse(node)})",),))
        return None

    def _binary(self, node: ast.BinOp) -> Sum | Mask | None:
        match node.op, self.value(node.left), self.value(node.right):
            case ast.BitAnd(), tuple(left), tuple(right):
                return left + right
            case ast.Add(), Sum() as left, Sum() as right if not (left.pointer and right.pointer):
                left, right = _settled(left), _settled(right)
                scalars = tuple(sorted(left.scalars + right.scalars))
                first = left if left.pointer else right
                return _settled(replace(first, scalars=scalars, lanes=left.lanes + right.lanes))
            case (ast.Mult(), Sum(pointer="") as value, Sum(pointer="", lanes=()) as factor) | (
                ast.Mult(),
                Sum(pointer="", lanes=()) as factor,
                Sum(pointer="") as value,
            ):
                if not value.lanes:
                    products = (tuple(sorted(a + b)) for a, b in product(value.scalars, factor.scalars))
                    return Sum(scalars=tuple(sorted(products)))
                gathered = _gathered(value)
                if gathered is None or len(factor.scalars) != 1:
                    return None
                more = factor.scalars[0]
                return Sum(
                    lanes=tuple(
                        replace(each, scale=tuple(sorted(each.scale + more))) for each in gathered.lanes
                    )
                )
            case ast.Mod(), Sum(pointer="", lanes=(_,)) as value, Sum(pointer="", lanes=()) as end:
                gathered = _gathered(value)
                if gathered and not gathered.lanes[0].scale and not gathered.lanes[0].wrap:
                    return Sum(lanes=(replace(gathered.lanes[0], wrap=_text(end.scalars)),))
        return self._opaque(node)


def _gathered(value: Sum | Mask | None) -> Sum | None:
    """Lanes that start at the numbers that are added to them; None where more than one vector could."""
    match value:
        case Sum(pointer="", scalars=(_, *_), lanes=(Lanes(scale=(), wrap="") as lanes,)):
            return Sum(lanes=(replace(lanes, start=tuple(sorted(lanes.start + value.scalars))),))
        case Sum(scalars=()) | Sum(lanes=()):
            return value
    return None


def _settled(value: Sum) -> Sum:
    """Numbers that count whole blocks move the start of the block's lanes."""
    if len(value.lanes) == 1 and all(value.lanes[0].size in each for each in value.scalars):
        return _gathered(value) or value
    return value


def _names(value: Sum | Mask | None) -> frozenset[str]:
    """The names that numbers of a tile or a mask are made of."""
    lanes = [each for each, _ in value] if isinstance(value, tuple) else value.lanes if value else ()
    words = [word for each in lanes for word in (_text(each.start), *each.scale, each.wrap, each.size)]
    words += (
        [end for _, end in value] if isinstance(value, tuple) else [_text(value.scalars)] if value else []
    )
    return frozenset(re.findall(r"\w+", " ".join(words)))


def _along(value: Sum | Mask | None, axis: int | None) -> Sum | Mask | None:
    if isinstance(value, tuple) and axis is not None:
        return tuple((replace(lanes, axis=axis), end) for lanes, end in value)
    gathered = _gathered(value)
    if gathered is None or gathered.pointer or gathered.scalars or axis is None:
        return None
    return Sum(lanes=tuple(replace(each, axis=axis) for each in gathered.lanes))


def _advanced(before: Sum | Mask | None, added: Sum | Mask | None, turns: Turns) -> Sum | None:
    """What is a block further after each turn, in a turn: before its own step."""
    match before, added:
        case Sum(), Sum(pointer="", scalars=(step,), lanes=()):
            moved = [each for each in before.lanes if step == tuple(sorted((turns.size, *each.scale)))]
            if len(moved) == 1 and not moved[0].start and moved[0].size == turns.size:
                rest = (each for each in before.lanes if each is not moved[0])
                return replace(before, lanes=(replace(moved[0], start=turns.start), *rest))
    return None


def _text(total: Total) -> str:
    return " + ".join(" * ".join(factors) or "1" for factors in total) or "0"


@py.rule(
    Category.ASYNC_COPY, 1.0, "global_latency l1_throughput l2_bandwidth tensor_pipe instruction_issue tail"
)
def persistent_tiles(context: py.TritonContext) -> Iterator[Proposal]:
    """Programs that work on several tiles of a product in turn, which TMA copies."""
    for launched in context.launched_once:
        function, where = launched.function, context.where(launched.function.name)
        values = {name: context.values(bound) for name, bound in launched.constexprs.items()}
        largest = tiles_of(function).largest({name: int(each[0]) for name, each in values.items() if each})
        blocks = context.resolved[0].launches[launched.index].blocks
        free = context.unused("TMA", "make_tensor_descriptor") and len([*py.calls(function, "dot")]) == 1
        tiled = _tiled(context, launched) if free and largest >= LEAST_TILE else None
        module = py.parse(tiled) if tiled else None
        if tiled is None or module is None:
            continue
        kernel = Kernel(tiled, Language.TRITON)
        tiles = replace(context, kernel=kernel, plan=plan_of(kernel), module=module)
        size = PROGRAMS[largest >= 2 * LEAST_TILE]
        for flatten in (largest >= 2 * LEAST_TILE, largest < 2 * LEAST_TILE):
            text = (
                striding(tiles, tiles.launched[launched.index], size, flatten=flatten)
                if blocks > size
                else None
            )
            if text:
                yield Proposal(
                    f"persistent kernel with {size} programs, tiles copied by TMA"
                    f"{', one loop' if flatten else ''}{where}",
                    text,
                    rationale="One thread asks for a whole tile, whose addresses and bounds the hardware computes; a "
                    "grid that fills the device once makes its descriptors once and starts no program late.",
                    expected_effect="Fewer instructions and registers, no tail.",
                    prior=2.0 if flatten == (size == PROGRAMS[1]) else 1.2,
                )


def _descriptor(
    context: py.TritonContext, launched: py.LaunchedFunction, access: Access, accesses: list[Access]
) -> tuple[str, str, str] | None:
    """How a descriptor is made that loads the same, the load's end, and what is 0 where TMA can be used."""
    function, bound = launched.function, {**launched.constexprs, **launched.bound}
    lanes = sorted(access.tile.lanes, key=lambda each: each.axis or 0)
    ends = [_end(context.module, function, each, access, accesses) for each in lanes]
    order = (0, 1) if not lanes[1].scale else (1, 0)
    outer, inner = (lanes[each] for each in order)
    if [each.axis for each in lanes] != [0, 1] or None in ends or inner.scale or not outer.scale:
        return None
    size = DTYPE_BYTES[context.dtype(bound[access.tile.pointer])]
    width = context.values(bound.get(inner.size, inner.size))
    shape, block = (", ".join(str(each[i]) for i in order) for each in (ends, [each.size for each in lanes]))
    base, stride = access.tile.pointer, " * ".join(outer.scale)
    made = f"tl.make_tensor_descriptor({base}, [{shape}], [{stride}, 1], [{block}])"
    kept = {"tl", base, *py.parameters(function)} - (py.names_assigned(function) - {base})
    if width is None or min(width) * size < TMA_BYTES or not py.names_read(ast.parse(made)) <= kept:
        return None
    narrow = ".to(tl.int32)" if "int64" in ast.unparse(function) else ""
    starts = (
        f"({_text(each.start)}){narrow}" if narrow and each.start else _text(each.start)
        for each in (outer, inner)
    )
    remainder = " * ".join([*(f"({bound[each]})" for each in outer.scale), str(size)])
    return (
        made,
        f".load([{', '.join(starts)}]){'.T' if order == (1, 0) else ''}",
        f"{remainder} % {TMA_BYTES}",
    )


def _end(
    module: py.Module, function: ast.FunctionDef, lanes: Lanes, access: Access, accesses: list[Access]
) -> str | None:
    """Where lanes end; None where that isn't clear."""
    limits = [(other, end) for other, end in access.mask if other.axis == lanes.axis]
    match limits:
        case [] if lanes.wrap:
            return lanes.wrap if _dropped(module, function, lanes, access, accesses) else None
        case []:
            return str(UNLIMITED) if lanes.start else lanes.size
        case [(Lanes(scale=(), wrap="") as other, end)] if other.size == lanes.size and not lanes.wrap:
            if other.start == lanes.start:
                return end
            turns = (each for each in access.turns if (each.start, each.size) == (lanes.start, lanes.size))
            return next((each.end for each in turns if not other.start and end in each.remains), None)
    return None


MIXING = "sum max min argmax argmin reduce associative_scan cumsum cumprod sort softmax xor_sum flip gather histogram"
"""What lets a lane of a tile see others."""


def _dropped(
    module: py.Module, function: ast.FunctionDef, lanes: Lanes, access: Access, accesses: list[Access]
) -> bool:
    """Whether what is loaded beyond the end of lanes that wrap around is multiplied, and never stored."""
    if any(py.calls(module.tree, *MIXING.split())) or "atomic" in module.text:
        return False
    if not isinstance(access.statement, ast.Assign) or access.statement.value is not access.call:
        return False
    (name,) = py.names_assigned(access.statement)
    products = [call.args[lanes.axis or 0] for call in py.calls(function, "dot") if len(call.args) > 1]
    reads = [n for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    stores = [each for each in accesses if py.called(each.call) == "store"]
    cut = (lanes.start, lanes.axis, lanes.wrap)
    return (
        len(stores) == sum(1 for _ in py.calls(function, "store"))
        and all(any((o.start, o.axis, end) == cut for o, end in store.mask) for store in stores)
        and all(any(use is each for each in products) for use in reads if use.id == name)
    )


def _tiled(context: py.TritonContext, launched: py.LaunchedFunction) -> str | None:
    """The source with loads through descriptors; None where there are none, or where times are taken without TMA."""
    module, function, plan = context.module, launched.function, context.plan
    plain = launched.bound.keys() - py.names_assigned(function)
    known = {name: Sum(scalars=((),)) for name in plain if context.equal(launched.bound[name], 1)}
    for name, value in py.assigned_once(function).items():
        one = re.fullmatch(r"tl\.program_id\((?:axis=)?(\d)\)(\.to\(tl\.int64\))?", ast.unparse(value))
        if one and context.equal(dict(enumerate(launched.launch.grid)).get(int(one[1]), 0), 1):
            known[name] = Sum()
    pointers = frozenset(name for name, bound in launched.bound.items() if context.is_buffer(bound))
    accesses = _Reader(function, known, pointers).accesses
    loads = (each for each in accesses if py.called(each.call) == "load")
    found = {each: loaded for each in loads if (loaded := _descriptor(context, launched, each, accesses))}
    remainders = {text: context.values(text) for _, _, text in found.values()}
    timed = len(context.task.search_shapes)
    if not found or any(values is None or any(values[:timed]) for values in remainders.values()):
        return None
    odd = [f"({text} == 0)" for text, values in remainders.items() if values and any(values)]
    names = {
        made: f"tiles_{number}"
        for number, made in enumerate(dict.fromkeys(each[0] for each in found.values()))
    }
    blanks = "    " if odd else ""
    lines = [*(["if TMA:"] if odd else []), *(f"{blanks}{name} = {made}" for made, name in names.items())]
    changes = [module.insert_before(function.body[0], "\n".join(lines))]
    for access, (made, load, _) in found.items():
        text = (
            f"({names[made]}{load} if TMA else {module.text_of(access.call)})" if odd else names[made] + load
        )
        changes.append(module.replace(access.call, text))
    if odd:
        changes.append(module.parameter(function, "TMA: tl.constexpr"))
        constexprs = {**launched.constexprs, "TMA": " * ".join(odd)}
        plan = context.with_options(launched.index, constexprs=constexprs)
    return context.written(changes, plan)
