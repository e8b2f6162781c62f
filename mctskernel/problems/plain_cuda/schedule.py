"""The kernels of a traced function, and the launch plan that runs them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import sympy
from torch.fx import Node

from mctskernel.core.launch_plan import MAX_LAUNCHES, MAX_PLAN_CHARACTERS
from mctskernel.core.task import Shape
from mctskernel.problems.plain_cuda import (  # noqa: F401 - they fill the table of rules
    PlainCudaError,
    elementwise,
    gathers,
    products,
    views,
)
from mctskernel.problems.plain_cuda.body import Body, Function, Given, Index, Place, numbers
from mctskernel.problems.plain_cuda.element_types import (
    computed_type,
    converted,
    header,
    literal,
    stored_type,
)
from mctskernel.problems.plain_cuda.extents import ONE, count_in_cpp, count_in_plan, in_plan, product
from mctskernel.problems.plain_cuda.recurrent import MOST_BLOCKS, layer_kernel
from mctskernel.problems.plain_cuda.reductions import (
    accumulated,
    finished,
    part_of_parts,
    part_of_reduction,
    reduced_axes,
    splits,
)
from mctskernel.problems.plain_cuda.repeated import Texts, merged, renamed
from mctskernel.problems.plain_cuda.rules import (
    Kind,
    Rule,
    argument,
    axis,
    behind,
    is_tensor,
    operator_name,
    rule_of,
    tensors,
)
from mctskernel.problems.plain_cuda.tracing import Traced
from mctskernel.problems.plain_cuda.views import keeps_order

BLOCK = 256
"""Threads in a block."""

LARGE = 1 << 30
"""Buffers of more elements are indexed by 64-bit numbers."""

MOST_CONSTANTS = 1 << 10
"""Elements of a tensor that may stand in a kernel's text."""

MANY_BUFFERS = 16
"""Of scratch memory, beyond which those of one size are shared: what is still in the L2 cache is written faster."""

FEW = 1 << 10
LONG = 1 << 14
THREADS = 1 << 14
"""A reduction to at most FEW results of at least LONG elements each uses about THREADS threads."""

_AXES: Mapping[int, tuple[str, ...]] = {
    2: ("row", "col"),
    3: ("batch", "row", "col"),
    4: ("image", "channel", "row", "col"),
    5: ("image", "channel", "depth", "row", "col"),
}

_RESERVED = frozenset(
    re.findall(
        r"\w+",
        """alignas alignof and asm auto bool break case catch char class const constexpr continue decltype default
        delete do double else enum explicit export extern false float for friend goto half if inline int long mutable
        namespace new noexcept not nullptr operator or private protected public register requires return short signed
        sizeof static struct switch template this throw true try typedef typeid typename union unsigned using virtual
        void volatile while xor BLOCK blockIdx blockDim threadIdx gridDim warpSize max min abs y0 y1 j0 j1 sqrtf rsqrtf
        expf logf powf fabsf floorf ceilf fmaxf fminf tanhf erff""",
    )
)
"""Keywords of C++ and CUDA, and functions that kernels call."""

_Emit = Callable[[Body, Index], str]
"""Writes the code of a thread, and returns the value to store, or an empty text if it stored it itself."""


@dataclass(frozen=True)
class Job:
    """A kernel with a thread for each index over `space`, which fills `place`.

    `parts` is a buffer that it reduces. What is `given` comes from there.
    """

    node: Node
    place: Place
    space: tuple[sympy.Expr, ...]
    emit: _Emit
    parts: str = ""
    given: Mapping[Node, Given] | None = None


class Group(Protocol):
    """Nodes of a graph in order, of which only the last is stored."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that would each have a plain kernel."""

    def kernels(self, schedule: Schedule, place: Place) -> Iterator[tuple[str, str]]:
        """The texts of the kernels that fill a buffer with the last node, and their launches."""


