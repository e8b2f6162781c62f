"""Launch plans written back into a kernel's leading comment or docstring, comments and layout kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tomlkit
from tomlkit.items import AoT, InlineTable, Table

from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import Launch, LaunchPlan, Scratch, plan_of, plan_span


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
        }
    fields["block"] = list(entry.block)
    if entry.shared != 0:
        fields["shared"] = entry.shared
    return {**fields, "args": list(entry.args)}
