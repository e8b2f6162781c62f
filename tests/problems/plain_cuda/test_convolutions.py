"""Convolutions, emulated as compiled for a GPU without wgmma."""

from typing import Any

import pytest

from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Tensor
from mctskernel.profiling.build import BuildFailure, build
from tests.problems.plain_cuda.test_tiles import templates
from tests.problems.plain_cuda.verified import tensor, wrong

torch = pytest.importorskip("torch")
nn = torch.nn.functional

SIZES = {"d": 17, "h": 61, "w": 68}
SHAPE = {"d": 2, "h": 6, "w": 21}
IMAGES = tensor("x", "d 20 h w")


def with_macros(source: str, macros: dict[str, int]) -> str:
    for name, value in macros.items():
        line = next(each for each in source.splitlines() if each.startswith(f"#define {name} "))
        source = source.replace(line, f"#define {name} {value}")
    return source


def check(function: Any, *inputs: Tensor, width: int = 21, **macros: int) -> None:
    source = with_macros(templates(function, *inputs, sizes=SIZES), macros)
    assert "convolutions::convolve" in source
    assert not wrong(function, *inputs, source=source, shape={**SHAPE, "w": width})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "weight"),
    [
        (lambda x, f: torch.relu(nn.conv2d(x, f, padding=1) * 2), "24 20 3 3"),
        (nn.conv2d, "70 20 1 1"),
        (lambda x, f: nn.conv2d(x, f, stride=2, padding=3), "40 20 7 5"),
        (lambda x, f: nn.conv2d(x, f, stride=(1, 3), dilation=2), "40 20 3 5"),
        (lambda x, f: nn.conv2d(x, f, groups=2, padding=(0, 1)), "14 10 3 3"),
        (lambda x, f: nn.conv2d(nn.pad(x, (1, 2, 0, 1)), f, dilation=(3, 1)), "40 20 3 3"),
        (lambda x, f: nn.conv_transpose2d(x, f, stride=2, padding=1, output_padding=1), "20 24 3 3"),
        (lambda x, f: nn.conv_transpose2d(x, f, stride=(2, 5), dilation=2, padding=1), "20 24 3 4"),
        (lambda x, f: nn.conv_transpose2d(x, f, groups=2), "20 8 3 3"),
    ],
)
def test_two_axes(function: Any, weight: str) -> None:
    check(function, IMAGES, tensor("f", weight))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "images", "weight", "word"),
    [
        (lambda x, f: nn.conv1d(x, f, stride=2, padding=2), "d 20 h", "24 20 5", "convolve<"),
        (lambda x, f: nn.conv3d(x, f, padding=1), "d 3 h w 6", "24 3 3 3 3", "convolve"),
        (lambda x, f: nn.conv3d(x, f, stride=2), "d 9 6 h w", "4 9 3 3 3", "convolve<"),
        (lambda x, f: nn.conv2d(x, f, stride=2, padding=2, groups=2), "d 6 h w", "28 3 3 5", "convolve"),
        (lambda x, f: nn.conv2d(x, f, stride=2, padding=3), "d 3 h w", "70 3 7 7", "FOLD = 7"),
        (lambda x, f: nn.conv_transpose3d(x, f, stride=2), "d 8 3 h w", "8 4 3 3 3", "EXACT = true"),
        (lambda x, f: nn.conv2d(x, f, padding=(1, 3), groups=6).relu(), "d 6 h w", "6 1 3 7", "directly<"),
        (lambda x, f: nn.conv2d(x, f, None, (2, 3), 0, 2, 3), "d 6 h w", "12 2 3 2", "directly<"),
        (lambda x, f: nn.conv1d(nn.pad(x, (40, 0)), f, groups=2), "d 2 w", "2 1 41", "directly<"),
        (lambda x, f: nn.conv3d(x, f, padding=1, groups=2), "d 2 h w 5", "4 1 3 1 3", "directly<"),
        (lambda x, f: nn.conv_transpose2d(x, f, stride=2, groups=5), "d 5 h w", "5 1 4 4", "directly<"),
        (lambda x, f: nn.conv_transpose3d(x, f, stride=(2, 1, 3)), "d 2 3 h w", "2 2 3 2 4", "directly<"),
    ],
)
def test_ranks_and_groups(function: Any, images: str, weight: str, word: str, dtype: str = "float32") -> None:
    inputs = tensor("x", images, dtype), tensor("f", weight, dtype)
    source = templates(function, *inputs, sizes=SIZES)
    assert word in source
    assert not wrong(function, *inputs, source=source, shape=SHAPE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "images", "weight", "word", "dtype"),
    [
        (lambda x, f: nn.conv2d(x, f, padding=1), "d 40 h w", "40 40 3 3", "convolve<", "float16"),
        (lambda x, f: nn.conv_transpose2d(x, f, stride=2), "d 20 h w", "20 70 3 3", "convolve<", "bfloat16"),
        (lambda x, f: nn.conv2d(x, f, padding=1), "d 3 h w", "40 3 3 3", "FOLD = 3", "bfloat16"),
        (lambda x, f: nn.conv2d(x, f, padding=1), "d 1 h w", "40 1 3 3", "few<", "float16"),
        (lambda x, f: nn.conv2d(x, f, groups=6), "d 6 h w", "6 1 3 7", "directly<", "bfloat16"),
        (lambda x, f: nn.conv2d(x, f, groups=6), "d 6 h w", "6 1 3 7", "directly<", "float16"),
    ],
)
def test_16_bit_numbers(function: Any, images: str, weight: str, word: str, dtype: str) -> None:
    test_ranks_and_groups(function, images, weight, word, dtype)


