"""Index expressions as polynomials with whole-number coefficients over names.

`row * cols + i`, with `row` defined once as `blockIdx.x * ROWS + threadIdx.y`, expands to
`ROWS*blockIdx.x*cols + cols*threadIdx.y + i`, so that questions such as "what does one more threadIdx.x add
to the address" have an answer that is an expression, or none. What isn't +, - or * (division, calls, loads)
becomes an opaque atom that remembers the names inside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tree_sitter import Node

from mctskernel.edits import syntax as cu

MAX_TERMS = 64


@dataclass(frozen=True, order=True)
class Atom:
    """A name, or an opaque expression's text with the names that it depends on."""

    text: str
    names: frozenset[str] = field(compare=False)


Monomial = tuple[Atom, ...]


@dataclass(frozen=True)
class Polynomial:
    """A sum of coefficients times products of atoms; the empty product is the constant."""

    terms: Mapping[Monomial, int]

    @property
    def constant(self) -> int | None:
        """The value, if no name is left."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for monomial in self.terms for atom in monomial for name in atom.names)

    def coefficient(self, name: str) -> Polynomial | None:
        """What one more of `name` adds; None if it enters otherwise than linearly or isn't visible."""
        terms: dict[Monomial, int] = {}
        for monomial, factor in self.terms.items():
            using = [atom for atom in monomial if name in atom.names]
            if not using:
                continue
            if len(using) > 1 or using[0].text != name:
                return None
            terms[tuple(atom for atom in monomial if atom is not using[0])] = factor
        return Polynomial(terms)

    def without(self, name: str) -> Polynomial:
        """The terms that don't depend on `name`."""
        return Polynomial({m: f for m, f in self.terms.items() if not any(name in a.names for a in m)})

    def at(self, values: Mapping[str, int]) -> Polynomial:
        """The polynomial with names replaced by numbers; opaque atoms stay."""
        result: dict[Monomial, int] = {}
        for monomial, factor in self.terms.items():
            rest = tuple(atom for atom in monomial if atom.text not in values)
            known = math.prod(values[atom.text] for atom in monomial if atom.text in values)
            _add(result, rest, factor * known)
        return Polynomial(result)

    def __str__(self) -> str:
        parts = [
            "*".join(([str(f)] if f != 1 or not m else []) + [_quoted(atom) for atom in m])
            for m, f in sorted(self.terms.items())
        ]
        return " + ".join(parts) or "0"


def polynomial(node: Node, definitions: Mapping[str, Node] | None = None) -> Polynomial:
    """Expand an integer expression; `definitions` (see there) are substituted for their names.

    Casts and parentheses are looked through: like the index arithmetic that it reads, this assumes that
    nothing overflows. An expression that grows past MAX_TERMS becomes one opaque atom.
    """
    known = definitions or {}
    result = _expand(node, known, 0)
    return result if len(result.terms) <= MAX_TERMS else _opaque(node, known)


def definitions(function: cu.Function) -> dict[str, Node]:
    """Names with one declaration that never changes; a loop's variable is stable within its own loop."""
    assigned = cu.assigned_names(function.body)
    for node in cu.walk(function.body, "for_statement"):
        loop = cu.as_loop(node)
        if loop is not None:
            assigned[loop.variable] = assigned.get(loop.variable, 0) - 1
    changing = {name for name, count in assigned.items() if count > 0}
    loop_variables = {loop.variable for loop in function.loops}
    seen: dict[str, int] = {}
    for declaration in function.declarations:
        seen[declaration.name] = seen.get(declaration.name, 0) + 1
    found: dict[str, Node] = {}
    for declaration in function.declarations:
        value = declaration.value
        if value is None or declaration.extents or declaration.pointer or seen[declaration.name] > 1:
            continue
        if declaration.name in changing | loop_variables or cu.identifiers(value) & changing:
            continue
        found[declaration.name] = value
    return found


