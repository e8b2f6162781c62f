"""Whole runs made up on disk, as large as one wishes: to measure what opens runs.

Nothing is compiled. Sources, logs, prompts, evaluations and counters are of the size that real ones have: a kernel of
170 lines, 45 samples and counters, a prompt of 8 kB for every four edits.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

from mctskernel.core.edit import Category, Edit, WholeSource
from mctskernel.core.evaluation import (
    Bottleneck,
    Cause,
    Check,
    Diagnosis,
    Evaluation,
    Guard,
    Outcome,
    Source,
    Timing,
)
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Exchange, Proposals, Purpose
from mctskernel.core.task_file import load_task
from mctskernel.profiling.reward import composite
from mctskernel.run import Budget, Configuration, RunFolder, prepare_run, write_manifest
from mctskernel.tasks import find_task
from mctskernel.tree.journal import Journal
from mctskernel.tree.node import Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.search import TreeSearch, Try
from mctskernel.tree.strategies.strategy import Propose

TASK = "softmax"
EDITS_A_REPLY = 4
SAMPLES = 45
COUNTERS = 45
FAILURES = (
    (Outcome.BUILD_ERROR, Guard.COMPILER, "kernel.cu(31): error: identifier 'sum' is undefined"),
    (
        Outcome.WRONG_RESULT,
        Guard.COMPARISON,
        "At rows=7 cols=131 3 of 917 values differ by more than is allowed.",
    ),
    (Outcome.RACE, Guard.EMULATOR, "Line 44 reads what line 39 of another thread writes without a barrier."),
    (Outcome.TIMEOUT, Guard.TIME_LIMIT, "The kernel ran for more than 20 s."),
)
FAILURE_SHARE = 0.25
MARK = "    // unrolled "


def make_run(path: Path, nodes: int, *, seed: int = 0, strategy: str = "mcts") -> RunFolder:
    """A run of so many evaluated nodes in a new folder. Raises RunError where there is one already."""
    task = load_task(find_task(TASK))
    policy = Policy(strategy=strategy)
    configuration = Configuration(TASK, "gpu", "H100", "llm", seed, 1, Budget(evaluations=nodes), policy)
    folder = prepare_run(path, task)
    write_manifest(folder, configuration, {"device": "gpu", "gpu": "NVIDIA H100 80GB HBM3"})
    made_up = _MadeUp(random.Random(seed))  # noqa: S311 - repeatable, not secret
    with Journal(folder.journal, durable=False) as journal:
        search = TreeSearch(Tree(), journal, folder.blobs)
        root = made_up.evaluation(1e-3)
        search.start(Kernel(made_up.source(task.starting_kernel.source)), policy, seed)
        search.evaluated(0, root, composite(root, None, root))
        while search.tree.evaluations < nodes:
            match search.ask():
                case Propose() as request:
                    search.proposed(request, made_up.proposals(search, request.node))
                case Try(edit=Edit(change=WholeSource(source=source))) as attempt:
                    _evaluate(search, attempt, Kernel(source), made_up, root)
                case request:
                    raise AssertionError(f"a made-up search has nothing to do but {request}")
    return folder


def _evaluate(search: TreeSearch, attempt: Try, kernel: Kernel, made_up: _MadeUp, root: Evaluation) -> None:
    node = search.submit(attempt, kernel)
    if node is not None:
        parent = search.tree.nodes[attempt.node].evaluation
        evaluation = made_up.child(parent or root)
        search.evaluated(node, evaluation, composite(evaluation, parent, root))


class _MadeUp:
    """Draws edits and evaluations."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def source(self, start: str) -> str:
        """A kernel of about 170 lines."""
        lines = (
            f"{MARK}{number}\n    float lane_{number} = values[{number}] * scale + {number}.0f;"
            for number in range(70)
        )
        body = "\n".join(lines)
        return f"{start}\n__device__ float drawn(const float* values, float scale) {{\n{body}\n    return lane_0;\n}}\n"

    def proposals(self, search: TreeSearch, node: int) -> Proposals:
        """Edits of a node, from one exchange."""
        source = search.kernel(node).source
        edits = tuple(self._edit(source) for _ in range(EDITS_A_REPLY))
        prompt = '[{"role": "user", "content": "' + "Make it faster, and say why. " * 280 + f'{node}"' + "}]"
        exchange = Exchange(
            Purpose.PROPOSE,
            "a-model",
            prompt,
            "Wider loads. " * 150,
            input_tokens=2100,
            output_tokens=500,
            dollars=0.002,
            seconds=3.0,
        )
        return Proposals(edits, exchanges=(exchange,))

    def _edit(self, source: str) -> Edit:
        number = self._rng.randrange(70)
        changed = source.replace(
            f"{MARK}{number}\n", f"{MARK}{number}\n    #pragma unroll {self._rng.randrange(10**6)}\n", 1
        )
        return Edit(
            self._rng.choice(list(Category)),
            f"unroll loop {number} and keep its lanes in registers",
            WholeSource(changed),
            rationale="Four independent loads in flight hide the latency of DRAM.",
            expected_effect="Fewer stalls on the long scoreboard.",
            prior=self._rng.random(),
            proposer="llm",
            exchange=0,
        )

    def child(self, parent: Evaluation) -> Evaluation:
        """What an edit of a kernel came to."""
        if self._rng.random() < FAILURE_SHARE:
            outcome, guard, message = self._rng.choice(FAILURES)
            return Evaluation(outcome, Source.MEASURED, message, guard=guard, log=f"{message}\n" * 8)
        before = parent.timings[0].seconds if parent.timings else 1e-3
        return self.evaluation(max(5e-5, before * math.exp(self._rng.gauss(-0.02, 0.2))))

    def evaluation(self, seconds: float) -> Evaluation:
        """One of a kernel that takes so long."""
        draw = self._rng.random
        samples = tuple(seconds * (1 + 0.01 * self._rng.gauss(0, 1)) for _ in range(SAMPLES))
        counters = {
            f"smsp__average_warps_issue_stalled_{number}_per_issue_active.ratio": draw()
            for number in range(COUNTERS)
        }
        cause = Cause(
            Bottleneck.DRAM_BANDWIDTH,
            draw(),
            "268 MB move at 2.44 TB/s, 81% of what a copy reaches: touch less of it.",
        )
        return Evaluation(
            Outcome.OK,
            Source.MEASURED,
            timings=(Timing("rows=8192 cols=4096", seconds, seconds * 0.99, seconds * 1.01, samples, 1e-3),),
            counters=counters | {"dram__bytes.sum": 2.7e8 * (1 + draw())},
            checks=tuple(Check("rows=33 cols=130", seed, passed=True, error=draw()) for seed in range(9)),
            diagnosis=Diagnosis((cause, replace(cause, bottleneck=Bottleneck.L2_BANDWIDTH))),
            stage_seconds={stage: draw() for stage in ("build", "verify", "time", "counters")},
            log="ptxas info    : Used 32 registers, 412 bytes cmem[0]\n" * 3,
        )
