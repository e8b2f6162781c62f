"""What a Triton module may hold. Every refusal names its line; none of the texts here is ever executed."""

import sys

import pytest

from mctskernel.core.kernel import Kernel, Language
from mctskernel.profiling.source_rules import MAX_SOURCE_CHARACTERS, rejection
from mctskernel.profiling.triton.names import FUNCTIONS, HOST, LANGUAGE, LIBDEVICE, MATH, MEMBERS
from mctskernel.profiling.triton.source import SourceError, read_module

HEAD = '"""plan"""\nimport triton\nimport triton.language as tl\n'
KERNEL = HEAD + "@triton.jit\ndef k(x, n, BLOCK: tl.constexpr):\n    {}\n"


def refusal(source: str) -> str:
    return rejection(Kernel(source, Language.TRITON))


def in_body(statement: str) -> str:
    return KERNEL.format(statement.replace("\n", "\n    "))


HOST_CODE = [
    "print('hello')",
    "import os",
    "import triton.runtime",
    "import triton as tl",
    "from triton import jit",
    "from triton.language import *",
    "from triton.language.extra import libdevice as tl",
    "x = open('/etc/passwd').read()",
    "x = 'text'",
    "x = tl.constexpr(print(1))",
    "x: __import__('os').system('true') = 3",
    "x = 2 ** 99999999",
    "x = __import__('os')",
    "__name__ = 3",
    "tl = 3",
    "if True:\n    pass",
    "class A:\n    pass",
    "def host():\n    pass",
    "'a text that is no docstring'",
    "@triton.jit\nasync def f():\n    pass",
    "@triton.jit(do_not_specialize=[print(1)])\ndef f():\n    pass",
    "@triton.autotune([], [])\n@triton.jit\ndef f():\n    pass",
    "@print\ndef f():\n    pass",
    "@(triton.jit if print(1) else triton.jit)\ndef f():\n    pass",
    "@triton.jit\ndef k(x):\n    pass",  # defined twice
    "@triton.jit\ndef tl(x):\n    pass",
    "@triton.jit\ndef f(x=print(1)):\n    pass",
    "@triton.jit\ndef f(x: print(1)):\n    pass",
    "@triton.jit\ndef f(x) -> print(1):\n    pass",
    "@triton.jit\ndef f(*x):\n    pass",
    "@triton.jit\ndef f(tl):\n    pass",
]


@pytest.mark.parametrize("text", HOST_CODE)
def test_host_code_is_refused_with_its_line(text: str) -> None:
    found = refusal(in_body("pass") + text + "\n")
    assert found.startswith("Line "), found
    line = int(found.removeprefix("Line ").partition(":")[0])
    assert 7 <= line <= 7 + text.count("\n")
    assert found.endswith(".")
    assert "\n" not in found


ATTACKS = [
    "import os",
    "from os import system",
    "tl.core.sys.modules",
    "tl.core",
    "tl.math.core.sys",
    "tl.inline_asm_elementwise('', '', [], tl.int32, True, 1)",
    "tl.device_print('x')",
    "tl.__builtins__",
    "tl.load.__globals__",
    "tl.PropagateNan.mro()",
    "triton.runtime",
    "triton.compile(x)",
    "libdevice.core",
    "x.__class__",
    "BLOCK.value.__class__",
    "x._unflatten_ir",
    "'text'.format(x)",
    "getattr(tl, 'core')",
    "eval('1')",
    "__import__('os')",
    "globals()",
    "__name__",
    "y = tl",
    "y = tl if n else 1",
    "tl.load(tl)",
    "k.fn",
    "tl = 3",
    "k = 3",
    "x[0] = 3",
    "(y := 3)",
    "y = lambda: 1",
    "def f():\n    pass",
    "@triton.jit\ndef f():\n    pass",
    "class A:\n    pass",
    "[i for i in range(3)]",
    "f'{x}'",
    "b'bytes'",
    "y = 'text'",
    "y = 'a' * 1000000000",
    "y = ...",
    "global n",
    "try:\n    pass\nfinally:\n    pass",
    "with tl.async_task([0]):\n    pass",
    "yield n",
    "for i in range(3):\n    break",
    "for i in tl.core.range(3):\n    pass",
    "for tl in range(3):\n    pass",
    "tl.load(*x)",
    "tl.load(x, _semantic=1)",
    "tl.load(x)(1)",
    "(tl.load if n else tl.store)(x)",
    "tl.reduce(x, 0, lambda a, b: a)",
    "tl.reduce(x, 0, print)",
    "tl.load('" + "a" * 201 + "')",
    "y: print(1) = 3",
    "y: tl.constexpr",
    "y: tl.constexpr = tl",
    "match n:\n    case 1:\n        pass",
    "x[*y]",
    "return print(n)",
    "while eval('n'):\n    pass",
    "tl.arange(0, (lambda: 1)())",
]