class Templates(NamedTuple):
    """What writes the kernels of groups of nodes, in place of a plain kernel for each.

    `cut(order, kept, traced)` has the kept nodes, and others that had better be stored, in order, and
    `groups(kept, outputs, traced)` groups without a node in common. `names` are variables and functions of kernels.
    """

    cut: Callable[[Sequence[Node], Sequence[Node], Traced], list[Node]]
    groups: Callable[[Sequence[Node], Collection[Node], Traced], tuple[Group, ...]]
    names: frozenset[str]


class Schedule:
    """The kernels of one traced function, and the names and buffers so far."""

    def __init__(
        self,
        traced: Traced,
        inputs: Sequence[str],
        outputs: Sequence[str],
        sizes: Shape,
        templates: Templates | None = None,
    ) -> None:
        self._traced = traced
        self._templates = templates
        self._sizes = sizes
        given = (*sizes, *outputs, *inputs)
        reserved = _RESERVED | templates.names if templates else _RESERVED
        self._taken = {*given, *reserved}
        self._names = {name: self.fresh(name) if name in reserved else name for name in given}
        self._results = list(zip(outputs, traced.outputs, strict=True))
        self.places = {
            node: self.place(name, node) for node, name in traced.inputs.items() if is_tensor(node)
        }
        self._scratch: list[Place] = []
        self._maps: list[str] = []
        self._headers: set[str] = set()
        self._definitions: dict[str, None] = {}
        self._constants: dict[Node, str] = {}
        self._zeroed: set[str] = set()
        self._macros: dict[str, int] = {}
        self._required: list[str] = []

    def text(self) -> str:
        kernels = list(self._kernels())
        if len(kernels) > MAX_LAUNCHES:
            raise PlainCudaError(
                f"This function needs {len(kernels)} kernels; a launch plan has at most {MAX_LAUNCHES}."
            )
        made, names = merged(Texts(list(self._definitions), kernels, self._macros))
        kernels = list(made.kernels)
        plan = self._plan([launch for _, launch in kernels], names)
        if len(plan) > MAX_PLAN_CHARACTERS:
            raise PlainCudaError(
                f"The launch plan of {len(kernels)} kernels has {len(plan)} characters; at most {MAX_PLAN_CHARACTERS} "
                "are allowed."
            )
        text = "\n\n".join((*made.definitions, *(text for text, _ in kernels if text)))
        if "CUDART_" in text:
            self._headers.add("math_constants.h")
        includes = "".join(f"#include <{each}>\n" for each in sorted(self._headers))
        block = {"BLOCK": BLOCK} if "BLOCK)" in plan else {}
        macros = "".join(f"#define {name} {value}\n" for name, value in {**made.macros, **block}.items())
        required = "".join(
            dict.fromkeys(f"static_assert({renamed(each, names)});\n" for each in self._required)
        )
        moved = ", ".join(self._traced.moved)
        about = f"# {moved} (algebra that torch.compile doesn't do)\n" if moved else ""
        return f"/*\n{about}{plan}*/\n{includes}\n{macros}{required}\n{text}\n"

    def _plan(self, launches: list[str], names: Mapping[str, str]) -> str:
        """The launches, and their scratch buffers; where those are many, later results take earlier ones' places.

        `names` are macros that stand for others.
        """
        several = len(self._scratch) > MANY_BUFFERS
        last = {name: at for at, each in enumerate(launches) for name in re.findall(r'"(\w+)"', each)}
        free: dict[tuple[Any, ...], list[tuple[int, str]]] = {}
        kept: list[str] = []
        shared: dict[str, str] = {}
        first = {
            name: -at for at, each in enumerate(reversed(launches)) for name in re.findall(r'"(\w+)"', each)
        }
        for place in sorted(self._scratch, key=lambda each: first.get(each.name, 0)):
            is_zero = place.name in self._zeroed
            same = free.setdefault((place.dtype, place.extents, is_zero and place.name), [])
            begins = first.get(place.name, 0) + len(launches) - 1
            found = next((each for each in same if each[0] < begins), None) if several else None
            if found is None:
                kept.append(_scratch(place, zero=is_zero))
            else:
                same.remove(found)
                shared[place.name] = found[1]
            same.append((last.get(place.name, len(launches)), shared.get(place.name, place.name)))
        text = "\n".join((*launches, *self._maps))
        text = re.sub(r'"(\w+)"', lambda word: f'"{shared.get(word[1], word[1])}"', text)
        return "\n".join((text, *(renamed(each, names) for each in kept)))

    def include(self, name: str) -> None:
        self._headers.add(name)

    def macro(self, name: str, value: int, *allowed: int) -> str:
        """Define a macro that edits may change, to one of some values if such are given; returns what it is called."""
        found = self.fresh(name)
        self._macros[found] = value
        if allowed:
            self.require(" || ".join(f"{found} == {each}" for each in allowed))
        return found

    def require(self, condition: str) -> None:
        """Say what must hold of macros."""
        self._required.append(condition)

    def add_scratch(self, place: Place, *, zero: bool = False) -> None:
        """Give a buffer for intermediate results memory, filled with zeros or not."""
        self._scratch.append(place)
        if zero:
            self._zeroed.add(place.name)

    def add_tensor_map(
        self, place: Place, shape: Sequence[sympy.Expr], box: Sequence[int | str], *, tf32: bool = False
    ) -> str:
        """Have a swizzled tensor map of a buffer with these axes, zeros where TMA can't read it; returns its name."""
        name = self.fresh(f"{place.name}_map")
        self._maps.append(
            f'[[tensor_map]]\nname = "{name}"\ntensor = "{place.name}"\nbox = {list(box)}\n'
            f"shape = [{_extents(shape)}]\nswizzle = 128\noptional = true\n" + "tf32 = true\n" * tf32
        )
        return name

    def _kernels(self) -> Iterator[tuple[str, str]]:
        """The kernels in order, and their launches.

        An output that is only a view of something gets a kernel that copies it.
        """
        order = ordered(self._traced.outputs)
        kept = kept_nodes(order, self._traced.outputs)
        if self._templates:
            kept = self._templates.cut(order, kept, self._traced)
        names: dict[Node, str] = {}
        for name, node in self._results:
            if (found := written_flat(node, kept)) is not None:
                names.setdefault(found, name)
        groups = self._templates.groups(kept, names, self._traced) if self._templates else ()
        last = {group.nodes[-1]: group for group in groups}
        inner = {node for group in groups for node in group.nodes[:-1]}
        for node in kept:
            if node in inner:
                continue
            place = self.place(names.get(node) or self.fresh(node.name), node)
            if node not in names:
                self._scratch.append(place)
            if node in last:
                yield from last[node].kernels(self, place)
            else:
                yield from self._plain(node, place)
            self.places[node] = place
        for name, node in self._results:
            if name not in names.values():
                place = self.place(name, node)
                yield self.kernel(self.whole(node, place))

    def _plain(self, node: Node, place: Place) -> Iterator[tuple[str, str]]:
        if rule_of(node).kind is Kind.RECURRENT:
            yield layer_kernel(self, node, place, MOST_BLOCKS if self._templates else 1)
        else:
            yield from map(self.kernel, self._jobs_of(node, place))

    def _jobs_of(self, node: Node, place: Place) -> Iterator[Job]:
        """One kernel for a node, two for one that writes by indices, or three for a large reduction to few results."""
        rule = rule_of(node)
        parts = self._parts(node, place)
        if parts > 1:
            yield from self._in_parts(node, place, parts)
        elif rule.kind is Kind.WHOLE_ROW:
            dim = axis(node, argument(node, "dim"))
            space = (*place.extents[:dim], ONE, *place.extents[dim + 1 :]) if place.extents else ()
            yield Job(node, place, space, lambda body, index: rule.compute(body, node, index))
        elif rule.kind is Kind.SCATTERED:
            if function := gathers.atomic_of(node)[1]:
                self.define(function)
            before = argument(node, "self")
            yield Job(node, place, place.extents, lambda body, index: body.read(before, index))
            space = self.place("", argument(node, "index")).extents
            yield Job(node, place, space, lambda body, index: rule.compute(body, node, index))
        else:
            yield self.whole(node, place)

    def _in_parts(self, node: Node, place: Place, parts: int) -> Iterator[Job]:
        """A reduction in three kernels: by many threads, of their results by fewer, and by one for each result."""
        fewer = 1 << (parts.bit_length() - 1) // 2
        first, second = (
            Place(self.fresh(f"{node.name}_parts"), accumulated(node), (*place.extents, sympy.Integer(count)))
            for count in (parts, fewer)
        )
        self._scratch += [first, second]

        def shared(body: Body, at: Index) -> str:
            return part_of_parts(body, node, at[:-1], first, first=at[-1], parts=fewer)

        def last(body: Body, at: Index) -> str:
            return finished(body, node, part_of_parts(body, node, at, second))

        yield Job(node, first, first.extents, lambda body, at: part_of_reduction(body, node, at, parts))
        yield Job(node, second, second.extents, shared, parts=first.name)
        yield Job(node, place, place.extents, last, parts=second.name)

    def whole(self, node: Node, place: Place, given: Mapping[Node, Given] | None = None) -> Job:
        """A kernel with a thread for each element."""

        def emit(body: Body, index: Index) -> str:
            return converted(body.read(node, index), numbers(node), place.dtype)

        return Job(node, place, place.extents, emit, given=given)

    def _parts(self, node: Node, place: Place) -> int:
        if not splits(node):
            return 1
        source = tensors(node)[0]
        extents = self.place("", source).extents
        count = self._traced.estimate(product([extents[dim] for dim in reduced_axes(node)]))
        results = max(self._traced.estimate(product(place.extents)), 1)
        if results > FEW or count < LONG:
            return 1
        return 1 << max(int(THREADS / results), 2).bit_length() - 1

    # A kernel

    def kernel(self, job: Job) -> tuple[str, str]:
        """The text of a plain kernel, and its launch."""
        name = self.fresh(f"{operator_name(job.node).split('.')[-1].strip('_')}_kernel")
        body = self._emitted(job, "int")
        if any(self.is_large(each) for each in body.used):
            body = self._emitted(job, "long long")
        inside, bound = body.text(), count_in_cpp(job.space)
        about = f"{operator_name(job.node)} of {job.parts}" if job.parts else self.described(job.node)
        first = "(long long)blockIdx.x" if body.index_type == "long long" else "blockIdx.x"
        text = (
            f"    {body.index_type} {body.thread} = {first} * blockDim.x + threadIdx.x;\n"
            f"    if ({body.thread} < {bound}) {{\n{inside}\n    }}"
        )
        grid = f"ceil_div({count_in_plan(job.space)}, BLOCK)"
        made = Function(name, about, text, tuple(body.reads.values()), job.place)
        return self.function(made), self.launch(made, grid, "BLOCK")

    def estimate(self, extents: Sequence[sympy.Expr]) -> int:
        """The number of elements at typical sizes."""
        macros = {
            sympy.Symbol(name, integer=True, positive=True): value for name, value in self._macros.items()
        }
        return int(self._traced.estimate(sympy.sympify(product(extents).xreplace(macros))))

    def described(self, node: Node) -> str:
        """The operators of a kernel, in order."""
        return described(node, self.places)

    def is_large(self, place: Place) -> bool:
        """Whether elements of a buffer need 64-bit indices."""
        return self.estimate(place.extents) > LARGE

    def function(self, made: Function) -> str:
        """The text of a `__global__` function."""
        sources, dimensions = self._arguments(made)
        self._headers |= {header(each.dtype) for each in (*sources, *made.written)} - {""}
        restrict = " __restrict__" if made.qualifiers else ""
        parameters = [
            *(f"const {stored_type(each.dtype)}*{restrict} {self.parameter(each.name)}" for each in sources),
            *(f"{stored_type(each.dtype)}*{restrict} {self.parameter(each.name)}" for each in made.written),
            *(parameter for parameter, _ in made.given),
            *(f"int {self.parameter(each)}" for each in dimensions),
        ]
        head = f'extern "C" __global__ void {made.qualifiers}{made.name}('
        return f"// {made.about}\n{head}{_wrapped(parameters, len(head))}) {{\n{made.text}\n}}"

    def launch(self, made: Function, grid: str, block: str, shared: str = "", cluster: str = "") -> str:
        sources, dimensions = self._arguments(made)
        buffers = (s.name for s in (*sources, *made.written))
        args = ", ".join(f'"{each}"' for each in (*buffers, *(given for _, given in made.given), *dimensions))
        shared = f'shared = "{shared}"\n' if shared else ""
        shared += f'cluster = ["{cluster}"]\n' if cluster else ""
        return f'[[launch]]\nkernel = "{made.name}"\ngrid = ["{grid}"]\nblock = ["{block}"]\n{shared}args = [{args}]\n'

    def _arguments(self, made: Function) -> tuple[list[Place], list[str]]:
        """The buffers that a function reads, and the dimensions that it names."""
        words = set(re.findall(r"[A-Za-z_]\w*", made.text))
        return (
            [each for each in made.reads if self.parameter(each.name) in words],
            [each for each in self._sizes if self._names[each] in words],
        )

    def _emitted(self, job: Job, index_type: str) -> Body:
        body = self.body(job.place, index_type, job.given)
        rank = len(job.space)
        names = _AXES.get(rank, tuple(f"i{dim}" for dim in range(rank))) if rank > 1 else ()
        value = job.emit(body, body.unflat(body.thread, job.space, names))
        if value:
            body.store(job.place, body.unflat(body.thread, job.space, names), value)
        return body

    def body(
        self,
        target: Place,
        index_type: str = "int",
        given: Mapping[Node, Given] | None = None,
        depth: int = 2,
    ) -> Body:
        """An empty body of a kernel that fills a buffer."""
        return Body(
            places=self.places,
            compute=self._compute,
            expression=self._traced.expression,
            parameter=self.parameter,
            index_type=index_type,
            taken=self._taken,
            target=target,
            given=given,
            depth=depth,
            include=self.include if self._templates else None,
        )

    def _compute(self, body: Body, node: Node, index: Index) -> str:
        if node.op != "get_attr":
            return rule_of(node).compute(body, node, index)
        value = self._traced.constants[node]
        if value.numel() == 1:
            return literal(value.item(), value.dtype)
        if value.numel() > MOST_CONSTANTS:
            raise PlainCudaError(
                f"This function uses a constant tensor of {value.numel()} elements; make it an input."
            )
        if node not in self._constants:
            name = self._constants[node] = self.fresh("constants")
            values = ", ".join(literal(each, value.dtype) for each in value.flatten().tolist())
            self.define(f"__constant__ {computed_type(value.dtype)} {name}[] = {{{values}}};")
        return f"{self._constants[node]}[{body.flat(index, body.extents(node))}]"

    def parameter(self, name: str) -> str:
        """What a buffer or dimension is called in kernels."""
        return self._names.get(name, name)

    def place(self, name: str, node: Node) -> Place:
        """A buffer for a node's elements."""
        extents = tuple(self._traced.expression(size) for size in node.meta["val"].shape)
        return Place(name, numbers(node), extents)

    def define(self, text: str) -> None:
        """Put a text before all kernels, once."""
        self._definitions[text] = None

    def fresh(self, name: str) -> str:
        number, found = 1, name
        while found in self._taken:
            number += 1
            found = f"{name}_{number}"
        self._taken.add(found)
        return found


