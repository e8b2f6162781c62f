"""The details of one node: source and diffs, the exchange with a model, log, checks, times, counters, reward.

Each distinct line of highlighted source is stored once, and a source is a tuple of line numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from functools import cache

import msgspec
from pygments.lexer import Lexer
from pygments.lexers import CudaLexer, PythonLexer, TextLexer
from pygments.token import STANDARD_TYPES, _TokenType

from mctskernel.core.evaluation import Cause, Check, Evaluation, Resources, Timing
from mctskernel.core.kernel import Language
from mctskernel.profiling.diagnosis import account
from mctskernel.report.notes import conditions_text, gpu_name, prediction_sentence
from mctskernel.report.view import View
from mctskernel.tree.events import EditRecord, ExchangeRecord, Proposed
from mctskernel.tree.journal import read_events
from mctskernel.tree.node import Node
from mctskernel.tree.trajectory import trajectory

Line = tuple[str, ...]
"""A line as class, text, class, text, ...; a class is Pygments' short name of the token's type, or empty."""

Change = tuple[int, int, int, int]
"""Start and end in the old source, start and end of the replacement in the new one."""


class Sources:
    """The distinct highlighted lines of several sources."""

    def __init__(self) -> None:
        self._numbers: dict[Line, int] = {}
        self._pieces: dict[tuple[Language, str], tuple[int, ...]] = {}

    @property
    def lines(self) -> tuple[Line, ...]:
        """All lines, by number."""
        return tuple(self._numbers)

    def add(self, text: str, language: Language) -> tuple[int, ...]:
        """The numbers of a source's lines."""
        return tuple(
            number for piece in pieces(text, language) for number in self._highlighted(piece, language)
        )

    def _highlighted(self, piece: str, language: Language) -> tuple[int, ...]:
        # Most lines of a kernel are its parent's, and Pygments takes half a millisecond a line.
        if (language, piece) not in self._pieces:
            found = highlighted(piece, language)
            self._pieces[language, piece] = tuple(
                self._numbers.setdefault(line, len(self._numbers)) for line in found
            )
        return self._pieces[language, piece]


def pieces(text: str, language: Language) -> Iterator[str]:
    """A source split into lines, but not within a comment or a string that spans several."""
    if not text:
        return
    body, spans = text.removesuffix("\n"), _SPANS.get(language)
    crossed = {
        at
        for match in (spans.finditer(body) if spans else ())
        for at in range(match.start(), match.end())
        if body[at] == "\n"
    }
    start = 0
    for match in re.finditer("\n", body):
        if match.start() not in crossed:
            yield body[start : match.start()]
            start = match.end()
    yield body[start:]


def highlighted(text: str, language: Language) -> Iterator[Line]:
    """The lines of a text as tokens; they hold plain text, never markup."""
    line: list[str] = []
    # A `//` comment needs the end of its line.
    for kind, value in _lexer(language).get_tokens(f"{text}\n"):
        name = _short_name(kind)
        first, *others = value.split("\n")
        _extend(line, name, first)
        for other in others:
            yield tuple(line)
            line = []
            _extend(line, name, other)


def changes(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[Change, ...]:
    """The changes that turn the old source into the new one."""
    start = next(
        (at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new))
    )
    most = min(len(old), len(new)) - start
    end = next((at for at in range(most) if old[-1 - at] != new[-1 - at]), most)
    # The matcher takes quadratic time, so the common start and end are removed first.
    matcher = SequenceMatcher(None, old[start : len(old) - end], new[start : len(new) - end], autojunk=False)
    return tuple(
        (a0 + start, a1 + start, b0 + start, b1 + start)
        for tag, a0, a1, b0, b1 in matcher.get_opcodes()
        if tag != "equal"
    )


_STRINGS = r"""'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*\""""

_SPANS = {
    Language.CUDA: re.compile(rf"//[^\n]*|{_STRINGS}|/\*.*?(?:\*/|\Z)", re.DOTALL),
    Language.TRITON: re.compile(
        rf"#[^\n]*|(?P<quotes>\"{{3}}|'{{3}}).*?(?:(?P=quotes)|\Z)|{_STRINGS}", re.DOTALL
    ),
}
"""Comments and strings, which may span lines."""


def _extend(line: list[str], name: str, text: str) -> None:
    if not text:
        return
    if len(line) > 1 and line[-2] == name:
        line[-1] += text
    else:
        line += [name, text]


@cache
def _lexer(language: Language) -> Lexer:
    lexers = {Language.CUDA: CudaLexer, Language.TRITON: PythonLexer}
    return lexers.get(language, TextLexer)(stripnl=False, ensurenl=False)


@cache
def _short_name(kind: _TokenType) -> str:
    """The class in Pygments' style sheets of a token type or its nearest ancestor; empty for plain text."""
    while kind not in STANDARD_TYPES:
        kind = kind.parent
    name = STANDARD_TYPES[kind]
    return "" if name in {"n", "w", "p"} else name


LONGEST_TEXT = 200_000
"""Characters of a log, prompt or reply before it is cut."""


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """The exchange with a language model that an edit came from."""

    model: str
    expert: str
    purpose: str
    prompt: str
    reply: str
    problem: str
    input_tokens: int
    output_tokens: int
    dollars: float
    seconds: float


