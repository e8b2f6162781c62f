"""What is raised for a kernel that can't be written as a module of its own."""

from __future__ import annotations


class HostCodeError(ValueError):
    """A kernel without a module that stands alone; the message is a sentence."""
