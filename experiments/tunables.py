"""The numbers that a kernel can be tuned by: macros in CUDA C++, constants, warps and stages in Triton."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import plan_of
from mctskernel.core.user_errors import MisuseError
from mctskernel.edits import syntax
from mctskernel.edits.plan_text import with_plan
from mctskernel.edits.triton import module as triton

OPTIONS = ("num_warps", "num_stages")


class TunableError(MisuseError, ValueError):
    """A tunable that a kernel doesn't have; the message is a sentence that says which it has."""


def tunables(kernel: Kernel) -> dict[str, int]:
    """The whole numbers that a kernel's text defines, by name, in order; those computed from others follow them."""
    if kernel.language is Language.CUDA:
        return {each.name: each.value for each in syntax.parse(kernel.source).integer_macros}
    module = triton.parse(kernel.source)
    return {each.name: each.value for each in module.constants} if module is not None else {}


def with_tunables(kernel: Kernel, values: Mapping[str, int]) -> Kernel:
    """The kernel with other numbers, in Triton also of OPTIONS. Raises TunableError for a name that it doesn't have."""
    known = (*tunables(kernel), *(OPTIONS if kernel.language is Language.TRITON else ()))
    if unknown := next((name for name in values if name not in known), None):
        raise TunableError(f"There is no tunable '{unknown}' (known: {', '.join(known) or 'none'}).")
    result = replace(kernel, source=_replaced(kernel, values))
    options: dict[str, Any] = {name: values[name] for name in OPTIONS if name in values}
    if not options:
        return result
    plan = plan_of(result)
    launches = (
        replace(launch, triton=replace(launch.triton, **options)) if launch.triton else launch
        for launch in plan.launches
    )
    return with_plan(result, replace(plan, launches=tuple(launches)))


def _replaced(kernel: Kernel, values: Mapping[str, int]) -> str:
    if kernel.language is Language.CUDA:
        source = syntax.parse(kernel.source)
        found = (each for each in source.integer_macros if each.name in values)
        return syntax.replace(
            source, [syntax.Replacement(each.start, each.end, str(values[each.name])) for each in found]
        )
    module = triton.parse(kernel.source)
    constants = (each for each in (module.constants if module else ()) if each.name in values)
    changes = [triton.Replacement(each.start, each.end, str(values[each.name])) for each in constants]
    return triton.replaced(module, changes) if module else kernel.source
