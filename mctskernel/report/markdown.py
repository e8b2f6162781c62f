"""A run's best path as a Markdown page."""

from __future__ import annotations

import re

from mctskernel.core.evaluation import Cause
from mctskernel.profiling.bottleneck import account
from mctskernel.profiling.quantities import time_text
from mctskernel.report.gpus import gpu_sentences
from mctskernel.report.predictions import prediction_sentence
from mctskernel.report.view import View, timing_text
from mctskernel.starts import origin
from mctskernel.tree.trajectory import STARTING_KERNEL, Step

_MARKUP = re.compile(r"[\\`<>\[\]|~&]|(?<!\w)[*_#!]|[*_](?!\w)|^[-+]|://")
"""What begins links, HTML, code and emphasis; an underscore or a star within a name or a product stays as it is."""


def trajectory_markdown(view: View) -> str:
    """The path from the starting kernel to the answer, each edit with its evidence."""
    configuration = view.manifest.configuration
    best = view.evaluation(view.best.id)
    head = [
        f"# {configuration.task}: {view.steps[-1].speedup:.2f}x over the starting kernel, {best.source}"
        f"{', unanchored' if view.manifest.unanchored else ''}",
        "",
        f"- Device: {view.device}",
        f"- Evaluations: {view.evaluations}, seed {configuration.seed}",
        *(f"- Time: {timing_text(timing)}, {best.source}" for timing in best.timings),
        *(f"- {_plain(sentence)}" for sentence in gpu_sentences(view.gpus)),
        f"- {view.gate}",
        *([f"- Began at the starting point '{start}'"] if (start := origin(view.tree, view.best.id)) else []),
        *(f"- Refused there: node {node}: {_plain(reason)}" for node, reason in _refused(view)),
        "",
    ]
    return "\n".join([*head, *(line for step in view.steps for line in _step(view, step))])


def _refused(view: View) -> tuple[tuple[int, str], ...]:
    return view.answer.refused if view.answer else ()


def _step(view: View, step: Step) -> list[str]:
    title = step.edit.title if step.edit else STARTING_KERNEL
    lines = [f"## Node {step.node}: {_plain(title)}", ""]
    if step.seconds is not None:
        gain = f", {step.gain:.2f}x over its parent" if step.edit else ""
        lines += [f"{time_text(step.seconds)}{gain}, {step.speedup:.2f}x over the start.", ""]
    if step.edit and step.edit.rationale:
        lines += [f"Why: {_plain(step.edit.rationale)}", ""]
    if predicted := prediction_sentence(step):
        lines += [predicted, ""]
    if found := view.comparison(step.node):
        lines += ["What the edit did:", "", *(f"- {sentence}" for sentence in found.sentences), ""]
    evidence = [*account(view.evaluation(step.node)), *(cause.sentence for cause in _causes(step))]
    if evidence:
        lines += ["What binds it now:", "", *(f"- {sentence}" for sentence in evidence), ""]
    diff = view.diff(step.node)
    return [*lines, *_fenced(diff, "diff"), ""] if diff else lines


def _causes(step: Step) -> tuple[Cause, ...]:
    return step.after.causes if step.after else ()


def _plain(text: str) -> str:
    """A text of a model or a compiler on one line that is no markup: no link, image, heading or HTML."""
    line = "".join(letter for letter in " ".join(text.split()) if letter.isprintable())
    return _MARKUP.sub(r"\\\g<0>", line)


def _fenced(text: str, language: str) -> list[str]:
    """A code block whose fence is longer than any run of backticks inside, so that no text can end it."""
    longest = max((len(run) for run in _backtick_runs(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", text.rstrip("\n"), fence]


def _backtick_runs(text: str) -> list[str]:
    return [run for run in "".join(c if c == "`" else " " for c in text).split() if run]
