"""`searching.py` with a mistake that the variable `PLANTED` names: what injects faults must find it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).resolve().parent)]

# Found through the path above.
import searching  # noqa: E402

from mctskernel.tree import journal  # noqa: E402
from mctskernel.tree.journal import Journal  # noqa: E402

LINES_KEPT_BACK = 40


def keep_lines_back() -> None:
    """Lines are written when there are many of them, as a buffered file would."""
    write, waiting = Journal._write, []

    def late(self: Journal, line: bytes, *, flush: bool) -> None:
        waiting.append(line)
        if len(waiting) >= LINES_KEPT_BACK:
            write(self, b"".join(waiting), flush=flush)
            waiting.clear()

    Journal._write = late  # type: ignore[method-assign]
    journal.decode_filed = lambda line, lines, offset: journal.decode(line)  # type: ignore[attr-defined]


def forget_to_lock() -> None:
    """Two processes write one journal."""
    Journal._lock = lambda self: None  # type: ignore[method-assign]


def keep_torn_lines() -> None:
    """The next event goes on where a killed process stopped in a line."""
    journal._end_of_lines = lambda path: path.stat().st_size


MISTAKES = {each.__name__: each for each in (keep_lines_back, forget_to_lock, keep_torn_lines)}

if __name__ == "__main__":
    MISTAKES[os.environ["PLANTED"]]()
    searching.main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