def described(node: Node, places: Mapping[Node, Place]) -> str:
    """The operators of a kernel, in order."""
    found: dict[str, None] = {}
    seen: set[Node] = set()

    def visit(each: Node) -> None:
        if each.op == "call_function" and each not in seen and (each is node or each not in places):
            seen.add(each)
            for source in tensors(each):
                visit(source)
            found[operator_name(each)] = None

    visit(node)
    return ", ".join(found) or "a copy"


def _wrapped(parameters: Sequence[str], start: int) -> str:
    """Parameters on lines of at most 110 characters."""
    lines, length = [""], start
    for number, each in enumerate(parameters):
        text = each + (", " if number < len(parameters) - 1 else "")
        if length + len(text) > _LINE:
            lines[-1] = lines[-1].rstrip()
            lines.append("")
            length = _HANGING
        lines[-1] += text
        length += len(text)
    return f"\n{' ' * _HANGING}".join(lines)


_LINE = 110
_HANGING = 8


def _scratch(place: Place, *, zero: bool) -> str:
    dtype, shape = str(place.dtype).removeprefix("torch."), _extents(place.extents) or "1"
    return (
        f'[[scratch]]\nname = "{place.name}"\ndtype = "{dtype}"\nshape = [{shape}]\n' + "zero = true\n" * zero
    )


