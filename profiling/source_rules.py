"""Static guardrails: what a candidate may not contain, checked before anything is built.

The rules here are those of CUDA C++; Triton's are in `triton.source`. A CUDA C++ candidate is hostile text that the
compiler reads on this machine. So it may include CUDA's own headers and a few of C and C++ and nothing else, may not
ask which files exist, and may not hide a directive from these rules: what C++ would read differently from the scanner
below (raw strings, unbalanced quotes) is refused too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mctskernel.core.kernel import Kernel, Language
from mctskernel.profiling.triton.source import ForbiddenError, SourceError, read_module

MAX_SOURCE_CHARACTERS = 1_000_000
MAX_LINE_CHARACTERS = 5_000

CUDA_HEADERS = frozenset(
    """
    cooperative_groups.h cooperative_groups/memcpy_async.h cooperative_groups/reduce.h
    cooperative_groups/scan.h cuComplex.h cuda/atomic cuda/barrier cuda/pipeline cuda/ptx
    cuda/std/algorithm cuda/std/array cuda/std/atomic cuda/std/bit cuda/std/cfloat cuda/std/climits
    cuda/std/cmath cuda/std/cstddef cuda/std/cstdint cuda/std/cstring cuda/std/functional
    cuda/std/initializer_list cuda/std/limits cuda/std/numeric cuda/std/tuple cuda/std/type_traits
    cuda/std/utility cuda.h cuda_awbarrier.h cuda_awbarrier_primitives.h cuda_bf16.h cuda_fp16.h cuda_fp4.h
    cuda_fp6.h cuda_fp8.h cuda_pipeline.h cuda_pipeline_primitives.h cuda_runtime.h
    cuda_runtime_api.h device_functions.h device_launch_parameters.h math_constants.h
    math_functions.h mma.h sm_61_intrinsics.h vector_functions.h vector_types.h
    """.split()
)
"""CUDA's own headers. Libraries (CUB, CUTLASS, Thrust) are not allowed."""

PLAIN_HEADERS = frozenset(
    """
    algorithm array assert.h cassert cfloat climits cmath cstddef cstdint cstdio cstdlib cstring
    float.h limits limits.h math.h stdbool.h stddef.h stdint.h stdio.h stdlib.h string.h type_traits
    utility
    """.split()
)
"""Headers of the C and C++ libraries that are useful in a kernel: those of `system_headers/`."""

OWN_HEADERS = frozenset({"attention.cuh", "blocks.cuh", "convolutions.cuh", "recurrent.cuh", "rows.cuh"})

HEADERS = CUDA_HEADERS | PLAIN_HEADERS | OWN_HEADERS

_DIRECTIVES = frozenset("define elif else endif error if ifdef ifndef include pragma undef warning".split())
_PRAGMAS = re.compile(r"(?:unroll|nounroll|once|nv_\w+|GCC\s+ivdep)\b")
_PTX_DIRECTIVES = re.compile(
    r"\.(?:address_size|alias|entry|extern|file|func|include|loc|pragma|section|target|version|visible|weak)\b"
)


@dataclass(frozen=True)
class Scan:
    """A CUDA source as the preprocessor sees it: lines spliced, comments gone, digraphs resolved.

    `code` keeps string literals, `bare` has them emptied, `strings` is what they hold, joined; `text` still
    has the comments.
    """

    text: str
    code: str
    bare: str
    strings: str
    oddities: tuple[str, ...]

    @property
    def directives(self) -> Iterator[tuple[str, str]]:
        """Each preprocessor directive's name and what follows it."""
        for match in re.finditer(r"^[ \t\f\v]*#[ \t\f\v]*(\w*)(.*)$", self.code, re.MULTILINE):
            if match[1] or match[2].strip():
                yield match[1], match[2].strip()


def rejection(kernel: Kernel) -> str:
    """Why a kernel is rejected before it is built, as a sentence; empty when nothing is wrong with it."""
    if too_large := _size(kernel.source):
        return too_large
    if kernel.language is Language.TRITON:
        return _triton_error(kernel.source, ForbiddenError)
    found = scan(kernel.source)
    return next(filter(None, (rule(found) for rule in RULES)), "")


def unreadable(kernel: Kernel) -> str:
    """Why a source can't be parsed, where that is known before it is built; empty otherwise."""
    return _triton_error(kernel.source, SourceError) if kernel.language is Language.TRITON else ""


def _triton_error(source: str, kind: type[SourceError]) -> str:
    try:
        read_module(source)
    except SourceError as error:
        return str(error) if isinstance(error, kind) else ""
    return ""


def scan(source: str) -> Scan:
    """Translation phases 2 and 3 of C++, as far as the rules need them."""
    text = re.sub(r"\\[ \t\f\v]*\r?\n", "", source.replace("\r\n", "\n"))
    code: list[str] = []
    bare: list[str] = []
    strings: list[str] = []
    oddities: list[str] = []
    for token in _tokens(text):
        kind, piece = token.lastgroup, token[0]
        if kind == "raw":
            oddities.append("a raw string literal")
        elif kind == "stray":
            oddities.append("an unbalanced quote or comment")
        if kind == "comment":
            piece = "\n" * piece.count("\n") or " "
        elif kind == "digraph":
            piece = "#"
        elif kind == "string":
            strings.append(piece[1:-1])
        code.append(piece)
        bare.append('""' if kind == "string" else piece)
    return Scan(text, "".join(code), "".join(bare), "".join(strings), tuple(oddities))


