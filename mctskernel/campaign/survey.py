"""The report of a campaign, made of its searches: what each came to, and by Amdahl's law what that is for the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mctskernel.answer import believed_speedup, read_answer
from mctskernel.campaign.configuration import Campaign
from mctskernel.campaign.report import Report, Span, TaskRow
from mctskernel.campaign.searched_task import SearchedTask
from mctskernel.core.evaluation import Source
from mctskernel.report.compared_run import speedup
from mctskernel.report.view import View
from mctskernel.search import Ending, root_failure
from mctskernel.tree.trajectory import edit_title

KNOWN_INTERVALS = {
    Source.MODELLED: "modelled, with one standard deviation of the model's error",
    Source.MEASURED: "measured, with 95 % bootstrap intervals of the timing samples",
    Source.RECORDED: "as they were recorded",
}


@dataclass(frozen=True)
class _Best:
    """The kernel that a task's row tells: the answer, or the fastest so far; whether it passed the last gate."""

    node: int
    speedup: Span
    source: Source
    passed: bool


UNSEARCHED = _Best(0, Span(1.0, 1.0, 1.0), Source.MEASURED, passed=False)


def model_seconds(campaign: Campaign, searched: Sequence[SearchedTask]) -> float:
    """The model's time with the fastest kernels so far. Amdahl, "Validity of the single processor approach", 1967."""
    return math.fsum((_rest(campaign), *(each.standing.seconds_now for each in searched)))


def survey(
    campaign: Campaign,
    searched: Sequence[SearchedTask],
    *,
    ending: Ending | None = None,
    seconds: float = 0.0,
    trace: Sequence[int] = (),
    times: Sequence[tuple[int, float]] = (),
) -> Report:
    """The report; `ending` is None while the campaign goes on. Raises RunError for an answer that can't be read."""
    found = [_best(each) for each in searched]
    after = _after(campaign, searched, found)
    sources = {best.source for best, each in zip(found, searched, strict=True) if each.tree.evaluations}
    source = sources.pop() if sources else Source.MEASURED
    devices = [View(each.folder, each.tree, None).device for each in searched]
    return Report(
        title=campaign.title,
        device=devices[0] if devices else campaign.device,
        source=source,
        budget=campaign.budget,
        evaluations=len(trace),
        seconds=seconds,
        dollars=math.fsum(each.tree.dollars for each in searched),
        ending=ending or "",
        in_seconds=campaign.in_seconds,
        before=campaign.model_seconds,
        after=after,
        rest=_rest(campaign),
        interval=KNOWN_INTERVALS[source],
        tasks=tuple(_row(campaign, each, best, after) for each, best in zip(searched, found, strict=True)),
        trace=tuple(trace),
        times=tuple(times),
    )


def _rest(campaign: Campaign) -> float:
    return max(0.0, campaign.model_seconds - math.fsum(task.seconds for task in campaign.tasks))


def _after(campaign: Campaign, searched: Sequence[SearchedTask], found: Sequence[_Best]) -> Span:
    """The model's time. Errors of the tasks add up as those of independent figures do: the root of their squares."""
    pairs = [(each.task.seconds, best.speedup) for each, best in zip(searched, found, strict=True)]
    known = {each.task.name for each in searched}
    others = [task.seconds for task in campaign.tasks if task.name not in known]
    total = math.fsum((_rest(campaign), *others, *(each / gain.value for each, gain in pairs)))
    less = math.hypot(*(each / gain.value - each / gain.high for each, gain in pairs))
    more = math.hypot(*(each / gain.low - each / gain.value for each, gain in pairs))
    return Span(total, total - less, total + more)


def _best(searched: SearchedTask) -> _Best:
    tree = searched.tree
    root = tree.nodes[0].evaluation if tree.nodes else None
    if root is None or not searched.has_baseline:
        return UNSEARCHED
    answer = read_answer(searched.folder) if searched.concluded == searched.history.evaluations else None
    node = tree.nodes[searched.history.best if answer is None else answer.node or 0]
    gain = believed_speedup(node) if node.id else 1.0
    ratio = speedup(node.evaluation, root) if node.id and node.evaluation is not None else None
    low, high = (ratio.low, ratio.high) if ratio is not None else (gain, gain)
    passed = answer is not None and answer.node is not None
    return _Best(node.id, Span(gain, min(low, gain), max(high, gain)), root.source, passed)


def _row(campaign: Campaign, searched: SearchedTask, best: _Best, model_after: Span) -> TaskRow:
    task, tree = searched.task, searched.tree
    after = task.seconds / best.speedup.value
    left = None if searched.headroom is None else searched.headroom - math.log(best.speedup.value)
    return TaskRow(
        name=task.name,
        task=task.task,
        language=task.settings.language,
        run=f"runs/{task.name}",
        before=task.seconds,
        after=after,
        share_before=task.seconds / campaign.model_seconds,
        share_after=after / model_after.value,
        speedup=best.speedup,
        headroom=math.exp(left) if left is not None and left >= 0 else None,
        passed=best.passed,
        edit=edit_title(tree, tree.nodes[best.node]) if best.node else "",
        evaluations=tree.evaluations,
        seconds=tree.evaluation_seconds,
        dollars=tree.dollars,
        ending=searched.ending or "",
        problem=root_failure(tree) if searched.ending is Ending.NO_BASELINE else "",
        concluded=searched.concluded,
    )
