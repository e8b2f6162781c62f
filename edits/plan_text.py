"""Launch plans as text: written back with comments and layout kept, and expressions looked into."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import tomlkit
from tomlkit.items import AoT, InlineTable, Table

from mctskernel.core.expression import parse
from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import Extent, Launch, LaunchPlan, Scratch, plan_of, plan_span


def with_plan(kernel: Kernel, plan: LaunchPlan) -> Kernel:
    """The kernel with another plan: only what differs is rewritten. Raises LaunchPlanError if it has none."""
    start, end = plan_span(kernel)
    before = plan_of(kernel)
    document = tomlkit.parse(kernel.source[start:end])
    _rewrite(document, "launch", before.launches, plan.launches)
    _rewrite(document, "scratch", before.scratch, plan.scratch)
    text = tomlkit.dumps(document)
    if not text.endswith("\n"):
        text += "\n"
    return Kernel(kernel.source[:start] + text + kernel.source[end:], kernel.language)


def _rewrite(
    document: tomlkit.TOMLDocument,
    key: str,
    before: Sequence[Launch | Scratch],
    after: Sequence[Launch | Scratch],
) -> None:
    if before == after:
        return
    if len(before) > len(after) or key not in document:
        document.pop(key, None)
        before = ()
        if after:
            document.append(key, tomlkit.aot())
    tables = document.get(key, [])
    for index, entry in enumerate(after):
        if index < len(before):
            _update(tables[index], _fields(before[index]), _fields(entry))
        elif isinstance(tables, AoT):
            table = tomlkit.table()
            _update(table, {}, _fields(entry))
            tables.append(table)


def _update(table: Table | InlineTable, before: dict[str, Any], after: dict[str, Any]) -> None:
    for name, value in after.items():
        if before.get(name) == value:
            continue
        if isinstance(value, dict):
            if name not in table:
                table[name] = tomlkit.inline_table()
            _update(table[name], before.get(name, {}), value)
        else:
            table[name] = value
    for name in before.keys() - after.keys():
        table.remove(name)


def _fields(entry: Launch | Scratch) -> dict[str, Any]:
    if isinstance(entry, Scratch):
        fields: dict[str, Any] = {"name": entry.name, "dtype": entry.dtype, "shape": list(entry.shape)}
        return {**fields, "zero": True} if entry.zero else fields
    fields = {"kernel": entry.kernel, "grid": list(entry.grid)}
    if entry.triton is not None:
        options = entry.triton
        return {
            **fields,
            "args": list(entry.args),
            "constexprs": dict(options.constexprs),
            "num_warps": options.num_warps,
            "num_stages": options.num_stages,
            **({} if options.num_ctas == 1 else {"num_ctas": options.num_ctas}),
            **({} if options.maxnreg == 0 else {"maxnreg": options.maxnreg}),
        }
    fields["block"] = list(entry.block)
    if entry.shared != 0:
        fields["shared"] = entry.shared
    if entry.cluster:
        fields["cluster"] = list(entry.cluster)
    fields |= {name: True for name in ("nonportable_cluster", "programmatic") if getattr(entry, name)}
    return {**fields, "args": list(entry.args)}


def parsed(extent: Extent | float) -> ast.expr:
    """An extent of a plan that has been resolved, so that it is known to be an expression."""
    return parse(str(extent)).body


def ceil_div(extent: Extent) -> tuple[str, str] | None:
    """The two arguments of an extent that is `ceil_div(count, divisor)`."""
    match parsed(extent):
        case ast.Call(func=ast.Name(id="ceil_div"), args=[count, divisor]):
            return ast.unparse(count), ast.unparse(divisor)
    return None


def only_divides(extent: Extent, name: str) -> bool:
    """Whether an extent uses a name, and only in what a `ceil_div` divides by."""
    tree = parsed(extent)
    inside = sum(_uses(divisor, name) for divisor in _divisors(tree))
    return inside > 0 and inside == _uses(tree, name)


def is_or_caps(extent: Extent, name: str) -> bool:
    """Whether an extent is a name, or the smaller of the name and something else."""
    match parsed(extent):
        case ast.Name(id=found):
            return found == name
        case ast.Call(func=ast.Name(id="min"), args=arguments):
            return any(isinstance(argument, ast.Name) and argument.id == name for argument in arguments)
    return False


def _divisors(tree: ast.expr) -> list[ast.expr]:
    return [
        node.args[1]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ceil_div"
    ]


def _uses(tree: ast.expr, name: str) -> int:
    return sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))