def _tokens(text: str) -> Iterator[re.Match[str]]:
    last_end, position = text.rfind("*/"), 0
    while token := (_TOKENS if position <= last_end else _TOKENS_BEHIND_COMMENTS).match(text, position):
        yield token
        position = token.end()


_PATTERNS = r"""
      (?P<comment> //[^\n]* | /\*.*?\*/ )
    | (?P<raw>     \b(?:u8|[uUL])?R" )
    | (?P<word>    [A-Za-z_$]\w* )
    | (?P<number>  \.?[0-9](?: [eEpP][+-] | '[0-9A-Za-z] | [\w.] )* )
    | (?P<header>  (?<=include)[ \t]*<[^>\n]*> )
    | (?P<string>  "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' )
    | (?P<stray>   ["'] | /\* )
    | (?P<digraph> %: | \?\?= )
    | (?P<other>   . )
    """
_TOKENS = re.compile(_PATTERNS, re.VERBOSE | re.DOTALL)
_TOKENS_BEHIND_COMMENTS = re.compile(_PATTERNS.replace(r"| /\*.*?\*/", ""), re.VERBOSE | re.DOTALL)
"""Where no comment ends any more: each beginning of one would be followed to the end of the text."""


def _size(source: str) -> str:
    if len(source) > MAX_SOURCE_CHARACTERS:
        return f"The source has {len(source)} characters; the limit is {MAX_SOURCE_CHARACTERS}."
    longest = max(map(len, source.splitlines()), default=0)
    if longest > MAX_LINE_CHARACTERS:
        return f"The source has a line of {longest} characters; the limit is {MAX_LINE_CHARACTERS}."
    return ""


def _readable(found: Scan) -> str:
    if "\0" in found.text:
        return "The source holds a NUL character."
    return f"The source has {found.oddities[0]}, which is not allowed here." if found.oddities else ""


def _has_kernel(found: Scan) -> str:
    if re.search(r"\b__global__\b", found.bare):
        return ""
    return "The source has no __global__ function, so there is no kernel to launch."


def _known_directives(found: Scan) -> str:
    for name, rest in found.directives:
        if name not in _DIRECTIVES:
            return f"The preprocessor directive #{name or rest} is not allowed in a candidate."
        if name == "pragma" and not _PRAGMAS.match(rest):
            return f"#pragma {rest} is not allowed in a candidate."
    pragma = re.search(r"\b_Pragma\s*\(\s*(?!\"(?:unroll|nounroll|nv_))", found.code)
    return "_Pragma is allowed for unroll and nv_ diagnostics alone." if pragma else ""


def _allowed_headers(found: Scan) -> str:
    for name, rest in found.directives:
        if name == "include":
            header = re.fullmatch(r'<([^>]*)>|"([^"]*)"', rest)
            wanted = (header[1] or header[2]) if header else None
            if wanted not in HEADERS:
                return (
                    f"#include {rest} is not allowed: a candidate may include {', '.join(sorted(OWN_HEADERS))}, "
                    "CUDA's own headers and plain ones of C and C++ (stdint.h, cmath, limits, type_traits, ...), "
                    "and no libraries."
                )
    # The same again on the text with its comments, for a directive that this scanner took for a comment.
    for match in re.finditer(
        r"(?:#|%:|\?\?=)(?:\s|/\*(?:[^*\n]|\*(?!/))*+\*/)*+(include\w*|embed|import|line)\b(.*)", found.text
    ):
        wanted = re.match(r'\s*[<"]([^>"]*)[>"]', match[2])
        if match[1] != "include" or wanted is None or wanted[1] not in HEADERS:
            return f"#{match[1]}{match[2]} is not allowed in a candidate, not even in a comment."
    return ""


def _no_questions_about_files(found: Scan) -> str:
    match = re.search(
        r"\b__has_(?:include\w*|embed)\b|\b__has_\s*##|##\s*(?:_*include|_*embed)\b", found.code
    )
    return f"{match[0]} asks which files exist, which is not allowed in a candidate." if match else ""


def _plain_assembly(found: Scan) -> str:
    if not re.search(r"\b(?:asm|__asm__|__asm)\b", found.bare):
        return ""
    escape = re.search(r"\\[^nt\\'\"]", found.strings)
    if escape:
        return (
            f"A source with inline assembly may not spell characters as {escape[0]}: instructions need none."
        )
    # What a macro makes a string of stands in the code as it is.
    stringised = re.search(r"#[ \t]*define\b[^\n]*[^#]#[ \t]*[A-Za-z_]", found.code)
    directive = _PTX_DIRECTIVES.search(found.code if stringised else found.strings)
    return f"Inline assembly may hold instructions, not the directive {directive[0]}." if directive else ""


RULES = (
    _readable,
    _has_kernel,
    _known_directives,
    _allowed_headers,
    _no_questions_about_files,
    _plain_assembly,
)
"""Each gives a sentence that refuses a source, or nothing when the rule is kept."""
