"""Read a model's reply: edits that apply to the kernel, edits that don't, and what was lost.

A reply is hostile input: whatever its text, reading it takes bounded time and raises nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from mctskernel.core.edit import Block, Edit, Patch, WholeSource
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import LaunchPlanError, plan_of
from mctskernel.core.proposer import Dropped, Loss
from mctskernel.edits.llm.reply_format import MAX_PROSE, MAX_TITLE, Draft, Drafts, category_of, one_line
from mctskernel.edits.llm.reply_json import drafts_in_json
from mctskernel.edits.llm.reply_prose import drafts_in_prose, is_source
from mctskernel.edits.patch import PatchError, apply

MAX_REPLY = 1_000_000
"""Characters of a reply that are read."""

MAX_SOURCE_BYTES = 128 * 1024
"""Of a kernel after an edit, in UTF-8."""

CONSIDERED = 4
"""Edits that are looked at, for each that is wanted."""

MAX_REASON = 800
"""Characters of a reason: it may quote what a model wrote at any length."""

PRIOR = 0.5
"""Of an edit that names none."""

LEAST_PRIOR = 0.01
"""Of an edit with a prior of zero or below: it is still tried at some point."""


@dataclass(frozen=True)
class Unfit:
    """An edit that can't be applied as it is written, and why, in words for the model that wrote it."""

    edit: Edit
    loss: Loss
    reason: str


