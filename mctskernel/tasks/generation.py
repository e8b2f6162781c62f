"""Generation: from words to a task with a first kernel that is verified, and the others that are.

    task.toml         as it was given or, if it wasn't, as a model drafted it
    reference.py      likewise; a model's own makes the task `unverified_reference` and runs in a sandbox only
    kernel.cu         the fastest kernel that passed every check, or kernel.py
    start_NAME.cu     that of another expert, NAME: another starting point of the search
    generation.jsonl  every call of a model with its reply

Several experts are each asked for a whole kernel (the mixture of thoughts of OptiML-G). Whatever they write is built,
verified and timed as any candidate is; failures go back with what was found until the tries are spent.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from mctskernel.core.device import DeviceSpec
from mctskernel.core.edit import Edit
from mctskernel.core.evaluation import REPAIRABLE, Evaluation
from mctskernel.core.executor import Executor
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Exchange, ProposalRequest
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.edits.llm.experts import EXPERTS, Expert
from mctskernel.edits.llm.generate import ask_for_kernel
from mctskernel.edits.llm.model import Call, ModelError, OpenModel
from mctskernel.edits.llm.proposer import LLMProposer
from mctskernel.edits.llm.recording import Recorded
from mctskernel.edits.patch import PatchError, apply
from mctskernel.executors import open_executor
from mctskernel.profiling.architecture import briefing_of
from mctskernel.profiling.reward import is_eligible
from mctskernel.profiling.sandboxed_reference import check_sandbox
from mctskernel.tasks.drafting import GenerationError, Order, Say, draft_task, make_folder
from mctskernel.tree.trajectory import run_seconds

TRANSCRIPT = "generation.jsonl"


@dataclass(frozen=True)
class Effort:
    """How much is done for a first kernel: experts, and how many kernels and repairs are asked for in all.

    `at_once` calls are in flight at a time.
    """

    tries: int = 10
    experts: tuple[Expert, ...] = EXPERTS
    at_once: int = 4
    seed: int = 0


@dataclass(frozen=True)
class Generated:
    """A verified kernel, the expert that wrote it, and its time: seconds, the geometric mean over the shapes."""

    kernel: Kernel
    expert: str
    evaluation: Evaluation
    seconds: float


@dataclass(frozen=True)
class Generation:
    """A task that begins at the first of the verified kernels, which are the fastest first; what was spent on it.

    `evaluations` are those of kernels that a model wrote, without final validation.
    """

    task: Task
    kernels: tuple[Generated, ...]
    calls: int
    tokens: int
    dollars: float
    evaluations: int


def generate(
    order: Order, effort: Effort, model: OpenModel, spec: DeviceSpec, *, workers: int, say: Say
) -> Generation:
    """Make a task folder with a verified kernel; `say` gets sentences about the progress.

    `spec` is the device that evaluates, for the order's folder and language; `workers` evaluations run at a time.

    Every call of a model is in the folder's generation.jsonl, also when this fails. Raises
    GenerationError, TaskError, DeviceError and ModelError.
    """
    if order.unverified_reference:
        check_sandbox()
    make_folder(order)
    transcript = Transcript(model, order.folder / TRANSCRIPT)
    try:
        task = draft_task(order, transcript, say)
        with open_executor(spec, workers) as executor:
            told = executor.fingerprint()
            briefing = briefing_of(told.get("gpu", ""), told.get("architecture", ""), task)
            writing = _Writing(order.wanted, task, effort, transcript, executor, briefing, say)
            found, evaluations = writing.verified()
    except BaseException:
        order.kernel_file.unlink(missing_ok=True)
        raise
    order.kernel_file.write_text(found[0].kernel.source, "utf-8")
    for other in found[1:]:
        order.kernel_file.with_stem(f"start_{other.expert}").write_text(other.kernel.source, "utf-8")
    return Generation(
        load_task(order.folder, order.language),
        found,
        len(transcript.exchanges),
        transcript.tokens,
        transcript.dollars,
        evaluations,
    )


@dataclass(frozen=True)
class _Draft:
    """How far an expert is: its last kernel with its evaluation, and in sentences how its kernels ended.

    `problem` is the last of these, empty once a kernel is verified; without a kernel the next one is begun anew.
    """

    expert: Expert
    kernel: Kernel | None = None
    evaluation: Evaluation | None = None
    problem: str = "It was not asked."
    ended: tuple[str, ...] = ()
    silent: bool = False

    def failed(
        self, problem: str, kernel: Kernel | None = None, evaluation: Evaluation | None = None
    ) -> _Draft:
        return replace(
            self,
            kernel=kernel,
            evaluation=evaluation,
            problem=problem,
            ended=(*self.ended, problem),
            silent=False,
        )


@dataclass(frozen=True)
class _Writing:
    """The experts at work on one task."""

    wanted: str
    task: Task
    effort: Effort
    model: Transcript
    executor: Executor
    briefing: tuple[str, ...]
    say: Say

    def verified(self) -> tuple[tuple[Generated, ...], int]:
        """The kernels that passed every check, the fastest first, and the evaluations that it took.

        Raises GenerationError if there is none.
        """
        left, evaluations = self.effort.tries, 0
        drafts = [_Draft(expert) for expert in self.effort.experts[:left]]
        while left > 0 and (waiting := [place for place, each in enumerate(drafts) if each.problem]):
            asked = waiting[:left]
            left -= len(asked)
            told, evaluated = self._round([drafts[place] for place in asked], left)
            evaluations += evaluated
            for place, draft in zip(asked, told, strict=True):
                drafts[place] = draft
                self.say(f"{draft.expert.name}: {draft.problem or _told(draft)}")
            if all(drafts[place].silent for place in asked):
                break
        found: dict[str, Generated] = {}
        for draft in drafts:
            if not draft.problem and draft.kernel is not None and draft.evaluation is not None:
                seconds = run_seconds(draft.evaluation) or float("inf")
                made = Generated(draft.kernel, draft.expert.name, draft.evaluation, seconds)
                found.setdefault(made.kernel.identity, made)
        if not found:
            reasons = " ".join(f"{draft.expert.name}: {draft.problem}" for draft in drafts)
            raise GenerationError(f"No kernel is right after {self.effort.tries - left} tries. {reasons}")
        return tuple(sorted(found.values(), key=lambda each: each.seconds)), evaluations

    def _round(self, drafts: Sequence[_Draft], turn: int) -> tuple[list[_Draft], int]:
        """Each expert's next kernel, evaluated, and how many evaluations that took; they are asked at the same time."""
        seeds = [self.effort.seed + (turn << 8) + place for place in range(len(drafts))]
        with ThreadPoolExecutor(self.effort.at_once) as threads:
            try:
                written = list(threads.map(self._written, drafts, seeds))
            except BaseException:
                self.model.close()  # The pool waits for the calls in flight.
                raise
        kernels = {kernel.identity: kernel for _, found in written for kernel in found}
        evaluations = self._evaluated(kernels)
        return [self._judged(draft, found, evaluations) for draft, found in written], len(evaluations)

    def _written(self, draft: _Draft, seed: int) -> tuple[_Draft, tuple[Kernel, ...]]:
        """A draft and the kernels that its expert now gives: a repair's are alternatives."""
        if draft.kernel is not None and draft.evaluation is not None:
            request = ProposalRequest(self.task, draft.kernel, draft.evaluation, seed=seed)
            repairs = LLMProposer(self.model, self.briefing).repair(request)
            kernels = _applied(draft.kernel, repairs.edits)
            reasons = [each.reason for each in repairs.dropped]
            silent = repairs.is_silent
        else:
            first = ask_for_kernel(
                self.model,
                self.task,
                self.wanted,
                draft.expert,
                attempts=draft.ended,
                device=self.briefing,
                seed=seed,
            )
            kernels = () if first.kernel is None else (first.kernel,)
            reasons, silent = [each.reason for each in first.losses], first.is_silent
        if kernels:
            return draft, kernels
        problem = reasons[-1] if reasons else "The reply holds no kernel."
        return replace(draft.failed(problem), silent=silent), ()

    def _evaluated(self, kernels: dict[str, Kernel]) -> dict[str, Evaluation]:
        waiting = dict(enumerate(kernels))
        for ticket, identity in waiting.items():
            self.executor.submit(ticket, kernels[identity])
        found: dict[str, Evaluation] = {}
        while len(found) < len(kernels):
            found |= {waiting[ticket]: evaluation for ticket, evaluation in self.executor.wait()}
        return found

    def _judged(self, draft: _Draft, kernels: Sequence[Kernel], evaluations: dict[str, Evaluation]) -> _Draft:
        """The draft with the first of its kernels that is right, or else with the first."""
        failures = []
        for kernel in kernels:
            evaluation = evaluations[kernel.identity]
            problem = self._problem(kernel, evaluation)
            if not problem:
                return replace(draft, kernel=kernel, evaluation=evaluation, problem="", silent=False)
            failures.append(
                draft.failed(problem, kernel, evaluation)
                if evaluation.outcome in REPAIRABLE
                else draft.failed(problem)
            )
        return failures[0] if failures else draft

    def _problem(self, kernel: Kernel, evaluation: Evaluation) -> str:
        if not evaluation.ok:
            return f"{evaluation.outcome}: {evaluation.message}"
        if not is_eligible(evaluation):
            return f"its time is impossible: {evaluation.quarantine}"
        # The held-out shapes stay secret. The kernel is its own baseline.
        gate = self.executor.final_validation(kernel, kernel)
        return "" if gate.ok else f"{gate.outcome}: at held-out shapes."


