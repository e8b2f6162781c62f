"""Evaluations on another machine, by a server that was started there with `mctskernel serve`."""

from __future__ import annotations

from mctskernel.executors.remote.executor import open_remote, server_status

__all__ = ["open_remote", "server_status"]
