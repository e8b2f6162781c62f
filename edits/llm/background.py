"""Coroutines that run in a thread of their own, where any other thread can end them at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

T = TypeVar("T")

_CLOSING_SECONDS = 1.0


class Background:
    """An event loop in a daemon thread called `name`. `at_end` runs in it when everything else has ended."""

    def __init__(self, name: str, at_end: Callable[[], Awaitable[None]]) -> None:
        self._at_end = at_end
        self._lock = threading.Lock()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns. Raises CancelledError (of concurrent.futures) once this is closed."""
        with self._lock:
            if self._closed:
                work.close()
                raise CancelledError
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        finally:
            # Ctrl-C comes here as KeyboardInterrupt, and the work has to end with it.
            future.cancel()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine that reports its own result. Does nothing once this is closed."""
        with self._lock:
            if self._closed:
                work.close()
                return
            asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """End what runs, and wait for that for a second at the most."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSING_SECONDS)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()
            runner.run(self._end())

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._at_end()
