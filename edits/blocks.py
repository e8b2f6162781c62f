"""SEARCH/REPLACE blocks that turn one text into another."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from mctskernel.core.edit import Block


def blocks_between(before: str, after: str) -> tuple[Block, ...]:
    """Blocks of whole lines that turn `before` into `after` when they are applied in order; none for equal texts.

    Each SEARCH text occurs exactly once in the text that it is applied to, with as many lines around the change as that
    takes, one at the least. Nothing can be searched for in an empty text: it has no blocks.
    """
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    if not old:
        return ()
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    # The blocks before a change have made the new lines up to it.
    return tuple(
        _block(new[:j1] + old[i1:], slice(j1, j1 + i2 - i1), new[j1:j2])
        for tag, i1, i2, j1, j2 in matcher.get_opcodes()
        if tag != "equal"
    )


def _block(lines: Sequence[str], changed: slice, replacement: Sequence[str]) -> Block:
    text, around = "".join(lines), 1
    while True:
        above, below = lines[max(changed.start - around, 0) : changed.start], lines[changed.stop :][:around]
        search = "".join((*above, *lines[changed], *below))
        if around >= len(lines) or (search and text.find(search) == text.rfind(search)):
            return Block(search, "".join((*above, *replacement, *below)))
        around *= 2
