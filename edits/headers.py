"""Headers that a kernel includes."""

from __future__ import annotations

from mctskernel.core.kernel import leading_comment
from mctskernel.edits.syntax import Replacement, Source, text_of, walk


def with_headers(source: Source, *names: str) -> list[Replacement]:
    """The change that includes CUDA's own headers of these names where the text doesn't yet."""
    directives = list(walk(source.root, "preproc_include"))
    present = {text_of(node).partition("include")[2].strip().strip('<>"') for node in directives}
    text = "".join(f"#include <{name}>\n" for name in names if name not in present)
    if not text:
        return []
    if directives:
        end = directives[-1].end_byte
        newline = b"\n" if not source.text.encode()[:end].endswith(b"\n") else b""
        return [Replacement(end, end, newline.decode() + text.removesuffix("\n" if newline else ""))]
    lead = leading_comment(source.text)
    position = len(source.text[: lead[1] + 2].encode()) if lead is not None else 0
    return [Replacement(position, position, f"\n{text}".removesuffix("\n") if lead is not None else text)]
