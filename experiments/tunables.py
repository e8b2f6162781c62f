"""The numbers that a kernel can be tuned by: macros in CUDA C++, constants, warps and stages in Triton."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace

from mctskernel.core.documents import DocumentError, parse_toml
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import Launch, LaunchPlanError, plan_of, plan_span
from mctskernel.core.user_errors import MisuseError
from mctskernel.edits.plan_text import with_plan

NUM_WARPS = "num_warps"
NUM_STAGES = "num_stages"
OPTIONS = (NUM_WARPS, NUM_STAGES)


class TunableError(MisuseError, ValueError):
    """A tunable that a kernel doesn't have; the message is a sentence that says which it has."""


def tunables(kernel: Kernel) -> dict[str, int]:
    """The whole numbers that a kernel is written with, by name, in order of definition.

    Macros and constants that are computed from others follow them and are not among these. Of Triton's options, those
    that the plan states as numbers, the same in every launch.
    """
    if kernel.language not in _DEFINITION:
        raise TunableError(
            "A configuration of a search-space cache has no tunables: its parameters are recorded already."
        )
    _, body = _parts(kernel)
    found = {match["name"]: int(match["value"]) for match in _DEFINITION[kernel.language].finditer(body)}
    return {**found, **_options(kernel)}


def with_tunables(kernel: Kernel, values: Mapping[str, int]) -> Kernel:
    """The kernel with other numbers. Raises TunableError for a name that it doesn't have."""
    _check(values, tunables(kernel))
    plan, body = _parts(kernel)
    text = _DEFINITION[kernel.language].sub(
        lambda match: f"{match['before']}{values.get(match['name'], match['value'])}", body
    )
    result = replace(kernel, source=plan + text)
    options = {name: values[name] for name in OPTIONS if name in values}
    return _with_options(result, options) if options else result


_DEFINITION = {
    Language.CUDA: re.compile(
        r"^(?P<before>[ \t]*#[ \t]*define[ \t]+(?P<name>[A-Za-z_]\w*)[ \t]+)(?P<value>\d+)(?=[ \t]*(?://.*)?$)",
        re.MULTILINE,
    ),
    Language.TRITON: re.compile(
        r"^(?P<before>(?P<name>[A-Za-z_]\w*)(?:[ \t]*:[^=\n]+)?[ \t]*=[ \t]*(?:tl\.constexpr\([ \t]*)?)"
        r"(?P<value>\d+)(?=[ \t]*\)?[ \t]*(?:#.*)?$)",
        re.MULTILINE,
    ),
}


def _check(names: Collection[str], known: Collection[str]) -> None:
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise TunableError(f"There is no tunable '{unknown}' (known: {', '.join(known) or 'none'}).")


def _parts(kernel: Kernel) -> tuple[str, str]:
    """The launch plan with all before it, and the code."""
    try:
        _, end = plan_span(kernel)
    except LaunchPlanError:
        end = 0
    return kernel.source[:end], kernel.source[end:]


def _options(kernel: Kernel) -> dict[str, int]:
    if kernel.language is not Language.TRITON:
        return {}
    try:
        start, end = plan_span(kernel)
        launches = parse_toml(kernel.source[start:end])["launch"]
    except (LaunchPlanError, DocumentError, KeyError):
        return {}
    stated = {name: [launch.get(name) for launch in launches] for name in OPTIONS}
    return {
        name: numbers[0]
        for name, numbers in stated.items()
        if isinstance(numbers[0], int) and len(set(numbers)) == 1
    }


def _with_options(kernel: Kernel, options: Mapping[str, int]) -> Kernel:
    def changed(launch: Launch) -> Launch:
        if launch.triton is None:
            return launch
        warps = options.get(NUM_WARPS, launch.triton.num_warps)
        stages = options.get(NUM_STAGES, launch.triton.num_stages)
        return replace(launch, triton=replace(launch.triton, num_warps=warps, num_stages=stages))

    plan = plan_of(kernel)
    return with_plan(kernel, replace(plan, launches=tuple(map(changed, plan.launches))))
