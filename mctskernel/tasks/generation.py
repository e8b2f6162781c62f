"""Generation: from words to a task with a first kernel that is verified, and the others that are.

    task.toml         as it was given or, if it wasn't, as a model drafted it
    reference.py      likewise; a model's own makes the task `unverified_reference` and runs in a sandbox only
    kernel.cu         the fastest kernel that passed every check, or kernel.py; a kernel that was there stays
    start_NAME.cu     that of another expert, NAME: another starting point of the search
    generation.jsonl  every call of a model with its reply

Several experts are each asked for a whole kernel (the mixture of thoughts of OptiML-G). Whatever they write is built,
verified and timed as any candidate is; failures go back with what was found until the tries are spent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import REPAIRABLE, Evaluation
from mctskernel.core.executor import Executor
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Exchange, ProposalRequest, Proposals, Purpose
from mctskernel.core.task import Task, TaskError
from mctskernel.core.task_file import load_task
from mctskernel.core.user_errors import NoKernelError
from mctskernel.edits.llm.experts import EXPERTS, Expert
from mctskernel.edits.llm.model import Call, OpenModel
from mctskernel.edits.llm.prompt import messages_to_generate
from mctskernel.edits.llm.proposer import LLMProposer, converse
from mctskernel.edits.llm.replies import EDITS_SCHEMA
from mctskernel.edits.patch import PatchError, apply
from mctskernel.executors import open_executor
from mctskernel.profiling.architecture import NOTHING, briefing_of
from mctskernel.profiling.reward import is_eligible
from mctskernel.profiling.sandboxed_reference import check_sandbox
from mctskernel.tasks.drafting import Order, Say, draft_task
from mctskernel.tree.trajectory import run_seconds

TRANSCRIPT = "generation.jsonl"


@dataclass(frozen=True)
class Effort:
    """How much is done for a first kernel: experts, kernels and repairs in all, and calls `at_once`."""

    tries: int = 10
    experts: tuple[Expert, ...] = EXPERTS
    at_once: int = 4


@dataclass(frozen=True)
class Generated:
    """A verified kernel, and the expert that wrote it."""

    kernel: Kernel
    expert: str
    evaluation: Evaluation

    @property
    def seconds(self) -> float:
        """The geometric mean of its times over the shapes."""
        return run_seconds(self.evaluation) or float("inf")


@dataclass(frozen=True)
class Generation:
    """A task with verified kernels, the fastest first, and what models were asked for it."""

    task: Task
    kernels: tuple[Generated, ...]
    exchanges: Sequence[Exchange]

    @property
    def dollars(self) -> float:
        return sum(each.dollars for each in self.exchanges)


def generate(
    order: Order,
    effort: Effort,
    model: OpenModel,
    spec: DeviceSpec,
    *,
    workers: int,
    say: Say,
    flops_of: Callable[[Task], Mapping[str, float]] = lambda _: NOTHING,
) -> Generation:
    """Make a task folder with a verified kernel, or give further ones to a task; `say` gets sentences about it.

    `spec` is the device that evaluates, for the order's folder and language; `workers` evaluations run at a time.
    `flops_of` counts the operations of a task's products, by shape, for the prompts.

    Every call of a model is in the folder's generation.jsonl, also when this fails. Raises
    NoKernelError, TaskError, DeviceError and ModelError.
    """
    if order.unverified_reference:
        check_sandbox()
    if not order.has_task:
        _make_folder(order.folder)
    transcript = Transcript(model, order.folder / TRANSCRIPT)
    try:
        task = draft_task(order, transcript, say)
        with open_executor(spec, workers) as executor:
            fingerprint = executor.fingerprint()
            gpu, architecture = (fingerprint.get(name, "") for name in ("gpu", "architecture"))
            briefing = briefing_of(gpu, architecture, task, flops_of(task))
            found = _Writing(order.wanted, task, effort, transcript, executor, briefing, say).verified()
    except BaseException:
        if order.has_placeholder:
            order.kernel_file.unlink()
        raise
    for made in found:
        start = order.kernel_file.with_stem(f"start_{made.expert}")
        file = order.kernel_file if order.has_placeholder else start
        file.write_text(made.kernel.source, "utf-8")
    task = load_task(order.folder, order.language)
    return Generation(task, found, transcript.exchanges)


def _make_folder(folder: Path) -> None:
    """Make a folder, in which there may be the transcript of a task that isn't drafted yet. Raises TaskError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = {file.name for file in folder.iterdir()} - {TRANSCRIPT}
    except OSError as error:
        raise TaskError(f"{folder} can't be made: {error.strerror or error}.") from error
    if "task.toml" in held:
        raise TaskError(f"{folder} holds a task: `mctskernel generate {folder}` writes kernels for it.")
    if held:
        raise TaskError(f"{folder} already holds something: choose another --out-task.")


@dataclass
class _Writer:
    """How far an expert is: its last kernel with its evaluation, and in sentences how its kernels ended.

    `problem` is the last of these, empty once a kernel is verified; without a kernel the next one is begun anew.
    `is_silent` says that the model didn't answer: it isn't asked again.
    """

    expert: Expert
    kernel: Kernel | None = None
    evaluation: Evaluation | None = None
    problem: str = "It was not asked."
    ended: list[str] = field(default_factory=list)
    is_silent: bool = False

    def fail(self, problem: str, kernel: Kernel | None = None, evaluation: Evaluation | None = None) -> None:
        """Note how a kernel ended; one that is given is to be repaired."""
        self.kernel, self.evaluation, self.problem = kernel, evaluation, problem
        self.ended.append(problem)

    def __str__(self) -> str:
        if self.problem or self.evaluation is None:
            return f"{self.expert.name}: {self.problem}"
        seconds = run_seconds(self.evaluation) or 0.0
        return f"{self.expert.name}: verified, {seconds * 1e6:.4g} us, {self.evaluation.source}"


