"""Traces: what became of a solution at each workload, as flashinfer-bench and SOL-ExecBench write and read them.

The schema: docs/flashinfer-trace/trace.mdx of flashinfer-bench, and `Trace` in SOL-ExecBench's source. Fields that
aren't known are passed over, since each of the two has some that the other hasn't.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from mctskernel.answer import read_answer
from mctskernel.core.documents import UNDECODABLE, excerpt
from mctskernel.core.evaluation import Evaluation, Outcome, Source, Timing
from mctskernel.core.task import TaskError, shape_label
from mctskernel.problems.definitions.reference import DefinitionProblem, read_definition_problem
from mctskernel.problems.definitions.schema import Name, Text, Workload
from mctskernel.problems.definitions.solution import solution_name
from mctskernel.problems.scores import Scored
from mctskernel.run import RunFolder, read_manifest
from mctskernel.tree.blobs import get_kernel
from mctskernel.tree.journal import read_tree

Status = Literal[
    "PASSED",
    "INVALID_REFERENCE",
    "INCORRECT_SHAPE",
    "INCORRECT_NUMERICAL",
    "INCORRECT_DTYPE",
    "RUNTIME_ERROR",
    "COMPILE_ERROR",
    "TIMEOUT",
    "REWARD_HACK",
]

Real = float | Literal["NaN", "Infinity", "-Infinity"]
"""A number, where JSON has no word for some."""

UNKNOWN: Literal["NaN"] = "NaN"

_STATUS: Mapping[Outcome, Status] = {
    Outcome.OK: "PASSED",
    Outcome.BUILD_ERROR: "COMPILE_ERROR",
    Outcome.WRONG_RESULT: "INCORRECT_NUMERICAL",
    Outcome.RACE: "INCORRECT_NUMERICAL",
    Outcome.TIMEOUT: "TIMEOUT",
    Outcome.REJECTED: "REWARD_HACK",
}
"""Of all other outcomes the status is RUNTIME_ERROR."""


class Correctness(msgspec.Struct, frozen=True, omit_defaults=True):
    """The largest errors over all elements."""

    max_relative_error: Real = 0.0
    max_absolute_error: Real = 0.0
    extra: dict[str, Any] | None = None


class Performance(msgspec.Struct, frozen=True):
    """Times in milliseconds, of the solution and of the definition's reference; 0 where one wasn't taken."""

    latency_ms: float = 0.0
    reference_latency_ms: float = 0.0
    speedup_factor: float = 0.0


class Environment(msgspec.Struct, frozen=True):
    """Where it was evaluated."""

    hardware: Name
    libs: dict[str, str] = {}


class TraceEvaluation(msgspec.Struct, frozen=True):
    """`correctness` is there where it ran, `performance` where it passed."""

    status: Status
    environment: Environment
    timestamp: Name
    log: str = ""
    correctness: Correctness | None = None
    performance: Performance | None = None


class Trace(msgspec.Struct, frozen=True):
    """A solution at a workload; without a solution, the workload alone."""

    definition: Name
    workload: Workload
    solution: Text = None
    evaluation: TraceEvaluation | None = None


def read_traces(data: bytes, what: str) -> tuple[Trace, ...]:
    """Traces, one a line; `what` they are of is said of a line that isn't one. Raises TaskError."""
    found = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            try:
                found.append(_TRACES.decode(line))
            except UNDECODABLE as error:
                raise TaskError(f"{what}, line {number} is no trace: {excerpt(error)}.") from error
    return tuple(found)


def write_traces(traces: Iterable[Trace]) -> str:
    """A line of JSON for each."""
    return "".join(msgspec.json.encode(trace).decode() + "\n" for trace in traces)


def scored(traces: Iterable[Trace]) -> dict[str, list[Scored]]:
    """By solution, what became of it at each workload that it was evaluated at.

    Of several traces of one workload the fastest that passed counts, as in flashinfer-bench.
    """
    best: dict[tuple[str, str, str], Scored] = {}
    for trace in traces:
        if trace.solution is not None and trace.evaluation is not None:
            key = trace.solution, trace.definition, trace.workload.uuid
            this, before = _scored(trace.evaluation), best.get(key)
            if before is None or (this.correct, this.speedup or 0.0) > (
                before.correct,
                before.speedup or 0.0,
            ):
                best[key] = this
    found: dict[str, list[Scored]] = {}
    for (name, _, _), each in best.items():
        found.setdefault(name, []).append(each)
    return found


