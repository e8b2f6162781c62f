"""The Triton rules on kernels in other people's forms: what they make is right at awkward shapes."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

import mctskernel.tasks.builtin
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Shape, Task
from mctskernel.core.task_file import load_task
from mctskernel.profiling.model_device import ModelDevice

from .foreign import MATMUL, RMSNORM

Propose = Callable[..., dict[str, str]]
TMA = "tiles copied by TMA"
FOLDER = Path(mctskernel.tasks.builtin.__path__[0])


def at(task: Task, *verified: Shape, timed: Shape) -> Task:
    return dataclasses.replace(
        task, search_shapes=(timed,), verify_shapes=verified, held_out_shapes=(), held_out_timed_shapes=()
    )


@pytest.fixture(scope="module")
def product() -> Task:
    odd, whole = {"M": 35, "N": 40, "K": 67}, {"M": 70, "N": 72, "K": 88}
    task = load_task(FOLDER / "matmul_bf16", Language.TRITON)
    return at(task, odd, whole, timed={"M": 4096, "N": 4096, "K": 64})


@pytest.fixture(scope="module")
def rows() -> Task:
    shapes = ({"rows": r, "cols": c} for r, c in ((1, 1), (5, 70), (3, 2100)))
    return at(load_task(FOLDER / "rmsnorm", Language.TRITON), *shapes, timed={"rows": 8192, "cols": 64})


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Callable[[Task, str], None]:
    """Build a source and verify it."""

    def run(task: Task, source: str) -> None:
        evaluation = ModelDevice(task).evaluate(Kernel(source, Language.TRITON))
        assert evaluation.ok, f"{evaluation.outcome}: {evaluation.message}\n{source}"

    return run


def test_a_product_is_copied_by_tma_and_persistent(
    propose: Propose, product: Task, device: Callable[[Task, str], None]
) -> None:
    persistent = propose("triton-persistent-tiles", MATMUL, task=product)[
        f"persistent kernel with 264 programs, {TMA}"
    ]
    assert 'TMA = "((K) * 2 % 16 == 0)"' in persistent
    assert (
        "(tiles_0.load([(BLOCK_M * pid_m).to(tl.int32), (BLOCK_K * k).to(tl.int32)]) if TMA else tl.load("
        in persistent
    )
    before, loop, inside = persistent.partition(
        "    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):\n"
    )
    assert loop
    assert "tl.make_tensor_descriptor" in before
    assert "pid = tile.to(tl.int64)" in inside
    device(product, persistent)


def test_a_batch_of_one_and_tiles_that_are_renamed_are_read(
    propose: Propose, product: Task, device: Callable[[Task, str], None]
) -> None:
    head, order, body = MATMUL.partition("    pid = tl.program_id(axis=0).to(tl.int64)\n")
    tiles = (
        "    batch = tl.program_id(0).to(tl.int64)\n    pid_m = tl.program_id(1)\n    pid_n = tl.program_id(2)\n"
        "    pid_m, pid_n = tl.swizzle2d(pid_m, pid_n, tl.num_programs(1), tl.num_programs(2).to(tl.int32), GROUP)\n"
    )
    head = head.replace('["ceil_div(M, TILE_M) * ceil_div(N', '[1, "ceil_div(M, TILE_M)", "ceil_div(N')
    body = body[body.index("    offs_m") :].replace("a_ptr + (", "a_ptr + batch * M * K + (")
    assert order
    made = propose("triton-persistent-tiles", head + tiles + body, task=product)
    one = made[f"persistent kernel with 264 programs, {TMA}, one loop"]
    assert "tl.make_tensor_descriptor(a_ptr" in one
    assert "tl.num_programs(0), flatten=True):" in one
    device(product, one)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[None, :] < K - k * BLOCK_K", "[None, :] < K - k"),  # not where the row ends
        ("a_ptrs += BLOCK_K *", "a_ptrs += 2 * BLOCK_K *"),  # every other block
        (
            "        a = tl.load",
            "        a_ptrs += stride_ak\n        a = tl.load",
        ),  # moved before it is read
        ("mask=(offs_cm[:, None] < M) & (offs_cn", "mask=(offs_cn"),  # what wraps around is stored
        (
            "total = tl.dot(a, b, total)",
            "total = tl.dot(a, b, total) + tl.sum(a, axis=1)[:, None]",
        ),  # and added up
        ('"K", "K", 1, "N", 1', '"K", "K", 2, "N", 1'),  # no neighbours
        ("    pid_n = pid % width", "    pid_m = pid_m + 0\n    pid_n = pid % width"),  # a name of two values
    ],
)
def test_a_tile_that_no_descriptor_says_is_left_alone(
    propose: Propose, product: Task, old: str, new: str
) -> None:
    assert old in MATMUL
    for text in propose("triton-persistent-tiles", MATMUL.replace(old, new), task=product).values():
        assert "make_tensor_descriptor(a_ptr" not in text


def test_odd_strides_where_times_are_taken_leave_the_pointers(propose: Propose, product: Task) -> None:
    odd = dataclasses.replace(product, search_shapes=({"M": 64, "N": 64, "K": 67},))
    assert propose("triton-persistent-tiles", MATMUL, task=odd) == {}


def test_branches_that_constexprs_decide_are_taken(
    propose: Propose, rows: Task, device: Callable[[Task, str], None]
) -> None:
    line = "    tl.store(y_ptr"
    branches = (
        "    if MODE == 0:\n        x = x + 1\n    elif MODE == 1:\n        if AFFINE:\n            x = x * w\n"
        "    else:\n        x = w\n"
    )
    source = RMSNORM.replace(line, branches + line).replace("x * w, mask", "x, mask")
    source = source.replace("eps, BLOCK:", "eps, MODE: tl.constexpr, AFFINE: tl.constexpr, BLOCK:")
    source = source.replace("constexprs = {", "constexprs = { MODE = 1, AFFINE = 1,")
    several = propose("triton-several-rows", source, task=rows)["8 rows per program"]
    assert "\n    x = x * w\n    tl.store(y_ptr" in several
    device(rows, several)
    open_ended = source.replace("AFFINE = 1", 'AFFINE = "cols % 2"')
    assert propose("triton-several-rows", open_ended, task=rows) == {}


def test_short_rows_share_a_program(
    propose: Propose, rows: Task, device: Callable[[Task, str], None]
) -> None:
    device(rows, propose("triton-several-rows", RMSNORM, task=rows)["8 rows per program"])
