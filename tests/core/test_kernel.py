"""A kernel's identity ignores what the compiler ignores, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.core.kernel import Kernel

PLAN = '/*\n[[launch]]\nkernel = "k"\ngrid = [1]\nblock = [1]\n*/\n'
BODY = """#define BLOCK 256
__global__ void k(float* x) {
    x[threadIdx.x] = 1.0f / 2.0f;
}
"""


def same(a: str, b: str) -> bool:
    return Kernel(a).identity == Kernel(b).identity


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("int a = 1;", "int a = 2;"),
        ('f("a // b");', 'f("a // c");'),
        ('f("a\\"// b");', 'f("a\\"// c");'),
        ("char c = '\"'; int a; // \"", "char c = '\"'; int b; // \""),
        ("#define A 1\nint x;", "#define A 1 int x;"),
        ("int a; /* */ int b;", "int a; int c;"),
    ],
)
def test_code_counts(a: str, b: str) -> None:
    assert not same(PLAN + a, PLAN + b)


def test_the_plan_counts_although_it_is_a_comment() -> None:
    assert not same(PLAN + BODY, PLAN.replace("grid = [1]", "grid = [2]") + BODY)
    assert not same(PLAN + BODY, BODY)


@given(st.text(alphabet="ab /*\"\\\n'", max_size=40))
def test_an_identity_exists_for_every_text_and_knows_appended_code(text: str) -> None:
    assert len(Kernel(text).identity) == 64
    assert Kernel(text).identity == Kernel(text).identity
    assert not same(PLAN + "int start;\n" + text, PLAN + "int begin;\n" + text)


TOKENS = "__global__ void k ( float * x ) { x [ 0 ] = 1.0f / 2.0f ; }".split()
FILLERS = st.sampled_from(
    [" ", "  ", "\t", " /* c */ ", " /**/", " /* two\nlines */ ", ' /* "quote */ ', " /* it's // */ "]
)


@given(
    st.lists(FILLERS, min_size=len(TOKENS), max_size=len(TOKENS)),
    st.sampled_from(["", "// end", "/* end */", "\n\n"]),
)
def test_comments_and_spaces_between_tokens_do_not_count(fillers: list[str], end: str) -> None:
    written = "".join(token + filler for token, filler in zip(TOKENS, fillers, strict=True)) + end
    assert same(PLAN + written, PLAN + " ".join(TOKENS))


def test_macros_are_whole_numbers_in_order() -> None:
    source = PLAN + (
        "#define TILE 16 // comment\n"
        "  #  define HEX 0x20\n"
        "#define PARENTHESISED (TILE * 2)\n"
        "#define RATE 0.5f\n"
        "#define CALL(x) (x + 1)\n"
        "#define NOTHING\n"
        "// #define COMMENTED 3\n"
        "/*\n#define HIDDEN 4\n*/\n"
        "#define UNKNOWN (OTHER + 1)\n"
        "#define LAST 5 /* five */\n"
    )
    assert list(Kernel(source).macros.items()) == [
        ("TILE", 16),
        ("HEX", 32),
        ("PARENTHESISED", 32),
        ("LAST", 5),
    ]


def test_a_macro_that_doubles_itself_ends() -> None:
    lines = ["#define A0 1"] + [f"#define A{i} A{i - 1} + A{i - 1}" for i in range(1, 60)]
    assert len(Kernel("\n".join(lines)).macros) < 12


@pytest.mark.parametrize("text", ['"' + '\\"' * 60_000, "'" + "\\'" * 60_000, "int a;\n" + "/* " * 40_000])
def test_hostile_sources_have_an_identity_soon(text: str) -> None:
    # Quadratic time would exceed the limit of the whole test.
    assert Kernel(text).identity
