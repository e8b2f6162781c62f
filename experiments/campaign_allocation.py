"""What it is worth to choose the kernel that a campaign's next evaluation goes to: drawn models, recorded searches.

    python -m mctskernel.experiments.campaign_allocation --out docs/results/campaign_allocation.json

A model is a few searches that were recorded (docs/results/strategies_traces.jsonl.xz) with shares of its time that are
drawn. An evaluation that goes to a kernel is the next of its search, so that every way to allocate meets the same
searches, and what each could have come to at the best is known.
"""

from __future__ import annotations

import lzma
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec
import numpy as np

from mctskernel.campaign.allocation import Improvement, Standing, ranked
from mctskernel.core.task import Array
from mctskernel.experiments.records.documents import Document, Section, Table, Text
from mctskernel.experiments.records.provenance import write_result
from mctskernel.experiments.strategies.traces import Trace
from mctskernel.report.resampling import Estimate, estimate, holm, sign_flip_p

TRACES = Path("docs/results/strategies_traces.jsonl.xz")

RECORDED = ("convolution_A100", "convolution_W7800", "dedispersion_MI250X", "pnpoly_RTX_2080_Ti")
"""Spaces that were recorded on GPUs by others; the rest are made up, or variants of kernels of ours."""

CONTENDERS = ("edit-model", "mcts")
"""Strategies that searches of which are drawn: the default on a GPU and the default on a model of one."""

EACH = (2, 5, 10, 20)
"""Evaluations for each kernel, on average, after which the model's time is looked at."""

SLACK = math.log(2.0)
"""A floor is up to so far, as a logarithm, below the best kernel there is: a roofline is seldom reached."""

ANSOR_ALPHA = 0.2
ANSOR_WINDOW = 3
"""As TVM sets them (`auto_scheduler.TaskScheduler`)."""


@dataclass(frozen=True)
class Kernel:
    """A kernel of a model: its share of the time, its search, its headroom, and evaluations after the first."""

    share: float
    improvements: tuple[Improvement, ...]
    headroom: float
    evaluations: int

    def known(self, count: int) -> list[Improvement]:
        """The improvements of the first evaluations."""
        return [each for each in self.improvements if each.evaluation <= count]

    def time(self, count: int) -> float:
        """What the best kernel takes of the model's time after so many evaluations."""
        known = self.known(count)
        return self.share * math.exp(-known[-1].log_speedup if known else 0.0)

    def standing(self, name: str, count: int, headroom: float | None) -> Standing:
        """As allocation sees it."""
        return Standing(name, self.share, count, self.known(count), headroom)


Model = Sequence[Kernel]

Choose = Callable[[Model, Sequence[int], Sequence[int]], int]
"""Of a model, evaluations so far by kernel, and the kernels that have more: the one that the next goes to."""


def by_saving(model: Model, counts: Sequence[int], left: Sequence[int]) -> int:
    """What a campaign does: the largest expected saving."""
    return int(
        ranked(model[each].standing(f"{each:03}", counts[each], model[each].headroom) for each in left)[0]
    )


def by_saving_without_floors(model: Model, counts: Sequence[int], left: Sequence[int]) -> int:
    """The same, with no floor known."""
    return int(ranked(model[each].standing(f"{each:03}", counts[each], None) for each in left)[0])


def by_ansors_slope(model: Model, counts: Sequence[int], left: Sequence[int]) -> int:
    """Zheng et al., "Ansor", OSDI 2020, section 6: the gain of the last evaluations, and the time over their number.

    Its guess from similar kernels is left out, since no two of these are.
    """

    def slope(each: int) -> float:
        kernel, count = model[each], counts[each]
        if count == 0:
            return math.inf
        now = kernel.time(count)
        before = kernel.time(max(0, count - ANSOR_WINDOW))
        return ANSOR_ALPHA * (before - now) / ANSOR_WINDOW + (1 - ANSOR_ALPHA) * now / count

    return max(left, key=lambda each: (slope(each), -each))