def _told(draft: _Draft) -> str:
    seconds = run_seconds(draft.evaluation) if draft.evaluation is not None else None
    source = f", {draft.evaluation.source}" if draft.evaluation is not None else ""
    return f"verified, {(seconds or 0.0) * 1e6:.4g} us{source}"


def _applied(kernel: Kernel, edits: Sequence[Edit]) -> tuple[Kernel, ...]:
    found = []
    for edit in edits:
        try:
            found.append(apply(kernel, edit))
        except PatchError:
            continue
    return tuple(found)


class Transcript:
    """A model whose exchanges are appended to a file, a JSON object a line. Several threads may call at once."""

    def __init__(self, model: OpenModel, path: Path) -> None:
        self._model = model
        self._path = path
        self._lock = threading.Lock()
        self.exchanges: list[Exchange] = []

    @property
    def dollars(self) -> float:
        """What was paid so far."""
        return sum(exchange.dollars for exchange in self.exchanges)

    @property
    def tokens(self) -> int:
        """Tokens that went in and came out so far."""
        return sum(exchange.input_tokens + exchange.output_tokens for exchange in self.exchanges)

    def complete(self, call: Call) -> Exchange:
        """The model's exchange, once it is written down."""
        exchange = self._model.complete(call)
        with self._lock:
            self.exchanges.append(exchange)
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(Recorded(call.subject, exchange)) + b"\n")
        return exchange

    def close(self) -> None:
        """Close the model."""
        self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_transcript(path: Path) -> Iterator[Recorded]:
    """The exchanges of a file; a last line that was cut off is passed over. Raises ModelError."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror or error}.") from error
    for number, line in enumerate(lines[:-1], 1):
        try:
            yield msgspec.json.decode(line, type=Recorded)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ModelError(f"{path}, line {number}, is no exchange with a model: {error}.") from error