@pytest.mark.slow
@pytest.mark.parametrize(
    "macros",
    [
        {"STRIP": 5, "TILE_ROWS": 128},
        {"STRIP": 100, "LOADERS": 1, "DEEP": 2, "BLOCKS": 3},
        {"DEEP": 3, "STAGES": 2},
    ],
)
def test_macros_choose_how_and_not_what(macros: dict[str, int]) -> None:
    check(nn.conv2d, IMAGES, tensor("f", "40 20 3 3"), tensor("b", "40"), **macros)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "weight", "macros"),
    [
        (nn.conv2d, "24 20 3 3", {"STRIP": 9}),
        (lambda x, f: nn.conv2d(x, f, padding=(0, 2)), "70 20 2 3", {"WARP_GROUPS": 2, "LOADERS": 1}),
        (lambda x, f: nn.conv2d(x, f, groups=2, padding=1), "80 10 3 3", {"TILE_ROWS": 128}),
        (lambda x, f: nn.conv_transpose2d(x, f, stride=2), "20 24 4 4", {"STRIP": 7}),
        (lambda x, f: nn.conv_transpose2d(x, f, stride=(1, 4)), "20 10 3 4", {}),
    ],
)
def test_two_columns_are_stored_at_once(function: Any, weight: str, macros: dict[str, int]) -> None:
    check(function, IMAGES, tensor("f", weight), width=26, **macros)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "weight", "width", "macros"),
    [
        (lambda x, f: nn.mish(nn.max_pool2d(torch.tanh(nn.conv2d(x, f)), 2)), "40 20 3 3", 21, {}),
        (lambda x, f: nn.avg_pool2d(nn.conv2d(x, f), (3, 4), (2, 4), (1, 0)), "70 20 3 3", 26, {"STRIP": 9}),
        (
            lambda x, f: nn.max_pool2d(nn.conv_transpose2d(x, f, stride=2), (1, 2)),
            "20 24 3 3",
            21,
            {"STRIP": 5},
        ),
        (lambda x, f: nn.max_pool2d(nn.conv2d(x, f, groups=2), 4), "80 10 3 3", 26, {"WARP_GROUPS": 2}),
        (lambda x, f: nn.max_pool2d(nn.conv2d(x.where(x > -2, torch.nan), f), 2), "40 20 1 1", 26, {}),
    ],
)
def test_pairs_of_columns_are_pooled(function: Any, weight: str, width: int, macros: dict[str, int]) -> None:
    check(function, IMAGES, tensor("f", weight), width=width, **macros)
    assert "convolutions::pairs" in templates(function, IMAGES, tensor("f", weight), sizes=SIZES)


@pytest.mark.slow
@pytest.mark.parametrize("math", [1, 2])
def test_functions_of_sums(math: int) -> None:
    def function(x: Any, f: Any, b: Any) -> Any:
        y = nn.gelu(nn.conv2d(x, f, b))
        return torch.tanh(y) * nn.mish(3 * y) + torch.sigmoid(8 * y) - torch.log(y * y + 1)

    check(function, IMAGES, tensor("f", "40 20 1 1"), tensor("b", "40"), MATH=math)


@pytest.mark.slow
@pytest.mark.parametrize(
    "macros",
    [{"LOADERS": 1}, {"LOADERS": 2}, {"LOADERS": 1, "WARP_GROUPS": 2}, {"TILE_ROWS": 128}],
)
def test_what_macros_choose_compiles_for_wgmma(macros: dict[str, int]) -> None:
    source = with_macros(
        templates(nn.conv2d, IMAGES, tensor("f", "10 20 3 3"), sizes=SIZES),
        {"STAGES": 2, "LOADERS": 2, **macros},
    )
    assert not isinstance(
        build(Kernel(source, Language.CUDA), ["convolution_kernel"], "sm_90a"), BuildFailure
    )


@pytest.mark.slow
def test_few_channels_have_products_with_fp32s_accuracy() -> None:
    inputs = tensor("x", "d 8 h w"), tensor("f", "50 8 3 3")
    source = templates(nn.conv2d, *inputs, sizes=SIZES)
    assert "EXACT = true" in source
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.backends.cudnn, "allow_tf32", False)
        assert not wrong(nn.conv2d, *inputs, source=source, shape={"d": 1, "h": 9, "w": 21})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "images", "weight"),
    [
        (lambda x, f, b: torch.relu(nn.conv2d(x, f, b, padding=1, groups=2)), "d 140 h w", "40 70 3 3"),
        (lambda x, f, b: nn.conv_transpose2d(x, f, b, stride=2), "d 140 h w", "140 40 3 3"),
    ],
)
def test_channels_are_split_where_there_are_few_blocks(function: Any, images: str, weight: str) -> None:
    inputs = tensor("x", images), tensor("f", weight), tensor("b", "40")
    sizes = {"d": 2, "h": 3, "w": 4}
    source = templates(function, *inputs, sizes=sizes)
    assert "#define SPLITS" in source
    assert not wrong(function, *inputs, source=source, shape=sizes)


@pytest.mark.slow
def test_views_are_stored_before_they_are_convolved() -> None:
    check(lambda x, f: nn.conv2d(x.transpose(2, 3), f), IMAGES, tensor("f", "24 20 3 3"))


def test_exact_convolutions_where_pytorch_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert not templates(nn.conv2d, IMAGES, tensor("f", "24 20 3 3"), sizes=SIZES)