def by_share(model: Model, counts: Sequence[int], left: Sequence[int]) -> int:
    """Evaluations in proportion to the shares that the starting kernels have."""
    return min(left, key=lambda each: ((counts[each] + 1) / model[each].share, each))


def in_turn(model: Model, counts: Sequence[int], left: Sequence[int]) -> int:  # noqa: ARG001 - a Choose
    """As many for each."""
    return min(left, key=lambda each: (counts[each], each))


OURS = "expected saving"

ARMS: dict[str, Choose] = {
    OURS: by_saving,
    "expected saving, no floors": by_saving_without_floors,
    "Ansor's slope": by_ansors_slope,
    "by share": by_share,
    "in turn": in_turn,
}


class Shared(msgspec.Struct, frozen=True):
    """Drawn models, shared by an arm: for each of `EACH` evaluations a kernel their times after them, of 1 at first.

    An empty `arm` is the best that could have been done.
    """

    contender: str
    kind: str
    arm: str
    times: tuple[tuple[float, ...], ...]


class Report(msgspec.Struct, frozen=True):
    """What all arms came to on the same models, and how many there were of how many kernels."""

    kernels: int
    seeds: int
    each: tuple[int, ...]
    rows: list[Shared]


KINDS = ("recorded on GPUs", "made up")


@click.command()
@click.option(
    "--traces",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=TRACES,
    show_default=True,
)
@click.option("--seeds", type=click.IntRange(min=1), default=100, show_default=True, help="Models drawn.")
@click.option("--kernels", type=click.IntRange(min=2), default=8, show_default=True, help="Of each model.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True)
def main(*, traces: Path, seeds: int, kernels: int, out: Path) -> None:
    """Share every drawn model's budget in every way."""
    lines = lzma.decompress(traces.read_bytes()).splitlines()
    known = [msgspec.json.decode(line, type=Trace) for line in lines]
    write_result(out, compared(known, kernels, range(seeds)))


def compared(traces: Iterable[Trace], kernels: int, seeds: Sequence[int]) -> Report:
    """What the arms come to on models that are drawn of some traces."""
    known = [each for each in traces if each.in_flight == 1 and each.improvements]
    rows = []
    for contender in CONTENDERS:
        for kind in KINDS:
            chosen = [
                each
                for each in known
                if each.contender == contender and (each.space in RECORDED) == (kind == KINDS[0])
            ]
            if chosen:
                models = [drawn(chosen, kernels, seed) for seed in seeds]
                found = [outcomes(model, max(EACH) * kernels) for model in models]
                rows += [Shared(contender, kind, arm, _looked_at(found, arm, kernels)) for arm in ("", *ARMS)]
    return Report(kernels, len(seeds), EACH, rows)


def _looked_at(
    found: Sequence[dict[str, list[float]]], arm: str, kernels: int
) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(round(times[arm][each * kernels - 1], 5) for times in found) for each in EACH)


def drawn(traces: Sequence[Trace], kernels: int, seed: int) -> Model:
    """A model: spaces, their searches, shares of the time that add up to 1, and floors."""
    rng = np.random.default_rng(seed)
    spaces = sorted({trace.space for trace in traces})
    model = []
    for share in rng.dirichlet(np.ones(kernels)):
        space = spaces[int(rng.integers(len(spaces)))]
        of_space = [trace for trace in traces if trace.space == space]
        trace = of_space[int(rng.integers(len(of_space)))]
        (first, start), *rest = trace.improvements
        improvements = tuple(Improvement(number - first, math.log(now / start)) for number, now in rest)
        headroom = -math.log(start) + float(rng.uniform(0, SLACK))
        model.append(Kernel(float(share), improvements, headroom, trace.evaluations - first))
    return model


def outcomes(model: Model, evaluations: int) -> dict[str, list[float]]:
    """By arm, the model's time after each evaluation; by an empty name, the best there could have been."""
    return {
        **{name: list(spent(model, choose, evaluations)) for name, choose in ARMS.items()},
        "": in_hindsight(model, evaluations),
    }


