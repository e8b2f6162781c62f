"""Products on tiles, emulated as compiled for a GPU without wgmma."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from mctskernel.core.task import Shape, Tensor
from mctskernel.problems.templates import kernel_sources
from mctskernel.profiling.build import standalone
from tests.problems.plain_cuda.verified import tensor, wrong

torch = pytest.importorskip("torch")
nn = torch.nn.functional

TYPICAL: Shape = {"m": 1024, "n": 8192, "k": 8190, "d": 17, "h": 61, "w": 67}
X, Y = tensor("x", "m k"), tensor("y", "k n")


def templates(function: Callable[..., Any], *inputs: Tensor, sizes: Shape = TYPICAL) -> str:
    """The kernel of a function with templates; empty if none applies."""
    used = {name: size for name, size in sizes.items() if any(name in each.shape for each in inputs)}
    return kernel_sources(function, inputs, ["out"], used).templates


def check(function: Callable[..., Any], *inputs: Tensor, shape: Shape, sizes: Shape = TYPICAL) -> None:
    source = templates(function, *inputs, sizes=sizes)
    assert "blocks::multiply" in source
    assert not wrong(function, *inputs, source=source, shape=shape)


def test_what_follows_a_product_is_computed_with_it() -> None:
    weight, bias = tensor("weight", "n k"), tensor("bias", "n")

    def linear(x: Any, weight: Any, bias: Any) -> Any:
        return torch.relu(nn.linear(x, weight, bias) * 0.5 - 1)

    source = templates(linear, X, weight, bias)
    assert source.count("[[launch]]") == 2, "one kernel packs the operands, and one does the rest"
    assert not wrong(linear, X, weight, bias, source=source, shape={"m": 3, "n": 70, "k": 45})
    assert templates(lambda x, y: (x @ y).sigmoid() * (x @ y.exp()), X, Y).count("blocks::multiply<") == 2


def test_small_products_and_other_types_stay_plain() -> None:
    assert not templates(lambda x, y: x @ y, X, Y, sizes={"m": 4096, "n": 4096, "k": 8})
    wide = (tensor("x", "m k", "float64"), tensor("y", "k n", "float64"))
    assert not templates(lambda x, y: x @ y, *wide)


def test_a_batch_of_one_product_has_no_index() -> None:
    source = templates(lambda x, y: torch.einsum("dhmk,kn->dhmn", x, y), tensor("x", "d 3 m k"), Y)
    assert "blocks::ByTerm{x, " in source and source.count("[[launch]]") == 2


def test_a_kernel_with_blocks_can_stand_alone() -> None:
    text = standalone("#include <blocks.cuh>\n#include <recurrent.cuh>\nvoid f();\n")
    assert 'blocks.cuh"' not in text.replace(">", '"')
    assert text.count("namespace blocks {") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "inputs", "shape"),
    [
        (lambda x, y: x @ y, (X, Y), {"m": 130, "n": 200, "k": 65}),
        (lambda x, y: x @ y, (X, Y), {"m": 1, "n": 1, "k": 1}),
        (lambda x, y: x.T @ y.T, (tensor("x", "k m"), tensor("y", "n k")), {"m": 5, "n": 7, "k": 33}),
        (torch.bmm, (tensor("x", "d m k"), tensor("y", "d k n")), {"d": 2, "m": 5, "n": 7, "k": 33}),
    ],
)
def test_products_in_every_layout(function: Any, inputs: tuple[Tensor, ...], shape: Shape) -> None:
    for few in ({}, {"m": 40}, {"m": 8192, "n": 40}):
        sizes = {**TYPICAL, **few}
        assert bool(few) == ("blocks::Unpacked" in templates(function, *inputs, sizes=sizes))
        check(function, *inputs, shape=shape, sizes=sizes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (
            lambda x, y: torch.relu(x @ y.T),
            (tensor("x", "m k", "bfloat16"), tensor("y", "n k", "bfloat16")),
        ),
        (lambda x, y: (x.T + 1) @ y, (tensor("x", "k m", "float16"), tensor("y", "k n", "float16"))),
    ],
)
def test_products_of_16_bit_numbers(function: Any, inputs: tuple[Tensor, ...]) -> None:
    check(function, *inputs, shape={"m": 70, "n": 133, "k": 165})


A8, B8 = tensor("x", "m k", "float8_e4m3fn"), tensor("y", "n k", "float8_e5m2")


def _scaled(x: Any, y: Any, rows: Any, columns: Any) -> Any:
    return torch._scaled_mm(x, y.T, rows, columns, out_dtype=torch.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (_scaled, (A8, B8, tensor("rows", "m 1"), tensor("columns", "1 n"))),
        (lambda x, y: torch.relu(x.half() @ y.half().T), (A8, B8)),
        (lambda x, y: x.bfloat16() @ y.bfloat16(), (A8, tensor("y", "k n", "float8_e4m3fn"))),
    ],
)
def test_products_of_fp8(function: Any, inputs: tuple[Tensor, ...]) -> None:
    source = templates(function, *inputs)
    assert "Stored<blocks::E4M3, true" in source
    assert not wrong(function, *inputs, source=source, shape={"m": 64, "n": 80, "k": 320})


def test_products_of_quantised_tensors_read_fp8() -> None:
    def quantised(x: Any, y: Any) -> Any:
        limit = torch.finfo(torch.float8_e4m3fn).max
        a, b = ((each * (limit / each.abs().amax())).to(torch.float8_e4m3fn) for each in (x, y))
        one = torch.ones((), device=x.device)
        return torch._scaled_mm(a, b.T, one, one, out_dtype=torch.bfloat16)

    assert templates(quantised, X, tensor("y", "n k")).count("Stored<blocks::E4M3, true") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "inputs", "words"),
    [
        (lambda x, y: x @ y.T, (X, tensor("y", "n k")), "Stored<blocks::TF32, true"),
        (lambda x, y: (x + 1) @ y, (X, Y), "PackedAs<blocks::TF32>"),
    ],
)
def test_products_in_tf32_where_pytorch_is_told_so(
    function: Any, inputs: tuple[Tensor, ...], words: str
) -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        source = templates(function, *inputs, sizes={**TYPICAL, "k": 8192})
        assert words in source
        assert source.count("tf32 = true") == source.count("Stored<"), "copies round, as cuBLAS does"
        assert not wrong(function, *inputs, source=source, shape={"m": 70, "n": 133, "k": 165})
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def test_operands_that_tma_cannot_read_are_copied() -> None:
    inputs = (tensor("x", "m k", "bfloat16"), tensor("y", "k n", "bfloat16"))
    assert templates(lambda x, y: x @ y, *inputs, sizes={**TYPICAL, "k": 8192}).count("[[launch]]") == 1
    assert templates(lambda x, y: x @ y, *inputs, sizes={**TYPICAL, "k": 8191}).count("[[launch]]") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "macros",
    [
        {"TILE_M": 192, "TILE_N": 192, "STAGES": 4, "SLOTS": 1},
        {"TILE_M": 64, "TILE_N": 64, "CLUSTER": 1},
        {"TILE_M": 64, "TILE_N": 128, "TURNS": 2},
        {"TILE_M": 64, "TILE_N": 128, "CLUSTER": 1, "PARTS": 8, "BLOCKS": 8},
    ],
)
def test_tiles_of_16_bit_numbers_in_every_size(macros: dict[str, int]) -> None:
    def product(x: Any, y: Any) -> Any:
        return x.T @ y

    inputs = (tensor("x", "k m", "bfloat16"), tensor("y", "k n", "bfloat16"))
    source = templates(product, *inputs).replace("#define BLOCKS 132", "#define BLOCKS 2")
    for name, value in macros.items():
        source = re.sub(rf"#define {name} \d+", f"#define {name} {value}", source)
    assert not wrong(product, *inputs, source=source, shape={"m": 200, "n": 400, "k": 72})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "shape", "macros"),
    [
        (130, {"m": 145, "n": 300, "k": 72}, {}),
        (333, {"m": 190, "n": 131, "k": 200}, {}),
        (130, {"m": 33, "n": 71, "k": 72}, {"TILE_N": 32, "CLUSTER": 1, "PARTS": 4}),
    ],
)
def test_products_of_few_rows_exchange_operands(rows: int, shape: Shape, macros: dict[str, int]) -> None:
    def linear(x: Any, weight: Any, bias: Any) -> Any:
        return torch.relu(nn.linear(x, weight, bias))

    inputs = (
        *(tensor(*each, "bfloat16") for each in (("x", "m k"), ("w", "n k"))),
        tensor("b", "n", "bfloat16"),
    )
    source = templates(linear, *inputs, sizes={"m": rows, "n": 8192, "k": 4096})
    assert "store_transposed" in source
    for name, value in macros.items():
        source = re.sub(rf"#define {name} \d+", f"#define {name} {value}", source)
    assert not wrong(linear, *inputs, source=source, shape=shape)


@pytest.mark.slow
def test_results_of_short_products_go_through_shared_memory() -> None:
    inputs = (tensor("x", "m k", "bfloat16"), tensor("y", "n k", "bfloat16"))
    source = templates(lambda x, y: x @ y.T, *inputs, sizes={"m": 8192, "n": 1000, "k": 200})
    assert "blocks::store_boxes" in source
    assert source.count("[[tensor_map]]") == 3
    assert not wrong(lambda x, y: x @ y.T, *inputs, source=source, shape={"m": 131, "n": 234, "k": 72})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "inputs", "few", "shape"),
    [
        (lambda x, y: torch.relu(x @ y.T), (X, tensor("y", "n k")), {"m": 4}, {"m": 5, "n": 37, "k": 1032}),
        (lambda x, y: x @ y.T, (X, tensor("y", "n k")), {"m": 12}, {"m": 18, "n": 37, "k": 1033}),
        (lambda x, y: x @ y.T, (tensor("x", "1 k"), tensor("y", "n k")), {}, {"n": 37, "k": 2100}),
        (lambda x, y: x @ y, (X, tensor("y", "k 1")), {}, {"m": 37, "k": 2100}),
        (lambda x, y: x @ y, (X, Y), {"m": 7}, {"m": 9, "n": 70, "k": 300}),
        (lambda x, y: x @ y, (X, Y), {"n": 9}, {"m": 5, "n": 9, "k": 301}),
        (
            torch.bmm,
            (tensor("x", "d m k"), tensor("y", "d k n")),
            {"m": 2},
            {"d": 3, "m": 2, "n": 70, "k": 30},
        ),
    ],
)
def test_products_of_few_lines_read_the_other_operand_once(
    function: Any, inputs: tuple[Tensor, ...], few: Shape, shape: Shape
) -> None:
    source = templates(function, *inputs, sizes={**TYPICAL, **few})
    assert "blocks::multiply_few" in source
    assert source.count("[[launch]]") == 1
    assert not wrong(function, *inputs, source=source, shape=shape)


@pytest.mark.slow
def test_a_block_computes_several_tiles() -> None:
    source = templates(lambda x, y: x @ y, X, Y).replace("#define BLOCKS 132", "#define BLOCKS 2")
    assert not wrong(lambda x, y: x @ y, X, Y, source=source, shape={"m": 130, "n": 200, "k": 65})


@pytest.mark.slow
def test_a_product_with_many_terms_is_split() -> None:
    sizes = {"m": 64, "n": 64, "k": 99999}
    assert "#define SPLITS" in templates(lambda x, y: x @ y, X, Y, sizes=sizes)
    check(lambda x, y: torch.relu(x @ y + 1), X, Y, shape={"m": 3, "n": 5, "k": 1100}, sizes=sizes)


@pytest.mark.slow
def test_infinities_and_numbers_of_any_size() -> None:
    def scaled(x: Any, y: Any) -> Any:
        grown = torch.where(torch.arange(x.shape[1]) % 5 == 0, x * 1e18, x * 1e-18)
        return torch.cat([grown * 1e10, x / torch.where(x.abs() < 0.1, 0.0, 1.0)]) @ (y * 1e-15)

    check(scaled, X, Y, shape={"m": 5, "n": 7, "k": 33})


@pytest.mark.slow
def test_lines_that_begin_with_small_numbers_or_zeros() -> None:
    def late(x: Any, y: Any) -> Any:
        small = torch.arange(x.shape[1]) < 40
        return (x * torch.where(small, 1e-8, 1e8)) @ (y * torch.where(small, 0.0, 1.0)[:, None])

    check(late, X, Y, shape={"m": 5, "n": 7, "k": 300})
