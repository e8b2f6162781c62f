"""A plan either resolves or is refused with a sentence: it comes from candidates."""

import pytest

from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import (
    Buffer,
    LaunchPlanError,
    ResolvedLaunch,
    ResolvedOptions,
    ResolvedPlan,
    plan_of,
    resolve,
)

NAMES = {"rows": 1000, "cols": 300, "BLOCK": 256, "eps": 1e-5}
BUFFERS = {"x": Buffer("float32", (1000, 300)), "out": Buffer("int8", (1000, 100))}
LAUNCH = """\
[[launch]]
kernel = "k"
grid = ["ceil_div(rows, BLOCK)", 2]
block = "BLOCK"
args = ["x", "out", "rows", "eps", 0.5]
"""


def resolved(toml: str) -> ResolvedPlan:
    return resolve(plan_of(Kernel(f"/*\n{toml}*/\n")), NAMES, BUFFERS)


def test_a_plan_resolves_at_a_shape() -> None:
    plan = resolved(
        LAUNCH.replace("args", 'shared = "BLOCK * 4"\nargs')
        + '[[launch]]\nkernel = "m"\ngrid = 1\nblock = [8, 4, 2]\nargs = ["part"]\n'
        + '[[scratch]]\nname = "part"\ndtype = "float16"\nshape = ["rows", 3]\nzero = true\n'
    )
    first, second = plan.launches
    assert (first.kernel, first.grid, first.block, first.shared_bytes) == ("k", (4, 2, 1), (256, 1, 1), 1024)
    assert first.arguments == ("x", "out", 1000, 1e-5, 0.5)
    assert (first.threads, first.blocks, second.threads, second.arguments) == (256, 8, 64, ("part",))
    (scratch,) = plan.scratch
    assert (scratch.extents, scratch.nbytes, scratch.zero) == ((1000, 3), 6000, True)


TRITON = '''"""
[[launch]]
kernel = "k"
grid = ["ceil_div(n, BLOCK)"]
args = ["x", "n"]
constexprs = { BLOCK = "BLOCK", SCALE = 0.5 }
num_warps = "BLOCK // 128"
"""
import triton

BLOCK = 4 * 128
'''


def triton_plan(source: str) -> ResolvedLaunch:
    kernel = Kernel(source, Language.TRITON)
    return resolve(plan_of(kernel), {**kernel.macros, "n": 1000}, {"x": BUFFERS["x"]}).launches[0]


def test_a_triton_plan_is_in_the_docstring() -> None:
    launch = triton_plan(TRITON)
    assert launch.triton == ResolvedOptions((("BLOCK", 512), ("SCALE", 0.5)), num_warps=4, num_stages=3)
    assert (launch.grid, launch.block, launch.arguments) == ((2, 1, 1), (128, 1, 1), ("x", 1000))
    with pytest.raises(LaunchPlanError, match="leading docstring"):
        plan_of(Kernel("import triton\n", Language.TRITON))


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("num_warps", "block", "unknown field `block`"),
        ('"BLOCK // 128"', "3", "num_warps is 3; it must be a power of two up to 32"),
        ('num_warps = "BLOCK // 128"', "num_stages = 99", "num_stages is 99; it must be from 1 to 16"),
        ("0.5", "[1]", "constexprs.*Expected"),
        ("SCALE = 0.5", 'SCALE = "rows"', "constexpr 'SCALE'"),
        ('num_warps = "BLOCK // 128"', "num_ctas = 3", "num_ctas is 3; it must be a power of two up to 16"),
        ('num_warps = "BLOCK // 128"', "maxnreg = 300", "maxnreg is 300; it must be up to 255"),
    ],
)
def test_a_wrong_triton_launch_is_told_in_a_sentence(old: str, new: str, sentence: str) -> None:
    assert old in TRITON
    with pytest.raises(LaunchPlanError, match=sentence):
        triton_plan(TRITON.replace(old, new, 1))


CLUSTER = LAUNCH.replace("grid = [", "cluster = [4, 2]\ngrid = [")
MAP = '[[tensor_map]]\nname = "m"\ntensor = "x"\nbox = [64, 32]\n'


