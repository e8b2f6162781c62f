"""From times to constants: a GPU on paper, whose constants are known, is recovered from what it answers."""

from __future__ import annotations

import msgspec
import pytest

from mctskernel.profiling.architecture import Architecture, architecture_of, load_architecture
from mctskernel.profiling.calibration.calibration import calibrate_gpu, constants
from mctskernel.profiling.calibration.machine import GpuMachine
from mctskernel.profiling.gpu.cuda_driver import open_gpu
from tests.profiling.calibration import paper_gpu
from tests.profiling.calibration.paper_gpu import PaperGpu

H100 = load_architecture("H100")
A100 = load_architecture("A100")


def truth_of(gpu: Architecture, factor: float = 1.0) -> Architecture:
    """The same GPU with every constant that isn't whole changed by a factor of its own near this one."""
    document = msgspec.to_builtins(gpu)
    for index, (path, value) in enumerate(constants(gpu)):
        section, field = path.split(".")
        if isinstance(value, float):
            document[section][field] = value * factor ** (1 + index % 3)
    if gpu.throughput.tensor_fma == gpu.throughput.tensor_sync_fma:
        document["throughput"]["tensor_fma"] = document["throughput"]["tensor_sync_fma"]
    return msgspec.convert(document, Architecture)


@pytest.mark.parametrize(("name", "factor"), [("H100", 1.0), ("RTX4090", 1.15)])
def test_the_constants_of_a_gpu_on_paper_are_found_within_two_per_cent(name: str, factor: float) -> None:
    truth = truth_of(load_architecture(name), factor)
    gpu = PaperGpu(truth)
    found = calibrate_gpu(gpu, like=A100 if name != "A100" else H100)
    assert not found.refused
    expected = dict(constants(truth))
    for path, value in constants(found.architecture):
        if path in found.measured and path != "chip.schedulers":
            assert value == pytest.approx(expected[path], rel=0.02), path
    assert found.architecture.chip.schedulers == 4
    assert gpu.held == ""


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda length: 1e-3, "doesn't grow with the work"),
        (lambda length: 1e-9 * length**2, "doesn't grow evenly"),
        (paper_gpu.refuse, "the GPU refused it: out of memory"),
    ],
)
def test_a_fit_that_looks_wrong_keeps_the_shipped_value_and_says_so(answer, reason: str) -> None:
    gpu = PaperGpu(H100, broken={"throughput.alu": answer})
    found = calibrate_gpu(gpu, like=A100)
    assert [each.constant for each in found.refused] == ["throughput.alu"]
    assert reason in found.refused[0].reason
    assert found.architecture.throughput.alu == A100.throughput.alu
    assert found.sources["throughput.alu"].startswith(
        f"not measured: {found.refused[0].reason}; as described"
    )
    assert found.architecture.throughput.fma == pytest.approx(H100.throughput.fma, rel=0.02)


@pytest.mark.gpu
def test_a_real_gpu_looks_like_its_description() -> None:
    gpu = open_gpu()
    described = architecture_of(gpu.architecture, gpu.name)
    assert described is not None
    found = calibrate_gpu(GpuMachine(gpu), described)
    assert not found.refused
    measured = dict(constants(found.architecture))
    for path in ("chip.clock_hz", "throughput.fma", "throughput.alu", "throughput.special", "latency.shared"):
        assert measured[path] == pytest.approx(dict(constants(described))[path], rel=0.1), path