@pytest.mark.parametrize("statement", ATTACKS)
def test_what_could_reach_python_is_refused_with_its_line(statement: str) -> None:
    found = refusal(in_body(statement))
    assert found.startswith("Line "), found
    line = int(found.removeprefix("Line ").partition(":")[0])
    assert 6 <= line <= 6 + statement.count("\n")


@pytest.mark.parametrize(
    "text", ["ｇｅｔａｔｔｒ(x, 'y')", "x.ｆｎ", "x.＿＿class＿＿", "ｔｌ.core", "x = ｔｌ"]
)
def test_names_are_judged_as_python_reads_them(text: str) -> None:
    """Letters of another width are the same letters to Python."""
    with pytest.raises(SourceError, match="Line 6:"):
        read_module(in_body(text))
    assert refusal(in_body("tl.load(ｘ)")) == ""


@pytest.mark.parametrize(
    "character", ["\0", "\r", "\f", "\v", "\x1c", "\x85", "\u2028", "\u2029", "\x1b", "\u202e", "\u2066"]
)
def test_what_some_readers_take_for_a_new_line_is_refused(character: str) -> None:
    """Triton takes a function's text by line numbers: a hidden line would have another one compiled."""
    source = in_body("pass") + f"#{character}def evil(x):{character}    tl.core.sys\n"
    assert refusal(source).startswith("Line 7: the control character U+")


def test_nesting_is_bounded() -> None:
    assert "nested" in refusal(in_body("n = " + "-" * 200 + "1"))
    assert "nested" in refusal(in_body("n = " + "(" * 100 + "1" + ",)" * 100))
    assert "nested" in refusal(in_body("n = " + " + ".join("1" for _ in range(1000))))
    assert refusal(in_body("n = " + " + ".join("1" for _ in range(30)))) == ""
    # What Python's own parser gives up on is no Python to it, or too deep.
    for text in ("n = " + "(" * 1500, "n = " + "-" * 4000 + "1"):
        try:
            read_module(in_body(text))
        except SourceError:
            continue
        pytest.fail("read")


def test_size_is_bounded() -> None:
    assert "characters" in refusal(in_body("pass") + "#\n" * MAX_SOURCE_CHARACTERS)


def test_what_is_no_python_is_left_to_the_build() -> None:
    source = in_body("n = = 3")
    assert refusal(source) == ""
    with pytest.raises(SourceError, match=r"Line 6: Syntax error: invalid syntax"):
        read_module(source)


def test_a_module_without_a_kernel_is_refused() -> None:
    assert refusal(HEAD) == "The source has no @triton.jit function, so there is no kernel to launch."


def test_the_names_that_are_allowed_are_public_and_no_modules() -> None:
    language = pytest.importorskip("triton.language", reason="Triton is not installed")
    for known, owner in ((LANGUAGE, language), (MATH, language.math)):
        assert all(not name.startswith("_") for name in known)
        for name in known:
            found = getattr(owner, name, None)
            assert not isinstance(found, type(sys)), name
    assert not {"device_print", "static_print", "inline_asm_elementwise", "core", "extra"} & LANGUAGE
    assert not any(name.startswith("_") for name in (*MEMBERS, *LIBDEVICE, *HOST, *FUNCTIONS))