@dataclass(frozen=True)
class Reading:
    """The edits of a reply that apply, in its order, and the rest.

    `unfit` edits are returned to the model once. `surplus` edits beyond the limit weren't looked at.
    """

    edits: tuple[Edit, ...] = ()
    unfit: tuple[Unfit, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    surplus: int = 0


def read_reply(text: str, kernel: Kernel, limit: int) -> Reading:
    """The edits of a kernel that a reply proposes, in any format that `edits/prompts/reply_format.md` leads to.

    At most `limit` are taken, those that don't apply included. Their `proposer` and `exchange` are left to the caller.
    A reply without any edit has at least one loss.
    """
    answer, unfinished = _without_thoughts(_printable(text[:MAX_REPLY]))
    cut = unfinished or len(text) > MAX_REPLY
    drafts = _drafts(answer)
    if not drafts.found:
        return Reading(dropped=(_nothing(answer, drafts, cut=cut),))
    sorter = _Sorter(kernel)
    looked_at = 0
    for draft in drafts.found[: CONSIDERED * limit]:
        if len(sorter.edits) + len(sorter.unfit) >= limit:
            break
        looked_at += 1
        sorter.add(draft)
    if drafts.cut or cut:
        sorter.dropped.append(Dropped(Loss.CUT_OFF, "The reply ends in the middle of an edit."))
    greatest = max([1.0, *(edit.prior for edit in sorter.edits)])
    return Reading(
        tuple(replace(edit, prior=edit.prior / greatest) for edit in sorter.edits),
        tuple(sorter.unfit),
        tuple(sorter.dropped),
        len(drafts.found) - looked_at,
    )


# All but line feeds and tabs, halves of surrogate pairs, and marks that reverse or hide text.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]"
)
_THOUGHT = re.compile(r"\s*+<(think|thinking|thought|reasoning)>", re.IGNORECASE)
_THOUGHT_END = re.compile(r"</(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
_REFUSAL = re.compile(
    r"\b(?:i(?:'m| am)? (?:sorry|unable|not able)|i (?:can(?:'t|not| not)|won't|will not|must decline|have to decline)"
    r"|as an ai|against my|cannot (?:help|assist|comply)|can't (?:help|assist|comply))|\"refusal\"\s*:\s*\"",
    re.IGNORECASE,
)
_NATIVE = {Language.CUDA: "__global__", Language.TRITON: "@triton.jit"}


def _printable(text: str) -> str:
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def _without_thoughts(text: str) -> tuple[str, bool]:
    """The text after the thoughts that it begins with, and whether those never end."""
    if _THOUGHT.match(text) is None:
        # Some servers take the opening tag for part of the prompt.
        end = _THOUGHT_END.search(text)
        return (text[end.end() :], False) if end and text[end.end() :].strip() else (text, False)
    position = 0
    while (thought := _THOUGHT.match(text, position)) is not None:
        end = _THOUGHT_END.search(text, thought.end())
        if end is None:
            return "", True
        position = end.end()
    return text[position:], False


def _drafts(text: str) -> Drafts:
    listed = drafts_in_json(text)
    if listed.any_change or listed.cut:
        return listed
    written = drafts_in_prose(text)
    if written.found or written.cut:
        return written
    if is_source(text) and "```" not in text and not listed.found:
        return Drafts((Draft(WholeSource(text)),))
    return listed


def _nothing(answer: str, drafts: Drafts, *, cut: bool) -> Dropped:
    """Why a reply holds no edit at all."""
    if cut or drafts.cut:
        return Dropped(Loss.CUT_OFF, "The reply ends before its first edit is whole.")
    if not answer.strip():
        return Dropped(Loss.EMPTY, "The reply is empty.")
    if drafts.vacant:
        return Dropped(Loss.EMPTY, "The reply lists no edits.")
    if _REFUSAL.search(answer[:1000]):
        return Dropped(Loss.REFUSAL, f"The model refuses: {one_line(answer, MAX_TITLE)}")
    if answer.lstrip().startswith(("{", "[", "```json")):
        return Dropped(Loss.WRONG_SCHEMA, "The reply is JSON, but not a list of edits.")
    return Dropped(
        Loss.UNREADABLE, "The reply holds neither JSON, SEARCH/REPLACE blocks, nor a whole source."
    )


@dataclass
class _Sorter:
    kernel: Kernel
    edits: list[Edit] = field(default_factory=list)
    unfit: list[Unfit] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    titles: dict[str, str] = field(default_factory=dict)
    """By the identity of the kernel that an edit makes."""

    def add(self, draft: Draft | Dropped) -> None:
        if isinstance(draft, Dropped):
            self.dropped.append(draft)
            return
        fault = self._tried(_edit(draft))
        if isinstance(fault, Unfit):
            self.unfit.append(fault)
        elif fault is not None:
            self.dropped.append(fault)

    def _tried(self, edit: Edit) -> Unfit | Dropped | None:
        """Take an edit, or say what is wrong with it."""
        native = _NATIVE.get(self.kernel.language, "")
        if isinstance(edit.change, WholeSource) and native not in edit.change.source:
            reason = f"The edit '{edit.title}' gives a source without any {native} function."
            return Dropped(Loss.WRONG_SCHEMA, reason)
        try:
            result = apply(self.kernel, edit)
        except PatchError as error:
            if error.loss is Loss.NO_CHANGE:
                reason = f"The edit '{edit.title}' changes nothing but comments or spacing."
                return Dropped(error.loss, reason)
            return Unfit(edit, error.loss, one_line(str(error), MAX_REASON))
        size = len(result.source.encode())
        if size > MAX_SOURCE_BYTES:
            reason = (
                f"The edit '{edit.title}' leaves {size} bytes of source; the limit is {MAX_SOURCE_BYTES}."
            )
            return Dropped(Loss.WRONG_SCHEMA, reason)
        if result.identity in self.titles:
            reason = f"The edit '{edit.title}' does the same as '{self.titles[result.identity]}'."
            return Dropped(Loss.REPEATED, reason)
        fault = _plan_fault(result)
        if fault and not _plan_fault(self.kernel):
            return Unfit(edit, Loss.WRONG_SCHEMA, one_line(fault, MAX_REASON))
        self.titles[result.identity] = edit.title
        self.edits.append(edit)
        return None


def _edit(draft: Draft) -> Edit:
    category = category_of(draft.category, draft.title)
    return Edit(
        category,
        one_line(draft.title, MAX_TITLE) or f"{category} edit",
        _cleaned(draft.change),
        one_line(draft.rationale, MAX_PROSE),
        one_line(draft.expected_effect, MAX_PROSE),
        PRIOR if draft.prior is None else max(draft.prior, LEAST_PRIOR),
    )


def _cleaned(change: Patch | WholeSource) -> Patch | WholeSource:
    """The change without the control characters that JSON escapes brought in."""
    if isinstance(change, WholeSource):
        return WholeSource(_printable(change.source))
    return Patch(tuple(Block(_printable(block.search), _printable(block.replace)) for block in change.blocks))


def _plan_fault(kernel: Kernel) -> str:
    try:
        plan_of(kernel)
    except LaunchPlanError as error:
        return str(error)
    return ""
