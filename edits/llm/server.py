"""One request to an OpenAI-compatible server, within limits of time and bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx2
import openai

from mctskernel.edits.llm.completion import Completion, Unusable, read_completion
from mctskernel.edits.llm.failures import EncodedError, Failure, TooLongError, of_connection, of_status
from mctskernel.edits.llm.options import LLMOptions, ModelError

_NO_KEY = "none"
"""Sent where no key is set: openai sends no request without one, and servers of one's own ask for none."""


class Server:
    """The server of these options. Every failure is a value."""

    def __init__(self, options: LLMOptions, key: str) -> None:
        """Connects to nothing yet. Raises ModelError if the URL is none."""
        self.host = urlsplit(options.url).hostname or ""
        self._options = options
        # No redirections, which could carry prompts elsewhere; no compression, whose size isn't known beforehand.
        http = openai.DefaultAsyncHttpxClient(
            follow_redirects=False, event_hooks={"response": [_limit(options.max_reply_bytes)]}
        )
        try:
            self._openai = openai.AsyncOpenAI(
                api_key=key or _NO_KEY,
                base_url=options.url,
                timeout=httpx2.Timeout(options.request_seconds, connect=options.connect_seconds),
                max_retries=0,
                default_headers={"Accept-Encoding": "identity"},
                http_client=http,
            )
        except httpx2.InvalidURL:
            raise ModelError("--base-url is not a URL, such as http://localhost:8000/v1.") from None

    async def send(self, parameters: Mapping[str, Any]) -> Completion | Failure:
        """What the server makes of a chat completion with these parameters."""
        seconds = self._options.request_seconds
        try:
            async with asyncio.timeout(seconds):
                response = await self._openai.chat.completions.with_raw_response.create(**parameters)
        except TimeoutError:
            return Failure(f"didn't answer within {seconds:g} s", again=True, maybe_paid=True)
        except openai.APIStatusError as error:
            return of_status(error)
        except (openai.APIConnectionError, httpx2.HTTPError) as error:
            return of_connection(error)
        found = read_completion(response.content)
        if isinstance(found, Unusable):
            return Failure(f"answered with {found.reason}", found.words, again=True, maybe_paid=True)
        return found

    async def close(self) -> None:
        """Give the connections back."""
        await self._openai.close()


class _LimitedStream(httpx2.AsyncByteStream):
    """The bytes of a reply up to a limit; beyond it, an error's are left unread, and others are no reply."""

    def __init__(self, stream: httpx2.AsyncByteStream, limit: int, *, is_error: bool) -> None:
        self._stream = stream
        self._limit = limit
        self._is_error = is_error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > self._limit:
                if self._is_error:
                    return
                raise TooLongError(f"sent more than the {self._limit} bytes that are read of a reply")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def _limit(most_bytes: int) -> Any:
    """A hook that httpx runs before it reads a response."""

    async def limit(response: httpx2.Response) -> None:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise EncodedError("compressed its reply, though asked not to")
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - of an asynchronous client
        response.stream = _LimitedStream(response.stream, most_bytes, is_error=response.is_error)

    return limit