def test_clusters_overlap_and_tensor_maps_resolve() -> None:
    second = CLUSTER.replace('"x", ', '"m", ') + "programmatic = true\n"
    plan = resolved(LAUNCH + second + MAP + "swizzle = 128\n")
    first, launch = plan.launches
    assert (first.cluster, first.programmatic) == ((1, 1, 1), False)
    assert (launch.cluster, launch.programmatic, launch.arguments[0]) == ((4, 2, 1), True, "m")
    (made,) = plan.tensor_maps
    assert (made.tensor, made.dtype, made.extents, made.box) == ("x", "float32", (1000, 300), (64, 32))
    assert (made.strides, made.element_strides, made.swizzle, made.nbytes) == (
        (1200, 4),
        (1, 1),
        128,
        1200000,
    )
    flat = resolved(LAUNCH + MAP.replace("[64, 32]", "[256]") + 'shape = ["rows * cols"]\n')
    assert flat.tensor_maps[0].extents == (300000,)
    odd = MAP.replace("[64, 32]", "[64, 32]\nshape = [1000, 299]\noptional = true")
    assert resolved(LAUNCH + odd).tensor_maps[0].optional, "the kernel looks whether TMA can read it"
    large = CLUSTER.replace("[4, 2]", "[16]").replace('"ceil_div(rows, BLOCK)"', "32")
    assert resolved(large + "nonportable_cluster = true\n").launches[0].cluster == (16, 1, 1)


SCRATCH = '[[scratch]]\nname = "s"\nshape = [1]\n'


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        ("", "missing required field `launch`"),
        ("[[launch]\n", "not valid TOML"),
        (LAUNCH.replace("rows, BLOCK", "rowz, BLOCK"), "'k': the grid: .* unknown name 'rowz'"),
        (LAUNCH.replace("2]", '"rows / 3"]'), "1000 / 3 is not a whole number"),
        (LAUNCH.replace('"BLOCK"\n', '"BLOCK * 8"\n'), "the block is 2048 in x; it must be from 1 to 1024"),
        (LAUNCH.replace('"BLOCK"\n', "[256, 8]\n"), "block of 2048 threads is over the limit of 1024"),
        (LAUNCH + f"shared = {10**30}\n", "exceeds 64 bits"),
        (LAUNCH.replace('"out"', '"y"'), "argument 'y' uses the unknown name 'y' .* Buffers: out, x"),
        (LAUNCH.replace('"out"', '"__import__(1)"'), "something other than integer arithmetic"),
        (LAUNCH * 513, "length <= 512"),
        (LAUNCH + SCRATCH.replace('"s"', '"x"'), "'x' takes a name that is already in use"),
        (LAUNCH + SCRATCH.replace("[1]", '["1 << 40"]'), "would take 4398046511104 bytes"),
        (
            LAUNCH
            + SCRATCH.replace("[1]", '["1 << 30"]')
            + SCRATCH.replace('"s"', '"t"').replace("[1]", '["(1 << 30) + 1"]'),
            "would take 8589934596 bytes together",
        ),
        (CLUSTER.replace("[4, 2]", "[3]"), "the cluster's 3 blocks in x don't divide the grid's 4"),
        (CLUSTER.replace("[4, 2]", "[4, 4]"), "16 blocks is over the limit of 8; up to 16 take nonportable"),
        (CLUSTER.replace("[4, 2]", "[8, 8]"), "64 blocks is over the limit of 8\\."),
        (LAUNCH + "programmatic = true\n", "is the first"),
        (LAUNCH + MAP.replace('"m"', '"out"'), "'out' takes a name that is already in use"),
        (LAUNCH + MAP + MAP, "'m' takes a name that is already in use"),
        (LAUNCH + MAP.replace('"x"', '"y"'), "of 'y', which is no buffer. Buffers: out, x"),
        (LAUNCH + MAP.replace('"x"', '"out"'), "TMA can't read 'out', .* axis 0 are 100 bytes apart, .* 16"),
        (LAUNCH + MAP.replace("[64, 32]", "[512, 32]"), "each extent must be from 1 to 256"),
        (
            LAUNCH + MAP.replace("[64, 32]", "[4]") + "shape = [3]\n",
            "has 12 bytes, and TMA copies at least 16",
        ),
        (LAUNCH + MAP.replace("[64, 32]", "[64, 30]"), "120 bytes in its last axis, .* no multiple of 16"),
        (LAUNCH + MAP.replace("[64, 32]", "[64]"), "has 1 numbers as box, and 2 axes"),
        (
            LAUNCH + MAP.replace("[64, 32]", "[64, 64]") + "swizzle = 128\n",
            "more than the 128 of its swizzle",
        ),
        (LAUNCH + MAP + 'shape = ["rows + 1", "cols"]\n', "has 300300 elements; 'x' has 300000"),
        (LAUNCH + MAP + "element_strides = [9, 1]\n", "each must be from 1 to 8"),
        (LAUNCH + MAP + "interleave = 32\n", "2 axes, and TMA takes 3 to 5"),
        (LAUNCH + MAP + 'shape = [1, 1, 1, 1, 1, "cols"]\n', "length <= 5"),
        (LAUNCH + MAP + "swizzle = 96\n", "Invalid enum value 96"),
    ],
)
def test_a_bad_plan_is_a_sentence(toml: str, sentence: str) -> None:
    with pytest.raises(LaunchPlanError, match=sentence) as caught:
        resolved(toml)
    assert str(caught.value).endswith(".")