class NodeDetails(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node in full. `source` holds line numbers of `Sources.lines`; changes are against another node's source.

    `terms` are the parts of a modelled time, `reward` those of the reward. `gpu` names the GPU that measured the times,
    and `conditions` describes its state during each of `timings`.
    """

    id: int
    source: tuple[int, ...]
    from_parent: tuple[Change, ...] = ()
    from_baseline: tuple[Change, ...] = ()
    rationale: str = ""
    expected_effect: str = ""
    factors: tuple[tuple[str, str], ...] = ()
    conversation: Conversation | None = None
    log: str = ""
    timings: tuple[Timing, ...] = ()
    gpu: str = ""
    conditions: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    resources: tuple[Resources, ...] = ()
    causes: tuple[Cause, ...] = ()
    evidence: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    stage_seconds: dict[str, float] = {}
    terms: dict[str, float] = {}
    counters: dict[str, float] = {}
    reward: dict[str, float] = {}
    prediction: str = ""


class Detailer:
    """Makes the details of the nodes of one run, whose sources share their lines."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.sources = Sources()
        self._known: dict[int, tuple[int, ...]] = {}
        self._exchanges: dict[tuple[int, object], ExchangeRecord] | None = None

    def details(self, number: int) -> NodeDetails:
        """The details of a node. Raises RunError and BlobError."""
        view, node = self._view, self._view.node(number)
        source, evaluation = self._source(number), node.evaluation
        edit = self._edit(node)
        found = NodeDetails(
            id=number,
            source=source,
            from_parent=changes(self._source(node.parent), source) if node.parent is not None else (),
            from_baseline=changes(self._source(0), source) if number else (),
            rationale=edit.rationale if edit else "",
            expected_effect=edit.expected_effect if edit else "",
            factors=tuple(
                (each.name, f"{each.level:g}" if isinstance(each.level, float) else str(each.level))
                for each in edit.factors
            )
            if edit
            else (),
            conversation=self._conversation(node, edit) if edit else None,
            log=_shown(view.folder.blobs.get(node.log)) if node.log else "",
        )
        return _with_evidence(found, view, node, evaluation) if evaluation else found

    def _source(self, number: int) -> tuple[int, ...]:
        if number not in self._known:
            kernel = self._view.node(number).kernel
            text = self._view.folder.blobs.get(kernel.source)
            self._known[number] = self.sources.add(text, kernel.language)
        return self._known[number]

    def _edit(self, node: Node) -> EditRecord | None:
        if node.parent is None or node.edit is None:
            return None
        return self._view.tree.nodes[node.parent].edits[node.edit]

    def _conversation(self, node: Node, edit: EditRecord) -> Conversation | None:
        if edit.exchange is None:
            return None
        if self._exchanges is None:
            self._exchanges = dict(_exchanges(self._view))
        record = self._exchanges.get((node.parent or 0, edit.change or edit.factors))
        if record is None:
            return None
        blobs = self._view.folder.blobs
        return Conversation(
            model=record.model,
            expert=record.expert,
            purpose=str(record.purpose),
            prompt=_shown(blobs.get(record.prompt)),
            reply=_shown(blobs.get(record.reply)) if record.reply else "",
            problem=record.problem,
            input_tokens=record.input_tokens,
            output_tokens=record.output_tokens,
            dollars=record.dollars,
            seconds=record.seconds,
        )


def _exchanges(view: View) -> Iterator[tuple[tuple[int, object], ExchangeRecord]]:
    """The exchanges that edits came from, by node and change, the latest first: of equal edits the older one counts."""
    replies = [
        event for event in read_events(view.folder.journal) if isinstance(event, Proposed) and event.exchanges
    ]
    for reply in reversed(replies):
        for edit in reversed(reply.edits):
            if edit.exchange is not None and edit.exchange < len(reply.exchanges):
                yield (reply.node, edit.change or edit.factors), reply.exchanges[edit.exchange]


def _with_evidence(found: NodeDetails, view: View, node: Node, evaluation: Evaluation) -> NodeDetails:
    comparison = view.comparison(node.id)
    return msgspec.structs.replace(
        found,
        timings=evaluation.timings,
        gpu=gpu_name(evaluation.gpu) if evaluation.gpu else "",
        conditions=tuple(
            conditions_text(each.conditions) if each.conditions else "" for each in evaluation.timings
        ),
        checks=evaluation.checks,
        resources=evaluation.resources,
        causes=evaluation.diagnosis.causes if evaluation.diagnosis else (),
        evidence=account(evaluation),
        effects=comparison.sentences if comparison else (),
        flags=evaluation.flags,
        stage_seconds=evaluation.stage_seconds,
        terms=evaluation.terms,
        counters=evaluation.counters,
        reward=dict(node.score.terms) if node.score else {},
        prediction=prediction_sentence(trajectory(view.tree, node.id).steps[-1]),
    )


def _shown(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]}\n[{len(text) - LONGEST_TEXT} more characters are in the run's blobs]"