def trace_of(run: RunFolder, reference_seconds: Mapping[str, float] | None = None) -> tuple[Trace, ...]:
    """The traces of a run's answer, one for each workload of its problem.

    `reference_seconds` are times of the definition's reference by workload, taken on the run's device; without them the
    speed-up over it isn't known, and 0 as in traces of a harness that didn't time it. The largest errors aren't kept in
    a run: they are NaN, and `extra` has the largest share of what was allowed. Raises TaskError and RunError.
    """
    problem = read_definition_problem(run.task)
    manifest, tree, answer = read_manifest(run), read_tree(run.journal), read_answer(run)
    if answer is None:
        raise TaskError(f"{run.path} has no answer yet; `mctskernel resume` goes on with it.")
    node = tree.nodes[answer.node or 0]
    if node.evaluation is None:
        raise TaskError(f"The baseline of {run.path} was never evaluated.")
    kernel = get_kernel(run.blobs, node.kernel)
    environment = Environment(_hardware(manifest.fingerprint), dict(manifest.fingerprint))
    return tuple(
        Trace(
            problem.definition.name,
            workload,
            solution_name(problem, kernel),
            TraceEvaluation(
                status=_status(node.evaluation),
                environment=environment,
                timestamp=datetime.now(UTC).isoformat(),
                log=_log(node.evaluation),
                correctness=_correctness(node.evaluation),
                performance=_performance(
                    node.evaluation, shape_label(shape), (reference_seconds or {}).get(workload.uuid)
                ),
            ),
        )
        for workload, shape in _workloads(problem)
    )


_TRACES = msgspec.json.Decoder(Trace)


def _workloads(problem: DefinitionProblem) -> Iterator[tuple[Workload, dict[str, int]]]:
    yield from zip(problem.workloads, problem.shapes, strict=True)


def _scored(evaluation: TraceEvaluation) -> Scored:
    speedup = evaluation.performance.speedup_factor if evaluation.performance is not None else 0.0
    known = speedup if math.isfinite(speedup) and speedup > 0 else None
    return Scored(evaluation.status == "PASSED", known)


def _status(evaluation: Evaluation) -> Status:
    return "REWARD_HACK" if evaluation.quarantine else _STATUS.get(evaluation.outcome, "RUNTIME_ERROR")


def _correctness(evaluation: Evaluation) -> Correctness | None:
    if _status(evaluation) not in {"PASSED", "INCORRECT_NUMERICAL"}:
        return None
    share = max((check.error for check in evaluation.checks if math.isfinite(check.error)), default=0.0)
    return Correctness(UNKNOWN, UNKNOWN, {"largest_error_as_share_of_allowed": share})


def _performance(evaluation: Evaluation, label: str, reference: float | None) -> Performance | None:
    timing = next((each for each in evaluation.timings if each.shape == label), None)
    if _status(evaluation) != "PASSED" or timing is None:
        return None
    return _times(timing, reference)


def _times(timing: Timing, reference: float | None) -> Performance:
    if reference is None:
        return Performance(timing.seconds * 1e3)
    return Performance(timing.seconds * 1e3, reference * 1e3, reference / timing.seconds)


def _log(evaluation: Evaluation) -> str:
    modelled = "Times are modelled: no GPU ran this." if evaluation.source is Source.MODELLED else ""
    return " ".join(filter(None, (evaluation.message, evaluation.quarantine, modelled)))


def _hardware(fingerprint: Mapping[str, str]) -> str:
    name = next((fingerprint[each] for each in ("gpu", "architecture") if fingerprint.get(each)), "unknown")
    return f"{name} (modelled)" if fingerprint.get("device") == "model" else name


def traces_in(file: Path) -> tuple[Trace, ...]:
    """The traces of a file. Raises TaskError."""
    try:
        return read_traces(file.read_bytes(), str(file))
    except OSError as error:
        raise TaskError(f"{file} can't be read: {error.strerror or error}.") from error
