"""Texts as Python literals that people can read."""

from __future__ import annotations

import ast


def raw_literal(text: str) -> str:
    """A raw string over several lines where one can hold the text as it is, and an escaped one otherwise."""
    literal = f"r'''{text}'''"
    return literal if _stands_for(literal, text) else repr(text)


def docstring(text: str) -> str:
    """A literal for a docstring."""
    literal = f'"""{text}"""'
    return literal if _stands_for(literal, text) else repr(text)


def _stands_for(literal: str, text: str) -> bool:
    if not text.replace("\n", "").replace("\t", "").isprintable():
        return False
    try:
        return bool(ast.literal_eval(literal) == text)
    except (SyntaxError, ValueError):
        return False
