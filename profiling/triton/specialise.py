"""Which specialisations of a Triton kernel its launches need.

Arguments are specialised as Triton's launcher does it: a buffer by its element type, whole numbers as 32 or 64
bits, and both marked where they are multiples of 16, on which wide loads depend; whole numbers that are 1, as the
stride of neighbours is, become constants. Unlike the launcher's, these marks hold for all shapes that times are taken
of, so that a kernel is compiled at most twice for one choice of constexprs, warps and stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mctskernel.core.expression import Number
from mctskernel.core.launch_plan import LaunchPlanError, ResolvedLaunch, ResolvedPlan

MULTIPLE = 16  # the alignment of wide loads, in bytes and in elements

_POINTERS = {
    "bool": "*i1",
    "float16": "*fp16",
    "bfloat16": "*bf16",
    "float32": "*fp32",
    "float64": "*fp64",
    "int8": "*i8",
    "uint8": "*u8",
    "int16": "*i16",
    "int32": "*i32",
    "uint32": "*u32",
    "int64": "*i64",
    "uint64": "*u64",
}
"""Triton's names of pointers to the element types of tensors."""


@dataclass(frozen=True)
class Parameter:
    name: str
    is_constexpr: bool
    has_default: bool = False
    default: Number | bool | None = None


@dataclass(frozen=True)
class Specialisation:
    """One compilation: `types` of all parameters in order, and the positions of multiples of 16 and of ones."""

    function: str
    types: tuple[str, ...]
    constexprs: tuple[tuple[str, Number | bool | None], ...]
    num_warps: int
    num_stages: int
    multiples: frozenset[int]
    num_ctas: int = 1
    maxnreg: int = 0
    ones: frozenset[int] = frozenset()


def specialisations(
    plans: Sequence[ResolvedPlan],
    searched: int,
    kernels: Mapping[str, tuple[Parameter, ...]],
    dtypes: Mapping[str, str],
) -> dict[ResolvedLaunch, Specialisation]:
    """The specialisation that each launch needs. Raises LaunchPlanError."""
    groups: dict[Specialisation, dict[ResolvedLaunch, bool]] = {}
    for index, plan in enumerate(plans):
        buffers = {**dtypes, **{scratch.name: scratch.dtype for scratch in plan.scratch}}
        for launch in plan.launches:
            group = groups.setdefault(_unmarked(launch, kernels, buffers), {})
            group[launch] = group.get(launch, False) or index < searched
    found = {}
    for generic, launches in groups.items():
        timed = [launch for launch, is_searched in launches.items() if is_searched] or list(launches)
        every = [_marks(launch, kernels) for launch in timed]
        marks = [frozenset.intersection(*each) for each in zip(*every, strict=True)]
        marked = replace(generic, multiples=marks[0], ones=marks[1])
        for launch in launches:
            fits = all(mark <= own for mark, own in zip(marks, _marks(launch, kernels), strict=True))
            found[launch] = marked if fits else generic
    return {launch: found[launch] for plan in plans for launch in plan.launches}


def _unmarked(
    launch: ResolvedLaunch, kernels: Mapping[str, tuple[Parameter, ...]], buffers: Mapping[str, str]
) -> Specialisation:
    what = f"The launch of '{launch.kernel}'"
    if launch.kernel not in kernels:
        raise LaunchPlanError(
            f"The launch plan names the kernel '{launch.kernel}', which the source doesn't define "
            f"(@triton.jit functions in it: {', '.join(kernels)})."
        )
    options = launch.triton
    if options is None:
        raise LaunchPlanError(f"{what} is not a launch of a Triton kernel.")
    parameters = kernels[launch.kernel]
    constexprs = _constexprs(dict(options.constexprs), parameters, what)
    plain = [parameter.name for parameter in parameters if not parameter.is_constexpr]
    if len(plain) != len(launch.arguments):
        raise LaunchPlanError(
            f"{what} has {len(launch.arguments)} arguments; the kernel has {len(plain)} parameters that aren't "
            f"constexprs ({', '.join(plain) or 'none'})."
        )
    types = iter([_type(argument, buffers) for argument in launch.arguments])
    return Specialisation(
        launch.kernel,
        tuple("constexpr" if parameter.is_constexpr else next(types) for parameter in parameters),
        constexprs,
        options.num_warps,
        options.num_stages,
        frozenset(),
        options.num_ctas,
        options.maxnreg,
    )


def _constexprs(
    given: Mapping[str, Number], parameters: Sequence[Parameter], what: str
) -> tuple[tuple[str, Number | bool | None], ...]:
    wanted = [parameter for parameter in parameters if parameter.is_constexpr]
    names = [parameter.name for parameter in wanted]
    unknown = next((name for name in given if name not in names), None)
    if unknown is not None:
        raise LaunchPlanError(
            f"{what} gives the constexpr '{unknown}', which the kernel doesn't have "
            f"(it has: {', '.join(names) or 'none'})."
        )
    missing = next((each.name for each in wanted if each.name not in given and not each.has_default), None)
    if missing is not None:
        raise LaunchPlanError(f"{what} gives no value for the constexpr '{missing}'.")
    return tuple((each.name, given.get(each.name, each.default)) for each in wanted)


def _type(argument: str | Number, buffers: Mapping[str, str]) -> str:
    if isinstance(argument, str):
        return _POINTERS[buffers[argument]]
    if isinstance(argument, float):
        return "fp32"
    if -(1 << 31) <= argument < 1 << 31:
        return "i32"
    return "i64" if argument < 1 << 63 else "u64"


def _marks(
    launch: ResolvedLaunch, kernels: Mapping[str, tuple[Parameter, ...]]
) -> tuple[frozenset[int], frozenset[int]]:
    """The positions of parameters whose arguments are multiples of 16, and of those whose arguments are 1."""
    places = [place for place, each in enumerate(kernels[launch.kernel]) if not each.is_constexpr]
    whole = {p: a for p, a in zip(places, launch.arguments, strict=True) if isinstance(a, int)}
    return frozenset(p for p in whole if whole[p] % MULTIPLE == 0), frozenset(
        p for p in whole if whole[p] == 1
    )