@dataclass
class _Writing:
    """The experts at work on one task."""

    wanted: str
    task: Task
    effort: Effort
    model: Transcript
    executor: Executor
    briefing: tuple[str, ...]
    say: Say

    def verified(self) -> tuple[Generated, ...]:
        """The kernels that passed every check, the fastest first. Raises NoKernelError if there is none."""
        left = self.effort.tries
        writers = [_Writer(expert) for expert in self.effort.experts[:left]]
        while left > 0 and (waiting := [each for each in writers if each.problem and not each.is_silent]):
            asked = waiting[:left]
            left -= len(asked)
            self._round(asked)
            for writer in asked:
                self.say(str(writer))
        found: dict[str, Generated] = {}
        for writer in writers:
            if not writer.problem and writer.kernel is not None and writer.evaluation is not None:
                made = Generated(writer.kernel, writer.expert.name, writer.evaluation)
                found.setdefault(made.kernel.identity, made)
        if not found:
            reasons = " ".join(f"{writer.expert.name}: {writer.problem}" for writer in writers)
            raise NoKernelError(f"No kernel is right after {self.effort.tries - left} tries. {reasons}")
        return tuple(sorted(found.values(), key=lambda each: each.seconds))

    def _round(self, writers: Sequence[_Writer]) -> None:
        """Each expert's next kernels, evaluated; the experts are asked at the same time."""
        with ThreadPoolExecutor(self.effort.at_once) as threads:
            try:
                written = list(threads.map(self._kernels, writers))
            except BaseException:
                self.model.close()  # The pool waits for the calls in flight.
                raise
        kernels = {kernel.identity: kernel for found in written for kernel in found}
        identities = list(kernels)
        for ticket, identity in enumerate(identities):
            self.executor.submit(ticket, kernels[identity])
        evaluations: dict[str, Evaluation] = {}
        while len(evaluations) < len(kernels):
            evaluations |= {identities[ticket]: each for ticket, each in self.executor.wait()}
        for writer, found in zip(writers, written, strict=True):
            if found:
                self._take(writer, [(kernel, evaluations[kernel.identity]) for kernel in found])

    def _kernels(self, writer: _Writer) -> list[Kernel]:
        """The kernels that an expert now gives: a repair's are alternatives. None is a failure."""
        if writer.kernel is not None and writer.evaluation is not None:
            edited = writer.kernel
            request = ProposalRequest(self.task, edited, writer.evaluation)
            reply = LLMProposer(self.model, self.briefing).repair(request)
        else:
            edited = self.task.starting_kernel
            reply = self._first(writer)
        kernels, problem = [], "The reply holds no kernel."
        for edit in reply.edits:
            try:
                kernels.append(apply(edited, edit))
            except PatchError as error:
                problem = str(error)
        writer.is_silent = reply.is_silent
        if not kernels:
            writer.fail(reply.dropped[-1].reason if reply.dropped else problem)
        return kernels

    def _first(self, writer: _Writer) -> Proposals:
        """A reply with a first kernel, as an edit of the task's placeholder."""
        expert, placeholder = writer.expert, self.task.starting_kernel
        call = Call(
            Purpose.GENERATE,
            messages_to_generate(self.task, self.wanted, expert, writer.ended, self.briefing),
            schema=EDITS_SCHEMA,
            expert=expert.name,
            subject=placeholder.identity,
        )
        return converse(self.model, call, placeholder, 1)

    def _take(self, writer: _Writer, evaluated: Sequence[tuple[Kernel, Evaluation]]) -> None:
        """Take the first kernel that is right, or else go on with the first."""
        problems = []
        for kernel, evaluation in evaluated:
            problems.append(self._problem(kernel, evaluation))
            if not problems[-1]:
                writer.kernel, writer.evaluation, writer.problem = kernel, evaluation, ""
                return
        kernel, evaluation = evaluated[0]
        if evaluation.outcome in REPAIRABLE:
            writer.fail(problems[0], kernel, evaluation)
        else:
            writer.fail(problems[0])

    def _problem(self, kernel: Kernel, evaluation: Evaluation) -> str:
        if not evaluation.ok:
            return f"{evaluation.outcome}: {evaluation.message}"
        if not is_eligible(evaluation):
            return f"its time is impossible: {evaluation.quarantine}"
        # The held-out shapes stay secret. The kernel is its own baseline.
        validated = self.executor.final_validation(kernel, kernel)
        return "" if validated.ok else f"{validated.outcome}: at held-out shapes."


class Transcript:
    """A model whose exchanges are appended to a file, a JSON object a line. Several threads may call at once."""

    def __init__(self, model: OpenModel, path: Path) -> None:
        self.close = model.close
        self.exchanges: list[Exchange] = []
        self._model = model
        self._path = path
        self._lock = threading.Lock()

    def complete(self, call: Call) -> Exchange:
        """The model's exchange, once it is written down."""
        exchange = self._model.complete(call)
        with self._lock:
            self.exchanges.append(exchange)
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(exchange) + b"\n")
        return exchange
