"""Taking out of a text what must not be written down."""

from __future__ import annotations

import re
from urllib.parse import quote

_LEAST_SECRET = 8
"""Characters below which a key is a placeholder such as `EMPTY`, and too common a word to be taken out."""
_URL_USER = re.compile(r"(?<=://)[^\s/@\"'<>]+@")
_SHARED = 48
"""Characters in a row that a server's words and a prompt have in common only if one quotes the other."""


class Redaction:
    """Replaces a key, in the forms that a server may echo, the home folder, and user names in URLs."""

    def __init__(self, key: str, home: str) -> None:
        forms = {key, quote(key, safe="")} if len(key) >= _LEAST_SECRET else set()
        self._forms = tuple(sorted(forms, key=len, reverse=True))
        # A home of one name, such as /root, may also be a quotient in a source: only a path that goes on is one.
        self._home = (
            re.compile(rf"(?<![\w)\]]){re.escape(home.rstrip('/'))}(?=/)") if home.strip("/") else None
        )

    def __repr__(self) -> str:
        return "Redaction()"

    def __call__(self, text: str) -> str:
        """The text without them."""
        for form in self._forms:
            text = text.replace(form, "[key]")
        if self._home is not None:
            text = self._home.sub("~", text)
        return _URL_USER.sub("", text)


def quotes(words: str, prompt: str) -> bool:
    """Whether a server's words hold a piece of the prompt."""
    starts = range(max(len(words) - _SHARED + 1, 0))
    return any(words[start : start + _SHARED] in prompt for start in starts)