def _expand(node: Node, known: Mapping[str, Node], depth: int) -> Polynomial:
    if depth > 40:
        return _opaque(node, known)
    inner = node.child_by_field_name("value" if node.type == "cast_expression" else "argument")
    match node.type:
        case "number_literal":
            value = cu.whole_number(cu.text_of(node))
            return _opaque(node, known) if value is None else Polynomial({(): value} if value else {})
        case "identifier" if cu.text_of(node) in known:
            return _expand(known[cu.text_of(node)], known, depth + 1)
        case "identifier" | "field_expression":
            name = cu.squeezed(node)
            return Polynomial({(Atom(name, frozenset({name})),): 1})
        case "parenthesized_expression" if node.named_child_count == 1:
            return _expand(node.named_children[0], known, depth + 1)
        case "cast_expression" if (sum_ := _misread_sum(node)) is not None:
            return _expand(sum_, known, depth + 1)
        case "cast_expression" if inner is not None:
            return _expand(inner, known, depth + 1)
        case "unary_expression" if inner is not None and cu.text_of(node.children[0]) == "-":
            return _times(Polynomial({(): -1}), _expand(inner, known, depth + 1))
        case "binary_expression":
            return _binary(node, known, depth)
    return _opaque(node, known)


def _misread_sum(node: Node) -> Node | None:
    """What `(a * (b)) + c` means, which the grammar takes for a cast of `+c` to pointers to something called `a`."""
    kind, value = node.child_by_field_name("type"), node.child_by_field_name("value")
    if kind is None or value is None or kind.child_by_field_name("declarator") is None:
        return None
    # In double parentheses the grammar takes the same text for an expression.
    meant = cu.parse(f"void f() {{ int sum = (({cu.text_of(kind)})) {cu.text_of(value)}; }}").root
    found = next(cu.walk(meant, "binary_expression"), None)
    return found if found is not None and cu.text_of(found).startswith("((") else None


def _binary(node: Node, known: Mapping[str, Node], depth: int) -> Polynomial:
    left, sign, right = cu.operands(node) or (node, "", node)
    if sign not in {"+", "-", "*", "<<"}:
        return _opaque(node, known)
    a, b = _expand(left, known, depth + 1), _expand(right, known, depth + 1)
    if sign == "<<":
        shift = b.constant
        if shift is None or not 0 <= shift < 32:
            return _opaque(node, known)
        return _times(a, Polynomial({(): 1 << shift}))
    if sign == "*":
        if len(a.terms) * len(b.terms) > MAX_TERMS:
            return _opaque(node, known)
        return _times(a, b)
    result = dict(a.terms)
    for monomial, factor in b.terms.items():
        _add(result, monomial, factor if sign == "+" else -factor)
    return Polynomial(result)


def _times(a: Polynomial, b: Polynomial) -> Polynomial:
    result: dict[Monomial, int] = {}
    for left, f in a.terms.items():
        for right, g in b.terms.items():
            _add(result, tuple(sorted(left + right)), f * g)
    return Polynomial(result)


def _add(terms: dict[Monomial, int], monomial: Monomial, factor: int) -> None:
    total = terms.get(monomial, 0) + factor
    if total:
        terms[monomial] = total
    else:
        terms.pop(monomial, None)


def _opaque(node: Node, known: Mapping[str, Node]) -> Polynomial:
    text = " ".join(cu.text_of(node).split())
    return Polynomial({(Atom(text, _dependencies(node, known, 0)),): 1})


def _dependencies(node: Node, known: Mapping[str, Node], depth: int) -> frozenset[str]:
    names: set[str] = set()
    for name in cu.identifiers(node):
        if name in known and depth < 40:
            names |= _dependencies(known[name], known, depth + 1)
        names.add(name)
    return frozenset(names)


def _quoted(atom: Atom) -> str:
    return atom.text if atom.names == {atom.text} else f"({atom.text})"
