"""Convolutions as matrix products, against PyTorch's own on the CPU."""

import pytest

torch = pytest.importorskip("torch")

from mctskernel.profiling.float64_convolutions import convolve  # noqa: E402 - needs PyTorch

CASES = [
    # images, weight, stride, padding, dilation, transposed, output padding, groups
    ((2, 6, 9), (4, 6, 3), [1], [0], [1], False, [0], 1),
    ((2, 6, 9, 11), (4, 3, 3, 2), [2, 1], [1, 2], [1, 3], False, [0, 0], 2),
    ((1, 5, 8, 7), (10, 1, 3, 3), [1, 2], [1, 0], [2, 1], False, [0, 0], 5),
    ((2, 4, 5, 6, 7), (3, 4, 2, 3, 1), [1, 2, 3], [0, 1, 0], [1, 1, 2], False, [0, 0, 0], 1),
    ((2, 6, 9), (6, 4, 3), [3], [1], [2], True, [2], 1),
    ((2, 6, 5, 7), (6, 2, 3, 4), [2, 3], [1, 2], [1, 2], True, [1, 0], 3),
    ((1, 4, 3, 4, 5), (4, 1, 2, 3, 3), [2, 1, 2], [0, 1, 1], [1, 2, 1], True, [1, 0, 1], 4),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[5]}-{len(case[0]) - 2}d-{case[-1]}")
@pytest.mark.parametrize("biased", [True, False])
def test_it_convolves_as_pytorch_does(case: tuple, biased: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    images, weight, *options = case
    x, w = (torch.randn(size, generator=generator, dtype=torch.float64) for size in (images, weight))
    channels = weight[1] * options[-1] if options[3] else weight[0]
    bias = torch.randn(channels, generator=generator, dtype=torch.float64) if biased else None
    wanted = torch.ops.aten.convolution(x, w, bias, *options)
    torch.testing.assert_close(convolve(x, w, bias, *options), wanted, rtol=1e-12, atol=1e-12)
