"""Whether a module's source is refused unrun, its outputs are right, and how much faster it is than the reference."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mctskernel.core.dtypes import is_floating
from mctskernel.core.evaluation import Check, Guard, Outcome, Timing
from mctskernel.core.resampling import percentile_interval
from mctskernel.core.task import Array, Tolerance
from mctskernel.profiling.comparison import Deviation, compare
from mctskernel.profiling.pytorch.client import ModuleError, Round
from mctskernel.profiling.pytorch.memory import Snapshot
from mctskernel.profiling.pytorch.protocol import TensorSpec, arrays

TOLERANCES = {
    "float64": Tolerance(1e-12, 1e-13, 64.0),
    "float32": Tolerance(1e-5, 1e-6, 64.0),
    "float16": Tolerance(5.2e-4, 1e-6, 16.0),
    "bfloat16": Tolerance(4.1e-3, 1e-6, 16.0),
    "float8_e4m3fn": Tolerance(6.6e-2, 1e-6, 16.0),
    "float8_e5m2": Tolerance(1.3e-1, 1e-6, 16.0),
}
"""One rounding to 16 or 8 bits, or sums of some thousand 32-bit floats."""

FACTOR = 4.0
"""How many times the plain reference's own error an element may be off, where that is more than the tolerance."""

WIDENED = 8.0
"""How many times the tolerance holds of widened inputs, as where a sum in order loses small terms to a large one."""

RESAMPLES = 1000
SLOWED = 0.9
"""Below this ratio of the baseline's times, before and beside the candidate, the candidate counts as disturbing it."""

MAX_SOURCE_CHARACTERS = 1_000_000

_KERNEL_MAKERS = frozenset(
    {"load_inline", "jit", "RawKernel", "RawModule", "ElementwiseKernel", "compile_ptx"}
)

LABEL = "as given"  # the shape of modules' checks and times: their inputs are the reference's own


def check_source(source: str, *, own_kernels: bool) -> None:
    """Raise ModuleError for a source that is certainly refused, unrun; one that passes may hide anything."""
    if len(source) > MAX_SOURCE_CHARACTERS:
        message = f"The source has {len(source)} characters; the limit is {MAX_SOURCE_CHARACTERS}."
        raise ModuleError(Outcome.REJECTED, message, guard=Guard.SOURCE_RULES)
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        message = f"The source is not Python: {error}"
        raise ModuleError(Outcome.BUILD_ERROR, message, guard=Guard.COMPILER) from error
    if own_kernels and (message := _without_own_kernel(tree)):
        raise ModuleError(Outcome.REJECTED, message, guard=Guard.FOREIGN_CALLS)


def failed(message: str, seed: int, guard: Guard, error: float = float("inf")) -> Check:
    return Check(LABEL, seed, passed=False, error=error, message=message, guard=guard)


def check_call(drawn: Round, snapshot: Snapshot, seed: int) -> Check:
    """The check of what a call left in the memory."""
    if not snapshot.settled:
        message = "The outputs still changed after the module's process said that it was done."
        return failed(message, seed, Guard.TIMED_OUTPUTS)
    check = check_outputs(drawn, snapshot.outputs, seed)
    if check.passed and not drawn.changed and not np.array_equal(snapshot.inputs, drawn.inputs.content):
        return failed("An input was changed in place.", seed, Guard.UNTOUCHED_INPUTS)
    return check


def check_outputs(drawn: Round, outputs: Array, seed: int) -> Check:
    worst = 0.0
    wanted = drawn.plain.structure.tensors
    truths = arrays(drawn.truth.content, drawn.truth.structure.tensors)
    for number, (spec, actual, truth, plain) in enumerate(
        zip(wanted, arrays(outputs, wanted), truths, arrays(drawn.plain.content, wanted), strict=True)
    ):
        comparison = compare_tensor(spec, actual, truth, plain, WIDENED if drawn.widened else 1.0)
        if not comparison.passed:
            unwritten = "never written" in comparison.message
            return failed(
                f"Output {number} ({spec}) is wrong: {comparison.message}",
                seed,
                Guard.POISON if unwritten else Guard.COMPARISON,
                comparison.error,
            )
        worst = max(worst, comparison.error)
    return Check(LABEL, seed, passed=True, error=worst)


def compare_tensor(
    spec: TensorSpec, actual: Array, truth: Array, plain: Array, factor: float = 1.0
) -> Deviation:
    """One output against the reference in 64-bit floats, with the plain reference's own error as a yardstick."""
    if spec.numpy.kind == "c":
        real = TensorSpec({"complex64": "float32", "complex128": "float64"}[spec.dtype], (*spec.shape, 2))
        ours, theirs, other = (
            each.astype(kind).reshape(-1).view(part).reshape(real.shape)
            for each, kind, part in (
                (actual, spec.numpy, real.numpy),
                (truth, np.complex128, np.float64),
                (plain, spec.numpy, real.numpy),
            )
        )
        return compare_tensor(real, ours, theirs, other, factor)
    if not is_floating(spec.numpy):
        bits = np.dtype(f"u{spec.numpy.itemsize}")
        # Where 64-bit floats decide otherwise, as in the index of a largest value, the plain answer is as good.
        ours, theirs, other = (each.astype(spec.numpy).view(bits) for each in (actual, plain, truth))
        return compare(ours, np.where(ours == other, other, theirs), theirs, Tolerance())
    return compare(actual, truth, plain, _tolerance(spec, truth, plain, factor))


