"""Wording: what a model is told of attempts, times and causes, in sentences with the few numbers that matter.

Texts that came from elsewhere (titles, messages, logs, sources) are bounded, on one line or in a fence that they can't
close, and name no folder of this machine.
"""

from __future__ import annotations

import re

from mctskernel.core.evaluation import Cause, Check, Evaluation, Outcome, Resources, Timing
from mctskernel.core.experience import Experience
from mctskernel.core.proposer import Attempt
from mctskernel.core.task import Tensor

TITLE_CHARACTERS = 160
MESSAGE_CHARACTERS = 240
"""Of why an edit failed, in a list of many."""

SENTENCE_CHARACTERS = 500
LEAST_CHANGE = 1.02
"""Gains and losses below this factor are called no difference."""


def fenced(text: str, language: str, limit: int) -> str:
    """A text in a fence of more backticks than the text has in a row, cut in its middle to `limit` characters."""
    text = cut(text.replace("\r\n", "\n"), limit).rstrip("\n")
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def cut(text: str, limit: int) -> str:
    """A text of at most `limit` characters and a line that says how many were left out of its middle."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    left_out = len(text) - limit
    return f"{text[:head]}\n[... {left_out} characters left out ...]\n{text[len(text) - limit + head :]}"


def plain(text: str, limit: int = SENTENCE_CHARACTERS) -> str:
    """A text on one line, without folders, control characters or fences."""
    words = " ".join(without_folders(text[: 4 * limit]).split())
    printable = "".join(character for character in words if character.isprintable())
    short = printable if max(len(printable), len(text) // 4) <= limit else f"{printable[:limit]} [cut]"
    return re.sub(r"`{3,}", "``", short)


def quoted(text: str) -> str:
    """A title in quotation marks."""
    return '"' + plain(text, TITLE_CHARACTERS).replace('"', "'") + '"'


def without_folders(text: str) -> str:
    """A text whose absolute paths are their last parts alone."""
    return _PATH.sub(lambda path: path[0].rsplit("/", 1)[1], text)


_PATH = re.compile(r"(?<![\w.])(?:/[\w.+@~-]+){2,}")


def time_text(seconds: float) -> str:
    """Seconds in the largest unit that leaves at least one of them: `93.4 us`."""
    for scale, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def attempt_text(attempt: Attempt) -> str:
    """An edit that was tried, and how it ended."""
    category = f" ({attempt.category})" if attempt.category else ""
    return f"{quoted(attempt.title)}{category}: {_ending(attempt)}"


def _ending(attempt: Attempt) -> str:
    if attempt.outcome is Outcome.OK:
        return _gain_text(attempt.gain)
    why = plain(attempt.message, MESSAGE_CHARACTERS)
    return f"{attempt.outcome}. {why}" if why else f"{attempt.outcome}."


def _gain_text(gain: float) -> str:
    if gain <= 0:
        return "it worked; its gain is unknown."
    if gain >= LEAST_CHANGE:
        return f"{gain:.3g} times as fast."
    if gain <= 1 / LEAST_CHANGE:
        return f"took {1 / gain:.3g} times as long."
    return "made no difference."


def tensor_text(tensor: Tensor) -> str:
    """A buffer: name, dtype, extents, and what values it is tested with."""
    extents = ", ".join(map(str, tensor.shape))
    return f"{tensor.name}: {tensor.dtype} [{extents}]"


def timing_text(timing: Timing, source: str) -> str:
    """A time at a shape, and where it comes from."""
    where = f" at {timing.shape}" if timing.shape else ""
    return f"It takes {time_text(timing.seconds)}{where} ({source})."


def speedup_text(speedup: float, best: float) -> str:
    """How a kernel stands between the starting kernel and the fastest."""
    own = f"That is {speedup:.3g} times as fast as the starting kernel."
    if 1 / LEAST_CHANGE < speedup < LEAST_CHANGE:
        own = "That is as fast as the starting kernel."
    if best <= speedup * LEAST_CHANGE:
        return own
    return f"{own} The fastest kernel of the search is {best:.3g} times as fast as the starting kernel."


def cause_text(cause: Cause) -> str:
    """What binds a kernel, and how much of its time that explains."""
    return f"{plain(cause.sentence)} This explains {cause.share:.0%} of the time."


def resources_text(resources: Resources) -> str:
    """What the compiler says of a kernel."""
    spilled = resources.spill_store_bytes + resources.spill_load_bytes
    spills = f", and spills {spilled} bytes" if spilled else ", without spills"
    shared = f"{resources.shared_bytes} bytes of shared memory a block"
    return f"{plain(resources.kernel)} takes {resources.registers} registers a thread and {shared}{spills}."


def counter_text(name: str, value: float) -> str:
    """A counter by its own name."""
    return f"{plain(name, TITLE_CHARACTERS)} = {value:.4g}"


def check_text(check: Check) -> str:
    """A verification that failed."""
    where = f"At {check.shape}: " if check.shape else ""
    return f"{where}{plain(check.message) or 'wrong.'}"


def experience_text(experience: Experience) -> str:
    """What edits of a kind did in earlier runs."""
    kind = f"{quoted(experience.title)} ({experience.category}), against {experience.bottleneck}"
    counts = f"tried {experience.tried} times, faster {experience.improved} times, failed {experience.failed} times"
    return f"{kind}: {counts}."


def failed_checks(evaluation: Evaluation) -> tuple[Check, ...]:
    """Those that a repair has to pass."""
    return tuple(check for check in evaluation.checks if not check.passed)
