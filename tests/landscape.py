"""A search that needs no compiler: kernels are two macros, their time is a bowl over them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mctskernel.core.budget import Budget
from mctskernel.core.device import DeviceSpec
from mctskernel.core.edit import Category, Edit, WholeSource
from mctskernel.core.evaluation import Check, Evaluation, Guard, Outcome, Source, Timing
from mctskernel.core.executor import Executor, ExecutorOptions
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.proposer import ProposalRequest, Proposals
from mctskernel.core.task import Task, Tensor, Tolerance
from mctskernel.executors.local import beside_baseline
from mctskernel.loop import Search
from mctskernel.run import RunFolder
from mctskernel.run import search as run_module
from mctskernel.tree.blobs import MemoryBlobs
from mctskernel.tree.journal import MemoryJournal
from mctskernel.tree.node import Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.search import TreeSearch

BEST = (7, 2)


def kernel(x: int, y: int, language: Language = Language.CUDA) -> Kernel:
    if language is Language.TRITON:
        return Kernel(f"X = {x}\nY = {y}\n", language)
    return Kernel(f"#define X {x}\n#define Y {y}\n__global__ void k() {{}}\n")


def task(folder: Path = Path("bowl"), start: tuple[int, int] = (1, 1)) -> Task:
    tensor = Tensor("x", "float32", (1,))
    return Task(
        name="bowl",
        folder=folder,
        inputs=(tensor,),
        outputs=(replace(tensor, name="y"),),
        search_shapes=({},),
        verify_shapes=({},),
        tolerance=Tolerance(),
        starting_kernel=kernel(*start),
    )


def seconds(candidate: Kernel) -> float:
    x, y = candidate.macros["X"], candidate.macros["Y"]
    return 1e-3 * (1 + (x - BEST[0]) ** 2 + (y - BEST[1]) ** 2)


def judge(candidate: Kernel) -> Evaluation:
    """Odd products above 20 don't build: a landscape has holes."""
    x, y = candidate.macros["X"], candidate.macros["Y"]
    if x * y > 20 and x * y % 2:
        return Evaluation(Outcome.BUILD_ERROR, Source.MODELLED, message="odd", log="line 1: odd")
    return taking(seconds(candidate))


def taking(seconds: float, source: Source = Source.MODELLED, quarantine: str = "") -> Evaluation:
    """The evaluation of a kernel that is right."""
    timings = (Timing("", seconds, seconds, seconds),)
    return Evaluation(Outcome.OK, source, timings=timings, quarantine=quarantine)


class Neighbours:
    """Proposes one step in each direction, and one edit that doesn't apply."""

    name = "neighbours"

    def propose(self, request: ProposalRequest) -> Proposals:
        x, y = request.kernel.macros["X"], request.kernel.macros["Y"]
        moves = ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1), (x, y))
        return Proposals(
            tuple(
                Edit(Category.TUNING, f"X={a} Y={b}", WholeSource(source), proposer=self.name)
                for a, b in moves
                for source in [kernel(a, b, request.kernel.language).source]
            )
        )


class InProcess:
    """An executor that judges in this process and finishes the newest evaluation first."""

    def __init__(self, capacity: int = 1, judged_by: Callable[[Kernel], Evaluation] = judge) -> None:
        self.capacity = capacity
        self.judged: list[Kernel] = []
        self.refuses: set[str] = set()
        self._judge = judged_by
        self._waiting: list[tuple[int, Kernel]] = []

    def submit(self, ticket: int, kernel: Kernel) -> None:
        assert len(self._waiting) < self.capacity
        self._waiting.append((ticket, kernel))

    def wait(self, timeout: float | None = None) -> list[tuple[int, Evaluation]]:
        if not self._waiting:
            return []
        ticket, candidate = self._waiting.pop()
        self.judged.append(candidate)
        return [(ticket, self._judge(candidate))]

    def final_validation(self, kernel: Kernel, baseline: Kernel) -> Evaluation:
        found = beside_baseline(self._judge(kernel), self._judge(baseline))
        if kernel.identity in self.refuses:
            return replace(
                found,
                outcome=Outcome.WRONG_RESULT,
                message="wrong on a held-out shape",
                guard=Guard.COMPARISON,
            )
        return replace(found, checks=(Check("held out", 1, passed=True, error=0.0),))

    @property
    def notes(self) -> tuple[str, ...]:
        return ()

    def fingerprint(self) -> dict[str, str]:
        return {"device": "bowl"}

    def close(self) -> None:
        self._waiting.clear()


def search(
    budget: Budget, executor: InProcess | None = None, tree_search: TreeSearch | None = None, **options: Any
) -> Search:
    """A search of the landscape, in memory."""
    tree_search = tree_search or TreeSearch(Tree(), MemoryJournal(), MemoryBlobs(), clock=lambda: 0.0)
    options = {"proposer": Neighbours()} | options
    return Search(tree_search, task(), executor=executor or InProcess(), budget=budget, **options)


Opener = Callable[[], Executor]


def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[Opener]:
    """Let runs be opened on the last of these devices, the landscape at first, and their task be the landscape's."""
    openers: list[Opener] = [lambda: InProcess(2)]

    @contextmanager
    def opening(
        _spec: DeviceSpec, _workers: int, _options: ExecutorOptions, *_: object
    ) -> Iterator[Executor]:
        executor = openers[-1]()
        yield executor
        executor.close()

    monkeypatch.setattr(run_module, "open_executor", opening)
    monkeypatch.setattr(RunFolder, "load_task", lambda folder: task(folder.task))
    return openers


def steps(source: str) -> list[dict[str, Any]]:
    """The edits, as JSON, of a program that knows a source alone: a step in each direction."""
    return [
        {
            "title": f"{name} {step:+}",
            "category": "tuning",
            "patch": [{"search": f"#define {name} {value}", "replace": f"#define {name} {value + step}"}],
        }
        for name, value in Kernel(source).macros.items()
        for step in (1, -1)
    ]


def start(search: Search) -> int:
    """Begin a search at the starting kernel, which is to be evaluated."""
    return search.tree_search.start(search.task.starting_kernel, Policy(), 0)