def _tolerance(spec: TensorSpec, truth: Array, plain: Array, factor: float) -> Tolerance:
    """The type's tolerance, `factor` times; wider by what the plain reference itself needs, where it needs more."""
    stated = TOLERANCES[spec.dtype]
    strict = compare(plain, truth, plain, stated)
    wider = max(factor, FACTOR * strict.error) if np.isfinite(strict.error) else factor
    return Tolerance(stated.relative * wider, stated.absolute * wider, stated.ratio * factor)


@dataclass(frozen=True)
class Speedup:
    """The baseline's time over the candidate's, both without the round trip to the process, and its interval.

    `at_least` charges the candidate the whole round trip and the baseline none, so it holds whatever a candidate
    may have done to shorten its round trip. `doubt` says why none of this is trusted, empty if it is.
    """

    ratio: float
    low: float
    high: float
    at_least: float
    round_trip_seconds: float
    timing: Timing
    flags: tuple[str, ...] = ()
    doubt: str = ""


def speedup_of(
    candidate: Sequence[float],
    beside: tuple[Sequence[float], Sequence[float]],
    quiet: tuple[Sequence[float], Sequence[float]],
) -> Speedup:
    """The speed-up over interleaved rounds; the interval is a percentile bootstrap over rounds.

    Seconds are by the evaluator's clock; those of the baseline and the echo are from rounds `beside` the candidate, and
    from `quiet` ones, before its process began.
    """
    ours = np.asarray(candidate)
    (baseline, slower), (echo, _) = map(_undisturbed, beside, quiet)
    flags = (f"The reference ran {slower:.0%} slower beside this module than before it.",) if slower else ()
    rounds = np.random.default_rng(0).integers(0, len(ours), (RESAMPLES, len(ours)))
    trip = np.median(echo[rounds], axis=1)
    net = np.median(ours[rounds], axis=1) - trip
    net_baseline = np.median(baseline[rounds], axis=1) - trip
    seconds, round_trip = float(np.median(ours) - np.median(echo)), float(np.median(echo))
    baseline_seconds = float(np.median(baseline)) - round_trip
    low_net, high_net = percentile_interval(net)
    timing = Timing(LABEL, seconds, low_net, high_net, tuple(candidate), baseline_seconds)
    at_least = percentile_interval(net_baseline / (net + trip))[0]
    for name, draws in (("module", net), ("reference", net_baseline)):
        low, high = percentile_interval(draws)
        if low <= 0 or high - low > float(np.median(draws)):
            doubt = (
                f"The {name} is too short to be told apart from the round trip of {round_trip * 1e6:.0f} µs to its "
                "process: give it more to do."
            )
            return Speedup(0.0, 0.0, 0.0, max(at_least, 0.0), round_trip, timing, flags, doubt)
    low, high = percentile_interval(net_baseline / net)
    return Speedup(baseline_seconds / seconds, low, high, at_least, round_trip, timing, flags)


def _undisturbed(seconds: Sequence[float], quiet: Sequence[float]) -> tuple[Array, float]:
    """Times as they would be without the candidate, which may disturb others, and by what share they were slower."""
    beside = np.asarray(seconds)
    ratio = float(np.median(quiet) / np.median(beside))
    return (beside * ratio, 1 / ratio - 1) if ratio < SLOWED else (beside, 0.0)


def _without_own_kernel(tree: ast.Module) -> str:
    """Why a module certainly computes nothing with a kernel of its own; empty otherwise."""
    nodes = list(ast.walk(tree))
    kernels = {
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef) and any(map(_makes_kernel, node.decorator_list))
    }
    compiled = any(
        (isinstance(node, ast.Call) and _makes_kernel(node.func)) or _imports_extension(node)
        for node in nodes
    )
    if not kernels and not compiled:
        return "A kernel of its own was asked for, and the module defines none."
    launched = {
        node.value.id
        for node in nodes
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)
    }
    if not compiled and not launched & kernels:
        return f"The module defines {', '.join(sorted(kernels))} and launches none of them."
    for node in nodes:
        if isinstance(node, ast.ExceptHandler):
            for call in (found for each in node.body for found in ast.walk(each)):
                if isinstance(call, ast.Call) and _root(call.func) in {"torch", "F", "super"}:
                    return f"Line {call.lineno}: where its kernel fails, the module falls back on PyTorch."
    return ""


def _makes_kernel(node: ast.expr) -> bool:
    return not _KERNEL_MAKERS.isdisjoint(
        getattr(each, "attr", getattr(each, "id", "")) for each in ast.walk(node)
    )


def _imports_extension(node: ast.AST) -> bool:
    match node:
        case ast.ImportFrom(module=str(module)):
            return module.endswith("cpp_extension")
        case ast.Import(names):
            return any(alias.name.endswith("cpp_extension") for alias in names)
    return False


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
