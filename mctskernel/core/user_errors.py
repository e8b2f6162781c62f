"""What a user can mend, by what has to be mended: the message is a sentence that says what is wrong, and where.

The command line makes an exit code of each. Every error for users derives from one of these, so that nobody has to
import whatever may raise one.
"""

from __future__ import annotations


class MisuseError(Exception):
    """Something was asked for that there isn't, or that can't be done in this way."""


class BadTaskError(Exception):
    """A task, or what stands for one, that can't be used."""


class BadRunError(Exception):
    """What searches wrote, a run or a memory, that can't be read or written."""


class BadMachineError(Exception):
    """A machine that lacks something that is needed."""


class NoKernelError(Exception):
    """No kernel came out that is right."""