def _extents(extents: Sequence[sympy.Expr]) -> str:
    return ", ".join(str(e) if isinstance(e, int) else f'"{e}"' for e in map(in_plan, extents))


HEAVIEST, HEAVIEST_SHARED = 256, 32
"""Up to so many operators are computed where their result is read, rather than stored, by one operator or several."""


def ordered(outputs: Sequence[Node]) -> list[Node]:
    """All tensor nodes that outputs depend on, in topological order."""
    needed = set(behind(outputs))
    return [node for node in outputs[0].graph.nodes if node in needed]


def kept_nodes(order: Sequence[Node], outputs: Collection[Node]) -> list[Node]:
    """The nodes that get a kernel, in order. Raises PlainCudaError.

    They are those with many operators per element, those whose elements are read repeatedly, and the outputs.
    """
    rules = {node: rule_of(node) for node in order if node.op == "call_function"}
    kept = {node for node, each in rules.items() if each.kind not in {Kind.VIEW, Kind.ELEMENT}}
    # What an element takes: operators, and the views that they are behind, as the same may be read in several places.
    weights: dict[Node, frozenset[tuple[Node, ...]]] = dict.fromkeys(order, frozenset())
    for node, rule in rules.items():
        behind = frozenset[tuple[Node, ...]]().union(
            *(weights[each] for each in tensors(node) if each not in kept)
        )
        if rule.kind is Kind.VIEW:
            behind = frozenset((node, *each) for each in behind)
        elif rule.kind is Kind.ELEMENT and "_to_copy" not in str(node.target):
            behind |= {(node,)}
        weights[node] = behind
        if len(behind) > (HEAVIEST if len(node.users) == 1 else HEAVIEST_SHARED):
            kept.add(node)
        if rule.repeats:
            repeated = [_worth_keeping(source, rules, weights, kept) for source in tensors(node)]
            kept |= {each for each in repeated if each is not None}
    kept |= {
        _behind(node) for node in outputs if node in rules and rules[_behind(node)].kind is not Kind.VIEW
    }
    return [node for node in order if node in kept]


def written_flat(node: Node, kept: Collection[Node]) -> Node | None:
    """The kept node with the same elements in the same order as an output, or None."""
    while node not in kept:
        if not keeps_order(node):
            return None
        (node,) = tensors(node)
    return node


def _behind(node: Node) -> Node:
    """The computed node with the same elements in the same order as an output."""
    found = node
    while keeps_order(found):
        (found,) = tensors(found)
    return found if found.op == "call_function" else node


def _worth_keeping(
    node: Node, rules: Mapping[Node, Rule], weights: Mapping[Node, Collection[Any]], kept: Collection[Node]
) -> Node | None:
    """The node behind views that should be stored because its elements are read repeatedly."""
    while node in rules and node not in kept:
        if rules[node].kind is not Kind.VIEW:
            return node if weights[node] else None
        sources = tensors(node)
        if not sources:
            return None
        node = sources[0]
    return None
