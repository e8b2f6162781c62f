import time

import pytest

from mctskernel.core.kernel import Kernel
from mctskernel.profiling.source_rules import MAX_LINE_CHARACTERS, MAX_SOURCE_CHARACTERS, rejection

KERNEL = "__global__ void k(float* x) { x[0] = 1.0f; }\n"


@pytest.mark.parametrize(
    "text",
    [
        '#include "/etc/passwd"\n',
        '#inc\\\nlude "/etc/passwd"\n',
        '%:include "/etc/passwd"\n',
        '# /* a */ include "/etc/passwd"\n',
        '#define H "/etc/passwd"\n#include H\n',
        "#include <cub/cub.cuh>\n",
        "#include_next <math.h>\n",
        '#import "x"\n',
        '#if __has_include("/etc/passwd")\n#endif\n',
        '#line 3 "x"\n',
        '#pragma include_alias("a", "b")\n',
        'const char* s = R"(" /* )";\n#include "/etc/passwd"\n//*/\n',
        "int a = 1'0; char b = '/*';\n#include \"/etc/passwd\"\n/**/\n",
        '#if 0\n\' /*\n#endif\n#include "/etc/passwd"\n',
        'asm(".extern .func x;");\n',
        'asm volatile("mov.u32 %0, 1;" "\\n.file 1 \\"x\\"" : "=r"(a));\n',
        "\0",
        "// " + "x" * 6000 + "\n",
        "//\n" * MAX_SOURCE_CHARACTERS,
    ],
)
def test_a_hostile_source_is_refused_with_a_sentence(text: str) -> None:
    assert rejection(Kernel(text + KERNEL)).endswith((".", "comment."))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "#include <cuda_fp16.h>\n#include <cooperative_groups.h>\n",
        '#define UNROLL _Pragma("unroll 4")\n',
        "#define TEXT(x) #x\n#define JOIN(a, b) a##b\n#\n",
        "constexpr int n = 0x1'000;\nconstexpr char c = '\"';\n",
        "// it's a comment with one quote\n/* and \"another */\n",
        'inline __device__ void f() { asm volatile("bar.sync 0;"); }\n',
    ],
)
def test_an_honest_source_passes(text: str) -> None:
    assert rejection(Kernel(text + KERNEL)) == ""


def test_a_source_without_a_kernel_is_refused() -> None:
    assert "no __global__ function" in rejection(Kernel('// __global__\nconst char* s = "__global__";\n'))


@pytest.mark.parametrize("piece", ["#/* ", "/* ", "#/**//*x", "# \\\n", "'", "<include<"])
def test_no_source_takes_long_to_refuse(piece: str) -> None:
    line = piece * (MAX_LINE_CHARACTERS // len(piece) // 2) + "\n"
    source = line * (MAX_SOURCE_CHARACTERS // len(line) - 1)
    began = time.process_time()
    assert rejection(Kernel(source))
    assert time.process_time() - began < 5.0
