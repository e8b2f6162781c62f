"""A matmul that already stages tiles of its operands in shared memory, read back as the nest behind it."""

from __future__ import annotations

from mctskernel.core.launch_plan import Launch
from mctskernel.edits.rule import Context
from mctskernel.edits.rules.matmul.nest import MatmulNest
from mctskernel.edits.syntax import Function


def staged_nest(context: Context, launch: Launch, function: Function) -> MatmulNest | None:
    return None
