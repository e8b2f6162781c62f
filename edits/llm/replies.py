"""What a model's reply says: edits that fit the kernel, edits that don't, and what was lost.

A reply is hostile input: whatever its text, reading it takes bounded time and raises nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from mctskernel.core.edit import Block, Edit, Patch, WholeSource
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import LaunchPlanError, plan_of
from mctskernel.core.proposer import Dropped, Loss
from mctskernel.edits.llm.draft import MAX_PROSE, MAX_TITLE, Draft, Drafts, category_of, one_line
from mctskernel.edits.llm.json_drafts import drafts_in_json
from mctskernel.edits.llm.prose_drafts import drafts_in_prose, is_source
from mctskernel.edits.patch import PatchError, applied
from mctskernel.edits.places import Match

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
"""Of one that names none above zero: an edit that nothing is expected of still has its turn."""


@dataclass(frozen=True)
class Unfit:
    """An edit that can't be applied as it is written, and why, in words for the model that wrote it."""

    edit: Edit
    loss: Loss
    reason: str


@dataclass(frozen=True)
class Reading:
    """A reply: edits that apply, in its order, and how closely the patch of each matched; the rest by its fate.

    `unfit` edits are worth sending back once. `surplus` are edits beyond the limit, which weren't looked at.
    """

    edits: tuple[Edit, ...] = ()
    matches: tuple[Match, ...] = ()
    unfit: tuple[Unfit, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    surplus: int = 0


def read_reply(text: str, kernel: Kernel, limit: int) -> Reading:
    """The edits of a kernel that a reply proposes, in any format that `edits/prompts/reply_format.md` leads to.

    `limit`, at least 1, is how many are taken, those that don't fit included. Their `proposer` and `exchange` are left
    to the caller. A reply without any edit has at least one loss.
    """
    said = _Said.of(text)
    drafts = _drafts(said.text)
    if not drafts.found:
        return Reading(dropped=(_nothing(said, drafts),))
    cut = (Dropped(Loss.CUT_OFF, "The reply ends in the middle of an edit."),)
    return _sorted(drafts, kernel, limit, cut if drafts.cut or said.cut else ())


@dataclass(frozen=True)
class _Said:
    """What a model says aloud, and whether it was cut off before it was done."""

    text: str
    cut: bool

    @classmethod
    def of(cls, reply: str) -> _Said:
        long = len(reply) > MAX_REPLY
        text, unfinished = _without_thoughts(_readable(reply[:MAX_REPLY]))
        return cls(text, long or unfinished)


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
_FOREIGN = {
    Language.CUDA: re.compile(
        r"@triton\.jit|^import triton\b|\btl\.(?:load|store|program_id|arange)\b", re.MULTILINE
    ),
    Language.TRITON: re.compile(
        r"\b__global__\b|\bthreadIdx\b|\bblockIdx\b|\b__syncthreads\b|^#include\b", re.MULTILINE
    ),
}
_NATIVE = {Language.CUDA: "__global__", Language.TRITON: "@triton.jit"}
_SPOKEN = {Language.CUDA: "CUDA C++", Language.TRITON: "Triton"}


def _readable(text: str) -> str:
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def _without_thoughts(text: str) -> tuple[str, bool]:
    """The text behind the thoughts that it begins with, and whether those never end."""
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
    told = drafts_in_prose(text)
    if told.found or told.cut:
        return told
    if is_source(text) and "```" not in text and not listed.found:
        return Drafts((Draft(changes=(WholeSource(text),)),))
    return listed


def _nothing(said: _Said, drafts: Drafts) -> Dropped:
    """Why a reply holds no edit at all."""
    if said.cut or drafts.cut:
        return Dropped(Loss.CUT_OFF, "The reply ends before its first edit is whole.")
    if not said.text.strip():
        return Dropped(Loss.EMPTY, "The reply is empty.")
    if drafts.vacant:
        return Dropped(Loss.EMPTY, "The reply lists no edits.")
    if _REFUSAL.search(said.text[:1000]):
        return Dropped(Loss.REFUSAL, f"The model refuses: {one_line(said.text, MAX_TITLE)}")
    if said.text.lstrip().startswith(("{", "[", "```json")):
        return Dropped(Loss.WRONG_SCHEMA, "The reply is JSON, but not a list of edits.")
    return Dropped(
        Loss.UNREADABLE, "The reply holds neither JSON, SEARCH/REPLACE blocks, nor a whole source."
    )


def _sorted(drafts: Drafts, kernel: Kernel, limit: int, cut: tuple[Dropped, ...]) -> Reading:
    fates = _Fates(kernel)
    looked_at = 0
    for draft in drafts.found[: CONSIDERED * limit]:
        if len(fates.edits) + len(fates.unfit) >= limit:
            break
        looked_at += 1
        fates.add(draft)
    return Reading(
        _with_priors(fates.edits),
        tuple(fates.matches),
        tuple(fates.unfit),
        (*fates.dropped, *cut),
        len(drafts.found) - looked_at,
    )


@dataclass
class _Fates:
    kernel: Kernel
    edits: list[Edit] = field(default_factory=list)
    matches: list[Match] = field(default_factory=list)
    unfit: list[Unfit] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    titles: dict[str, str] = field(default_factory=dict)
    """By the identity that an edit leads to."""

    def add(self, draft: Draft | Dropped) -> None:
        if isinstance(draft, Dropped):
            self.dropped.append(draft)
            return
        first: Unfit | Dropped | None = None
        for edit in _edits(draft):
            fault = self._tried(edit, draft.file)
            if fault is None:
                return
            first = first or fault
        if isinstance(first, Unfit):
            self.unfit.append(first)
        elif first is not None:
            self.dropped.append(first)

    def _tried(self, edit: Edit, file: str) -> Unfit | Dropped | None:
        """Take an edit, or say what is wrong with it."""
        fault = _foreign(edit, file, self.kernel)
        if fault:
            return Dropped(Loss.WRONG_SCHEMA, f"The edit '{edit.title}' {fault}.")
        try:
            result = applied(self.kernel, edit)
        except PatchError as error:
            return self._refused(edit, error, file)
        size = len(result.kernel.source.encode())
        if size > MAX_SOURCE_BYTES:
            reason = (
                f"The edit '{edit.title}' leaves {size} bytes of source; the limit is {MAX_SOURCE_BYTES}."
            )
            return Dropped(Loss.WRONG_SCHEMA, reason)
        if result.kernel.identity in self.titles:
            twin = self.titles[result.kernel.identity]
            return Dropped(Loss.REPEATED, f"The edit '{edit.title}' does the same as '{twin}'.")
        if _has_plan(self.kernel):
            try:
                plan_of(result.kernel)
            except LaunchPlanError as error:
                return Unfit(edit, Loss.WRONG_SCHEMA, one_line(str(error), MAX_REASON))
        self.titles[result.kernel.identity] = edit.title
        self.edits.append(edit)
        self.matches.append(result.loosest)
        return None

    def _refused(self, edit: Edit, error: PatchError, file: str) -> Unfit | Dropped:
        if error.loss is Loss.NO_CHANGE:
            return Dropped(error.loss, f"The edit '{edit.title}' changes nothing but comments or spacing.")
        texts = _texts(edit.change)
        foreign = _FOREIGN.get(self.kernel.language)
        if foreign and any(foreign.search(text) for text in texts):
            return Dropped(Loss.WRONG_SCHEMA, f"The edit '{edit.title}' is for a kernel of another language.")
        if _is_other(file, self.kernel):
            return Dropped(
                Loss.WRONG_SCHEMA, f"The edit '{edit.title}' is for another file, '{_short(file)}'."
            )
        return Unfit(edit, error.loss, one_line(str(error), MAX_REASON))


def _edits(draft: Draft) -> Iterator[Edit]:
    """The edit, with each change that the draft gives in turn."""
    category = category_of(draft.category, draft.title)
    edit = Edit(
        category,
        one_line(draft.title, MAX_TITLE) or f"{category} edit",
        Patch(()),
        one_line(draft.rationale, MAX_PROSE),
        one_line(draft.expected_effect, MAX_PROSE),
        PRIOR if draft.prior is None else max(draft.prior, LEAST_PRIOR),
    )
    for change in draft.changes:
        yield replace(edit, change=_cleaned(change))


def _cleaned(change: Patch | WholeSource) -> Patch | WholeSource:
    """The change without the control characters that JSON escapes brought in."""
    if isinstance(change, WholeSource):
        return WholeSource(_readable(change.source))
    return Patch(tuple(Block(_readable(block.search), _readable(block.replace)) for block in change.blocks))


def _foreign(edit: Edit, file: str, kernel: Kernel) -> str:
    """Why an edit is for something else than a kernel of this language; empty where it isn't."""
    suffix = PurePosixPath(file).suffix
    if suffix and suffix != kernel.language.suffix:
        return f"is for another file, '{_short(file)}'"
    if kernel.language in _NATIVE and isinstance(edit.change, WholeSource):
        source, native = edit.change.source, _NATIVE[kernel.language]
        if native not in source and _FOREIGN[kernel.language].search(source):
            return f"is in another language than the kernel, which is in {_SPOKEN[kernel.language]}"
        if native not in source:
            return f"gives a source without any {native} function"
    return ""


def _is_other(file: str, kernel: Kernel) -> bool:
    return bool(file) and PurePosixPath(file).name != f"kernel{kernel.language.suffix}"


def _short(file: str) -> str:
    return one_line(file, 60)


def _texts(change: object) -> tuple[str, ...]:
    if isinstance(change, Patch):
        return tuple(text for block in change.blocks for text in (block.search, block.replace))
    return ()


def _has_plan(kernel: Kernel) -> bool:
    try:
        plan_of(kernel)
    except LaunchPlanError:
        return False
    return True


def _with_priors(edits: list[Edit]) -> tuple[Edit, ...]:
    """Priors from 0 to 1: those of a reply that uses another scale are divided by their greatest."""
    greatest = max([1.0, *(edit.prior for edit in edits)])
    return tuple(replace(edit, prior=edit.prior / greatest) for edit in edits)