def spent(model: Model, choose: Choose, evaluations: int) -> Iterator[float]:
    """The model's time after each evaluation of an arm."""
    counts = [0] * len(model)
    times = [kernel.time(0) for kernel in model]
    for _ in range(evaluations):
        left = [place for place, kernel in enumerate(model) if counts[place] < kernel.evaluations]
        if left:
            place = choose(model, counts, left)
            counts[place] += 1
            times[place] = model[place].time(counts[place])
        yield math.fsum(times)


def in_hindsight(model: Model, evaluations: int) -> list[float]:
    """The least time of the model after each number of evaluations, however they are shared: a knapsack."""
    saved = np.zeros(evaluations + 1)
    for kernel in model:
        options = [each for each in kernel.improvements if each.evaluation <= evaluations]
        better = saved.copy()
        for each in options:
            gain = kernel.share * -math.expm1(-each.log_speedup)
            better[each.evaluation :] = np.maximum(
                better[each.evaluation :], saved[: evaluations + 1 - each.evaluation] + gain
            )
        saved = better
    return [1.0 - float(each) for each in saved[1:]]


def document(report: Report) -> Document:
    """The page: what each arm saved of what could have been saved, and how far it is behind ours."""
    lead = (
        f"{report.seeds} models of {report.kernels} kernels each: recorded searches, shares of the time drawn evenly "
        "(Dirichlet), and floors up to a factor of two below the best kernel. `saved` is the time that was saved over "
        "the most that any sharing of the same evaluations could have saved, known in hindsight. `behind` is the "
        "model's time minus that by the expected saving, in percentage points of what it was at first: its mean and "
        "95 % bootstrap interval over models; `p` flips signs of the paired differences, `Holm` raises it for all rows "
        "of the page. The four spaces that were recorded on GPUs are searched from 100 starts by the model of edits "
        "and from 20 by the walk; the made-up ones and the variants of kernels from five each. The constants of the "
        "expected saving were chosen in sight of the made-up ones, and its form in sight of all. Ansor's slope knows "
        "no floors."
    )
    groups: dict[tuple[str, str], dict[str, Array]] = {}
    for row in report.rows:
        groups.setdefault((row.contender, row.kind), {})[row.arm] = np.array(row.times)
    found = [_rows(report, arms) for arms in groups.values()]
    adjusted = iter(holm([row.p for rows in found for row in rows if row.p is not None]))
    sections = [
        Section(f"{contender}, {kind}", [Table(_COLUMNS, [_cells(row, adjusted) for row in rows])])
        for (contender, kind), rows in zip(groups, found, strict=True)
    ]
    return Document("Where a campaign's evaluations go", sections, [Text(lead)])


_COLUMNS = ["allocation", "evaluations", "saved", "behind", "p", "Holm"]


@dataclass(frozen=True)
class _Row:
    """An arm after some evaluations; how far it is behind ours and the test of that, None for ours itself."""

    arm: str
    evaluations: int
    saved: float
    behind: Estimate | None
    p: float | None


def _rows(report: Report, arms: Mapping[str, Array]) -> list[_Row]:
    rows = []
    for column, each in enumerate(report.each):
        least, ours = arms[""][column], arms[OURS][column]
        for arm in ARMS:
            times = arms[arm][column]
            saved = float(np.sum(1 - times) / np.sum(1 - least))
            behind = None if arm == OURS else times - ours
            rows.append(
                _Row(
                    arm,
                    each * report.kernels,
                    saved,
                    None if behind is None else estimate([behind]),
                    None if behind is None else sign_flip_p(behind),
                )
            )
    return rows


def _cells(row: _Row, adjusted: Iterator[float]) -> list[str]:
    cells = [row.arm, str(row.evaluations), f"{row.saved:.3f}"]
    if row.behind is None or row.p is None:
        return [*cells, "", "", ""]
    mean, low, high = (100 * each for each in (row.behind.mean, row.behind.low, row.behind.high))
    return [*cells, f"{mean:+.2f} ({low:+.2f} to {high:+.2f})", f"{row.p:.4f}", f"{next(adjusted):.4f}"]


if __name__ == "__main__":
    main()
