"""Reductions in the epilogues of convolutions, emulated as compiled for a GPU without wgmma."""

from typing import Any

import pytest

from tests.problems.plain_cuda.test_tiles import templates
from tests.problems.plain_cuda.verified import tensor, wrong

torch = pytest.importorskip("torch")
nn = torch.nn.functional

SIZES = {"d": 17, "h": 161, "w": 167, "n": 63}
IMAGES = tensor("x", "d 20 h w")


def check(function: Any, weight: str, kernels: int, **shape: int) -> str:
    inputs = IMAGES, tensor("f", weight)
    source = templates(function, *inputs, sizes=SIZES)
    assert source.count("__global__") == kernels
    assert not wrong(function, *inputs, source=source, shape={"d": 2, "h": 9, "w": 21, **shape})
    return str(source)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "weight"),
    [
        (lambda x, f: torch.tanh(nn.conv2d(x, f).amin(1, keepdim=True)), "24 20 3 3"),
        (lambda x, f: torch.logsumexp(nn.gelu(nn.conv2d(x, f, padding=1)), 1), "70 20 3 3"),
        (lambda x, f: torch.sigmoid(nn.conv_transpose2d(x, f, stride=2).softmax(1)), "20 24 3 3"),
        (lambda x, f: nn.conv2d(x, f, stride=2).argmax(1), "24 20 3 3"),
    ],
)
def test_channels_are_reduced_in_one_kernel(function: Any, weight: str) -> None:
    check(function, weight, 2)


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 130])
def test_any_number_of_channels_is_reduced(channels: int) -> None:
    check(lambda x, f: nn.conv2d(x, f).softmax(1), "n 20 3 3", 2, n=channels)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "weight"),
    [
        (lambda x, f: nn.gelu(nn.conv2d(x, f)).mean((2, 3)), "24 20 3 3"),
        (lambda x, f: torch.logsumexp(nn.conv2d(x, f, padding=1), (2, 3)), "70 20 3 3"),
        (lambda x, f: nn.conv_transpose2d(x, f, stride=2).amax((1, 2, 3)), "20 24 3 3"),
        (lambda x, f: nn.conv2d(x, f, groups=2).var((2, 3)), "24 10 3 3"),
    ],
)
def test_places_of_an_image_are_reduced_in_parts(function: Any, weight: str) -> None:
    check(function, weight, 3)


def batch_norm(x: Any) -> Any:
    return nn.batch_norm(x, None, None, training=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "weight", "kernels"),
    [
        (lambda x, f: batch_norm(nn.conv2d(x, f) + 100) * 2, "24 20 3 3", 4),
        (lambda x, f: batch_norm(nn.relu(nn.conv2d(x, f, stride=2, padding=1))), "130 20 3 3", 4),
        (lambda x, f: batch_norm(nn.conv2d(x, f, groups=2)).amax((2, 3)), "140 10 3 3", 4),
        (
            lambda x, f: nn.max_pool2d(nn.group_norm(nn.conv_transpose2d(x, f, stride=2), 5), 2),
            "20 70 3 3",
            4,
        ),
        (lambda x, f: nn.avg_pool2d(torch.tanh(nn.instance_norm(nn.conv2d(x, f))), 2), "20 20 3 3", 4),
    ],
)
@pytest.mark.parametrize("width", [21, 26])
def test_moments_are_kept_of_what_is_stored(function: Any, weight: str, kernels: int, width: int) -> None:
    assert "in_parts" in check(function, weight, kernels, w=width)


@pytest.mark.slow
def test_nan_and_infinities_are_those_of_pytorch() -> None:
    def function(x: Any, f: Any) -> Any:
        found = nn.conv2d(torch.where(x > 2, torch.inf, x).where(x > -2, torch.nan), f)
        return found.amax(1) + found.softmax(1).amin(1)

    check(function, "24 20 3 3", 3)


def test_what_others_read_is_stored() -> None:
    source = templates(
        lambda x, f: (found := nn.conv2d(x, f)) * found.amax(1).sum(),
        IMAGES,
        tensor("f", "24 20 3 3"),
        sizes=SIZES,
    )
    assert "reducing" not in source
