"""Kernels that differ in names alone become one, as those of equal layers: less to read and to compile."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

_WORD = re.compile(r"(?<![\w.:])[A-Za-z_]\w*")
_TYPE = r"(?:int|float|double|bool|char|short|long|unsigned|auto|__half|__nv_bfloat16|(?:\w+::)*[A-Z]\w*(?:<[^<>;]*>)?)"
_DECLARED = re.compile(
    rf"\b{_TYPE}(?:\s*[*&]+|\s*\*\s*const)*(?:\s*__restrict__)?\s+[*&(]*(\w+)\b(?=\)?\s*[=;,\[\]{{)(:])"
)
_DEFINED = re.compile(r"^(?:struct|using) (\w+)|^__constant__ [^=\n]*?(\w+)\[\]", re.MULTILINE)
_FUNCTION = re.compile(r"(\w+)\(")


class Texts(NamedTuple):
    """The parts of a kernel file: what comes before its kernels, these with their launches, and its macros."""

    definitions: Sequence[str]
    kernels: Sequence[tuple[str, str]]
    macros: Mapping[str, int]


def merged(texts: Texts) -> tuple[Texts, Mapping[str, str]]:
    """The texts without repeated definitions and kernels, and the names that stand for others."""
    names: dict[str, str] = {}
    known: dict[str, list[str]] = {}
    for text in texts.definitions:
        own = [struct or array for struct, array in _DEFINED.findall(text)]
        form = renamed(renamed(text, names), {name: f"@{number}" for number, name in enumerate(own)})
        names |= {
            name: first for name, first in zip(own, known.setdefault(form, own), strict=True) if name != first
        }
    definitions = list(dict.fromkeys(renamed(text, names) for text in texts.definitions))
    kernels = [(renamed(text, names), launch) for text, launch in texts.kernels]
    names |= dict(_same_kernels([text for text, _ in kernels], texts.macros))
    gone = {name for name in texts.macros if name in names}
    kept = [
        (text if _kernel_name(text) not in names else "", renamed(launch, names)) for text, launch in kernels
    ]
    macros = {name: value for name, value in texts.macros.items() if name not in gone}
    return Texts(definitions, kept, macros), names


def _same_kernels(texts: Sequence[str], macros: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """The names of kernels that are like an earlier one, and of their macros, with the earlier one's."""
    first: dict[str, list[str]] = {}
    same: dict[int, dict[str, str]] = {}
    users: dict[str, set[int]] = {}
    for number, text in enumerate(texts):
        words, own = _form(text, macros)
        for word in own:
            users.setdefault(word, set()).add(number)
        like = first.setdefault(words, own)
        if like is not own and text:
            same[number] = dict(zip(own, like, strict=True))
    while True:
        # A macro of several kernels can only go with all of them.
        wrong = [
            number
            for number, pairs in same.items()
            for name, other in pairs.items()
            if name in macros and name != other
            if any(same.get(user, {}).get(name) != other for user in users[name])
        ]
        if not wrong:
            break
        for number in wrong:
            same.pop(number, None)
    for pairs in same.values():
        yield from ((name, other) for name, other in pairs.items() if name != other)


def _form(text: str, macros: Mapping[str, int]) -> tuple[str, list[str]]:
    """A kernel's text with numbers in place of its own names; with these, its macros and its own name, in order."""
    name = _kernel_name(text)
    own = {*_DECLARED.findall(text)} - {"int", "long"} | {name}
    places: dict[str, str] = {}

    def numbered(word: re.Match[str]) -> str:
        if word[0] not in own and word[0] not in macros:
            return word[0]
        return places.setdefault(
            word[0], f"@{len(places)}{f'={macros[word[0]]}' if word[0] in macros else ''}"
        )

    form = _WORD.sub(numbered, text[text.find("extern") :])  # without the comment
    return form, [word for word in places if word in macros or word == name]


def _kernel_name(text: str) -> str:
    head = text.partition("{")[0].rpartition("__global__")[2]
    names = [name for name in _FUNCTION.findall(head) if name != "__launch_bounds__"]
    return names[0] if names else ""


def renamed(text: str, names: Mapping[str, str]) -> str:
    return _WORD.sub(lambda word: names.get(word[0], word[0]), text)
